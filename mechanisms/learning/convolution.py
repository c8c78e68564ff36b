"""DP-SGD and DP-FTRL of the papers' convolutional network (26,010 parameters on 28 x 28 inputs).

Per-record gradients of a convolution must be materialised: they are sums over positions, whose norm is no product of
norms. So records pass in chunks that stay in cache: patches, forward, a backward written out by hand, one batched
product per convolution for the per-record gradients, norms, and the clipped sum before the next chunk. The gradients
of the linear layers are outer products, of which only the norms and the clipped sum are formed.

Maps are stored as (record, column, row, channel): a patch is then made of runs of 64 adjacent numbers in either
convolution.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from dpaudit.mechanisms.base import Mechanism
from dpaudit.mechanisms.learning.architectures import C1, C2, HIDDEN, K1, K2, PAD, CNNShape, parameter_shapes
from dpaudit.mechanisms.learning.dp_ftrl import TreeNoise, public_batch
from dpaudit.mechanisms.learning.noise import Streams
from dpaudit.mechanisms.learning.norms import row_norms
from dpaudit.mechanisms.learning.products import Buffers
from dpaudit.mechanisms.learning.schedule import occurrences
from dpaudit.mechanisms.learning.sequential import clip_factors, initialised, sample_rows, step_noise, train_each
from dpaudit.mechanisms.learning.spec import DPFTRLSpec, GradientSpec, Pool, Progress, TrainedModels
from dpaudit.mechanisms.learning.update_rules import take_step

CHUNK_RECORDS = {"cpu": 48, "cuda": 1024}  # at a time; on a CPU the working set of one chunk should stay in cache


def _max_pool(maps: Tensor, name: str, buffers: Buffers) -> tuple[Tensor, Tensor, Tensor]:
    """ReLU of the 2 x 2 maximum with stride 1, and which of each two candidates won: columns, then rows.

    Ties go to the earlier column, then the earlier row, as in torch's MaxPool2d.
    """
    records, columns, rows, channels = maps.shape
    half = buffers(f"{name} half", records, columns - 1, rows, channels)
    pooled = buffers(f"{name} pooled", records, columns - 1, rows - 1, channels)
    left = torch.ge(maps[:, :-1], maps[:, 1:], out=buffers(f"{name} left", *half.shape))
    torch.maximum(maps[:, :-1], maps[:, 1:], out=half)
    upper = torch.ge(half[:, :, :-1], half[:, :, 1:], out=buffers(f"{name} upper", *pooled.shape))
    return torch.maximum(half[:, :, :-1], half[:, :, 1:], out=pooled).relu_(), left, upper


def _max_pool_backward(
    gradient: Tensor, pooled: Tensor, left: Tensor, upper: Tensor, name: str, buffers: Buffers
) -> Tensor:
    """The gradient before `_max_pool`; overwrites left and upper."""
    records, columns, rows, channels = pooled.shape
    gradient = torch.gt(pooled, 0, out=buffers(f"{name} live", *pooled.shape)).mul_(gradient)
    half = buffers(f"{name} half", records, columns, rows + 1, channels)
    first = upper.mul_(gradient)
    half[:, :, :-1] = first
    half[:, :, -1] = 0
    half[:, :, 1:] += gradient.sub_(first)
    maps = buffers(f"maps {name}", records, columns + 1, rows + 1, channels)
    first = left.mul_(half)
    maps[:, :-1] = first
    maps[:, -1] = 0
    maps[:, 1:] += half.sub_(first)
    return maps


def _patches(maps: Tensor, count: int, kernel: int, name: str, buffers: Buffers) -> Tensor:
    """The patches of a stride-2 convolution, shape (records, count * count, patch)."""
    records, columns, rows, channels = maps.shape
    run = kernel * channels
    out = buffers(name, records, count, count, kernel, run)
    size = columns * rows * channels
    out.copy_(maps.as_strided(out.shape, (size, 2 * rows * channels, 2 * channels, rows * channels, 1)))
    return out.view(records, count * count, kernel * run)


def _image_patches(images: Tensor, count: int, buffers: Buffers) -> Tensor:
    """The patches of the first convolution, in two copies: overlapping columns side by side, then runs of 64."""
    records, height, width = images.shape
    # memory that is free until the gradients are formed, and already in cache
    strips = buffers("gradients 2", records, count, height, K1)
    strips.copy_(images.as_strided(strips.shape, (height * width, 2, width, 1)))
    out = buffers("patches 1", records, count, count, K1 * K1)
    out.copy_(strips.as_strided(out.shape, (count * height * K1, height * K1, 2 * K1, 1)))
    return out.view(records, count * count, K1 * K1)


@dataclass(frozen=True)
class _Seen:
    """What the forward pass of one chunk leaves for the backward pass; `*_won` are the winners of the pooling."""

    patches1: Tensor
    pooled1: Tensor
    won1: tuple[Tensor, Tensor]
    patches2: Tensor
    pooled2: Tensor
    won2: tuple[Tensor, Tensor]
    hidden: Tensor
    scores: Tensor


def _split(flat: Tensor, shape: CNNShape) -> list[Tensor]:
    """A flat vector in torch's parameter order as the eight tensors in the layout used here, copies or views."""
    convolutions = (C1 * K1 * K1, C1, C2 * C1 * K2 * K2, C2)
    linear = (HIDDEN * shape.features, HIDDEN, shape.classes * HIDDEN, shape.classes)
    w1, b1, w2, b2, w3, b3, w4, b4 = flat.split_with_sizes([*convolutions, *linear])
    w2 = w2.view(C2, C1, K2, K2).permute(0, 3, 2, 1).reshape(C2, -1)
    w3 = w3.view(HIDDEN, C2, shape.pool2, shape.pool2).permute(0, 3, 2, 1).reshape(HIDDEN, -1)
    return [w1.view(C1, -1), b1, w2, b2, w3, b3, w4.view(shape.classes, HIDDEN), b4]


def _join(parts: Sequence[Tensor], shape: CNNShape) -> Tensor:
    """The inverse of `_split`."""
    w1, b1, w2, b2, w3, b3, w4, b4 = parts
    w2 = w2.view(C2, K2, K2, C1).permute(0, 3, 2, 1)
    w3 = w3.view(HIDDEN, shape.pool2, shape.pool2, C2).permute(0, 3, 2, 1)
    return torch.cat([part.reshape(-1) for part in (w1, b1, w2, b2, w3, b3, w4, b4)])


class ClippedSum:
    """The sum over some records of their clipped cross-entropy gradients, sum_i g_i min(1, clip / |g_i|_p).

    The bound holds to float32 rounding: a clipped norm may exceed `clip` by a few parts in a million.

    Args:
        shape: Of the network.
        x: Flat images, shape (records, pixels), on the device.
        y: Labels, shape (records,).
        clip_norm: The p of the norm that is bounded, over all parameters together.
        exempt: Class that is not clipped (a planted fault), None for none.
    """

    def __init__(self, shape: CNNShape, x: Tensor, y: Tensor, clip_norm: float, exempt: int | None) -> None:
        self._images = functional.pad(x.view(-1, shape.side, shape.side), (PAD, PAD, PAD, PAD))
        self._labels, self._shape, self._exempt = y, shape, exempt
        self._order = clip_norm
        self._chunk = CHUNK_RECORDS[x.device.type]
        self._buffers = Buffers(x.device)

    def __call__(self, flat: Tensor, rows: Tensor, clip: float) -> Tensor:
        """The clipped sum as one vector in torch's parameter order; zeros for no rows.

        Args:
            flat: Parameters in torch's order.
            rows: Indices of the batch, shape (batch,).
            clip: Bound on one record's gradient.
        """
        parts = _split(flat, self._shape)
        totals = [torch.zeros_like(part, memory_format=torch.contiguous_format) for part in parts]
        for chunk in rows.tensor_split(math.ceil(len(rows) / self._chunk)) if len(rows) else ():
            self._add(parts, totals, chunk, clip)
        return _join(totals, self._shape)

    def _forward(self, parts: Sequence[Tensor], images: Tensor) -> _Seen:
        shape, buffers, records = self._shape, self._buffers, len(images)
        w1, b1, w2, b2, w3, b3, w4, b4 = parts
        patches1 = _image_patches(images, shape.conv1, buffers)
        maps1 = torch.addmm(b1, patches1.flatten(0, 1), w1.T, out=buffers("maps 1", records * shape.conv1**2, C1))
        pooled1, *won1 = _max_pool(maps1.view(records, shape.conv1, shape.conv1, C1), "1", buffers)
        patches2 = _patches(pooled1, shape.conv2, K2, "patches 2", buffers)
        maps2 = torch.addmm(b2, patches2.flatten(0, 1), w2.T, out=buffers("maps 2", records * shape.conv2**2, C2))
        pooled2, *won2 = _max_pool(maps2.view(records, shape.conv2, shape.conv2, C2), "2", buffers)
        hidden = torch.addmm(b3, pooled2.flatten(1), w3.T).relu_()
        scores = torch.addmm(b4, hidden, w4.T)
        return _Seen(patches1, pooled1, (won1[0], won1[1]), patches2, pooled2, (won2[0], won2[1]), hidden, scores)

    def _backward(self, parts: Sequence[Tensor], seen: _Seen, labels: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The gradients at the outputs of the four layers, those of the convolutions as (record, position, channel)."""
        shape, buffers, records = self._shape, self._buffers, len(labels)
        w2, w3, w4 = parts[2], parts[4], parts[6]
        delta4 = torch.softmax(seen.scores, dim=1)
        delta4[torch.arange(records, device=labels.device), labels] -= 1
        delta3 = (delta4 @ w4).mul_(seen.hidden > 0)
        delta2 = _max_pool_backward((delta3 @ w3).view_as(seen.pooled2), seen.pooled2, *seen.won2, "2", buffers)
        down = functional.conv_transpose2d(
            delta2.permute(0, 3, 1, 2),
            w2.view(C2, K2, K2, C1).permute(0, 3, 1, 2),
            stride=2,
            output_padding=shape.pool1 - (2 * shape.conv2 + K2 - 2),
        )
        delta1 = _max_pool_backward(down.permute(0, 2, 3, 1), seen.pooled1, *seen.won1, "1", buffers)
        return delta1.flatten(1, 2), delta2.flatten(1, 2), delta3, delta4

    def _add(self, parts: Sequence[Tensor], totals: Sequence[Tensor], rows: Tensor, clip: float) -> None:
        """Add the clipped gradients of one chunk to the totals."""
        labels, buffers, order, records = self._labels[rows], self._buffers, self._order, len(rows)
        side = self._shape.side + 2 * PAD
        images = torch.index_select(self._images, 0, rows, out=buffers("images", records, side, side))
        seen = self._forward(parts, images)
        *convolved, delta3, delta4 = self._backward(parts, seen, labels)
        gradients, norms = [], []
        for delta, patches, name in zip(convolved, (seen.patches1, seen.patches2), ("1", "2"), strict=True):
            out = buffers(f"gradients {name}", records, delta.shape[2], patches.shape[2])
            weight, bias = torch.bmm(delta.mT, patches, out=out).flatten(1), delta.sum(dim=1)
            gradients += [weight, bias]
            norms += [row_norms(weight, order), row_norms(bias, order)]
        inputs = (seen.pooled2.flatten(1), seen.hidden)
        for delta, entering in zip((delta3, delta4), inputs, strict=True):
            size = row_norms(delta, order)  # |delta x input|_p = |delta|_p |input|_p
            norms += [size * row_norms(entering, order), size]
        exempt = None if self._exempt is None else labels == self._exempt
        factors = clip_factors(row_norms(torch.stack(norms, dim=1), order), clip, exempt)
        for total, gradient in zip(totals, gradients, strict=False):
            total.view(-1).addmv_(gradient.T, factors)
        for i, (delta, entering) in enumerate(zip((delta3, delta4), inputs, strict=True)):
            clipped = delta.mul_(factors[:, None])
            totals[4 + 2 * i].addmm_(clipped.T, entering)
            totals[5 + 2 * i].add_(clipped.sum(dim=0))


@torch.no_grad()
def train(
    spec: GradientSpec,
    pool: Pool,
    members: NDArray[np.bool_],
    seeds: Sequence[int],
    *,
    device: str = "cpu",
    progress: Progress | None = None,
) -> TrainedModels:
    """Train convolutional networks by DP-SGD or DP-FTRL, one after another.

    Every step: w <- w - learning_rate / expected_batch_size * (clipped sum + noise), with heavy-ball momentum; DP-FTRL
    differs in who is in the batch and in the noise, which is that of a tree of sums.

    Args:
        spec: What to train; its architecture is the "cnn".
        pool: Flat square images with labels.
        members: Who trains which model, shape (models, records).
        seeds: One nonnegative integer per model.
        device: "cpu" or "cuda".
        progress: Called with 1 after every step of every model.

    Raises:
        ValueError: Images that are not square or too small.
    """
    place = torch.device(device)
    shapes = parameter_shapes(spec.architecture)
    sizes = [math.prod(shape) for shape in shapes.values()]
    x, y = pool.tensors(place)
    places = torch.arange(len(y), device=place)
    shape = CNNShape.of(spec.architecture.inputs, spec.architecture.classes)
    order = spec.defect.clipping_norm(spec.mechanism.clip_norm)
    clipped_sum = ClippedSum(shape, x, y, order, spec.defect.unclipped_class)

    def fit(streams: Streams, mask: Tensor) -> tuple[dict[str, Tensor], list[int], tuple[int, ...]]:
        flat = nn.utils.parameters_to_vector(initialised(spec, streams, place).parameters())
        optimizer = None if spec.update_rule is None else spec.update_rule.build([flat], spec.learning_rate)
        velocity = torch.zeros_like(flat)
        batch_sizes, history = [], list[Mechanism]()
        tree = TreeNoise(spec.batches) if isinstance(spec, DPFTRLSpec) else None
        for step in range(spec.steps):
            mechanism = spec.mechanism_at(step)
            noise = step_noise(spec, mechanism, streams, len(flat), place)
            if tree is None:
                rows = sample_rows(spec, streams, mask)
            else:
                due = public_batch(places, step, len(tree.entered), mask[None], 1)
                assert due is not None  # it is where everyone is in all batches of all models
                rows, noise = due[0].nonzero().squeeze(1), tree.increment(noise[None])[0]
            noisy = clipped_sum(flat, rows, float(mechanism.clip)) + noise
            if optimizer is not None:
                take_step(optimizer, [noisy / spec.expected_batch_size])
            else:
                velocity.mul_(spec.momentum).add_(noisy, alpha=1 / spec.expected_batch_size)
                flat.sub_(velocity, alpha=spec.learning_rate)
            batch_sizes.append(len(rows))
            history.append(mechanism)
            if progress is not None:
                progress(1)
        counts = occurrences(history).values() if tree is None else [int(tree.entered.max())]
        parts = zip(shapes.items(), flat.split_with_sizes(sizes), strict=True)
        return {name: part.view(shape) for (name, shape), part in parts}, batch_sizes, tuple(counts)

    return train_each(spec, members, seeds, fit, engine="convolution", device=place)
