"""Noise that a Gaussian dominates, in balls: moments of whole orders, and the Gaussian's curve smoothed.

A Lipschitz log-density (constant 1/b) under an l2 bound C has E_Q[(dP/dQ)^eta] <= e^(eta (eta-1) mu^2/2), mu = C/b
(`verify.upper.laplace_gaussian_domination`), so with Poisson sampling and a = lam + 1 whole

    alpha(lam) <= sum of steps log sum_eta binom(a, eta) q^eta (1-q)^(a-eta) e^(eta (eta-1) mu^2/2),
    delta <= e^(alpha - lam epsilon) (lam/(lam+1))^lam/(lam+1)          (Balle et al. 2020, Theorem 21).

A hidden scale u is shown to the adversary and rounded up on cells below u_max; larger ones have a probability that is
added. The smoothed curve (`verify.pld.smoothing`): for 0 < width <= epsilon and low = epsilon - width

    delta(epsilon) <= c(width) * integral over y > low of (1 - e^(low-y)) delta_Gauss(y) dy,

which an atom of the Gaussian's rounded-up loss at low + d enters with d (1 + e^-d) - 2 (1 - e^-d).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from flint import arb

from dpaudit.mechanisms.base import Mechanism, with_dimension
from dpaudit.mechanisms.registry import to_dict
from dpaudit.verify.claims import Adjacency, Phase
from dpaudit.verify.rigorous.balls import Unavailable, ball, total
from dpaudit.verify.rigorous.pairs import GridCurve

LADDER = 1.004


@dataclass(frozen=True)
class ShownScale:
    """A hidden Gamma(k, theta) scale of Laplace noise, shown and cut into cells.

    Args:
        k, theta: Of its law.
        ends: Ascending decimals: upper ends of the cells, the last being u_max.
    """

    k: arb
    theta: arb
    ends: tuple[str, ...]

    def masses(self) -> tuple[list[arb], arb]:
        """(mass of every cell, mass above the last)."""
        above = [arb(1), *((ball(u) / self.theta).gamma_upper(self.k, 1) for u in self.ends)]
        return [a - b for a, b in pairwise(above)], above[-1]


def radius(mechanism: Mechanism, order: int, adjacency: Adjacency) -> arb | Unavailable:
    """Largest l_order norm of a shift: clip n^max(0, 1/order - 1/p), doubled under replace-one."""
    data = to_dict(mechanism)
    growth = arb(1) / order - (arb(0) if data["clip_norm"] == "inf" else 1 / ball(data["clip_norm"]))
    length = ball(data["clip"]) * (1 if adjacency == "add-remove" else 2)
    if not growth > 0:
        return length
    return length * arb(data["dimension"]) ** growth if "dimension" in data else Unavailable("the dimension is not set")


def dominating_mu(mechanism: Mechanism, adjacency: Adjacency) -> arb | Unavailable:
    """mu of the Gaussian that dominates: exactly for normal noise, by its Lipschitz constant for other noise."""
    data, length = to_dict(mechanism), radius(mechanism, 2, adjacency)
    if isinstance(length, Unavailable):
        return length
    name, beta = data["name"], data.get("beta")
    if name == "gaussian":
        return length / (ball(data["noise_multiplier"]) * ball(data["clip"]))
    if beta == 2:
        return length * arb(2).sqrt() / ball(data["scale"])
    if is_laplace(mechanism):
        return length / ball(data["scale"])
    if name == "gamma-plrv-iid":
        return length * (ball(data["k"]) + 1) * ball(data["theta"])
    if name == "gamma-scale-laplace":
        return length / ((ball(data["k"]) - 2) * ball(data["theta"]))
    return Unavailable(f"no Gaussian dominates {name} noise here")


def attained_mu(noise: Mechanism, adjacency: Adjacency) -> arb:
    """mu that a shift of normal noise attains: the longest one, or one coordinate's where the dimension is not set."""
    longest = dominating_mu(noise, adjacency)
    mu = dominating_mu(with_dimension(noise, 1), adjacency) if isinstance(longest, Unavailable) else longest
    assert not isinstance(mu, Unavailable)
    return mu


def is_laplace(mechanism: Mechanism) -> bool:
    """Whether the noise of a coordinate is Laplace of a known scale."""
    data = to_dict(mechanism)
    return data["name"] == "laplace" or data.get("beta") == 1


def laplace_shift(mechanism: Mechanism, adjacency: Adjacency) -> arb | Unavailable:
    """The l1 radius over the scale of Laplace noise."""
    length = radius(mechanism, 1, adjacency)
    if isinstance(length, Unavailable) or not is_laplace(mechanism):
        return Unavailable("the noise is not Laplace of a known l1 radius")
    return length / ball(to_dict(mechanism)["scale"])


def is_gaussian(mechanism: Mechanism) -> bool:
    """Whether the noise is normal."""
    data = to_dict(mechanism)
    return data["name"] == "gaussian" or data.get("beta") == 2


def log_moment(
    phases: Sequence[tuple[Phase, Sequence[arb]]], order: int, weights: Sequence[Sequence[arb]] | None = None
) -> arb:
    """alpha(order) of the history.

    Args:
        phases: Each with its values of mu.
        order: lam, whole, at least 1.
        weights: Of those values, adding up to 1; one value of weight 1 each without them.
    """
    value = arb(0)
    for index, (phase, mus) in enumerate(phases):
        q, squares = ball(phase.sampling_prob), [mu * mu / 2 for mu in mus]
        chances = weights[index] if weights is not None else [arb(1)]
        moment = arb(0)
        for eta in range(0 if phase.sampling_prob < 1 else order + 1, order + 2):
            ways = arb.bin_uiui(order + 1, eta) * q**eta * (1 - q) ** (order + 1 - eta)
            moment += ways * total([w * (x * (eta * (eta - 1))).exp() for w, x in zip(chances, squares, strict=True)])
        value += phase.steps * moment.log()
    return value


def converted(alpha: arb, order: int, epsilon: arb) -> arb:
    """delta at epsilon from the moment of one order."""
    return (alpha - order * epsilon + order * (arb(order) / (order + 1)).log() - arb(order + 1).log()).exp()


def smoothing_cost(width: arb) -> arb:
    """A c with e^t - e^width <= c ((e^t + 1) t - 2 (e^t - 1)) for all t > width.

    Both sides grow in t, so on a step of a ladder the left at its end over the right at its start; the right side is at
    least e^t (t - 2), which ends the ladder.

    >>> from flint import arb
    >>> 0.88 < float(smoothing_cost(arb("1e-3")) * arb("1e-6")) < 0.91  # 8/9 and the ladder
    True
    """
    t, best, start = width, arb(0), width.exp()
    while not (best > 0 and t > 2 + 1 / best):
        following = (t * arb(str(LADDER))).mid() if t > width else t * arb(str(LADDER))
        best = max(best, ((following.exp() - start) / ((t.exp() + 1) * t - 2 * t.expm1())).upper())
        t = following
    return best


def smoothed_delta(curve: GridCurve, epsilon: arb, width: arb, end: arb, rest: Callable[[arb], arb]) -> arb:
    """The smoothed curve's bound on delta(epsilon).

    Args:
        curve: The Gaussian history's rounded-up loss, direction remove.
        epsilon: At least `width`.
        width: Of the smoothing, > 0.
        end: Where the integral of what is infinite is cut; one that begins beyond is all rest.
        rest: Of a place -> bound on the integral beyond: e^(alpha - lam place)/lam for any order.
    """
    low = epsilon - width
    if not low < end:
        return smoothing_cost(width) * rest(low)
    mass, light, mean, light_mean = curve.above(low)
    inside = mean - (low + 2) * mass + low.exp() * (light_mean - (low - 2) * light)
    return smoothing_cost(width) * (inside + curve.infinite * (end - low) + rest(end))
