"""Two engines, one verdict: what both prove, what one lacks, and bounds that cross."""

import dataclasses
from pathlib import Path

import pytest

pytest.importorskip("flint")

from dpaudit.mechanisms import Gaussian, Laplace
from dpaudit.verify import Claim, Verdict, check
from dpaudit.verify.claims import Phase
from dpaudit.verify.results import DISAGREEMENT
from dpaudit.verify.rigorous import agreement
from dpaudit.verify.rigorous.agreement import confirmed
from dpaudit.verify.rigorous.bracket import RigorousBracket

CLAIM = Claim.single(Gaussian(1.0), epsilon=1.0, delta=0.126, id="a")  # the truth is .126937
FALSE = RigorousBracket(0.0, 0.1, 0.0, 0.5, "a false theorem", "a false witness")


@pytest.mark.parametrize("delta", [0.126, 0.128])
def test_both_engines_prove_the_same(delta: float) -> None:
    claim = dataclasses.replace(CLAIM, delta=delta)
    found = confirmed(claim, check(claim))
    assert found.verdict == check(claim).verdict != "undecided"
    assert found.methods[-1] == "rigorous"
    assert "Ball arithmetic proves the same" in found.reason
    assert found.delta_lower == pytest.approx(0.126936737506644, rel=1e-12)
    assert found.delta_upper == pytest.approx(0.126936737506644, rel=1e-12)


def test_bounds_that_cross_decide_nothing_and_both_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from dpaudit.audit.claims_run import run_claims

    monkeypatch.setattr(agreement, "rigorous_bracket", lambda claim, witness: FALSE)
    found = confirmed(CLAIM, check(CLAIM))
    assert found.verdict == "undecided"
    assert found.methods[-1] == DISAGREEMENT
    assert found.reason.startswith("Two bounds disagree, please report: ")
    assert "a false theorem" in found.reason
    assert "delta is in [0.1269367" in found.reason
    path = tmp_path / "claims.toml"
    path.write_text('[[claim]]\nid = "a"\nepsilon = 1.0\ndelta = 0.126\nmechanism.name = "gaussian"\n')
    path.write_text(path.read_text() + "mechanism.noise_multiplier = 1.0\n")
    shown: list[str] = []
    status = run_claims([path], rigorous=True, stage=lambda what, total: lambda done: None, show=shown.append)
    assert status == 4
    assert shown[0].startswith("undecided a")


def test_a_lower_bound_above_the_other_engines_upper_one_is_found_too(monkeypatch: pytest.MonkeyPatch) -> None:
    false = dataclasses.replace(FALSE, delta_lower=0.2, delta_upper=1.0, epsilon_lower=2.0, epsilon_upper=9.0)
    monkeypatch.setattr(agreement, "rigorous_bracket", lambda claim, witness: false)
    assert confirmed(CLAIM, check(CLAIM)).methods[-1] == DISAGREEMENT


def test_a_sampled_bound_may_cross_by_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "rigorous_bracket", lambda claim, witness: FALSE)
    found = confirmed(CLAIM, dataclasses.replace(check(CLAIM), confidence=0.95))
    assert found.verdict == "undecided"
    assert DISAGREEMENT not in found.methods
    assert "wrong with probability 0.05" in found.reason


def test_the_intersection_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = check(CLAIM)
    wide = dataclasses.replace(exact, verdict="undecided", delta_lower=0.1, delta_upper=0.2)
    found = confirmed(CLAIM, wide)
    assert found.verdict == "refuted"
    assert found.reason.startswith("Ball arithmetic decides")


def test_a_claim_where_the_engines_bounds_meet_is_not_decided_by_one_side() -> None:
    """Parameters are doubles to one engine and decimals to the other: by so little their bounds may cross."""
    exact = check(CLAIM)
    at = dataclasses.replace(CLAIM, delta=exact.delta_upper)
    found = dataclasses.replace(FALSE, delta_lower=exact.delta_upper * (1 + 1e-13), delta_upper=1.0, epsilon_lower=0.0)
    found = dataclasses.replace(found, epsilon_upper=9.0)
    both = agreement.compared(at, check(at), found)
    assert check(at).verdict == "certified"
    assert both.verdict == "undecided"
    assert both.reason.startswith("The bounds meet at the claim itself: ")


def test_a_missing_theorem_is_told() -> None:
    claim = Claim(1.0, 1e-5, [Phase(Laplace(3.0), 5, 0.1, "shuffled")])
    before: Verdict = check(claim)
    found = confirmed(claim, before)
    assert found.methods == before.methods
    assert found.reason.startswith(before.reason)
    assert "In ball arithmetic there is no bound: no theorem for sampling_kind='shuffled'" in found.reason
