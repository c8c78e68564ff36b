"""Guarantees of every kind by both engines: brackets that meet, numbers met exactly, verdicts of balls alone."""

import dataclasses
import math
from collections.abc import Sequence

import pytest

pytest.importorskip("flint")

from dpaudit.mechanisms import Gaussian, GeneralizedGaussian, Laplace, Product
from dpaudit.verify import Claim, Phase, check
from dpaudit.verify.claims import Adjacency
from dpaudit.verify.guarantees import (
    GaussianDP,
    Guarantee,
    PrivacyCurve,
    PureDP,
    RenyiDP,
    ZeroConcentratedDP,
)
from dpaudit.verify.implied import claim_stating
from dpaudit.verify.results import DISAGREEMENT
from dpaudit.verify.rigorous import agreement, guarantees
from dpaudit.verify.rigorous.agreement import alone, confirmed
from dpaudit.verify.rigorous.balls import Unavailable
from dpaudit.verify.rigorous.bracket import RigorousBracket, rigorous_bracket, upper_proof
from dpaudit.verify.rigorous.guarantees import GuaranteeBracket, guarantee_bracket
from dpaudit.verify.samplers import Shuffled, TruncatedPoisson

G, L = Gaussian(1.1), Laplace(2.0, clip_norm=1.0)
HISTORIES: dict[str, Sequence[Phase]] = {
    "everybody": [Phase(G, 7)],
    "poisson": [Phase(G, 100, 0.02)],
    "two phases": [Phase(G, 10, 0.1), Phase(Gaussian(3.0), 5)],
    "laplace": [Phase(L, 5)],
    "sampled laplace": [Phase(L, 5, 0.1)],
    "many coordinates": [Phase(Laplace(2.0, clip_norm=2.0, dimension=100), 5)],
    "sampled, many": [Phase(Laplace(2.0, clip_norm=2.0, dimension=100), 5, 0.1)],
    "normal by another name": [Phase(GeneralizedGaussian(beta=2.0, scale=1.5), 3)],
    "clipped one by one": [Phase(Gaussian(9.0, clip_norm=math.inf, dimension=30), 3)],
    "between": [Phase(Gaussian(9.0, clip_norm=3.0, dimension=30), 3)],
    "shuffled": [Phase(G, sampler=Shuffled(batches=4, epochs=2))],
    "cut": [Phase(G, sampler=TruncatedPoisson(prob=0.1, records=1000, max_batch=90, releases=20))],
}
GUARANTEES = [
    GaussianDP(1.0),
    ZeroConcentratedDP(0.5),
    RenyiDP(2.5, 0.3),
    RenyiDP(40.0, 6.0),
    PureDP(1.0),
    PrivacyCurve(((1.0, 1e-5), (2.0, 1e-6))),
]


CASES = [
    pytest.param(name, guarantee, adjacency, id=f"{name}-{guarantee}-{adjacency}")
    for name in HISTORIES
    for guarantee in GUARANTEES
    for adjacency in (("add-remove",) if name == "shuffled" else ("add-remove", "replace-one", "zero-out"))
]


@pytest.mark.parametrize(("name", "guarantee", "adjacency"), CASES)
def test_brackets_of_both_engines_meet(name: str, guarantee: Guarantee, adjacency: Adjacency) -> None:
    claim = claim_stating(guarantee, HISTORIES[name], adjacency)
    fast = check(claim)
    found = guarantee_bracket(claim, fast.witness)
    assert isinstance(found, GuaranteeBracket)
    assert fast.guarantee is not None
    assert found.parameter == fast.guarantee["parameter"]
    assert found.lower <= found.upper
    assert found.lower <= fast.guarantee["upper"] * (1 + 1e-9)
    assert fast.guarantee["lower"] <= found.upper * (1 + 1e-9)
    both = confirmed(claim, fast)
    assert both.verdict == fast.verdict or fast.verdict == "undecided"
    assert DISAGREEMENT not in both.methods
    assert "rigorous" in both.methods


@pytest.mark.parametrize(
    ("noise", "steps", "guarantee"),
    [
        (Gaussian(0.8), 1, ZeroConcentratedDP(0.78125)),
        (Gaussian(0.1), 1, GaussianDP(10.0)),
        (Gaussian(0.7), 49, GaussianDP(10.0)),
        (Gaussian(0.3), 9, RenyiDP(1.1, 55.0)),
        (Gaussian(3.0, clip_norm=math.inf, dimension=9), 1, ZeroConcentratedDP(0.5)),
    ],
)
def test_a_number_that_is_met_exactly_is_kept_and_one_below_is_not(
    noise: Gaussian, steps: int, guarantee: GaussianDP | ZeroConcentratedDP | RenyiDP
) -> None:
    kept = guarantee_bracket(claim_stating(guarantee, [Phase(noise, steps)]))
    assert isinstance(kept, GuaranteeBracket)
    assert kept.verdict == "certified"
    assert kept.lower == pytest.approx(kept.stated, rel=1e-15)
    less = dataclasses.replace(guarantee, **{kept.parameter: kept.stated * (1 - 1e-14)})
    broken = guarantee_bracket(claim_stating(less, [Phase(noise, steps)]))
    assert isinstance(broken, GuaranteeBracket)
    assert broken.verdict == "refuted"


def test_sampling_takes_nothing_off_a_rho() -> None:
    found = guarantee_bracket(claim_stating(ZeroConcentratedDP(0.49), [Phase(Gaussian(1.0), 1, 0.01)]))
    assert isinstance(found, GuaranteeBracket)
    assert found.verdict == "refuted"
    assert found.lower == pytest.approx(0.5, rel=1e-7)


def test_laplace_noise_has_a_mu_of_its_own() -> None:
    found = guarantee_bracket(claim_stating(GaussianDP(1.0), [Phase(L)]))
    assert isinstance(found, GuaranteeBracket)
    # of one release moved by t scales the least mu has Phi(-mu/2) = e^(-t/2)/2, met where both errors are alike
    assert 0.5 * math.erfc(found.upper / 2 / math.sqrt(2)) == pytest.approx(math.exp(-0.25) / 2, rel=1e-12)
    assert 0.9 * found.upper < found.lower <= found.upper


def test_a_tiny_shift_of_laplace_noise_has_a_mu() -> None:
    found = guarantee_bracket(claim_stating(GaussianDP(1.0), [Phase(Laplace(1e50, clip_norm=1.0), 3)]))
    assert isinstance(found, GuaranteeBracket)
    # Phi(mu/2) - 1/2 is mu/2 / sqrt(2 pi), and 1/2 (1 - e^(-t/2)) is t/4
    assert found.upper == pytest.approx(math.sqrt(3) * 1e-50 * math.sqrt(math.pi / 2), rel=1e-12)


def test_a_pure_epsilon_just_below_the_truth_is_broken() -> None:
    found = guarantee_bracket(claim_stating(PureDP(0.5 * (1 - 1e-9)), [Phase(L)]))
    assert isinstance(found, GuaranteeBracket)
    assert found.verdict == "refuted"


def test_a_pure_epsilon_far_beyond_all_losses_is_looked_up_at_once() -> None:
    phases = [Phase(Gaussian(7572.0, clip=0.1, clip_norm=1.5, dimension=2), sampler=Shuffled(16, 5))]
    found = guarantee_bracket(claim_stating(PureDP(1.374e97), phases, "zero-out"))
    assert isinstance(found, GuaranteeBracket)
    assert found.upper == math.inf


def test_noise_without_a_theorem_says_so() -> None:
    claim = claim_stating(ZeroConcentratedDP(0.5), [Phase(Product(3.0, dimension=9), 3)])
    found = guarantee_bracket(claim)
    assert isinstance(found, GuaranteeBracket)
    assert (found.upper, found.theorem) == (math.inf, "no theorem has a rho")
    unknown = guarantee_bracket(claim_stating(GaussianDP(1.0), [Phase(G, 5, 0.1, "shuffled")]))
    assert isinstance(unknown, GuaranteeBracket)
    assert unknown.theorem == "no theorem for 'shuffled'"
    assert (unknown.lower, unknown.upper) == (0.0, math.inf)


def test_a_plain_claim_is_no_such_guarantee() -> None:
    with pytest.raises(ValueError, match="to state a guarantee of its own kind"):
        guarantee_bracket(Claim.single(G, epsilon=1.0, delta=1e-5, id="plain"))


FALSE = GuaranteeBracket("rho", 0.7, 0.8, 0.5, "a false theorem", "a false witness")
RHO = claim_stating(ZeroConcentratedDP(0.5), [Phase(G)], id="a")


CURVE = [Phase(Gaussian(1.0), 100, 0.02)]
EPSILONS = [0.05 * i for i in range(1, 60)]


@pytest.mark.parametrize(("share", "verdict"), [(1.02, "certified"), (0.5, "refuted")])
def test_what_decides_a_point_of_a_curve_decides_its_neighbours(
    monkeypatch: pytest.MonkeyPatch, share: float, verdict: str
) -> None:
    _, delta = check(claim_stating(PrivacyCurve(((1.0, 1e-5),)), CURVE)).delta(EPSILONS)
    claim = claim_stating(PrivacyCurve(tuple(zip(EPSILONS, share * delta, strict=True))), CURVE)
    proved: list[Claim] = []
    monkeypatch.setattr(guarantees, "upper_proof", lambda one: proved.append(one) or upper_proof(one))
    found = guarantee_bracket(claim, check(claim).witness)
    assert isinstance(found, GuaranteeBracket)
    assert (found.verdict, found.lower) == (verdict, 0 if share > 1 else len(EPSILONS))
    assert len(proved) < len(EPSILONS) / 2
    for point, (low, high) in list(zip(claim.guarantee.points, found.deltas, strict=True))[1::4]:
        alone = rigorous_bracket(dataclasses.replace(claim, epsilon=point[0], delta=point[1], guarantee=None))
        assert isinstance(alone, RigorousBracket)
        assert low <= alone.delta_upper
        assert alone.delta_lower <= high


def test_a_proof_that_does_not_reach_a_point_hides_no_other() -> None:
    claim = claim_stating(PrivacyCurve(((1.0, 0.6), (0.0, 0.6))), [Phase(Product(1.0, dimension=3))])
    found = guarantee_bracket(claim, check(claim).witness)
    assert isinstance(found, GuaranteeBracket)
    assert found.lower == 1
    assert found.deltas[1][0] > 0.7


def test_brackets_of_a_curve_are_held_against_each_other_point_by_point(monkeypatch: pytest.MonkeyPatch) -> None:
    claim = claim_stating(PrivacyCurve(((1.0, 0.01), (2.0, 0.5))), [Phase(G)])
    verdict = check(claim)  # one point is broken
    # another one is, says the second engine
    false = GuaranteeBracket("points", 1.0, 1.0, 0.0, "a false theorem", "a false witness", ((0.0, 0.01), (0.6, 0.7)))
    monkeypatch.setattr(agreement, "guarantee_bracket", lambda claim, witness: false)
    found = confirmed(claim, verdict)
    assert (found.verdict, found.methods[-1]) == ("undecided", DISAGREEMENT)
    assert found.reason.startswith("Two bounds disagree, please report: delta at epsilon=1 is in [0.09")


@pytest.mark.parametrize("claim", [RHO, dataclasses.replace(RHO, guarantee=ZeroConcentratedDP(0.4))])
def test_brackets_that_cross_decide_nothing(monkeypatch: pytest.MonkeyPatch, claim: Claim) -> None:
    monkeypatch.setattr(agreement, "guarantee_bracket", lambda claim, witness: FALSE)
    found = confirmed(claim, check(claim))
    assert found.verdict == "undecided"
    assert found.methods[-1] == DISAGREEMENT
    assert found.reason.startswith("Two bounds disagree, please report: rho is in [0.41322")
    assert "a false theorem" in found.reason


def test_balls_decide_where_the_first_engine_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = check(RHO)
    assert verdict.guarantee is not None
    wide = dataclasses.replace(
        verdict, verdict="undecided", guarantee={**verdict.guarantee, "lower": 0.1, "upper": 0.9}
    )
    found = confirmed(RHO, wide)
    assert found.verdict == "certified"
    assert found.reason.startswith("Ball arithmetic decides: rho is at least 0.413223")
    assert found.guarantee is not None
    assert found.guarantee["upper"] == pytest.approx(0.41322314, rel=1e-7)
    monkeypatch.setattr(agreement, "guarantee_bracket", lambda claim, witness: Unavailable("nothing is known"))
    none = confirmed(RHO, wide)
    assert none.verdict == "undecided"
    assert none.reason.endswith("In ball arithmetic there is no bound: nothing is known.")
    assert alone(RHO, wide) == ("undecided", "nothing is known")


def test_balls_alone() -> None:
    assert alone(RHO, check(RHO))[0] == "certified"
    claim = Claim.single(Gaussian(1.0), epsilon=1.0, delta=0.126)
    name, proved = alone(claim, check(claim))
    assert name == "refuted"
    assert proved.startswith("delta is at least 0.126936")
