"""A Gamma law of a scale that coordinates share, summed at nodes: every probability from below, in balls.

Let u have the density u^(k-1) e^(-u/theta)/(Gamma(k) theta^k); given u, let N coordinates be Laplace(1/u), each about a
centre of its own. With s = log u and r(x) the sum of the coordinates' distances from their centres, an event E of these
coordinates has P(E) = integral over x in E of [integral over s of g(s, x)], where

    g(s, x) = 2^-N e^(K s - (1/theta + r(x)) e^s)/(Gamma(k) theta^k),   K = k + N.

Theorem. Let psi(u) = (u/theta)^k e^(-u/theta)/Gamma(k), the density of s, and T(E) = h sum_j psi(u_j) P(E | u_j) over
u_j = u_0 e^(j h), j all whole numbers. Then for EVERY event E and every angle 0 < a < pi/2

    |T(E) - P(E)| <= error P(E),   error = 2 (cos a)^-K/(e^(2 pi a/h) - 1),   so P(E) >= T(E)/(1 + error).

Proof. By Poisson's summation formula h sum_j g(s_0 + j h, x) differs from G(0) by at most the sum over j != 0 of
|G(2 pi j/h)|, G(w) = integral of g(s, x) e^(i w s) ds. Substituting t = (1/theta + r) e^s shows that G(w) is a number
of modulus 1 times G(0) Gamma(K + i w)/Gamma(K), whatever x is. Turning the path of Euler's integral to the ray of angle
a gives |Gamma(K + i w)| <= integral of t^(K-1) e^(-a w - t cos a) dt = e^(-a w) (cos a)^-K Gamma(K) for w > 0, and the
conjugate for w < 0: a geometric series in j. As g > 0, the integral over E keeps the factor.

All terms of T are positive, so those that are left out make it less. Nothing is asked of E: no order in u, and
coordinates that nobody moves may be looked at, g of them. The sum of their sizes has given u the law Gamma(g, 1/u)
under both inputs: it tells the scale, about which the moved coordinates' sum says next to nothing, and how large a loss
is. Given u it is independent of the moved coordinates.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from flint import arb

from dpaudit.verify.rigorous.balls import ball


@dataclass(frozen=True)
class SharedScale:
    """Where a hidden scale's law is summed, and the coordinates that tell it.

    Args:
        step: h, a decimal.
        nodes: The first and the last j; u_j = k theta e^(j h).
        gauges: How many coordinates that are not moved are looked at.
        sizes: Ascending decimals that cut the sum of their sizes into cells; none without gauges.
    """

    step: str
    nodes: tuple[int, int]
    gauges: int = 0
    sizes: tuple[str, ...] = ()


def node_error(order: arb, step: arb) -> arb:
    """Relative error of the sum at nodes, by the theorem at nearly its best angle.

    Args:
        order: K, > 0.
        step: h, > 0.

    >>> from flint import arb
    >>> bool(node_error(arb(10_000), arb("0.0084")) < 1e-11)
    True
    """
    angle = (2 * arb.pi() / (step * order)).atan()
    return 2 * angle.cos() ** -order / (2 * arb.pi() * angle / step).expm1()


def scale_nodes(k: arb, theta: arb, scale: SharedScale, count: int) -> Iterator[tuple[arb, list[arb]]]:
    """Nodes u, each with the weights, from below, of the cells of the gauges' size: P(E) is at least their sum over E.

    Args:
        k, theta: Of the scale's law.
        scale: The nodes and the gauges.
        count: How many other coordinates an event depends on.
    """
    step, gamma = ball(scale.step), k.gamma()
    part = step / gamma / (1 + node_error(k + count + scale.gauges, step))
    edges = [ball(size) for size in scale.sizes]
    for j in range(scale.nodes[0], scale.nodes[1] + 1):
        ratio = k * (j * step).exp()
        u, weight = ratio * theta, part * ratio**k * (-ratio).exp()
        above = [arb(1), *((u * edge).gamma_upper(scale.gauges, 1) for edge in edges), arb(0)]
        yield u, [weight * (a - b) for a, b in pairwise(above)]
