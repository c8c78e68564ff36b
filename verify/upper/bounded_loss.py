"""Noise whose densities around two centres have a bounded ratio: pure differential privacy, whatever the delta.

A release has epsilon = sup of log f(z)/f(z - v), over outputs z and allowed shifts v, at delta = 0. With R the largest
l1 norm of a shift:

- Independent coordinates whose phi = -log f is concave and nondecreasing on (0, inf) (Lomax laws; the laws that declare
  `log_convex`): phi(|x - s|) - phi(|x|) <= phi(|x| + |s|) - phi(|x|) <= phi(|s|) - phi(0), which x = 0 reaches.
  By Jensen's inequality the sum over n coordinates is at most n (phi(R/n) - phi(0)): equal shifts are the worst.
- Independent coordinates with a Lipschitz log-density: the constant times R.
- One scale of all coordinates, 1/u with u ~ Gamma(k, theta): f(z) is proportional to (1 + theta |z|_1)^-(n+k), so that
  epsilon = (n + k) log(1 + theta R), which z = 0 reaches.

Sampling at rate q makes it e' = log(1 + q (e^epsilon - 1)). Under replace-one too, epsilon being that of two
contributions: by advanced joint convexity (Balle, Barthe and Gaboardi 2018, Theorem 2) the hockey-stick divergence at
e' is q times that at epsilon of the output with one version of the record against a mixture of those with the other
version and without it, from neither of which it is further than epsilon.

So too in batches of fixed size under replace-one, where another record is in without the record. Under zero-out,
epsilon being that of one clip: draw a batch without the record, and let it take a random place there. Given both, the
release is f where it is not in, and g or h where it or its ghost has the place. h/f and g/h lie between e^-epsilon and
e^epsilon, and the ratio of the mixtures ((1-q) f + q g)/((1-q) f + q h) is largest where h = f e^epsilon and g =
h e^epsilon, in the other order where h = f e^epsilon and g = f, which is less:

    e' = log (1 - q + q e^(2 epsilon)) / (1 - q + q e^epsilon),

which Laplace noise reaches where all others are alike and opposed.

Shuffled batches that straddle two passes can hold a record twice, in a release of twice the shift: by the triangle
inequality through one shift, that has twice the epsilon. Reveal the order (`met_releases`): a record enters E places,
of which 2 k are in k batches, k at most K. Two releases of epsilon each are one of 2 epsilon, so that K of those and
E - 2 K of epsilon cost the most, E epsilon in all. Of a stream through a buffer all copies count as in one release.

What is e-differentially private costs at most what randomized response does, losses e and -e with probabilities e^e/(1
+ e^e) and 1/(1 + e^e) (Kairouz, Oh and Viswanath 2015, Theorem 3.2 and section 4.1), in any adaptive composition.
"""

import math

import numpy as np

from dpaudit.mechanisms.base import Function, IIDCoordinates, LomaxCoordinates, Mechanism
from dpaudit.verify.claims import Adjacency, Claim, Phase
from dpaudit.verify.curves import Curve
from dpaudit.verify.pld.composition import Composed
from dpaudit.verify.pld.fourier import Lattice
from dpaudit.verify.pld.gamma_scale import laplace_given_gamma
from dpaudit.verify.pld.pair_curve import LEAST_STEP
from dpaudit.verify.samplers import BufferedShuffle, Shuffled, TruncatedPoisson, WithoutReplacement
from dpaudit.verify.upper import laplace_pure
from dpaudit.verify.upper.full_batches import THEOREM as CUT
from dpaudit.verify.upper.full_batches import kinds_of
from dpaudit.verify.upper.met_releases import REVEALED
from dpaudit.verify.upper.shift_norms import radius, sampling_is_known

PURE_THEOREM = "densities of bounded ratio: pure epsilon of each release, amplified and added up; Dwork et al. (2006)"
THEOREM = (
    "densities of bounded ratio: each release dominated by randomized response of its pure epsilon; Kairouz, Oh and "
    "Viswanath (2015), Theorem 3.2"
)
ROUNDING = 1e-12  # relative, of a pure epsilon: sums and logarithms of a few floats, and log-densities
FINEST, COARSEST = 64, 1 << 15  # places of the least pure epsilon of a history on its grid, and most of the largest
HOPELESS = 30.0  # nats of every release, of which randomized response hides nothing


def release_epsilon(mechanism: Mechanism, adjacency: Adjacency) -> float | None:
    """Pure epsilon of one release that the record enters, rounded up; None where the ratio has no known bound."""
    structure, length = mechanism.structure, radius(mechanism, 1.0, adjacency)
    if length is None:
        return None
    n, hidden = mechanism.dimension, laplace_given_gamma(structure)
    if hidden is not None and n is not None:
        found = (n + hidden.shape) * math.log1p(hidden.scale * length)
    elif isinstance(structure, LomaxCoordinates) and n is not None:
        found = n * (structure.k + 1.0) * math.log1p(structure.theta * length / n)
    elif isinstance(structure, IIDCoordinates) and structure.lipschitz is not None:
        found = structure.lipschitz * length
        if structure.log_convex and n is not None:
            here, there = structure.logpdf(np.array([0.0, length / n]))
            # the difference cancels where the shift is small, and there the Lipschitz bound is as good
            found = min(found, n * float(here - there + 2e-13 * (abs(here) + abs(there))))
    else:
        return None
    return found * (1.0 + ROUNDING)


def phase_epsilon(claim: Claim, phase: Phase) -> float | None:
    """Pure epsilon of one release of a phase, sampled as it is; None where there is none."""
    if isinstance(phase.sampler, WithoutReplacement):
        return _fixed_size_epsilon(claim, phase.mechanism, phase.sampler.prob)
    if isinstance(phase.sampler, TruncatedPoisson):  # the largest of either kind, which is told
        kinds = [phase_epsilon(one, one.phases[0]) for _, one in kinds_of(claim, phase)]
        known = [kind for kind in kinds if kind is not None]
        return max(known) if len(known) == len(kinds) else None
    found = release_epsilon(phase.mechanism, claim.adjacency) if sampling_is_known(phase) else None
    if found is None or phase.sampling_prob == 1:
        return found
    return laplace_pure.amplified(found, phase.sampling_prob) * (1.0 + ROUNDING)


def _fixed_size_epsilon(claim: Claim, mechanism: Mechanism, rate: float) -> float | None:
    """Of one batch of fixed size; the record is replaced, or a ghost takes its place."""
    found = release_epsilon(mechanism, claim.adjacency)
    if found is None:
        return None
    if claim.adjacency == "replace-one":
        return laplace_pure.amplified(found, rate) * (1.0 + ROUNDING)
    if found <= 1.0:
        gained = rate * math.exp(found) * math.expm1(found) / (1.0 + rate * math.expm1(found))
        return math.log1p(gained) * (1.0 + ROUNDING)
    twice, once = (laplace_pure.amplified(times * found, rate) for times in (2.0, 1.0))
    return (twice - once) * (1.0 + ROUNDING) + 4e-16 * twice


def phase_releases(claim: Claim, phase: Phase) -> list[tuple[float, int]] | None:
    """Pure epsilons of the releases of a phase, and how many there are of each; None where one has none."""
    sampler = phase.sampler
    twice = any(p.sampler is not None and p.sampler.meets_twice for p in claim.phases)
    if not isinstance(sampler, Shuffled | BufferedShuffle) or not twice:
        found = phase_epsilon(claim, phase)
        return None if found is None else [(found, phase.steps)]
    once = release_epsilon(phase.mechanism, claim.adjacency)
    if once is None:
        return None
    if isinstance(sampler, BufferedShuffle) and sampler.passes is None:
        return [(once * sum(times * count for times, count in sampler.worst_meetings), 1)]
    return [(times * once, count) for times, count in sampler.worst_meetings]


def pure_epsilon(claim: Claim) -> float:
    """Pure epsilon of a history at delta = 0, rounded up; inf where a release has none."""
    if laplace_pure.applies(claim):
        return laplace_pure.pure_epsilon(claim)
    found = [phase_releases(claim, phase) for phase in claim.phases]
    if None in found:
        return math.inf
    return sum(steps * one for parts in found for one, steps in parts or ()) * (1.0 + ROUNDING)


def applies(claim: Claim) -> bool:
    """Densities of bounded ratio in every phase whose sampling is covered; not Laplace noise alone."""
    return not laplace_pure.applies(claim) and all(phase_releases(claim, phase) is not None for phase in claim.phases)


def bound(claim: Claim) -> Curve:
    """Upper bound on delta(epsilon): randomized response, composed, and 0 from the pure epsilon on.

    Raises:
        ValueError: `applies(claim)` is false.
    """
    if not applies(claim):
        raise ValueError(f"Expected claim {claim.id!r} to have noise of a known bounded ratio in every phase.")
    releases = [part for phase in claim.phases for part in phase_releases(claim, phase) or ()]
    revealed = any(isinstance(phase.sampler, Shuffled | BufferedShuffle) for phase in claim.phases)
    cut = any(isinstance(phase.sampler, TruncatedPoisson) for phase in claim.phases)
    shown = (f"{REVEALED}; " if revealed else "") + (f"{CUT}; " if cut else "")
    return responses_curve(claim, releases, shown + THEOREM, shown + PURE_THEOREM)


def responses_curve(claim: Claim, releases: list[tuple[float, int]], theorem: str, pure_theorem: str) -> Curve:
    """Upper bound on delta(epsilon) of releases that cost at most randomized response.

    Args:
        claim: Which theorem is named depends on where it lies.
        releases: The pure epsilon of one, and how many of it there are.
        theorem: Of the responses.
        pure_theorem: Of the pure epsilons.
    """
    pure = sum(steps * one for one, steps in releases) * (1.0 + ROUNDING)
    costly = [(one, steps) for one, steps in releases if one > 0]
    upper: Function = np.ones_like
    if costly and min(one for one, _ in costly) < HOPELESS:
        upper = _responses(costly).delta
    return laplace_pure.ended(claim, pure, upper, ("pld", theorem), pure_theorem)


def _responses(releases: list[tuple[float, int]]) -> Composed:
    """The privacy loss of randomized responses, each epsilon rounded up to the grid."""
    least, largest = min(one for one, _ in releases), max(one for one, _ in releases)
    step = max(least if least == largest else max(least / FINEST, largest / COARSEST), LEAST_STEP)
    parts = []
    for one, steps in releases:
        place = max(1, math.ceil(one / step * (1.0 - 1e-15)))
        place += place * step < one
        masses = np.zeros(2 * place + 1)
        masses[0], masses[-1] = (1.0 / (1.0 + math.exp(min(sign * place * step, 700.0))) for sign in (1, -1))
        parts.append((Lattice(masses * (1.0 + 1e-14), -place), steps))
    return Composed(parts, step, 0.0, 0.0)
