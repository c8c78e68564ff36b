"""DP-SGD and DP-FTRL of the papers' convolutional network (26,010 parameters on 28 x 28 inputs).

Per-record gradients of a convolution must be materialised: they are sums over positions, whose norm is no product of
norms. (By the products of all pairs of positions it would cost more here: twice for 25 positions, 30 times for 196.)
So records pass in chunks that stay in cache: patches, forward, a backward written out by hand, one batched
product per convolution for the per-record gradients, norms, and the clipped sum before the next chunk. The gradients
of the linear layers are outer products, of which only the norms and the clipped sum are formed.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from dpaudit.mechanisms.base import Mechanism
from dpaudit.mechanisms.learning.architectures import C1, C2, HIDDEN, K1, K2, PAD, CNNShape, parameter_shapes
from dpaudit.mechanisms.learning.convolution_workspace import ALIGNED, Memory, Workspace, relu_backward, seen_sides
from dpaudit.mechanisms.learning.dp_ftrl import TreeNoise, public_batch
from dpaudit.mechanisms.learning.gradient_canaries import GradientCanaries, split
from dpaudit.mechanisms.learning.noise import Streams
from dpaudit.mechanisms.learning.norms import row_norms
from dpaudit.mechanisms.learning.schedule import occurrences
from dpaudit.mechanisms.learning.sequential import batch_rows, clip_factors, initialised, step_noise, train_each
from dpaudit.mechanisms.learning.spec import DPFTRLSpec, GradientSpec, Pool, Progress, TrainedModels
from dpaudit.mechanisms.learning.update_rules import take_step

CHUNK_RECORDS = {"cpu": 32, "cuda": 1024}  # at a time; on a CPU the working set of one chunk should stay in cache


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
    w3 = w3.reshape(HIDDEN, shape.pool2, shape.pool2, C2).permute(0, 3, 2, 1)
    return torch.cat([part.reshape(-1) for part in (w1, b1, w2, b2, w3, b3, w4, b4)])


class _Layers:
    """The weights of one step as the products take them, and the sums of clipped gradients that they lead to."""

    def __init__(self, flat: Tensor, shape: CNNShape) -> None:
        w1, b1, w2, b2, w3, b3, w4, b4 = _split(flat, shape)
        self.w1, self.w2 = w1.T.contiguous(), w2.T.contiguous()  # MKL takes 10% less time on these than on the views
        self.b1, self.b2 = b1.repeat(seen_sides(shape)[2] ** 2), b2.repeat(shape.pool2**2)
        # a block of 2 x 2 places gets from the output at (a, b) of the 2 x 2 around it what the weights of the column
        # 2 (1 - a) + c and the row 2 (1 - b) + d carry to its place (c, d)
        blocks = w2.view(C2, 2, 2, 2, 2, C1).flip(1, 3).permute(2, 1, 3, 0, 4, 5)
        self.w2_around = blocks.reshape(2, 4 * C2, 2 * C1)
        self.w3, self.w4 = w3, w4
        self.w3_bias = functional.pad(torch.cat([w3, b3[:, None]], dim=1), (0, ALIGNED - 1)).T.contiguous()
        self.w4_bias = functional.pad(torch.cat([w4, b4[:, None]], dim=1), (0, ALIGNED - 1)).T.contiguous()
        self.sum1, self.sum2 = torch.zeros_like(w1).view(-1), flat.new_zeros(w2.numel())
        self.sum_biases = flat.new_zeros(C1 + C2)
        self.sum3, self.sum4 = flat.new_zeros(self.w3_bias.T.shape), flat.new_zeros(self.w4_bias.T.shape)

    def total(self, shape: CNNShape) -> Tensor:
        """The sums as one vector in torch's parameter order."""
        features = shape.features
        return _join(
            [
                self.sum1, self.sum_biases[:C1], self.sum2, self.sum_biases[C1:],
                self.sum3[:, :features], self.sum3[:, features], self.sum4[:, :HIDDEN], self.sum4[:, HIDDEN],
            ],
            shape,
        )  # fmt: skip


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
        side, *_ = seen_sides(shape)
        images = functional.pad(x.view(-1, shape.side, shape.side), (PAD, PAD, PAD, PAD))[:, :side, :side]
        # once for all steps: the overlapping columns of K1 pixels side by side, four times the memory of the images
        self._strips = images.unfold(2, K1, 2).transpose(1, 2).flatten(1)
        self._one_hot = functional.one_hot(y, shape.classes).float()
        self._exempt = None if exempt is None else y == exempt
        self._shape, self._order = shape, clip_norm
        self._memory = Memory(CHUNK_RECORDS[x.device.type], x.device)
        self._workspaces: dict[int, Workspace] = {}

    def __call__(self, flat: Tensor, rows: Tensor, clip: float) -> Tensor:
        """The clipped sum as one vector in torch's parameter order; zeros for no rows.

        Args:
            flat: Parameters in torch's order.
            rows: Indices of the batch, shape (batch,).
            clip: Bound on one record's gradient.
        """
        layers = _Layers(flat, self._shape)
        for chunk in rows.tensor_split(math.ceil(len(rows) / self._memory.records)) if len(rows) else ():
            space = self._workspaces.get(len(chunk))
            if space is None:
                space = self._workspaces[len(chunk)] = Workspace(self._shape, len(chunk), self._memory)
            torch.index_select(self._strips, 0, chunk, out=space.strips)
            torch.index_select(self._one_hot, 0, chunk, out=space.one_hot)
            _forward(layers, space)
            factors = self._backward(layers, space, None if self._exempt is None else self._exempt[chunk], clip)
            _add(layers, space, factors)
        return layers.total(self._shape)

    def _backward(self, layers: _Layers, space: Workspace, exempt: Tensor | None, clip: float) -> Tensor:
        """The gradients at the outputs of the layers, those by record of the convolutions, and the clip factors.

        Norms are taken while what they measure is in cache. |delta x input|_p = |delta|_p |input|_p for the layers
        that are linear.
        """
        order, pool1, pool2 = self._order, space.pool1, space.pool2
        torch.mm(space.delta3, layers.w3, out=space.gradient_features)
        relu_backward(space.gradient_features, space.pooled2, 0, grad_input=space.pooled2)
        pool2.backward()
        torch.sum(space.delta2, 1, out=space.bias2)
        space.inside.copy_(pool2.maps)
        space.around.copy_(space.around_source)
        torch.bmm(space.around_rows, layers.w2_around, out=space.below_rows)
        relu_backward(space.below, space.reached, 0, grad_input=space.reached)
        pool1.backward()
        torch.bmm(space.delta1.mT, space.record_patches1, out=space.weights1)
        torch.sum(space.delta1, 1, out=space.bias1)
        norms = [row_norms(space.flat1, order), row_norms(space.biases, order)]
        torch.bmm(space.delta2.mT, space.record_patches2, out=space.weights2)  # last, in the memory of patches1
        norms += [row_norms(space.flat2, order)]
        norms += [row_norms(space.delta3, order) * row_norms(space.inputs3, order)]
        norms += [row_norms(space.delta4, order) * row_norms(space.inputs4, order)]
        return clip_factors(row_norms(torch.stack(norms, dim=1), order), clip, exempt)


def _forward(layers: _Layers, space: Workspace) -> None:
    """From the images to the gradients at the outputs of the two linear layers."""
    space.patches1.copy_(space.patches1_source)
    torch.mm(space.rows1, layers.w1, out=space.maps1)
    space.pool1.forward()
    space.pooled1.add_(layers.b1)  # a constant per channel leaves the places of the maxima alone
    torch.clamp_min(space.patches2_source, 0, out=space.patches2)
    torch.mm(space.rows2, layers.w2, out=space.maps2)
    space.pool2.forward()
    space.pooled2.add_(layers.b2)
    torch.clamp_min(space.pool2.pooled, 0, out=space.features)
    torch.clamp_min(torch.mm(space.inputs3, layers.w3_bias), 0, out=space.hidden)
    scores = torch.mm(space.inputs4, layers.w4_bias)
    torch.sub(torch.softmax(scores, dim=1), space.one_hot, out=space.delta4)
    relu_backward(torch.mm(space.delta4, layers.w4), space.hidden, 0, grad_input=space.delta3)


def _add(layers: _Layers, space: Workspace, factors: Tensor) -> None:
    """Add the chunk's gradients times their clip factors to the sums."""
    layers.sum1.addmv_(space.flat1.T, factors)
    layers.sum2.addmv_(space.flat2.T, factors)
    layers.sum_biases.addmv_(space.biases.T, factors)
    layers.sum3.addmm_((space.delta3 * factors.unsqueeze(1)).T, space.inputs3)
    layers.sum4.addmm_((space.delta4 * factors.unsqueeze(1)).T, space.inputs4)


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
    pool, members, planted = split(spec, pool, members)
    shapes = parameter_shapes(spec.architecture)
    sizes = [math.prod(shape) for shape in shapes.values()]
    x, y = pool.tensors(place)
    places = torch.arange(len(y), device=place)
    shape = CNNShape.of(spec.architecture.inputs, spec.architecture.classes)
    order = spec.defect.clipping_norm(spec.mechanism.clip_norm)
    clipped_sum = ClippedSum(shape, x, y, order, spec.defect.unclipped_class)

    def fit(
        streams: Streams, mask: Tensor, canaries: GradientCanaries | None
    ) -> tuple[dict[str, Tensor], list[int], tuple[int, ...]]:
        flat = nn.utils.parameters_to_vector(initialised(spec, streams, place).parameters())
        optimizer = None if spec.update_rule is None else spec.update_rule.build([flat], spec.learning_rate)
        velocity = torch.zeros_like(flat)
        batch_sizes, history = [], list[Mechanism]()
        tree = TreeNoise(spec.batches) if isinstance(spec, DPFTRLSpec) else None
        for step, rows in enumerate(batch_rows(spec, streams, mask)):
            mechanism = spec.mechanism_at(step)
            noise = step_noise(spec, mechanism, streams, len(flat), place)
            if tree is not None:
                due = public_batch(places, step, len(tree.entered), mask[None], 1)
                assert due is not None  # it is where everyone is in all batches of all models
                rows, noise = due[0].nonzero().squeeze(1), tree.increment(noise[None])[0]
            total = clipped_sum(flat, rows, float(mechanism.clip))
            if canaries is not None:
                sums = [
                    part.view(1, *weights)
                    for part, weights in zip(total.split_with_sizes(sizes), shapes.values(), strict=True)
                    if len(weights) > 1
                ]
                canaries.enter(sums, noise[None], clip=float(mechanism.clip))
            noisy = total + noise
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

    return train_each(spec, members, seeds, fit, canaries=planted, engine="convolution", device=place)
