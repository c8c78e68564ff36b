"""Every example in a docstring runs and prints what it says."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAPERS = ("mechanisms/published", "verify/papers")
FOLDERS = [
    "mechanisms",
    "verify",
    "audit",
    "reports",
    *(pytest.param(name, marks=pytest.mark.papers) for name in PAPERS),
]


def modules_with_examples(folder: str) -> list[str]:
    """Of the folder, but for folders inside it that have a test of their own."""
    inner = [ROOT / name for name in PAPERS if name != folder]
    return [
        ".".join(("dpaudit", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if ">>>" in path.read_text() and not any(map(path.is_relative_to, inner))
    ]


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_example_prints_what_it_says(folder: str) -> None:
    """What doctest prints about a failure is in the captured output."""
    results = {name: doctest.testmod(importlib.import_module(name)) for name in modules_with_examples(folder)}
    assert [name for name, result in results.items() if result.failed] == []
    assert [name for name, result in results.items() if not result.attempted] == []
