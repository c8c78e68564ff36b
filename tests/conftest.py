"""What every test may use: pytest's own tester, for the plugin; and one thread for each process."""

import os
from pathlib import Path

import pytest

# before numpy or torch is loaded: tests run side by side, and threads that wait for each other slow all of them
os.environ.setdefault("OMP_NUM_THREADS", "1")

pytest_plugins = ["pytester"]

# tests of what the four papers print; `make check` leaves them out
PAPERS = (
    "audit/test_teacher_votes.py",
    "examples",
    "mechanisms/learning/pate",
    "mechanisms/published",
    "verify/papers",
)


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the papers' tests by where they are."""
    here = Path(__file__).parent
    for item in items:
        if any(item.path.is_relative_to(here / part) for part in PAPERS):
            item.add_marker(pytest.mark.papers)
