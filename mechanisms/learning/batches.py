"""The batches of many models at once: who is in them, and their records, a cacheful at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpaudit.mechanisms.learning import poisson, products
from dpaudit.mechanisms.learning.architectures import dense_layers
from dpaudit.mechanisms.learning.noise import Streams
from dpaudit.mechanisms.learning.norms import lp_norm
from dpaudit.mechanisms.learning.spec import DPFTRLSpec, DPSGDSpec, GradientSpec, Pool

CHUNK_RECORDS = {"cpu": 1024, "cuda": 16384}  # records at a time
LAYER_NUMBERS = {"cpu": 2**18, "cuda": 2**26}  # activations of a layer at a time, over a group's models: an L2
COPY_NUMBERS = {"cpu": 2**18, "cuda": 2**28}  # numbers copied out at a time: of one model (half an L2), of a group
GATHER_SHARE = 0.6  # a batch of less than this part of the records is copied out; else the others are multiplied by 0
NARROW_SHARE = 0.15  # the same for layers so narrow that their records are read where they are


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
    row_of: Tensor  # the inverse, (pool_size + 1,): the number of records for whoever is none, and for the end
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
class Batch:
    """Who is in the batch of every model of a group, in one step."""

    index: Tensor | None  # (models, any): the records of each, padded with record 0; None: all records in order
    keep: Tensor | None  # of the same shape, how often each is in it: 0 for padding; None: everyone in all, once

    def size(self, records: int) -> int:
        """Of the first model's batch, out of so many records."""
        return records if self.keep is None else int(self.keep[0].sum())


@dataclass(frozen=True)
class Chunk:
    """Some records of the batch of every model of a group."""

    x: Tensor  # (records, inputs)
    y: Tensor  # (1 or models, 1, records)
    x_norms: Tensor  # (1 or models, records)
    exempt: Tensor | None
    keep: Tensor | None  # (models, records): how often each is in the batch; None if all are once
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
    narrow = device.type == "cpu" and layers[0][1] <= products.NARROW
    row_of = torch.full((members.shape[1] + 1,), len(rows)).scatter_(0, rows, torch.arange(len(rows)))
    share = 1 / spec.batches if isinstance(spec, DPFTRLSpec) else spec.sampling_prob
    return EnsemblePlan(
        spec, layers, bias, share, x, y, x_norms,
        exempt=None if defect.unclipped_class is None else y == defect.unclipped_class,
        rows=rows.to(device),
        row_of=row_of.to(device),
        pool_size=members.shape[1],
        everyone=bool((members.any(axis=0) == members.all(axis=0)).all()),
        gather=bool(
            share * (members[:, rows.numpy()].mean() if len(rows) else 0.0)
            < (NARROW_SHARE if narrow else GATHER_SHARE)
        ),
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


def step_batches(plan: EnsemblePlan, inside: Tensor | None, streams: Sequence[Streams]) -> Iterator[Batch]:
    """Who is in the batches of one step after another: Poisson batches, or those of the sampler.

    Args:
        plan: Of the whole training.
        inside: Who trains which model, bool, shape (models, records of the plan); None: everyone all.
        streams: Of the models.
    """
    sampler = plan.spec.sampler if isinstance(plan.spec, DPSGDSpec) else None
    if sampler is not None:
        histories = [sampler.draw(stream.batches, plan.pool_size) for stream in streams]
        yield from (chosen(plan, inside, _padded(batches, plan.pool_size)) for batches in zip(*histories, strict=True))
        return
    q = plan.spec.sampling_prob
    for _ in range(plan.spec.steps):
        if q == 1:
            yield masked(plan, inside)
        else:  # the whole pool draws, so whether a record is drawn does not depend on who else is a member
            yield chosen(plan, inside, poisson.places([stream.sampling for stream in streams], q, plan.pool_size))


def _padded(batches: Sequence[NDArray[np.int_]], end: int) -> Tensor:
    """Arrays as the rows of one tensor, each ended by one or more `end`."""
    rows = np.full((len(batches), 1 + max(map(len, batches))), end)
    for row, batch in zip(rows, batches, strict=True):
        row[: len(batch)] = batch
    return torch.from_numpy(rows)


def chosen(plan: EnsemblePlan, inside: Tensor | None, places: Tensor) -> Batch:
    """The batches of which the places in the pool are given, without those who train no model or not this one.

    Args:
        plan: Of the whole training.
        inside: As in `step_batches`.
        places: Shape (models, any), a place twice if its record is twice in the batch; `pool_size` where nobody is.
    """
    places = places.to(plan.device)
    if not plan.gather:
        often = torch.zeros(len(places), plan.pool_size + 1, device=plan.device)
        often = often.scatter_add_(1, places, often.new_ones(1, 1).expand_as(places))
        often = often[:, plan.rows] if len(plan.rows) < plan.pool_size else often[:, :-1]
        return Batch(None, often if inside is None else often * inside)
    if len(plan.rows) < plan.pool_size:
        places = plan.row_of[places]
    there = places < len(plan.rows)
    if inside is not None:
        there &= inside.gather(1, places.clamp_max(len(plan.rows) - 1))
    counts = there.count_nonzero(1)
    width = -(-int(counts.max()) // products.BATCH_MULTIPLE) * products.BATCH_MULTIPLE
    taken = torch.arange(width, device=plan.device) < counts[:, None]
    index = torch.zeros(taken.shape, dtype=torch.int64, device=plan.device).masked_scatter_(taken, places[there])
    return Batch(index, taken.float())


def masked(plan: EnsemblePlan, mask: Tensor | None) -> Batch:
    """The batches whose members are marked.

    Args:
        plan: Of the whole training.
        mask: Bool, shape (models, records of the plan); None: everyone in all.
    """
    if mask is None or not plan.gather:
        return Batch(None, None if mask is None else mask.float())
    return chosen(plan, None, plan.rows.where(mask, plan.pool_size))


def chunks(plan: EnsemblePlan, batch: Batch) -> Iterator[Chunk]:
    """The records of the batches, a cacheful at a time: shared ones with a mask, or each model's own copied out.

    Args:
        plan: Of the whole training.
        batch: Of one step.
    """
    step = chunk_records(plan)
    if batch.index is None:
        for start in range(0, len(plan.rows), step):
            part = slice(start, start + step)
            exempt = None if plan.exempt is None else plan.exempt[None, part]
            keep = None if batch.keep is None else batch.keep[:, part]
            yield Chunk(plan.x[part], plan.y[None, None, part], plan.x_norms[None, part], exempt, keep, None)
        return
    assert batch.keep is not None  # it is where everybody is in all batches
    for start in range(0, batch.index.shape[1], step):
        index, keep = batch.index[:, start : start + step], batch.keep[:, start : start + step]
        exempt = None if plan.exempt is None else plan.exempt[index]
        own = products.OwnRecords(index, keep, plan.buffers)
        yield Chunk(plan.x, plan.y[index][:, None], plan.x_norms[index], exempt, keep, own)
