"""Upper bounds under the other two readings: the batch's SIZE is told, with the record if it is in.

Let m = |B|. Without the record in question m = K ~ Binomial(N, q), and the batch is a uniform m-subset A of the N
others. With it in, m = K + 1, and the others in the batch are a uniform (m-1)-subset: A less a uniform one of its
members, j. Given m, A and j, told as well, the two sums of contributions differ by v - x_j, |v - x_j| <= 2 C, and the
noise has ONE law:

    realised      (S + z)/m:               noise z, shift 2 C;
    per-example   S + z_1 + ... + z_m:     noise of m draws, shift 2 C.

So a release is dominated by the product of two independent pairs, (K + 1, K) and the noise's pair at a shift of 2 C, on
which Poisson sampling of the record acts as usual. Nothing depends on the dimension. A batch of nobody (m = 0) may
release anything.

Sizes. Outside a range of likely m the history's probability goes to delta, and inside it equals that of the clamped m.
The clamped pair is dominated by N(mu_B, 1) against N(0, 1) with

    mu_B = max over thresholds j of Phi^-1(P(K + 1 >= j)) - Phi^-1(P(K >= j)), about (N q (1-q))^(-1/2):

the likelihood ratio rises with m, so the best events are {m >= j}. Each vertex (P(K >= j), P(K + 1 >= j)) of the
pair's ROC curve lies under the Gaussian's, Phi(Phi^-1(x) + mu_B), which is concave, hence so do the chords between
vertices (Dong, Roth and Su 2022, Theorem 2.10, which serves both directions).

Many draws. Spread v evenly over the m draws: v/m each, of total length |v|/sqrt(m), and the sum is a post-processing.
More draws are a post-processing of fewer, so the smallest likely m is the worst.

Gaussian noise: given m the pair is N(mu_m, 1) against N(0, 1), mu_m = 2 C/sigma or 2 C/(sigma sqrt(m)), and the loss of
the product, log P(K+1 = m)/P(K = m) plus a normal one, has exact tails: a mixture over m.

Noise of Lipschitz log-density (Laplace, Gamma-PLRV, given its scale at most u_max): its coordinates are exchanged for
Gaussian ones one at a time, whatever the rest of the release is (`upper.numerics.smoothing`), m for N(mu_B, 1) first.
So the bound is that of Laplace noise of scale 1 under l2 clipping to sqrt(mu^2 + mu_B^2).
"""

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from dpaudit.mechanisms import Laplace
from dpaudit.mechanisms.base import Array, NormalCoordinates, ScaleMixture
from dpaudit.mechanisms.numerics import UNIT
from dpaudit.verify.claims import Claim
from dpaudit.verify.curves import Curve
from dpaudit.verify.papers.batch_noise.known_others import Reading, charged, composed_pair
from dpaudit.verify.papers.batch_noise.other_records import PMF_ERROR, likely_range
from dpaudit.verify.pld.dominating_pairs import DominatingPair, Tails, exact_tails
from dpaudit.verify.pld.gamma_scale import beyond, laplace_given_gamma
from dpaudit.verify.pld.normal_tails import LAST, mean_error
from dpaudit.verify.pld.pair_curve import worst_delta
from dpaudit.verify.upper import laplace_gaussian_domination
from dpaudit.verify.upper.shift_norms import radius

THEOREM = "batch size told; others coupled to a shift of 2 clip (joint convexity); binomial sizes apart by one"
SHARE = 1e-3  # share of the claimed delta that unlikely sizes may take, and as much again unlikely scales
SCORE_ERROR = 1e-9  # absolute, of a normal score of a binomial tail in the range kept
LEVELS = 12_000


@dataclass(frozen=True)
class Sizes:
    """The batch's size m, clamped to a likely range.

    Args:
        sizes: Values of m, consecutive, ascending.
        first: Their probabilities with the record in, law of K + 1, clamped.
        second: Without it, law of K, clamped.
        outside: Bound on the probability of a size at either end or beyond, under either law.
        gaussian: mu_B of the Gaussian pair that dominates the clamped pair.
    """

    sizes: Array
    first: Array
    second: Array
    outside: float
    gaussian: float


def batch_sizes(records: int, sampling_prob: float, tail: float) -> Sizes | None:
    """The likely sizes; None where the size tells whether the record is in (q = 1), or fewer than three are likely.

    Args:
        records: N.
        sampling_prob: q in (0, 1).
        tail: Probability that may be left out, about.
    """
    if sampling_prob == 1:
        return None
    law = binom(records, sampling_prob)
    low, high = likely_range(records, sampling_prob, tail / 4)
    low, high = (
        max(low - 1, 1),
        min(high + 2, records),
    )  # a batch of nobody has no likelihood ratio, nor one of everybody
    if high - low < 2:
        return None
    inner = np.arange(low + 1, high)
    first = np.concatenate([[law.cdf(low - 1)], law.pmf(inner - 1), [law.sf(high - 2)]])
    second = np.concatenate([[law.cdf(low)], law.pmf(inner), [law.sf(high - 1)]])
    outside = max(float(side[0] + side[-1]) for side in (first, second)) * (1 + 1e-9)
    cuts = np.arange(low + 1, high + 1)  # events {m >= cut}
    scores = _score(law.sf(cuts - 2), law.cdf(cuts - 2)) - _score(law.sf(cuts - 1), law.cdf(cuts - 1))
    return Sizes(np.arange(low, high + 1.0), first, second, outside, float(scores.max()) + SCORE_ERROR)


def _score(above: Array, below: Array) -> Array:
    """Phi^-1 of a probability given with its complement."""
    return np.asarray(np.where(above < 0.5, ndtri(above), -ndtri(below)))


def product_pair(sizes: Sizes, mu: Array) -> DominatingPair:
    """The pair (m, output) with N(mu_m, 1) against N(0, 1) given m.

    Args:
        sizes: m and its two laws.
        mu: Shape of sizes.sizes, > 0.
    """
    offset = np.log(sizes.first) - np.log(sizes.second)

    def tails(losses: Array) -> Tails:
        normal = (losses[:, None] - offset) / mu
        p, q = normal - mu / 2, normal + mu / 2
        return exact_tails(
            ndtr(p) @ sizes.first, ndtr(-p) @ sizes.first, ndtr(q) @ sizes.second, ndtr(-q) @ sizes.second, error
        )

    # |normal| is at most LAST + mu / 2 where a tail counts; the offset carries the logarithms' roundings
    off = 6.0 * UNIT * (LAST + float(mu.max()) / 2) + 8.0 * UNIT * float(np.abs(np.log(sizes.first)).max() / mu.min())
    error = mean_error(off + 8.0 * UNIT * float(np.abs(np.log(sizes.second)).max() / mu.min()), len(mu)) + PMF_ERROR
    return DominatingPair(tails, slack=1e-12 + 3 * PMF_ERROR, levels=LEVELS)


def gaussian_cost(claim: Claim, draws: float, budget: float) -> tuple[float, float] | None:
    """(C/b of one noise vector, probability that it fails over the history's vectors); None for other noise.

    Args:
        claim: Of one phase.
        draws: Noise vectors a step.
        budget: Probability that a hidden scale may take.
    """
    phase = claim.phases[0]
    structure = phase.mechanism.structure
    if not isinstance(structure, ScaleMixture):
        mu = laplace_gaussian_domination.gaussian_shift(claim, phase)
        return None if mu is None else (mu, 0.0)
    noise, length = laplace_given_gamma(structure), radius(phase.mechanism, 2.0, claim.adjacency)
    if length is None or noise is None:
        return None
    vectors = phase.steps * draws
    largest = float(noise.scale_isf(np.array([budget / vectors]))[0])
    return length * largest * (1 + 1e-14), vectors * beyond(noise, largest) * (1 + 1e-14)


def upper_curve(claim: Claim, *, reading: Reading, records: int) -> Curve | None:
    """Upper bound on delta(epsilon) of a claim of one phase under a reading, None where this argument has none.

    Args:
        claim: Add-remove, Poisson sampling; its delta says where tightness matters.
        reading: Which.
        records: N, other records.
    """
    phase, target = claim.phases[0], claim.delta or 1e-12
    length = radius(phase.mechanism, 2.0, "add-remove")
    sizes = batch_sizes(records, phase.sampling_prob, SHARE * target / phase.steps)
    if sizes is None or length is None:
        return None
    kept = sizes.sizes[1:-1]  # the ends stand for everything beyond, and are paid for
    draws = kept if reading == "per-example" else np.ones(len(kept))
    structure = phase.mechanism.structure
    if isinstance(structure, NormalCoordinates):
        mu = 2 * length / structure.sigma / np.sqrt(draws)
        mu = np.concatenate([mu[:1], mu, mu[-1:]])
        composed = composed_pair(product_pair(sizes, mu), phase.sampling_prob, phase.steps)
        return charged("pld", THEOREM, partial(worst_delta, composed), phase.steps * sizes.outside)
    cost = gaussian_cost(claim, float(draws[-1]), SHARE * target)
    if cost is None:
        return None
    mu_noise, spent = cost
    clip = math.hypot(2 * mu_noise / math.sqrt(draws[0]), sizes.gaussian) * (1 + 1e-12)
    stand_in = Claim.single(
        Laplace(1.0, clip=clip),
        epsilon=claim.epsilon,
        delta=target,
        steps=phase.steps,
        sampling_prob=phase.sampling_prob,
    )
    curve = laplace_gaussian_domination.bound(stand_in)
    return charged(curve.method, f"{THEOREM}; {curve.theorem}", curve.delta, phase.steps * sizes.outside + spent)
