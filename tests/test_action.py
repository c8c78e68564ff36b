"""The GitHub Action: its entry in a workflow's environment of files and variables, and what action.yml hands it."""

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ENTRY = ROOT / ".ci/action.py"
CLAIM = """
[[claim]]
id = "too-small"
epsilon = 1.0
delta = 1e-5
[claim.mechanism]
name = "gaussian"
noise_multiplier = 1.0
"""


def run(folder: Path, **inputs: str) -> tuple[subprocess.CompletedProcess[str], dict[str, str], str]:
    """The entry in a workflow's environment: what it printed, its outputs, its summary."""
    output, summary = folder / "output", folder / "summary"
    given = {f"INPUT_{name.upper()}": value for name, value in inputs.items()}
    done = subprocess.run(
        [sys.executable, str(ENTRY)],
        cwd=folder, capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "GITHUB_OUTPUT": str(output), "GITHUB_STEP_SUMMARY": str(summary), **given},
    )  # fmt: skip
    outputs = dict(line.split("=", 1) for line in output.read_text().splitlines())
    return done, outputs, summary.read_text()


def test_findings_become_annotations_outputs_a_summary_and_sarif(tmp_path: Path) -> None:
    (tmp_path / "a,b.py").write_text("import opacus\ndelta = 1 / len(train_loader)\n")
    (tmp_path / "claims.toml").write_text(CLAIM)
    done, outputs, summary = run(tmp_path, paths="'a,b.py'", require="clean", claims="claims.toml")
    assert done.returncode == 3  # a refuted claim beats what is required
    assert outputs == {"findings": "1", "refuted": "1", "sarif": "dpaudit.sarif"}
    commands = done.stdout.splitlines()
    assert commands[0].startswith("::warning file=a%2Cb.py,line=2,col=9,title=dpaudit delta-from-loader::")
    assert commands[1].startswith("::error title=dpaudit refuted::too-small: ")
    assert "delta-from-loader" in summary
    assert "too-small" in summary
    (run_,) = json.loads((tmp_path / "dpaudit.sarif").read_text())["runs"]
    assert len(run_["results"]) == 1


@pytest.mark.parametrize(("inputs", "status"), [({}, 0), ({"require": "clean"}, 5), ({"ignore": "no-rule"}, 2)])
def test_the_exit_status_is_that_of_the_commands(tmp_path: Path, inputs: dict[str, str], status: int) -> None:
    (tmp_path / "train.py").write_text("import opacus\ndelta = 1 / len(train_loader)\n")
    assert run(tmp_path, paths=".", **inputs)[0].returncode == status


def test_a_name_that_is_no_utf8_and_a_folder_that_is_not_there_cost_no_finding(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xff.py")).write_text("import opacus\ndelta = 1 / len(train_loader)\n")
    (tmp_path / "claims.toml").write_text(CLAIM)
    done, outputs, summary = run(tmp_path, paths=".", claims="claims.toml", sarif="out/lint.sarif")
    assert (done.returncode, done.stderr) == (3, "")
    assert outputs == {"findings": "1", "refuted": "1", "sarif": "out/lint.sarif"}
    assert "delta-from-loader" in summary
    assert (tmp_path / "out/lint.sarif").exists()


@pytest.mark.parametrize(
    ("inputs", "status", "words"),
    [
        ({"paths": "sub"}, 0, "Lint found nothing."),
        ({"paths": "nowhere"}, 2, "Lint ended with exit status 2: the log says why."),
        ({"paths": "sub", "ignore": "no-rule"}, 2, "Lint ended with exit status 2: the log says why."),
        ({"paths": "sub broken.py"}, 2, "Files and folders that could not be read: 1; the log names them."),
        ({"paths": "sub", "claims": "none.toml"}, 2, "The claims were not checked, exit status 2: the log says why."),
    ],
)
def test_the_summary_says_what_was_not_looked_at(
    tmp_path: Path, inputs: dict[str, str], status: int, words: str
) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/train.py").write_text("import opacus\n")
    (tmp_path / "broken.py").write_text("import opacus\nx = (\n")
    done, _, summary = run(tmp_path, **inputs)
    assert done.returncode == status
    assert words in summary
    assert ("Lint found nothing." in summary) == (status == 0)


def test_a_crash_is_no_success_and_sarif_that_cannot_be_written_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("INPUT_CLAIMS", "claims.toml")
    entry = runpy.run_path(str(ENTRY))
    whole = '{"findings": [], "unread": 0, "claims": []}'
    for found, status in (
        ([(1, ""), (0, whole)], 1), ([(0, whole), (0, whole), (-9, "")], 9), ([(1, ""), (3, whole)], 3),
        ([(0, whole), (0, whole), (0, whole)], 0),
    ):  # fmt: skip
        answers = iter(found)
        monkeypatch.setitem(entry["main"].__globals__, "_dpaudit", lambda *words, answers=answers: next(answers))
        assert entry["main"]() == status
    (tmp_path / "train.py").write_text("import opacus\ndelta = 1 / len(train_loader)\n")
    done, outputs, summary = run(tmp_path, paths="train.py", sarif=".")
    assert (done.returncode, outputs, "Traceback" in done.stderr) == (2, {"findings": "1", "refuted": "0"}, False)
    assert "SARIF was not written" in summary
    assert done.stdout.startswith("::warning file=train.py")


def test_words_that_no_shell_takes_are_bad_input(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ENTRY)], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "INPUT_PATHS": "it's"},
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "No closing quotation" in done.stderr


def test_outside_text_ends_no_command_and_no_cell() -> None:
    entry = runpy.run_path(str(ENTRY))
    assert entry["escaped"]("100%\n::error::x") == "100%25%0A::error::x"
    finding = {"path": "a|b\n.py", "line": 1, "level": "note", "rule": "r", "message": "<img> [x](y) |\r`z`"}
    row = entry["summary"]([finding], []).splitlines()[4]
    assert row.count("|") == 5
    assert "\r" not in row
    assert not {"<", "`", "["} & set(row)


def test_action_yml_hands_over_every_input_that_the_entry_reads() -> None:
    """By the environment alone: an input that is pasted into a command could run as one."""
    text = (ROOT / "action.yml").read_text()
    handed = dict(re.findall(r"(INPUT_\w+): \$\{\{ inputs\.([\w-]+) \}\}", text))
    assert set(handed) == set(re.findall(r"INPUT_\w+", ENTRY.read_text()))
    assert all(name == f"INPUT_{key.upper()}" for name, key in handed.items())
    assert not re.search(r"run:.*\$\{\{", text)
