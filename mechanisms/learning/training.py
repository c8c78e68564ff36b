"""The one function that trains, whatever the network and the algorithm, and the one that queries what it trained."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpaudit.mechanisms.base import Domain
from dpaudit.mechanisms.learning import approximate_minima, convolution, ensemble, gradient_canaries, minimiser
from dpaudit.mechanisms.learning.architectures import (
    BUILDERS,
    DENSE_NETWORKS,
    build_module,
    parameter_count,
    parameter_shapes,
    through_opacus,
)
from dpaudit.mechanisms.learning.dp_ftrl import BATCHES
from dpaudit.mechanisms.learning.spec import (
    ApproximateMinimaSpec,
    DPFTRLSpec,
    DPSGDSpec,
    GradientSpec,
    MinimumSpec,
    OutputPerturbationSpec,
    Pool,
    Progress,
    TrainedModels,
    TrainingSpec,
)

ON_MINIMA = (OutputPerturbationSpec.algorithm, ApproximateMinimaSpec.algorithm)
QUERY_NUMBERS = 2**24  # activations held at a time while many models are queried

DOMAINS = {
    "steps": Domain(1, math.inf, (1, 1000), "noisy steps", closed_low=True, integer=True),
    "sampling_prob": Domain(0.0, 1.0, (1e-3, 1.0), "probability", closed_high=True),
    "expected_batch_size": Domain(0.0, math.inf, (1.0, 1e4), "records"),
    "learning_rate": Domain(0.0, math.inf, (0.01, 10.0), "step size"),
    "momentum": Domain(0.0, 1.0, (0.0, 0.99), "factor", closed_low=True),
    "regularization": Domain(0.0, math.inf, (0.01, 100.0), "Lambda"),
    "batches": BATCHES,
    "gradient_norm": Domain(0.0, math.inf, (1e-8, 1.0), "Gamma"),
}


def resolve_device(device: str) -> str:
    """ "cpu" or "cuda": "auto" is "cuda" where there is one.

    Args:
        device: "auto", "cpu" or "cuda".

    Raises:
        ValueError: Another name, or "cuda" where there is none.

    >>> resolve_device("cpu")
    'cpu'
    """
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"Expected device={device!r} to be 'auto', 'cpu' or 'cuda'.")
    available = torch.cuda.is_available()
    if device == "cuda" and not available:
        raise ValueError("Expected device='cuda' to be there, but torch finds no GPU.")
    return "cuda" if available and device != "cpu" else "cpu"


def train(
    spec: TrainingSpec,
    pool: Pool,
    members: NDArray[np.bool_],
    seeds: Sequence[int],
    *,
    device: str = "cpu",
    progress: Progress | None = None,
) -> TrainedModels:
    """Train one model per seed, privately, each on its own members of the pool.

    Args:
        spec: What to train and how.
        pool: Records with labels.
        members: Who trains which model, bool, shape (models, records).
        seeds: One nonnegative integer per model, which fixes its first weights, batches and noise.
        device: "auto", "cpu" or "cuda".
        progress: Called with the number of units (models x steps) just finished.

    Returns:
        The models in the order of their seeds, and a ledger of what was done.

    Raises:
        TypeError, ValueError: Something does not fit; the message names the value and the rule.
    """
    _check_spec(spec)
    _check_data(spec, pool, members, seeds)
    place = resolve_device(device)
    match spec:
        case OutputPerturbationSpec():
            return minimiser.train(spec, pool, members, seeds, device=place, progress=progress)
        case ApproximateMinimaSpec():
            return approximate_minima.train(spec, pool, members, seeds, device=place, progress=progress)
        case DPSGDSpec() if through_opacus(spec.architecture):
            from dpaudit.mechanisms.learning import opacus_path  # importing Opacus takes seconds

            return opacus_path.train(spec, pool, members, seeds, device=place, progress=progress)
    if spec.architecture.name in DENSE_NETWORKS:
        return ensemble.train(spec, pool, members, seeds, device=place, progress=progress)
    return convolution.train(spec, pool, members, seeds, device=place, progress=progress)


def _check_spec(spec: TrainingSpec) -> None:
    for name, domain in DOMAINS.items():
        if hasattr(spec, name):
            domain.validate(name, getattr(spec, name))
    architecture = spec.architecture
    gradient_canaries.check(spec)
    if architecture.build is None and architecture.name not in BUILDERS:
        raise ValueError(f"Expected architecture={architecture.name!r} to be one of {', '.join(sorted(BUILDERS))}.")
    if (architecture.build is None and architecture.name == "logistic") != isinstance(spec, MinimumSpec):
        raise ValueError(
            f"Expected architecture={architecture.name!r} and algorithm={spec.algorithm!r} to go together: "
            f"'logistic' is for {' and '.join(map(repr, ON_MINIMA))}, and only them."
        )
    if isinstance(spec, DPFTRLSpec) and through_opacus(architecture):
        raise ValueError(f"Expected architecture={architecture.name!r} to be one of linear, fnn, cnn for DP-FTRL.")
    if isinstance(spec, DPSGDSpec):
        _check_batches(spec)
    if isinstance(spec, DPSGDSpec) and spec.schedule:
        _check_schedule(spec)
    if isinstance(spec, GradientSpec):
        known = ("zeros", "glorot", "built") if through_opacus(architecture) else ("zeros", "glorot")
        if spec.init not in known:
            raise ValueError(f"Expected init={spec.init!r} to be one of {', '.join(map(repr, known))}.")
    if isinstance(spec, GradientSpec) and spec.first_weights is not None:
        given = {name: value.shape for name, value in spec.first_weights.items()}
        lacking = {name: shape for name, shape in parameter_shapes(architecture).items() if given.get(name) != shape}
        if lacking:
            raise ValueError(f"Expected first_weights of shapes {given} to have {lacking}.")
    if isinstance(spec, GradientSpec) and spec.update_rule is not None and spec.momentum:
        raise ValueError(f"Expected momentum={spec.momentum} to be 0 with an update rule, which has its own.")
    count = parameter_count(architecture)
    for mechanism in set(spec.mechanisms):
        if mechanism.dimension not in (None, count):
            raise ValueError(f"Expected dimension={mechanism.dimension} to be {count}, the number of parameters.")


def _check_batches(spec: DPSGDSpec) -> None:
    if spec.sampler is not None and spec.sampler.steps != spec.steps:
        raise ValueError(f"Expected steps={spec.steps} to be the {spec.sampler.steps} batches of the sampler.")
    if spec.sampler is not None and spec.schedule:
        raise ValueError("Expected a schedule without a sampler: the steps of a pass are accounted together.")
    if spec.watched is None:
        return
    if spec.architecture.build is not None or spec.architecture.name not in DENSE_NETWORKS:
        names = ", ".join(DENSE_NETWORKS)
        raise ValueError(f"Expected watched with architecture={spec.architecture.name!r} to be one of {names}.")
    count = parameter_count(spec.architecture)
    if spec.watched.shape != (count,) or spec.gradient_canaries:
        raise ValueError(f"Expected watched of shape {spec.watched.shape} to be {(count,)}, without gradient_canaries.")


def _check_schedule(spec: DPSGDSpec) -> None:
    if through_opacus(spec.architecture):
        raise ValueError(
            f"Expected a schedule with linear, fnn or cnn only, not with architecture={spec.architecture.name!r}."
        )
    if len(spec.schedule) != spec.steps:
        raise ValueError(
            f"Expected a schedule of {len(spec.schedule)} mechanisms to have one for each of {spec.steps}."
        )
    orders = {float(mechanism.clip_norm) for mechanism in spec.mechanisms}
    if len(orders) > 1:
        raise ValueError(f"Expected one clip_norm in the whole schedule, not {sorted(orders)}.")


def _check_data(spec: TrainingSpec, pool: Pool, members: NDArray[np.bool_], seeds: Sequence[int]) -> None:
    shape, classes = (len(pool.y), spec.architecture.inputs), spec.architecture.classes
    if pool.x.shape != shape or pool.y.ndim != 1:
        raise ValueError(f"Expected x of shape {pool.x.shape} to be {shape}: a row per label, a column per input.")
    if not np.isfinite(pool.x).all():
        raise ValueError("Expected x to hold finite numbers.")
    if len(pool.y) and (int(pool.y.min()) < 0 or int(pool.y.max()) >= classes):
        raise ValueError(f"Expected labels from {pool.y.min()} to {pool.y.max()} to be in 0..{classes - 1}.")
    if members.dtype != np.bool_ or members.shape != (len(seeds), len(pool.y)):
        raise ValueError(
            f"Expected members of {members.dtype} {members.shape} to be bool {(len(seeds), len(pool.y))}: "
            "a row per seed, a column per record."
        )
    if not len(seeds):
        raise ValueError("Expected at least one seed.")
    if min(seeds) < 0:
        raise ValueError(f"Expected seed={min(seeds)} >= 0.")


def logits(models: TrainedModels, x: NDArray[np.float32] | Tensor) -> Tensor:
    """The outputs of every model at some records, before any softmax.

    Args:
        models: From `train`.
        x: Shape (records, inputs).

    Returns:
        Shape (models, records, classes), float32 on the CPU; for "logistic", (0, <w, x>).
    """
    # torch warns of memory that it must not write, such as a worker's memory map
    records = x.to(torch.float32) if isinstance(x, Tensor) else torch.from_numpy(np.require(x, np.float32, ["C", "W"]))
    with torch.no_grad():
        if models.architecture.build is None and models.architecture.name in DENSE_NETWORKS:
            return _dense_logits(models, records)
        if models.architecture.build is None and models.architecture.name == "logistic":
            scores = models.parameters["weight"] @ records.T
            return torch.stack([torch.zeros_like(scores[:, 0]), scores[:, 0]], dim=2)
        with torch.random.fork_rng(devices=[]):  # building draws weights, which are replaced
            module = build_module(models.architecture).eval()
        count = len(next(iter(models.parameters.values())))
        outputs = []
        for model in range(count):
            module.load_state_dict(models.state_dict(model), strict=False)  # the rest is as it was built
            outputs.append(module(records))
        return torch.stack(outputs)


def _dense_logits(models: TrainedModels, x: Tensor) -> Tensor:
    weights = [tensor for tensor in models.parameters.values() if tensor.dim() == 3]
    biases = [tensor for tensor in models.parameters.values() if tensor.dim() == 2]
    widest = max(w.shape[1] for w in weights)
    step = max(1, QUERY_NUMBERS // (widest * max(len(x), 1)))
    outputs = []
    for start in range(0, len(weights[0]), step):
        part = slice(start, start + step)
        values = x
        for layer, w in enumerate(weights):
            values = values.relu() if layer else values
            values = values @ w[part].mT
            values = values + biases[layer][part][:, None] if biases else values
        outputs.append(values)
    return torch.cat(outputs)
