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
from dpaudit.mechanisms.learning.noise import Streams
from dpaudit.mechanisms.learning.norms import row_norms
from dpaudit.mechanisms.learning.sequential import clip_factors, initialised, sample_rows, step_noise, train_each
from dpaudit.mechanisms.learning.spec import Architecture, DPSGDSpec, Pool, Progress, TrainedModels

GRADIENT_BYTES = 2**28  # per-record gradients held at a time; larger batches pass in physical chunks


class MechanismOptimizer(DPOptimizer):  # type: ignore[misc]  # Opacus ships no types
    """Opacus's optimizer with clipping in any l_p norm and noise from any mechanism: w -= lr/B (clipped sum + noise).

    Args:
        optimizer: The torch optimizer that takes the step.
        noise: Size of the flat vector to one draw of noise on the SUM, in torch's parameter order.
        clip: Bound on one record's gradient.
        clip_norm: The p of its norm, over all parameters together.
        expected_batch_size: The public divisor B of the noisy sum.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        noise: Callable[[int], Tensor],
        clip: float,
        clip_norm: float,
        expected_batch_size: float,
    ) -> None:
        # noise_multiplier only feeds Opacus's own Gaussian, which add_noise below replaces
        super().__init__(
            optimizer,
            noise_multiplier=0.0,
            max_grad_norm=clip,
            expected_batch_size=expected_batch_size,
            loss_reduction="mean",
        )
        self.noise = noise
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
        pieces = self.noise(sum(sizes)).split_with_sizes(sizes)
        for parameter, piece in zip(self.params, pieces, strict=True):
            if parameter.summed_grad is None:  # an empty batch: the noise is added all the same
                parameter.summed_grad = torch.zeros_like(parameter)
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
    """Refuse a module whose records have no gradient of their own, so that clipping it would bound nothing.

    Opacus's validators know layers by type; that no record's output depends on another record is tested besides, at
    random weights, by the gradient of the first output with respect to the other inputs.

    Raises:
        ValueError: A layer keeps statistics or is one that Opacus cannot handle (BatchNorm, LSTM), records influence
            each other, the output has the wrong shape, or nothing can be trained.
    """
    module = deepcopy(build_module(architecture))  # whose weights are overwritten below
    expected = f"Expected architecture={architecture.name!r}"
    refused = [
        f"{name or 'the module'} ({type(part).__name__})"
        for name, part in module.named_modules()
        if ModuleValidator.VALIDATORS.get(type(part), lambda _: [])(part) or list(part.buffers(recurse=False))
    ]
    if refused:
        raise ValueError(
            f"{expected} without layers that have no per-record gradient or keep buffers: {', '.join(refused)}."
        )
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ValueError(f"{expected} to have trainable parameters.")
    with torch.no_grad():  # first weights of 0 would hide every influence
        for parameter in module.parameters():
            parameter.normal_()
    records = torch.rand(3, architecture.inputs, requires_grad=True)
    output = module(records)
    if output.shape != (3, architecture.classes):
        shapes = f"(3, {architecture.inputs}) to (3, {architecture.classes})"
        raise ValueError(f"{expected} to map {shapes}, not to {tuple(output.shape)}.")
    mixture = (output[0] * torch.rand(architecture.classes)).sum()
    (influence,) = torch.autograd.grad(mixture, records, allow_unused=True)
    if influence is not None and bool((influence[1:] != 0).any()):
        raise ValueError(f"{expected} without layers in which one record of a batch influences another.")


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
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # the probe below is no secret, and the same module is always judged the same
        check_architecture(spec.architecture)
    place = torch.device(device)
    x, y = pool.tensors(place)

    def fit(streams: Streams, mask: Tensor) -> tuple[dict[str, Tensor], list[int], tuple[int, ...]]:
        module = initialised(spec, streams, place)
        sizes = _descend(spec, module, x, y, mask, streams, progress)
        return module.state_dict(), sizes, (len(sizes),)

    with warnings.catch_warnings():
        # Opacus's hooks make torch remark, at every step, that the network's inputs need no gradient: they do not
        warnings.filterwarnings("ignore", message="Full backward hook is firing", category=UserWarning)
        return train_each(spec, members, seeds, fit, engine="opacus", device=place)


def _descend(
    spec: DPSGDSpec,
    module: nn.Module,
    x: Tensor,
    y: Tensor,
    mask: Tensor,
    streams: Streams,
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
    )
    hooked = GradSampleModule(module, loss_reduction="sum")
    chunk = max(1, GRADIENT_BYTES // (4 * sum(parameter.numel() for parameter in trained)))
    sizes = []
    for _ in range(spec.steps):
        rows = sample_rows(spec, streams, mask)
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
