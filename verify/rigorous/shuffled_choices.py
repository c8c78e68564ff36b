"""Lattices and epsilons for shuffled batches, chosen in floating point: what is proved is in `shuffled_upper`."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from flint import arb

from dpaudit.verify.claims import Claim
from dpaudit.verify.results import Direction
from dpaudit.verify.rigorous.balls import Unavailable, ball, decimal_above
from dpaudit.verify.rigorous.gaussian import gaussian_epsilon
from dpaudit.verify.rigorous.pairs import WIDEST, Grid, GridCurve
from dpaudit.verify.rigorous.scores import resolution
from dpaudit.verify.rigorous.shuffled_upper import (
    Profile,
    ShuffledBatches,
    TermLattice,
    composed_curves,
    pass_delta,
    profile_masses,
    profile_point,
    shuffled_passes,
    term_excess,
    term_masses,
)

SHARE = 0.05  # of the claimed delta: what large weights cost
CORE, LADDER = 40, 1.05  # knots on every unit near the mean, and a ratio beyond
DEPTH = 5.0  # deviations of the noise at the first knot
SPARED = 1e-4  # of delta: what a sum of terms may have above top, and below the least residue
DRIFT = 7.0  # deviations of that sum by which the last epsilons move it
DENSE, SPARSE = 4.0, 0.4  # deviations of a pass's loss of which all multiples of the step count, a ratio beyond
FLAT = 1.05  # within this factor of what large weights cost the bound falls no further
INFINITE = 1e-3  # of delta: what may lie beyond the last epsilon
CLOSE = 1.3  # within this factor of delta a finer bound is worth its time
UNITS, STEP, FINE_STEP = 8.0, 0.2, 0.07
# points times squarings up to which a finer bound has a finer lattice; is tried; there is a bound
CHEAP, DEAR, LONGEST = 45_000, 100_000, 400_000
MANY = 10_000  # terms up to which the lattice is as fine as it should be


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
    delta = claim.delta or 1e-10
    passes = sum(part.count for part in parts)
    terms = [_terms(part, delta, passes) for part in parts]
    if min(terms) < 2:
        return Unavailable("there are too few shuffled batches for so little noise")
    # the lattice of a sum grows with its deviation
    coarse = Fineness(UNITS * min(1.0, math.sqrt(MANY / max(terms))), STEP)
    found, e = _bound(claim, parts, terms, coarse), ball(claim.epsilon)
    if isinstance(found, Unavailable):
        return found
    reached = found.delta(e) / ball(delta)
    work = sum(_work(one["size"], one["terms"]) for one in found.inputs["passes"])
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
    lattices = [chosen_lattice(part, m, fine, delta / passes) for part, m in zip(parts, terms, strict=True)]
    if sum(_work(lattice.size, lattice.terms) for lattice in lattices) > LONGEST:
        return Unavailable("sums of so many terms, or of terms so large, take too long in balls")
    variance = sum(part.count * _spread(part) ** 2 / m for part, m in zip(parts, terms, strict=True))
    coarsest = fine.step * math.sqrt(variance / passes)
    # the claimed epsilon is a place of its own, unless it is next to nothing
    size = claim.epsilon / math.ceil(claim.epsilon / coarsest) if claim.epsilon > coarsest / 2 else coarsest
    step = ball(text := f"{size:.12g}")
    profiles = [
        pass_profile(part, lattice, step, fine, delta / passes, bits)
        for part, lattice in zip(parts, lattices, strict=True)
    ]
    window = _window(parts, profiles, step)
    if window > WIDEST:
        return Unavailable("the losses of so many shuffled batches are too small against those of a known order")
    curves = composed_curves(parts, profiles, Grid(text, window, bits, ()))
    shown = [
        {**asdict(lattice), "knots": list(lattice.knots), "profile": [list(corner) for corner in profile]}
        for lattice, profile in zip(lattices, profiles, strict=True)
    ]
    return ShuffledBound(curves, {"step": text, "window": window, "bits": bits, "passes": shown})


def _terms(part: ShuffledBatches, delta: float, passes: int) -> int:
    """m, so that large weights cost SHARE of delta in so many passes."""
    tau = term_excess(part.mu, arb(1), arb(0), part.ways[0], below=True)
    spent = SHARE * ball(delta) / (passes * tau)
    level = float(gaussian_epsilon(2 * part.mu, spent, 1e-3).mid()) if spent < 1 else 0.0
    return math.floor(float(part.batches) * math.exp(-level) * (1 - 1e-9))


def chosen_lattice(part: ShuffledBatches, terms: int, fine: Fineness, delta: float) -> TermLattice:
    """A lattice for a pass of so many terms.

    Args:
        part: The pass.
        terms: m, at least 2.
        fine: How fine.
        delta: Share of the claimed one that is a pass's.
    """
    mu, tail = float(part.mu.mid()), 0.0
    while 0.5 * math.erfc(tail / math.sqrt(2)) > SPARED * delta / 10:
        tail += 0.1
    unit = f"{_spread(part) / fine.units:.6g}"
    high, low = (math.exp(min(2 * mu * reach, 500.0)) / float(unit) for reach in (tail, DEPTH))
    rough = TermLattice(terms, unit, _knots(low, high), 1, 1, "1")
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
        tries = []
        for tilt in (0.01 * 1.1**i / deviation for i in range(80)):
            if tilt * max(sign * lattice.knots[0], sign * lattice.knots[-1]) < 600:
                moment = sum(w * math.exp(sign * tilt * k) for w, k in zip(weights, lattice.knots, strict=True))
                tries.append(((m * math.log(moment) + rest) / tilt, tilt))
        found.append(min(tries))
    return math.ceil(found[0][0]), found[0][1], math.ceil(found[1][0] + DRIFT * deviation)


def pass_profile(
    part: ShuffledBatches, lattice: TermLattice, step: arb, fine: Fineness, delta: float, bits: int
) -> Profile:
    """Corners of a pass's profile.

    Args:
        part: The pass.
        lattice: Its lattice.
        step: Of epsilon.
        fine: How fine.
        delta: Share of the claimed one that is a pass's.
        bits: Masses are multiples of 2^-bits.
    """
    sides = [_side(part, lattice, step, fine, INFINITE * delta, bits, way) for way in part.ways]
    mirrored = [(-place, value) for place, value in sides[-1][:0:-1]]
    return _corners([*mirrored, *sides[0]], step)


def _side(
    part: ShuffledBatches,
    lattice: TermLattice,
    step: arb,
    fine: Fineness,
    infinite: float,
    bits: int,
    way: Direction,
) -> list[tuple[int, str]]:
    """From 0 on, every value the least of those before, the theorem's and that of a known order."""
    place, found, going, least = 0, list[tuple[int, str]](), True, arb(1)
    while True:
        known = part.known(place * step).upper()
        if going:
            value, cost = pass_delta(part, lattice, place * step, way, bits)
            going = bool(value < known) and bool(value > FLAT * cost)
            least = min(least, value.upper())
        least = min(least, known)
        found.append((place, decimal_above(least)))
        if known < infinite:
            return found
        place = max(place + 1, round(place * (1 + SPARSE * fine.step)) if place * fine.step > DENSE else 0)


def _corners(profile: Profile, step: arb) -> Profile:
    """The points below all chords of others: those of the largest convex function below them."""
    points, chosen = [(arb(0), arb(1))], list[tuple[int, str]]()
    for place, value in profile:
        x, y = profile_point(place, value, step)
        if not y < points[-1][1]:
            continue
        while chosen:
            (a, b), (c, d) = points[-2:]
            if (d - b) * (x - c) < (y - d) * (c - a):
                break
            del points[-1], chosen[-1]
        points.append((x, y))
        chosen.append((place, value))
    return chosen


def _window(parts: Sequence[ShuffledBatches], profiles: Sequence[Profile], step: arb) -> int:
    """How many steps of epsilon hold the history's loss."""
    mean, variance, most = 0.0, 0.0, 0
    for part, profile in zip(parts, profiles, strict=True):
        masses = [float(mass.mid()) for mass in profile_masses(profile, step)[0]]
        mean += part.count * sum(mass * place for mass, (place, _) in zip(masses, profile, strict=True))
        variance += part.count * sum(mass * place**2 for mass, (place, _) in zip(masses, profile, strict=True))
        most = max(most, profile[-1][0], -profile[0][0])
    return math.ceil(abs(mean) + 12 * math.sqrt(variance)) + most
