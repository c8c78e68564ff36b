"""What the paths that train one model after another share: norms, clipping, sampling, noise, and the outer loop."""

import math
from collections.abc import Callable, Sequence
from copy import deepcopy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpaudit.mechanisms.base import Mechanism
from dpaudit.mechanisms.broken import Defect
from dpaudit.mechanisms.learning.architectures import build_module
from dpaudit.mechanisms.learning.noise import Streams, draw
from dpaudit.mechanisms.learning.spec import Ledger, TrainedModels, TrainingSpec

# (streams, members) -> parameters, batch sizes, the releases that any one record entered at most, phase by phase
Fit = Callable[[Streams, Tensor], tuple[dict[str, Tensor], list[int], tuple[int, ...]]]


def row_norms(values: Tensor, order: float) -> Tensor:
    """The l_p norm of every row, (sum_j |v_ij|^p)^(1/p).

    Args:
        values: Shape (rows, columns).
        order: p in [1, inf].

    Returns:
        Shape (rows,).
    """
    if order == 2:
        norms: Tensor = torch.linalg.vector_norm(values, dim=1)
        return norms
    size = values.abs()
    if order == 1:
        return size.sum(dim=1)
    largest = size.amax(dim=1)
    if math.isinf(order):
        return largest
    # |v|^p of small entries underflows at large p, and a norm that comes out as 0 would leave the row unclipped
    unit = size.div_(largest.clamp_min(torch.finfo(values.dtype).tiny)[:, None])
    return largest * unit.pow_(order).sum(dim=1).pow_(1 / order)


def clip_factors(norms: Tensor, clip: float, exempt: Tensor | None) -> Tensor:
    """min(1, clip / norm) for every record, 1 for the exempt ones (a planted fault).

    Args:
        norms: Gradient norms, shape (records,).
        clip: Bound on one record's contribution.
        exempt: Bool, shape (records,), or None for nobody.
    """
    factors = (clip / norms).clamp_max_(1.0)
    return factors if exempt is None else factors.masked_fill_(exempt, 1.0)


def clipping(spec: TrainingSpec) -> tuple[float, float, int | None]:
    """(clip, clip_norm, class left unclipped) as it is really done, planted faults included."""
    defect = spec.defect or Defect()
    order = spec.mechanism.clip_norm if defect.clip_norm is None else defect.clip_norm
    return float(spec.mechanism.clip), float(order), defect.unclipped_class


def sample_rows(spec: TrainingSpec, streams: Streams, members: Tensor) -> Tensor:
    """The rows of one Poisson batch: every member independently with probability q; all of them when q = 1.

    Args:
        spec: Holds q.
        streams: The model's; only the sampling stream moves.
        members: Bool, shape (records,).

    Returns:
        Indices, ascending, shape (batch,).
    """
    if spec.sampling_prob == 1:
        return members.nonzero().squeeze(1)
    # the whole pool draws, so a record's coin does not depend on who else is a member
    coins = torch.rand(len(members), generator=streams.sampling, device=members.device)
    return ((coins < spec.sampling_prob) & members).nonzero().squeeze(1)


def step_noise(spec: TrainingSpec, mechanism: Mechanism, streams: Streams, size: int, device: torch.device) -> Tensor:
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
    defect = spec.defect or Defect()
    if defect.fixed_seed is not None:
        streams.noise.manual_seed(defect.fixed_seed)
    noise = draw(mechanism, streams.noise, size, device)
    factor = defect.noise_factor / (spec.expected_batch_size if defect.divide_before_noise else 1.0)
    return noise if factor == 1 else noise * factor


def initialised(spec: TrainingSpec, streams: Streams, device: torch.device) -> nn.Module:
    """A new module with its first weights.

    Building it and, later, dropout draw from torch's global state, which is seeded here from the model's own stream.
    Glorot initialization is for weights of two and more dimensions; biases become 0, other vectors (the gains of
    normalisation layers) and frozen parameters keep what they were built with.
    """
    source = streams if spec.init_seed is None else Streams(spec.init_seed, device)
    torch.manual_seed(source.init.initial_seed())
    # a copy, for `build` may hand out one module again and again, such as a pretrained one
    module = deepcopy(build_module(spec.architecture)).to(device)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if not parameter.requires_grad:
                continue
            if spec.init == "zeros" or (parameter.dim() < 2 and name.endswith("bias")):
                parameter.zero_()
            elif parameter.dim() >= 2:
                nn.init.xavier_normal_(parameter, generator=source.init)
    torch.manual_seed(streams.init.initial_seed())
    return module


def train_each(
    spec: TrainingSpec, members: NDArray[np.bool_], seeds: Sequence[int], fit: Fit, *, engine: str, device: torch.device
) -> TrainedModels:
    """Train one model per seed with `fit`, and put them together with the ledger of what was done.

    Args:
        spec: What is trained.
        members: Who trains which model, bool, shape (models, records).
        seeds: One nonnegative integer per model.
        fit: Trains one model.
        engine: Name of the path, for the ledger.
        device: Where it runs.

    Raises:
        ValueError: The specification is neither DP-SGD nor DP-FTRL, or members and seeds disagree.
    """
    if spec.algorithm not in ("dp-sgd", "dp-ftrl"):
        raise ValueError(
            f"Expected algorithm={spec.algorithm!r} to be 'dp-sgd' or 'dp-ftrl' for architecture "
            f"{spec.architecture.name!r}."
        )
    if len(members) != len(seeds) or not len(seeds):
        raise ValueError(
            f"Expected members of {len(members)} models and {len(seeds)} seeds to be equally many, at least one."
        )
    models, sizes, releases = [], [], []
    with (
        # TF32 would round products to 10 bits, and cuDNN's fastest algorithms are not the same from run to run
        torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False),
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),  # `initialised` seeds it
    ):
        for row, seed in zip(members, seeds, strict=True):
            mask = torch.from_numpy(np.array(row)).to(device)
            parameters, batch_sizes, entered = fit(Streams(seed, device), mask)
            models.append({name: tensor.detach().cpu() for name, tensor in parameters.items()})
            sizes.append(batch_sizes)
            releases.append(entered)
    clip, clip_norm, _ = clipping(spec)
    ledger = Ledger(
        noise_draws=len(sizes[0]),
        sampling_prob=spec.sampling_prob,
        batch_sizes=tuple(sizes[0]),
        divisor=spec.expected_batch_size,
        clip=max((float(mechanism.clip) for mechanism in spec.schedule), default=clip),
        clip_norm=clip_norm,
        device=device.type,
        engine=engine,
        releases=releases[0],
    )
    stacked = {name: torch.stack([model[name] for model in models]) for name in models[0]}
    return TrainedModels(stacked, spec.architecture, ledger)
