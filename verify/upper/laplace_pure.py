"""Laplace noise under an l1 bound on the shift: pure differential privacy, and its exact curve.

|o|_1 - |o - v|_1 <= |v|_1, so a release has epsilon = radius/b at delta = 0 (Dwork, McSherry, Nissim and Smith 2006),
sampled log(1 + q (e^epsilon - 1)). For delta > 0 the pair Lap(0), Lap(s) of ONE coordinate, s = |v|_1/b, dominates:

Its profile is d_s(e) = 1 - e^((e-s)/2) for |e| <= s, 0 above, 1 - e^e below. Let two coordinates move by s_1 <= s_2 and
let 0 <= e <= s = s_1 + s_2. L_1 has P-atoms 1/2 at s_1 and e^(-s_1)/2 at -s_1 and density e^((l-s_1)/2)/4 between, and
delta(e) = E d_(s_2)(e - L_1). With c = e - s_2 the integral is 1 - e^((e-s)/2) (1 + s_1/2) if c <= -s_1, otherwise
1 - e^((e-s)/2) (1 + (s_1 - c)/4): at most d_s(e) both times. Mirror symmetry covers e < 0. So two coordinates are
dominated by one that moves by their sum, and any number of them by induction, dominance being kept by composition
(Zhu, Dong and Wang 2022, Theorem 10); unsampled releases likewise, whose shifts add up: for losses of hundreds of nats,
which no grid holds.
"""

import math
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any, cast

import numpy as np

from dpaudit.mechanisms.base import Array, Function, LaplaceCoordinates
from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.correlated.rows import adds_up, enlarged
from dpaudit.verify.curves import Curve
from dpaudit.verify.inversion import epsilon_at
from dpaudit.verify.pld.dominating_pairs import laplace_pair
from dpaudit.verify.pld.pair_curve import PairPhase, compose_pairs, directions, worst_delta
from dpaudit.verify.upper.shift_norms import exact_radius, radius, sampling_is_known

PURE_THEOREM = (
    "Dwork et al. (2006): Laplace noise with l1 sensitivity; amplified and composed as pure differential privacy"
)
EXACT_THEOREM = "Laplace shift pair in one dimension dominates any l1 shift: delta = 1 - e^((epsilon - C/b)/2)"
THEOREM = (
    "Laplace shift pair in one dimension dominates any l1 shift; sampling and composition by Zhu, Dong and Wang "
    "(2022), Theorems 10 and 11; rounded up by Doroshenko et al. (2022), Theorem 4.3"
)
LONG_SHIFT = 30.0  # under l2 clipping: Gaussian domination is far better there
LARGEST_SHIFT = 700.0  # of a pair: e^shift must be a float


def shift_over_scale(claim: Claim, phase: Phase) -> float | None:
    """Longest l1 shift over the scale, s, of a phase with Laplace noise; None for other noise or an unknown radius."""
    structure = phase.mechanism.structure
    if not isinstance(structure, LaplaceCoordinates):
        return None
    length = radius(phase.mechanism, 1.0, claim.adjacency)
    return None if length is None else length / structure.scale


def pair_phase(claim: Claim, phase: Phase) -> PairPhase | None:
    """Dominating pair of a phase with Laplace noise, None for another phase."""
    shift = shift_over_scale(claim, phase)
    if shift is None or shift > LARGEST_SHIFT or not sampling_is_known(phase):
        return None
    return PairPhase(laplace_pair(shift), phase.sampling_prob, phase.steps)


def pure_epsilon(claim: Claim) -> float:
    """Pure epsilon of a history, at delta = 0: sum of steps log(1 + q (e^s - 1)) over the phases, rounded up.

    Unsampled phases are added in fractions, every parameter read as the decimal it is written as, so that a claim of
    exactly this epsilon holds.
    """
    exact, sampled = Fraction(0), 0.0
    for phase in claim.phases:
        structure, shift = phase.mechanism.structure, shift_over_scale(claim, phase)
        if shift is None or not isinstance(structure, LaplaceCoordinates):
            return math.inf
        if phase.sampling_prob < 1:
            sampled += phase.steps * amplified(shift, phase.sampling_prob) * (1 + 1e-13)
            continue
        length = exact_radius(phase.mechanism, 1, claim.adjacency)
        assert length is not None  # there is a shift
        exact += phase.steps * length / Fraction(repr(structure.scale))
    total = float(exact)
    total = total if Fraction(repr(total)) >= exact else math.nextafter(total, math.inf)
    return math.nextafter(total + sampled, math.inf) if sampled else total


def amplified(shift: float, q: float) -> float:
    """Pure epsilon of a sampled release, log(1 + q (e^shift - 1))."""
    if shift <= LARGEST_SHIFT:
        return math.log1p(q * math.expm1(shift))
    return shift + math.log(q + (1 - q) * math.exp(-shift))


def applies(claim: Claim) -> bool:
    """Laplace noise in every phase, its l1 radius known, Poisson sampling or none."""
    return all(shift_over_scale(claim, phase) is not None and sampling_is_known(phase) for phase in claim.phases)


def bound(claim: Claim) -> Curve:
    """Upper bound on delta(epsilon): the composed pair, and 0 from the pure epsilon on.

    Raises:
        ValueError: `applies(claim)` is false.
    """
    if not applies(claim):
        raise ValueError(f"Expected claim {claim.id!r} to have Laplace noise and a known l1 radius in every phase.")
    pure = pure_epsilon(claim)
    pairs = [pair_phase(claim, phase) for phase in claim.phases]
    phases = [phase for phase in pairs if phase is not None]
    alone = [(phase.steps, phase.sampling_prob) for phase in claim.phases] == [(1, 1.0)]
    whole = partial(_profile, pure) if all(phase.sampling_prob == 1 for phase in claim.phases) else np.ones_like
    if alone or len(phases) < len(pairs) or _hopeless(claim):
        return ended(claim, pure, whole, ("exact-integral", EXACT_THEOREM) if alone else ("pld", THEOREM), PURE_THEOREM)
    composed = partial(worst_delta, compose_pairs(phases, directions(claim), claim.least_delta))
    return ended(claim, pure, lambda e: np.minimum(composed(e), whole(e)), ("pld", THEOREM), PURE_THEOREM)


def ended(claim: Claim, pure: float, upper: Function, named: tuple[str, str], pure_theorem: str) -> Curve:
    """An upper bound on delta(epsilon) that is 0 from a pure epsilon on.

    Args:
        claim: Which theorem is named depends on where it lies.
        pure: The pure epsilon, rounded up.
        upper: A bound below it.
        named: That bound's method and theorem.
        pure_theorem: Of the pure epsilon.
    """

    def delta(epsilon: Array) -> Array:
        return np.where(epsilon >= pure, 0.0, upper(epsilon))

    def epsilon(delta_wanted: Array) -> Array:
        return np.minimum(epsilon_at(upper, delta_wanted), pure)

    method, theorem = ("pure", pure_theorem) if claim.epsilon >= pure or claim.delta == 0 else named
    return Curve("upper", method, theorem, delta, epsilon)


def clipped_in_l1(claim: Claim) -> Claim | None:
    """The claim with all correlated Laplace noise clipped in the l1 norm, within which its own clip lies.

    Under such a clip the rows that a record moves cost no more than what moves as much (`correlated.rows`).

    Returns:
        None where no phase has such noise under another norm.
    """
    phases = [_clipped_in_l1(phase) for phase in claim.phases]
    same = all(found is phase for found, phase in zip(phases, claim.phases, strict=True))
    return None if same else replace(claim, phases=phases)


def _clipped_in_l1(phase: Phase) -> Phase:
    noise, length = phase.mechanism, radius(phase.mechanism, 1.0, "add-remove")
    laplace = isinstance(noise.structure, LaplaceCoordinates)
    if phase.correlation is None or length is None or not laplace or adds_up(noise):
        return phase
    within = enlarged(replace(cast(Any, noise), clip_norm=1.0), length / float(noise.clip) * (1 + 1e-15))
    return phase if within is None else replace(phase, mechanism=within)


def _hopeless(claim: Claim) -> bool:
    """Whether the l1 radius is so much longer than the l2 radius that only delta = 0 is left to this theorem."""
    shifts = [shift_over_scale(claim, phase) or 0.0 for phase in claim.phases]
    clipped = all(phase.mechanism.clip_norm >= 2 for phase in claim.phases)
    return claim.adjacency == "add-remove" and clipped and min(shifts) > LONG_SHIFT


def _profile(shift: float, epsilon: Array) -> Array:
    """d_s(epsilon) = (1 - e^((epsilon-s)/2))_+ of one unsampled release, s = shift, rounded up."""
    return np.asarray(-np.expm1(np.minimum((epsilon - shift * (1 + 1e-15)) / 2, 0.0)) * (1 + 1e-14))
