"""CONTRIBUTING.md is true: each of its recipes, carried out on a copy of the tree, is one new file and one new line.

What is added lies in tests/recipes/. The line goes into the registry that CONTRIBUTING.md names, at the end of its
table, with its import; then the commands that the recipe names are run on the copy.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()


@dataclass(frozen=True)
class Recipe:
    """One section of CONTRIBUTING.md, and an example of what it adds.

    Args:
        title: Of the section.
        file: In tests/recipes/.
        folder: Where the section puts it.
        registry: The file that the section names.
        table: The table in it.
        imported: The import that the line needs.
        line: The new line of the table.
        conformance: The test file, and the words that pick its tests of the example.
    """

    title: str
    file: str
    folder: str
    registry: str
    table: str
    imported: str
    line: str
    conformance: tuple[str, str]


RECIPES = (
    Recipe(
        "Add a mechanism", "student_t.py", "mechanisms", "mechanisms/registry.py", "MECHANISMS",
        "from dpaudit.mechanisms.student_t import StudentT", "StudentT",
        ("test_mechanism_conformance.py", "student"),
    ),
    Recipe(
        "Add a valid upper bound", "zero_concentrated.py", "verify/upper", "verify/upper/__init__.py", "UPPER_BOUNDS",
        "from dpaudit.verify.upper import zero_concentrated", "zero_concentrated",
        ("test_upper_bound_conformance.py", "zero_concentrated"),
    ),
    Recipe(
        "Add a sampler", "coin_per_pass.py", "verify/samplers", "verify/samplers/__init__.py", "SAMPLERS",
        "from dpaudit.verify.samplers.coin_per_pass import CoinPerPass", "CoinPerPass",
        ("test_sampler_conformance.py", "coin-per-pass"),
    ),
    Recipe(
        "Add an attack", "modified_entropy.py", "audit/attacks", "audit/attacks/__init__.py", "ATTACKS",
        "from dpaudit.audit.attacks.modified_entropy import MODIFIED_ENTROPY", "MODIFIED_ENTROPY",
        ("test_attack_conformance.py", "modified-entropy"),
    ),
    Recipe(
        "Add a bound from counts", "hoeffding.py", "verify/bounds", "verify/bounds/__init__.py", "BOUNDS",
        "from dpaudit.verify.bounds.hoeffding import epsilon_hoeffding", '"epsilon_hoeffding": epsilon_hoeffding',
        ("test_count_bound_conformance.py", "epsilon_hoeffding"),
    ),
    Recipe(
        "Add a lint rule", "no_clipping.py", "audit/lint/rules", "audit/lint/rules/__init__.py", "RULES",
        "from dpaudit.audit.lint.rules import no_clipping", "no_clipping",
        ("test_lint_rule_conformance.py", "no-clipping"),
    ),
    Recipe(
        "Add a command", "accountants.py", "audit/commands", "audit/cli.py", "app",
        "from dpaudit.audit.commands.accountants import accountants", "app.command()(accountants)",
        ("test_command_conformance.py", "accountants"),
    ),
)  # fmt: skip
BY_TABLE = {recipe.table: recipe for recipe in RECIPES}
# where the entries of a table end in the source: the entry after which the new line goes
LAST_ENTRY = {
    "MECHANISMS": r"\n_KINDS: [^=]+= \((?:\n    \w+,)+",
    "UPPER_BOUNDS": r"\nUPPER_BOUNDS: [^=]+= \((?:\n    \w+,)+",
    "SAMPLERS": r"\nSAMPLERS: [^=]+= \{\n    sampler\.kind: sampler\n    for sampler in \((?:\n        \w+,)+",
    "ATTACKS": r"\nATTACKS: [^=]+= \{\n    attack\.name: attack\n    for attack in \((?:\n        \w+,)+",
    "BOUNDS": r'\nBOUNDS: [^=]+= \{(?:\n    "\w+": \w+,)+',
    "RULES": r"\nRULES: [^=]+= \{\n    module\.RULE\.name: module\.RULE\n    for module in \((?:\n        \w+,)+",
    "app": r"(?:\napp\.\w+\((?:\w+)?\)(?:\(\w+\))?)+",
}


def section(title: str) -> str:
    """The text of a section of CONTRIBUTING.md."""
    [text] = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return str(text)


class Copy:
    """A copy of the tree, in which a recipe was carried out."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in ("mechanisms", "verify", "audit", "reports", "src", "tests/conformance"):
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "claims", "register")
            shutil.copytree(ROOT / folder, root / folder, symlinks=True, ignore=ignored)
        for file in ("pyproject.toml", "tests/conftest.py"):
            shutil.copy(ROOT / file, root / file)
        self.changed: list[str] = []

    def follow(self, recipe: Recipe) -> None:
        """One new file; one new line, at the end of the table, and its import."""
        shutil.copy(ROOT / "tests/recipes" / recipe.file, self.root / recipe.folder)
        path = self.root / recipe.registry
        before = path.read_text()
        [table] = re.finditer(LAST_ENTRY[recipe.table], before)
        indent = re.findall(r"\n( *)", table[0])[-1]
        comma = "," if indent else ""  # a statement of its own has neither
        after = before[: table.end()] + f"\n{indent}{recipe.line}{comma}" + before[table.end() :]
        first_import = re.search(r"^from ", after, re.MULTILINE)
        assert first_import is not None
        after = after[: first_import.start()] + recipe.imported + "\n" + after[first_import.start() :]
        path.write_text(after)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(self.root / "src"), "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
        return subprocess.run(
            [sys.executable, *command], cwd=self.root, env=environment, capture_output=True, text=True, timeout=500,
            check=False,
        )  # fmt: skip

    def dpaudit(self, *arguments: str) -> str:
        done = self.run("-m", "dpaudit.audit.cli", *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def conformance(self, recipe: Recipe) -> None:
        """Its docstring's examples, and the conformance suite on it alone: all tests pass, and there are some."""
        done = self.run("-m", "doctest", f"{recipe.folder}/{recipe.file}")
        assert done.returncode == 0, done.stdout
        file, words = recipe.conformance
        done = self.run("-m", "pytest", "-q", "-p", "no:cacheprovider", f"tests/conformance/{file}", "-k", words)
        assert done.returncode == 0, done.stdout[-4000:]
        assert re.search(r"[1-9]\d* passed, \d+ deselected", done.stdout)
        assert not re.search(r"skipped|xfailed", done.stdout)


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path)


def test_every_section_has_an_example_and_ends_with_its_price() -> None:
    assert re.findall(r"^## (Add .*)$", PAGE, re.MULTILINE) == [recipe.title for recipe in RECIPES]
    for recipe in RECIPES:
        text = section(recipe.title)
        assert f"`{recipe.folder}/<" in text
        assert f"`{recipe.table}` in `{recipe.registry}`" in text
        assert f"tests/conformance/{recipe.conformance[0]}" in text
        assert text.strip().splitlines()[-1] == "One new file, one new line."


@pytest.mark.slow
def test_a_mechanism(copy: Copy) -> None:
    """In every conformance test, listed, calibrated with a proof, and drawn in training."""
    copy.follow(BY_TABLE["MECHANISMS"])
    copy.conformance(BY_TABLE["MECHANISMS"])
    assert "student-t: independent Student-t noise" in copy.dpaudit("mechanisms")
    arguments = ["--mechanism", "student-t", "--set", "nu=3", "--epsilon", "1", "--delta", "1e-5", "--steps", "3"]
    answer = json.loads(copy.dpaudit("calibrate", *arguments, "--json", "-"))
    assert answer["free"] == "scale"
    assert answer["verdict"]["verdict"] == "certified"


@pytest.mark.slow
def test_an_upper_bound(copy: Copy) -> None:
    copy.follow(BY_TABLE["UPPER_BOUNDS"])
    copy.conformance(BY_TABLE["UPPER_BOUNDS"])


@pytest.mark.slow
def test_a_sampler(copy: Copy) -> None:
    copy.follow(BY_TABLE["SAMPLERS"])
    copy.conformance(BY_TABLE["SAMPLERS"])


@pytest.mark.slow
def test_an_attack(copy: Copy) -> None:
    """Silent on correct twins, loud on broken ones, and run by the command under its name."""
    copy.follow(BY_TABLE["ATTACKS"])
    copy.conformance(BY_TABLE["ATTACKS"])
    copy.dpaudit("train", str(ROOT / "examples/digits-headline.toml"), "--out", "model.pt", "--seed", "1")
    result = json.loads(copy.dpaudit("run", "model.pt", "--attacks", "modified-entropy", "--seed", "1", "--json", "-"))
    assert [attack["name"] for attack in result["attacks"]] == ["modified-entropy"]
    assert list(result["budget"]) == ["modified-entropy:epsilon_lower"]


@pytest.mark.slow
def test_a_bound_from_counts(copy: Copy) -> None:
    """Sound and monotone, and part of the self-check."""
    copy.follow(BY_TABLE["BOUNDS"])
    copy.conformance(BY_TABLE["BOUNDS"])
    assert copy.dpaudit("selfcheck", "--trials", "100", "--seed", "1").count("ok   epsilon_hoeffding;") == 3


@pytest.mark.slow
def test_a_lint_rule(copy: Copy, tmp_path_factory: pytest.TempPathFactory) -> None:
    copy.follow(BY_TABLE["RULES"])
    copy.conformance(BY_TABLE["RULES"])
    script = tmp_path_factory.mktemp("scripts") / "train.py"
    script.write_text("import opacus\nengine.make_private(module=m, noise_multiplier=1.0, max_grad_norm=1e9)\n")
    assert "max_grad_norm=1000000000.0 clips no gradient" in copy.dpaudit("lint", str(script))
    script.write_text("import opacus\nengine.make_private(module=m, noise_multiplier=1.0, max_grad_norm=1.0)\n")
    assert "no-clipping" not in copy.dpaudit("lint", str(script))


@pytest.mark.slow
def test_a_command(copy: Copy) -> None:
    copy.follow(BY_TABLE["app"])
    copy.conformance(BY_TABLE["app"])
    assert "accountants" in copy.dpaudit("--help")
    assert "\nplrvo-theorem-4.9: " in copy.dpaudit("accountants")
