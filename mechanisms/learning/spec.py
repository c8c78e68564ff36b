"""What is trained, what happened, and what came out: the nouns that every training path shares."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpaudit.mechanisms.base import Mechanism
from dpaudit.mechanisms.defects import CORRECT, Defect
from dpaudit.mechanisms.learning.update_rules import UpdateRule

Algorithm = Literal["dp-sgd", "dp-ftrl", "output-perturbation", "approximate-minima"]
Progress = Callable[[int], None]  # called with the number of units (models x steps) just finished


@dataclass(frozen=True)
class Architecture:
    """A network by name, as data.

    Args:
        name: "linear" (softmax regression), "fnn" (hidden ReLU layers), "cnn" (the papers' 26,000 parameters),
            "bag-of-embeddings", "transformer" (they read token ids), or any name given together with `build`.
        inputs: Features of one record.
        classes: Outputs.
        kwargs: `hidden` for "fnn" (the width or the widths of its hidden layers), `bias` for "linear"; otherwise
            passed to `build`.
        build: For a user's own module: called as build(inputs, classes, **kwargs); None for the named ones.
    """

    name: str
    inputs: int
    classes: int
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    build: Callable[..., torch.nn.Module] | None = None


class BatchSampler(Protocol):
    """Who is in which batch of a whole training, drawn at once; `verify.samplers` has the ones with theorems."""

    @property
    def steps(self) -> int:
        """Batches of the whole training."""

    def draw(self, rng: np.random.Generator, records: int) -> list[NDArray[np.int_]]:
        """Indices in 0..records-1 for every batch; an index that occurs twice is in the batch twice."""


@dataclass(frozen=True, kw_only=True)
class _PrivateTraining:
    """What every algorithm trains, with which noise.

    Args:
        architecture: What is trained.
        mechanism: Noise; its dimension is the number of parameters.
        expected_batch_size: The PUBLIC divisor of the noisy sum.
        defect: A planted fault (mechanisms/defects.py).
    """

    architecture: Architecture
    mechanism: Mechanism
    expected_batch_size: float
    defect: Defect = CORRECT

    @property
    def mechanisms(self) -> tuple[Mechanism, ...]:
        """Every mechanism that the training may draw from."""
        return (self.mechanism,)


@dataclass(frozen=True, kw_only=True)
class _GradientTraining(_PrivateTraining):
    """Descent along noisy sums of clipped per-record gradients, completely: equal specs and seeds give equal bits.

    Args:
        architecture, mechanism, expected_batch_size, defect: As everywhere; the noise is on the SUM.
        steps: Noisy steps, at least 1.
        learning_rate: Step size.
        momentum: Heavy-ball momentum of the noisy gradient.
        update_rule: An optimizer of torch's in place of plain descent with that momentum.
        init: "zeros", "glorot" (Glorot normal weights, zero biases), or "built": what the module was built with, such
            as the weights of a pretrained one; for networks trained through Opacus.
        init_seed: Seed of initial weights shared by all models, None: every model draws its own. Whoever attacks
            a mechanism that starts from public weights knows them, so an audit fixes them.
        first_weights: The initial weights of all models in place of `init`, by torch's names: public as those are.
    """

    steps: int
    learning_rate: float = 0.1
    momentum: float = 0.0
    update_rule: UpdateRule | None = None
    init: Literal["zeros", "glorot", "built"] = "glorot"
    init_seed: int | None = None
    first_weights: Mapping[str, NDArray[np.float32]] | None = None

    def mechanism_at(self, step: int) -> Mechanism:
        """The mechanism of one step, from 0."""
        return self.mechanism


@dataclass(frozen=True, kw_only=True)
class DPSGDSpec(_GradientTraining):
    """DP-SGD: a batch and fresh noise at every step.

    Args:
        sampling_prob: Share of the records expected in a batch, in (0, 1]: the Poisson rate where there is no sampler;
            1.0 is full batch.
        sampler: Draws the batches in place of Poisson sampling, over ALL records of the pool: who is no member of a
            model is a ghost that keeps its place in the order and contributes nothing.
        schedule: The mechanism of every step in place of `mechanism`, from `schedule.step_mechanisms`; () for the same
            in all.
        gradient_canaries: The last so many records of the pool are canaries with a given gradient each
            (`gradient_canaries.py`), for an audit from inside; without a sampler only.
        watched: A direction among the weights, flat in torch's order, along which the noisy sum of every step is kept
            in `TrainedModels.observed`; networks of linear layers only. None: nothing is kept.
    """

    algorithm: ClassVar[Algorithm] = "dp-sgd"
    sampling_prob: float
    sampler: BatchSampler | None = None
    schedule: tuple[Mechanism, ...] = ()
    gradient_canaries: int = 0
    watched: NDArray[np.float32] | None = None

    @property
    def mechanisms(self) -> tuple[Mechanism, ...]:
        """Every mechanism that the training may draw from."""
        return (self.mechanism, *self.schedule)

    def mechanism_at(self, step: int) -> Mechanism:
        """The mechanism of one step, from 0."""
        return self.schedule[step] if self.schedule else self.mechanism

    @property
    def visits(self) -> int:
        """The batches that one record is expected in, at least 1."""
        return max(1, round(self.steps * self.sampling_prob))

    def first_step(self) -> "DPSGDSpec":
        """The training cut short after one step; its batch is no longer a part of a sampler's passes."""
        return replace(self, steps=1, sampler=None, schedule=self.schedule[:1])


@dataclass(frozen=True, kw_only=True)
class DPFTRLSpec(_GradientTraining):
    """DP-FTRL: passes over batches in a fixed public order, with noise on the released nodes of a tree of their sums.

    Args:
        batches: Batches of one pass.
    """

    algorithm: ClassVar[Algorithm] = "dp-ftrl"
    sampling_prob: ClassVar[float] = 1.0
    batches: int

    @property
    def visits(self) -> int:
        """The batches that one record is in at most: one of every pass."""
        return -(-self.steps // self.batches)


@dataclass(frozen=True, kw_only=True)
class _MinimumTraining(_PrivateTraining):
    """One noisy release of the minimiser of a regularised convex objective, without gradient steps.

    Args:
        architecture, mechanism, expected_batch_size, defect: As everywhere.
        regularization: Lambda > 0 of the objective sum of losses + (Lambda / 2)|w|^2.
    """

    steps: ClassVar[int] = 1
    sampling_prob: ClassVar[float] = 1.0
    regularization: float


@dataclass(frozen=True, kw_only=True)
class OutputPerturbationSpec(_MinimumTraining):
    """Output perturbation: the minimiser of a logistic regression, and `mechanism` is the noise on it."""

    algorithm: ClassVar[Algorithm] = "output-perturbation"


@dataclass(frozen=True, kw_only=True)
class ApproximateMinimaSpec(_MinimumTraining):
    """Approximate minima: `mechanism` is the noise in the objective.

    Args:
        output_mechanism: Noise on the approximate minimum.
        gradient_norm: Gamma, the largest l2 norm that the gradient of the perturbed objective may have there.
        loss: "logistic" or "huber".
    """

    algorithm: ClassVar[Algorithm] = "approximate-minima"
    output_mechanism: Mechanism
    gradient_norm: float
    loss: Literal["logistic", "huber"] = "logistic"

    @property
    def mechanisms(self) -> tuple[Mechanism, ...]:
        """Every mechanism that the training may draw from."""
        return (self.mechanism, self.output_mechanism)


GradientSpec = DPSGDSpec | DPFTRLSpec
MinimumSpec = OutputPerturbationSpec | ApproximateMinimaSpec
TrainingSpec = GradientSpec | MinimumSpec
SPECS: dict[Algorithm, type[TrainingSpec]] = {
    kind.algorithm: kind for kind in (DPSGDSpec, DPFTRLSpec, OutputPerturbationSpec, ApproximateMinimaSpec)
}


@dataclass(frozen=True)
class Pool:
    """Records that models may train on; each model gets a subset.

    Args:
        x: Features, shape (records, inputs), float32.
        y: Labels, shape (records,), int64.
    """

    x: NDArray[np.float32]
    y: NDArray[np.int64]

    def tensors(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Features and labels on a device; copied first where torch would warn of memory it must not write."""
        x, y = np.require(self.x, np.float32, ["C", "W"]), np.require(self.y, np.int64, ["C", "W"])
        return torch.from_numpy(x).to(device), torch.from_numpy(y).to(device)


@dataclass(frozen=True)
class Ledger:
    """What really happened, from which a claim is derived: counted by the loop, not copied from the spec.

    Args:
        noise_draws: Noise vectors drawn for one model.
        sampling_prob: Share of the records expected in a batch: the rate where sampling was Poisson.
        batch_sizes: Realised batch sizes of model 0, in order.
        divisor: The public divisor used.
        clip, clip_norm: The clipping done (differs from the mechanism's under a defect; the largest of a schedule).
        device: "cpu" or "cuda".
        engine: "ensemble", "convolution", "opacus" or "minimiser".
        releases: The releases that any one record entered at most, a count for each phase of the history: for a
            schedule by mechanism in order of first use, for approximate minima that of the perturbed objective and
            that of its approximate minimum. () where the loop did not count them.
    """

    noise_draws: int
    sampling_prob: float
    batch_sizes: tuple[int, ...]
    divisor: float
    clip: float
    clip_norm: float
    device: str
    engine: str
    releases: tuple[int, ...] = ()

    @classmethod
    def unrecorded(cls, spec: TrainingSpec, engine: str = "unrecorded") -> "Ledger":
        """What stands in for the ledger of models that came without one."""
        return cls(
            noise_draws=0,
            sampling_prob=spec.sampling_prob,
            batch_sizes=(),
            divisor=spec.expected_batch_size,
            clip=spec.mechanism.clip,
            clip_norm=spec.mechanism.clip_norm,
            device="cpu",
            engine=engine,
        )


@dataclass(frozen=True)
class TrainedModels:
    """Some trained models of one spec, in the order of their seeds.

    Args:
        parameters: Name to tensor of shape (models, *shape), CPU float32, in torch's state_dict names and order.
        architecture: What they are.
        ledger: What happened.
        observed: What every step showed of every gradient canary, shape (models, steps, canaries), or along the
            watched direction, shape (models, steps, 1); None without either.
    """

    parameters: dict[str, Tensor]
    architecture: Architecture
    ledger: Ledger
    observed: Tensor | None = None

    def state_dict(self, model: int) -> dict[str, Tensor]:
        """The state dict of one model."""
        return {name: tensor[model].clone() for name, tensor in self.parameters.items()}
