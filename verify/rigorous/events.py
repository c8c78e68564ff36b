"""Lower bounds: the probabilities of one event, {sum of integer labels >= t}, under two neighbouring inputs.

Each release maps its output to an integer label. For iid noise a coordinate's cell has an integer score, the moved
coordinates' scores are added, and the sum has a label; for radial noise it is a cell of the privacy loss. The history's
labels are added. delta(epsilon) >= P(event) - e^epsilon Q(event), whatever cells, scores and labels are: they are
chosen in floating point (`choices`), and only the masses of cells are balls, whose lower ends `scores` adds up.

A scale that coordinates share is summed at nodes, every mass from below (`hidden_scale`); the label may depend on the
size of coordinates that are not moved, which tells that scale. A pass of releases in a random order has one label, of
the sum of their scores (`passes`). For radial noise the chance of the larger label is bracketed: from below it bounds
P's label, from above Q's.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from flint import arb, fmpz, fmpz_poly

from dpaudit.mechanisms.registry import to_dict
from dpaudit.verify.claims import Phase
from dpaudit.verify.rigorous.balls import PRECISION, ball, precision
from dpaudit.verify.rigorous.coordinates import CoordinateLaw, cell_masses, coordinate_law, power_law
from dpaudit.verify.rigorous.hidden_scale import SharedScale, scale_nodes
from dpaudit.verify.rigorous.passes import LabelledPass, pass_laws, pass_pairs
from dpaudit.verify.rigorous.radial import RadialNoise, loss_tail_on
from dpaudit.verify.rigorous.scores import ScoreWindow


@dataclass(frozen=True)
class ToldApart:
    """An event's probabilities under two neighbours' laws.

    Args:
        p: From below, under the law that finds it likelier.
        q: From above, under the other one.
        witness: In words.
    """

    p: arb
    q: arb
    witness: str

    def excess(self, epsilon: float) -> float:
        """At most delta(epsilon)."""
        return float((self.p - ball(epsilon).exp() * self.q).lower())


@dataclass(frozen=True)
class LabelledSum:
    """Labels of a release with iid noise, or with iid noise given a hidden scale.

    Args:
        value: Distance of the two centres in each moved coordinate, a decimal.
        count: How many coordinates are moved.
        edges: Ascending decimals that cut one coordinate's line into cells.
        scores: One more than edges.
        window: Sums of scores are folded to -window..window.
        labels: Of the sums, 2 window + 1 of them, cell by cell of the gauges' size.
        scale: The hidden scale, if the coordinates share one.
    """

    value: str
    count: int
    edges: tuple[str, ...]
    scores: tuple[int, ...]
    window: int
    labels: tuple[int, ...]
    scale: SharedScale | None = None


@dataclass(frozen=True)
class LabelledLoss:
    """Labels of a release with radial noise: the second where the loss exceeds a level, else the first.

    Args:
        value: Distance of the two centres, a decimal.
        level: Positive, a decimal.
        labels: Two, not falling.
        places: Ascending decimals that cut the radius, for P(L > level) and for P(L < -level).
    """

    value: str
    level: str
    labels: tuple[int, int]
    places: tuple[tuple[str, ...], tuple[str, ...]]


Part = LabelledSum | LabelledLoss | LabelledPass


@dataclass(frozen=True)
class Event:
    """{sum of labels >= threshold}, labels being folded to -window..window.

    Args:
        parts: One for each phase, whose label counts once a release, or once a pass.
        window: W.
        bits: Masses are multiples of 2^-bits.
        direction: "remove" (P is with the record) or "add".
        threshold: t.
    """

    parts: tuple[Part, ...]
    window: int
    bits: int
    direction: str
    threshold: int


@dataclass(frozen=True)
class LabelLaws:
    """A release's label with the record, from below, and without it, from below and from above."""

    moved: fmpz_poly
    plain_low: fmpz_poly
    plain_high: fmpz_poly


def label_laws(phase: Phase, part: LabelledSum | LabelledLoss, window: ScoreWindow) -> LabelLaws:
    """The laws of one unsampled release's label."""
    if isinstance(part, LabelledLoss):
        return _loss_laws(phase, part, window)
    sums = sum_masses(phase, replace(part, labels=()), window.bits)
    moved, plain = (window.gathered(masses, part.labels) for masses in sums)
    return LabelLaws(moved, plain, plain)


@lru_cache(maxsize=4)
def sum_masses(phase: Phase, part: LabelledSum, bits: int) -> tuple[list[fmpz], list[fmpz]]:
    """Masses of what has a label, in units of 2^-bits and from below, with the record and without it.

    Args:
        phase: The noise.
        part: Its labels do not matter.
        bits: Resolution.
    """
    inner, cells = ScoreWindow(part.window, bits), range(len(part.scale.sizes) + 1 if part.scale is not None else 1)
    sides = [[fmpz_poly([]) for _ in cells] for _ in range(2)]
    with precision(max(PRECISION, bits)):
        for law, shift, count, chances in _given_laws(phase, part):
            for side, centre in zip(sides, (shift, arb(0)), strict=True):
                one = inner.law(cell_masses(law, [ball(e) for e in part.edges], centre), part.scores)
                sums = inner.repeated(one, count)
                for cell, chance in enumerate(chances):
                    side[cell] += inner.share(chance, sums)
    moved, plain = ([mass for law in side for mass in inner.masses(law)] for side in sides)
    return moved, plain


def _given_laws(phase: Phase, part: LabelledSum) -> Iterator[tuple[CoordinateLaw, arb, int, list[arb]]]:
    """(a coordinate's law, shift, how many, chances of the cells of the size) of noise, or of it given a node."""
    shift = ball(part.value)
    if part.scale is not None:
        structure = to_dict(phase.mechanism)
        nodes = scale_nodes(ball(structure["k"]), ball(structure["theta"]), part.scale, part.count)
        yield from ((power_law(arb(1), 1 / u), shift, part.count, chances) for u, chances in nodes)
        return
    law = coordinate_law(phase.mechanism)
    assert isinstance(law, CoordinateLaw)
    if law.power is not None and law.power == 2:  # a Gaussian looks the same along every line
        yield law, shift * (arb(part.count).sqrt() if part.count > 1 else 1), 1, [arb(1)]
    else:
        yield law, shift, part.count, [arb(1)]


def _loss_laws(phase: Phase, part: LabelledLoss, window: ScoreWindow) -> LabelLaws:
    """The smallest and the largest laws of the label."""
    data, level = to_dict(phase.mechanism), ball(part.level)
    noise = RadialNoise(int(data["dimension"]), ball(data["sigma"]), ball(part.value))
    cut = [[ball(text) for text in places] for places in part.places]
    p, q = (loss_tail_on(noise, level, sign, at) for sign, at in zip((1, -1), cut, strict=True))
    return LabelLaws(*(window.law([1 - x, x], part.labels) for x in (p[0].lower(), q[0].lower(), q[1].upper())))


@lru_cache(maxsize=1)
def total_laws(phases: tuple[Phase, ...], event: Event) -> tuple[fmpz_poly, fmpz_poly]:
    """Laws of the history's label under P (from below) and Q (from above), sampled and composed."""
    window, sides = ScoreWindow(event.window, event.bits), list[fmpz_poly]()
    with precision(max(PRECISION, event.bits)):
        pairs = [_release_laws(phase, part, event, window) for phase, part in zip(phases, event.parts, strict=True)]
        for side in range(2):
            laws = [
                window.repeated(pair[side], labels_count(phase, part))
                for pair, phase, part in zip(pairs, phases, event.parts, strict=True)
            ]
            joined = laws[0]
            for law in laws[1:]:
                joined = window.added(joined, law)
            sides.append(joined)
    return sides[0], sides[1]


def labels_count(phase: Phase, part: Part) -> int:
    """How many labels of the phase are added up: one a pass, or one a release."""
    return pass_pairs(phase, swaps=part.swaps)[part.game].passes if isinstance(part, LabelledPass) else phase.steps


def _release_laws(phase: Phase, part: Part, event: Event, window: ScoreWindow) -> tuple[fmpz_poly, fmpz_poly]:
    """The label of one sampled release, or of one pass, under both inputs."""
    if isinstance(part, LabelledPass):
        first, second = pass_laws(phase, part, window)
        return (first, second) if event.direction == "remove" else (second, first)
    laws, q = label_laws(phase, part, window), ball(phase.sampling_prob)
    mixed = window.share(q, laws.moved) + window.share(1 - q, laws.plain_low) if q < 1 else laws.moved
    return (mixed, laws.plain_high) if event.direction == "remove" else (laws.plain_high, mixed)


def event_probabilities(phases: Sequence[Phase], event: Event) -> tuple[arb, arb]:
    """(P of the event, from below; Q of the event, from above), both exact.

    Args:
        phases: The history.
        event: Its direction "add" exchanges the two inputs; it needs other than radial noise.
    """
    window, start = ScoreWindow(event.window, event.bits), event.threshold + event.window
    first, second = (window.masses(law) for law in total_laws(tuple(phases), replace(event, threshold=0)))
    with precision(2 * event.bits):
        return window.ball(sum(first[start:], fmpz(0))), 1 - window.ball(sum(second[:start], fmpz(0)))


def binomial_tail(trials: int, successes: int, probability: arb) -> arb:
    """P(Bin(trials, probability) >= successes), from the regularised incomplete Beta function.

    >>> from flint import arb
    >>> abs(binomial_tail(3, 2, arb(1) / 2) - arb(1) / 2) < 1e-12
    True
    """
    if successes <= 0 or successes > trials:
        return arb(int(successes <= 0))
    return arb(probability).beta_lower(successes, trials - successes + 1, 1)
