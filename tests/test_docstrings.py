"""Every example in a docstring runs and prints what it says."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def modules_with_examples(folder: str) -> list[str]:
    return [
        ".".join(("dpaudit", *path.relative_to(ROOT).with_suffix("").parts))
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path.name != "__init__.py" and ">>>" in path.read_text()
    ]


@pytest.mark.parametrize("folder", ["mechanisms", "verify", "audit", "reports"])
def test_every_example_prints_what_it_says(folder: str) -> None:
    """What doctest prints about a failure is in the captured output."""
    results = {name: doctest.testmod(importlib.import_module(name)) for name in modules_with_examples(folder)}
    assert [name for name, result in results.items() if result.failed] == []
    assert [name for name, result in results.items() if not result.attempted] == []
