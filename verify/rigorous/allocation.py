"""Balls in bins and random allocation of normal releases, from above in balls.

The pair P = mean_t N(e_t) against Q = N(0) of a pass dominates (`verify/upper/balls_in_bins.py`), with likelihood ratio
X/T, X = sum_t r(w_t), r(w) = e^(mu w - mu^2/2). delta = E_Q (X/T - a)_+ is convex in X, and so is the other
direction's E_Q (1 - a X/T)_+. So each r may be spread to two neighbouring points of a lattice with the same mean in
every cell [i u, (i + 1) u): of masses m_0 under N(0) and m_1 under N(mu), (m_1 - i u m_0)/u goes to i + 1. Under P one
release has its lattice masses times r, the others as under Q. What rounding takes, and what is above the lattice,
counts as an infinite loss of the first law, which is more than any delta it had.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from flint import arb, fmpz, fmpz_poly

from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.rigorous.balls import Unavailable, ball
from dpaudit.verify.rigorous.domination import dominating_mu, is_gaussian
from dpaudit.verify.rigorous.gaussian import normal_tail
from dpaudit.verify.rigorous.pairs import Grid, GridCurve
from dpaudit.verify.rigorous.passes import capped_sum
from dpaudit.verify.rigorous.scores import ScoreWindow, resolution
from dpaudit.verify.samplers import BallsInBins, RandomAllocation

LARGEST, FINE = 2**16 - 1, 100.0  # of the lattice: most points, and so many to a deviation of a likelihood ratio
TAIL = 1e-4  # of delta: probability that some release leaves it
WINDOW, STEPS = 2**15, 200.0  # losses of a history on each side of 0, and in a deviation of a pass


@dataclass(frozen=True)
class AllocatedPass:
    """`count` passes of `releases` releases, of which the record enters one.

    Args:
        releases: T.
        mu: Shift over sigma.
        count: Independent passes.
        unit: Of the lattice, a decimal.
        size: Of the lattice 0, unit, ..., size unit.
    """

    releases: int
    mu: arb
    count: int
    unit: str
    size: int


def allocated_passes(claim: Claim) -> list[AllocatedPass] | Unavailable:
    """The passes of a claim under add-remove, k of t releases cut into k groups (`verify/upper/balls_in_bins.py`)."""
    for phase in claim.phases:
        if _groups(phase) is None:
            kind = f"sampling_kind={phase.sampling_kind!r}"
            return Unavailable(f"no theorem for {kind} under {claim.adjacency} in balls")
    if claim.adjacency == "replace-one" or not all(is_gaussian(phase.mechanism) for phase in claim.phases):
        return Unavailable("balls in bins need normal noise and add-remove")
    found: list[AllocatedPass] = []
    for phase in claim.phases:
        mu, groups = dominating_mu(phase.mechanism, claim.adjacency), _groups(phase)
        if isinstance(mu, Unavailable) or groups is None:
            return Unavailable(f"no theorem for sampling_kind={phase.sampling_kind!r}")
        sampler = phase.sampler
        if isinstance(sampler, BallsInBins) and sampler.reshuffle == "once":
            mu *= arb(sampler.epochs).sqrt()
        for releases, count in groups:
            found.append(AllocatedPass(releases, mu, count, *_lattice(releases, float(mu), count, claim.delta)))
    return found


def _groups(phase: Phase) -> list[tuple[int, int]] | None:
    match phase.sampler:
        case BallsInBins() as sampler:
            return [(sampler.batches, 1 if sampler.reshuffle == "once" else sampler.epochs)]
        case RandomAllocation() as sampler:
            size, larger = divmod(sampler.releases, sampler.times)
            groups = [(size + 1, larger), (size, sampler.times - larger)]
            return [(releases, count) for releases, count in groups if count]
        case _:
            return None


def _lattice(releases: int, mu: float, count: int, delta: float) -> tuple[str, int]:
    """(unit, size): a choice, no part of the proof. The lattice holds what matters of X, and is fine against r."""
    tail, far = max(TAIL * (delta or 1e-10) / (2 * releases * count), 1e-100), 0.0
    while 0.5 * math.erfc(far / math.sqrt(2)) > tail:
        far += 0.05
    largest = math.exp(min(mu * (far + mu) - mu * mu / 2, 600.0))
    deviation = math.sqrt(math.expm1(min(mu * mu, 600.0)))
    needed = 1.05 * largest + 1.2 * releases + 15.0 * math.sqrt(releases) * deviation
    unit = f"{max(deviation / FINE, needed / LARGEST):.6g}"
    return unit, min(math.ceil(needed / float(unit)), LARGEST)


def lattice_laws(part: AllocatedPass, bits: int) -> tuple[fmpz_poly, fmpz_poly]:
    """Laws of X in units of the lattice with the record and without it, from below, in units of 2^-bits."""
    unit, mu, size, window = ball(part.unit), part.mu, part.size, ScoreWindow(1, bits)
    tails = [(arb(1), arb(1))]
    for i in range(1, size + 1):
        at = (i * unit).log() / mu + mu / 2
        tails.append((normal_tail(at), normal_tail(at - mu)))
    zero, moved = [fmpz(0)] * (size + 1), [fmpz(0)] * (size + 1)
    before = arb(0)
    for i, (low, high) in enumerate(pairwise(tails)):
        plain, far = low[0] - high[0], low[1] - high[1]
        up = (far - i * unit * plain) / unit
        mass = before + plain - up
        zero[i], moved[i], before = window.floor(mass), window.floor(mass * (i * unit)), up
    zero[size], moved[size] = window.floor(before), window.floor(before * (size * unit))
    laws = {0: fmpz_poly(zero), 1: fmpz_poly(moved)}
    with_record = capped_sum(laws, (part.releases - 1, 1), size, bits)
    return with_record, capped_sum(laws, (part.releases,), size, bits)


def pass_losses(
    part: AllocatedPass, laws: tuple[fmpz_poly, fmpz_poly], step: arb, window: ScoreWindow
) -> list[fmpz_poly]:
    """Laws of a pass's loss in steps, both directions: dots connected between multiples of the step."""
    found = []
    for sign, law in zip((1, -1), laws, strict=True):
        total = [fmpz(0)] * (2 * window.size + 1)
        for i, mass in enumerate(law.coeffs()):
            if not mass or not i:
                continue
            loss = sign * (i * ball(part.unit) / part.releases).log()
            low = math.floor(float((loss / step).lower()))
            share = (1 - (low * step - loss).exp()) / -(-step).expm1()
            if not (share >= 0 and share <= 1):
                low, share = low + 1, arb(1)
                assert loss <= (low + 1) * step
            up = window.floor(share * arb(mass) / (1 << window.bits))
            for place, some in ((low + 1, up), (low, max(fmpz(0), mass - up - 1))):
                if place <= window.size:
                    total[max(place, -window.size) + window.size] += some
        found.append(fmpz_poly(total))
    return found


def composed_curves(parts: Sequence[AllocatedPass], epsilon: float, delta: float) -> tuple[list[GridCurve], Grid]:
    """Upper bounds on delta of all passes, both directions, and the grid of their losses."""
    bits = resolution(delta)
    laws = [lattice_laws(part, bits) for part in parts]
    grid = Grid(_step(parts, laws, epsilon, bits), WINDOW, bits, ())
    window, curves = ScoreWindow(WINDOW, bits), []
    losses = [pass_losses(part, pair, ball(grid.step), window) for part, pair in zip(parts, laws, strict=True)]
    for side in (0, 1):
        total: fmpz_poly | None = None
        for part, pair in zip(parts, losses, strict=True):
            law = window.repeated(pair[side], part.count)
            total = law if total is None else window.added(total, law)
        assert total is not None
        curves.append(GridCurve([window.ball(mass) for mass in window.masses(total)], grid))
    return curves, grid


def _step(
    parts: Sequence[AllocatedPass], laws: Sequence[tuple[fmpz_poly, fmpz_poly]], epsilon: float, bits: int
) -> str:
    """A choice: fine against the deviation of a pass, and wide enough for the whole history."""
    variance, mean, smallest = 0.0, 0.0, math.inf
    for part, (law, _) in zip(parts, laws, strict=True):
        scale = float(part.unit) / part.releases
        masses = [(int(mass) / 2**bits, math.log(i * scale)) for i, mass in enumerate(law.coeffs()) if i]
        first = sum(mass * loss for mass, loss in masses)
        square = sum(mass * (loss - first) ** 2 for mass, loss in masses)
        variance, mean, smallest = variance + part.count * square, mean + part.count * abs(first), min(smallest, square)
    reach = max(mean + 12.0 * math.sqrt(variance), 1.5 * epsilon + 5.0)
    return f"{max(math.sqrt(smallest) / STEPS, reach / WINDOW):.6g}"
