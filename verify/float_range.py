"""Claims whose lengths floating point does not reach: their verdict is said to be out of reach, never computed."""

import numpy as np

from dpaudit.mechanisms.base import Array, Mechanism, Radial, ScaleMixture
from dpaudit.verify.claims import Claim

# of noise and clip: squares stay in the range of floats, and points around a shift as far apart as the noise is wide
LEAST_RATIO, LARGEST_RATIO = 1e-12, 1e140
LEAST_LENGTH, LARGEST_LENGTH = 1e-305, 1e290  # of both: beyond, floats lose digits, or their sums are infinite


def require_length(name: str, length: float) -> None:
    """Refuse a length that floating point does not reach.

    Raises:
        ValueError: Not between the least and the largest.
    """
    if not LEAST_LENGTH <= length <= LARGEST_LENGTH:
        raise ValueError(
            f"Expected {name}={length!r} in [{LEAST_LENGTH:g}, {LARGEST_LENGTH:g}]: floating point reaches no further, "
            "and another unit says the same."
        )


def beyond_floats(claim: Claim) -> str:
    """Why a claim's noise is out of the reach of floating point, "" if it is not."""
    for phase in claim.phases:
        with np.errstate(all="ignore"):
            noise, clip = _noise_sizes(phase.mechanism), float(phase.mechanism.clip)
            sizes = noise / clip
        if not (np.isfinite(sizes).all() and (sizes > LEAST_RATIO).all() and (sizes < LARGEST_RATIO).all()):
            return (
                f"the noise of {phase.mechanism.name} is {np.min(sizes):.3g} to {np.max(sizes):.3g} times the clip; "
                f"what is not between {LEAST_RATIO:g} and {LARGEST_RATIO:g} is out of reach of floating point"
            )
        if min(clip, noise.min()) < LEAST_LENGTH or max(clip, noise.max()) > LARGEST_LENGTH:
            return (
                f"the clip of {phase.mechanism.name} is {clip:.3g} and its noise {noise.min():.3g} to "
                f"{noise.max():.3g}; lengths that are not between {LEAST_LENGTH:g} and {LARGEST_LENGTH:g} are out of "
                "reach of floating point, and another unit says the same"
            )
    return ""


def _noise_sizes(mechanism: Mechanism) -> Array:
    """Ordinary sizes of the noise, and rare ones where a law of them is integrated."""
    structure = mechanism.structure
    if isinstance(structure, Radial):
        return structure.radius_ppf(np.array([1e-3, 1.0 - 1e-9]))
    if isinstance(structure, ScaleMixture):
        return 1.0 / structure.scale_ppf(np.array([1e-9, 1.0 - 1e-9]))
    return -structure.ppf(np.array([0.25]))
