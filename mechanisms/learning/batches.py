"""The batches of many models at once: who is in them, and their records, a cacheful at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpaudit.mechanisms.learning import products
from dpaudit.mechanisms.learning.architectures import dense_layers
from dpaudit.mechanisms.learning.noise import Streams
from dpaudit.mechanisms.learning.norms import lp_norm
from dpaudit.mechanisms.learning.spec import DPFTRLSpec, DPSGDSpec, GradientSpec, Pool

CHUNK_RECORDS = {"cpu": 1024, "cuda": 16384}  # records at a time
LAYER_NUMBERS = {"cpu": 2**17, "cuda": 2**26}  # activations of a layer at a time, over a group's models: half an L2
COPY_NUMBERS = {"cpu": 2**18, "cuda": 2**28}  # numbers copied out at a time: of one model (half an L2), of a group
GATHER_SHARE = 0.6  # a batch of less than this part of the records is copied out; else the others are multiplied by 0


@dataclass(frozen=True)
class EnsemblePlan:
    """What all groups of models share: the records that any of them trains on, the layers, the clipping norm."""

    spec: GradientSpec
    layers: list[tuple[int, int]]
    bias: bool
    batch_share: float  # of the records, expected in one batch
    x: Tensor  # (records, inputs), a 1 appended where there is a bias
    y: Tensor
    x_norms: Tensor  # of the rows of x, in the clipping norm
    exempt: Tensor | None  # records left unclipped
    rows: Tensor  # their places in the pool
    pool_size: int
    everyone: bool  # all models train on all records
    gather: bool
    order: float
    noise_scale: float
    buffers: products.Buffers

    @property
    def device(self) -> torch.device:
        return self.x.device


@dataclass(frozen=True)
class Chunk:
    """Some records of the batch of every model of a group."""

    x: Tensor  # (records, inputs)
    y: Tensor  # (1 or models, 1, records)
    x_norms: Tensor  # (1 or models, records)
    exempt: Tensor | None
    keep: Tensor | None  # (models, records): 1 in the batch, 0 not; None if all are
    own: products.OwnRecords | None  # which of x are in whose batch; None: all in all, but for `keep`


def make_plan(spec: GradientSpec, pool: Pool, members: NDArray[np.bool_], device: torch.device) -> EnsemblePlan:
    """Everything that stays the same from group to group and from step to step.

    Args:
        spec: What to train.
        pool: Records with labels.
        members: Who trains which model, shape (models, records).
        device: Where it happens.

    Raises:
        ValueError: A record's norm is not finite.
    """
    defect = spec.defect
    layers, bias = dense_layers(spec.architecture)
    order = defect.clipping_norm(spec.mechanism.clip_norm)
    rows = torch.from_numpy(np.flatnonzero(members.any(axis=0)))
    x, y = (tensor[rows.to(device)] for tensor in pool.tensors(device))
    if bias:
        x = torch.cat([x, torch.ones(len(x), 1, device=device)], dim=1)
    x_norms = lp_norm(x.double(), order, 1).float()
    # who is not in a batch is multiplied by 0, which removes finite numbers only
    if not bool(torch.isfinite(x_norms.square()).all()):
        raise ValueError(f"Expected the l_{order:g} norm of every record to be finite in float32, and its square too.")
    share = 1 / spec.batches if isinstance(spec, DPFTRLSpec) else spec.sampling_prob
    return EnsemblePlan(
        spec, layers, bias, share, x, y, x_norms,
        exempt=None if defect.unclipped_class is None else y == defect.unclipped_class,
        rows=rows.to(device),
        pool_size=members.shape[1],
        everyone=bool((members.any(axis=0) == members.all(axis=0)).all()),
        gather=bool(share * (members[:, rows.numpy()].mean() if len(rows) else 0.0) < GATHER_SHARE),
        order=order,
        noise_scale=defect.noise_scale(spec.expected_batch_size),
        buffers=products.Buffers(device),
    )  # fmt: skip


def group_size(plan: EnsemblePlan) -> int:
    """Models at a time: as many as keep one layer's activations in the cache, and copies of records in memory."""
    place = plan.device.type
    batch = len(plan.rows) * (plan.batch_share if plan.gather else 1.0)
    records = min(max(batch, 1.0), chunk_records(plan))
    size = LAYER_NUMBERS[place] / (records * max(units for _, units in plan.layers))
    if plan.gather and place != "cpu":
        size = min(size, COPY_NUMBERS[place] / (records * plan.x.shape[1]))
    return max(1, int(size))


def chunk_records(plan: EnsemblePlan) -> int:
    """Records of one model at a time: where they are copied out on a CPU, as many as stay in the cache."""
    most = CHUNK_RECORDS[plan.device.type]
    if not plan.gather or plan.device.type != "cpu":
        return most
    held = COPY_NUMBERS["cpu"] // plan.x.shape[1] // products.BATCH_MULTIPLE * products.BATCH_MULTIPLE
    return min(most, max(held, products.BATCH_MULTIPLE))


def sample(plan: EnsemblePlan, inside: Tensor | None, streams: Sequence[Streams]) -> Tensor | None:
    """Who is in this step's batches, bool (models, records of the plan); None: everyone in all.

    Args:
        plan: Of the whole training.
        inside: Who trains which model, bool, of the same shape; None: everyone all.
        streams: Of the models.
    """
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


def step_batches(plan: EnsemblePlan, inside: Tensor | None, streams: Sequence[Streams]) -> Iterator[Tensor | None]:
    """Who is in the batches of one step after another: by the sampler, or by `sample`, which draws Poisson batches.

    Args:
        plan, inside, streams: As `sample`.
    """
    sampler = plan.spec.sampler if isinstance(plan.spec, DPSGDSpec) else None
    if sampler is None:
        yield from (sample(plan, inside, streams) for _ in range(plan.spec.steps))
        return
    histories = [sampler.draw(stream.batches, plan.pool_size) for stream in streams]
    yield from (_drawn(plan, inside, batches) for batches in zip(*histories, strict=True))


def _drawn(plan: EnsemblePlan, inside: Tensor | None, batches: Sequence[NDArray[np.int_]]) -> Tensor:
    """Who is in the batches of one step of a sampler, and how often where anybody is twice.

    Args:
        plan: Of the whole training.
        inside: Who trains which model, bool, shape (models, records of the plan); None: everyone all.
        batches: Indices into the pool, an array for every model.

    Returns:
        Of the same shape; bool, or uint8 where a record is in a batch more than once.
    """
    counts = torch.from_numpy(np.stack([np.bincount(batch, minlength=plan.pool_size) for batch in batches]))
    counts = counts.to(device=plan.device, dtype=torch.uint8)[:, plan.rows]
    if inside is not None:
        counts = counts * inside
    return counts if bool((counts > 1).any()) else counts.bool()


def chunks(plan: EnsemblePlan, batch: Tensor | None, models: int) -> Iterator[Chunk]:
    """The records of the batches, a cacheful at a time: shared ones with a mask, or each model's own copied out.

    Args:
        plan: Of the whole training.
        batch: From `step_batches`, or a public order.
        models: In the group.
    """
    step = chunk_records(plan)
    if batch is None or not plan.gather:
        for start in range(0, len(plan.rows), step):
            part = slice(start, start + step)
            exempt = None if plan.exempt is None else plan.exempt[None, part]
            keep = None if batch is None else batch[:, part].float()
            yield Chunk(plan.x[part], plan.y[None, None, part], plan.x_norms[None, part], exempt, keep, None)
        return
    counts = batch.count_nonzero(1).tolist()
    chosen = _places(batch, counts)
    for start in range(0, chosen.shape[1], step):
        index = chosen[:, start : start + step]
        width = index.shape[1]
        sizes = [min(max(count - start, 0), width) for count in counts]
        keep = (torch.arange(width, device=plan.device) < torch.tensor(sizes, device=plan.device)[:, None]).float()
        if batch.dtype != torch.bool:  # how often a record is in it
            keep *= batch.gather(1, index)
        sizes = [-(-size // products.BATCH_MULTIPLE) * products.BATCH_MULTIPLE for size in sizes]
        exempt = None if plan.exempt is None else plan.exempt[index]
        own = products.OwnRecords(index, sizes, plan.buffers)
        yield Chunk(plan.x, plan.y[index][:, None], plan.x_norms[index], exempt, keep, own)


def _places(batch: Tensor, counts: Sequence[int]) -> Tensor:
    """The records of every batch in order, padded with record 0, shape (models, a multiple of BATCH_MULTIPLE)."""
    width = -(-max(counts) // products.BATCH_MULTIPLE) * products.BATCH_MULTIPLE
    out = torch.zeros(len(counts), width, dtype=torch.int64, device=batch.device)
    model, record = batch.nonzero(as_tuple=True)
    starts = torch.tensor([0, *counts[:-1]], device=batch.device).cumsum(0)
    out[model, torch.arange(len(model), device=batch.device) - starts[model]] = record
    return out
