"""Matrix products of many models at once, in full float32.

On a CPU not made by Intel they go through oneDNN where torch was built with it: its kernels follow the processor's
instruction set, while MKL's leave half the speed of AVX-512 unused there. On Intel's own MKL is the faster one by a
third where the factors are as narrow as a layer. Rounding inputs to bfloat16 or
TF32 would be faster still, but then a clipped gradient could exceed its clip.
"""

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag, pad

# batches are padded to multiples of this, so that few shapes occur and each kernel is prepared once
BATCH_MULTIPLE = 16
NARROW = 4  # for so few outputs records are read where they are, which takes a third of the time of copying them
FEW_OUTPUTS = 8  # so narrow weights are faster as MKL's first factor, by a factor of 4 for two classes

_CPU: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict[str, Any])()  # torch 2.10 and later
ONE_DNN: Any = (
    getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    if torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    else None
)
_LINEAR = None if "Intel" in _CPU.get("cpu_name", "") else ONE_DNN


class Buffers:
    """Memory by name, memory between steps: fresh pages for megabytes at a time cost more than the arithmetic."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._kept: dict[str, Tensor] = {}

    def __call__(self, name: str, *shape: int) -> Tensor:
        """A contiguous float32 tensor of this shape; what it holds is left from its last use."""
        size = math.prod(shape)
        memory = self._kept.get(name)
        if memory is None or memory.numel() < size:
            memory = self._kept[name] = torch.empty(size, device=self._device)
        return memory[:size].view(shape)


class OwnRecords:
    """Each model's own records out of all, copied out when they are asked for.

    The copy of one model's records stays in cache until it is used, those of all models would not: so each product
    copies again, which costs less than to fetch what was copied before.

    Args:
        rows: Indices, shape (models, records), padded with any record.
        keep: 0 for padding, of the same shape.
        buffers: Hold the copy.
    """

    def __init__(self, rows: Tensor, keep: Tensor, buffers: Buffers) -> None:
        self.all, self.keep, self._buffers = rows, keep, buffers

    @cached_property
    def sizes(self) -> list[int]:
        """How many records each model needs, padding to full multiples of BATCH_MULTIPLE included."""
        return [-(-size // BATCH_MULTIPLE) * BATCH_MULTIPLE for size in self.keep.count_nonzero(1).tolist()]

    @cached_property
    def _rows(self) -> list[Tensor]:
        return [row[:size] for row, size in zip(self.all.unbind(), self.sizes, strict=True)]

    def of(self, x: Tensor, model: int) -> Tensor:
        """Those of one model, shape (its size, inputs); the next call overwrites them."""
        copy = self._buffers("own records", self.sizes[model], x.shape[1])
        return torch.index_select(x, 0, self._rows[model], out=copy)

    def of_all(self, x: Tensor) -> Tensor:
        """Those of all models, padding included, shape (models, records, inputs); the next call overwrites them."""
        copy = self._buffers("own records", self.all.numel(), x.shape[1])
        return torch.index_select(x, 0, self.all.flatten(), out=copy).view(*self.all.shape, -1)


@contextmanager
def full_float32() -> Iterator[None]:
    """Inside, products and convolutions are in full float32 and by one algorithm, whatever the caller allows elsewhere.

    Since 2.9 torch has newer names for what is allowed. Where a caller has used them, the older ones fail.
    """
    cudnn = torch.backends.cudnn
    algorithm = cudnn.benchmark, cudnn.deterministic
    try:
        older = torch.get_float32_matmul_precision(), cudnn.allow_tf32
    except RuntimeError:
        older, newer = None, _newer_names()
    try:
        cudnn.benchmark, cudnn.deterministic = False, True
        if older is None:
            for place, _ in newer:
                place.fp32_precision = "ieee"
        else:
            torch.set_float32_matmul_precision("highest")
            cudnn.allow_tf32 = False
        yield
    finally:
        cudnn.benchmark, cudnn.deterministic = algorithm
        if older is None:
            for place, before in newer:
                place.fp32_precision = before
        else:
            torch.set_float32_matmul_precision(older[0])
            cudnn.allow_tf32 = older[1]


def _newer_names() -> list[tuple[Any, str]]:
    """The kinds of products whose precision torch sets one by one, and what each is set to: "none" as all together."""
    backends: Any = torch.backends
    mkldnn, cudnn, of_all = backends.mkldnn, backends.cudnn, backends.fp32_precision
    kinds = (backends.cuda.matmul, cudnn.conv, cudnn.rnn, mkldnn.matmul, mkldnn.conv, mkldnn.rnn)
    return [(kind, "none" if kind.fp32_precision == of_all else kind.fp32_precision) for kind in kinds]


def times_transposed(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """a b^T.

    Args:
        a: Shape (m, k), rows or columns adjacent in memory.
        b: Shape (n, k), likewise.
        out: Shape (m, n): filled and returned where given.
    """
    if _LINEAR is None or a.device.type != "cpu" or not a.numel():  # of which oneDNN makes no product on some machines
        return torch.mm(a, b.T, out=out)
    product: Tensor = _LINEAR(a, b, None, "none", [], "")
    return product if out is None else out.copy_(product)


def outputs(weights: Tensor, x: Tensor, own: OwnRecords | None) -> Tensor:
    """weights x^T for every model, shape (models, outputs, records).

    Args:
        weights: Shape (models, outputs, inputs), contiguous.
        x: Records, shape (records, inputs).
        own: Which of them are whose, None: all are everyone's. The outputs of what is beyond a model's size are 0.
    """
    if own is None:
        return times_transposed(weights.flatten(0, 1), x).view(*weights.shape[:2], len(x))
    if x.device.type != "cpu":
        return torch.bmm(weights, own.of_all(x).mT)
    if weights.shape[1] <= NARROW:
        return _sampled(weights, x, own)
    out = x.new_zeros(*weights.shape[:2], max(own.sizes))
    few = _LINEAR is None and weights.shape[1] <= FEW_OUTPUTS
    for model, size in enumerate(own.sizes):
        if few:
            times_transposed(weights[model], own.of(x, model), out[model, :, :size])
        elif size:  # narrow weights are faster as the second factor, their transposition included
            out[model, :, :size] = times_transposed(own.of(x, model), weights[model]).T
    return out


def gradients(deltas: Tensor, x: Tensor, own: OwnRecords | None) -> Tensor:
    """deltas x for every model, shape (models, outputs, inputs).

    Args:
        deltas: Shape (models, outputs, records), contiguous.
        x: As in `outputs`.
        own: As in `outputs`; the deltas of padding are 0.
    """
    if own is None:
        return times_transposed(deltas.flatten(0, 1), x.T).view(*deltas.shape[:2], x.shape[1])
    if x.device.type != "cpu":
        return torch.bmm(deltas, own.of_all(x))
    if deltas.shape[1] <= NARROW:
        index = own.all[:, None].expand_as(deltas).flatten(0, 1)
        sums = embedding_bag(index, x, per_sample_weights=deltas.flatten(0, 1), mode="sum")
        return sums.view(*deltas.shape[:2], x.shape[1])
    out = x.new_empty(*deltas.shape[:2], x.shape[1])
    for model, size in enumerate(own.sizes):
        times_transposed(deltas[model, :, :size], own.of(x, model).T, out[model])  # 0 where the size is
    return out


def _sampled(weights: Tensor, x: Tensor, own: OwnRecords) -> Tensor:
    """weights x^T where a record is the model's own, 0 elsewhere: a product of which only some entries are computed.

    They are taken record by record, so that the records pass through the cache once for all models.
    """
    models, units, _ = weights.shape
    record = own.all.where(own.keep > 0, len(x)).flatten().int()
    ends = pad(record.bincount(minlength=len(x) + 1)[:-1].cumsum(0), (1, 0))
    entry = record.argsort(stable=True)[: int(ends[-1])]
    columns = entry.div(own.all.shape[1], rounding_mode="floor")[:, None] * units + torch.arange(units)
    nothing, shape = x.new_zeros(columns.numel()), (len(x), models * units)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta|Sparse invariant checks are implicitly")
        wanted = torch.sparse_csr_tensor(ends * units, columns.flatten(), nothing, shape, check_invariants=False)
        found = torch.sparse.sampled_addmm(wanted, x, weights.flatten(0, 1).T, beta=0.0).values()
    out = x.new_zeros(own.all.numel(), units).index_copy_(0, entry, found.view(-1, units))
    return out.view(models, -1, units).mT.contiguous()
