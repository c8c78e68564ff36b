"""What product code imports is declared in pyproject.toml, and what is declared for all is imported."""

import ast
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
FOLDERS = ("mechanisms", "verify", "audit", "reports", "src")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
# adapters to other accountants are imported when they are asked for, and say what is missing
ADAPTERS = {"prv-accountant"}
# our own, by the name it has beside a file that is handed out with it
HANDED_OUT = {"check-certificate"}
# what one benchmark compares with, installed by hand: it says how
COMPARED = {"jax-privacy", "privacy-guard"}

SCRIPTS = ("examples", "benchmarks", "tests")
owners_of_modules = cache(packages_distributions)  # it reads the files of every distribution: a second


def imported_distributions(folders: tuple[str, ...] = FOLDERS) -> dict[str, set[str]]:
    """Every distribution that the code in some folders imports from, anywhere in a file, with the files."""
    owners = owners_of_modules()
    files: dict[str, set[str]] = {}
    for path in (path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [str(node.module)]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            for top in {name.split(".")[0] for name in names} - sys.stdlib_module_names - {"dpaudit"}:
                for owner in owners.get(top, [top])[:1]:
                    files.setdefault(canonicalize_name(owner), set()).add(str(path.relative_to(ROOT)))
    return files


def declared(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(text).name) for text in requirements}


def test_what_is_imported_is_declared_and_what_is_declared_is_imported() -> None:
    core, imported = declared(PROJECT["dependencies"]), imported_distributions()
    optional = {name for extra in EXTRAS if extra != "dev" for name in declared(EXTRAS[extra])} | ADAPTERS
    assert {name: imported[name] for name in imported.keys() - core - optional - HANDED_OUT} == {}
    assert core - imported.keys() == set(), "declared, and imported nowhere"
    assert declared(EXTRAS["dev"]) >= ADAPTERS


def test_what_scripts_and_tests_import_is_installed_by_make() -> None:
    extras = [text for extra in ("dev", "rigorous", "cluster", "text", "sign") for text in EXTRAS[extra]]
    installed = declared(PROJECT["dependencies"]) | declared(extras)
    imported = imported_distributions(SCRIPTS)
    beside = {canonicalize_name(path.stem) for folder in SCRIPTS for path in (ROOT / folder).rglob("*.py")}
    assert {name: imported[name] for name in imported.keys() - installed - beside - COMPARED} == {}


def test_every_dependency_is_pinned_for_the_release() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"]
    pinned = declared(lines)
    assert all(str(Requirement(line).specifier).startswith("==") for line in lines)
    needed = declared([text for group in (PROJECT["dependencies"], *EXTRAS.values()) for text in group])
    assert needed - pinned == set()


def test_every_distribution_is_pinned_once() -> None:
    pins = [line.split("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line]
    assert len(pins) > 100
    assert len({canonicalize_name(pin) for pin in pins}) == len(pins)
