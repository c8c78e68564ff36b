"""Planted faults, as data: the positive controls of every audit.

One `release` in NumPy and the training step apply the same faults, so that a detector is tried on both.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpaudit.mechanisms.base import Array, Mechanism
from dpaudit.mechanisms.clipping import clip_records


@dataclass(frozen=True)
class Defect:
    """One way a release differs from what was accounted; all defaults together mean: correct.

    Args:
        noise_factor: The noise is multiplied by this; 0.5 is half the noise.
        divide_before_noise: Noise of the size meant for the mean is added to the sum: the noise is divided by the
            public batch size before it is added.
        fixed_seed: Every release draws the same noise vector, from this seed; None for fresh noise.
        clip_norm: Records are clipped in this l_p norm instead of the accounted one; None for the accounted one.
        unclipped_class: Records of this class are not clipped; None for no such class.
    """

    noise_factor: float = 1.0
    divide_before_noise: bool = False
    fixed_seed: int | None = None
    clip_norm: float | None = None
    unclipped_class: int | None = None


CORRECT = Defect()
DEFECTS: dict[str, Defect] = {
    "half-noise": Defect(noise_factor=0.5),
    "noise-of-the-mean": Defect(divide_before_noise=True),
    "fixed-seed": Defect(fixed_seed=0),
    "clipped-in-another-norm": Defect(clip_norm=float("inf")),
    "one-class-unclipped": Defect(unclipped_class=1),
}


def release(
    mechanism: Mechanism, defect: Defect, records: Array, labels: NDArray[np.int64], rng: np.random.Generator
) -> Array:
    """One noisy sum of clipped records, with the defect applied.

    Args:
        mechanism: What the release is accounted as.
        defect: What is done instead; `CORRECT` for nothing.
        records: Contributions, shape (n, dimension).
        labels: Class of each record, shape (n,).
        rng: Source of the noise.

    Returns:
        Vector of shape (dimension,).
    """
    order = mechanism.clip_norm if defect.clip_norm is None else defect.clip_norm
    clipped = clip_records(records, mechanism.clip, order)
    if defect.unclipped_class is not None:
        exempt = labels == defect.unclipped_class
        clipped[exempt] = np.asarray(records)[exempt]
    source = rng if defect.fixed_seed is None else np.random.default_rng(defect.fixed_seed)
    noise = defect.noise_factor * mechanism.sample(source, 1)[0]
    if defect.divide_before_noise:
        noise = noise / len(records)
    return np.asarray(clipped.sum(axis=0) + noise)
