"""Every example in a docstring runs and prints what it says."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = sorted(
    ".".join(("dpaudit", *path.relative_to(ROOT).with_suffix("").parts))
    for room in ("mechanisms", "verify", "audit", "reports")
    for path in (ROOT / room).rglob("*.py")
    if path.name != "__init__.py" and ">>>" in path.read_text()
)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
