"""The two engines' brackets overlap on claims of the papers; theorems without a ball say why."""

import json
from pathlib import Path

import pytest

pytest.importorskip("flint")

from dpaudit.mechanisms import GammaPLRV, GeneralizedGaussian, Laplace, Product
from dpaudit.verify import Claim, check
from dpaudit.verify.claim_files import load_claims
from dpaudit.verify.rigorous.balls import Unavailable
from dpaudit.verify.rigorous.bracket import RigorousBracket, rigorous_bracket

CLAIMS = Path(__file__).parents[3] / "reports" / "claims"
FAST = [
    ("gg-b2.toml", "gg-b2-beta1.5-n100"),
    ("gg-b2.toml", "gg-b2-beta4-n1"),
]


def overlaps(found: RigorousBracket | Unavailable, claim: Claim) -> None:
    assert isinstance(found, RigorousBracket)
    fast = check(claim)
    assert found.delta_lower <= fast.delta_upper
    assert fast.delta_lower <= found.delta_upper
    assert found.delta_lower <= found.delta_upper
    assert found.epsilon_lower <= found.epsilon_upper


def claim_named(file: str, name: str) -> Claim:
    return next(claim for claim in load_claims(CLAIMS / file) if claim.id == name)


@pytest.mark.parametrize(("file", "name"), FAST)
def test_brackets_overlap(file: str, name: str) -> None:
    claim = claim_named(file, name)
    overlaps(rigorous_bracket(claim, check(claim).witness), claim)


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(CLAIMS.glob("*.toml")), ids=lambda p: p.stem)
def test_brackets_overlap_on_every_claim(path: Path) -> None:
    for claim in load_claims(path):
        found = rigorous_bracket(claim, check(claim).witness)
        if not isinstance(found, Unavailable):
            overlaps(found, claim)


@pytest.mark.parametrize(
    ("claim", "word"),
    [
        (Claim.single(GeneralizedGaussian(3.0, 2.0, dimension=9), epsilon=1.0, delta=1e-5), "generalized-gaussian"),
        (Claim.single(Product(3.0, dimension=9), epsilon=1.0, delta=1e-5, steps=3), "product"),
    ],
)
def test_a_missing_upper_bound_is_named(claim: Claim, word: str) -> None:
    found = rigorous_bracket(claim)
    assert isinstance(found, RigorousBracket)
    assert found.delta_upper == 1.0
    assert word in found.theorem


def test_hidden_scales_with_few_coordinates_have_both_sides() -> None:
    claim = Claim.single(GammaPLRV(k=100.0, theta=0.01, dimension=3), epsilon=0.5, delta=1e-3)
    overlaps(rigorous_bracket(claim, check(claim).witness), claim)


def test_a_pure_epsilon_is_met_exactly() -> None:
    claim = Claim.single(Laplace(2.0, clip=1.0, clip_norm=1.0), epsilon=0.5, delta=0.0)
    found = rigorous_bracket(claim)
    assert isinstance(found, RigorousBracket)
    assert found.delta_upper == 0.0
    assert json.dumps(found.theorem) == '"pure-laplace"'
