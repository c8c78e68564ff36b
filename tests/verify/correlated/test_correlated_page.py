"""docs/correlated-noise.md: its claims come out as it says, and its code prints what it shows."""

import contextlib
import io
import re
import tomllib
from pathlib import Path

import pytest

from dpaudit.verify import check
from dpaudit.verify.claim_files import claim_from_dict, parse_claims
from dpaudit.verify.correlated import Correlation, Participation, SquareRootToeplitz, Tree
from dpaudit.verify.correlated.correlation import KEYS, STRATEGIES
from dpaudit.verify.correlated.participation import REQUIRED

PAGE = (Path(__file__).parents[3] / "docs/correlated-noise.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def block(kind: str) -> str:
    return next(text for name, text in BLOCKS if name == kind)


def test_the_claims() -> None:
    tables = tomllib.loads(block("toml"))
    verdicts = [check(claim) for claim in parse_claims(tables, source="page")]
    assert [verdict.verdict for verdict in verdicts] == ["certified", "certified", "certified", "refuted"]
    assert verdicts[0].epsilon_upper == pytest.approx(1.649, abs=5e-4)
    assert verdicts[1].epsilon_upper == pytest.approx(17.67, abs=5e-3)
    assert 49 <= verdicts[3].epsilon_lower < 50
    less = {**tables["claim"][2], "guarantee": {"kind": "zcdp", "rho": 5.49}}
    assert check(claim_from_dict(less)).verdict == "refuted"


def test_the_code() -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block("python"), "page", "exec"), {})
    assert printed.getvalue() == block("")


def test_the_tables() -> None:
    for name in (*STRATEGIES, *(key for keys in KEYS.values() for key in keys), *REQUIRED):
        assert f"`{name}`" in PAGE
    found = Correlation(Tree(nodes="all"), Participation("min-sep", separation=3, times=8)).sensitivity(24)
    assert found.exact
    assert f"| {found.lower**2:.0f} |" in PAGE
    single = Correlation(SquareRootToeplitz(), Participation("single")).sensitivity(400)
    assert f"{single.lower**2:.4f} |" in PAGE
