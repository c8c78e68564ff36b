"""DP-SGD and DP-FTRL of many networks of linear layers at once, without autograd or per-record gradients.

The gradient of one record in a linear layer is an outer product, delta x input^T (the input with a 1 appended for the
bias), whose l_p norm is |delta|_p |input|_p for every p in [1, inf]; layers add in p-th powers (Goodfellow (2015),
"Efficient Per-Example Gradient Computations", for p = 2). So norms come from vectors, and the sum of the clipped
gradients is one product of matrices, with every delta scaled by its record's clip factor.

Arrays of activations are (model, unit, record): all sums over units then run along adjacent records.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpaudit.mechanisms.base import Mechanism
from dpaudit.mechanisms.learning import products
from dpaudit.mechanisms.learning.architectures import parameter_shapes
from dpaudit.mechanisms.learning.batches import Chunk, EnsemblePlan, chunks, group_size, make_plan, masked, step_batches
from dpaudit.mechanisms.learning.dp_ftrl import TreeNoise, public_batch
from dpaudit.mechanisms.learning.gradient_canaries import GradientCanaries, split
from dpaudit.mechanisms.learning.noise import Streams, draw, noise_stream
from dpaudit.mechanisms.learning.norms import lp_norm
from dpaudit.mechanisms.learning.schedule import occurrences
from dpaudit.mechanisms.learning.spec import DPFTRLSpec, DPSGDSpec, GradientSpec, Ledger, Pool, Progress, TrainedModels
from dpaudit.mechanisms.learning.update_rules import take_step


def train(
    spec: GradientSpec,
    pool: Pool,
    members: NDArray[np.bool_],
    seeds: Sequence[int],
    *,
    device: str = "cpu",
    progress: Progress | None = None,
) -> TrainedModels:
    """Train softmax regressions or two-layer networks by DP-SGD or DP-FTRL, in groups that fit the cache.

    Every step: w <- w - learning_rate / expected_batch_size * (clipped sum + noise), with heavy-ball momentum, or what
    the update rule makes of (clipped sum + noise) / expected_batch_size, each model by itself; DP-FTRL
    differs in who is in the batch and in the noise, which is that of a tree of sums. A model's sampling and noise
    depend on its seed alone; its rounding, besides, on the models trained with it.

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
        pool, members, canaries = split(spec, pool, members)
        plan = make_plan(spec, pool, members, torch.device(device))
        shapes = parameter_shapes(spec.architecture)
        trained = {name: torch.empty(len(seeds), *shape) for name, shape in shapes.items()}
        batch_sizes: tuple[int, ...] = ()
        releases: tuple[int, ...] = ()
        observed = list[Tensor]()
        size = group_size(plan)
        for start in range(0, len(seeds), size):
            group = slice(start, start + size)
            inside = None if plan.everyone else torch.from_numpy(members[group][:, plan.rows.cpu().numpy()])
            streams = [Streams(seed, plan.device) for seed in seeds[group]]
            planted = None
            if canaries is not None and isinstance(spec, DPSGDSpec):
                planted = GradientCanaries(spec, canaries[group], streams)
            weights, sizes, counted, seen = _train_group(plan, inside, streams, planted, progress)
            observed += [] if seen is None else [seen]
            batch_sizes, releases = batch_sizes or tuple(sizes), releases or counted
            parts = [part for w in weights for part in ([w[..., :-1], w[..., -1]] if plan.bias else [w])]
            for tensor, part in zip(trained.values(), parts, strict=True):
                tensor[group] = part.cpu()
    ledger = Ledger(
        noise_draws=len(batch_sizes),
        sampling_prob=spec.sampling_prob,
        batch_sizes=batch_sizes,
        divisor=spec.expected_batch_size,
        clip=max(float(spec.mechanism_at(step).clip) for step in range(spec.steps)),
        clip_norm=plan.order,
        device=plan.device.type,
        engine="ensemble",
        releases=releases,
    )
    return TrainedModels(trained, spec.architecture, ledger, torch.cat(observed) if observed else None)


def _train_group(
    plan: EnsemblePlan,
    inside: Tensor | None,
    streams: Sequence[Streams],
    canaries: GradientCanaries | None,
    progress: Progress | None,
) -> tuple[list[Tensor], list[int], tuple[int, ...], Tensor | None]:
    """The weights by layer, (models, units, inputs); batch sizes of the first; what a record entered; what was seen."""
    spec, models = plan.spec, len(streams)
    weights = _first_weights(plan, streams)
    optimizer = None if spec.update_rule is None else spec.update_rule.build(weights, spec.learning_rate)
    velocity = [torch.zeros_like(w) for w in weights] if spec.momentum else None
    fresh = torch.empty(models, sum(w[0].numel() for w in weights), device=plan.device)
    inside = None if inside is None else inside.to(plan.device)
    batch_sizes, history, along = [], list[Mechanism](), list[Tensor]()
    tree = TreeNoise(spec.batches) if isinstance(spec, DPFTRLSpec) else None
    batches, watch = step_batches(plan, inside, streams), _watched(plan)
    for step in range(spec.steps):
        mechanism = spec.mechanism_at(step)
        if tree is None:
            batch = next(batches)
        else:
            batch = masked(plan, public_batch(plan.rows, step, len(tree.entered), inside, models))
        batch_sizes.append(batch.size(len(plan.rows)))
        sums = _clipped_sums(plan, float(mechanism.clip), weights, chunks(plan, batch))
        for stream, row in zip(streams, fresh, strict=True):
            draw(mechanism, noise_stream(stream, spec.defect), len(row), plan.device, out=row)
        history.append(mechanism)
        noise = fresh if tree is None else tree.increment(fresh)
        if canaries is not None:
            unbiased = [total[:, :, :inputs] for total, (inputs, _) in zip(sums, plan.layers, strict=True)]
            canaries.enter(unbiased, noise, clip=float(mechanism.clip), noise_scale=plan.noise_scale)
        if watch is not None:
            along.append(_along(plan, watch, sums, noise))
        if optimizer is not None:
            gradients = [torch.zeros_like(w) for w in weights]
            _add(plan, gradients, sums, noise, 1 / spec.expected_batch_size)
            take_step(optimizer, gradients)
        elif velocity is None:
            _add(plan, weights, sums, noise, -spec.learning_rate / spec.expected_batch_size)
        else:
            for v in velocity:
                v.mul_(spec.momentum)
            _add(plan, velocity, sums, noise, 1 / spec.expected_batch_size)
            for w, v in zip(weights, velocity, strict=True):
                w.sub_(v, alpha=spec.learning_rate)
        if progress is not None:
            progress(models)
    entered = occurrences(history).values() if tree is None else [int(tree.entered.max())]
    observed = torch.stack(along, dim=1)[..., None] if along else None if canaries is None else canaries.observed
    return weights, batch_sizes, tuple(entered), observed


def _first_weights(plan: EnsemblePlan, streams: Sequence[Streams]) -> list[Tensor]:
    spec = plan.spec
    weights = [
        torch.zeros(len(streams), units, inputs + plan.bias, device=plan.device) for inputs, units in plan.layers
    ]
    if spec.first_weights is not None:
        given = [torch.tensor(spec.first_weights[name]) for name in parameter_shapes(spec.architecture)]
        _fill(plan, weights, given)
        return weights
    if spec.init == "zeros":
        return weights
    sources = streams if spec.init_seed is None else [Streams(spec.init_seed, plan.device)]
    for model, source in enumerate(sources):
        for w, (inputs, units) in zip(weights, plan.layers, strict=True):
            fresh = nn.init.xavier_normal_(torch.empty(units, inputs, device=plan.device), generator=source.init)
            w[model if spec.init_seed is None else slice(None), :, :inputs] = fresh
    return weights


def _fill(plan: EnsemblePlan, weights: Sequence[Tensor], given: Sequence[Tensor]) -> None:
    """Give all models the same weights and biases, which come one after another in torch's order."""
    for layer, (w, (inputs, _)) in enumerate(zip(weights, plan.layers, strict=True)):
        for part, columns in enumerate((slice(None, inputs), inputs)[: 1 + plan.bias]):
            w[:, :, columns] = given[(1 + plan.bias) * layer + part].to(plan.device)


def _watched(plan: EnsemblePlan) -> list[Tensor] | None:
    """The watched direction in the layout of the weights, (1, units, inputs) for every layer."""
    direction = plan.spec.watched if isinstance(plan.spec, DPSGDSpec) else None
    if direction is None:
        return None
    shapes = list(parameter_shapes(plan.spec.architecture).values())
    flat = torch.tensor(direction).split_with_sizes([math.prod(shape) for shape in shapes])
    layers = [torch.zeros(1, units, inputs + plan.bias, device=plan.device) for inputs, units in plan.layers]
    _fill(plan, layers, [part.view(shape) for part, shape in zip(flat, shapes, strict=True)])
    return layers


def _along(plan: EnsemblePlan, direction: Sequence[Tensor], sums: Sequence[Tensor], noise: Tensor) -> Tensor:
    """The noisy sum of a step along a direction, shape (models,), on the CPU."""
    released = [torch.zeros_like(total) for total in sums]
    _add(plan, released, sums, noise, 1.0)
    parts = [(total * part).sum((1, 2)) for total, part in zip(released, direction, strict=True)]
    return torch.stack(parts).sum(0).cpu()


def _clipped_sums(plan: EnsemblePlan, clip: float, weights: Sequence[Tensor], chunks: Iterable[Chunk]) -> list[Tensor]:
    """The sum of the clipped gradients of every model's batch, layer by layer, in the layout of the weights."""
    sums: list[Tensor] = []
    sums_of = _two_class_sums if plan.layers[1:] == [] and plan.layers[0][1] == 2 else _chunk_sums
    for chunk in chunks:
        parts = sums_of(plan, clip, weights, chunk)
        sums = [total.add_(part) for total, part in zip(sums, parts, strict=True)] if sums else parts
    return sums or [torch.zeros_like(w) for w in weights]


def _chunk_sums(plan: EnsemblePlan, clip: float, weights: Sequence[Tensor], chunk: Chunk) -> list[Tensor]:
    hidden, scores = [], products.outputs(weights[0], chunk.x, chunk.own)
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
    factors = _factors(norm, clip, chunk)
    for delta in deltas:
        delta.mul_(factors[:, None])
    first = products.gradients(deltas[0], chunk.x, chunk.own)
    return [first, *(torch.bmm(delta, inputs.mT) for delta, inputs in zip(deltas[1:], hidden, strict=True))]


def _two_class_sums(plan: EnsemblePlan, clip: float, weights: Sequence[Tensor], chunk: Chunk) -> list[Tensor]:
    """The same for a softmax regression of two classes: its deltas are opposite, and so are the two sums.

    With s the scores of class 0 less those of class 1, and t = 1 for records of class 1, -1 for the others, the delta
    of class 0 is t / (1 + e^(-t s)).
    """
    scores = products.outputs(weights[0][:, :1] - weights[0][:, 1:], chunk.x, chunk.own)
    side = chunk.y.mul(2).sub_(1).to(scores.dtype)
    deltas = scores.mul_(side).sigmoid_().mul_(side)
    norm = deltas[:, 0].abs().mul_(chunk.x_norms * 2 ** (1 / plan.order))
    total = products.gradients(deltas.mul_(_factors(norm, clip, chunk)[:, None]), chunk.x, chunk.own)
    return [torch.cat([total, -total], dim=1)]


def _factors(norm: Tensor, clip: float, chunk: Chunk) -> Tensor:
    """What the gradients of every record are multiplied by; computed in place of their norms."""
    factors = norm.reciprocal_().mul_(clip).clamp_max_(1.0)
    if chunk.exempt is not None:
        factors.masked_fill_(chunk.exempt, 1.0)
    if chunk.keep is not None:
        factors.mul_(chunk.keep)
    return factors


def _add(plan: EnsemblePlan, targets: Sequence[Tensor], sums: Sequence[Tensor], noise: Tensor, scale: float) -> None:
    """targets += scale (sums + noise); the noise lies in torch's parameter order: weights, then bias, per layer."""
    at = 0
    for target, total, (inputs, _) in zip(targets, sums, plan.layers, strict=True):
        target.add_(total, alpha=scale)
        for part in (target[:, :, :inputs], target[:, :, inputs:]):
            size = part.shape[1] * part.shape[2]
            part.add_(noise[:, at : at + size].view_as(part), alpha=scale * plan.noise_scale)
            at += size
