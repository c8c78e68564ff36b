"""The trial engine: same bits on any number of workers, evidence kept, interruptions harmless."""

import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from dpaudit.audit.attacks.clipbkd import canary_score
from dpaudit.audit.trials import engine
from dpaudit.audit.trials.engine import Experiment, run_trials, trial_seed
from dpaudit.audit.trials.store import TrialStore, fingerprint
from dpaudit.mechanisms import GammaPLRV, GammaPLRVIID, Gaussian
from dpaudit.mechanisms.learning.spec import Architecture, Pool, TrainingSpec
from dpaudit.mechanisms.learning.training import train


def experiment(seed: int = 3) -> Experiment:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 8)).astype(np.float32)
    pool = Pool(x, rng.integers(0, 2, size=50))
    spec = TrainingSpec(
        algorithm="dp-sgd",
        architecture=Architecture("fnn", 8, 2, {"hidden": 4}),
        mechanism=Gaussian(1.0, dimension=46),
        steps=5,
        sampling_prob=0.5,
        expected_batch_size=25.0,
        learning_rate=0.5,
    )
    arms = np.ones((2, 50), dtype=bool)
    arms[0, -1] = False
    return Experiment(spec, pool, arms, partial(canary_score, canary=x[-1], label=1), train, seed, "cpu")


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "BLOCK_FLOPS", 2e5)
    assert experiment().block == 8


@pytest.mark.slow
@pytest.mark.usefixtures("small_blocks")
def test_two_workers_give_the_bits_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "SERIAL_SECONDS", 0.0)
    one = run_trials(experiment(), 40, TrialStore(None), workers=1)
    two = run_trials(experiment(), 40, TrialStore(None), workers=2)
    np.testing.assert_array_equal(one.without, two.without)
    np.testing.assert_array_equal(one.with_canary, two.with_canary)
    assert torch.get_num_threads() >= 1


@pytest.mark.usefixtures("small_blocks")
def test_another_seed_gives_other_scores() -> None:
    one, other = (run_trials(experiment(seed), 16, TrialStore(None), workers=1) for seed in (3, 4))
    assert not np.isclose(one.without, other.without).any()


@pytest.mark.usefixtures("small_blocks")
def test_a_longer_run_begins_with_the_shorter_ones_scores(tmp_path: Path) -> None:
    with TrialStore(tmp_path / "t.sqlite") as store:
        short = run_trials(experiment(), 16, store, workers=1)
        long = run_trials(experiment(), 24, store, workers=1)
    np.testing.assert_array_equal(long.without[:16], short.without)


@pytest.mark.usefixtures("small_blocks")
def test_finished_trials_are_read_back_and_not_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.sqlite"
    with TrialStore(path) as store:
        first = run_trials(experiment(), 16, store, workers=1)
    monkeypatch.setattr(engine, "train_block", lambda *_: pytest.fail("trained again"))
    with TrialStore(path) as store:
        again = run_trials(experiment(), 16, store, workers=1)
    np.testing.assert_array_equal(first.with_canary, again.with_canary)


@pytest.mark.usefixtures("small_blocks")
def test_fresh_forgets(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    with TrialStore(path) as store:
        store.put("a", np.ones(3))
    with TrialStore(path, fresh=True) as store:
        assert store.get("a") is None


@pytest.mark.usefixtures("small_blocks")
def test_the_deadline_leaves_equal_arms() -> None:
    done: list[int] = []
    trials = run_trials(
        experiment(), 400, TrialStore(None), workers=1, deadline=time.monotonic() + 0.05, progress=done.append
    )
    assert trials.stopped == "budget"
    assert len(trials.without) == len(trials.with_canary) < 400
    assert sum(done) >= len(trials.without) * 2


@pytest.mark.usefixtures("small_blocks")
def test_an_interruption_keeps_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = engine.train_block, []

    def interrupted(*arguments: object) -> np.ndarray:
        calls.append(arguments)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(engine, "train_block", interrupted)
    trials = run_trials(experiment(), 80, TrialStore(None), workers=1)
    assert trials.stopped == "interrupted"
    assert len(trials.without) == len(trials.with_canary) == 16


def test_models_that_train_to_nan_are_refused() -> None:
    broken = replace(experiment(), spec=replace(experiment().spec, learning_rate=1e38))
    with pytest.raises(ValueError, match="trained to NaN"):
        run_trials(broken, 4, TrialStore(None), workers=1)


def test_seeds_differ_between_arms_and_trials() -> None:
    seeds = {trial_seed(7, arm, trial) for arm in (0, 1) for trial in range(500)}
    assert len(seeds) == 1000


def test_the_fingerprint_tells_noise_of_other_kinds_and_equal_numbers_apart() -> None:
    shared, own = GammaPLRV(k=3.0, theta=0.1), GammaPLRVIID(k=3.0, theta=0.1)
    specs = [replace(experiment().spec, mechanism=mechanism) for mechanism in (shared, own)]
    assert fingerprint({"spec": specs[0]}) != fingerprint({"spec": specs[1]})


def test_the_fingerprint_sees_every_part() -> None:
    base = {"x": np.zeros(3), "steps": 5}
    assert fingerprint(base) == fingerprint({"steps": 5, "x": np.zeros(3)})
    for other in ({**base, "steps": 6}, {**base, "x": np.zeros(4)}, {**base, "x": np.zeros(3, dtype=np.float32)}):
        assert fingerprint(base) != fingerprint(other)
