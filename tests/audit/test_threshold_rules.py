"""Rules for thresholds: what they are not made of is refused where it is written."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from dpaudit.audit.threshold_rules import Explicit, Split


@pytest.mark.parametrize(
    ("rule", "settings", "message"),
    [
        (Explicit, {"threshold": "1"}, r"threshold='1' to be a number in \[-inf, inf\]"),
        (Explicit, {"threshold": None}, "threshold=None to be a number"),
        (Explicit, {"threshold": math.nan}, r"threshold=nan in \[-inf, inf\]"),
        (Split, {"seed": 1, "share": "x"}, r"share='x' to be a number in \(0, 1\)"),
        (Split, {"seed": 1, "share": math.nan}, r"share=nan in \(0, 1\)"),
        (Split, {"seed": 1, "share": 1}, r"share=1 in \(0, 1\)"),
        (Split, {"seed": None}, "seed=None to be a number in the integers"),
        (Split, {"seed": "1"}, "seed='1' to be a number in the integers"),
        (Split, {"seed": 1.5}, r"seed=1\.5 in the integers of \[0, inf\)"),
        (Split, {"seed": -1}, r"seed=-1 in the integers of \[0, inf\)"),
    ],
)
def test_a_rule_names_what_it_refuses(rule: Callable[..., object], settings: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        rule(**settings)


@pytest.mark.parametrize("threshold", [-math.inf, math.inf, 0, 1.5])
def test_any_threshold_may_be_named(threshold: float) -> None:
    assert Explicit(threshold).threshold == threshold
