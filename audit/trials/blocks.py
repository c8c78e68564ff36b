"""A block: some models that are trained and scored together, the unit of work and of evidence.

The models of a block depend on the setup and on their own members and seeds alone, and its size on the setup alone,
never on the machine: so the same seeds give the same bits on any number of workers.
"""

import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dpaudit.audit.inputs.files import InputError, unfit_is_input
from dpaudit.audit.inputs.user_code import trains_one_model
from dpaudit.audit.trials.keys import circumstances, fingerprint, opacus_version
from dpaudit.mechanisms.learning.architectures import (
    C1,
    C2,
    K1,
    K2,
    CNNShape,
    parameter_count,
    parameter_shapes,
    through_opacus,
)
from dpaudit.mechanisms.learning.spec import DPSGDSpec, Ledger, MinimumSpec, Pool, TrainedModels, TrainingSpec
from dpaudit.mechanisms.learning.training import train

Trainer = Callable[..., TrainedModels | Sequence[Mapping[str, Any]]]  # tensors or arrays by name
Score = Callable[[TrainedModels], NDArray[np.float64]]
Scores = NDArray[np.float64]
Trial = tuple[NDArray[np.bool_], int]  # who of the pool trains the model, shape (records,), and its seed
Place = tuple[int, int]  # where a block begins in its list, and which list that is
Block = Sequence[Trial]

BLOCK_SECONDS = 1.0  # nominal: long enough to hide the dispatch, short enough to show progress and to lose
MOST_MODELS = 1024  # in a block
# what training takes on one core, about; a machine's own speed must not decide what is in a block
PRODUCT_SECONDS = 1.2e-10  # a weight's product with one number, forwards, backwards and in the gradient
NOISE_SECONDS = 1e-8  # a number of noise
COIN_SECONDS = 1e-8  # a record that may be sampled
STEP_SECONDS = 8e-5  # a step of one model, whatever is in it
OPACUS_STEP_SECONDS = 5e-3
MINIMUM_SECONDS = 2e-3
MINIMISER_PASSES = 30  # over the records


class TrainingError(ValueError):
    """A trained model is of no use: its parameters are not finite."""


class OutOfTimeError(Exception):
    """The deadline passed inside a block."""


@dataclass(frozen=True)
class TrialSetup:
    """How the models of some trials are trained and scored.

    Args:
        spec: How every model is trained.
        pool: All records; each model trains on its own members.
        score: From trained models to a score each, shape (models,), or a vector each, shape (models, k); picklable.
        trainer: The training function under audit, `mechanisms.learning.training.train` unless the user's own.
        device: "cpu" or "cuda".
    """

    spec: TrainingSpec
    pool: Pool
    score: Score
    trainer: Trainer
    device: str

    @property
    def block(self) -> int:
        """Models in one block: a power of two by the work in it, never by the machine."""
        seconds, loop = nominal_seconds(self.spec), self.trainer
        while hasattr(loop, "trainer"):  # told of noise, or watched
            loop = loop.trainer
        if trains_one_model(loop):
            seconds += self.spec.steps * OPACUS_STEP_SECONDS
        return int(np.clip(2.0 ** np.floor(np.log2(BLOCK_SECONDS / seconds)), 1, MOST_MODELS))


def nominal_seconds(spec: TrainingSpec) -> float:
    """What training one model takes, about, by constants."""
    architecture, batch = spec.architecture, spec.expected_batch_size
    count = products = parameter_count(architecture)
    noise = NOISE_SECONDS * count
    if isinstance(spec, MinimumSpec):
        return MINIMUM_SECONDS + noise + MINIMISER_PASSES * PRODUCT_SECONDS * batch * count
    step = STEP_SECONDS + noise
    if spec.sampling_prob < 1:
        step += COIN_SECONDS * batch / spec.sampling_prob
    if through_opacus(architecture):
        step += OPACUS_STEP_SECONDS
    elif architecture.name == "cnn":  # every position of a map is one more product with the kernel
        shape = CNNShape.of(architecture.inputs, architecture.classes)
        products += C1 * K1 * K1 * (shape.conv1**2 - 1) + C2 * C1 * K2 * K2 * (shape.conv2**2 - 1)
    return spec.steps * (step + PRODUCT_SECONDS * batch * products)


def train_block(setup: TrialSetup, trials: Block, deadline: float | None = None) -> Scores:
    """Train and score the models of one block on one torch thread.

    Args:
        setup: How.
        trials: Members and seed of each model.
        deadline: `time.monotonic()` value after which the package's own training stops between two steps.

    Raises:
        TrainingError: A score is NaN: the trained models are not finite.
        OutOfTimeError: The deadline passed.
        InputError: The user's own trainer does not return what it must.
    """

    def look_at_the_clock(done: int) -> None:
        if deadline is not None and time.monotonic() >= deadline:
            raise OutOfTimeError

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        members, seeds = zip(*trials, strict=True)
        options: dict[str, Any] = {"progress": look_at_the_clock} if setup.trainer is train else {}
        with unfit_is_input() if setup.trainer is train else nullcontext():
            made = setup.trainer(
                setup.spec, _lent(setup), np.stack(members), list(seeds), device=setup.device, **options
            )
        scores = np.asarray(setup.score(_checked(made, setup.spec, len(trials))), dtype=np.float64)
    finally:
        torch.set_num_threads(threads)
    lost = int(np.isnan(scores).reshape(len(trials), -1).any(axis=1).sum())
    if lost:
        raise TrainingError(f"Expected finite models, but {lost} of {len(trials)} trained to infinity or NaN.")
    return scores


def _lent(setup: TrialSetup) -> Pool:
    """The records for one call of the trainer: what a user's own writes over is seen by no other model, nor by us."""
    pool = setup.pool
    return pool if setup.trainer is train else replace(pool, x=pool.x.copy(), y=pool.y.copy())


def _checked(made: Any, spec: TrainingSpec, count: int) -> TrainedModels:
    """What a trainer returned, as trained models of the right number, names and shapes."""
    shapes = parameter_shapes(spec.architecture)
    if isinstance(made, TrainedModels):
        models = made
    else:
        if not isinstance(made, Sequence) or not all(isinstance(state, Mapping) for state in made):
            states = made if isinstance(made, list | tuple) else ()
            item = next((f" of {type(state).__name__}" for state in states if not isinstance(state, Mapping)), "")
            what = f"{type(made).__name__}{item}"
            raise InputError(f"Expected the trainer to return TrainedModels or a list of state dicts, not {what}.")
        made = [
            {name: _tensor(part, count, shapes) for name, part in state.items() if name in shapes} for state in made
        ]
        try:
            parts = {name: torch.stack([state[name].detach().cpu().float() for state in made]) for name in shapes}
        except KeyError as error:
            raise InputError(_expected_states(count, shapes, f"one lacks {error}")) from None
        except RuntimeError as error:
            raise InputError(_expected_states(count, shapes, str(error))) from None
        if len({tuple(state[name].data_ptr() for name in shapes) for state in made}) < len(made):
            raise InputError(
                "Expected the trainer to return a state dict of its own for each model: two are the same arrays, "
                "which hold the model that was trained last. Return copies, such as copy.deepcopy(model.state_dict())."
            )
        if any(state[name].is_complex() for state in made for name in shapes):
            raise InputError("Expected the trainer to return real parameters, not complex ones.")
        models = TrainedModels(parts, spec.architecture, Ledger.unrecorded(spec, "own loop"))
    expected = {name: (count, *shape) for name, shape in shapes.items()}
    returned = {name: tuple(tensor.shape) for name, tensor in models.parameters.items()}
    if returned != expected:
        raise InputError(f"Expected the trainer to return parameters of shapes {expected}, not {returned}.")
    watched = isinstance(spec, DPSGDSpec) and spec.watched is not None and models.observed is not None
    return _with_observed(models, (count, spec.steps, 1)) if watched else models


def _tensor(part: Any, count: int, names: Iterable[str]) -> torch.Tensor:
    """A tensor of a user's, or one on the memory of what NumPy reads as an array, such as an array of JAX."""
    if isinstance(part, torch.Tensor):
        return part
    what = type(part).__name__
    if hasattr(part, "__array__"):
        try:
            array = np.asarray(part)
        except Exception as error:  # theirs
            raise InputError(_expected_states(count, names, f"one holds {what}: {error}")) from error
        what = f"{what} of {array.dtype}"
        if array.dtype.isnative and array.dtype.kind in "biufc" and array.dtype.char not in "gG":
            whole = all(step >= 0 and step % array.itemsize == 0 for step in array.strides)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that it may not be written to: nobody does
                return torch.from_numpy(array if whole else array.copy())
    raise InputError(_expected_states(count, names, f"one holds {what} in a tensor's place"))


def _with_observed(models: TrainedModels, expected: tuple[int, int, int]) -> TrainedModels:
    """The models with what they observed as a tensor of that shape (models, steps, 1)."""
    try:
        seen = torch.as_tensor(models.observed).detach().cpu().double()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"Expected the trainer's observed to be a tensor of floats: {error}.") from error
    shape, finite = tuple(seen.shape), bool(seen.isfinite().all())
    if shape == expected and finite:
        return replace(models, observed=seen)
    what = "with infinities or NaN" if shape == expected else str(shape)
    raise InputError(f"Expected the trainer's observed of shape {expected} (models, steps, 1), finite, not {what}.")


def _expected_states(count: int, names: Iterable[str], fault: str) -> str:
    return f"Expected {count} state dicts of tensors or arrays with {', '.join(names)} from the trainer: {fault}."


def cut(size: int, lists: Sequence[Block]) -> dict[Place, Block]:
    """The lists in blocks of `size` models, the lists taking turns."""
    return {
        (start, which): trials[start : start + size]
        for start in range(0, max(map(len, lists)), size)
        for which, trials in enumerate(lists)
        if start < len(trials)
    }


def setup_key(setup: TrialSetup) -> str:
    """SHA-256 of how models are trained and scored.

    Raises:
        NoSourceError: The source of the trainer or of the score cannot be read.
    """
    return fingerprint(
        {
            "spec": setup.spec,
            "x": setup.pool.x,
            "y": setup.pool.y,
            "score": setup.score,
            "trainer": setup.trainer,
            "opacus": opacus_version(setup.spec.architecture),
            "circumstances": circumstances(setup.device),
        }
    )


def block_keys(base: str, blocks: Mapping[Place, Block]) -> dict[Place, str]:
    """What each block's scores are kept under: the key of the setup, and the members and seeds of its own models."""
    rows = {id(members): members for block in blocks.values() for members, _ in block}  # arms share one row
    digests = {key: fingerprint({"members": members}) for key, members in rows.items()}
    return {
        place: fingerprint({"setup": base, "trials": [(digests[id(members)], seed) for members, seed in block]})
        for place, block in blocks.items()
    }


def trial_seed(seed: int, arm: int, trial: int) -> int:
    """The seed of one model, distinct and independent for every (arm, trial)."""
    state = np.random.SeedSequence(seed, spawn_key=(arm, trial)).generate_state(1, np.uint64)
    return int(state[0] >> np.uint64(1))
