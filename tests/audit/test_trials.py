"""The trial engine: evidence kept, interruptions harmless."""

import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_trials import SMALL_BLOCKS, arms, setup

from dpaudit.audit.attacks.control import ScaledNoise
from dpaudit.audit.attacks.released_steps import StepCount, WatchedLoop
from dpaudit.audit.attacks.shadow import log_odds
from dpaudit.audit.inputs.user_code import dataset_trainer
from dpaudit.audit.trials import blocks, keys, local_engine
from dpaudit.audit.trials.engine import TrialRunner, TrialSetup, trial_seed
from dpaudit.audit.trials.keys import fingerprint
from dpaudit.audit.trials.store import TrialStore
from dpaudit.mechanisms import GammaPLRV, GammaPLRVIID, Gaussian
from dpaudit.mechanisms.learning.architectures import TEXT_NETWORKS
from dpaudit.mechanisms.learning.spec import Architecture


def trained(trials: int, *, seed: int = 3, store: TrialStore | None = None) -> tuple[np.ndarray, ...]:
    """Workers give the same bits: tests/audit/test_private_training.py and test_trial_processes.py."""
    return TrialRunner(store or TrialStore(None)).run(setup(), *arms(trials, seed))


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK_SECONDS", SMALL_BLOCKS)
    assert setup().block == 8


@pytest.mark.usefixtures("small_blocks")
def test_another_seed_gives_other_scores() -> None:
    one, other = (trained(16, seed=seed) for seed in (3, 4))
    assert not np.isclose(one[0], other[0]).any()


@pytest.mark.usefixtures("small_blocks")
def test_a_longer_run_begins_with_the_shorter_ones_scores(tmp_path: Path) -> None:
    with TrialStore(tmp_path / "t.sqlite") as store:
        short, long = trained(16, store=store), trained(24, store=store)
    np.testing.assert_array_equal(long[0][:16], short[0])


@pytest.mark.usefixtures("small_blocks")
def test_finished_trials_are_read_back_and_not_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.sqlite"
    with TrialStore(path) as store:
        first = trained(16, store=store)
    monkeypatch.setattr(local_engine, "train_block", lambda *_: pytest.fail("trained again"))
    with TrialStore(path) as store:
        again = trained(16, store=store)
    np.testing.assert_array_equal(first, again)


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
    trials = TrialRunner(deadline=time.monotonic() + 0.05, stage=lambda what, total: done.append)
    first, second = trials.run(setup(), *arms(400))
    assert trials.stopped == "budget"
    assert len(first) == len(second) < 400
    assert sum(done) >= len(first) * 2


def test_the_deadline_is_looked_at_inside_a_block() -> None:
    """A block of one model that would take minutes."""
    long = replace(setup(), spec=replace(setup().spec, steps=10**6))
    assert long.block == 1
    trials, began = TrialRunner(deadline=time.monotonic() + 0.2), time.process_time()
    assert [len(scores) for scores in trials.run(long, *arms(4))] == [0, 0]
    assert trials.stopped == "budget"
    assert time.process_time() - began < 5


@pytest.mark.usefixtures("small_blocks")
def test_an_interruption_keeps_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = local_engine.train_block, []

    def interrupted(*arguments: object) -> np.ndarray:
        calls.append(arguments)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(local_engine, "train_block", interrupted)
    trials = TrialRunner()
    first, second = trials.run(setup(), *arms(80))
    assert trials.stopped == "interrupted"
    assert len(first) == len(second) == 16


@pytest.mark.usefixtures("small_blocks")
def test_a_score_may_be_a_vector_and_every_model_may_have_members_of_its_own(tmp_path: Path) -> None:
    """Twenty models, each without one record: alone, in a list and read back they score every record alike."""
    members = ~np.eye(20, 50, dtype=bool)
    trials = [(row, trial_seed(1, 0, trial)) for trial, row in enumerate(members)]
    vectors = replace(setup(), score=partial(log_odds, x=setup().pool.x, y=setup().pool.y))
    with TrialStore(tmp_path / "t.sqlite") as store:
        first, again = (TrialRunner(store).run(vectors, trials)[0] for _ in range(2))
    assert first.shape == (20, 50)
    np.testing.assert_array_equal(first, again)
    alone = TrialRunner().run(vectors, trials[7:8])[0]
    np.testing.assert_allclose(alone[0], first[7], rtol=1e-5, atol=1e-6)


def test_models_that_train_to_nan_end_the_trials_in_one_line_and_nothing_is_lost(small_blocks: None) -> None:
    """The blocks before them are reported."""
    trials = TrialRunner()
    sound, broken = (setup(), replace(setup(), spec=replace(setup().spec, learning_rate=1e38)))
    assert len(trials.run(sound, *arms(8))[0]) == 8
    assert [len(scores) for scores in trials.run(broken, *arms(16))] == [0, 0]
    assert trials.stopped == "Expected finite models, but 8 of 8 trained to infinity or NaN."


def looked(runner: TrialRunner, models: int, seed: int = 3, trials: TrialSetup | None = None, **options: Any) -> int:
    """Which look at a game it is, whatever trains its models."""
    return runner.look({"seed": seed}, trials or setup(), *arms(models, seed), trials=models, **options)


def test_a_verdict_from_more_models_of_the_same_game_is_another_look() -> None:
    runner = TrialRunner()
    assert [looked(runner, models) for models in (10, 20, 20, 40)] == [1, 2, 2, 3]
    assert looked(runner, 40, seed=4) == 1


def test_scores_measured_anew_are_another_look_at_the_same_game(monkeypatch: pytest.MonkeyPatch) -> None:
    """By other hardware, or with a canary that another rounding made: their seeds are the same."""
    runner, other = TrialRunner(), replace(setup(), pool=replace(setup().pool, x=setup().pool.x + np.float32(1e-6)))
    assert [looked(runner, 10), looked(runner, 10, trials=other), looked(runner, 10)] == [1, 2, 1]
    monkeypatch.setattr(torch, "__version__", "another")
    assert [looked(runner, 10), looked(runner, 10)] == [3, 3]


def test_a_share_of_the_trials_is_no_look(tmp_path: Path) -> None:
    for concludes, looks in ((False, [1, 1]), (True, [1, 2]), (False, [1, 2])):
        with TrialStore(tmp_path / f"{concludes}.sqlite", shared=True) as store:
            runner = TrialRunner(store, concludes=concludes)
            assert [looked(runner, models) for models in (10, 20)] == looks
    assert looked(TrialRunner(TrialStore(tmp_path / "last.sqlite")), 30, count=False) == 3


def test_every_look_at_a_loop_without_a_source_is_another() -> None:
    """It may have been repaired between them."""
    namespace: dict[str, Any] = {}
    exec("def loop(*a, **k): return 1.0", {"__name__": "nowhere"}, namespace)
    runner = TrialRunner()
    assert [looked(runner, 10, trials=setup(namespace["loop"])) for _ in range(2)] == [1, 2]


def test_seeds_differ_between_arms_and_trials() -> None:
    seeds = {trial_seed(7, arm, trial) for arm in (0, 1) for trial in range(500)}
    assert len(seeds) == 1000


def test_the_fingerprint_tells_noise_of_other_kinds_and_equal_numbers_apart() -> None:
    shared, own = GammaPLRV(k=3.0, theta=0.1), GammaPLRVIID(k=3.0, theta=0.1)
    specs = [replace(setup().spec, mechanism=mechanism) for mechanism in (shared, own)]
    assert fingerprint({"spec": specs[0]}) != fingerprint({"spec": specs[1]})


def test_the_fingerprint_sees_every_part() -> None:
    base = {"x": np.zeros(3), "steps": 5}
    assert fingerprint(base) == fingerprint({"steps": 5, "x": np.zeros(3)})
    for other in ({**base, "steps": 6}, {**base, "x": np.zeros(4)}, {**base, "x": np.zeros(3, dtype=np.float32)}):
        assert fingerprint(base) != fingerprint(other)


@pytest.mark.parametrize("name", TEXT_NETWORKS)
def test_networks_that_opacus_trains_have_short_blocks_and_its_version_in_their_key(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of one model takes milliseconds there: a block that outlasts a budget would never be finished."""
    spec = replace(setup().spec, architecture=Architecture(name, 8, 2), mechanism=Gaussian(1.0), steps=20)
    text = replace(setup(), spec=spec)
    assert text.block <= 8 < setup().block
    first = blocks.setup_key(text)
    monkeypatch.setattr(keys, "version", lambda package: "99.0")
    assert blocks.setup_key(text) != first


def _one_model(dataset: Any, seed: int, noise_factor: float = 1.0) -> torch.nn.Module:
    raise NotImplementedError


@pytest.mark.parametrize(
    "told",
    [lambda loop: loop, lambda loop: ScaledNoise(loop, 0.5), lambda loop: WatchedLoop(loop, StepCount())],
)
def test_loops_that_train_one_model_have_short_blocks(told: Any) -> None:
    assert setup(told(dataset_trainer(_one_model))).block <= 32 < setup().block
