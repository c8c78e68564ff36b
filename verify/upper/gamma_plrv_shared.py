"""Laplace noise with ONE hidden scale per vector (Gamma-PLRV) under an l2 bound C.

Showing u to the adversary only helps. Given u the noise is Laplace(1/u), so by Gaussian domination (see
`laplace_gaussian_domination`) E_Q[(dP/dQ)^eta | u] <= exp(eta (eta-1) u^2 C^2/2). Its mean over all u may be infinite,
so the history is conditioned on every u being at most u_max: that changes each law by probability
T P(u > u_max) at most, which goes to delta, and leaves u with its law given u <= u_max:

    alpha = T log sum_eta w_eta E[exp(eta (eta-1) u^2 C^2/2) | u <= u_max],   delta = delta_alpha + T P(u > u_max).

Any u_max is valid; the best of a ladder is taken at every point of the curve. Instead of the moments the Gaussian pairs
of mu = u C, averaged over the revealed u, give a curve that is smoothed (`numerics.smoothing`).

Means over u are bounded from above by atoms: `pld.gamma_scale`, (2), on panels that narrow towards u_max, where moments
of high order have their mass; the smallest u and those of the last panel are counted at the upper end.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from scipy.special import ndtr

from dpaudit.mechanisms.base import Array, GammaScale
from dpaudit.mechanisms.numerics import UNIT
from dpaudit.verify.claims import Adjacency, Claim, Phase
from dpaudit.verify.curves import Curve
from dpaudit.verify.pld import gamma_scale
from dpaudit.verify.pld.dominating_pairs import DominatingPair, Tails, exact_tails
from dpaudit.verify.pld.gamma_scale import ladder, laplace_given_gamma, panels, up_to
from dpaudit.verify.pld.normal_tails import LAST, mean_error
from dpaudit.verify.pld.pair_curve import PairPhase
from dpaudit.verify.rdp import Moments, composed_moments, replace_one_release, sampled_moments
from dpaudit.verify.upper.laplace_gaussian_domination import smaller
from dpaudit.verify.upper.shift_norms import moments_reach, radius

THEOREM = (
    "shared scale revealed and truncated: Gaussian domination given u <= u_max, averaged over u, with the probability "
    "of a larger u added to delta; Balle et al. (2020), Theorem 21"
)
SMOOTHED_THEOREM = (
    "shared scale revealed and truncated: given u <= u_max delta is at most the smoothed curve of the Gaussian pairs "
    "averaged over u, with the probability of a larger u added; Zhu, Dong and Wang (2022), Theorems 10 and 11"
)
SMOOTHED_SHARE = 0.01  # of SHARES, the one at which the curve is smoothed: delta hardly depends on it
LEVELS = 16_000  # losses at which the tails of the pair, some two hundred Gaussian ones each, are evaluated
SHARES = (1e-6, 1e-4, 0.01, 0.05, 0.2, 0.5)  # of the claimed delta that may be spent on u > u_max
LEAST_SHARED = 1e-270  # delta that is shared out: 1e6 steps later no mass of a panel is lost among denormals
LOWER_TAIL = 1e-12  # probability of the smallest u, which are counted at their largest
SMALLEST = 1e-6  # or this share of u_max, if it is larger
LAST_PANEL = 1e-7  # relative width of the panel that is counted at u_max
# moments of a release of the claim's phase, from those of the longest shift under an adjacency, made at a rate
Carry = Callable[[Claim, Phase, Callable[[Adjacency, float], Moments]], Moments]
PANEL_NATS = 8.0  # that the law's log-density may fall over a panel at u_max
CELLS = 240  # of the scale where it is rounded up, by a thirtieth of its standard deviation on average


@dataclass(frozen=True)
class Truncated:
    """Atoms in place of the law of the hidden inverse scale u given u <= u_max, and the shift's l2 norm.

    Args:
        nodes: Values of u.
        log_weights: Log of their masses.
        beyond: Upper bound on P(u > u_max).
        length: l2 norm C of the longest shift.
    """

    nodes: Array
    log_weights: Array
    beyond: float
    length: float

    def log_ratio_moments(self, eta: Array) -> Array:
        """log E[exp(eta (eta-1) u^2 C^2/2) | u <= u_max] at each eta: 0, 1 or more."""
        growth = np.outer(eta * (eta - 1) / 2, (self.nodes * self.length) ** 2)
        exponent = growth + self.log_weights
        top = exponent.max(axis=1)
        values = top + np.log(np.exp(exponent - top[:, None]).sum(axis=1))
        # 16 roundings of the growth (six of a node, which is squared), of log weights down to -750, and of the sum
        values += UNIT * (16.0 * growth.max(axis=1) + 1600.0 + len(self.nodes))
        return np.asarray(np.where(eta <= 1, 0.0, values))

    def release(self, sampling_prob: float, orders: Array) -> Array:
        """Log-moments alpha(lam) of one release, u revealed."""
        if sampling_prob == 1:
            return self.log_ratio_moments(orders + 1.0)
        whole = self.log_ratio_moments(np.arange(math.ceil(float(orders.max())) + 2.0))
        return sampled_moments(whole, sampling_prob, orders, self.log_ratio_moments)

    def pair(self) -> DominatingPair:
        """The Gaussian pairs of mu = u C with u revealed: the mean over u of their tails."""
        mu, weights = self.nodes * self.length, np.exp(self.log_weights)

        def mean(tail: Array) -> Array:
            return np.asarray(np.minimum(tail @ weights, 1.0))

        # |loss / mu| is at most LAST + mu / 2 where a tail counts; it and mu / 2 carry roundings of mu
        error = mean_error(6.0 * UNIT * (LAST + float(mu.max()) / 2), len(mu)) + 6.0 * UNIT

        def both(x: Array) -> tuple[Array, Array]:
            small = ndtr(-np.abs(x))  # the larger tail, at least 1/2, is one minus it but for half a unit
            below = x < 0
            return mean(np.where(below, small, 1.0 - small)), mean(np.where(below, 1.0 - small, small))

        def tails(losses: Array) -> Tails:
            p, q = losses[:, None] / mu - mu / 2, losses[:, None] / mu + mu / 2
            return exact_tails(*both(p), *both(q), error)

        return DominatingPair(tails, levels=LEVELS)


def truncated(noise: GammaScale, length: float, beyond: float) -> Truncated:
    """Atoms whose mean of exp(A u^2) is an upper bound on that given u <= u_max, for every A >= 0.

    Args:
        noise: The noise.
        length: l2 norm of the shift.
        beyond: P(u > u_max), in (0, 1/2), of any accuracy; the law's own is bounded.
    """
    bottom, u_max = _range(noise, beyond)
    last = u_max * (1.0 - LAST_PANEL)
    # none is wider than what is left beyond it, so that no atom for a rule's error lies beyond u_max
    halved = u_max * (1.0 - 0.5 ** np.arange(1.0, math.ceil(-math.log2(LAST_PANEL))))
    steepest = abs(1.0 / noise.scale - (noise.shape - 1.0) / u_max)
    ends = ladder(noise, bottom, last, PANEL_NATS / steepest if steepest else math.inf)
    ends = np.unique(np.concatenate([ends, halved[(halved > bottom) & (halved < last)]]))
    bulk, end = panels(noise, ends), panels(noise, np.array([last, u_max]))
    actual = gamma_scale.beyond(noise, u_max)
    nodes = np.concatenate([[bottom], bulk.nodes.ravel(), bulk.reach, [u_max]])
    mass = np.concatenate([[up_to(noise, bottom)], bulk.masses.ravel(), bulk.error, end.total()])
    return Truncated(nodes, np.log(np.maximum(mass, 1e-320)) - math.log1p(-actual), actual, length)


def rounded_up(noise: GammaScale, length: float, beyond: float) -> Truncated:
    """A law of u that is stochastically larger than that given u <= u_max: every u moved to the upper end of its cell.

    Args:
        noise: The noise.
        length: l2 norm of the shift.
        beyond: P(u > u_max), in (0, 1/2), of any accuracy; the law's own is bounded.
    """
    bottom, u_max = _range(noise, beyond)
    ends = ladder(noise, bottom, u_max, (u_max - bottom) / CELLS)
    actual = gamma_scale.beyond(noise, u_max)
    mass = np.append(up_to(noise, bottom), panels(noise, ends).total()) / (1.0 - actual)
    above = np.minimum(np.cumsum(mass[::-1]) * (1.0 + 2 * len(mass) * UNIT), 1.0)  # P(u >= end), rounded up
    weights = np.diff(above, prepend=0.0)[::-1]
    return Truncated(ends, np.log(np.maximum(weights, 1e-320)), actual, length)


def _range(noise: GammaScale, beyond: float) -> tuple[float, float]:
    """The smallest u that is not counted at another, and u_max."""
    u_max = float(np.nextafter(noise.scale_isf(np.array([beyond]))[0], 0.0))
    smallest = max(float(noise.scale_ppf(np.array([LOWER_TAIL]))[0]), SMALLEST * u_max)
    return min(smallest, noise.shape * noise.scale), u_max


def radius_of(claim: Claim, phase: Phase) -> float | None:
    """l2 radius of a phase whose noise is Laplace given a Gamma scale, None for other noise or an unknown radius."""
    known = laplace_given_gamma(phase.mechanism.structure) is not None
    return radius(phase.mechanism, 2.0, claim.adjacency) if known else None


def applies(claim: Claim) -> bool:
    """Laplace noise of inverse scale u in every phase, the l2 radius known, and add-remove if sampled."""
    return moments_reach(claim) and all(radius_of(claim, phase) is not None for phase in claim.phases)


def _laws(claim: Claim, budget: float, law: Callable[[GammaScale, float, float], Truncated]) -> list[Truncated]:
    """The scale's law of every phase given u <= u_max; the rest of the whole history has probability `budget`."""
    steps = sum(phase.steps for phase in claim.phases)
    laws = []
    for phase in claim.phases:
        noise, length = laplace_given_gamma(phase.mechanism.structure), radius_of(claim, phase)
        if length is None or noise is None:
            raise ValueError(f"Expected claim {claim.id!r} to have Laplace noise of one hidden scale in every phase.")
        laws.append(law(noise, length, budget / steps))
    return laws


def conditioned(claim: Claim, budget: float, *, smooth: bool, carry: Carry | None = None) -> Curve:
    """Upper bound on delta(epsilon) given that every scale is at most u_max, plus the probability that one is not.

    Args:
        claim: Any that the theorem applies to.
        budget: That probability.
        smooth: Whether the smoothed curve is computed, besides the one by moments.
        carry: Where the theorem does not apply for the way in which records are sampled or replaced: what the moments
            of a release are, from those of a shift that is sampled.

    Raises:
        ValueError: Other noise, or an unknown l2 radius.
    """
    parts, spent = [], 0.0
    for law, phase in zip(_laws(claim, budget, truncated), claim.phases, strict=True):
        at = partial(_release, law, phase)
        own = at(claim.adjacency, phase.sampling_prob if claim.adjacency == "add-remove" else 1.0)
        parts.append((own if carry is None else carry(claim, phase, at), phase.steps))
        spent += phase.steps * law.beyond
    sampled = (claim.adjacency == "add-remove" and any(phase.sampling_prob < 1 for phase in claim.phases)) or carry
    orders, alpha = composed_moments(claim, parts, bool(sampled))
    coarse = _laws(claim, budget, rounded_up) if smooth else []
    pairs = [
        PairPhase(law.pair(), phase.sampling_prob, phase.steps)
        for law, phase in zip(coarse, claim.phases, strict=False)
    ]
    return smaller(claim, orders, alpha, pairs, (THEOREM, SMOOTHED_THEOREM), spent)


def _release(law: Truncated, phase: Phase, adjacency: Adjacency, rate: float) -> Moments:
    """Moments of one release at the longest shift under an adjacency, which is made at a rate."""
    length = radius(phase.mechanism, 2.0, adjacency)
    assert length is not None  # the law has one
    return partial(replace(law, length=length).release, rate)


def bound(claim: Claim) -> Curve:
    """Upper bound on delta(epsilon), the best truncation of the scale at every point.

    Raises:
        ValueError: `applies(claim)` is false.
    """
    if not moments_reach(claim):
        raise ValueError(f"Expected claim {claim.id!r} to be add-remove, or unsampled, or one release.")
    swapped = claim.adjacency == "replace-one" and claim.phases[0].sampling_prob < 1
    curve = best_truncation(claim, smooth=not swapped)
    return replace_one_release(curve, claim.phases[0].sampling_prob) if swapped else curve


def best_truncation(claim: Claim, *, smooth: bool, carry: Carry | None = None) -> Curve:
    """`conditioned`, the best of some truncations at every point.

    Args:
        claim, carry: As there.
        smooth: Whether one of the curves is smoothed.
    """
    target = min(max(claim.delta, LEAST_SHARED), 0.5)
    ladder = [
        conditioned(claim, share * target, smooth=smooth and share == SMOOTHED_SHARE, carry=carry) for share in SHARES
    ]

    def delta(epsilon: Array) -> Array:
        return np.asarray(np.min([curve.delta(epsilon) for curve in ladder], axis=0))

    best = min(ladder, key=lambda curve: float(curve.delta(np.array([claim.epsilon]))[0]))
    return Curve.upper(best.method, best.theorem, delta, best.assumptions)
