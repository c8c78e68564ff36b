"""Whole audits, small: verdicts, exit codes, budgets, interruptions, and the promise about false alarms."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpaudit.audit.attacks import canary_game, control
from dpaudit.audit.attacks.base import Audit
from dpaudit.audit.attacks.canary_game import CanaryGame
from dpaudit.audit.attacks.clipbkd import CLIPBKD
from dpaudit.audit.attacks.pilot import Pilot
from dpaudit.audit.attacks.white_box import WhiteBox
from dpaudit.audit.inputs.bundles import Bundle, load_bundle
from dpaudit.audit.inputs.coins import Coins
from dpaudit.audit.inputs.datasets import Dataset
from dpaudit.audit.inputs.files import InputError
from dpaudit.audit.inputs.recipes import Recipe, load_recipe
from dpaudit.audit.runner import plan_audit, prepare, run
from dpaudit.audit.settings import Settings
from dpaudit.audit.training_run import train_bundle
from dpaudit.audit.trials.engine import TrialRunner
from dpaudit.audit.trials.store import UNRECORDED, TrialStore
from dpaudit.mechanisms.learning.spec import Pool, TrainedModels, TrainingSpec
from dpaudit.mechanisms.learning.training import train
from dpaudit.verify.bounds import joint_test
from dpaudit.verify.checking import check
from dpaudit.verify.results import AuditResult

ROOT = Path(__file__).parents[2]
Command = Callable[..., subprocess.CompletedProcess[str]]
HEADLINE = load_recipe(ROOT / "examples" / "digits-headline.toml")


def quiet(what: str, total: int) -> object:
    return lambda done: None


def trained(tmp_path: Path, recipe: Recipe = HEADLINE) -> tuple[Bundle, Dataset]:
    path = tmp_path / "model.pt"
    train_bundle(recipe, path, seed=1, device="cpu", stage=quiet)  # type: ignore[arg-type]
    bundle = load_bundle(path)
    return bundle, bundle.recipe.load_dataset()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bundle, Dataset]:
    """Of the headline recipe."""
    return trained(tmp_path_factory.mktemp("headline"))


@pytest.fixture(scope="module")
def correct(model: tuple[Bundle, Dataset]) -> AuditResult:
    return run(*model, Settings(seed=1, trials=200, device="cpu"))


def planted(name: str) -> Recipe:
    return Recipe.from_dict({**HEADLINE.to_dict(), "planted_defect": name})


def test_a_correct_model_is_not_refuted_and_its_claim_is_certified(correct: AuditResult) -> None:
    assert correct.verdict == "not_refuted"
    assert correct.claim_check is not None
    assert correct.claim_check.verdict == "certified"
    epsilons = np.linspace(0.0, 3.0, 7)
    np.testing.assert_array_equal(correct.claim_check.delta_at_most(epsilons), correct.claim_check.delta(epsilons)[1])
    assert sum(correct.budget.values()) == pytest.approx(0.05)


@pytest.mark.parametrize(
    "defect",
    [
        "half-noise",
        "clipped-in-another-norm",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("noise-for-the-mean-on-the-sum", "fixed-seed")),
    ],
)
def test_a_planted_defect_is_refuted_by_attack_alone(tmp_path: Path, defect: str) -> None:
    result = run(*trained(tmp_path, planted(defect)), Settings(seed=1, trials=200, control=False, device="cpu"))
    assert result.verdict == "refuted"
    assert "clipbkd:curve_violation" in result.refuted_by
    assert result.claim_check is not None
    assert result.claim_check.verdict == "certified"


@pytest.mark.slow
def test_the_same_seed_gives_the_same_result(model: tuple[Bundle, Dataset], monkeypatch: pytest.MonkeyPatch) -> None:
    """Not because the second run is told what the first one drew."""
    monkeypatch.setattr(control, "NO_NOISE_MODELS", 10)
    bundle, dataset = model
    settings = Settings(seed=5, trials=30, device="cpu")
    one = run(bundle, dataset, settings).to_dict()
    for kept in (joint_test._sampled_law, canary_game.best_possible_epsilon):
        kept.cache_clear()
    two = run(bundle, dataset, settings).to_dict()
    for result in (one, two):
        result.pop("seconds")
        result["claim_check"].pop("seconds")
        result["control"].pop("seconds")
        result["reproduce"].pop("date")
    assert one == two


def test_a_result_survives_json(correct: AuditResult) -> None:
    again = AuditResult.from_dict(json.loads(json.dumps(correct.to_dict())))
    assert again.to_dict() == correct.to_dict()


def test_no_time_gives_up_and_says_so(model: tuple[Bundle, Dataset]) -> None:
    result = run(*model, Settings(seed=5, trials=5000, budget=1e-9, device="cpu"))
    assert result.verdict == "gave_up"
    assert result.reproduce["stopped"] == "budget"


def test_another_attack_on_recorded_coins_is_another_look_at_them(
    model: tuple[Bundle, Dataset], tmp_path: Path
) -> None:
    """They fell once, whatever guesses them: six attacks at 5% each would be wrong more often than one."""
    spent = []
    for attacks in (("membership",), ("class-loss",), ("membership",)):
        result = run(*model, Settings(seed=5, attacks=attacks, device="cpu", store=tmp_path / "s.sqlite"))
        [attack] = result.attacks
        assert attack.bound is not None
        spent.append((attack.details["look"], 1.0 - attack.bound.confidence))
    first = 0.05 * 6.0 / np.pi**2
    np.testing.assert_allclose(spent, [(1, first), (2, first / 4), (1, first)])


def other_loop(spec: TrainingSpec, pool: Pool, members: np.ndarray, seeds: list[int], *, device: str) -> TrainedModels:
    return train(replace(spec, learning_rate=2.0 * spec.learning_rate), pool, members, seeds, device=device)


def test_other_shadow_models_are_another_look_at_recorded_coins(model: tuple[Bundle, Dataset], tmp_path: Path) -> None:
    """Of another loop, or as many as there was time for: other guesses of the same coins."""
    settings = Settings(seed=5, attacks=("lira",), trials=16, device="cpu", store=tmp_path / "s.sqlite")
    looks = []
    for trainer in (train, other_loop, train):
        [attack] = run(*model, replace(settings, trainer=trainer)).attacks
        looks.append(attack.details["look"])
    assert looks == [1, 2, 1]
    other_file = replace(model[0], sha256="0" * 64)  # of the same model
    [attack] = run(other_file, model[1], replace(settings, trials=20)).attacks
    assert attack.details["look"] == 3
    with TrialStore(tmp_path / "s.sqlite") as store:
        audit = replace(prepare(*model, settings), trials=TrialRunner(store))
        assert [audit.look_at_coins(missing) for missing in (0, 8, 4)] == [1, 4, 5]
        faster = replace(audit, spec=replace(audit.spec, learning_rate=2.0))  # by another recipe
        assert [faster.look_at_coins(), audit.look_at_coins()] == [6, 1]


@pytest.mark.parametrize("attack", ["membership", "one-run-blank", "white-box"])
def test_a_look_that_cannot_be_written_down_spends_next_to_nothing(
    model: tuple[Bundle, Dataset], attack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TrialStore, "look", lambda *_, **__: UNRECORDED)
    settings = Settings(seed=5, attacks=(attack,), trials=20, control=False, confidence=1.0 - 1e-9, device="cpu")
    [found] = run(*model, settings).attacks
    assert found.bound is not None
    assert found.bound.confidence > 1.0 - 1e-14


def test_a_look_that_cannot_be_written_down_is_told(
    model: tuple[Bundle, Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was "would not have found half the noise either", for tests that had nothing to spend."""

    def look(store: TrialStore, *arguments: str, count: bool = True) -> int:
        store.unwritten = "cannot write to looks.sqlite: read-only"
        return UNRECORDED

    monkeypatch.setattr(TrialStore, "look", look)
    result = run(*model, Settings(seed=5, attacks=("clipbkd",), trials=20, control=False, device="cpu"))
    assert (result.verdict, result.reproduce["stopped"]) == ("gave_up", "cannot write to looks.sqlite: read-only")


@pytest.mark.parametrize("between", ["judge", "refuter"])
def test_an_interruption_between_trials_is_one_of_the_audit(
    model: tuple[Bundle, Dataset], monkeypatch: pytest.MonkeyPatch, between: str
) -> None:
    """It ended the command "before anything was done that can be kept", and a refutation by calculation with it."""

    def interrupt(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(CanaryGame, between, interrupt)
    result = run(*model, Settings(seed=5, attacks=("clipbkd",), trials=20, device="cpu"))
    assert (result.verdict, result.reproduce["stopped"], result.attacks) == ("gave_up", "interrupted", [])


def test_an_attack_that_is_refused_loses_nothing_that_others_found(
    model: tuple[Bundle, Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refutation was found, and then one line, status 2 and no report."""

    def refuse(*arguments: Any, **options: Any) -> None:
        raise InputError("Expected the trainer to tell.")

    monkeypatch.setattr(WhiteBox, "run", refuse)
    settings = Settings(seed=5, attacks=("membership", "white-box"), trials=50, device="cpu")
    result = run(*model, settings)
    assert (result.verdict, result.reproduce["stopped"]) == ("gave_up", "Expected the trainer to tell.")
    assert [attack.name for attack in result.attacks] == ["membership"]
    with pytest.raises(InputError, match="to tell"):
        run(*model, replace(settings, attacks=("white-box",)))


@pytest.mark.parametrize(
    ("attack", "trials", "why"),
    [
        ("one-run-sentences", 50, "Expected dataset='digits' to hold sentences for canary sentences"),
        ("white-box", 10, "Expected white-box to have 10 canaries or more in the training and as many left"),
    ],
)
def test_what_can_never_be_carried_out_is_refused_before_anything_is_trained(
    model: tuple[Bundle, Dataset], attack: str, trials: int, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was after all other attacks, or the audit gave up and asked to be repeated."""

    def none(*arguments: Any, **options: Any) -> None:
        raise AssertionError("trained")

    monkeypatch.setattr(TrialRunner, "run", none)
    with pytest.raises(InputError, match=why):
        run(*model, Settings(seed=6, attacks=("clipbkd", attack), trials=trials, device="cpu"))


def test_without_coins_membership_proves_no_epsilon(tmp_path: Path) -> None:
    recipe = Recipe.from_dict({**HEADLINE.to_dict(), "audit_records": 0})
    result = run(*trained(tmp_path, recipe), Settings(seed=5, attacks=("membership",), device="cpu"))
    assert [attack.epsilon_lower for attack in result.attacks] == [None]


@pytest.mark.slow
def test_false_alarms_of_the_whole_runner_stay_within_the_stated_rate() -> None:
    """A claim that is exactly true, audited 200 times at level 0.8: at most 0.2 may be refuted, 6/pi^2 of it at once.

    The bound on the count, 40, is exceeded by a binomial(200, 0.1216) with probability below 0.1%.
    """
    recipe = HEADLINE
    verdict = check(recipe.claim_object())
    dataset = recipe.load_dataset()
    spec, bundle = recipe.spec(dataset), Bundle("", "", {}, recipe)
    settings = Settings(seed=7, attacks=("clipbkd",), trials=100, confidence=0.8, device="cpu", workers=1)
    audit = Audit(bundle, spec, dataset, verdict, settings)
    shares = plan_audit(audit).shares
    design, refutes = CLIPBKD.design(audit, shares), CLIPBKD.refuter(audit, shares)
    assert design is not None
    setup = audit.trial_setup(design.pilot.spec, design.pilot.arms.pool, design.pilot.score)
    alarms = sum(refutes(*TrialRunner().run(setup, *design.pilot.arms.trials(100, seed))) for seed in range(200))
    assert alarms <= 40


def designed(bundle: Bundle, dataset: Dataset, *, seed: int) -> Pilot:
    audit = prepare(bundle, dataset, Settings(seed=seed, trials=100, device="cpu"))
    design = CLIPBKD.design(audit, plan_audit(audit).shares)
    assert design is not None
    return design.pilot


def test_replace_one_arms_do_not_judge_an_add_remove_claim(model: tuple[Bundle, Dataset]) -> None:
    bundle, dataset = model
    arms = designed(bundle, dataset, seed=1).arms
    assert arms.description["adjacency"] == bundle.recipe.claim.adjacency == "add-remove"
    assert abs(int(arms.with_canary.sum()) - int(arms.without.sum())) == 1


def test_scores_follow_the_mechanisms_own_gaussian(model: tuple[Bundle, Dataset]) -> None:
    """One step from zero weights: the canary's log-odds are Gaussian, mu apart in standard deviations."""
    bundle, dataset = model
    pilot = designed(bundle, dataset, seed=2)
    setup = prepare(bundle, dataset, Settings(seed=2, device="cpu")).trial_setup(
        pilot.spec, pilot.arms.pool, pilot.score
    )
    without, with_canary = TrialRunner().run(setup, *pilot.arms.trials(4000, 2))
    mu = (with_canary.mean() - without.mean()) / without.std()
    assert mu == pytest.approx(0.6, abs=4 * np.sqrt(2 / 4000))


def test_an_attack_that_there_is_not_or_that_does_not_apply_is_refused_by_name(model: tuple[Bundle, Dataset]) -> None:
    bundle, dataset = model
    for name in ("mia", "output-perturbation"):
        with pytest.raises(InputError, match=f"attacks='{name}' among membership, clipbkd, lira, .*, which apply"):
            run(bundle, dataset, Settings(seed=1, attacks=(name,), device="cpu"))


def test_settings_name_what_is_wrong() -> None:
    with pytest.raises(ValueError, match=r"confidence=1\.5"):
        Settings(seed=1, confidence=1.5)
    with pytest.raises(InputError, match=r"confidence=0\.9999999999999999 in \[0\.5, 1 - 1e-09\]"):
        Settings(seed=1, confidence=1.0 - 1e-16)
    with pytest.raises(ValueError, match="trials=3"):
        replace(Settings(seed=1), trials=3)
    for seed in ("x", -1, 1.5, None):
        with pytest.raises(InputError, match=f"Expected seed={seed!r} .*integers of"):
            Settings(seed=seed)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"trainer='a\.py:b' to be a function \(spec, pool"):
        Settings(seed=1, trainer="a.py:b")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"bundle='model\.pt' to be of type dpaudit\.audit\.inputs\.bundles\.Bundle"):
        run("model.pt", "digits", Settings(seed=1))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="attacks='clipbkd' to be a sequence"):
        Settings(seed=1, attacks="clipbkd")


def test_a_look_that_could_not_be_written_down_has_a_level(model: tuple[Bundle, Dataset]) -> None:
    """Of a level near 0 its share is none that 1 - confidence can hold."""
    audit = prepare(*model, Settings(seed=1, attacks=("clipbkd",), confidence=1.0 - 1e-9, device="cpu"))
    refutes = CLIPBKD.refuter(audit, plan_audit(audit).shares, UNRECORDED)
    assert not refutes(np.arange(10.0), np.arange(10.0))


COINS = np.arange(140) % 2 == 0


@pytest.mark.parametrize(
    ("attack", "coins", "message"),
    [
        (
            "membership",
            Coins(np.arange(140), COINS | True),
            "Expected records on both sides, not all 140 in",
        ),
        ("lira", Coins(np.arange(140), COINS & False), "Expected records on both sides, not all 140 out"),
        ("clipbkd", Coins(np.arange(200, 340), COINS), "meta.coins: Expected records in 0..279, .* not 339"),
    ],
)
def test_coins_that_tell_nobody_apart_or_are_of_nobody_are_named(
    model: tuple[Bundle, Dataset], attack: str, coins: Coins, message: str
) -> None:
    bundle, dataset = model
    with pytest.raises(InputError, match=message):
        run(replace(bundle, coins=coins), dataset, Settings(seed=1, attacks=(attack,), trials=20, device="cpu"))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("attack", "message"),
    [("clipbkd", r"mechanism\.clip=1e\+18 to be at most 7\.2e\+16"), ("history", "norm of every record to be finite")],
)
def test_a_clip_that_no_canary_can_reach_is_named(model: tuple[Bundle, Dataset], attack: str, message: str) -> None:
    bundle, dataset = model
    recipe = bundle.recipe.to_dict()
    enormous = Recipe.from_dict({**recipe, "mechanism": {**recipe["mechanism"], "clip": 1e18}})
    with pytest.raises(InputError, match=message):
        run(replace(bundle, recipe=enormous), dataset, Settings(seed=1, attacks=(attack,), trials=20, device="cpu"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, dpaudit: Command) -> Path:
    """With a model m.pt."""
    path = tmp_path_factory.mktemp("folder")
    done = dpaudit("train", ROOT / "examples" / "digits-headline.toml", "--out", "m.pt", "--seed", "3", folder=path)
    assert done.returncode == 0
    return path


@pytest.mark.slow
def test_the_command_from_recipe_to_exit_status(
    tmp_path: Path, dpaudit: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(canary_game, "run_control", lambda *_: None)  # what refutes needs none
    recipe = tmp_path / "honest.toml"
    text = (ROOT / "examples" / "digits-headline.toml").read_text()
    recipe.write_text('planted_defect = "half-noise"\n' + text)
    assert dpaudit("train", "honest.toml", "--out", "m.pt", "--seed", "3", folder=tmp_path).returncode == 0
    done = dpaudit("run", "m.pt", "--seed", "3", "--trials", "200", "--json", "-", folder=tmp_path)
    assert done.returncode == 3
    result = json.loads(done.stdout)
    assert result["verdict"] == "refuted"
    assert "claim-check" not in result["refuted_by"]
    assert (tmp_path / "m.audit" / "report.html").exists()
    again = dpaudit("report", "m.audit/result.json", "--out", "again", folder=tmp_path)
    assert again.returncode == 0
    assert (tmp_path / "again" / "report.html").read_bytes() == (tmp_path / "m.audit" / "report.html").read_bytes()


@pytest.mark.slow
def test_a_dry_run_keeps_nothing_and_prints_the_plan(folder: Path, tmp_path: Path, dpaudit: Command) -> None:
    shutil.copy(folder / "m.pt", tmp_path)
    done = dpaudit("run", "m.pt", "--seed", "3", "--dry-run", folder=tmp_path)
    assert done.returncode == 0
    assert "models per arm" in done.stdout
    refused = dpaudit("run", "m.pt", "--seed", "3", "--dry-run", "--json", "-", folder=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "--dry-run without --json" in refused.stderr
    assert not (tmp_path / "m.audit").exists()


@pytest.mark.slow
def test_json_on_stdout_and_nothing_else(folder: Path, tmp_path: Path) -> None:
    """Of a process: whatever writes to its streams."""
    script = "from dpaudit.verify.bounds import joint_test; joint_test.INVERSION_DRAWS = 2**10; "
    script += "from dpaudit.audit.cli import main; main()"
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            script,
            "run",
            folder / "m.pt",
            "--out",
            tmp_path / "out",
            "--seed",
            "3",
            "--trials",
            "100",
            "--json",
            "-",
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert json.loads(done.stdout)["seed"] == 3
    assert done.stderr == ""
