"""The sample results and the browser, which pytest's importlib mode lets no test import by name."""

import sys
from collections.abc import Callable
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from dpaudit.reports import write_report


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
def written(samples: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The page of a kind of sample result, written once for every test that only reads it."""
    return cache(lambda kind: write_report(samples.make_result(kind), tmp_path_factory.mktemp("page")))


@pytest.fixture(scope="session")
def browser() -> ModuleType:
    module = load("browser")
    if module.CHROMIUM is None:
        pytest.skip("chromium is not installed")
    return module
