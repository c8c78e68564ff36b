"""Trials on this machine: blocks of models trained in worker processes, one torch thread each.

The block is the unit of work and of evidence. Its models depend on the experiment, the seed and the block's number
alone, so the same seed gives the same bits on any number of workers, and an interrupted run continues.
"""

import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import joblib
import numpy as np
import torch
from numpy.typing import NDArray

from dpaudit.audit.trials.store import TrialStore, circumstances, fingerprint
from dpaudit.mechanisms.learning.architectures import parameter_count
from dpaudit.mechanisms.learning.spec import Pool, TrainedModels, TrainingSpec

Trainer = Callable[..., TrainedModels]
Score = Callable[[TrainedModels], NDArray[np.float64]]
Scores = NDArray[np.float64]

BLOCK_FLOPS = 1e10  # about a second of work: long enough to hide the dispatch, short enough to show progress
SERIAL_SECONDS = 6.0  # starting workers takes a few seconds, which shorter work does not repay


@dataclass(frozen=True)
class Experiment:
    """Two arms of models that differ in one record.

    Args:
        spec: How every model is trained.
        pool: All records.
        arms: Members of the two arms, bool, shape (2, records): without the canary, then with it.
        score: From trained models to one score each, higher = with the canary; picklable.
        trainer: The training function under audit, `mechanisms.learning.training.train` unless the user's own.
        seed: Root seed of all trials.
        device: "cpu" or "cuda".
    """

    spec: TrainingSpec
    pool: Pool
    arms: NDArray[np.bool_]
    score: Score
    trainer: Trainer
    seed: int
    device: str

    @property
    def block(self) -> int:
        """Models in one block: by the work in it, never by the machine."""
        batch = self.spec.expected_batch_size
        flops = 4.0 * self.spec.steps * batch * parameter_count(self.spec.architecture)
        return int(np.clip(2.0 ** np.floor(np.log2(BLOCK_FLOPS / flops)), 4, 1024))


@dataclass(frozen=True)
class Trials:
    """Scores of as many models as were trained, equally many in each arm.

    Args:
        without: Scores of models trained without the canary.
        with_canary: Scores of models trained with it.
        stopped: Why fewer than asked for: "" (all done), "budget" or "interrupted".
    """

    without: Scores
    with_canary: Scores
    stopped: str


def run_trials(
    experiment: Experiment,
    trials: int,
    store: TrialStore,
    *,
    workers: int,
    deadline: float | None = None,
    progress: Callable[[int], None] | None = None,
) -> Trials:
    """Train `trials` models per arm, or as many as the deadline and the user allow.

    Stopping early by the clock is independent of the scores, so the bounds stay valid for what was done.

    Args:
        experiment: What to train.
        trials: Models per arm.
        store: Where finished blocks are kept and looked up.
        workers: Processes at most.
        deadline: `time.monotonic()` value after which no block is started.
        progress: Called with the number of models just finished.
    """
    size = experiment.block
    jobs = [(arm, start, min(size, trials - start)) for start in range(0, trials, size) for arm in (0, 1)]
    base = fingerprint(
        {
            "spec": experiment.spec,
            "x": experiment.pool.x,
            "y": experiment.pool.y,
            "arms": experiment.arms,
            "score": _identity(experiment.score),
            "trainer": experiment.trainer,
            "seed": experiment.seed,
            "circumstances": circumstances(experiment.device),
        }
    )
    done: dict[tuple[int, int], Scores] = {}
    waiting = []
    for arm, start, count in jobs:
        known = store.get(f"{base}/{arm}/{start}/{count}")
        if known is None:
            waiting.append((arm, start, count))
        else:
            done[arm, start] = known
            _report(progress, count)
    stopped = ""
    try:
        for (arm, start, count), scores in _blocks(experiment, waiting, workers, deadline):
            store.put(f"{base}/{arm}/{start}/{count}", scores)
            done[arm, start] = scores
            _report(progress, count)
    except KeyboardInterrupt:
        stopped = "interrupted"
    if not stopped and len(done) < len(jobs):
        stopped = "budget"
    return Trials(*_pairs(done, range(0, trials, size)), stopped=stopped)


def _report(progress: Callable[[int], None] | None, count: int) -> None:
    if progress is not None:
        progress(count)


def _pairs(done: dict[tuple[int, int], Scores], starts: range) -> tuple[Scores, Scores]:
    """The blocks finished in both arms, in order."""
    both = [start for start in starts if (0, start) in done and (1, start) in done]
    empty = np.empty(0)
    return (
        np.concatenate([empty, *(done[0, start] for start in both)]),
        np.concatenate([empty, *(done[1, start] for start in both)]),
    )


def _blocks(
    experiment: Experiment, jobs: list[tuple[int, int, int]], workers: int, deadline: float | None
) -> Iterator[tuple[tuple[int, int, int], Scores]]:
    """Train the blocks: the first here, and the rest in workers where that pays."""
    if not jobs or _late(deadline):
        return
    began = time.monotonic()
    yield jobs[0], train_block(experiment, *jobs[0])
    rest = jobs[1:]
    if workers == 1 or experiment.device != "cpu" or (time.monotonic() - began) * len(rest) < SERIAL_SECONDS:
        for job in rest:
            if _late(deadline):
                return
            yield job, train_block(experiment, *job)
        return
    with joblib.parallel_config(backend="loky", inner_max_num_threads=1, initializer=_ignore_interrupts):
        parallel = joblib.Parallel(n_jobs=min(workers, len(rest)), return_as="generator", pre_dispatch="2*n_jobs")
        results = parallel(joblib.delayed(train_block)(experiment, *job) for job in rest)
        try:
            for job, scores in zip(rest, results, strict=True):
                yield job, scores
                if _late(deadline):
                    return
        finally:
            results.close()


def _ignore_interrupts() -> None:
    """Ctrl-C reaches the whole process group; the parent decides what becomes of the workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _late(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() >= deadline


def train_block(experiment: Experiment, arm: int, start: int, count: int) -> Scores:
    """Train and score the models of one block on one torch thread.

    Raises:
        ValueError: A score is NaN: the trained models are not finite.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        seeds = [trial_seed(experiment.seed, arm, trial) for trial in range(start, start + count)]
        members = np.broadcast_to(experiment.arms[arm], (count, experiment.arms.shape[1]))
        models = experiment.trainer(experiment.spec, experiment.pool, members, seeds, device=experiment.device)
        scores = np.asarray(experiment.score(models), dtype=np.float64)
    finally:
        torch.set_num_threads(threads)
    if np.isnan(scores).any():
        raise ValueError(f"Expected finite models, but {int(np.isnan(scores).sum())} of {count} trained to NaN.")
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
