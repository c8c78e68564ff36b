"""Every example in a docstring or on a page runs and prints what it says; every name on the papers' page exists."""

import doctest
import importlib
import re
from pathlib import Path
from pkgutil import resolve_name

import pytest

ROOT = Path(__file__).parents[1]
MODULES = sorted(
    ".".join(("dpaudit", *path.relative_to(ROOT).with_suffix("").parts))
    for room in ("mechanisms", "verify", "audit", "reports")
    for path in (ROOT / room).rglob("*.py")
    if path.name != "__init__.py" and ">>>" in path.read_text()
)
PAPERS = ROOT / "docs" / "papers.md"
NAMES = sorted(set(re.findall(r"`((?:mechanisms|verify)\.[\w.]+)`", PAPERS.read_text())))
FILES = sorted(set(re.findall(r"`(?:[a-z]+/)*([\w-]+\.(?:toml|py))`", PAPERS.read_text())))


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_the_examples_on_the_papers_page() -> None:
    found = doctest.testfile(str(PAPERS), module_relative=False)
    assert found.attempted > 10
    assert found.failed == 0


@pytest.mark.parametrize("name", NAMES)
def test_a_name_on_the_papers_page_exists(name: str) -> None:
    assert resolve_name(f"dpaudit.{name}") is not None


@pytest.mark.parametrize("name", FILES)
def test_a_file_on_the_papers_page_exists(name: str) -> None:
    assert any((ROOT / folder / name).is_file() for folder in ("examples", "reports/claims"))
