"""Released steps: a canary's likelihood ratio from every gradient that a training loop hands to its optimizer.

DP-SGD promises its epsilon to whoever sees every noisy sum, and an accountant counts that. A loop that trains one model
with an optimizer of torch's shows them without being asked: what its optimizer is given in every step is the noisy sum
over the public batch size, and the weights are there as well. So nobody needs to guess from the final model, in which
Adam and momentum have mixed the steps.

In step t, at the weights w_t, let h be the clipped gradient of the canary and g_i those of the other records, each in
the batch with probability q, and s the noise's standard deviation. The noisy sum is taken to be normal with mean
m = q sum_i g_i and covariance V = s^2 I + q (1 - q) sum_i g_i g_i', plus h where the canary is in the batch. The log
likelihood ratio of all steps is then

    sum_t log(1 - q + q exp(h' V^-1 (r_t - m) - h' V^-1 h / 2)),

r_t the noisy sum (minus the same of the canary that the other arm has, where it has one). The scale s is that of the
training that an audit should find. The sums over i are taken over at most REFERENCES records, times n / REFERENCES.

All of this is a score like any other: it is a function of what was released, of the other records and of the canary,
fixed before the models that count are trained. Where the loop does something else than what is written here, another
loss, another clipping, other batches, it tells the arms apart less well, and what is proven stays proven.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.optim.optimizer import register_optimizer_step_pre_hook

from dpaudit.audit.inputs.user_code import trains_one_model
from dpaudit.audit.trials.engine import Scores, Trainer
from dpaudit.mechanisms.base import Mechanism, NormalCoordinates
from dpaudit.mechanisms.learning.architectures import build_module, parameter_shapes
from dpaudit.mechanisms.learning.spec import DPSGDSpec, GradientSpec, Pool, TrainedModels, TrainingSpec

REFERENCES = 32  # records that stand for all others: their gradients are computed in every step


@dataclass(frozen=True)
class StepWatch:
    """Computes the log likelihood ratio of a canary in every step of a loop, by a hook on torch's optimizers.

    Args:
        x: Features of the records whose gradients are computed, shape (records, inputs): the canary, the one that the
            other arm has where it has one, and records of both arms.
        y: Their labels, shape (records,).
        canaries: How many of them are canaries, 1 or 2.
        records: Of both arms, all together.
        noise_factor: Of the noise that the recipe says: what the ratio supposes.
    """

    x: NDArray[np.float32]
    y: NDArray[np.int64]
    canaries: int
    records: int
    noise_factor: float

    @classmethod
    def of(
        cls, pool: Pool, without: NDArray[np.bool_], with_canary: NDArray[np.bool_], noise_factor: float
    ) -> "StepWatch":
        """For the canary of two arms; records that both have are taken at equal distances.

        Args:
            pool: Of both arms.
            without: Members of the first arm, shape (records,).
            with_canary: Of the second.
            noise_factor: As above.
        """
        common = np.flatnonzero(without & with_canary)
        chosen = common[np.linspace(0, len(common) - 1, min(REFERENCES, len(common))).round().astype(int)]
        rows = np.concatenate([np.flatnonzero(with_canary & ~without), np.flatnonzero(without & ~with_canary), chosen])
        return cls(pool.x[rows], pool.y[rows], len(rows) - len(chosen), len(common), noise_factor)

    @contextmanager
    def ratios(self, spec: DPSGDSpec) -> Iterator[list[float]]:
        """The log likelihood ratio of every step that is taken meanwhile with the weights of the recipe's network.

        Args:
            spec: What the loop does, as the recipe says.
        """
        network = build_without_drawing(spec)
        found: list[float] = []

        def look(weights: Sequence[Tensor], given: Sequence[Tensor]) -> None:
            total = torch.cat([g.flatten() for g in given]).float() * spec.expected_batch_size
            mechanism = spec.mechanism_at(min(len(found), spec.steps - 1))
            gradients = clipped_gradients(network, weights, self.x, self.y, mechanism.clip)
            found.append(self.log_ratio(gradients, total, mechanism, spec.sampling_prob))

        with _steps_seen(spec, look):
            yield found

    def log_ratio(self, gradients: Tensor, total: Tensor, mechanism: Mechanism, prob: float) -> float:
        """The log likelihood ratio of one step.

        Args:
            gradients: Clipped, shape (records, weights), float32.
            total: The noisy sum, shape (weights,).
            mechanism: Its noise, normal.
            prob: Of a record to be in the batch, in (0, 1].
        """
        structure = mechanism.structure
        assert isinstance(structure, NormalCoordinates)  # `can_watch`
        variance = (structure.sigma * self.noise_factor) ** 2
        canaries, others = gradients[: self.canaries], gradients[self.canaries :]
        share = self.records / max(1, len(others))
        centred = total - prob * share * others.sum(0)
        spread = prob * (1.0 - prob) * share  # V = variance I + spread others' others, inverted as Woodbury does
        inner = spread * (others @ others.T).double() + variance * torch.eye(len(others), dtype=torch.float64)
        coefficients = spread * torch.linalg.solve(inner, (others @ canaries.T).double())
        along = (canaries - coefficients.float().T @ others) / variance
        exponents = (along @ centred - (along * canaries).sum(1) / 2.0).double().numpy()
        with np.errstate(divide="ignore"):
            first, *second = np.logaddexp(np.log1p(-prob), np.log(prob) + exponents)
        return float(first - sum(second))


@dataclass(frozen=True)
class StepCount:
    """Counts the steps of a loop, by the same hook."""

    @contextmanager
    def ratios(self, spec: GradientSpec) -> Iterator[list[float]]:
        """A one for every step."""
        found: list[float] = []
        with _steps_seen(spec, lambda weights, given: found.append(1.0)):
            yield found


@contextmanager
def _steps_seen(spec: GradientSpec, look: Callable[[Sequence[Tensor], Sequence[Tensor]], None]) -> Iterator[None]:
    """Show the weights of the recipe's network before every step of an optimizer of theirs, and what it is given."""
    shapes = [tuple(shape) for shape in parameter_shapes(spec.architecture).values()]

    def hook(optimizer: Any, *arguments: Any) -> None:
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        given = [weight.grad for weight in weights]
        if [tuple(w.shape) for w in weights] != shapes or any(g is None for g in given) or is_wrapper(optimizer):
            return
        # a loop may train in another precision than that in which we compute
        look([w.detach().cpu().float() for w in weights], [g.detach().cpu().float() for g in given])

    handle = register_optimizer_step_pre_hook(hook)
    try:
        yield
    finally:
        handle.remove()


@dataclass(frozen=True)
class WatchedLoop:
    """A training function of the user's own, whose steps are watched.

    Args:
        trainer: One for which `trains_one_model`.
        watch: What is computed in every step; the models' `observed` holds its sum, shape (models, 1, 1).
    """

    trainer: Trainer
    watch: StepWatch | StepCount

    def __call__(self, *arguments: Any, **options: Any) -> TrainedModels | Sequence[Any]:
        """Train."""
        return self.trainer(*arguments, watch=self.watch, **options)


def watched(trainer: Trainer, watch: StepWatch | StepCount | None) -> Trainer:
    """A training function with its steps watched, where there is a watch."""
    return trainer if watch is None else WatchedLoop(trainer, watch)


def can_watch(trainer: Trainer, spec: TrainingSpec) -> bool:
    """Whether a training's steps can be watched: a loop of one model, with normal noise and gradients of records."""
    if not (isinstance(spec, DPSGDSpec) and trains_one_model(trainer) and spec.mechanism.clip_norm == 2.0):
        return False
    if not all(isinstance(mechanism.structure, NormalCoordinates) for mechanism in spec.mechanisms):
        return False
    network = build_without_drawing(spec)
    x = np.zeros((2, spec.architecture.inputs), np.float32)
    try:
        clipped_gradients(network, [*network.parameters()], x, np.zeros(2, np.int64), 1.0)
    except (RuntimeError, ValueError, TypeError, IndexError):  # a network that torch.func cannot map over records
        return False
    return True


def released_ratio(models: TrainedModels) -> Scores:
    """The log likelihood ratio of everything that a watched loop released, shape (models,)."""
    assert models.observed is not None  # of a WatchedLoop
    return np.asarray(models.observed.numpy()[:, 0, 0])


def clipped_gradients(
    network: nn.Module, weights: Sequence[Tensor], x: NDArray[np.float32], y: NDArray[np.int64], clip: float
) -> Tensor:
    """Gradients of the cross-entropy of single records, clipped in l2 norm, shape (records, weights), float32.

    Args:
        network: Whose computation it is.
        weights: In the order of its trained parameters, in place of its own.
        x, y: The records.
        clip: Largest norm.
    """
    names = [name for name, weight in network.named_parameters() if weight.requires_grad]

    def loss(parameters: dict[str, Tensor], features: Tensor, label: Tensor) -> Tensor:
        return nn.functional.cross_entropy(functional_call(network, parameters, (features[None],)), label[None])

    made = vmap(grad(loss), in_dims=(None, 0, 0))(
        {name: weight.detach() for name, weight in zip(names, weights, strict=True)}, torch.tensor(x), torch.tensor(y)
    )
    flat = torch.cat([made[name].flatten(1) for name in names], dim=1)
    clipped: Tensor = flat * (clip / flat.norm(dim=1).clamp(min=1e-12)).clamp(max=1.0)[:, None]
    return clipped


def build_without_drawing(spec: DPSGDSpec) -> nn.Module:
    """The recipe's network, to compute with; drawing its weights does not show in torch's generator."""
    with torch.random.fork_rng(devices=[]):
        return build_module(spec.architecture).eval()


def is_wrapper(optimizer: Any) -> bool:
    """Whether it hands its gradients on to another one, as Opacus's does."""
    return hasattr(optimizer, "original_optimizer")
