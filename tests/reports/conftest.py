"""The sample results and the browser, which pytest's importlib mode lets no test import by name."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest


def load(name: str) -> ModuleType:
    """A helper module of this folder."""
    spec = spec_from_file_location(f"dpaudit_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def samples() -> ModuleType:
    return load("sample_result")


@pytest.fixture(scope="session")
def browser() -> ModuleType:
    module = load("browser")
    if module.CHROMIUM is None:
        pytest.skip("chromium is not installed")
    return module
