"""Why a claim is undecided, as far as whoever states it can change that: the parameter first, theorems after it."""

from dpaudit.mechanisms.base import IIDCoordinates, LaplaceCoordinates, NormalCoordinates
from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.samplers import SAMPLERS, BufferedShuffle
from dpaudit.verify.upper.shift_norms import sampling_is_known

DEFAULT_NORM = 2.0
COVERED = "only normal noise, and a pure epsilon, have bounds from above"


def first_cause(claim: Claim) -> str:
    """What to change or to add in a claim that nothing decides, one sentence; "" if it is not the claim's fault.

    >>> from dpaudit.mechanisms import Laplace
    >>> first_cause(Claim.single(Laplace(1.0), epsilon=1.0, delta=0.0))
    'With clip_norm=2, its default, Laplace noise has no pure epsilon in every dimension; clip_norm=1 has.'
    """
    causes = [cause for phase in claim.phases for cause in (_of_sampling(phase), _of_noise(claim, phase)) if cause]
    return causes[0] if causes else ""


def _of_sampling(phase: Phase) -> str:
    if isinstance(phase.sampler, BufferedShuffle) and phase.sampler.passes is None:
        normal = isinstance(phase.mechanism.structure, NormalCoordinates)
        return "" if normal else f"Of a stream through a buffer {COVERED}: empty it in every pass."
    if phase.sampler is not None or sampling_is_known(phase) or phase.correlation is not None:
        return ""
    kind = phase.sampling_kind
    if kind in SAMPLERS:
        return f"A rate alone does not say how sampling kind={kind!r} cuts batches: give its keys."
    return ""


def _of_noise(claim: Claim, phase: Phase) -> str:
    mechanism = phase.mechanism
    structure, dimension = mechanism.structure, mechanism.dimension
    if isinstance(structure, NormalCoordinates) and claim.delta == 0:
        return "With delta=0 no epsilon is enough: normal noise has no pure epsilon. Claim one at a delta above 0."
    if isinstance(structure, LaplaceCoordinates) and mechanism.clip_norm > 1 and dimension != 1:
        norm = f"{mechanism.clip_norm:g}{', its default,' if mechanism.clip_norm == DEFAULT_NORM else ''}"
        if claim.delta == 0:
            return f"With clip_norm={norm} Laplace noise has no pure epsilon in every dimension; clip_norm=1 has."
    if dimension is None and mechanism.clip_norm > 2:
        return f"With clip_norm={mechanism.clip_norm:g} the noise needs its dimension: set it."
    if dimension is None and not isinstance(structure, IIDCoordinates):
        return "The dimension is not set, and no theorem here covers this noise in every dimension: set it."
    return ""
