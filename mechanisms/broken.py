"""Planted faults, as data: the positive controls of every audit."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Defect:
    """One way a training loop does something else than was accounted; all defaults mean: correct.

    Args:
        noise_factor: The noise is multiplied by this (0.5: half the noise).
        divide_before_noise: The noise of the SUM is added to the MEAN accounted as on the sum; i.e. the
            mechanism's noise is divided by the batch size once more than it should be.
        fixed_seed: Every release draws the same noise vector from this seed; None for fresh noise.
        clip_norm: Records are clipped in this l_p norm instead of the accounted one; None for the accounted one.
        unclipped_class: Records of this class are not clipped; None for no such class.
    """

    noise_factor: float = 1.0
    divide_before_noise: bool = False
    fixed_seed: int | None = None
    clip_norm: float | None = None
    unclipped_class: int | None = None
