"""DP-SGD of many networks of linear layers at once, without autograd and without per-record gradients.

The gradient of one record in a linear layer is an outer product, delta x input^T (the input with a 1 appended for the
bias), whose l_p norm is |delta|_p |input|_p for every p in [1, inf]; layers add in p-th powers (Goodfellow (2015),
"Efficient Per-Example Gradient Computations", for p = 2). So norms come from vectors, and the sum of the clipped
gradients is one product of matrices, with every delta scaled by its record's clip factor.

Arrays of activations are (model, unit, record): all sums over units then run along adjacent records.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpaudit.mechanisms.broken import Defect
from dpaudit.mechanisms.learning import products
from dpaudit.mechanisms.learning.architectures import dense_layers, parameter_shapes
from dpaudit.mechanisms.learning.noise import Streams, draw
from dpaudit.mechanisms.learning.spec import Ledger, Pool, Progress, TrainedModels, TrainingSpec

RECORDS = {"cpu": 1024, "cuda": 16384}  # records at a time
NUMBERS = {"cpu": 2**17, "cuda": 2**26}  # activations of one layer at a time, over all models of a group: half an L2
GATHER_BELOW = 0.6  # a batch of less than this part of the records is copied out; else the others are multiplied by 0


@dataclass(frozen=True)
class _Plan:
    """What all groups share: the records that anyone trains on, the layers, the clipping as it is really done."""

    spec: TrainingSpec
    layers: list[tuple[int, int]]
    bias: bool
    x: Tensor  # (records, inputs), a 1 appended where there is a bias
    y: Tensor
    x_norms: Tensor  # of the rows of x, in the clipping norm
    exempt: Tensor | None  # records left unclipped
    rows: Tensor  # their places in the pool
    pool_size: int
    everyone: bool  # all models train on all records
    gather: bool
    clip: float
    order: float
    noise_factor: float
    fixed_seed: int | None
    buffers: products.Buffers

    @property
    def device(self) -> torch.device:
        return self.x.device


@dataclass(frozen=True)
class _Chunk:
    """Some records of the batch of every model of a group."""

    x: Tensor  # (records, inputs), or (models, records, inputs) with sizes
    y: Tensor  # (1 or models, 1, records)
    x_norms: Tensor  # (1 or models, records)
    exempt: Tensor | None
    keep: Tensor | None  # (models, records): 1 in the batch, 0 not; None if all are
    sizes: list[int] | None


def lp_norm(values: Tensor, order: float, dim: int) -> Tensor:
    """(sum |v|^p)^(1/p) along one dimension, without underflow at large p.

    Args:
        values: Any shape.
        order: p in [1, inf].
        dim: The dimension that is summed.
    """
    if order == 2:
        return values.square().sum(dim).sqrt_()
    if order == 1:
        return values.abs().sum(dim)
    largest = values.abs().amax(dim)
    if math.isinf(order):
        return largest
    unit = values.abs().div_(largest.clamp_min(torch.finfo(values.dtype).tiny).unsqueeze(dim))
    return largest * unit.pow_(order).sum(dim).pow_(1 / order)


def train(
    spec: TrainingSpec,
    pool: Pool,
    members: NDArray[np.bool_],
    seeds: Sequence[int],
    *,
    device: str = "cpu",
    progress: Progress | None = None,
) -> TrainedModels:
    """Train softmax regressions or two-layer networks by DP-SGD, in groups that fit the cache.

    Every step: w <- w - learning_rate / expected_batch_size * (clipped sum + noise), with heavy-ball momentum. A
    model's sampling and noise depend on its seed alone; its rounding, besides, on the models trained with it.

    Args:
        spec: What to train; its architecture is "linear" or "fnn".
        pool: Records with labels.
        members: Who trains which model, shape (models, records).
        seeds: One nonnegative integer per model.
        device: "cpu" or "cuda".
        progress: Called with the number of models after every step of a group.

    Raises:
        ValueError: A record's norm is not finite.
    """
    with torch.no_grad(), products.full_float32():
        plan = _plan(spec, pool, members, torch.device(device))
        shapes = parameter_shapes(spec.architecture)
        trained = {name: torch.empty(len(seeds), *shape) for name, shape in shapes.items()}
        batch_sizes: tuple[int, ...] = ()
        size = _group_size(plan)
        for start in range(0, len(seeds), size):
            group = slice(start, start + size)
            inside = None if plan.everyone else torch.from_numpy(members[group][:, plan.rows.cpu().numpy()])
            weights, sizes = _train_group(plan, inside, seeds[group], progress)
            batch_sizes = batch_sizes or tuple(sizes)
            parts = [part for w in weights for part in ([w[..., :-1], w[..., -1]] if plan.bias else [w])]
            for tensor, part in zip(trained.values(), parts, strict=True):
                tensor[group] = part.cpu()
    ledger = Ledger(
        noise_draws=len(batch_sizes),
        sampling_prob=spec.sampling_prob,
        batch_sizes=batch_sizes,
        divisor=spec.expected_batch_size,
        clip=plan.clip,
        clip_norm=plan.order,
        device=plan.device.type,
        engine="ensemble",
    )
    return TrainedModels(trained, spec.architecture, ledger)


def _plan(spec: TrainingSpec, pool: Pool, members: NDArray[np.bool_], device: torch.device) -> _Plan:
    defect = spec.defect or Defect()
    layers, bias = dense_layers(spec.architecture)
    order = float(spec.mechanism.clip_norm if defect.clip_norm is None else defect.clip_norm)
    rows = torch.from_numpy(np.flatnonzero(members.any(axis=0)))
    x = torch.from_numpy(np.ascontiguousarray(pool.x, dtype=np.float32))[rows].to(device)
    y = torch.from_numpy(np.ascontiguousarray(pool.y, dtype=np.int64))[rows].to(device)
    if bias:
        x = torch.cat([x, torch.ones(len(x), 1, device=device)], dim=1)
    x_norms = lp_norm(x.double(), order, 1).float()
    # who is not in a batch is multiplied by 0, which removes finite numbers only
    if not bool(torch.isfinite(x_norms.square()).all()):
        raise ValueError(f"Expected the l_{order:g} norm of every record to be finite in float32, and its square too.")
    share = spec.sampling_prob * (members[:, rows.numpy()].mean() if len(rows) else 0.0)
    return _Plan(
        spec, layers, bias, x, y, x_norms,
        exempt=None if defect.unclipped_class is None else y == defect.unclipped_class,
        rows=rows.to(device),
        pool_size=members.shape[1],
        everyone=bool((members.any(axis=0) == members.all(axis=0)).all()),
        gather=bool(share < GATHER_BELOW),
        clip=float(spec.mechanism.clip),
        order=order,
        noise_factor=defect.noise_factor / (spec.expected_batch_size if defect.divide_before_noise else 1.0),
        fixed_seed=defect.fixed_seed,
        buffers=products.Buffers(device),
    )  # fmt: skip


def _group_size(plan: _Plan) -> int:
    """Models at a time: as many as keep one layer's activations in the cache."""
    place = "cpu" if plan.device.type == "cpu" else "cuda"
    batch = len(plan.rows) * (plan.spec.sampling_prob if plan.gather else 1.0)
    widest = max(units for _, units in plan.layers)
    return max(1, int(NUMBERS[place] / (widest * min(max(batch, 1.0), RECORDS[place]))))


def _train_group(
    plan: _Plan, inside: Tensor | None, seeds: Sequence[int], progress: Progress | None
) -> tuple[list[Tensor], list[int]]:
    """The weights of some models, (models, units, inputs) for every layer, and the batch sizes of the first."""
    spec, models = plan.spec, len(seeds)
    streams = [Streams(seed, plan.device) for seed in seeds]
    weights = _first_weights(plan, streams)
    velocity = [torch.zeros_like(w) for w in weights] if spec.momentum else None
    noise = torch.empty(models, sum(w[0].numel() for w in weights), device=plan.device)
    inside = None if inside is None else inside.to(plan.device)
    batch_sizes = []
    for _ in range(spec.steps):
        batch = _sample(plan, inside, streams)
        batch_sizes.append(len(plan.rows) if batch is None else int(batch[0].sum()))
        sums = _clipped_sums(plan, weights, _chunks(plan, batch, models))
        for stream, row in zip(streams, noise, strict=True):
            if plan.fixed_seed is not None:
                stream.noise.manual_seed(plan.fixed_seed)
            draw(spec.mechanism, stream.noise, len(row), plan.device, out=row)
        if velocity is None:
            _add(plan, weights, sums, noise, -spec.learning_rate / spec.expected_batch_size)
        else:
            for v in velocity:
                v.mul_(spec.momentum)
            _add(plan, velocity, sums, noise, 1 / spec.expected_batch_size)
            for w, v in zip(weights, velocity, strict=True):
                w.sub_(v, alpha=spec.learning_rate)
        if progress is not None:
            progress(models)
    return weights, batch_sizes


def _first_weights(plan: _Plan, streams: Sequence[Streams]) -> list[Tensor]:
    spec = plan.spec
    weights = [
        torch.zeros(len(streams), units, inputs + plan.bias, device=plan.device) for inputs, units in plan.layers
    ]
    if spec.init == "zeros":
        return weights
    sources = streams if spec.init_seed is None else [Streams(spec.init_seed, plan.device)]
    for model, source in enumerate(sources):
        for w, (inputs, units) in zip(weights, plan.layers, strict=True):
            fresh = nn.init.xavier_normal_(torch.empty(units, inputs, device=plan.device), generator=source.init)
            w[model if spec.init_seed is None else slice(None), :, :inputs] = fresh
    return weights


def _sample(plan: _Plan, inside: Tensor | None, streams: Sequence[Streams]) -> Tensor | None:
    """Who is in this step's batches, bool (models, records); None: everyone in all."""
    q = plan.spec.sampling_prob
    if q == 1:
        return inside
    # the whole pool draws, so a record's coin does not depend on who else is a member
    coins = torch.empty(len(streams), plan.pool_size, device=plan.device)
    for stream, row in zip(streams, coins, strict=True):
        torch.rand(plan.pool_size, generator=stream.sampling, device=plan.device, out=row)
    if len(plan.rows) < plan.pool_size:
        coins = coins[:, plan.rows]
    batch = coins < q
    return batch if inside is None else batch & inside


def _chunks(plan: _Plan, batch: Tensor | None, models: int) -> Iterator[_Chunk]:
    """The records of the batches, a cacheful at a time: shared ones with a mask, or each model's own copied out."""
    step = RECORDS["cpu" if plan.device.type == "cpu" else "cuda"]
    if batch is None or not plan.gather:
        for start in range(0, len(plan.rows), step):
            part = slice(start, start + step)
            exempt = None if plan.exempt is None else plan.exempt[None, part]
            keep = None if batch is None else batch[:, part].float()
            yield _Chunk(plan.x[part], plan.y[None, None, part], plan.x_norms[None, part], exempt, keep, None)
        return
    counts = batch.sum(1).tolist()
    chosen = _places(batch, counts)
    for start in range(0, chosen.shape[1], step):
        index = chosen[:, start : start + step]
        width = index.shape[1]
        sizes = [min(max(count - start, 0), width) for count in counts]
        keep = (torch.arange(width, device=plan.device) < torch.tensor(sizes, device=plan.device)[:, None]).float()
        sizes = [-(-size // products.ROUND) * products.ROUND for size in sizes]
        x = plan.buffers("x", models, width, plan.x.shape[1])
        torch.index_select(plan.x, 0, index.flatten(), out=x.view(models * width, -1))
        exempt = None if plan.exempt is None else plan.exempt[index]
        yield _Chunk(x, plan.y[index][:, None], plan.x_norms[index], exempt, keep, sizes)


def _places(batch: Tensor, counts: Sequence[int]) -> Tensor:
    """The records of every batch in order, padded with record 0, shape (models, a multiple of ROUND)."""
    width = -(-max(counts) // products.ROUND) * products.ROUND
    out = torch.zeros(len(counts), width, dtype=torch.int64, device=batch.device)
    model, record = batch.nonzero(as_tuple=True)
    starts = torch.tensor([0, *counts[:-1]], device=batch.device).cumsum(0)
    out[model, torch.arange(len(model), device=batch.device) - starts[model]] = record
    return out


def _clipped_sums(plan: _Plan, weights: Sequence[Tensor], chunks: Iterator[_Chunk]) -> list[Tensor]:
    """The sum of the clipped gradients of every model's batch, layer by layer, in the layout of the weights."""
    sums: list[Tensor] = []
    for chunk in chunks:
        parts = _chunk_sums(plan, weights, chunk)
        sums = [total.add_(part) for total, part in zip(sums, parts, strict=True)] if sums else parts
    return sums or [torch.zeros_like(w) for w in weights]


def _chunk_sums(plan: _Plan, weights: Sequence[Tensor], chunk: _Chunk) -> list[Tensor]:
    hidden, scores = [], products.outputs(weights[0], chunk.x, chunk.sizes)
    for w in weights[1:]:
        models, units, records = scores.shape
        inputs = scores.new_ones(models, units + plan.bias, records)
        torch.clamp_min(scores, 0, out=inputs[:, :units])
        hidden.append(inputs)
        scores = torch.bmm(w, inputs)
    deltas = [torch.softmax(scores, dim=1)]
    labels = chunk.y.expand(len(scores), 1, -1)
    deltas[0].scatter_add_(1, labels, scores.new_full((1, 1, 1), -1.0).expand_as(labels))
    for w, inputs in zip(weights[:0:-1], hidden[::-1], strict=True):
        units = w.shape[2] - plan.bias
        deltas.insert(0, torch.bmm(w[:, :, :units].mT, deltas[0]).mul_(inputs[:, :units].sign()))
    norms = [lp_norm(delta, plan.order, 1) for delta in deltas]
    norms[0].mul_(chunk.x_norms)
    for size, inputs in zip(norms[1:], hidden, strict=True):
        size.mul_(lp_norm(inputs, plan.order, 1))
    norm = norms[0] if len(norms) == 1 else lp_norm(torch.stack(norms), plan.order, 0)
    factors = norm.reciprocal_().mul_(plan.clip).clamp_max_(1.0)
    if chunk.exempt is not None:
        factors.masked_fill_(chunk.exempt, 1.0)
    if chunk.keep is not None:
        factors.mul_(chunk.keep)
    for delta in deltas:
        delta.mul_(factors[:, None])
    first = products.gradients(deltas[0], chunk.x, chunk.sizes)
    return [first, *(torch.bmm(delta, inputs.mT) for delta, inputs in zip(deltas[1:], hidden, strict=True))]


def _add(plan: _Plan, targets: Sequence[Tensor], sums: Sequence[Tensor], noise: Tensor, scale: float) -> None:
    """targets += scale (sums + noise); the noise lies in torch's parameter order: weights, then bias, per layer."""
    at = 0
    for target, total, (inputs, units) in zip(targets, sums, plan.layers, strict=True):
        target.add_(total, alpha=scale)
        for part in (target[:, :, :inputs], target[:, :, inputs:]):
            size = part.shape[1] * part.shape[2]
            part.add_(noise[:, at : at + size].view_as(part), alpha=scale * plan.noise_factor)
            at += size
