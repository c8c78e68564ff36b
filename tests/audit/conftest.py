"""Lets the tests of this folder import small_trials.py by name; bounds of its audits take little time."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="module", autouse=True)
def few_draws() -> Iterator[None]:
    """Bounds by inversion hold as they do with all draws, and are a few percent lower.

    They are most of the time of a small audit; tests/verify/bounds has them with all draws.
    """
    from dpaudit.verify.bounds import joint_test

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joint_test, "INVERSION_DRAWS", 2**10)
        yield
