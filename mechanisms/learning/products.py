"""Matrix products of many models at once, in full float32.

On a CPU they go through oneDNN where torch was built with it: its kernels follow the processor's instruction set,
while MKL's leave half the speed of AVX-512 unused on processors not made by Intel. Rounding inputs to bfloat16 or
TF32 would be faster still, but then a clipped gradient could exceed its clip.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

BATCH_MULTIPLE = (
    16  # batches are padded to multiples of this, so that few shapes occur and each kernel is prepared once
)


_ONE_DNN = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
_LINEAR: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if _ONE_DNN else None


class Buffers:
    """Memory by name, memory between steps: fresh pages for megabytes at a time cost more than the arithmetic."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._kept: dict[str, Tensor] = {}

    def __call__(self, name: str, *shape: int) -> Tensor:
        """A contiguous float32 tensor of this shape; what it holds is left from its last use."""
        size = math.prod(shape)
        memory = self._kept.get(name)
        if memory is None or len(memory) < size:
            memory = self._kept[name] = torch.empty(size, device=self._device)
        return memory[:size].view(shape)


@contextmanager
def full_float32() -> Iterator[None]:
    """Inside, float32 products are computed in float32, whatever the caller allows elsewhere."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def times_transposed(a: Tensor, b: Tensor) -> Tensor:
    """a b^T.

    Args:
        a: Shape (m, k), rows or columns adjacent in memory.
        b: Shape (n, k), likewise.
    """
    if _LINEAR is None or a.device.type != "cpu":
        return a @ b.T
    product: Tensor = _LINEAR(a, b, None, "none", [], "")
    return product


def outputs(weights: Tensor, x: Tensor, sizes: Sequence[int] | None) -> Tensor:
    """weights x^T for every model, shape (models, outputs, records).

    Args:
        weights: Shape (models, outputs, inputs), contiguous.
        x: Records of all models, shape (records, inputs), or each model's own, (models, records, inputs).
        sizes: How many records are real in each model, where each has its own; the outputs of the others are 0.
    """
    if sizes is None:
        return times_transposed(weights.flatten(0, 1), x).view(*weights.shape[:2], len(x))
    if x.device.type != "cpu":
        return torch.bmm(weights, x.mT)
    out = x.new_empty(*weights.shape[:2], x.shape[1])
    for model, size in enumerate(sizes):
        if size:  # narrow weights are faster as the second factor, their transposition included
            out[model, :, :size] = times_transposed(x[model, :size], weights[model]).T
        out[model, :, size:] = 0
    return out


def gradients(deltas: Tensor, x: Tensor, sizes: Sequence[int] | None) -> Tensor:
    """deltas x for every model, shape (models, outputs, inputs).

    Args:
        deltas: Shape (models, outputs, records), contiguous.
        x: As in `outputs`.
        sizes: As in `outputs`; the deltas of records that are not real are 0.
    """
    if sizes is None:
        return times_transposed(deltas.flatten(0, 1), x.T).view(*deltas.shape[:2], x.shape[1])
    if x.device.type != "cpu":
        return torch.bmm(deltas, x)
    out = x.new_empty(*deltas.shape[:2], x.shape[2])
    for model, size in enumerate(sizes):
        out[model] = times_transposed(deltas[model, :, :size], x[model, :size].T) if size else 0
    return out
