"""Many shuffled batches of normal noise in balls: a pass at some epsilons, joined by chords, and composed.

The theorem is that of `verify/upper/shuffled_batches.py` without layers of weights: with a = e^epsilon >= 1 and m at
most the batches, a pass has

    delta <= E (mean of m independent Y)_+ + what large weights cost,

where E (Y - k)_+ is the largest E (R(x) - a R(y) - k)_+ of likelihood ratios R(x) = N(x)/N(0), over all shifts. Large
weights cost the lesser of two prices, at every g > 0 and c >= 1 with m c < batches - 1:

    E (Y - (1 - a))_+ delta of N(2 mu) against N(0) at log(batches/m),
    rho d + (g rho + E (Y - g)_+)/batches,  rho = delta of N(2 mu) against N(0) at log c, over 1 - m c/(batches - 1),

d being delta of a pass in a known order.

Y is put on knots among the multiples of a unit. Between knots E (Y - k)_+ lies below its chord, below the first knot Y
is moved up to it, and what is above the last, K, costs E (Y - K)_+. Masses are rounded up to multiples of 2^-bits, and
(x)_+ is not negative: so a bound needs neither their sum nor an error. The sum S of m terms is taken modulo a size N,
as a power of a polynomial modulo x^N - 1; a residue r <= top counts as r, another one as a negative number, for which
nothing is due. What S has below that counts too much. What it has above top, for tilt * top >= 1, is at most

    E S 1{S > top} <= top e^(-tilt top) (E e^(tilt Y))^m,    since s <= top e^(tilt (s - top)) for s >= top.

The deltas of both directions are those of one convex profile H(a): delta of "remove" at e^epsilon, 1 - a + a delta of
"add" at -log a below 1. Chords between values that lie on a convex line are at least H, and the profile of a pair whose
second law has at the ratio a what the slope gains there, and the first law a times that; the rest is infinite.
Profiles compose (Zhu, Dong and Wang 2022, Theorem 10).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from flint import arb, fmpz, fmpz_poly

from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.results import Direction
from dpaudit.verify.rigorous.balls import Unavailable, ball, total
from dpaudit.verify.rigorous.domination import dominating_mu, is_gaussian
from dpaudit.verify.rigorous.gaussian import gaussian_delta
from dpaudit.verify.rigorous.pairs import Grid, GridCurve
from dpaudit.verify.rigorous.scores import ScoreWindow
from dpaudit.verify.samplers import Shuffled

# (place, decimal, lattice): delta at step times |place|, of "add" below 0, and the index of the lattice that shows it
Profile = Sequence[tuple[int, str, int]]


@dataclass(frozen=True)
class TermLattice:
    """How many terms Y, and where they and their sum are counted: a choice, no part of the proof.

    Args:
        terms: m.
        level: c, a decimal.
        cut: g, a decimal.
        unit: A decimal.
        knots: Ascending multiples of the unit.
        size: N.
        top: Largest residue that counts as positive.
        tilt: A decimal, at least 1/top.
    """

    terms: int
    level: str
    cut: str
    unit: str
    knots: tuple[int, ...]
    size: int
    top: int
    tilt: str


@dataclass(frozen=True)
class ShuffledBatches:
    """`count` passes over shuffled batches.

    Args:
        batches: 1 over the largest probability of a batch to hold the record.
        mu: Clip over sigma.
        count: Independent passes.
        swaps: Under replace-one.
    """

    batches: Fraction
    mu: arb
    count: int
    swaps: bool

    @property
    def ways(self) -> tuple[Direction, ...]:
        """Directions whose bounds differ."""
        return ("swap",) if self.swaps else ("remove", "add")

    def known(self, epsilon: arb) -> arb:
        """delta of a pass in a known order."""
        return gaussian_delta(self.mu * (2 if self.swaps else 1), epsilon)


def term_excess(mu: arb, growth: arb, level: arb, direction: Direction, *, below: bool) -> arb:
    """The largest E (R(x) - growth R(y) - level)_+ over all shifts x, y that occur.

    On a line, by Neyman and Pearson (`verify.pld.shuffled_pass.excess`): c_0 + c_1 N(unit) + c_2 N(2 unit) is positive
    on a half-line, where w = R(unit) has c_0 + c_1 w + c_2 e^(-unit^2) w^2 > 0.

    Args:
        mu: Clip over sigma.
        growth: e^epsilon, at least 1.
        level: At most 0 with `below`, at least 0 without.
        direction: Which law comes first.
        below: Which of two formulas, the same at 0.
    """
    unit = 2 * mu if direction == "swap" else mu
    if direction == "remove" and not below:
        shares = [-level, -growth, arb(1)]
    elif direction == "add" and below:
        shares = [-level, arb(1), -growth]
    else:
        shares = [-growth, 1 - level] if below else [-growth - level, arb(1)]
    if len(shares) == 2:
        w = -shares[0] / shares[1]
    else:
        square = shares[2] * (-unit * unit).exp()
        w = (abs(shares[1]) + (shares[1] ** 2 - 4 * square * shares[0]).sqrt()) / (2 * abs(square))
    at, side = w.log() / unit + unit / 2, -1 if direction == "add" and below else 1
    tails = [(side * (at - i * unit) / arb(2).sqrt()).erfc() / 2 for i in range(len(shares))]
    return total([share * tail for share, tail in zip(shares, tails, strict=True)])


def term_masses(mu: arb, growth: arb, lattice: TermLattice, direction: Direction) -> tuple[list[arb], arb]:
    """(masses of Y on the knots, what Y has above the last)."""
    unit = ball(lattice.unit)
    excess = [term_excess(mu, growth, k * unit, direction, below=k < 0) for k in lattice.knots]
    slopes = [
        (b - a) / ((k - j) * unit) for (a, b), (j, k) in zip(pairwise(excess), pairwise(lattice.knots), strict=True)
    ]
    return [b - a for a, b in pairwise([arb(-1), *slopes, arb(0)])], excess[-1]


def pass_delta(
    part: ShuffledBatches, lattice: TermLattice, epsilon: arb, direction: Direction, bits: int
) -> tuple[arb, arb]:
    """(upper bound on delta of a pass at epsilon, what of it large weights cost)."""
    growth, m = epsilon.exp(), lattice.terms
    masses, beyond = term_masses(part.mu, growth, lattice, direction)
    law, moment, tilt = [fmpz(0)] * lattice.size, arb(0), ball(lattice.tilt)
    for mass, knot in zip(masses, lattice.knots, strict=True):
        units = _ceiling(mass, bits)
        law[knot % lattice.size] += units
        moment += units * (knot * tilt).exp()
    assert tilt * lattice.top >= 1
    power = cyclic_power(fmpz_poly(law), m, lattice.size, bits)
    inside = arb(power.truncate(lattice.top + 1).derivative()(1)) / (1 << bits)
    above = lattice.top * (-tilt * lattice.top).exp() * (moment / (1 << bits)) ** m
    cost = large_weights_cost(part, m, ball(lattice.level), ball(lattice.cut), epsilon, direction)
    return (inside + above) * ball(lattice.unit) / m + beyond + cost, cost


def large_weights_cost(
    part: ShuffledBatches, terms: int, level: arb, cut: arb, epsilon: arb, direction: Direction
) -> arb:
    """The lesser of the two prices, at c = level and g = cut."""
    batches, growth = ball(part.batches), epsilon.exp()
    filled = term_excess(part.mu, growth, 1 - growth, direction, below=True)
    filled *= gaussian_delta(2 * part.mu, (batches / terms).log())
    rho = rare_weights(part, terms, level)
    first = cut * rho + term_excess(part.mu, growth, cut, direction, below=False)
    return filled.min(rho * part.known(epsilon) + first / batches)


def rare_weights(part: ShuffledBatches, terms: int, level: arb) -> arb:
    """rho, the chance that a pass counts as known; 1 where nothing is known of it."""
    left = 1 - terms * level / (ball(part.batches) - 1)
    return gaussian_delta(2 * part.mu, level.log()) / left if left > 0 and level >= 1 else arb(1)


def _ceiling(mass: arb, bits: int) -> fmpz:
    """The mass in units of 2^-bits, rounded up, at least 0."""
    digits, exponent = mass.upper().man_exp()
    shift = int(exponent) + bits
    return max(fmpz(0), digits << shift if shift > 0 else (digits >> -shift) + 1)


def cyclic_power(law: fmpz_poly, count: int, size: int, bits: int) -> fmpz_poly:
    """Law of a sum of `count` independent values modulo `size`, from above, in units of 2^-bits.

    >>> coin = fmpz_poly([1 << 63, 1 << 63])
    >>> [round(int(mass) / 2**64, 9) for mass in cyclic_power(coin, 3, 3, 64).coeffs()]
    [0.25, 0.375, 0.375]
    """
    ones = fmpz_poly([1] * size)

    def added(one: fmpz_poly, other: fmpz_poly) -> fmpz_poly:
        product = one * other
        return (product.truncate(size) + product.right_shift(size)) // (1 << bits) + ones

    result = law
    for bit in f"{count:b}"[1:]:
        result = added(result, result)
        result = added(result, law) if bit == "1" else result
    return result


def shuffled_passes(claim: Claim) -> list[ShuffledBatches] | Unavailable:
    """The passes of a claim, where every phase is whole shuffled batches of normal noise, an order for every pass."""
    found = []
    for phase in claim.phases:
        mu, batches = dominating_mu(phase.mechanism, "add-remove"), _least_batches(phase)
        if batches is None or isinstance(mu, Unavailable) or not is_gaussian(phase.mechanism):
            return Unavailable("not all phases are normal noise and whole shuffled batches, an order for every pass")
        assert isinstance(phase.sampler, Shuffled)
        found.append(ShuffledBatches(batches, mu, phase.sampler.epochs, claim.adjacency == "replace-one"))
    return found


def _least_batches(phase: Phase) -> Fraction | None:
    """1 over the largest probability of a batch to hold the record; None where the theorem does not apply."""
    sampler = phase.sampler
    if not isinstance(sampler, Shuffled) or sampler.straddles or sampler.reshuffle == "once":
        return None
    if sampler.records is not None and sampler.batch is not None and sampler.last_batch == "kept":
        return Fraction(sampler.records, sampler.batch)
    return Fraction(sampler.batches)


def profile_point(place: int, value: str, step: arb) -> tuple[arb, arb]:
    """A point of H: (a, at least H(a))."""
    growth, delta = (place * step).exp(), ball(value)
    return growth, delta if place >= 0 else 1 - growth + growth * delta


def profile_masses(profile: Profile, step: arb) -> tuple[list[arb], list[arb]]:
    """Masses of the loss at the corners, under the first law and under the second."""
    points = [(arb(0), arb(1)), *(profile_point(place, value, step) for place, value, _ in profile)]
    slopes = [*((d - b) / (c - a) for (a, b), (c, d) in pairwise(points)), arb(0)]
    second = [b - a for a, b in pairwise(slopes)]
    assert all(mass >= 0 for mass in second)
    return [growth * mass for (growth, _), mass in zip(points[1:], second, strict=True)], second


def composed_curves(parts: Sequence[ShuffledBatches], profiles: Sequence[Profile], grid: Grid) -> list[GridCurve]:
    """Upper bounds on delta of all passes, one for each direction whose bound differs.

    Args:
        parts: The passes.
        profiles: Of every part, convex.
        grid: Of epsilon; it has no cells.
    """
    step, window, found = ball(grid.step), ScoreWindow(grid.window, grid.bits), []
    for side, sign in zip(range(len(parts[0].ways)), (1, -1), strict=False):
        law = fmpz_poly([0] * grid.window + [1 << grid.bits])
        for part, profile in zip(parts, profiles, strict=True):
            places = [sign * place for place, _, _ in profile]
            assert max(places) <= grid.window
            one = window.law(profile_masses(profile, step)[side], places)
            law = window.added(law, window.repeated(one, part.count))
        found.append(GridCurve([window.ball(mass) for mass in window.masses(law)], grid))
    return found
