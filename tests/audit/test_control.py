"""The positive control: what it trains, what it finds, and what a verdict makes of it."""

import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm
from torch import nn

from dpaudit.audit.attacks import canary_game
from dpaudit.audit.attacks.base import Audit
from dpaudit.audit.attacks.canary_game import halved_twice
from dpaudit.audit.attacks.clipbkd import CLIPBKD
from dpaudit.audit.attacks.control import (
    ScaledNoise,
    built_in_control,
    controlled_training,
    run_control,
    with_noise,
)
from dpaudit.audit.inputs.bundles import Bundle, load_bundle
from dpaudit.audit.inputs.datasets import Dataset
from dpaudit.audit.inputs.recipes import Recipe, load_recipe
from dpaudit.audit.power import MODELS, Refutes
from dpaudit.audit.runner import designs, plan_audit, prepare, run
from dpaudit.audit.settings import Settings
from dpaudit.audit.training_run import train_bundle
from dpaudit.audit.trials import engine, local_engine
from dpaudit.mechanisms.defects import Defect
from dpaudit.mechanisms.learning.spec import Pool, TrainedModels, TrainingSpec
from dpaudit.mechanisms.learning.training import train
from dpaudit.verify.results import PROMISED_POWER, AuditResult

ROOT = Path(__file__).parents[2]
HEADLINE = load_recipe(ROOT / "examples" / "digits-headline.toml")
SETTINGS = Settings(seed=1, attacks=("clipbkd",), device="cpu", workers=1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "m.pt"
    train_bundle(HEADLINE, path, seed=1, device="cpu", stage=lambda what, total: lambda done: None)
    return path


@pytest.fixture(scope="module")
def target(model: Path) -> tuple[Bundle, Dataset]:
    bundle = load_bundle(model)
    return bundle, bundle.recipe.load_dataset()


@pytest.fixture(scope="module")
def result(target: tuple[Bundle, Dataset]) -> AuditResult:
    """Of an audit with all defaults."""
    return run(*target, SETTINGS)


def own_loop(spec: TrainingSpec, *arguments: Any, noise_factor: float = 1.0, **options: Any) -> TrainedModels:
    return train(replace(spec, defect=Defect(noise_factor=noise_factor)), *arguments, **options)  # type: ignore[type-var]


def stubborn_loop(spec: TrainingSpec, *arguments: Any, **options: Any) -> TrainedModels:
    return train(spec, *arguments, **options)


@pytest.mark.slow
def test_too_few_models_are_inconclusive_and_enough_are_not(
    target: tuple[Bundle, Dataset], result: AuditResult
) -> None:
    warnings: list[str] = []
    few = run(*target, replace(SETTINGS, trials=40, seed=2), warn=warnings.append)
    assert few.verdict == "inconclusive"
    assert few.control is not None
    assert not few.control.found
    assert few.control.no_noise_found
    assert "if nothing is refuted, that is likely to say nothing" in warnings[0]
    assert result.verdict == "not_refuted"
    assert result.control is not None
    assert result.control.power >= 0.95
    assert result.control.models == result.attacks[0].trials


def test_without_a_control_silence_is_inconclusive(target: tuple[Bundle, Dataset]) -> None:
    result = run(*target, replace(SETTINGS, attacks=("membership",)))
    assert (result.verdict, result.control) == ("inconclusive", None)


def test_a_control_that_is_cut_short_speaks_of_no_more_models_than_it_has(
    target: tuple[Bundle, Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twelve scores drawn 300 times would be told apart by the luck of twelve."""

    def cut(trials: engine.TrialRunner, *arguments: Any, **options: Any) -> tuple[np.ndarray, np.ndarray]:
        trials.stopped = "budget"
        return np.zeros(12), np.ones(12)

    monkeypatch.setattr(engine.TrialRunner, "run", cut)
    audit = prepare(*target, SETTINGS)
    arms = SimpleNamespace(pool=None, trials=lambda *_: [])
    pilot: Any = SimpleNamespace(spec=audit.spec, arms=arms, score=None, watch=None)
    control = run_control("clipbkd", audit, pilot, 300, lambda models: lambda without, inside: len(inside) >= 100)
    assert control is not None
    assert (control.models, control.trials, control.found) == (12, 12, False)


@pytest.mark.parametrize(("concludes", "stopped"), [(True, ""), (False, "budget")])
def test_half_of_the_time_is_for_the_control_of_an_audit_that_concludes(
    target: tuple[Bundle, Dataset], monkeypatch: pytest.MonkeyPatch, concludes: bool, stopped: str
) -> None:
    """A share said that all models were there when its control had half of the time, and counted none of them."""
    ends: list[float] = []

    def cut(trials: engine.TrialRunner, *arguments: Any, **options: Any) -> tuple[np.ndarray, np.ndarray]:
        assert trials.deadline is not None
        ends.append(trials.deadline)
        trials.stopped, trials.trained = "budget", trials.trained + 24
        return np.zeros(12), np.ones(12)

    monkeypatch.setattr(engine.TrialRunner, "run", cut)
    deadline = time.monotonic() + 1000
    audit = prepare(*target, SETTINGS)
    audit = replace(audit, trials=replace(audit.trials, deadline=deadline, concludes=concludes, trained=7))
    arms = SimpleNamespace(pool=None, trials=lambda *_: [])
    pilot: Any = SimpleNamespace(spec=audit.spec, arms=arms, score=None, watch=None)
    run_control("clipbkd", audit, pilot, 300, lambda models: lambda without, inside: True)
    assert (ends[0] == deadline) == (not concludes)
    assert (audit.trials.stopped, audit.trials.control_cut) == (stopped, concludes)
    assert audit.trials.trained == 7 + 2 * 24


def test_without_time_for_a_control_silence_gives_up(
    target: tuple[Bundle, Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(attack: str, audit: Audit, *arguments: Any) -> None:
        audit.trials.control_cut = True

    monkeypatch.setattr(canary_game, "run_control", cut)
    result = run(*target, replace(SETTINGS, trials=20))
    assert (result.verdict, result.reproduce["stopped"]) == ("gave_up", "budget")
    assert result.attacks[0].trials == 20


def test_growth_does_not_end_at_a_lucky_control(
    target: tuple[Bundle, Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Audits that say they would have found it do, as often as promised, though the attack needs twice the models."""
    rng, distance, threshold = np.random.default_rng(8), 0.5, 0.25
    scores = [np.empty(0), np.empty(0)]

    def drawn(trials: engine.TrialRunner, setup: Any, *lists: Any, what: str) -> tuple[np.ndarray, ...]:
        return tuple(arm[: len(plan)] for arm, plan in zip(scores, lists, strict=True))

    monkeypatch.setattr(engine.TrialRunner, "run", drawn)
    audit = prepare(*target, SETTINGS)
    arms = SimpleNamespace(pool=None, trials=lambda models, *_: ([0] * models, [0] * models))
    pilot: Any = SimpleNamespace(spec=audit.spec, arms=arms, score=None, watch=None)
    powers = []
    for _ in range(200):
        scores[:] = rng.normal(size=2000), rng.normal(size=2000) + distance
        control = run_control("clipbkd", audit, pilot, 40, lambda _: lambda a, b: bool(b.mean() - a.mean() > threshold))
        assert control is not None
        if control.found:
            powers.append(norm.cdf((distance - threshold) * np.sqrt(control.models / 2)))
    assert len(powers) >= 195
    assert np.mean(powers) > PROMISED_POWER


@pytest.mark.slow
def test_half_the_noise_is_refuted_with_the_default_number_of_models(
    target: tuple[Bundle, Dataset], result: AuditResult
) -> None:
    bundle, dataset = target
    broken = Recipe.from_dict({**HEADLINE.to_dict(), "planted_defect": "half-noise"}).with_dimension(130)
    found = run(replace(bundle, recipe=broken), dataset, SETTINGS)
    assert found.verdict == "refuted"
    assert found.control is not None
    assert result.control is not None
    # of the recipe as it says, not of a quarter of the noise
    assert replace(found.control, seconds=0.0) == replace(result.control, seconds=0.0)


@pytest.mark.slow
def test_a_repeated_audit_trains_nothing_again(
    target: tuple[Bundle, Dataset], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(SETTINGS, trials=100, store=tmp_path / "trials.sqlite")
    first = run(*target, settings)

    def refuse(*arguments: object) -> None:
        raise AssertionError

    monkeypatch.setattr(local_engine, "train_block", refuse)
    again = run(*target, settings)
    assert again.control is not None
    assert first.control is not None
    assert again.control == replace(first.control, seconds=again.control.seconds)
    assert again.attacks == first.attacks


@pytest.mark.slow
def test_the_trials_that_count_share_no_seed_with_those_that_do_not(
    target: tuple[Bundle, Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds: dict[str, list[int]] = {}
    plain = engine.TrialRunner.run

    def watched(self: Any, setup: Any, *lists: Any, what: str = "") -> Any:
        seeds.setdefault(what, []).extend(seed for trials in lists for _, seed in trials)
        return plain(self, setup, *lists, what=what)

    monkeypatch.setattr(engine.TrialRunner, "run", watched)
    run(*target, replace(SETTINGS, trials=100))
    counted = seeds.pop(CLIPBKD.making)
    assert len(set(counted)) == 200
    assert len(seeds) == 5  # choice, labels, pilot, two controls
    assert not set(counted) & {seed for others in seeds.values() for seed in others}


def test_whose_noise_is_scaled(target: tuple[Bundle, Dataset]) -> None:
    bundle, dataset = target

    def setup(trainer: engine.Trainer) -> engine.TrialSetup:
        audit = prepare(bundle, dataset, replace(SETTINGS, trainer=trainer))
        planted = replace(audit.spec, defect=Defect(fixed_seed=3))
        return with_noise(audit, 0.5)(planted, Pool(dataset.x, dataset.y), lambda models: np.zeros(1))

    assert setup(train).spec.defect == setup(stubborn_loop).spec.defect == Defect(noise_factor=0.5)
    assert setup(stubborn_loop).trainer is train
    assert setup(own_loop).trainer == ScaledNoise(own_loop, 0.5)
    audit = prepare(bundle, dataset, replace(SETTINGS, trainer=stubborn_loop))
    assert "takes no noise_factor" in controlled_training(audit)


@pytest.mark.slow
def test_an_own_loop_is_controlled_on_its_own_noise(target: tuple[Bundle, Dataset]) -> None:
    result = run(*target, replace(SETTINGS, trials=200, trainer=own_loop))
    assert result.control is not None
    assert result.control.training == "the training under audit, its own noise scaled by noise_factor"
    assert result.control.found


def halving_loop(spec: TrainingSpec, *arguments: Any, noise_factor: float = 1.0, **options: Any) -> TrainedModels:
    return own_loop(spec, *arguments, noise_factor=noise_factor / 2, **options)


def untrained(apart: float) -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    """In place of `TrialRunner.run`: normal scores, so far apart with half of the noise, and further with less."""
    rng = np.random.default_rng(5)

    def run_trials(
        trials: engine.TrialRunner, setup: engine.TrialSetup, *lists: range, what: str
    ) -> tuple[np.ndarray, np.ndarray]:
        trainer, planted = setup.trainer, setup.spec.defect.noise_factor
        factor = trainer.noise_factor / 2 if isinstance(trainer, ScaledNoise) else planted
        without, with_canary = (rng.normal(size=len(trained)) for trained in lists)
        return without, with_canary + (0.5 * apart / factor if factor else 50.0)

    return run_trials


@pytest.mark.parametrize(("apart", "least", "told"), [(1.25, 150, "half of the noise takes"), (0.6, 2000, "more than")])
def test_a_loop_that_halves_its_noise_has_as_many_models_as_the_built_in_training_asks_for(
    target: tuple[Bundle, Dataset], monkeypatch: pytest.MonkeyPatch, apart: float, least: int, told: str
) -> None:
    """Its own control has a quarter of the noise, and had 100 models, which find half of it in 83 of 100 audits."""
    monkeypatch.setattr(engine.TrialRunner, "run", untrained(apart))
    audit = prepare(*target, replace(SETTINGS, trainer=halving_loop))
    arms = SimpleNamespace(pool=None, trials=lambda models, *_: [range(models)] * 2)
    pilot: Any = SimpleNamespace(spec=audit.spec, arms=arms, score=None, watch=None)
    shares = plan_audit(audit).shares

    def refutes(models: int) -> Refutes:
        return CLIPBKD.refuter(audit, shares)

    alone = run_control("clipbkd", audit, pilot, 100, refutes)
    assert alone is not None
    built_in = built_in_control("clipbkd", audit, pilot, alone, refutes)
    assert built_in is not None
    assert built_in.found == (least < MODELS[-1])
    assert built_in.models >= least > alone.models
    assert f"{told} {built_in.models:,} models per arm" in halved_twice(built_in)
    assert built_in_control("clipbkd", replace(audit, settings=SETTINGS), pilot, alone, refutes) is None
    trials = replace(audit.trials, deadline=time.monotonic() + 60.0, concludes=True)
    short = replace(audit, trials=trials, notes=[])
    real = engine.TrialRunner.run

    def out_of_time(trials: engine.TrialRunner, *arguments: Any, **options: Any) -> tuple[np.ndarray, np.ndarray]:
        trials.stopped = "budget"
        return real(trials, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(engine.TrialRunner, "run", out_of_time)
        assert built_in_control("clipbkd", short, pilot, alone, refutes) is None
    assert (len(short.notes), short.notes[0][:22], trials.stopped) == (1, "The time was too short", "")
    pilot.spec = replace(audit.spec, architecture=replace(audit.spec.architecture, build=nn.Linear))
    assert built_in_control("clipbkd", audit, pilot, alone, refutes) is None  # trained one after another


def test_a_dry_run_plans_by_the_pilot(target: tuple[Bundle, Dataset]) -> None:
    audit = prepare(*target, SETTINGS)
    (design,) = designs(audit, plan_audit(audit))
    assert design.models == MODELS[0]
    assert design.pilot.separation == pytest.approx(1.2, abs=0.9)
    assert design.seconds > 0
    assert not design.warning
    assert designs(prepare(*target, replace(SETTINGS, budget=1e-9)), plan_audit(audit)) == []


@pytest.mark.slow
@pytest.mark.parametrize(("trials", "status"), [("40", 5), ("150", 0)])
def test_require_power_is_an_exit_status(
    model: Path, tmp_path: Path, dpaudit: Callable[..., subprocess.CompletedProcess[str]], trials: str, status: int
) -> None:
    done = dpaudit(
        "run", model, "--trials", trials, "--require", "power", "--seed", "3", "--out", tmp_path, "--device", "cpu"
    )
    assert done.returncode == status, done.stderr
    assert f"would have found half the noise: {'no' if status else 'yes'}" in done.stdout
