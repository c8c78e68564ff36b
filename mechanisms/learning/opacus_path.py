"""DP-SGD for any torch module, through Opacus: its hooks give per-record gradients, ours are clipping and noise."""

import math
import warnings
from collections.abc import Callable, Sequence
from copy import deepcopy

import numpy as np
import torch
from numpy.typing import NDArray
from opacus.grad_sample import GradSampleModule
from opacus.optimizers import DPOptimizer
from opacus.validators import ModuleValidator
from torch import Tensor, nn
from torch.nn import functional

from dpaudit.mechanisms.learning.architectures import build_module
from dpaudit.mechanisms.learning.gradient_canaries import GradientCanaries, split
from dpaudit.mechanisms.learning.noise import Streams
from dpaudit.mechanisms.learning.norms import row_norms
from dpaudit.mechanisms.learning.sequential import batch_rows, clip_factors, initialised, step_noise, train_each
from dpaudit.mechanisms.learning.spec import Architecture, DPSGDSpec, Pool, Progress, TrainedModels

NO_INPUT_GRADIENT = "Full backward hook is firing"  # what torch remarks of Opacus's hooks
GRADIENT_BYTES = 2**28  # per-record gradients held at a time; larger batches pass in physical chunks


class MechanismOptimizer(DPOptimizer):  # type: ignore[misc]  # Opacus ships no types
    """Opacus's optimizer with clipping in any l_p norm and noise from any mechanism: w -= lr/B (clipped sum + noise).

    Args:
        optimizer: The torch optimizer that takes the step.
        noise: Size of the flat vector to one draw of noise on the SUM, in torch's parameter order.
        clip: Bound on one record's gradient.
        clip_norm: The p of its norm, over all parameters together.
        expected_batch_size: The public divisor B of the noisy sum.
        canaries: Enter every clipped sum, and see its noise; None: there are none.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        noise: Callable[[int], Tensor],
        clip: float,
        clip_norm: float,
        expected_batch_size: float,
        canaries: GradientCanaries | None = None,
    ) -> None:
        # noise_multiplier only feeds Opacus's own Gaussian, which add_noise below replaces
        super().__init__(
            optimizer,
            noise_multiplier=0.0,
            max_grad_norm=clip,
            expected_batch_size=expected_batch_size,
            loss_reduction="mean",
        )
        self.noise, self.canaries = noise, canaries
        self.clip_norm = clip_norm
        self.exempt: Tensor | None = None  # records of the current chunk left unclipped (a planted fault)

    def clip_and_accumulate(self) -> None:
        """Add the clipped gradients of the current chunk to `p.summed_grad`."""
        samples = [sample.flatten(1) for sample in self.grad_samples]
        norms = torch.stack([row_norms(sample, self.clip_norm) for sample in samples], dim=1)
        factors = clip_factors(row_norms(norms, self.clip_norm), self.max_grad_norm, self.exempt)
        for parameter, sample in zip(self.params, samples, strict=True):
            total = (factors @ sample).view_as(parameter)
            parameter.summed_grad = total if parameter.summed_grad is None else parameter.summed_grad + total
            parameter.grad_sample = None

    def add_noise(self) -> None:
        """Put clipped sum plus one draw of noise into `p.grad`."""
        sizes = [parameter.numel() for parameter in self.params]
        noise = self.noise(sum(sizes))
        for parameter in self.params:
            if parameter.summed_grad is None:  # an empty batch: the noise is added all the same
                parameter.summed_grad = torch.zeros_like(parameter)
        if self.canaries is not None:
            sums = [parameter.summed_grad[None] for parameter in self.params if parameter.dim() > 1]
            self.canaries.enter(sums, noise[None], clip=self.max_grad_norm)
        for parameter, piece in zip(self.params, noise.split_with_sizes(sizes), strict=True):
            parameter.grad = parameter.summed_grad + piece.view_as(parameter)

    def scale_grad(self) -> None:
        """Divide by the public expected batch size, whatever the batch was."""
        for parameter in self.params:
            parameter.grad /= self.expected_batch_size

    def release(self) -> None:
        """Noise, division and the optimizer's step, after all chunks of a batch were accumulated."""
        self.add_noise()
        self.scale_grad()
        self.original_optimizer.step()
        self.zero_grad(set_to_none=True)


def check_architecture(architecture: Architecture) -> None:
    """Refuse a module that cannot be trained privately; draws nothing from torch's global generator.

    Raises:
        ValueError: As `_check_module`.
    """
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.filterwarnings("ignore", message=NO_INPUT_GRADIENT, category=UserWarning)
        torch.manual_seed(0)  # the probe is no secret, and the same module is always judged the same
        _check_module(architecture)


def _check_module(architecture: Architecture) -> None:
    """Refuse a module whose records have no gradient of their own, so that clipping it would bound nothing.

    Opacus's validators know layers by type. At random weights, besides, the first output is compared with itself after
    the other records have changed, and Opacus's gradients of three records with autograd's. A module that reads token
    ids, where features in [0, 1) will not do, has an attribute `largest_id`.

    Raises:
        ValueError: A layer keeps statistics or is one that Opacus cannot handle (BatchNorm, LSTM), records influence
            each other, Opacus has not the gradient of each record, the output has the wrong shape, or nothing can be
            trained.
    """
    module = deepcopy(build_module(architecture))  # whose weights are overwritten below
    expected = f"Expected architecture={architecture.name!r}"
    refused = [
        f"{name or 'the module'} ({type(part).__name__})"
        for name, part in module.named_modules()
        if ModuleValidator.VALIDATORS.get(type(part), lambda _: [])(part) or _statistics(part)
    ]
    if refused:
        raise ValueError(
            f"{expected} without layers that have no per-record gradient or keep buffers: {', '.join(refused)}."
        )
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ValueError(f"{expected} to have trainable parameters.")
    again = _constants(build_module(architecture))  # whoever queries a trained model builds them anew
    changing = [name for name, value in _constants(module).items() if not torch.equal(value, again[name])]
    if changing:
        raise ValueError(
            f"{expected} with the same numbers whenever it is built, but for those trained: {changing[0]}."
        )
    with torch.no_grad():  # first weights of 0 would hide every influence
        for parameter in module.parameters():
            parameter.normal_()
    records, constants = _probe(module, architecture.inputs), [buffer.clone() for buffer in module.buffers()]
    output = module(records)
    if not all(map(torch.equal, constants, module.buffers())):
        raise ValueError(f"{expected} without layers that keep statistics.")
    if output.shape != (3, architecture.classes):
        shapes = f"(3, {architecture.inputs}) to (3, {architecture.classes})"
        raise ValueError(f"{expected} to map {shapes}, not to {tuple(output.shape)}.")
    if not torch.isfinite(output).all():
        raise ValueError(f"{expected} with finite outputs at normal weights and records.")
    first, others = (
        _repeatable(module, torch.cat([records[:1], rest]))
        for rest in (records[1:], _probe(module, len(records.T))[1:])
    )
    if not torch.allclose(first[0], others[0], rtol=1e-4, atol=1e-6 * float(first.detach().abs().max())):
        raise ValueError(f"{expected} without layers in which one record of a batch influences another.")
    wrong = _wrong_gradients(module, records)
    if wrong:
        raise ValueError(
            f"{expected} with a gradient of every record for each parameter, as autograd's: {', '.join(wrong)}."
        )


def _constants(module: nn.Module) -> dict[str, Tensor]:
    """What is never trained, by name: frozen parameters and buffers."""
    frozen = {name: weight.detach() for name, weight in module.named_parameters() if not weight.requires_grad}
    return {**frozen, **dict(module.named_buffers())}


def _statistics(part: nn.Module) -> list[str]:
    """The buffers of one layer that belong to its state, as running statistics do, and constants do not."""
    return [name for name, _ in part.named_buffers(recurse=False) if name not in part._non_persistent_buffers_set]


def _probe(module: nn.Module, inputs: int) -> Tensor:
    """Three random records that the module can read."""
    largest = getattr(module, "largest_id", None)
    return torch.rand(3, inputs) if largest is None else torch.randint(1, largest + 1, (3, inputs)).float()


def _repeatable(module: nn.Module, records: Tensor) -> Tensor:
    """The module's outputs, dropout the same at every call."""
    torch.manual_seed(0)
    outputs: Tensor = module(records)
    return outputs


def _wrong_gradients(module: nn.Module, records: Tensor) -> list[str]:
    """The parameters of which Opacus's gradient of some record is not autograd's, or that no output depends on."""
    trained = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    losses = _repeatable(module, records).logsumexp(1)
    rows = [torch.autograd.grad(loss, list(trained.values()), retain_graph=True, allow_unused=True) for loss in losses]
    hooked = GradSampleModule(module, loss_reduction="sum")
    torch.autograd.backward(_repeatable(hooked, records).logsumexp(1).sum())
    hooked.remove_hooks()
    # the gradient of a bias on all keys of an attention is 0, but for the rounding of what cancels
    largest = max((float(part.abs().max()) for row in rows for part in row if part is not None), default=0.0)
    wrong = []
    for name, parameter, gradients in zip(trained, trained.values(), zip(*rows, strict=True), strict=True):
        sample = getattr(parameter, "grad_sample", None)
        if sample is None or any(gradient is None for gradient in gradients):
            wrong.append(name)
            continue
        true = torch.stack(gradients)
        allowed = 1e-3 * true.abs().max() + 1e-6 * (1.0 + largest)
        if sample.shape != true.shape or bool(((sample - true).abs() > allowed).any()):
            wrong.append(name)
    return wrong


def train(
    spec: DPSGDSpec,
    pool: Pool,
    members: NDArray[np.bool_],
    seeds: Sequence[int],
    *,
    device: str = "cpu",
    progress: Progress | None = None,
) -> TrainedModels:
    """Train a user's own modules by DP-SGD with Opacus, one after another.

    Every step: w <- w - learning_rate / expected_batch_size * (clipped sum + noise), with heavy-ball momentum, or
    the update rule's. What the module draws itself (its first weights, dropout) is fixed by the model's seed too.

    Args:
        spec: What to train; its architecture has `build`, and only parameters that require a gradient are trained.
        pool: Flat records with labels.
        members: Who trains which model, shape (models, records).
        seeds: One nonnegative integer per model.
        device: "cpu" or "cuda".
        progress: Called with 1 after every step of every model.

    Raises:
        ValueError: The module cannot be trained privately.
    """
    place = torch.device(device)
    pool, members, planted = split(spec, pool, members)
    x, y = pool.tensors(place)

    def fit(
        streams: Streams, mask: Tensor, canaries: GradientCanaries | None
    ) -> tuple[dict[str, Tensor], list[int], tuple[int, ...]]:
        module = initialised(spec, streams, place)
        sizes = _descend(spec, module, x, y, mask, streams, canaries, progress)
        return trained_parameters(module), sizes, (len(sizes),)

    check_architecture(spec.architecture)
    with warnings.catch_warnings():
        # Opacus's hooks make torch remark, at every step, that the network's inputs need no gradient: they do not
        warnings.filterwarnings("ignore", message=NO_INPUT_GRADIENT, category=UserWarning)
        return train_each(spec, members, seeds, fit, canaries=planted, engine="opacus", device=place)


def trained_parameters(module: nn.Module) -> dict[str, Tensor]:
    """What is released: the parameters that require a gradient, by name, without those that stay as they were built."""
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


def _descend(
    spec: DPSGDSpec,
    module: nn.Module,
    x: Tensor,
    y: Tensor,
    mask: Tensor,
    streams: Streams,
    canaries: GradientCanaries | None,
    progress: Progress | None,
) -> list[int]:
    """All steps of one model, in place; returns the batch sizes."""
    unclipped = spec.defect.unclipped_class
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimizer = MechanismOptimizer(
        torch.optim.SGD(trained, lr=spec.learning_rate, momentum=spec.momentum)
        if spec.update_rule is None
        else spec.update_rule.build(trained, spec.learning_rate),
        noise=lambda size: step_noise(spec, spec.mechanism, streams, size, x.device),
        clip=float(spec.mechanism.clip),
        clip_norm=spec.defect.clipping_norm(spec.mechanism.clip_norm),
        expected_batch_size=spec.expected_batch_size,
        canaries=canaries,
    )
    hooked = GradSampleModule(module, loss_reduction="sum")
    chunk = max(1, GRADIENT_BYTES // (4 * sum(parameter.numel() for parameter in trained)))
    sizes = []
    for rows in batch_rows(spec, streams, mask):
        for part in rows.tensor_split(math.ceil(len(rows) / chunk)) if len(rows) else ():
            loss = functional.cross_entropy(hooked(x[part]), y[part], reduction="sum")
            torch.autograd.backward(loss)
            optimizer.exempt = None if unclipped is None else y[part] == unclipped
            optimizer.clip_and_accumulate()
        optimizer.release()
        sizes.append(len(rows))
        if progress is not None:
            progress(1)
    hooked.remove_hooks()
    return sizes
