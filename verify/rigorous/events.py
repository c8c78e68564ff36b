"""Lower bounds: the probabilities of one event, {sum of integer labels >= t}, under two neighbouring inputs.

Each release maps its output to an integer label. For iid noise a coordinate's cell has an integer score, the moved
coordinates' scores are added, and the sum has a label; for radial noise it is a cell of the privacy loss. The history's
labels are added. delta(epsilon) >= P(event) - e^epsilon Q(event), whatever cells, scores and labels are: they are
chosen in floating point (`choices`), and only the probabilities are balls.

A hidden scale u: where every edge lies between the two centres and scores and labels do not fall along the line, the
label grows stochastically with u under the shift and falls without it, and sums keep that order. So P's law is bounded
below by rounding u down, Q's above by rounding u down, and the unsampled part of P's below by rounding u up.
For radial noise the tails are balls; the smallest law that fits them bounds P's label below, the largest Q's above.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from flint import arb, arb_poly

from dpaudit.mechanisms.registry import to_dict
from dpaudit.verify.claims import Phase
from dpaudit.verify.rigorous.balls import ball, total
from dpaudit.verify.rigorous.coordinates import CoordinateLaw, cell_masses, coordinate_law, power_law
from dpaudit.verify.rigorous.radial import RadialNoise, loss_tail
from dpaudit.verify.rigorous.scores import added, coefficients, repeated, score_law


@dataclass(frozen=True)
class LabelledSum:
    """Labels of a release with iid noise, or with iid noise given a hidden scale.

    Args:
        value: Distance of the two centres in each moved coordinate, a decimal.
        count: How many coordinates are moved.
        edges: Ascending decimals that cut one coordinate's line into cells.
        scores: One more than edges.
        window: Sums of scores are folded to -window..window.
        labels: Of the sums, 2 window + 1 of them.
        scales: Ascending decimals that cut the hidden scale's range; none without one.
    """

    value: str
    count: int
    edges: tuple[str, ...]
    scores: tuple[int, ...]
    window: int
    labels: tuple[int, ...]
    scales: tuple[str, ...] = ()


@dataclass(frozen=True)
class LabelledLoss:
    """Labels of a release with radial noise: one for each cell between -l_r, ..., -l_1, l_1, ..., l_r of the loss.

    Args:
        value: Distance of the two centres, a decimal.
        levels: l_1 < ... < l_r, positive decimals.
        labels: 2 r + 1, not falling.
        cells: Of the radius, for each tail.
    """

    value: str
    levels: tuple[str, ...]
    labels: tuple[int, ...]
    cells: int


@dataclass(frozen=True)
class Event:
    """{sum of labels >= threshold}, labels being folded to -window..window.

    Args:
        parts: One for each phase.
        window: W.
        direction: "remove" (P is with the record) or "add".
        threshold: t.
    """

    parts: tuple[LabelledSum | LabelledLoss, ...]
    window: int
    direction: str
    threshold: int


@dataclass(frozen=True)
class LabelLaws:
    """A release's label with the record, from below, and without it, from below and from above."""

    moved: arb_poly
    plain_low: arb_poly
    plain_high: arb_poly


def label_laws(phase: Phase, part: LabelledSum | LabelledLoss, window: int) -> LabelLaws:
    """The laws of one unsampled release's label."""
    if isinstance(part, LabelledLoss):
        return _loss_laws(phase, part, window)
    structure = to_dict(phase.mechanism)
    if structure["name"] == "gamma-plrv":
        return _hidden_laws(ball(structure["k"]), ball(structure["theta"]), part, window)
    law = coordinate_law(phase.mechanism)
    assert isinstance(law, CoordinateLaw)
    gaussian = law.power is not None and law.power == 2
    shift = ball(part.value) * (arb(part.count).sqrt() if gaussian and part.count > 1 else 1)
    count = 1 if gaussian else part.count  # a Gaussian looks the same along every line
    moved, plain = (summed(law, part, centre * shift, count, window) for centre in (1, 0))
    return LabelLaws(moved, plain, plain)


def summed(law: CoordinateLaw, part: LabelledSum, centre: arb, count: int, window: int) -> arb_poly:
    """Law of the label of `count` coordinates about the centre."""
    one = score_law(cell_masses(law, [ball(e) for e in part.edges], centre), part.scores, part.window)
    return score_law(coefficients(repeated(one, count, part.window), part.window), part.labels, window)


def _hidden_laws(k: arb, theta: arb, part: LabelledSum, window: int) -> LabelLaws:
    """The mixture over cells of the hidden scale, each rounded to the end that is safe (module docstring)."""
    above = [arb(1), *((ball(u) / theta).gamma_upper(k, 1) for u in part.scales), arb(0)]
    below, *shares = (a - b for a, b in pairwise(above))
    moved, low = score_law([below], [-window], window), score_law([shares[-1]], [-window], window)
    high = score_law([below], [window], window)
    for before, text, share in zip([below, *shares], part.scales, shares, strict=False):
        rate = ball(text)
        law = power_law(arb(1), 1 / rate)
        plain = summed(law, part, arb(0), part.count, window)
        moved += share * summed(law, part, ball(part.value), part.count, window)
        low, high = low + before * plain, high + share * plain
    return LabelLaws(moved, low, high)


def _loss_laws(phase: Phase, part: LabelledLoss, window: int) -> LabelLaws:
    """The smallest and the largest laws whose tails lie in the balls."""
    data = to_dict(phase.mechanism)
    noise = RadialNoise(int(data["dimension"]), ball(data["sigma"]), ball(part.value))
    up, down = ([loss_tail(noise, ball(x), sign, part.cells) for x in part.levels] for sign in (1, -1))

    def law(above: Sequence[arb], below: Sequence[arb], low: bool) -> arb_poly:
        bounds = [arb(0)]
        for tail in [*reversed(above), *(1 - tail for tail in below)]:
            bounds.append(max(bounds[-1], tail.lower() if low else min(tail.upper(), arb(1))))
        return score_law([a - b for a, b in pairwise([arb(1), *reversed(bounds)])], part.labels, window)

    return LabelLaws(law(up, down, True), law(down, up, True), law(down, up, False))


def total_laws(phases: Sequence[Phase], event: Event) -> tuple[arb_poly, arb_poly]:
    """Laws of the history's label under P (from below) and Q (from above), sampled and composed."""
    sides: tuple[list[arb_poly], list[arb_poly]] = ([], [])
    for phase, part in zip(phases, event.parts, strict=True):
        laws, q = label_laws(phase, part, event.window), ball(phase.sampling_prob)
        mixed = q * laws.moved + (1 - q) * laws.plain_low
        pair = (mixed, laws.plain_high) if event.direction == "remove" else (laws.plain_high, mixed)
        for side, law in zip(sides, pair, strict=True):
            side.append(repeated(law, phase.steps, event.window))
    first, second = (_joined(side, event.window) for side in sides)
    return first, second


def _joined(laws: Sequence[arb_poly], window: int) -> arb_poly:
    law = laws[0]
    for other in laws[1:]:
        law = added(law, other, window)
    return law


def event_probabilities(phases: Sequence[Phase], event: Event) -> tuple[arb, arb]:
    """(P of the event, from below; Q of the event, from above): the lower and upper ends of the balls count.

    Args:
        phases: The history.
        event: Its direction "add" exchanges the two inputs; it needs iid noise without a hidden scale.
    """
    start = event.threshold + event.window
    first, second = (total(coefficients(law, event.window)[start:]) for law in total_laws(phases, event))
    return first, second


def binomial_tail(trials: int, successes: int, probability: arb) -> arb:
    """P(Bin(trials, probability) >= successes), from the regularised incomplete Beta function.

    >>> from flint import arb
    >>> abs(binomial_tail(3, 2, arb(1) / 2) - arb(1) / 2) < 1e-12
    True
    """
    if successes <= 0 or successes > trials:
        return arb(int(successes <= 0))
    return arb(probability).beta_lower(successes, trials - successes + 1, 1)
