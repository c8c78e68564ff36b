"""`dpaudit lint`: files and folders, notebooks, ignored rules, formats, exit statuses; nothing is run."""

import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dpaudit.audit.inputs.files import InputError
from dpaudit.audit.lint.linting import lint_paths
from dpaudit.audit.lint.names import Names
from dpaudit.audit.lint.output import lint_text
from dpaudit.audit.lint.rules import RULES
from dpaudit.audit.lint.script import read_script

Command = Callable[..., subprocess.CompletedProcess[str]]
EXAMPLES = Path(__file__).parents[3] / "examples"
LOADER_DELTA = "import opacus\ndelta = 1 / len(train_loader)\n"
RECIPE = """
algorithm = "dp-sgd"
steps = 50
[dataset]
name = "digits"
[architecture]
name = "linear"
[mechanism]
name = "gaussian"
noise_multiplier = 2.0
clip = 1.0
[sampling]
kind = "poisson"
prob = 0.2
[claim]
epsilon = 0.5
delta = 1e-3
"""


@pytest.mark.parametrize("refused", ["open", "scandir", "stat"])
@pytest.mark.parametrize("name", ["train.py", "recipe.toml"])
def test_what_the_system_does_not_let_be_read_is_told_and_is_not_clean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, refused: str
) -> None:
    """By a system call that fails, as file modes do not bind root."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / name).write_text("")
    closed = str(tmp_path / "sub" / (name if refused != "scandir" else ""))
    real = getattr(os, refused)

    def denied(path: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(path, str | os.PathLike) and Path(path) == Path(closed):
            raise PermissionError(errno.EACCES, "Permission denied", closed)
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, refused, denied)
    told: list[str] = []
    result = lint_paths([tmp_path], warn=told.append)
    assert lint_text(result) == "nothing found in 0 files; 1 could not be read"
    assert not result.clean
    assert told == [f"left out: Permission denied: {closed}"]


def test_exit_statuses_tell_practice_from_refuted_claims(tmp_path: Path, dpaudit: Command) -> None:
    (tmp_path / "train.py").write_text(LOADER_DELTA)
    (tmp_path / "note.py").write_text("from opacus import PrivacyEngine\nPrivacyEngine()\n")
    (tmp_path / "recipe.toml").write_text(RECIPE)
    assert dpaudit("lint", "train.py", folder=tmp_path).returncode == 0
    assert dpaudit("lint", "train.py", "--require", "clean", folder=tmp_path).returncode == 5
    assert dpaudit("lint", "note.py", "--require", "clean", folder=tmp_path).returncode == 0
    assert dpaudit("lint", "train.py", "recipe.toml", "--require", "clean", folder=tmp_path).returncode == 3
    for wrong in (("missing.py",), ("train.py", "--ignore", "batch"), ("train.py", "--format", "xml")):
        done = dpaudit("lint", *wrong, folder=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert "Expected" in done.stderr


def test_a_recipe_is_judged_by_its_own_numbers_at_the_lines_they_stand_in(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(RECIPE)
    found = {finding.rule: finding for finding in lint_paths([tmp_path]).findings}
    assert set(found) == {"claimed-value", "delta-too-large"}
    lines = RECIPE.splitlines()
    assert lines[found["claimed-value"].line - 1] == "epsilon = 0.5"
    assert lines[found["delta-too-large"].line - 1] == "delta = 1e-3"


def test_a_recipe_that_accounts_its_shuffled_batches_as_poisson_ones_says_so_or_is_told(tmp_path: Path) -> None:
    example = EXAMPLES / "digits-shuffled-as-poisson.toml"
    assert lint_paths([example]).findings == ()
    text = example.read_text()
    unmarked = text.replace("  # dpaudit: ignore[shuffled-as-poisson]", "")
    assert unmarked != text
    path = tmp_path / "recipe.toml"
    poisson = 'kind = "poisson"'
    inline = unmarked.partition("\n[claim.sampling]")[0].rstrip() + f"\nsampling = {{{poisson}, prob = 0.03}}\n"
    elsewhere = text.replace("ignore[shuffled-as-poisson]", "ignore[batch-norm]")
    for changed, line in ((unmarked, poisson), (elsewhere, poisson), (inline, "sampling = {")):
        path.write_text(changed)
        (finding,) = lint_paths([path], ignore=["claimed-value"]).findings
        assert finding.rule == "shuffled-as-poisson"
        assert changed.splitlines()[finding.line - 1].startswith(line)
    path.write_text(text.partition("\n[claim.sampling]")[0])  # shuffled, and accounted as such
    assert {finding.rule for finding in lint_paths([path]).findings} <= {"claimed-value"}
    path.write_text(unmarked.replace(poisson, f"# dpaudit: ignore[shuffled-as-poisson, no-rule]\n{poisson}"))
    told: list[str] = []
    assert lint_paths([path], warn=told.append).findings == ()
    assert told == [f"{path}: ignore[no-rule] names no rule"]


def test_text_says_why_once_and_where_each_time(tmp_path: Path, dpaudit: Command) -> None:
    (tmp_path / "train.py").write_text(LOADER_DELTA + "target_delta = 1 / len(train_loader)\n")
    lines = dpaudit("lint", "train.py", folder=tmp_path).stdout.splitlines()
    assert [line.split(": ")[0] for line in lines if line.startswith("train")] == ["train.py:2:9", "train.py:3:16"]
    assert sum("why:" in line for line in lines) == 1
    assert lines[-1] == "2 warnings in 1 file"
    (tmp_path / "train.py").write_text("import opacus\n")
    assert dpaudit("lint", "train.py", folder=tmp_path).stdout == "nothing found in 1 file\n"
    (tmp_path / "other.py").write_text("import torch\nclip, rate = 1.0, noise.noise_multiplier\n")
    told = dpaudit("lint", ".", folder=tmp_path).stdout
    assert told == "nothing found in 2 files; 1 left alone: no privacy library, no parameters of one\n"
    assert json.loads(dpaudit("lint", ".", "--format", "json", folder=tmp_path).stdout)["left_alone"] == 1
    (tmp_path / "other.py").write_text("import torch\nl2_norm_clip, noise_multiplier = 1.0, 1.1\n")
    assert dpaudit("lint", ".", folder=tmp_path).stdout == "nothing found in 2 files\n"


def test_json_and_sarif_hold_the_same_findings(tmp_path: Path, dpaudit: Command) -> None:
    (tmp_path / "train.py").write_text(LOADER_DELTA)
    document = json.loads(dpaudit("lint", "train.py", "--format", "json", folder=tmp_path).stdout)
    assert document["format"] == "dpaudit-lint/1"
    (finding,) = document["findings"]
    assert (finding["path"], finding["line"], finding["rule"]) == ("train.py", 2, "delta-from-loader")
    log = json.loads(dpaudit("lint", "train.py", "--format", "sarif", folder=tmp_path).stdout)
    (run,) = log["runs"]
    assert {rule["id"] for rule in run["tool"]["driver"]["rules"]} == set(RULES)
    (result,) = run["results"]
    place = result["locations"][0]["physicalLocation"]
    assert (result["ruleId"], result["level"]) == (finding["rule"], "warning")
    assert (place["artifactLocation"]["uri"], place["region"]["startLine"]) == ("train.py", 2)


@pytest.mark.parametrize(
    ("source", "left"),
    [
        ("delta = 1 / len(train_loader)  # dpaudit: ignore[delta-from-loader]", 0),
        ("# dpaudit: ignore[delta-from-loader, batch-norm]\ndelta = 1 / len(train_loader)", 0),
        ("delta = 1 / len(train_loader)  # dpaudit: ignore[batch-norm]", 1),
        ("delta = 1 / len(train_loader)\n# dpaudit: ignore[delta-from-loader]", 1),
        ("s = '# dpaudit: ignore[delta-from-loader]'; delta = 1 / len(train_loader)", 1),
    ],
)
def test_comments_switch_rules_off_where_they_stand(source: str, left: int, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"import opacus\n{source}\n")
    assert len(lint_paths([tmp_path / "train.py"]).findings) == left


def test_comments_that_name_no_rule_are_told(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import opacus  # dpaudit: ignore[delta]\n")
    told: list[str] = []
    lint_paths([tmp_path / "train.py"], warn=told.append)
    assert told == [f"{tmp_path / 'train.py'}: ignore[delta] names no rule"]
    strange = tmp_path / "a\n::error::b.py"
    strange.write_text("import opacus  # dpaudit: ignore[delta]\n")
    lint_paths([strange], warn=told.append)
    assert "\n" not in told[-1]


@pytest.mark.parametrize(("before", "column"), [("", 9), ("é = '日本語😀'; ", 21), ("x = '\u2028\f'; ", 19)])
def test_columns_are_characters(before: str, column: int, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"import opacus\n{before}delta = 1 / len(train_loader)\n")
    (finding,) = lint_paths([tmp_path / "train.py"]).findings
    assert (finding.line, finding.column) == (2, column)


def test_a_notebook_tells_the_line_of_its_file_and_the_cell(tmp_path: Path) -> None:
    cells = [
        {"cell_type": "markdown", "source": ["delta = 1 / len(train_loader)"]},
        {"cell_type": "code", "source": ["%pip install opacus\n", "import opacus"]},
        {"cell_type": "code", "source": "this is no python"},
        {"cell_type": "code", "source": ["name = 'ä'\n", "delta = 1 / len(train_loader)"]},
    ]
    path = tmp_path / "train.ipynb"
    path.write_text(json.dumps({"cells": cells, "nbformat": 4}, indent=1))
    (finding,) = lint_paths([path]).findings
    assert (finding.cell, finding.column) == ("cell 3, line 2", 1)
    assert "delta = 1" in path.read_text().splitlines()[finding.line - 1]
    assert finding.line > 15  # not the text cell's line, which reads the same


def test_folders_are_searched_and_what_is_no_script_is_told(tmp_path: Path) -> None:
    (tmp_path / "a" / ".hidden").mkdir(parents=True)
    for name in ("a/train.py", "a/.hidden/train.py"):
        (tmp_path / name).write_text(LOADER_DELTA)
    (tmp_path / "old.py").write_text("print 'two'")
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    told: list[str] = []
    result = lint_paths([tmp_path, tmp_path / "a" / "train.py"], warn=told.append)
    assert result.files == 1
    assert [Path(finding.path).name for finding in result.findings] == ["train.py"]
    assert len(told) == 1
    assert "old.py" in told[0]


def test_nothing_in_a_script_is_run_and_no_script_is_too_deep(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text(
        "import opacus\nopen('ran', 'w')\nx = 9 ** 9 ** 9 ** 9\ndelta = x / len(y)\nx = x\n"
    )
    (tmp_path / "deep.py").write_text("import opacus\nx = " + "-" * 50_000 + "1\n")
    (tmp_path / "bytes.py").write_bytes(b"import opacus\xff\x00")
    assert lint_paths([tmp_path / "run.py"]).findings == ()
    assert not (tmp_path / "ran").exists()
    for name in ("deep.py", "bytes.py"):
        with pytest.raises(InputError, match="to be Python"):
            lint_paths([tmp_path / name])


@pytest.mark.parametrize(
    "raw",
    [
        b"# -*- coding: latin-1 -*-\nname = '\xe9'\n",
        b"#!/usr/bin/python\n# vim: set fileencoding=cp1252 :\nname = '\x80'\n",
        b"\xef\xbb\xbf# coding: utf-8\nname = '\xc3\xa9'\n",
    ],
)
def test_a_script_is_decoded_as_python_decodes_it(raw: bytes, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_bytes(raw + LOADER_DELTA.encode())
    (finding,) = lint_paths([tmp_path / "train.py"]).findings
    assert finding.line == raw.count(b"\n") + 2
    for wrong in (b"# coding: no-such-one\n", b"# coding: hex\n", b"\xef\xbb\xbf# coding: latin-1\n", b"x = '\xe9'\n"):
        (tmp_path / "train.py").write_bytes(wrong)
        with pytest.raises(InputError, match="to be Python"):
            lint_paths([tmp_path / "train.py"])


def test_a_named_file_that_cannot_be_read_loses_nothing_of_the_others(tmp_path: Path, dpaudit: Command) -> None:
    """As pre-commit calls it, with every file that changed."""
    (tmp_path / "good.py").write_text(LOADER_DELTA)
    (tmp_path / "broken.py").write_text("import opacus\ndelta = (\n")
    (tmp_path / "broken.ipynb").write_text("{")
    done = dpaudit("lint", "broken.py", "good.py", "broken.ipynb", "--require", "clean", folder=tmp_path)
    assert done.returncode == 2
    assert "good.py:" in done.stdout
    assert "1 warning in 1 file; 2 could not be read" in done.stdout
    assert (
        json.loads(dpaudit("lint", "broken.py", "good.py", "--format", "json", folder=tmp_path).stdout)["unread"] == 1
    )
    told = done.stderr.splitlines()
    assert told[0].startswith("left out: Expected broken.py to be Python: ")
    assert told[0].endswith("(broken.py, line 2)")
    assert told[1].startswith("left out: Expected broken.ipynb to be a notebook of Python: ")
    alone = dpaudit("lint", "broken.py", "broken.ipynb", folder=tmp_path)
    assert (alone.returncode, alone.stdout, len(alone.stderr.splitlines())) == (2, "", 2)


def test_a_claims_file_is_sent_to_verify(tmp_path: Path) -> None:
    (tmp_path / "claims.toml").write_text('[[claim]]\nid = "a"\n')
    with pytest.raises(InputError, match="dpaudit verify"):
        lint_paths([tmp_path / "claims.toml"])


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("N = 60_000\nBATCH = N // 256\nx = BATCH", 234),
        ("x = int(1.5) + max(2, 3) * 2 ** 3 - round(2.6)", 22),
        ("import math\nx = math.ceil(50000 / 512)", 98),
        ("CONFIG = {'delta': 1e-5, 'n': 3}\nx = CONFIG['delta']", 1e-5),
        ("parser.add_argument('-b', '--batch-size', type=int, default=64)\nx = args.batch_size", 64),
        ("flags.DEFINE_float('noise', 1.1, 'help')\nx = FLAGS.noise", 1.1),
        ("class Settings:\n    delta: float = field(default=1e-5)\nx = settings.delta", 1e-5),
        ("class Net:\n    def __init__(self, delta=1e-6):\n        self.delta = delta\nx = net.delta", 1e-6),
        ("a, b = 1, 2\nx = b", 2),
        ("a = 1\na = 2\nx = a", None),
        ("a = 1\na += 1\nx = a", None),
        ("for a in (1, 2):\n    x = a", None),
        ("a = b\nb = a\nx = a", None),
        ("n = 3\na = n\na = n\nx = a", 3),
        ("a = 1\n" + "a = a + a\n" * 60 + "x = a", None),
        ("x = 1 / 0", None),
        ("x = 10.0 ** 400", None),
        ("x = unknown(3)", None),
    ],
)
def test_names_have_the_value_that_every_run_gives_them(source: str, value: float | None) -> None:
    import ast

    tree = ast.parse(source)
    last = tree.body[-1]
    while isinstance(last, ast.For):
        last = last.body[-1]
    assert isinstance(last, ast.Assign)
    assert Names(tree).number(last.value) == value


def test_parameters_take_the_defaults_of_typer_and_click(tmp_path: Path) -> None:
    source = """
import ast
@app.command()
def main(delta: float = typer.Option(1e-5, help="d")):
    a = delta
@click.option("--noise-multiplier", default=1.1)
def train(noise_multiplier):
    b = noise_multiplier
"""
    (tmp_path / "train.py").write_text(source)
    names = read_script(tmp_path / "train.py").names
    assert names.only_number("a", "delta") == 1e-5
    assert names.only_number("noise_multiplier") == 1.1


def test_lint_loads_nothing_heavy_for_a_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOADER_DELTA)
    code = """
import sys
from dpaudit.audit.cli import app
app(["lint", "train.py"], standalone_mode=False)
print([name for name in ("torch", "scipy", "sklearn", "numpy") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.endswith("[]\n")


def test_the_page_of_the_rules_tells_all_of_them_and_its_commands_run(tmp_path: Path, dpaudit: Command) -> None:
    page = (Path(__file__).parents[3] / "docs/lint.md").read_text()
    assert set(re.findall(r"^\| `([a-z-]+)`", page, re.MULTILINE)) == set(RULES)
    (ignored,) = re.findall(r"^delta = .*$", page, re.MULTILINE)
    (tmp_path / "src").mkdir()
    for name in ("train.py", "src/train.py"):
        (tmp_path / name).write_text(f"import opacus\n{ignored}\n")
    commands = re.findall(r"^dpaudit (.*?) *(?:#.*)?$", page, re.MULTILINE)
    assert commands
    for command in commands:
        assert dpaudit(*command.split(), folder=tmp_path).returncode == 0
