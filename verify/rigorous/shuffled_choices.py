"""Lattices and epsilons for shuffled batches, chosen in floating point: what is proved is in `shuffled_upper`."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from flint import arb

from dpaudit.verify.claims import Claim
from dpaudit.verify.results import Direction
from dpaudit.verify.rigorous.balls import Unavailable, ball, decimal_above
from dpaudit.verify.rigorous.pairs import WIDEST, Grid, GridCurve
from dpaudit.verify.rigorous.scores import resolution
from dpaudit.verify.rigorous.shuffled_upper import (
    Profile,
    ShuffledBatches,
    TermLattice,
    composed_curves,
    large_weights_cost,
    pass_delta,
    profile_masses,
    profile_point,
    rare_weights,
    shuffled_passes,
    term_excess,
    term_masses,
)

FEWER, TOGETHER = 1.25, 3  # ratio of numbers of terms, and how many epsilons share one
LEVELS = tuple(f"{1.02 * 1.12**i:.4g}" for i in range(40))  # c that are tried
CUTS = tuple(f"{1e-3 * 2.0**i:.4g}" for i in range(24))  # g that are tried
CORE, LADDER = 40, 1.05  # knots on every unit near the mean, and a ratio beyond
DEPTH = 5.0  # deviations of the noise at the first knot
SPARED = 1e-4  # of delta: what a sum of terms may have above top, and below the least residue
LARGEST_EXPONENT = 600  # of a float in a moment
DRIFT = 7.0  # deviations of that sum by which the last epsilons move it
DENSE, SPARSE = 4.0, 0.4  # deviations of a pass's loss of which all multiples of the step count, a ratio beyond
INFINITE = 1e-3  # of delta: what may lie beyond the last epsilon
CLOSE = 1.3  # within this factor of delta a finer bound is worth its time
UNITS, STEP, FINE_STEP = 8.0, 0.2, 0.07
# points times squarings up to which a finer bound has a finer lattice; is tried; there is a bound
CHEAP, DEAR, LONGEST = 45_000, 100_000, 200_000
MANY = 10_000  # terms up to which the lattice is as fine as it should be
LARGEST_MU = 10.0  # of passes with a bound


@dataclass(frozen=True)
class Fineness:
    """How fine a bound is computed.

    Args:
        units: Points of the lattice to a deviation of a term.
        step: Of epsilon, in deviations of a pass's loss.
    """

    units: float
    step: float


@dataclass(frozen=True)
class ShuffledBound:
    """Upper bounds on delta of shuffled batches.

    Args:
        curves: One for each direction whose bound differs.
        inputs: What a checker needs to compute them again.
    """

    curves: list[GridCurve]
    inputs: dict[str, Any]

    def delta(self, epsilon: arb) -> arb:
        """A ball whose upper end is at least delta."""
        return max(curve.delta(epsilon).upper() for curve in self.curves)


def shuffled_bound(claim: Claim) -> ShuffledBound | Unavailable:
    """The theorem of shuffled batches on a claim: coarse, and finer where that nearly proves it."""
    parts = shuffled_passes(claim)
    if isinstance(parts, Unavailable):
        return parts
    passes = sum(part.count for part in parts)
    # e^(mu^2) batches could hide a release, and no pass has so many
    terms = [best_terms(part) if part.mu < LARGEST_MU else 1 for part in parts]
    if min(terms) < 2:
        return Unavailable("there are too few shuffled batches for so little noise")
    # the lattice of a sum grows with its deviation
    coarse = Fineness(UNITS * min(1.0, math.sqrt(MANY / max(terms))), STEP)
    found, e = _bound(claim, parts, terms, coarse), ball(claim.epsilon)
    if isinstance(found, Unavailable):
        return found
    reached = found.delta(e) / ball(claim.delta or 1e-10)
    work = sum(max(_work(look["size"], look["terms"]) for look in one["lattices"]) for one in found.inputs["passes"])
    if not (reached > 1 and reached < CLOSE and work < DEAR):
        return found
    # one pass has the claimed epsilon among its own, and loses nothing in between
    finer = Fineness(2 * UNITS if work < CHEAP or passes == 1 else UNITS, FINE_STEP if passes > 1 else STEP)
    return _bound(claim, parts, terms, finer)


def _work(size: int, terms: int) -> int:
    """Points of a lattice times squarings."""
    return size * terms.bit_length()


def _bound(
    claim: Claim, parts: Sequence[ShuffledBatches], terms: Sequence[int], fine: Fineness
) -> ShuffledBound | Unavailable:
    delta = claim.delta or 1e-10
    passes, bits = sum(part.count for part in parts), resolution(delta)
    lattices = [chosen_lattice(part, m, fine, delta / passes, ball(0)) for part, m in zip(parts, terms, strict=True)]
    if sum(_work(lattice.size, lattice.terms) for lattice in lattices) > LONGEST:
        return Unavailable("sums of so many terms, or of terms so large, take too long in balls")
    variance = sum(part.count * _spread(part) ** 2 / m for part, m in zip(parts, terms, strict=True))
    coarsest = fine.step * math.sqrt(variance / passes)
    # the claimed epsilon is a place of its own, unless it is next to nothing
    size = claim.epsilon / math.ceil(claim.epsilon / coarsest) if claim.epsilon > coarsest / 2 else coarsest
    step = ball(text := f"{size:.12g}")
    shown = [
        pass_profile(part, lattice, step, fine, delta / passes, bits)
        for part, lattice in zip(parts, lattices, strict=True)
    ]
    profiles = [profile for profile, _ in shown]
    window = _window(parts, profiles, step)
    if window > WIDEST:
        return Unavailable("the losses of so many shuffled batches are too small against those of a known order")
    curves = composed_curves(parts, profiles, Grid(text, window, bits, ()))
    inputs = [
        {"lattices": [{**asdict(one), "knots": list(one.knots)} for one in looks], "profile": [*map(list, profile)]}
        for profile, looks in shown
    ]
    return ShuffledBound(curves, {"step": text, "window": window, "bits": bits, "passes": inputs})


def best_terms(part: ShuffledBatches) -> int:
    """m at which a pass costs least at epsilon 0, roughly: a mean of terms counts as normal. 1 where none helps."""
    batches, zero = float(part.batches), ball(0)
    known, way = float(part.known(zero).mid()), part.ways[0]
    tried, m = [(known, 1)], math.floor(batches * (1 - 1e-9))
    while m >= 2:
        hidden = _spread(part) / math.sqrt(2 * math.pi * m)
        level, cut = map(ball, rare_choice(part, m, zero))
        tried.append((hidden + float(large_weights_cost(part, m, level, cut, zero, way).mid()), m))
        m = int(m / FEWER)
    return min(tried)[1]


def rare_choice(part: ShuffledBatches, terms: int, epsilon: arb) -> tuple[str, str]:
    """(c, g) at which large weights cost least."""
    growth = epsilon.exp()
    rho, level = min((float(rare_weights(part, terms, ball(c)).mid()), c) for c in LEVELS)

    def first(cut: str) -> float:
        return float(cut) * rho + float(term_excess(part.mu, growth, ball(cut), part.ways[0], below=False).mid())

    return level, min(CUTS, key=first)


def chosen_lattice(part: ShuffledBatches, terms: int, fine: Fineness, delta: float, epsilon: arb) -> TermLattice:
    """A lattice for a pass of so many terms.

    Args:
        part: The pass.
        terms: m, at least 2.
        fine: How fine.
        delta: Share of the claimed one that is a pass's.
        epsilon: Where large weights should cost little.
    """
    mu, tail = float(part.mu.mid()), 0.0
    while 0.5 * math.erfc(tail / math.sqrt(2)) > SPARED * delta / 10:
        tail += 0.1
    unit = f"{_spread(part) / fine.units:.6g}"
    high, low = (math.exp(min(2 * mu * reach, 500.0)) / float(unit) for reach in (tail, DEPTH))
    rough = TermLattice(terms, *rare_choice(part, terms, epsilon), unit, _knots(low, high), 1, 1, "1")
    ends = [_ends(term_masses(part.mu, arb(1), rough, way)[0], rough, SPARED * delta) for way in part.ways]
    tilt = f"{min(end[1] for end in ends):.6g}"
    top = max(math.ceil(1 / float(tilt)) + 1, *(end[0] for end in ends))
    return replace(rough, size=top + max(end[2] for end in ends) + 1, top=top, tilt=tilt)


def _spread(part: ShuffledBatches) -> float:
    """Deviation of a term, roughly: of the difference of two likelihood ratios."""
    square = float(part.mu.mid()) ** 2
    if part.swaps:
        return math.sqrt(math.expm1(4 * square))
    return math.sqrt(math.exp(4 * square) - 2 * math.exp(2 * square) + math.exp(square))


def _knots(low: float, high: float) -> tuple[int, ...]:
    """From below -low to above high: all whole numbers near 0, a ladder beyond."""
    found = set(range(-CORE, CORE + 1))
    for side, end in ((-1, low), (1, high)):
        k = float(CORE)
        while k < end:
            k *= LADDER
            found.add(side * math.ceil(k))
    return tuple(sorted(found))


def _ends(masses: Sequence[arb], lattice: TermLattice, spared: float) -> tuple[int, float, int]:
    """(top, tilt, how far below 0 the sum of terms needs residues of its own), by Chernoff's bound."""
    weights, m = [max(float(mass.mid()), 0.0) for mass in masses], lattice.terms
    deviation = math.sqrt(m * sum(w * k * k for w, k in zip(weights, lattice.knots, strict=True)))
    rest = max(1.0, math.log(10 * deviation * float(lattice.unit) / (m * spared)))
    found = []
    for sign in (1, -1):
        tries, reach = [], max(sign * lattice.knots[0], sign * lattice.knots[-1])
        tilts = [0.01 * 1.1**i / deviation for i in range(80)]
        for tilt in [tilt for tilt in tilts if tilt * reach < LARGEST_EXPONENT] or [LARGEST_EXPONENT / reach]:
            moment = sum(w * math.exp(sign * tilt * k) for w, k in zip(weights, lattice.knots, strict=True))
            tries.append(((m * math.log(moment) + rest) / tilt, tilt))
        found.append(min(tries))
    return math.ceil(found[0][0]), found[0][1], math.ceil(found[1][0] + DRIFT * deviation)


def pass_profile(
    part: ShuffledBatches, first: TermLattice, step: arb, fine: Fineness, delta: float, bits: int
) -> tuple[Profile, list[TermLattice]]:
    """(corners of a pass's profile, lattices that show it).

    Args:
        part: The pass.
        first: Lattice at epsilon 0.
        step: Of epsilon.
        fine: How fine.
        delta: Share of the claimed one that is a pass's.
        bits: Masses are multiples of 2^-bits.
    """
    lattices = [first]
    sides = [_side(part, lattices, step, fine, delta, bits, way) for way in part.ways]
    mirrored = [(-place, value, look) for place, value, look in sides[-1][:0:-1]]
    return _corners([*mirrored, *sides[0]], step), lattices


def _side(
    part: ShuffledBatches,
    lattices: list[TermLattice],
    step: arb,
    fine: Fineness,
    delta: float,
    bits: int,
    way: Direction,
) -> list[tuple[int, str, int]]:
    """From 0 on, where the lesser of the theorem's value and that of a known order is less than those before.

    Fewer terms are best the larger epsilon is: lattices of fewer are added where they cost less.
    """
    place, found, look, going, least = 0, list[tuple[int, str, int]](), 0, True, arb(1)
    while True:
        e, value = place * step, arb(1)
        known = part.known(e).upper()
        if going:
            value = pass_delta(part, lattices[look], e, way, bits)[0]
            while len(found) % TOGETHER == 0 and lattices[look].terms >= 2 * FEWER:
                if look + 1 == len(lattices):
                    lattices.append(chosen_lattice(part, int(lattices[look].terms / FEWER), fine, delta, e))
                fewer = pass_delta(part, lattices[look + 1], e, way, bits)[0]
                if not fewer < value:
                    break
                value, look = fewer, look + 1
            going = bool(value < known) and bool(value > INFINITE * delta)
        if (bound := min(value.upper(), known)) < least:  # else this place shows nothing
            least = bound
            found.append((place, decimal_above(bound), look))
        if known < INFINITE * delta:
            return found
        place = max(place + 1, round(place * (1 + SPARSE * fine.step)) if place * fine.step > DENSE else 0)


def _corners(profile: Profile, step: arb) -> Profile:
    """The points below all chords of others: those of the largest convex function below them."""
    points, chosen = [(arb(0), arb(1))], list[tuple[int, str, int]]()
    for place, value, look in profile:
        x, y = profile_point(place, value, step)
        if not y < points[-1][1]:
            continue
        while chosen:
            (a, b), (c, d) = points[-2:]
            if (d - b) * (x - c) < (y - d) * (c - a):
                break
            del points[-1], chosen[-1]
        points.append((x, y))
        chosen.append((place, value, look))
    return chosen


def _window(parts: Sequence[ShuffledBatches], profiles: Sequence[Profile], step: arb) -> int:
    """How many steps of epsilon hold the history's loss."""
    mean, variance, most = 0.0, 0.0, 0
    for part, profile in zip(parts, profiles, strict=True):
        masses = [float(mass.mid()) for mass in profile_masses(profile, step)[0]]
        mean += part.count * sum(mass * place for mass, (place, *_) in zip(masses, profile, strict=True))
        variance += part.count * sum(mass * place**2 for mass, (place, *_) in zip(masses, profile, strict=True))
        most = max(most, profile[-1][0], -profile[0][0])
    return math.ceil(abs(mean) + 12 * math.sqrt(variance)) + most
