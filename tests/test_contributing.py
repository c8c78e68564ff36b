"""CONTRIBUTING.md is true: each of its recipes, carried out on a copy of the tree, is one new file and one new line.

What is added lies in tests/recipes/. The line goes into the registry that CONTRIBUTING.md names, at the end of its
table, with its import; then the commands that the recipe names are run on the copy. All recipes share one copy and
one process of tests and commands: what costs seconds each is to start one.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

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
    """A copy of the tree, in which recipes are carried out."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in ("mechanisms", "verify", "audit", "reports", "src", "tests/conformance"):
            ignored = shutil.ignore_patterns("*.egg-info", "claims", "register")  # bytecode saves compiling it again
            shutil.copytree(ROOT / folder, root / folder, symlinks=True, ignore=ignored)
        for file in ("pyproject.toml", "tests/conftest.py"):
            shutil.copy(ROOT / file, root / file)

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

    def run(self, *command: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(self.root / "src"), "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
        done = subprocess.run(
            [sys.executable, *command], cwd=self.root, env=environment, capture_output=True, text=True, timeout=500,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
        return done.stdout


# the tests, then the examples in docstrings, whose numbers are printed, and then the commands, with what they print;
# exit statuses other than 0 end the process with them
IN_TURN = """
import contextlib, doctest, importlib, io, json, sys
import pytest
options, modules, commands = map(json.loads, sys.argv[1:])
if status := pytest.main(options):
    sys.exit(status)
results = [doctest.testmod(importlib.import_module(module)) for module in modules]
if any(result.failed for result in results):
    sys.exit(1)
from dpaudit.audit.cli import main
printed = []
for words in commands:
    sys.argv = ["dpaudit", *words]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            main()
        except SystemExit as ended:
            if ended.code:
                raise
    printed.append(out.getvalue())
print(json.dumps([[result.attempted for result in results], printed]))
"""
NOISE = ["--mechanism", "student-t", "--set", "nu=3", "--epsilon", "1", "--delta", "1e-5", "--steps", "3"]
COMMANDS = (
    ["mechanisms"],
    ["calibrate", *NOISE, "--json", "-"],
    ["train", str(ROOT / "examples/digits-headline.toml"), "--out", "model.pt", "--seed", "1"],
    ["run", "model.pt", "--attacks", "modified-entropy", "--seed", "1", "--json", "-"],
    ["selfcheck", "--trials", "100", "--seed", "1"],
    ["lint", "none.py"],
    ["lint", "some.py"],
    ["--help"],
    ["accountants"],
)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    """With every recipe carried out."""
    copy = Copy(tmp_path_factory.mktemp("copy"))
    for recipe in RECIPES:
        copy.follow(recipe)
    return copy


def test_every_section_has_an_example_and_ends_with_its_price() -> None:
    assert re.findall(r"^## (Add .*)$", PAGE, re.MULTILINE) == [recipe.title for recipe in RECIPES]
    for recipe in RECIPES:
        text = section(recipe.title)
        assert f"`{recipe.folder}/<" in text
        assert f"`{recipe.table}` in `{recipe.registry}`" in text
        assert f"tests/conformance/{recipe.conformance[0]}" in text
        assert text.strip().splitlines()[-1] == "One new file, one new line."


@pytest.fixture(scope="module")
def done(copy: Copy) -> tuple[list[int], list[str]]:
    """The tests and examples of what was added and the commands, run on the copy: examples by module, what is printed.

    On what was added alone: all tests pass.
    """
    for name, clip in (("none.py", "1e9"), ("some.py", "1.0")):
        line = f"engine.make_private(module=m, noise_multiplier=1.0, max_grad_norm={clip})"
        (copy.root / name).write_text(f"import opacus\n{line}\n")
    modules = [f"dpaudit.{recipe.folder}.{recipe.file}".replace("/", ".").removesuffix(".py") for recipe in RECIPES]
    files = [f"tests/conformance/{recipe.conformance[0]}" for recipe in RECIPES]
    words = " or ".join(f"({file} and {added})" for file, added in (recipe.conformance for recipe in RECIPES))
    options = ["-q", "-p", "no:cacheprovider", "--junit-xml=tests.xml", *files, "-k", words]
    told = copy.run("-c", IN_TURN, *map(json.dumps, (options, modules, COMMANDS)))
    examples, printed = json.loads(told.splitlines()[-1])
    return examples, printed


@pytest.mark.slow
def test_what_was_added_passes_its_examples_and_its_conformance_tests(
    copy: Copy, done: tuple[list[int], list[str]]
) -> None:
    """None is skipped, and there are some of each."""
    assert sum(done[0]) >= 5
    cases = list(ElementTree.parse(copy.root / "tests.xml").iter("testcase"))
    for recipe in RECIPES:
        file, added = recipe.conformance
        own = [case for case in cases if case.get("classname", "").endswith(file.removesuffix(".py"))]
        assert own, recipe.title
        assert all(added in case.get("name", "") for case in own)
        assert not any(len(case) for case in own), recipe.title  # failed, skipped, and the like


@pytest.mark.slow
def test_what_was_added_is_in_its_commands(done: tuple[list[int], list[str]]) -> None:
    """A mechanism is calibrated with a proof, an attack run by its name, a bound checked, a rule found."""
    mechanisms, calibrated, _, audit, levels, unclipped, clipped, help_text, accountants = done[1]
    assert "student-t: independent Student-t noise" in mechanisms
    answer, result = json.loads(calibrated), json.loads(audit)
    assert (answer["free"], answer["verdict"]["verdict"]) == ("scale", "certified")
    assert [attack["name"] for attack in result["attacks"]] == ["modified-entropy"]
    assert list(result["budget"]) == ["modified-entropy:epsilon_lower"]
    assert levels.count("ok   epsilon_hoeffding;") == 3
    assert "max_grad_norm=1000000000.0 clips no gradient" in unclipped
    assert "no-clipping" not in clipped
    assert "accountants" in help_text
    assert "\nplrvo-theorem-4.9: " in accountants
