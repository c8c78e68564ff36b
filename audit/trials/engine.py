"""Trials on this machine: blocks of models trained in worker processes, one torch thread each.

The block is the unit of work and of evidence. Its models depend on the setup and on their own members and seeds
alone, so the same seeds give the same bits on any number of workers, and an interrupted run continues.
"""

import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import joblib
import numpy as np
import torch
from numpy.typing import NDArray

from dpaudit.audit.inputs.sources import Stage
from dpaudit.audit.trials.store import TrialStore, circumstances, fingerprint
from dpaudit.mechanisms.learning.architectures import parameter_count
from dpaudit.mechanisms.learning.spec import Pool, TrainedModels, TrainingSpec

Trainer = Callable[..., TrainedModels]
Score = Callable[[TrainedModels], NDArray[np.float64]]
Scores = NDArray[np.float64]
Trial = tuple[NDArray[np.bool_], int]  # who of the pool trains the model, shape (records,), and its seed
Place = tuple[int, int]  # where a block begins in its list, and which list that is

BLOCK_FLOPS = 1e10  # about a second of work: long enough to hide the dispatch, short enough to show progress
SERIAL_SECONDS = 6.0  # starting workers takes a few seconds, which shorter work does not repay


def no_progress(what: str, total: int) -> Callable[[int], None]:
    """A `Stage` that shows nothing."""
    return lambda done: None


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
        """Models in one block: by the work in it, never by the machine."""
        batch = self.spec.expected_batch_size
        flops = 4.0 * self.spec.steps * batch * parameter_count(self.spec.architecture)
        return int(np.clip(2.0 ** np.floor(np.log2(BLOCK_FLOPS / flops)), 4, 1024))


@dataclass
class TrialRunner:
    """Where the trials of an audit are kept, how many train at once and until when, and why they ended early.

    Args:
        store: Where finished blocks are kept and looked up.
        workers: Processes at most.
        deadline: `time.monotonic()` value after which no block is started.
        stage: Told what begins and how long it is; returns the function told of progress.
        stopped: Why the last trials were fewer than asked for: "" (all done), "budget" or "interrupted".
    """

    store: TrialStore = field(default_factory=lambda: TrialStore(None))
    workers: int = 1
    deadline: float | None = None
    stage: Stage = no_progress
    stopped: str = ""

    def run(self, setup: TrialSetup, *lists: Sequence[Trial], what: str = "Training models") -> tuple[Scores, ...]:
        """Train and score the models of some lists of trials, or as many as the deadline and the user allow.

        Every list is cut into blocks, and the blocks of the lists take turns. Stopping early by the clock is
        independent of the scores, so bounds stay valid for what was done.

        Args:
            setup: How to train and score.
            lists: Members and seed of every model; the two arms of a game are two lists.
            what: What progress is shown as.

        Returns:
            For each list the scores of its first models, shape (models,) or (models, k), equally many of lists of the
            same length.
        """
        size, longest = setup.block, max(map(len, lists))
        advance = self.stage(what, sum(map(len, lists)))
        blocks = {
            (start, which): trials[start : start + size]
            for start in range(0, longest, size)
            for which, trials in enumerate(lists)
            if start < len(trials)
        }
        keys = _keys(setup, blocks)
        done: dict[Place, Scores] = {}
        for place, block in blocks.items():
            known = self.store.get(keys[place])
            if known is not None:
                done[place] = known
                advance(len(block))
        waiting = {place: block for place, block in blocks.items() if place not in done}
        self.stopped = ""
        try:
            for place, scores in _train_blocks(setup, waiting, self.workers, self.deadline):
                self.store.put(keys[place], scores)
                done[place] = scores
                advance(len(scores))
        except KeyboardInterrupt:
            self.stopped = "interrupted"
        if not self.stopped and len(done) < len(blocks):
            self.stopped = "budget"
        unfinished = min((start for start, which in blocks if (start, which) not in done), default=longest)
        parts = [
            [done[place] for place in blocks if place[0] < unfinished and place[1] == i] for i in range(len(lists))
        ]
        return tuple(np.concatenate(part) if part else np.empty(0) for part in parts)


def _keys(setup: TrialSetup, blocks: Mapping[Place, Sequence[Trial]]) -> dict[Place, str]:
    """What each block's scores are kept under: the setup, and the members and seeds of its own models."""
    base = fingerprint(
        {
            "spec": setup.spec,
            "x": setup.pool.x,
            "y": setup.pool.y,
            "score": _identity(setup.score),
            "trainer": setup.trainer,
            "circumstances": circumstances(setup.device),
        }
    )
    rows = {id(members): members for block in blocks.values() for members, _ in block}  # arms share one row
    digests = {key: fingerprint({"members": members}) for key, members in rows.items()}
    return {
        place: fingerprint({"setup": base, "trials": [(digests[id(members)], seed) for members, seed in block]})
        for place, block in blocks.items()
    }


def _train_blocks(
    setup: TrialSetup, blocks: Mapping[Place, Sequence[Trial]], workers: int, deadline: float | None
) -> Iterator[tuple[Place, Scores]]:
    """Train the blocks: the first here, and the rest in workers where that pays."""
    if not blocks or _late(deadline):
        return
    began = time.monotonic()
    (place, block), *rest = blocks.items()
    yield place, train_block(setup, block)
    if workers == 1 or setup.device != "cpu" or (time.monotonic() - began) * len(rest) < SERIAL_SECONDS:
        for place, block in rest:
            if _late(deadline):
                return
            yield place, train_block(setup, block)
        return
    # Ctrl-C reaches the whole process group; the parent decides what becomes of the workers
    deaf = partial(signal.signal, signal.SIGINT, signal.SIG_IGN)
    with joblib.parallel_config(backend="loky", inner_max_num_threads=1, initializer=deaf):
        parallel = joblib.Parallel(n_jobs=min(workers, len(rest)), return_as="generator", pre_dispatch="2*n_jobs")
        results = parallel(joblib.delayed(train_block)(setup, block) for _, block in rest)
        try:
            for (place, _), scores in zip(rest, results, strict=True):
                yield place, scores
                if _late(deadline):
                    return
        finally:
            results.close()


def _late(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() >= deadline


def train_block(setup: TrialSetup, trials: Sequence[Trial]) -> Scores:
    """Train and score the models of one block on one torch thread.

    Raises:
        ValueError: A score is NaN: the trained models are not finite.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        members, seeds = zip(*trials, strict=True)
        models = setup.trainer(setup.spec, setup.pool, np.stack(members), list(seeds), device=setup.device)
        scores = np.asarray(setup.score(models), dtype=np.float64)
    finally:
        torch.set_num_threads(threads)
    lost = int(np.isnan(scores).reshape(len(trials), -1).any(axis=1).sum())
    if lost:
        raise ValueError(f"Expected finite models, but {lost} of {len(trials)} trained to NaN.")
    return scores


def trial_seed(seed: int, arm: int, trial: int) -> int:
    """The seed of one model, distinct and independent for every (arm, trial)."""
    state = np.random.SeedSequence(seed, spawn_key=(arm, trial)).generate_state(1, np.uint64)
    return int(state[0] >> np.uint64(1))


def _identity(score: Score) -> Any:
    """A score by function and bound arguments, arrays included."""
    function = getattr(score, "func", score)
    keywords = getattr(score, "keywords", {})
    return [f"{function.__module__}.{function.__qualname__}", fingerprint(keywords)]
