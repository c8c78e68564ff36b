"""Planted faults, as data: the positive controls of every audit."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dpaudit.mechanisms.base import CLIP_NORM, Array, Domain, Mechanism, keep_as_python_numbers, with_dimension
from dpaudit.mechanisms.clipping import clip_records

_FACTOR = Domain(0.0, math.inf, (0.1, 1.0), "multiples of the accounted noise", closed_low=True)


@dataclass(frozen=True)
class Defect:
    """One way in which a release does something else than was accounted. With every default it is correct.

    Args:
        noise_factor: The noise is multiplied by this number, in [0, inf); 0.5 is half the noise, 0 none.
        divide_before_noise: The sum is divided by the batch size first, and noise accounted as if it went on the sum
            is sized for the mean. In effect the noise on the sum is too small by a factor of the batch size.
        fixed_seed: Every release draws the same noise vector, from this seed. None for fresh noise.
        clip_norm: Records are clipped in this l_p norm, p in [1, inf], and not in the accounted one. None for the
            accounted one.
        unclipped_class: Records with this label are not clipped. None if all are.

    Raises:
        ValueError: noise_factor or clip_norm is outside its domain.
    """

    noise_factor: float = 1.0
    divide_before_noise: bool = False
    fixed_seed: int | None = None
    clip_norm: float | None = None
    unclipped_class: int | None = None

    def __post_init__(self) -> None:
        keep_as_python_numbers(self)
        _FACTOR.validate("noise_factor", self.noise_factor)
        if self.clip_norm is not None:
            CLIP_NORM.validate("clip_norm", self.clip_norm)

    def noise_scale(self, batch_size: float) -> float:
        """What noise on the sum is multiplied by: `noise_factor`, over the batch size if noise is sized for the mean.

        >>> Defect(divide_before_noise=True).noise_scale(8)
        0.125
        """
        return self.noise_factor / (batch_size if self.divide_before_noise else 1)

    def clipping_norm(self, accounted: float) -> float:
        """The p of the l_p norm in which records are really clipped, where `accounted` is the mechanism's."""
        return float(accounted if self.clip_norm is None else self.clip_norm)

    def clip(self, records: ArrayLike, labels: ArrayLike, clip: float, order: float) -> Array:
        """The records as they really enter the sum, scaled to l_p norm at most `clip` where nothing is wrong.

        Args:
            records: Finite, shape (n, d).
            labels: Class of each record, shape (n,).
            clip: Bound on the norm, in (0, inf).
            order: p of the accounted norm, in [1, inf].

        Returns:
            float64, shape (n, d).

        Raises:
            ValueError: A parameter is outside its domain, `records` holds NaN or infinity, or labels do not fit them.
        """
        clipped, classes = clip_records(records, clip, self.clipping_norm(order)), np.asarray(labels)
        if classes.shape != (len(clipped),):
            raise ValueError(f"Expected labels.shape={classes.shape} to be ({len(clipped)},), one for every record.")
        if self.unclipped_class is not None:
            exempt = classes == self.unclipped_class
            clipped[exempt] = np.asarray(records)[exempt]
        return clipped


CORRECT = Defect()

DEFECTS: dict[str, Defect] = {
    "half-noise": Defect(noise_factor=0.5),
    "noise-for-the-mean-on-the-sum": Defect(divide_before_noise=True),
    "fixed-seed": Defect(fixed_seed=20_240_229),
    "clipped-in-another-norm": Defect(clip_norm=math.inf),
    "one-class-unclipped": Defect(unclipped_class=1),
}


def release(
    mechanism: Mechanism, defect: Defect, records: ArrayLike, labels: ArrayLike, rng: np.random.Generator
) -> Array:
    """One noisy sum of clipped records, sum_i min(1, clip/|x_i|_p) x_i + z, with a planted fault.

    Args:
        mechanism: Noise and clipping as accounted; its dimension is d, or None.
        defect: The fault; `CORRECT` for none.
        records: Finite contributions, shape (n, d).
        labels: Class of each record, shape (n,).
        rng: Where the noise comes from, unless the fault is a fixed seed.

    Returns:
        Shape (d,).

    Raises:
        ValueError: The shapes do not fit each other or the mechanism, or `records` holds NaN or infinity.

    >>> from dpaudit.mechanisms import Laplace
    >>> noiseless = Defect(noise_factor=0.0, unclipped_class=1)
    >>> release(Laplace(scale=1.0), noiseless, [[9.0, 0.0], [0.0, 9.0]], [0, 1], np.random.default_rng(1)).round(9)
    array([1., 9.])
    """
    clipped = defect.clip(records, labels, mechanism.clip, mechanism.clip_norm)
    n, d = clipped.shape
    if mechanism.dimension not in (None, d):
        raise ValueError(f"Expected records.shape={(n, d)} to be (n, {mechanism.dimension}), as the mechanism says.")
    source = rng if defect.fixed_seed is None else np.random.default_rng(defect.fixed_seed)
    noise = with_dimension(mechanism, d).sample(source, 1)[0] * defect.noise_scale(max(n, 1))
    return np.asarray(clipped.sum(axis=0) + noise)
