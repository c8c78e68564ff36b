"""Radial noise in balls: both tails of the privacy loss of the longest shift.

Let P be centred at v, |v| = C, Q at 0, R the distance to P's centre, rho that to Q's, W the cosine of the direction.
The loss is g(rho) - g(R) with g(r) = r^2/(2 sigma^2) + (n-1) log r, so on the border of {L > l} (sign 1) and {L < -l}
(sign -1), with t = |log(rho/R)|,

    R^2 = 2 sigma^2 (l - (n-1) t) / |e^(2 t sign) - 1|,   0 < t < l/(n-1):

no root has to be found. R falls in t from infinity to 0, rho and |rho^2 - R^2| grow with R. Given R the event holds
for W above (below) w, with T = (1 + w)/2 = (rho^2 - (R - C)^2)/(4 R C) = 1/2 + (rho^2 - R^2 - C^2)/(4 R C), and the law
of W is a Beta law: the first form keeps the digits of the narrow peak at |R - C| ~ C e^(-l/(n-1)) of few coordinates,
the second those of 1/sqrt(n) of many. On a cell of R each quantity lies between its values at the ends, so the mean
over R is bracketed (a Riemann sum of monotone quantities); the cell with the largest gap is halved until it is small.
By reflection at v/2, Q(L > l) = P(L < -l).
"""

import heapq
from dataclasses import dataclass
from itertools import pairwise

from flint import arb

from dpaudit.verify.rigorous.balls import precision, total

CELLS = 1500
FIRST = 64
NEAR, FAR = 160.0, 60.0  # log odds of t (n-1)/l beyond log n and at the other end: masses of e^-60 and less
CHERNOFF = 100.0


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
    scale = w * ((a + arb(1) / 2).lgamma() - a.lgamma()).exp() / arb.pi().sqrt()
    found = arb(1) / 2 + scale * rest ** (a - 1) * (-w * w / rest).hypgeom_2f1(1, 1 - a, arb(3) / 2)
    return found.intersection(unknown) if found.is_finite() else unknown


def loss_tail(noise: RadialNoise, loss: arb, sign: int, cells: int = CELLS, accuracy: float = 0.0) -> arb:
    """Ball around P(L > loss) for sign 1, and around P(L < -loss) = Q(L > loss) for sign -1.

    Args:
        noise: The pair.
        loss: > 0.
        sign: 1 or -1.
        cells: Most cells of the radius.
        accuracy: Relative width that is enough.
    """
    with precision():
        end = float(arb(noise.dimension).log()) + NEAR
        places = [-FAR + (end + FAR) * i / FIRST for i in range(FIRST + 1)]
        borders = [_border(noise, loss, sign, y) for y in places]
        heap = [_cell(noise, sign, y, z, a, b) for (y, a), (z, b) in pairwise(zip(places, borders, strict=True))]
        heapq.heapify(heap)
        for step in range(cells):
            first = heapq.heappop(heap)
            _, y, z, a, b, *_ = first
            middle = (y + z) / 2
            if not y < middle < z:  # doubles end here
                heapq.heappush(heap, first)
                break
            between = _border(noise, loss, sign, middle)
            heapq.heappush(heap, _cell(noise, sign, y, middle, a, between))
            heapq.heappush(heap, _cell(noise, sign, middle, z, between, b))
            if accuracy and step % 100 == 99 and -sum(cell[0] for cell in heap) < accuracy * _size(heap):
                break
        smallest, largest = borders[-1], borders[0]
        # the shift is out of reach from P's centre: every direction stays inside the event
        sure = sign > 0 and smallest.other <= noise.length - smallest.radius
        low = total(cell[5] for cell in heap) + (smallest.below if sure else 0)
        return low.union(total(cell[6] for cell in heap) + smallest.below + largest.above)


def _size(heap: list[tuple[float, float, float, _Border, _Border, arb, arb]]) -> float:
    return float(total(cell[6] for cell in heap))


def _border(noise: RadialNoise, loss: arb, sign: int, odds: float) -> _Border:
    """The border where t (n-1)/loss has these log odds."""
    n, variance = noise.dimension, 2 * noise.sigma**2
    gap = variance * loss / (1 + arb(odds).exp())
    t = loss / (n - 1) / (1 + arb(-odds).exp())
    square = gap / (sign * (2 * sign * t).expm1())
    unit = (square / variance).sqrt()
    return _Border(square.sqrt(), (square * (2 * sign * t).exp()).sqrt(), sign * gap, unit.erfc(), unit.erf())


def _cell(
    noise: RadialNoise, sign: int, y: float, z: float, outer: _Border, inner: _Border
) -> tuple[float, float, float, _Border, _Border, arb, arb]:
    """(-its part of the gap, where it is, its ends, least and largest mass inside the event)."""
    mass = inner.above - outer.above if inner.above < 0.5 else outer.below - inner.below
    r, rho = outer.radius.union(inner.radius), outer.other.union(inner.other)
    gap, length = outer.gap.union(inner.gap), noise.length
    shares = [(rho**2 - (r - length) ** 2) / (4 * r * length), arb(1) / 2 + (gap - length**2) / (4 * r * length)]
    low = cosine_below(max(share.lower() for share in shares), noise.dimension)
    high = cosine_below(min(share.upper() for share in shares), noise.dimension)
    low, high = (low, high) if sign < 0 else (1 - high, 1 - low)
    return -float((mass * (high - low)).upper()), y, z, outer, inner, mass * low, mass * high


def radial_delta(noise: RadialNoise, epsilon: arb, cells: int = CELLS) -> arb:
    """Ball around delta(epsilon) = P(L > epsilon) - e^epsilon Q(L > epsilon) of one release, epsilon > 0.

    Spherically symmetric decreasing noise: the longest shift is the worst (boundary lemma).

    Args:
        noise: The pair of the longest shift.
        epsilon: > 0.
        cells: Most cells of the radius, for each tail.

    >>> from flint import arb
    >>> noise = RadialNoise(3, arb(3) / 10, arb(1))
    >>> abs(radial_delta(noise, arb(30)) - arb("8.72336e-6")) < 1e-8
    True
    """
    return loss_tail(noise, epsilon, 1, cells) - epsilon.exp() * loss_tail(noise, epsilon, -1, cells)
