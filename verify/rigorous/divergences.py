"""Renyi divergences of one release in balls: of the pairs of one coordinate of normal and of Laplace noise.

D_a(P || Q) = log of the integral of P^a Q^(1-a), over a - 1. With the record P = (1-q) N + q N(. - t), Q = N without
it; of a record that is replaced Q = (1-q) N + q N(. + t). Integrals of analytic functions are enclosed by flint
(Johansson 2018, "Numerical integration in arbitrary-precision ball arithmetic"), their ends by closed forms.
"""

from collections.abc import Callable
from dataclasses import dataclass

from flint import acb, arb

from dpaudit.verify.rigorous.balls import precision
from dpaudit.verify.rigorous.gaussian import normal_tail

BITS = 192  # the excess of a moment over 1 may be as small as q^2 mu^2
NEGLIGIBLE = 100  # nats below the integral at which its tails begin
NEAR = 15  # deviations around a peak that are integrated apart
LARGEST_ORDER = 10_000  # above which no integral is taken but of normal noise, the record's law first
LARGEST_GROWTH = 1e6  # nats of a moment without sampling, above which no integral is taken
Integrand = Callable[[acb, bool], acb]


@dataclass(frozen=True)
class Pair:
    """Two neighbours' laws of one coordinate.

    Args:
        shift: Of the noise by the record, over sigma or over the scale, > 0.
        rate: At which the record is in the release, in (0, 1].
        swaps: Whether the other neighbour has a record, too, which moves the noise the other way.
    """

    shift: arb
    rate: arb
    swaps: bool = False

    def powers(self, order: arb, *, reverse: bool) -> tuple[arb, arb]:
        """Exponents of (1-q) + q W(x) and of (1-q) + q W(-x), W the likelihood ratio of the moved noise; 0 of none."""
        if self.swaps:
            return order, 1 - order
        return (arb(0), 1 - order) if reverse else (order, arb(0))


def normal_divergence(pair: Pair, order: arb, *, reverse: bool = False) -> arb:
    """D_a of normal noise.

    Args:
        pair: Shifts over sigma.
        order: Above 1.
        reverse: Of Q from P, for a pair that is no mirror of itself.

    >>> from flint import arb
    >>> abs(normal_divergence(Pair(arb(2), arb(1)), arb(3)) - 6) < 1e-30  # a mu^2/2
    True
    """
    t, q = pair.shift, pair.rate
    if q == 1:
        return order * t * t * (2 if pair.swaps else arb(1) / 2)
    first, second = pair.powers(order, reverse=reverse)
    # N is at most P/(1-q)
    plain = _of_large_moment(pair, order) if first != 0 else arb(0).union(-(1 - q).log())
    if order * (order - 1) * t * t > 2 * LARGEST_GROWTH if first != 0 else order > LARGEST_ORDER:
        return plain
    with precision(BITS):
        most = (1 - order) * (1 - q).log() if second != 0 else arb(0)
        # beyond t/2 the first ratio is at most W, and W^a N is e^(a (a-1) t^2/2) times the noise around a t
        peak, growth = (order * t, order * (order - 1) * t * t / 2) if first != 0 else (arb(0), arb(0))
        taken = (growth + order * q.log()).max(arb(0)).mid()  # out of all exponentials

        def integrand(x: acb, analytic: bool) -> acb:
            logs = _log_power(q, t * x - t * t / 2, first, analytic)
            logs += _log_power(q, -t * x - t * t / 2, second, analytic)
            return (logs - x * x / 2 - taken).exp() / (2 * arb.pi()).sqrt()

        left = _whole((2 * (NEGLIGIBLE + most)).sqrt())
        right = _whole(peak + (2 * (NEGLIGIBLE + most - order * q.log())).sqrt() + t)
        tails = (-taken).exp() * normal_tail(left) + (growth - taken).exp() * normal_tail(right - peak)
        inner = [_whole(peak - NEAR), _whole(peak), _whole(peak + NEAR)]
        found = _integral(integrand, [-left, arb(0), *inner, right])
        return _within(plain, (taken + (found + (tails * most.exp()).union(arb(0))).log()) / (order - 1))


def fixed_size_divergence(mu: arb, rate: arb, order: arb, *, swaps: bool) -> tuple[arb, arb]:
    """At most D_a of a release of normal noise and a batch of fixed size, with the record first and without it.

    The worst pair for every epsilon (`verify.upper.sampled_normal`) has one mixture against another where the loss is
    above 0, one where it is below, and ratio 1 elsewhere: (1-g) N(0) + g N(2 mu) against (1-g) N(0) + g N(mu), and
    (1-g) N(0) + g N(mu) against N(0) with the ghost first; between two records the first against N(0) in both.

    Args:
        mu: Of one contribution.
        rate: g, at which the record is in a batch.
        order: a, above 1.
        swaps: Whether it is replaced by another record, not by a ghost.

    >>> one, other = fixed_size_divergence(arb(1), arb(1), arb(3), swaps=True)
    >>> abs(one - 6) < 1e-2  # nearly all of a (2 mu)^2/2 comes from where the loss is above 0
    True
    """
    far, near = (2 * mu, arb(0)) if swaps else (2 * mu, mu)
    above, below = (far, near), (far, near) if swaps else (mu, arb(0))
    with precision(BITS):
        ways = []
        for first, second in ((above, below), (below, above)):
            gained = _gained(rate, first, order, swapped=False) + _gained(rate, second, order, swapped=True)
            ways.append((1 + gained).log() / (order - 1))
    return ways[0], ways[1]


def _gained(g: arb, centres: tuple[arb, arb], a: arb, *, swapped: bool) -> arb:
    """The integral of F^a G^(1-a) - F, or of G^a F^(1-a) - G, over F > G: N(0) mixed with either centre's noise."""
    far, near = centres
    growth = arb(0) if swapped else a * (a - 1) * far * far / 2
    taken = (growth + a * g.log()).max(arb(0)).mid()  # out of all exponentials

    def integrand(x: acb, analytic: bool) -> acb:
        first, second = (g * (c * x - c * c / 2).exp() + (1 - g) for c in (centres[::-1] if swapped else centres))
        ratios = a * first.log(analytic) + (1 - a) * second.log(analytic)
        return (ratios.exp() - first) * (-x * x / 2 - taken).exp() / (2 * arb.pi()).sqrt()

    start, peak = (far + near) / 2, far if swapped else a * far
    end = _whole(peak + far + (2 * (NEGLIGIBLE - a * g.log())).sqrt())
    inner = [_whole(place) for place in (peak - NEAR, peak, peak + NEAR)]
    found = _integral(integrand, [start, *inner, end])
    # beyond the end G is at least 1, F at most e^(far x - far^2/2), and what is swapped at most G
    power = (growth - taken).exp() * normal_tail(end - peak)
    lost = (-taken).exp() * (normal_tail(end) + normal_tail(end - far))
    return taken.exp() * (found + arb(0).union(power + lost) - arb(0).union(lost))


def _of_large_moment(pair: Pair, order: arb) -> arb:
    """D_a between two bounds that nearly meet where E[W^a] = e^g is large.

    Given the record's coin the moments are 1 and e^g, e^(4 g) of one that is replaced: jointly convex, at most their
    mean. Or Q >= (1-q) N, of which 1 - q + q W is at most the mean. At least q^a W^a; W(-x) is at most 1 where x > 0.
    """
    q, g = pair.rate, order * (order - 1) * pair.shift**2 / 2
    below = order * q.log() + g + ((1 - normal_tail(order * pair.shift)).log() if pair.swaps else 0)
    above = _log_mean(q, g)
    if pair.swaps:
        above = _log_mean(q, 4 * g).min((1 - order) * (1 - q).log() + above)
    return below.max(arb(0)).union(above) / (order - 1)


def _log_mean(q: arb, g: arb) -> arb:
    """log(1 - q + q e^g)."""
    return g + (q + (1 - q) * (-g).exp()).log()


def laplace_divergence(pair: Pair, order: arb, *, reverse: bool = False) -> arb:
    """D_a of Laplace noise: outside both centres the likelihood ratio is constant, inside an integral.

    Args:
        pair: Shifts over the scale.
        order: Above 1.
        reverse: Of Q from P, for a pair that is no mirror of itself.

    >>> from flint import arb
    >>> found = laplace_divergence(Pair(arb(1), arb(1)), arb(2))
    >>> abs(found - (arb(2) / 3 * arb(1).exp() + arb(1) / 3 * arb(-2).exp()).log()) < 1e-14
    True
    """
    t, q = pair.shift, pair.rate
    first, second = pair.powers(order, reverse=reverse)

    def moment(ratio: acb, mirrored: acb, analytic: bool = False) -> acb:
        return _log_power(q, ratio, first, analytic) + _log_power(q, mirrored, second, analytic)

    def piece(ratio: Callable[[acb], acb], mirrored: Callable[[acb], acb], side: int) -> Integrand:
        return lambda x, analytic: (moment(ratio(x), mirrored(x), analytic) - side * x).exp() / 2

    with precision(BITS):
        # log W is -t below 0, 2 x - t from 0 to t and t above
        low, high = acb(-t), acb(t)
        logs = moment(low, high).real, moment(high, low).real
        # outside the centres the noise has e^-t/2 on either side, and the integrand is nowhere larger than there
        largest = logs[0].max(logs[1])
        plain = (largest - t - arb(2).log()).union(largest) / (order - 1)
        below, above = (log.exp() / 2 for log in logs)
        # between the centres the integrand ascends, and the noise has a mass of 1 - e^-t
        inner = arb(0).union(-2 * above * (-t).expm1())
        if order <= LARGEST_ORDER:
            left = _integral(piece(lambda x: low, lambda x: -2 * x - t, -1), [-t, arb(0)])
            inner = _within(inner, left + _integral(piece(lambda x: 2 * x - t, lambda x: low, 1), [arb(0), t]))
        outer = (below + above) * (-t).exp()  # a ball around an interval from 0 reaches below it
        least, most = outer + inner.lower().max(arb(0)), outer + inner.upper()
        return _within(plain, least.log().union(most.log()) / (order - 1))


def _within(bound: arb, found: arb) -> arb:
    """What both enclosures of a number leave; the bound alone where no integral was reached."""
    return bound.intersection(found) if found.is_finite() else bound


def _integral(integrand: Integrand, ends: list[arb]) -> arb:
    """The integral from the first end to the last, piece by piece where they ascend."""
    found, left = arb(0), ends[0]
    for right in ends[1:]:
        if right > left:
            found, left = found + acb.integral(integrand, left, right).real, right
    return found


def _log_power(q: arb, log_ratio: acb, power: arb, analytic: bool) -> acb:
    """power log((1-q) + q e^log_ratio)."""
    if power == 0:
        return acb(0)
    return power * ((1 - q) + q * log_ratio.exp()).log(analytic)


def _whole(x: arb) -> arb:
    """A whole number near above, exactly."""
    return x.upper().ceil().mid()
