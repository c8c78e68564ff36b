"""What a stranger runs into: a file for another command, other tools' names, models of no use; each in one line."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from dpaudit.audit import load_bundle
from dpaudit.audit.commands.console import painted
from dpaudit.audit.inputs.claim_tables import COLUMNS, read_claim_table
from dpaudit.audit.inputs.files import InputError
from dpaudit.audit.inputs.recipes import load_recipe
from dpaudit.audit.lint.recipe_files import is_recipe
from dpaudit.mechanisms import Gaussian
from dpaudit.reports import verdict_text
from dpaudit.verify import Claim, Verdict, check
from dpaudit.verify.claim_files import load_claims
from dpaudit.verify.results import AuditResult

Command = Callable[..., subprocess.CompletedProcess[str]]
ROOT = Path(__file__).parents[2]
RECIPE = (ROOT / "examples/digits-gaussian.toml").read_text()
CLAIMS = """
[[claim]]
id = "a"
epsilon = 3.0
delta = 1e-5
steps = 10
sampling_prob = 0.01
[claim.mechanism]
name = "gaussian"
noise_multiplier = 1.0
"""
NETWORKS = """
from torch import nn

def build(features, classes):
    return nn.Sequential(nn.Linear(features, 4), nn.BatchNorm1d(4), nn.Linear(4, classes))

def narrow(features, classes):
    return nn.Linear(3, classes)

def leaving(features, classes):
    raise SystemExit(0)

def halting(features, classes):
    raise BaseException("enough")

class Leaving(nn.Linear):
    def forward(self, x):
        raise SystemExit(0)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "recipe.toml").write_text(RECIPE)
    (tmp_path / "claims.toml").write_text(CLAIMS)
    (tmp_path / "networks.py").write_text(NETWORKS)
    return tmp_path


def refusal(done: subprocess.CompletedProcess[str]) -> str:
    """The one line of a command that found its input wrong."""
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ("run recipe.toml", "dpaudit train recipe.toml --out model.pt"),
        ("run claims.toml", "dpaudit verify"),
        ("verify recipe.toml", "dpaudit train recipe.toml"),
        ("train claims.toml --out m.pt", "dpaudit verify claims.toml"),
    ],
)
def test_a_file_for_another_command_is_sent_there(words: str, advice: str, folder: Path, dpaudit: Command) -> None:
    assert advice in refusal(dpaudit(*words.split(), folder=folder))


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("sample_rate", "sampling_prob"),
        ("max_grad_norm", "clip in"),
        ("sigma", "noise_multiplier in"),
        ("epochs", "steps"),
        ("target_epsilon", "epsilon"),
        ("epsilom", "epsilon"),
    ],
)
def test_other_tools_names_are_told_ours(key: str, meant: str, folder: Path, dpaudit: Command) -> None:
    (folder / "claims.toml").write_text(CLAIMS.replace("steps = 10", f"steps = 10\n{key} = 3"))
    assert f"did you mean {meant}" in refusal(dpaudit("verify", "claims.toml", folder=folder))
    (folder / "recipe.toml").write_text(f"{key} = 3\n{RECIPE}")
    line = refusal(dpaudit("train", "recipe.toml", "--out", "m.pt", folder=folder))
    assert line.startswith(f"dpaudit: recipe.toml: {key}: Expected a known key")


@pytest.mark.parametrize("old", [False, True])
def test_a_pickled_module_is_told_to_save_its_state(old: bool, folder: Path, dpaudit: Command) -> None:
    torch.save(nn.Linear(64, 10), folder / "model.pt", _use_new_zipfile_serialization=not old)
    line = refusal(dpaudit("run", "model.pt", "--recipe", "recipe.toml", folder=folder))
    assert "model.state_dict()" in line


def test_a_checkpoint_is_told_to_hold_the_state_alone(folder: Path, dpaudit: Command) -> None:
    torch.save({"model": nn.Linear(64, 10).state_dict(), "epoch": 3}, folder / "model.pt")
    assert "state_dict() alone" in refusal(dpaudit("run", "model.pt", "--recipe", "recipe.toml", folder=folder))


@pytest.mark.parametrize(
    ("network", "words"),
    [
        ("build", "BatchNorm1d"),
        ("narrow", "cannot be multiplied"),
        ("leaving", "SystemExit: 0, which ends a program"),
        ("Leaving", "SystemExit: 0, which ends a program"),
        ("halting", "BaseException: enough"),
    ],
)
def test_a_network_that_cannot_be_trained_is_one_line(network: str, words: str, folder: Path, dpaudit: Command) -> None:
    recipe = RECIPE.replace('"linear"', f'"networks.py:{network}"').replace('init = "zeros"\n', "")
    (folder / "recipe.toml").write_text(recipe)
    assert words in refusal(dpaudit("train", "recipe.toml", "--out", "m.pt", "--seed", "1", folder=folder))


def test_what_a_bundle_would_overwrite_is_named(folder: Path, dpaudit: Command) -> None:
    (folder / "made").mkdir()
    for out, words in (
        ("../" + folder.name + "/recipe.toml", "another file than the recipe"),
        ("made", "not a folder"),
    ):
        line = refusal(dpaudit("train", "recipe.toml", "--out", out, "--seed", "1", folder=folder))
        assert f"Expected --out={out} to be" in line
        assert words in line
    assert (folder / "recipe.toml").read_text() == RECIPE


@pytest.mark.parametrize(
    ("json_file", "words"),
    [
        ("claims.toml", ("verify", "claims.toml")),
        ("claims.toml", ("verify", "--screen", "claims.toml")),
        ("in.csv", ("scores", "--in", "in.csv", "--out", "out.csv")),
        ("claims.toml", ("scores", "--in", "in.csv", "--out", "out.csv", "--claim", "claims.toml")),
        ("recipe.toml", ("run", "model.pt", "--recipe", "recipe.toml", "--dry-run")),
        ("model.pt", ("run", "model.pt", "--recipe", "recipe.toml", "--dry-run")),
        ("in.csv", ("canaries", "judge", "coins.json", "in.csv", "--epsilon", "1", "--delta", "1e-5")),
    ],
)
def test_no_json_takes_the_place_of_what_is_read(
    json_file: str, words: tuple[str, ...], folder: Path, dpaudit: Command
) -> None:
    (folder / "claims.toml").write_text(CLAIMS)
    for name in ("in.csv", "out.csv", "coins.json"):
        (folder / name).write_text("1\n2\n3\n")
    torch.save(nn.Linear(64, 10).state_dict(), folder / "model.pt")
    before = (folder / json_file).read_bytes()
    for written in (json_file, f"{json_file}/"):  # the slash is dropped where the file is opened
        line = refusal(dpaudit(*words, "--json", written, folder=folder))
        assert line == f"dpaudit: Expected --json={json_file} to be another file than {json_file}, which is read.\n"
        assert (folder / json_file).read_bytes() == before


@pytest.mark.parametrize("name", ["data.npz", "network.py"])
def test_nothing_takes_the_place_of_what_the_recipe_names(name: str, tmp_path: Path, dpaudit: Command) -> None:
    (tmp_path / "network.py").write_text(
        "from torch import nn\n\ndef build(features, classes):\n    return nn.Linear(2, 2)\n"
    )
    np.savez(tmp_path / "data.npz", x=np.zeros((20, 2), np.float32), y=np.arange(20) % 2)
    recipe = RECIPE.replace('name = "digits"', 'file = "data.npz"').replace(
        'name = "linear"', 'name = "network.py:build"'
    )
    (tmp_path / "recipe.toml").write_text(recipe)
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "model.pt")
    before = (tmp_path / name).read_bytes()
    for option, words in (("--out", ("train",)), ("--json", ("run", "model.pt", "--dry-run", "--recipe"))):
        line = refusal(dpaudit(*words, "recipe.toml", option, name, folder=tmp_path))
        assert line == f"dpaudit: Expected {option}={name} to be another file than {tmp_path / name}, which is read.\n"
        assert (tmp_path / name).read_bytes() == before


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--json", ("verify", "claims.toml")),
        ("--json", ("scores", "--in", "in.csv", "--out", "out.csv")),
        ("--json", ("run", "model.pt", "--recipe", "recipe.toml")),
        ("--json", ("canaries", "judge", "coins.json", "in.csv", "--epsilon", "1", "--delta", "1e-5")),
        ("--json", ("calibrate", "--mechanism", "gaussian", "--epsilon", "2", "--delta", "1e-5")),
        ("--out", ("train", "recipe.toml")),
    ],
)
def test_a_folder_that_is_missing_is_told_before_the_work(
    option: str, words: tuple[str, ...], folder: Path, dpaudit: Command
) -> None:
    (folder / "claims.toml").write_text(CLAIMS)
    done = dpaudit(*words, option, "none/x", folder=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"dpaudit: Expected the folder of {option}=none/x to exist.\n"


@pytest.mark.parametrize(
    ("option", "words"), [("--json", ("verify", "claims.toml")), ("--out", ("train", "recipe.toml"))]
)
def test_a_folder_that_takes_no_files_is_told_before_the_work(
    option: str, words: tuple[str, ...], folder: Path, dpaudit: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "claims.toml").write_text(CLAIMS)
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != "locked")  # root may write anywhere
    (folder / "locked").mkdir()
    done = dpaudit(*words, option, "locked/x", folder=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"dpaudit: Expected the folder of {option}=locked/x to be one that can be written to.\n"


def test_files_that_an_editor_begins_with_a_byte_order_mark_are_read(tmp_path: Path) -> None:
    for name, text in (("claims.toml", CLAIMS), ("recipe.toml", RECIPE)):
        (tmp_path / name).write_text(text, encoding="utf-8-sig")
    assert [claim.id for claim in load_claims(tmp_path / "claims.toml")] == ["a"]
    assert load_recipe(tmp_path / "recipe.toml").claim_object().epsilon > 0
    assert is_recipe(tmp_path / "recipe.toml")
    (tmp_path / "claims.csv").write_text(",".join(COLUMNS) + "\na,1.1,0.1,10,1e-5,3\n", encoding="utf-8-sig")
    assert list(read_claim_table(tmp_path / "claims.csv").ids) == ["a"]


def test_a_delta_that_floats_take_for_0_is_refused_in_tables_too(tmp_path: Path) -> None:
    table = tmp_path / "claims.csv"
    table.write_text(",".join(COLUMNS) + "\na,1.1,0.1,10,0,3\nb,1.1,0.1,10,1e-400,3\n")
    with pytest.raises(InputError, match="line 3: delta: Expected numbers to be 0, or at least 5e-324"):
        read_claim_table(table)


def test_an_attack_named_twice_is_refused(folder: Path, dpaudit: Command) -> None:
    torch.save(nn.Linear(64, 10).state_dict(), folder / "model.pt")
    words = (
        "run",
        "model.pt",
        "--recipe",
        "recipe.toml",
        "--seed",
        "1",
        "--dry-run",
        "--attacks",
        "lira,clipbkd, lira",
    )
    assert "Expected attacks='lira' once" in refusal(dpaudit(*words, folder=folder))


def test_a_dry_run_refuses_a_model_or_data_that_do_not_fit(folder: Path, dpaudit: Command) -> None:
    np.savez(folder / "other.npz", x=np.zeros((100, 5), np.float32), y=np.arange(100) % 10)
    torch.save(nn.Linear(64, 10).state_dict(), folder / "model.pt")
    torch.save({"w": torch.zeros(10, 64), "b": torch.zeros(10)}, folder / "renamed.pt")
    for words in (("model.pt", "--data", "other.npz"), ("renamed.pt",)):
        done = dpaudit("run", *words, "--recipe", "recipe.toml", "--dry-run", "--seed", "1", folder=folder)
        assert "Expected" in refusal(done)


def test_check_says_how_to_state_a_claim() -> None:
    for value, words in (("claims.toml", "load_claims"), (Gaussian(1.0), "Claim.single"), (None, "Claim.single")):
        with pytest.raises(TypeError, match=words):
            check(value)  # type: ignore[arg-type]


def test_results_print_in_one_line(folder: Path) -> None:
    verdict = check(Claim.single(Gaussian(1.0), epsilon=1.0, delta=1e-5, id="a"))
    assert str(verdict).startswith("a: refuted: epsilon 1 at delta 1e-05, true epsilon 4.37")
    torch.save(nn.Linear(64, 10).state_dict(), folder / "model.pt")
    bundle = load_bundle(folder / "model.pt", recipe=load_recipe(folder / "recipe.toml"))
    assert "650 parameters, gaussian, claims epsilon 3.5" in repr(bundle)
    result = AuditResult({"path": "m.pt"}, {}, "inconclusive", [], None, 0.95, 3.5, verdict, [], 1, {}, 1.0)
    for printed in (str(verdict), repr(bundle), str(bundle), str(result), repr(result)):
        assert len(printed) < 200
        assert "\n" not in printed


def test_a_verdict_tells_numbers_first_and_the_witness_once(
    folder: Path, dpaudit: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "claims.toml").write_text(CLAIMS.replace("epsilon = 3.0", "epsilon = 0.01"))
    done = dpaudit("verify", "claims.toml", "--json", "v.json", folder=folder)
    assert done.returncode == 3
    lines = done.stdout.splitlines()
    assert lines[1].strip().startswith("delta >= ")
    assert lines[2].strip().startswith("witness: ")
    assert done.stdout.count("direction") == 1
    assert "\x1b" not in done.stdout  # NO_COLOR
    (read,) = json.loads((folder / "v.json").read_text())["claims"]
    narrow = verdict_text(Verdict.from_dict(read), width=60).splitlines()
    assert max(map(len, narrow[1:])) <= 60
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert painted("refuted", "refuted").startswith("\x1b[")
