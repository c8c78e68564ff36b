"""Very many claims on Gaussian noise, as columns of numbers."""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.mechanisms.base import Array
from dpaudit.mechanisms.quoting import shown
from dpaudit.verify.claims import SAMPLING_PROB, STEPS
from dpaudit.verify.guarantees import DELTA, EPSILON


@dataclass(frozen=True)
class ClaimColumns:
    """Claims on Gaussian noise as columns of one length.

    Args:
        ids: Names, shape (n,).
        noise_multiplier: Sigma over the longest shift, in (0, inf).
        sampling_prob: Poisson rate in [1e-300, 1]; 1 is none.
        steps: Releases, whole numbers in [1, 1e12).
        delta: In [0, 1).
        epsilon: Finite, at least 0.

    Raises:
        ValueError: A column has another length or a value outside its domain; the message names the first one.
    """

    ids: NDArray[Any]
    noise_multiplier: Array
    sampling_prob: Array
    steps: Array
    delta: Array
    epsilon: Array

    def __post_init__(self) -> None:
        for field in fields(self)[1:]:  # of float32 the margins of the screens would be rounded away
            object.__setattr__(self, field.name, np.asarray(getattr(self, field.name), np.float64))
        inside = {
            "noise_multiplier": ("(0, inf)", (self.noise_multiplier > 0) & (self.noise_multiplier < np.inf)),
            "sampling_prob": (SAMPLING_PROB, (self.sampling_prob >= SAMPLING_PROB.low) & (self.sampling_prob <= 1)),
            "steps": (STEPS, (self.steps >= 1) & (self.steps < STEPS.high) & (self.steps == np.floor(self.steps))),
            "delta": (DELTA, (self.delta >= 0) & (self.delta < 1)),
            "epsilon": (EPSILON, (self.epsilon >= 0) & (self.epsilon < np.inf)),
        }
        for name, (domain, good) in inside.items():
            if good.shape != self.ids.shape:
                raise ValueError(
                    f"Expected {name} of shape {good.shape} to have one value for each of {len(self)} ids."
                )
            if not good.all():
                i = int(np.argmin(good))
                raise ValueError(
                    f"claim {shown(str(self.ids[i]))}: Expected {name}={getattr(self, name)[i]:g} in {domain}."
                )

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: NDArray[np.intp] | slice) -> "ClaimColumns":
        """Some of the claims, in the order of `rows`."""
        return ClaimColumns(*(getattr(self, field.name)[rows] for field in fields(self)))
