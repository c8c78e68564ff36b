"""Radial noise in balls: both tails of the privacy loss of the longest shift.

Let P be centred at v, |v| = C, Q at 0, R the distance to P's centre, rho that to Q's, W the cosine of the direction.
The loss is g(rho) - g(R) with g(r) = r^2/(2 sigma^2) + (n-1) log r, so on the border of {L > l} (sign 1) and {L < -l}
(sign -1), with t = |log(rho/R)|,

    R^2 = 2 sigma^2 (l - (n-1) t) / |e^(2 t sign) - 1|,   0 < t < l/(n-1):

no root has to be found. R falls in t from infinity to 0, rho and |rho^2 - R^2| grow with R. Given R the event holds
for W above (below) w, with T = (1 + w)/2 = (rho^2 - (R - C)^2)/(4 R C) = 1/2 + (rho^2 - R^2 - C^2)/(4 R C), and the law
of W is a Beta law: the first form keeps the digits of the narrow peak at |R - C| ~ C e^(-l/(n-1)) of few coordinates,
the second those of 1/sqrt(n) of many. On a cell of R each quantity lies between its values at the ends, so the mean
over R is bracketed (a Riemann sum of monotone quantities); where the cosine stays inside (-1, 1) a Taylor series in y,
the log odds of t (n-1)/l, with its last coefficient taken over the whole cell (Lagrange's remainder), brackets it far
more closely. The cell with the largest gap is halved until it is small. By reflection at v/2, Q(L > l) = P(L < -l).
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from flint import arb, arb_series, ctx

from dpaudit.verify.rigorous.balls import precision, total

CELLS = 1500
FIRST = 64
NEAR, FAR = 160.0, 60.0  # log odds beyond log n and at the other end: masses of e^-60 and less
CHERNOFF = 100.0
TERMS = 12  # of the Taylor series, even


@dataclass(frozen=True)
class RadialNoise:
    """chi_1 sigma times a uniform direction, and the distance of the two centres.

    Args:
        dimension: n >= 2.
        sigma: Scale of the radius.
        length: C, the distance.
    """

    dimension: int
    sigma: arb
    length: arb


@dataclass(frozen=True)
class _Border:
    """A point of the border: R, rho, rho^2 - R^2, and P(radius > R), P(radius < R)."""

    radius: arb
    other: arb
    gap: arb
    above: arb
    below: arb


@dataclass(frozen=True)
class _Cell:
    """Least and largest mass inside the event between two borders, at log odds y < z."""

    low: arb
    high: arb
    y: float
    z: float
    outer: _Border
    inner: _Border

    def __lt__(self, other: "_Cell") -> bool:
        return float(self.high - self.low) > float(other.high - other.low)


def cosine_below(share: arb, dimension: int) -> arb:
    """P((1 + W)/2 < share) for one coordinate W of a uniform direction.

    With w = 2 share - 1 and a = (n-1)/2 it is 1/2 + w Gamma(a+1/2)/(sqrt(pi) Gamma(a)) F(1/2, 1-a; 3/2; w^2), in
    Pfaff's form; far out, where the series is long, it is within (1-w^2)^a/2 of 0 or 1.

    >>> from flint import arb
    >>> abs(cosine_below(arb(1) / 4, 3) - arb(1) / 4) < 1e-12
    True
    """
    if share <= 0:
        return arb(0)
    if share >= 1:
        return arb(1)
    w, a, rest = 2 * share - 1, arb(dimension - 1) / 2, 4 * share * (1 - share)
    unknown = arb(0).union(arb(1))
    if w * w * a > CHERNOFF:
        tail = arb(0).union((-w * w * a).exp())
        return tail if w < 0 else 1 - tail
    found = arb(1) / 2 + w * _height(dimension) * rest ** (a - 1) * (-w * w / rest).hypgeom_2f1(1, 1 - a, arb(3) / 2)
    return found.intersection(unknown) if found.is_finite() else unknown


def _height(dimension: int) -> arb:
    """Density of W at 0: Gamma(a + 1/2)/(sqrt(pi) Gamma(a))."""
    a = arb(dimension - 1) / 2
    return ((a + arb(1) / 2).lgamma() - a.lgamma()).exp() / arb.pi().sqrt()


def loss_tail(noise: RadialNoise, loss: arb, sign: int, accuracy: float = 1e-8, cells: int = CELLS) -> arb:
    """Ball around P(L > loss) for sign 1, and around P(L < -loss) = Q(L > loss) for sign -1.

    Args:
        noise: The pair.
        loss: > 0.
        sign: 1 or -1.
        accuracy: Relative width that is enough.
        cells: Most cells of the radius.
    """
    with precision():
        low, high = _tail(noise, sign, _refined(noise, loss, sign, cells, accuracy, smooth=True))
        return low.union(high)


def loss_tail_on(noise: RadialNoise, loss: arb, sign: int, places: Sequence[arb]) -> tuple[arb, arb]:
    """(low, high) from the monotone bracket alone, on cells of given ends: what a short checker can do again.

    Args:
        noise, loss, sign: As above.
        places: Ascending log odds.
    """
    borders = [_border(noise, loss, sign, y) for y in places]
    return _tail(noise, sign, [_cell(noise, loss, sign, 0.0, 0.0, a, b) for a, b in pairwise(borders)])


def chosen_places(noise: RadialNoise, loss: arb, sign: int, cells: int) -> tuple[str, ...]:
    """Log odds that cut the radius well, as decimals: a choice, no part of a proof."""
    with precision(64):
        found = _refined(noise, loss, sign, cells, 0.0)
    return tuple(map(repr, (*(cell.y for cell in found), found[-1].z)))


def _refined(
    noise: RadialNoise, loss: arb, sign: int, cells: int, accuracy: float, *, smooth: bool = False
) -> list[_Cell]:
    """Cells in ascending order, the one with the largest gap being halved again and again."""
    made = partial(_cell, noise, loss, sign, smooth=smooth)
    end = float(arb(noise.dimension).log()) + NEAR
    places = [round(-FAR + (end + FAR) * i / FIRST, 3) for i in range(FIRST + 1)]
    borders = [_border(noise, loss, sign, arb(y)) for y in places]
    heap = [made(y, z, a, b) for (y, a), (z, b) in pairwise(zip(places, borders, strict=True))]
    heapq.heapify(heap)
    for step in range(cells):
        if step % 32 == 0 and accuracy * float(_sum(heap, "low").lower()) > float(_gaps(heap)):
            break
        first = heapq.heappop(heap)
        middle = (first.y + first.z) / 2
        if not first.y < middle < first.z:  # doubles end here
            heapq.heappush(heap, first)
            break
        between = _border(noise, loss, sign, arb(middle))
        heapq.heappush(heap, made(first.y, middle, first.outer, between))
        heapq.heappush(heap, made(middle, first.z, between, first.inner))
    return sorted(heap, key=lambda cell: cell.y)


def _gaps(cells: Sequence[_Cell]) -> arb:
    return total([cell.high - cell.low for cell in cells]).upper()


def _sum(cells: Sequence[_Cell], side: str) -> arb:
    return total([getattr(cell, side) for cell in cells])


def _tail(noise: RadialNoise, sign: int, cells: Sequence[_Cell]) -> tuple[arb, arb]:
    largest, smallest = cells[0].outer, cells[-1].inner
    # the shift is out of reach from P's centre: every direction stays inside the event
    sure = sign > 0 and smallest.other <= noise.length - smallest.radius
    low = _sum(cells, "low") + (smallest.below if sure else 0)
    return low, _sum(cells, "high") + smallest.below + largest.above


def _border(noise: RadialNoise, loss: arb, sign: int, odds: arb) -> _Border:
    """The border where t (n-1)/loss has these log odds."""
    n, variance = noise.dimension, 2 * noise.sigma**2
    gap = variance * loss / (1 + odds.exp())
    t = loss / (n - 1) / (1 + (-odds).exp())
    square = gap / (sign * (2 * sign * t).expm1())
    unit = (square / variance).sqrt()
    return _Border(square.sqrt(), (square * (2 * sign * t).exp()).sqrt(), sign * gap, unit.erfc(), unit.erf())


def _cell(
    noise: RadialNoise, loss: arb, sign: int, y: float, z: float, outer: _Border, inner: _Border, *,
    smooth: bool = False,
) -> _Cell:  # fmt: skip
    mass = inner.above - outer.above if inner.above < 0.5 else outer.below - inner.below
    r, rho = outer.radius.union(inner.radius), outer.other.union(inner.other)
    gap, length = outer.gap.union(inner.gap), noise.length
    shares = [(rho**2 - (r - length) ** 2) / (4 * r * length), arb(1) / 2 + (gap - length**2) / (4 * r * length)]
    low = cosine_below(max(share.lower() for share in shares), noise.dimension)
    high = cosine_below(min(share.upper() for share in shares), noise.dimension)
    low, high = (low, high) if sign < 0 else (1 - high, 1 - low)
    least, most = (mass * low).lower(), (mass * high).upper()
    if smooth and z - y < 1 and most - least > 0:
        found = _series_integral(noise, loss, sign, arb(y), arb(z))
        if found.is_finite():
            least, most = least.max(found.lower()), most.min(found.upper())
    return _Cell(least, most, y, z, outer, inner)


def _series_integral(noise: RadialNoise, loss: arb, sign: int, y: arb, z: arb) -> arb:
    """The mass inside the event between two log odds, from Taylor series about the middle."""
    cap, ctx.cap = ctx.cap, TERMS + 2
    try:
        half, middle = (z - y) / 2, (y + z) / 2
        near = _integrand(noise, loss, sign, middle)
        far = _integrand(noise, loss, sign, y.union(z))
    except ValueError:  # a series is divided by what may be 0
        return arb("nan")
    finally:
        ctx.cap = cap
    powers = [2 * half ** (k + 1) / (k + 1) for k in range(0, TERMS + 1, 2)]
    return total([near[2 * i] * power for i, power in enumerate(powers[:-1])]) + far[TERMS] * powers[-1]


def _integrand(noise: RadialNoise, loss: arb, sign: int, place: arb) -> arb_series:
    """(density of y) P(inside the event), as a series in y - place; coefficients that are not finite know nothing."""
    n, variance, length = noise.dimension, 2 * noise.sigma**2, noise.length
    y = arb_series([place, 1])
    gap = variance * loss / (1 + y.exp())
    t = loss / (n - 1) / (1 + (-y).exp())
    grown = (2 * sign * t).exp()
    rise = arb_series([(2 * sign * t[0]).expm1(), *grown.coeffs()[1:]])
    square = gap / (sign * rise)
    radius, unit = square.sqrt(), (square / variance).sqrt()
    density = -2 / arb.pi().sqrt() * (-square / variance).exp() * unit.derivative()
    forms = [
        ((square * grown - (radius - length) * (radius - length)) / (4 * radius * length), 0),
        (arb(1) / 2 + (sign * gap - length**2) / (4 * radius * length), 1),
    ]
    share = min((form for form, _ in forms), key=lambda form: float(form[0].rad()))
    rest = 4 * share * (1 - share)
    if not rest[0] > 0:
        return arb_series([arb("nan")] * (TERMS + 1))
    slope = 2 * _height(n) * (rest.log() * (arb(n - 3) / 2)).exp() * share.derivative()
    inside = cosine_below(share[0].lower(), n).union(cosine_below(share[0].upper(), n)) + slope.integral()
    return density * (inside if sign < 0 else 1 - inside)


def radial_delta(noise: RadialNoise, epsilon: arb, accuracy: float = 1e-8, cells: int = CELLS) -> arb:
    """Ball around delta(epsilon) = P(L > epsilon) - e^epsilon Q(L > epsilon) of one release, epsilon > 0.

    Spherically symmetric decreasing noise: the longest shift is the worst (boundary lemma).

    Args:
        noise: The pair of the longest shift.
        epsilon: > 0.
        accuracy: Relative width of each tail that is enough.
        cells: Most cells of the radius, for each tail.

    >>> from flint import arb
    >>> noise = RadialNoise(3, arb(3) / 10, arb(1))
    >>> abs(radial_delta(noise, arb(30)) - arb("8.72336e-6")) < 1e-8
    True
    """
    above, below = (loss_tail(noise, epsilon, sign, accuracy, cells) for sign in (1, -1))
    return above - epsilon.exp() * below
