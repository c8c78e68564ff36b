"""Training of one model after another, whatever its gradients: sampling, clip factors, noise, and the outer loop."""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpaudit.mechanisms.base import Mechanism
from dpaudit.mechanisms.learning import poisson
from dpaudit.mechanisms.learning.architectures import build_module
from dpaudit.mechanisms.learning.gradient_canaries import GradientCanaries
from dpaudit.mechanisms.learning.noise import Streams, draw, noise_stream
from dpaudit.mechanisms.learning.products import full_float32
from dpaudit.mechanisms.learning.spec import DPSGDSpec, GradientSpec, Ledger, TrainedModels

# (streams, members, canaries) -> parameters, batch sizes, releases that any one record entered at most, phase by phase
Fit = Callable[[Streams, Tensor, GradientCanaries | None], tuple[dict[str, Tensor], list[int], tuple[int, ...]]]


def clip_factors(norms: Tensor, clip: float, exempt: Tensor | None) -> Tensor:
    """min(1, clip / norm) for every record, 1 for the exempt ones (a planted fault).

    Args:
        norms: Gradient norms, shape (records,).
        clip: Bound on one record's contribution.
        exempt: Bool, shape (records,), or None for nobody.
    """
    factors = (clip / norms).clamp_max_(1.0)
    return factors if exempt is None else factors.masked_fill_(exempt, 1.0)


def batch_rows(spec: GradientSpec, streams: Streams, members: Tensor) -> Iterator[Tensor]:
    """The rows of the batch of every step: what the sampler draws, or Poisson batches.

    Args:
        spec: Holds the sampler, or the rate.
        streams: The model's; only those of sampling move.
        members: Bool, shape (records,): all records are drawn from, and only members are in.

    Yields:
        Indices, ascending, shape (batch,).
    """
    sampler = spec.sampler if isinstance(spec, DPSGDSpec) else None
    if sampler is None:
        yield from (_poisson_rows(spec, streams, members) for _ in range(spec.steps))
        return
    for batch in sampler.draw(streams.batches, len(members)):
        rows = torch.from_numpy(np.sort(batch)).to(members.device)
        yield rows[members[rows]]


def _poisson_rows(spec: GradientSpec, streams: Streams, members: Tensor) -> Tensor:
    """The rows of one Poisson batch: every member independently with probability q; all of them when q = 1."""
    if spec.sampling_prob == 1:
        return members.nonzero().squeeze(1)
    # the whole pool draws, so whether a record is drawn does not depend on who else is a member
    rows = poisson.places([streams.sampling], spec.sampling_prob, len(members))[0]
    rows = rows[rows < len(members)]
    return rows[members[rows]]


def step_noise(spec: GradientSpec, mechanism: Mechanism, streams: Streams, size: int, device: torch.device) -> Tensor:
    """The noise of one step on the SUM, planted faults included.

    Args:
        spec: Holds the fault.
        mechanism: Of this step.
        streams: The model's; only the noise stream moves.
        size: Number of trained parameters.
        device: Where it is drawn.

    Returns:
        One flat float32 vector in torch's parameter order.
    """
    return draw(mechanism, noise_stream(streams, spec.defect), size, device).mul_(
        spec.defect.noise_scale(spec.expected_batch_size)
    )


def initialised(spec: GradientSpec, streams: Streams, device: torch.device) -> nn.Module:
    """A new module with its first weights.

    Building it and, later, dropout draw from torch's global state, which is seeded here from the model's own stream.
    Glorot initialization is for weights of two and more dimensions; biases become 0, other vectors (the gains of
    normalisation layers) and frozen parameters keep what they were built with, as with "built" all do.
    """
    source = streams if spec.init_seed is None else Streams(spec.init_seed, device)
    torch.manual_seed(source.init.initial_seed())
    # a copy, for `build` may hand out one module again and again, such as a pretrained one
    module = deepcopy(build_module(spec.architecture)).to(device)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if not parameter.requires_grad or spec.init == "built":
                continue
            if spec.init == "zeros" or (parameter.dim() < 2 and name.endswith("bias")):
                parameter.zero_()
            elif parameter.dim() >= 2:
                nn.init.xavier_normal_(parameter, generator=source.init)
    if spec.first_weights is not None:
        # what is not trained stays as it was built
        first = {name: torch.tensor(value) for name, value in spec.first_weights.items()}
        module.load_state_dict(first, strict=False)
    torch.manual_seed(streams.init.initial_seed())
    return module


def train_each(
    spec: GradientSpec,
    members: NDArray[np.bool_],
    seeds: Sequence[int],
    fit: Fit,
    *,
    canaries: NDArray[np.bool_] | None,
    engine: str,
    device: torch.device,
) -> TrainedModels:
    """Train one model per seed with `fit`, and put them together with the ledger of what was done.

    Args:
        spec: What is trained.
        members: Who trains which model, bool, shape (models, records).
        seeds: One nonnegative integer per model.
        fit: Trains one model.
        canaries: Which gradient canaries train which model, bool, shape (models, canaries); None: there are none.
        engine: Name of the path, for the ledger.
        device: Where it runs.
    """
    models, sizes, releases, observed = [], [], [], list[Tensor]()
    with (
        full_float32(),  # TF32 would round to 10 bits, and cuDNN's fastest algorithms differ from run to run
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),  # `initialised` seeds it
    ):
        for model, (row, seed) in enumerate(zip(members, seeds, strict=True)):
            mask, streams, planted = torch.from_numpy(np.array(row)).to(device), Streams(seed, device), None
            if canaries is not None and isinstance(spec, DPSGDSpec):
                planted = GradientCanaries(spec, canaries[model : model + 1], [streams])
            parameters, batch_sizes, entered = fit(streams, mask, planted)
            observed += [] if planted is None else [planted.observed]
            models.append({name: tensor.detach().cpu() for name, tensor in parameters.items()})
            sizes.append(batch_sizes)
            releases.append(entered)
    ledger = Ledger(
        noise_draws=len(sizes[0]),
        sampling_prob=spec.sampling_prob,
        batch_sizes=tuple(sizes[0]),
        divisor=spec.expected_batch_size,
        clip=max(float(spec.mechanism_at(step).clip) for step in range(spec.steps)),
        clip_norm=spec.defect.clipping_norm(spec.mechanism.clip_norm),
        device=device.type,
        engine=engine,
        releases=releases[0],
    )
    stacked = {name: torch.stack([model[name] for model in models]) for name in models[0]}
    return TrainedModels(stacked, spec.architecture, ledger, torch.cat(observed) if observed else None)
