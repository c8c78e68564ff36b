"""Gradient canaries: records that each have one given gradient, and what an observer of every step sees of them.

The gradient of canary j is a single number, as long as clipping allows, at a place of its own among the weights,
whatever the weights are (a "Dirac" canary, Nasr et al. 2023). It adds clip there to the sum of every batch that its
record is in. An observer who knows the other records knows their clipped gradients at the weights released so far, and
subtracts their sum: what is left of a step at that place is clip, if the canary was in the batch, plus the noise.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpaudit.mechanisms.learning.architectures import parameter_shapes, weight_count
from dpaudit.mechanisms.learning.noise import Streams
from dpaudit.mechanisms.learning.spec import DPSGDSpec, GradientSpec, Pool, TrainingSpec


def check(spec: TrainingSpec) -> None:
    """Refuse canaries in a training that has no hook for them.

    Raises:
        ValueError: Batches are drawn by a sampler, or the network has fewer weights than canaries.
    """
    if not isinstance(spec, DPSGDSpec) or spec.gradient_canaries == 0:
        return
    if spec.sampler is not None:
        raise ValueError("Expected gradient_canaries with Poisson batches: those of a sampler hang together.")
    weights = weight_count(spec.architecture)
    if not 1 <= spec.gradient_canaries <= weights:
        raise ValueError(f"Expected gradient_canaries={spec.gradient_canaries} in [0, {weights}], the weights.")


def split(
    spec: GradientSpec, pool: Pool, members: NDArray[np.bool_]
) -> tuple[Pool, NDArray[np.bool_], NDArray[np.bool_] | None]:
    """The pool and its members without the canaries, which are its last records; and which canaries train which model.

    Args:
        spec: Holds how many canaries there are.
        pool: Records, then canaries: their x and y are not used.
        members: Who trains which model, shape (models, records + canaries).

    Returns:
        The third is bool, shape (models, canaries), or None where the spec has no canaries.
    """
    count = spec.gradient_canaries if isinstance(spec, DPSGDSpec) else 0
    if not count:
        return pool, members, None
    return replace(pool, x=pool.x[:-count], y=pool.y[:-count]), members[:, :-count], members[:, -count:]


class GradientCanaries:
    """The canaries of a group of models in training.

    Args:
        spec: Of the training.
        included: Which canaries train which model, shape (models, canaries).
        streams: Of the models: a canary's sampling is drawn after that of the records.
    """

    def __init__(self, spec: DPSGDSpec, included: NDArray[np.bool_], streams: Sequence[Streams]) -> None:
        self._spec, self._streams = spec, streams
        self._included = torch.from_numpy(np.array(included))
        self._steps: list[Tensor] = []
        canaries = included.shape[1]
        # spread over all weights, for layers may go wrong one by one
        at = torch.arange(canaries) * weight_count(spec.architecture) // canaries
        # for every tensor of weights which canaries are in it, where there, and where among all parameters
        self._places: list[tuple[Tensor, tuple[slice[Any, Any, Any] | Tensor, ...], Tensor]] = []
        first = flat = 0
        for shape in parameter_shapes(spec.architecture).values():
            size = math.prod(shape)
            if len(shape) > 1:
                chosen = (at >= first) & (at < first + size)
                local = at[chosen] - first
                self._places.append((chosen, (slice(None), *torch.unravel_index(local, shape)), flat + local))
                first += size
            flat += size

    def enter(self, sums: Sequence[Tensor], noise: Tensor, *, clip: float, noise_scale: float = 1.0) -> None:
        """Add the sampled canaries to the sums of one step, and keep what its release shows of all.

        Args:
            sums: Of the clipped gradients, (models, *shape) for every parameter of two or more dimensions in torch's
                order, changed in place.
            noise: Of the step before scaling, in torch's parameter order, shape (models, parameters).
            clip: Of the step.
            noise_scale: What the noise is multiplied by.
        """
        entering = clip * self._sample().float()
        seen = torch.empty_like(entering)
        for total, (chosen, at, flat) in zip(sums, self._places, strict=True):
            known = total[at].clone()
            total[at] += entering[:, chosen].to(total.device)
            seen[:, chosen] = (total[at] + noise_scale * noise[:, flat] - known).cpu()
        self._steps.append(seen)

    def _sample(self) -> Tensor:
        """Which canaries are in this step's batches: each with probability q, by a coin of its own."""
        q = self._spec.sampling_prob
        if q == 1:
            return self._included
        coins = [
            torch.rand(self._included.shape[1], generator=stream.sampling, device=stream.sampling.device).cpu()
            for stream in self._streams
        ]
        return self._included & (torch.stack(coins) < q)

    @property
    def observed(self) -> Tensor:
        """What the releases showed of the canaries, shape (models, steps, canaries)."""
        return torch.stack(self._steps, dim=1)
