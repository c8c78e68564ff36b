"""A pass of releases in a random order, in balls: the exact law of a sum of whole scores, and of a label of it.

Of n_0 + n_1 + n_2 releases so many have their noise around 0, 1 and 2 contributions, in a uniformly random order. Each
has a score of at least 0, and V, their sum, is the same for every order; so V's law under one order is that under all.
V above the window is left out together with what rounding takes: as scores are not negative, V exceeds the window
wherever a part of the sum does. What is left out belongs to every event {V's label >= t}, as in `scores`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from flint import arb, fmpz, fmpz_poly

from dpaudit.verify.claims import Phase
from dpaudit.verify.rigorous.balls import ball
from dpaudit.verify.rigorous.coordinates import CoordinateLaw, cell_masses, coordinate_law
from dpaudit.verify.rigorous.scores import ScoreWindow
from dpaudit.verify.samplers import BallsInBins, BufferedShuffle, RandomAllocation, Shuffled, WithoutReplacement

Counts = tuple[int, int, int]
Slots = tuple[tuple[Fraction, Counts], ...]


@dataclass(frozen=True)
class PassPair:
    """The two laws of a pass as mixtures of counts of releases around 0, 1 and 2 contributions.

    Args:
        first: With the record.
        second: Without it, or with the other value.
        passes: Independent ones.
        orders: 1, or how many passes of one order are cut alike, E: normal contributions count sqrt(E)-fold.
    """

    first: Slots
    second: Slots
    passes: int
    orders: int = 1


@dataclass(frozen=True)
class LabelledPass:
    """Labels of a pass: every release has a score, their sum V a label.

    Args:
        value: What the record contributes to each of `count` coordinates, a decimal.
        count: How many coordinates it moves; more than one for normal noise only.
        edges: Ascending decimals that cut a release's line into cells.
        scores: One more than edges, at least 0.
        window: Largest V that is told apart.
        labels: Of V = 0..window.
        game: Which of the pairs that the sampler allows.
        swaps: Under replace-one.
    """

    value: str
    count: int
    edges: tuple[str, ...]
    scores: tuple[int, ...]
    window: int
    labels: tuple[int, ...]
    game: int
    swaps: bool


def pass_pairs(phase: Phase, *, swaps: bool) -> tuple[PassPair, ...]:
    """Pairs that neighbours can have under the phase's sampler, in exact fractions; see `Sampler.games`."""
    match phase.sampler:
        case Shuffled() as sampler:
            return _shuffled(sampler, swaps=swaps)
        case BufferedShuffle(passes=Shuffled() as passes) as sampler if sampler.hidden_batches:
            inside = Fraction(sampler.hidden_batches * sampler.batch, sampler.buffer)
            return (_hidden(sampler.hidden_batches, inside, passes.epochs, swaps=swaps),)
        case BallsInBins() as sampler if not swaps:
            return (_silent(sampler.batches, 1, sampler.epochs, once=sampler.reshuffle == "once"),)
        case RandomAllocation() as sampler if not swaps:
            return (_silent(sampler.releases, sampler.times, 1, once=False),)
        case WithoutReplacement() as sampler:
            return _fixed_size(Fraction(str(sampler.prob)), sampler.releases, swaps=swaps)
        case _:
            return ()


def _shuffled(sampler: Shuffled, *, swaps: bool) -> tuple[PassPair, ...]:
    count, inside = sampler.whole_batches, Fraction(1)
    if sampler.has_passes_without_a_batch:
        return ()  # passes that are looked at one by one, of which certificates do not know
    if sampler.records is not None and sampler.batch is not None and sampler.last_batch != "kept":
        inside = Fraction(count * sampler.batch, sampler.records)
    passes, orders = (1, len(sampler.whole_passes)) if sampler.reshuffle == "once" else (sampler.epochs, 1)
    return (_hidden(count, inside, passes, orders, swaps=swaps),)


def _hidden(count: int, inside: Fraction, passes: int, orders: int = 1, *, swaps: bool) -> PassPair:
    """The record in one of so many batches of a pass, with a probability, all others against it."""
    rest = ((1 - inside, (count, 0, 0)),) if inside < 1 else ()
    without = (count, 0, 0) if swaps else (count - 1, 1, 0)
    return PassPair(((inside, (count - 1, 0, 1)), *rest), ((inside, without), *rest), passes, orders)


def _silent(releases: int, times: int, epochs: int, *, once: bool) -> PassPair:
    first, second = ((Fraction(1), (releases - times, times, 0)),), ((Fraction(1), (releases, 0, 0)),)
    return PassPair(first, second, 1 if once else epochs, epochs if once else 1)


def _fixed_size(g: Fraction, releases: int, *, swaps: bool) -> tuple[PassPair, ...]:
    absent = ((1 - g, (1, 0, 0)),) if g < 1 else ()
    silent = ((Fraction(1), (1, 0, 0)),)
    far, near = (*absent, (g, (0, 0, 1))), (*absent, (g, (0, 1, 0)))
    if swaps:
        return (PassPair(far, silent, releases),)
    return PassPair(far, near, releases), PassPair(near, silent, releases)


def pass_laws(phase: Phase, part: LabelledPass, window: ScoreWindow) -> tuple[fmpz_poly, fmpz_poly]:
    """Laws of the label of one pass under both laws of the pair, both from below."""
    pair, law = pass_pairs(phase, swaps=part.swaps)[part.game], coordinate_law(phase.mechanism)
    assert isinstance(law, CoordinateLaw)
    unit = ball(part.value) * arb(part.count).sqrt()
    if law.power is not None and law.power == 2:
        unit *= arb(pair.orders).sqrt()
    edges = [ball(edge) for edge in part.edges]
    needed = {k for slots in (pair.first, pair.second) for _, counts in slots for k in range(3) if counts[k]}
    releases = {k: _release(cell_masses(law, edges, k * unit), part, window) for k in needed}
    sums = [
        sum(
            (window.share(ball(w), capped_sum(releases, counts, part.window, window.bits)) for w, counts in slots),
            start,
        )
        for slots, start in ((pair.first, fmpz_poly([])), (pair.second, fmpz_poly([])))
    ]
    return _labelled(sums[0], part, window), _labelled(sums[1], part, window)


def _release(masses: Sequence[arb], part: LabelledPass, window: ScoreWindow) -> fmpz_poly:
    """Law of a release's score; one above the window is left out."""
    found = [fmpz(0)] * (part.window + 1)
    for mass, score in zip(masses, part.scores, strict=True):
        if score <= part.window:
            found[score] += window.floor(mass)
    return fmpz_poly(found)


def capped_sum(parts: dict[int, fmpz_poly], counts: Sequence[int], most: int, bits: int) -> fmpz_poly:
    """Law of a sum of independent scores of at least 0, so many of each kind, up to `most`.

    Args:
        parts: Kind -> its law, masses in units of 2^-bits.
        counts: Of every kind.
        most: Largest sum that is kept.
        bits: Resolution.
    """
    result = fmpz_poly([fmpz(1) << bits])
    for kind, count in enumerate(counts):
        square = parts.get(kind, result)
        while count:
            if count & 1:
                result = result.mul_low(square, most + 1) // (fmpz(1) << bits)
            count >>= 1
            if count:
                square = square.mul_low(square, most + 1) // (fmpz(1) << bits)
    return result


def _labelled(law: fmpz_poly, part: LabelledPass, window: ScoreWindow) -> fmpz_poly:
    found = [fmpz(0)] * (2 * window.size + 1)
    for mass, label in zip(law.coeffs(), part.labels, strict=False):
        found[max(-window.size, min(window.size, label)) + window.size] += mass
    return fmpz_poly(found)
