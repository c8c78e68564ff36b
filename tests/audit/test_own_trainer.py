"""A training loop of the user's own, which may not do what the recipe says."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_trials import arms, setup

from dpaudit.audit import Settings, load_bundle, load_recipe
from dpaudit.audit.attacks.base import check_places
from dpaudit.audit.attacks.clipbkd import CLIPBKD
from dpaudit.audit.attacks.one_run_canaries import BLANK
from dpaudit.audit.inputs.bundles import Bundle
from dpaudit.audit.inputs.files import InputError
from dpaudit.audit.inputs.recipes import Recipe
from dpaudit.audit.inputs.user_code import UserFunction, UserTrainer, trainer_name
from dpaudit.audit.runner import prepare
from dpaudit.audit.training_run import train_bundle
from dpaudit.audit.trials.blocks import train_block
from dpaudit.audit.trials.engine import TrialRunner
from dpaudit.audit.trials.store import TrialStore
from dpaudit.mechanisms.learning.spec import Pool

ROOT = Path(__file__).parents[2]
RECIPE = load_recipe(ROOT / "examples" / "digits-headline.toml")
EXAMPLE = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "own-loop.md").read_text(), re.DOTALL)[0]
Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "m.pt"
    train_bundle(RECIPE, path, seed=4, device="cpu", stage=lambda what, total: lambda done: None)
    return path


@pytest.fixture
def audit(model: Path, tmp_path: Path, dpaudit: Command) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """Writes the loop into a file and audits it; every time in the same folder, with its store."""

    def call(text: str, *options: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "my_loop.py").write_text(text)
        words = ["--trainer", "my_loop.py:train", "--attacks", "clipbkd", "--seed", "4", "--workers", "1"]
        return dpaudit("run", model, *words, *(options or ("--trials", "200")), folder=tmp_path)

    return call


def test_a_loop_that_reads_a_file_is_not_believed_to_be_as_it_was(audit: Any, tmp_path: Path) -> None:
    """Its text is the same, and so is the key of its scores: the models are not."""
    text = EXAMPLE.replace("* spec.mechanism.noise_multiplier", "* float(Path('factor').read_text())")
    text = f"from pathlib import Path\n{text}"
    assert "factor" in text
    (tmp_path / "factor").write_text("37.31")
    first = audit(text, "--trials", "100")
    assert (first.returncode, first.stderr) == (0, "")
    assert audit(text, "--trials", "120").returncode == 0
    (tmp_path / "factor").write_text("18.66")
    refused = audit(text, "--trials", "120")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "Expected the training loop to give the same models again whose scores were kept" in refused.stderr
    assert audit(text, "--trials", "100", "--fresh").returncode in (0, 3)


@pytest.mark.slow
def test_the_example_has_fifteen_lines_and_is_judged_by_what_it_does_each_time(audit: Any) -> None:
    """Honest, then with less noise, then repaired: the store of all three is one."""
    assert len(EXAMPLE.strip().partition("def ")[2].splitlines()) == 15
    faulty = EXAMPLE.replace("* spec.mechanism.noise_multiplier", "* 0.4 * spec.mechanism.noise_multiplier")
    assert faulty != EXAMPLE
    done = [audit(text, "--trials", "100") for text in (EXAMPLE, faulty, EXAMPLE)]
    assert [one.returncode for one in done] == [0, 3, 0]
    aside = "the report in m.audit was of another model, claim or loop; it is now in m.audit/run-{}\n"
    assert [one.stderr for one in done] == ["", aside.format(2), aside.format(3)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "def train():\n    return []\n",
            "to train models: TypeError: train() got an unexpected keyword argument 'device'",
        ),
        ("def train(*a, **k):\n    return {}[3]\n", "to train models: KeyError: 3 (my_loop.py, line 2)"),
        (
            "def train(*a, **k):\n    return 3\n",
            "Expected the trainer to return TrainedModels or a list of state dicts, not int.",
        ),
        (
            "import numpy as np\n\ndef train(spec, pool, members, seeds, *, device):\n"
            "    return [np.zeros(130) for _ in seeds]\n",
            "Expected the trainer to return TrainedModels or a list of state dicts, not list of ndarray.",
        ),
        ("def train(*a, **k):\n    return [{}]\n", "with weight, bias from the trainer: one lacks 'weight'."),
        (
            "import numpy as np\n\ndef train(spec, pool, members, seeds, *, device):\n"
            "    return [{'weight': np.zeros((2, 64), 'longdouble'), 'bias': np.zeros(2)} for _ in seeds]\n",
            "with weight, bias from the trainer: one holds ndarray of float128 in a tensor's place.",
        ),
        (
            "def train(spec, pool, members, seeds, *, device):\n"
            "    return [{'weight': [[0.0] * 64] * 2, 'bias': [0.0, 0.0]} for _ in seeds]\n",
            "with weight, bias from the trainer: one holds list in a tensor's place.",
        ),
        (
            "import numpy as np\n\ndef train(spec, pool, members, seeds, *, device):\n    w = np.zeros((2, 65))\n"
            "    return [{'weight': w[:, :-1], 'bias': w[:, -1]} for _ in seeds]\n",
            "Expected the trainer to return a state dict of its own for each model: two are the same arrays",
        ),
        (
            EXAMPLE.replace("    return models", "    return [models[0] for _ in models]"),
            "Expected the trainer to return a state dict of its own for each model: two are the same arrays",
        ),
        (
            "import torch\n\ndef train(spec, pool, members, seeds, *, device):\n"
            "    net = torch.nn.Linear(pool.x.shape[1], 2)\n    return [net.state_dict() for _ in seeds]\n",
            "Expected the trainer to return a state dict of its own for each model: two are the same arrays",
        ),
        ("import not_there\n", "to be there: ModuleNotFoundError: No module named 'not_there'"),
        ("def tain(): pass\n", "to have a function 'train'"),
        ("import sys\nsys.exit(3)\n", "to be there: SystemExit: 3, which ends a program, not an audit"),
        ("def train(*a, **k):\n    exit(0)\n", "to train models: SystemExit: 0, which ends a program, not an audit"),
        ("import os\nos._exit(0)\n", "to be there: SystemExit: 0, which ends a program, not an audit"),
        ("from os import _exit\ndef train(*a, **k):\n    _exit(0)\n", "to train models: SystemExit: 0, which ends"),
        (
            "import os\n\ndef train(*a, **k):\n    child = os.fork()\n    if not child:\n        os._exit(5)\n"
            "    raise ValueError(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n",
            "to train models: ValueError: 5",
        ),
        ("def train(*a, **k):\n    raise BaseException('enough')\n", "to train models: BaseException: enough"),
        ("raise GeneratorExit\n", "to be there: GeneratorExit"),
    ],
)
def test_a_loop_that_fails_is_one_line_and_exit_2(audit: Any, text: str, message: str) -> None:
    done = audit(text, "--trials", "20")
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr.splitlines()[-1]
    assert "user_code.py" not in done.stderr  # a line of ours is no place in their code
    assert all(line.startswith("clipbkd: the pilot") for line in done.stderr.splitlines()[:-1])


def test_models_of_another_framework_are_arrays(audit: Any, tmp_path: Path) -> None:
    """NumPy arrays are taken as they are, reversed or not; what has `__array__`, such as JAX arrays, is read by it."""
    texts = [EXAMPLE] + [
        EXAMPLE.replace('{"weight": w[:, :-1], "bias": w[:, -1]}', f'{{"weight": {weight}, "bias": w[:, -1].numpy()}}')
        for weight in ("w.numpy()[:, :-1]", "w.numpy()[:, :-1][::-1].copy()[::-1]", "Theirs(w.numpy()[:, :-1])")
    ]
    theirs = """
class Theirs:
    def __init__(self, array):
        self.array = array
    def __array__(self, dtype=None, copy=None):
        self.array.flags.writeable = False
        return self.array
"""
    assert len(set(texts)) == 4
    found = []
    for text in texts:
        assert audit(theirs + text, "--trials", "20", "--fresh").returncode == 0
        [result] = tmp_path.glob("*.audit/result.json")
        found.append(json.loads(result.read_text())["attacks"])
    assert found[1:] == found[:1] * 3


def test_a_loop_that_draws_without_its_seeds_is_refused_at_once(audit: Any) -> None:
    done = audit(
        EXAMPLE.replace("manual_seed(seed)", "manual_seed(__import__('secrets').randbits(60))"), "--trials", "40"
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("dpaudit: Expected the training loop to give equal models for equal")


def test_a_loop_that_does_not_train_is_told(audit: Any, tmp_path: Path) -> None:
    """Whatever noise it says that it adds, its models are those of no data: its silence is not the noise's merit."""
    done = audit(EXAMPLE.replace("(total + noise)", "noise"), "--require", "power")
    assert done.returncode == 5
    assert done.stdout.startswith("inconclusive: ")
    assert "a training that shows more of a record than this one" in done.stdout
    [result] = tmp_path.glob("*.audit/result.json")
    found = json.loads(result.read_text())
    assert (found["verdict"], found["control"]["found"]) == ("inconclusive", True)
    assert "a loop that learns little of a record shows little of it" in found["control"]["unlike"]
    assert found["control"]["unlike"] in found["notes"]
    audit(EXAMPLE, "--trials", "200", "--fresh")
    assert "a loop that learns little" not in result.read_text()


def test_a_loop_that_does_not_clip_is_found_though_it_takes_no_noise_factor(audit: Any) -> None:
    """The built-in training, which was asked alone, clips the canaries that show most of it."""
    clipped = "(error * (spec.mechanism.clip / norm).clamp(max=1)[:, None])"
    assert clipped in EXAMPLE
    done = audit(EXAMPLE.replace(clipped, "error"), "--trials", "300")
    assert done.returncode == 3
    assert "training this way leaks more than promised" in done.stdout


def test_a_loop_that_trains_to_nan_is_one_line_and_exit_4(audit: Any) -> None:
    done = audit(EXAMPLE.replace("return models", "return [{k: v / 0 * 0 for k, v in m.items()} for m in models]"))
    assert done.returncode == 4
    assert done.stdout.startswith("gave_up: ")
    assert done.stderr.splitlines()[0] == "dpaudit: Expected finite models, but 3 of 3 trained to infinity or NaN."
    assert "change the recipe or the loop" in done.stderr
    assert "repeat" not in done.stderr


def test_a_folder_that_is_deleted_meanwhile_is_said_to_be_gone(audit: Any) -> None:
    """It said that finished trials and the seed are kept."""
    text = EXAMPLE.replace("return models", "if len(seeds) > 3: shutil.rmtree('m.audit')\n    return models")
    done = audit(f"import shutil\n{text}", "--trials", "40")
    assert done.returncode == 4
    first, then = done.stderr.splitlines()
    assert first.startswith("dpaudit: cannot write to m.audit/trials.sqlite: it was moved or deleted")
    assert then == "m.audit/trials.sqlite is gone, and what was kept in it; --seed 4 trains the same models again"


@pytest.mark.slow
def test_a_loop_that_never_looks_at_the_clock_is_ended_by_the_budget(audit: Any) -> None:
    done = audit("import time\ndef train(*a, **k):\n    time.sleep(600)\n", "--trials", "20", "--budget", "1s")
    assert done.returncode == 4
    assert done.stdout.startswith("gave_up: ")


def test_trials_of_a_loop_without_a_source_are_kept_in_memory_unless_it_says_who_it_is(
    model: Path, tmp_path: Path
) -> None:
    namespace: dict[str, Any] = {"__name__": "typed_in"}
    exec(EXAMPLE, namespace)
    bundle = load_bundle(model)
    audit = prepare(bundle, bundle.recipe.load_dataset(), Settings(seed=4, trainer=partial(namespace["train"])))
    candidate = CLIPBKD.build(replace(audit.spec, init_seed=4), audit)[0]
    arms, setup = candidate.arms, audit.trial_setup(candidate.spec, candidate.arms.pool, candidate.all_scores)
    with TrialStore(tmp_path / "t.sqlite") as store:
        runner = TrialRunner(store)
        scores = runner.run(setup, *arms.trials(20, 4))
        assert [len(part) for part in scores] == [20, 20]
        assert runner.notes[0].startswith("Trials were kept in memory alone, for module 'typed_in' has no source")
        namespace["train"].trainer_id = "the example"
        for trained in (40, 0):
            runner = TrialRunner(store)
            np.testing.assert_array_equal(runner.run(setup, *arms.trials(20, 4)), scores)
            assert (runner.trained, runner.notes) == (trained, [])


def test_a_users_file_sees_no_words_of_our_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, words = tmp_path / "my_loop.py", ["dpaudit", "run", "m.pt", "--budget", "1s"]
    file.write_text(
        "import argparse, sys\nargparse.ArgumentParser().parse_args()\nSEEN = sys.argv\nseen = lambda: SEEN\n"
    )
    monkeypatch.setattr(sys, "argv", words)
    assert UserFunction.named("my_loop.py:seen", "--trainer", tmp_path).load()() == [str(file)]
    assert sys.argv is words


PARALLEL = """
import joblib
from dpaudit.mechanisms.learning.training import train as honest

def one(spec, pool, row, seed):
    return honest(spec, pool, row[None], [seed], device="cpu").state_dict(0)

def train(spec, pool, members, seeds, *, device):
    models = (joblib.delayed(one)(spec, pool, row, seed) for row, seed in zip(members, seeds, strict=True))
    return joblib.Parallel(n_jobs=2)(models)
"""


@pytest.mark.slow
def test_processes_that_a_loop_starts_find_the_functions_of_its_file(tmp_path: Path) -> None:
    """They know no module by a name that only this process has; joblib said that arguments were not picklable."""
    (tmp_path / "parallel_loop.py").write_text(PARALLEL)
    trainer = UserTrainer(UserFunction.named("parallel_loop.py:train", "--trainer", tmp_path))
    expected = train_block(setup(), arms(4)[0])
    np.testing.assert_allclose(train_block(setup(trainer), arms(4)[0]), expected, rtol=1e-5)


def test_a_file_has_its_own_name_unless_something_else_has_it(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    for name in ("a_loop_of_mine.py", "other/a_loop_of_mine.py", "json.py", "a.loop.py"):
        (tmp_path / name).write_text("def train(): pass")
    names = ["a_loop_of_mine.py", "other/a_loop_of_mine.py", "json.py", "a.loop.py", "a_loop_of_mine.py"]
    loaded = [UserFunction.named(f"{name}:train", "--trainer", tmp_path).load().__module__ for name in names]
    assert loaded[0] == loaded[4] == "a_loop_of_mine"
    assert all(name.startswith("_dpaudit_user_") for name in loaded[1:4])
    (tmp_path / "a_loop_of_mine.py").write_text("def train(): return 1")
    edited = UserFunction.named("a_loop_of_mine.py:train", "--trainer", tmp_path).load()
    assert (edited.__module__, edited()) == ("a_loop_of_mine", 1)
    assert json.loads("1") == 1


def test_models_of_a_loop_are_named_in_the_result(tmp_path: Path) -> None:
    (tmp_path / "my_loop.py").write_text(EXAMPLE)
    trainer = UserTrainer(UserFunction.named("my_loop.py:train", "--trainer", tmp_path))
    assert trainer_name(trainer).startswith(f"{tmp_path}/my_loop.py:train (SHA-256 ")
    assert trainer_name(partial(np.sum)) == "numpy.sum"


ONE_MODEL = """
import torch

def train(dataset, seed, noise_factor=1.0):
    torch.manual_seed(seed)
    return torch.nn.Linear(64, 2)

def stepping(dataset, steps):
    module = torch.nn.Linear(64, 2)
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    module(dataset.tensors[0]).sum().backward()
    for _ in range(steps):
        optimizer.step()
    return module

def steady(dataset, seed, noise_factor=1.0):
    torch.manual_seed(seed)
    return stepping(dataset, 720)

def by_size(dataset, seed, noise_factor=1.0):
    torch.manual_seed(seed)
    return stepping(dataset, 720 if len(dataset) == 280 else 700)

def faulty(dataset, seed, noise_factor=1.0):
    torch.manual_seed(seed)
    return stepping(dataset, len(dataset))

def silent(dataset, seed):
    return train(dataset, seed)

def many(spec, pool, members, seeds, *, device, noise_factor=1.0):
    return [train(None, seed).state_dict() for seed in seeds]
"""
SHUFFLED, POISSON = {"kind": "shuffled", "batches": 36, "epochs": 20}, {"kind": "poisson", "prob": 1 / 36}


@pytest.fixture
def arms_of(tmp_path: Path) -> Callable[..., Any]:
    """The two data sets of a loop, as sizes; None where the game is not played."""
    (tmp_path / "loops.py").write_text(ONE_MODEL)
    text = load_recipe(ROOT / "examples" / "digits-shuffled-as-poisson.toml").to_dict()

    def arms(loop: str, adjacency: str, run: Any, claimed: Any, *, one_run: bool = False) -> tuple[int, int] | None:
        claim = {**text["claim"], "adjacency": adjacency, "sampling": claimed}
        recipe = Recipe.from_dict({**text, "sampling": run, "claim": claim, "steps": 720}).with_dimension(130)
        trainer = UserTrainer(UserFunction.named(f"loops.py:{loop}", "--trainer", tmp_path))
        bundle = Bundle("", "", dict(torch.nn.Linear(64, 2).state_dict()), recipe)
        audit = prepare(bundle, recipe.load_dataset(), Settings(seed=1, trainer=trainer))
        if one_run:
            BLANK.run(audit, dict.fromkeys(BLANK.tests(audit), 0.05))
        if one_run or not CLIPBKD.tests(audit):
            return None
        made = CLIPBKD.build(replace(audit.spec, init_seed=1), audit)[0].arms
        return int(made.without.sum()), int(made.with_canary.sum())

    return arms


@pytest.mark.parametrize(
    ("adjacency", "run", "claimed"),
    [("add-remove", SHUFFLED, SHUFFLED), ("zero-out", SHUFFLED, SHUFFLED), ("zero-out", SHUFFLED, POISSON)],
)
def test_a_record_is_not_taken_from_a_loop_whose_claim_leaves_its_place(
    arms_of: Any, adjacency: str, run: Any, claimed: Any
) -> None:
    """One record less gives other batches of all others, and sometimes fewer."""
    with pytest.raises(InputError, match=rf"for a claim with claim.adjacency='{adjacency}' of 'shuffled' batches"):
        arms_of("train", adjacency, run, claimed)
    with pytest.raises(InputError, match=rf"for a claim with claim.adjacency='{adjacency}' of 'shuffled' batches"):
        arms_of("train", adjacency, run, claimed, one_run=True)
    assert arms_of("many", adjacency, run, claimed)


def test_a_record_is_not_taken_from_a_loop_in_a_fixed_order(tmp_path: Path) -> None:
    """DP-FTRL puts record i into batch i mod B: without record 0 every other record is in another batch."""
    (tmp_path / "loops.py").write_text(ONE_MODEL)
    text = load_recipe(ROOT / "examples" / "digits-dp-ftrl.toml").to_dict()
    trainer = UserTrainer(UserFunction.named("loops.py:train", "--trainer", tmp_path))

    def audit(batches: int, adjacency: str) -> Any:
        claim = {**text["claim"], "adjacency": adjacency}
        recipe = Recipe.from_dict({**text, "steps": 8, "batches": batches, "claim": claim}).with_dimension(650)
        bundle = Bundle("", "", dict(torch.nn.Linear(64, 10).state_dict()), recipe)
        return prepare(bundle, recipe.load_dataset(), Settings(seed=1, trainer=trainer))

    refused = partial(pytest.raises, InputError, match="claim.adjacency='add-remove' of 'fixed-order' batches")
    played = audit(8, "add-remove")
    with refused():
        CLIPBKD.build(replace(played.spec, init_seed=1), played)
    with refused():
        BLANK.run(played, dict.fromkeys(BLANK.tests(played), 0.05))
    for whole in (audit(1, "add-remove"), audit(8, "replace-one")):
        check_places(whole)


def test_a_record_is_not_taken_from_a_loop_that_takes_fewer_steps_without_it(arms_of: Any) -> None:
    """A last batch of one record, in every pass through a loader."""
    with pytest.raises(InputError, match="to take 720 steps with 279 of the 280 records too, not 700"):
        arms_of("by_size", "add-remove", POISSON, POISSON)
    assert arms_of("by_size", "replace-one", POISSON, POISSON) == (280, 280)
    assert arms_of("steady", "add-remove", POISSON, POISSON) == (279, 280)
    assert arms_of("faulty", "add-remove", POISSON, POISSON) == (279, 280)  # never as many steps as claimed: audited


def test_a_record_is_taken_from_a_loop_or_replaced_where_the_claim_is_on_that(arms_of: Any) -> None:
    assert arms_of("train", "add-remove", SHUFFLED, POISSON) == (279, 280)
    assert arms_of("train", "zero-out", POISSON, POISSON) == (279, 280)
    assert arms_of("train", "replace-one", SHUFFLED, SHUFFLED) == (280, 280)
    # the built-in training plays the pilot of the others, in an order with a place for either value
    assert [arms_of(loop, "replace-one", SHUFFLED, SHUFFLED) for loop in ("silent", "many")] == [None, None]


SETTINGS = """
import os, numpy, torch
torch.set_default_dtype(torch.float64)
import plain

def train(spec, pool, members, seeds, *, device):
    assert torch.get_default_dtype() == torch.float64 and os.getcwd() in (FOLDER, "/")
    torch.set_default_dtype(torch.float32)
    models = plain.train(spec, pool, members, seeds, device=device)
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    numpy.seterr(all="raise")
    os.chdir("/")
    return models
"""


def test_what_a_loop_sets_for_itself_is_not_set_for_us(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain.py").write_text(EXAMPLE)
    (tmp_path / "my_loop.py").write_text(f"FOLDER = {str(tmp_path)!r}\n{SETTINGS}")
    before = torch.get_default_dtype(), torch.is_grad_enabled(), np.geterr(), Path.cwd()
    bundle, scores = load_bundle(model), []
    for name in ("plain.py:train", "my_loop.py:train", "my_loop.py:train", "plain.py:train"):
        trainer = UserTrainer(UserFunction.named(name, "--trainer", tmp_path))
        audit = prepare(bundle, bundle.recipe.load_dataset(), Settings(seed=4, trainer=trainer))
        candidate = CLIPBKD.build(replace(audit.spec, init_seed=4), audit)[0]
        setup = audit.trial_setup(candidate.spec, candidate.arms.pool, candidate.all_scores)
        scores.append(TrialRunner(TrialStore(None)).run(setup, *candidate.arms.trials(5, 4)))
        assert before == (torch.get_default_dtype(), torch.is_grad_enabled(), np.geterr(), Path.cwd())
    np.testing.assert_array_equal(scores[0], scores[1])
    np.testing.assert_array_equal(scores[0], scores[2])
    np.testing.assert_array_equal(scores[0], scores[3])


@pytest.mark.parametrize("options", [(), ("--budget", "60s")])
def test_what_a_loop_prints_is_no_result(audit: Any, capfd: pytest.CaptureFixture[str], options: Any) -> None:
    """On stdout, that is: neither here nor, under a budget, in a worker."""
    text = EXAMPLE.replace("    return models", "    print('epoch 1')\n    return models")
    done, workers = audit(text, "--trials", "10", "--json", "-", *options), capfd.readouterr()
    assert json.loads(done.stdout)["format"] == "dpaudit-result/2"
    assert "epoch 1" in done.stderr + workers.err
    assert "epoch 1" not in workers.out


@pytest.mark.parametrize("named", [True, False])
def test_a_loop_that_writes_over_its_records_changes_them_for_nobody_else(tmp_path: Path, named: bool) -> None:
    """Neither one of a file nor a function given in Python, in place or through tensors on the same memory."""
    (tmp_path / "my_loop.py").write_text(
        "import torch\nfrom dpaudit.mechanisms.learning.training import train as plain\n\n"
        "def train(*arguments, **options):\n"
        "    made, pool = plain(*arguments, **options), arguments[1]\n"
        "    torch.from_numpy(pool.x).zero_()\n    pool.y[:] = 0\n    return made\n"
    )
    code = UserFunction.named("my_loop.py:train", "--trainer", tmp_path)
    game = setup(UserTrainer(code) if named else code.load())
    train_block(game, arms(3)[0])
    assert game.pool.x.all()
    assert game.pool.y.any()


def test_a_loop_may_leave_a_folder_that_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_loop.py").write_text(
        "import os, tempfile\n\ndef train(spec, pool, members, seeds, *, device):\n"
        "    with tempfile.TemporaryDirectory() as folder:\n        os.chdir(folder)\n    return [1]\n"
    )
    trainer = UserTrainer(UserFunction.named("my_loop.py:train", "--trainer", tmp_path))
    pool = Pool(np.ones((3, 2), dtype=np.float32), np.ones(3, dtype=np.int64))
    for _ in range(2):
        assert trainer(None, pool, None, [1], device="cpu") == [1]
        assert Path.cwd() == tmp_path
