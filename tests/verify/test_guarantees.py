"""Kinds of guarantee: what they imply, and how they are decided, against quadrature and closed forms."""

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr, ndtri
from scipy.stats import norm

from dpaudit.mechanisms import GammaPLRVIID, Gaussian, GeneralizedGaussian, Laplace, Product
from dpaudit.mechanisms.base import Array, NormalCoordinates
from dpaudit.reports.verdict_exports import prose
from dpaudit.reports.verdict_wording import in_words
from dpaudit.verify import check, guarantee_check
from dpaudit.verify.claim_files import ClaimFileError, claim_from_dict, claim_to_dict, load_claims
from dpaudit.verify.claims import Adjacency, Claim, Phase
from dpaudit.verify.correlated import Correlation, Participation, SquareRootToeplitz
from dpaudit.verify.guarantees import (
    GUARANTEES,
    ApproximateDP,
    GaussianDP,
    Guarantee,
    PrivacyCurve,
    PureDP,
    RenyiDP,
    ZeroConcentratedDP,
)
from dpaudit.verify.implied import (
    claim_stating,
    divergence_at_least,
    divergence_at_most,
    gdp_regret,
    headline,
    implied_delta,
    operating_points,
)
from dpaudit.verify.lower.divergences import divergence_lower
from dpaudit.verify.renyi import divergence_upper, rho_upper
from dpaudit.verify.results import Verdict
from dpaudit.verify.samplers import (
    BallsInBins,
    RandomAllocation,
    Sampler,
    Shuffled,
    TruncatedPoisson,
    WithoutReplacement,
)

EPSILONS = np.array([0.0, 0.3, 1.0, 2.5, 6.0])
PHASES = (Phase(Gaussian(1.0, clip=2.0), 4), Phase(Gaussian(2.0), 9))
MU = math.sqrt(4 / 1.0 + 9 / 4.0)


def hockey_stick(p: list[float], q: list[float], epsilon: float) -> float:
    return sum(max(a - math.exp(epsilon) * b, 0.0) for a, b in zip(p, q, strict=True))


@pytest.mark.parametrize(("e0", "d0"), [(1.0, 0.0), (2.5, 0.0), (1.0, 1e-3), (0.0, 0.2), (0.3, 0.5)])
def test_an_epsilon_and_delta_imply_the_curve_of_their_worst_mechanism(e0: float, d0: float) -> None:
    # Kairouz, Oh and Viswanath: four outcomes, two of which reveal everything
    yes = (1 - d0) / (1 + math.exp(-e0))
    p, q = [d0, yes, 1 - d0 - yes, 0.0], [0.0, 1 - d0 - yes, yes, d0]
    stated: Guarantee = ApproximateDP(e0, d0) if d0 else PureDP(e0)
    assert implied_delta(stated)(EPSILONS) == pytest.approx([hockey_stick(p, q, e) for e in EPSILONS], abs=1e-12)


def test_a_pure_guarantee_is_about_its_own_epsilon() -> None:
    """It was judged by the claim's: "pure epsilon 100" was refuted beside "at most 1.59"."""
    claim = Claim(1.0, 1e-5, [Phase(Laplace(1.0, 1.0, 1.0), 10, 0.1)], guarantee=PureDP(100.0))
    assert (claim.epsilon, claim.delta) == (100.0, 0.0)
    assert check(claim).verdict == "certified"


@pytest.mark.parametrize("mu", [0.05, 1.0, 7.0])
def test_a_gaussian_guarantee_implies_the_gaussian_curve(mu: float) -> None:
    with mpmath.workdps(30):
        exact = [
            mpmath.ncdf(mu / 2 - e / mu) - mpmath.exp(e) * mpmath.ncdf(-mu / 2 - mpmath.mpf(e) / mu) for e in EPSILONS
        ]
    found = implied_delta(GaussianDP(mu))(EPSILONS)
    for value, true in zip(found, map(float, exact), strict=True):
        assert true <= value <= true * (1 + 1e-6) + 1e-290


@pytest.mark.parametrize("rho", [0.01, 0.5, 8.0])
def test_zero_concentrated_is_converted_at_its_best_order(rho: float) -> None:
    found = implied_delta(ZeroConcentratedDP(rho))(EPSILONS)
    for epsilon, value in zip(EPSILONS, found, strict=True):
        lam = np.geomspace(1e-5, 1e7, 200_001)
        exponent = lam * (lam + 1) * rho - lam * epsilon + lam * np.log(lam / (lam + 1)) - np.log1p(lam)
        assert np.exp(exponent.min()) <= value * (1 + 1e-9)
        assert value <= np.exp(exponent.min()) * 1.01 + 1e-299
    assert headline(RenyiDP(2.0, 1.0))[0] == pytest.approx(
        1.0 + math.log(1 / 2) - math.log(1e-5) - math.log(2.0), abs=1e-6
    )


@given(factor=st.sampled_from([0.99, 1.0, 1.01]), order=st.floats(1.05, 200.0))
@settings(max_examples=6, deadline=None)
def test_gaussian_compositions_are_decided_within_a_percent(factor: float, order: float) -> None:
    wanted = "refuted" if factor < 1 else "certified"
    stated: tuple[Guarantee, ...] = (
        GaussianDP(2.5 * factor),  # sqrt(6.25), exactly
        ZeroConcentratedDP(3.125 * factor),
        RenyiDP(order, order * 3.125 * (factor if factor != 1 else 1 + 1e-9)),
    )
    for guarantee in stated:
        assert check(claim_stating(guarantee, PHASES)).verdict == wanted, guarantee
    assert MU == 2.5


def renyi(p: object, q: object, order: float, cuts: list[float]) -> float:
    with mpmath.workdps(25):
        value = mpmath.quad(lambda x: p(x) ** order * q(x) ** (1 - order), cuts)  # type: ignore[operator]
        return float(mpmath.log(value) / (order - 1))


@pytest.mark.parametrize("order", [1.3, 12.0])
def test_divergences_of_sampled_releases_hold_the_true_one_between_them(order: float) -> None:
    q, cuts = 0.2, [-30, -5, -1, 0, 0.5, 1, 5, 10, 20, 40]
    normal = [lambda x, c=c: mpmath.npdf(x, c, 1) for c in (0, 1)]
    laplace = [lambda x, c=c: mpmath.exp(-abs(x - c)) / 2 for c in (0, 1)]
    mixed = lambda law: lambda x: (1 - q) * law[0](x) + q * law[1](x)  # noqa: E731
    for mechanism, law in ((Gaussian(1.0), normal), (Laplace(1.0, clip_norm=1.0), laplace)):
        claim = Claim.single(mechanism, epsilon=1.0, delta=1e-5, steps=3, sampling_prob=q)
        true = 3 * max(renyi(mixed(law), law[0], order, cuts), renyi(law[0], mixed(law), order, cuts))
        lower = float(divergence_lower(claim, np.array([order]))[0])
        assert true * 0.99 <= lower <= true * (1 + 1e-9), mechanism.name
        assert true * (1 - 1e-9) <= divergence_upper(claim, np.array([order]))[0] <= true * 1.001, mechanism.name


def test_a_record_is_in_the_data_of_one_neighbour_in_every_release() -> None:
    # the worse direction of the one phase is the better one of the other: what counts is one direction for both
    phases = [Phase(Laplace(0.5, clip_norm=1.0), 1, 0.05), Phase(Laplace(2.0, clip_norm=1.0), 1, 0.9)]
    order = np.array([1.2])
    alone = [float(divergence_lower(Claim(1.0, 1e-5, [phase]), order)[0]) for phase in phases]
    assert float(divergence_lower(Claim(1.0, 1e-5, phases), order)[0]) <= sum(alone) + 1e-12


@pytest.mark.parametrize(
    ("sampler", "rho"),
    [
        (Shuffled(100, 5), 2.5),
        (BallsInBins(40, 3), 1.5),
        (RandomAllocation(100, 10), 5.0),
        (WithoutReplacement(0.1, 20), 10.0),
    ],
)
def test_a_sampler_leaves_rho_as_it_is_without_sampling(sampler: object, rho: float) -> None:
    claim = Claim(1.0, 1e-5, [Phase(Gaussian(1.0), sampler=sampler)], "zero-out").canonical()  # type: ignore[arg-type]
    assert rho_upper(claim) == pytest.approx(rho)
    orders = np.array([2.0**20])
    assert divergence_lower(claim, orders)[0] / orders[0] == pytest.approx(rho, rel=1e-3)
    assert divergence_lower(claim, orders)[0] / orders[0] <= rho


def test_a_number_is_no_guarantee_and_a_phase_no_history() -> None:
    with pytest.raises(TypeError, match=r"Expected guarantee=0\.81 to be a guarantee, such as PureDP\(1\.0\)"):
        claim_stating(0.81, [Phase(Gaussian(1.0))])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"Expected guarantee=0\.81 to be a guarantee"):
        Claim(1.0, 1e-5, [Phase(Gaussian(1.0))], guarantee=0.81)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="to be a sequence of phases"):
        claim_stating(ZeroConcentratedDP(0.81), Phase(Gaussian(1.0)))  # type: ignore[arg-type]


def test_orders_close_to_1_have_a_far_headline() -> None:
    """No epsilon below 1e9 has a delta of 1e-5 there; N(1, 1) has the divergence a/2."""
    for epsilon, verdict in ((0.49, "refuted"), (0.51, "certified")):
        claim = claim_stating(RenyiDP(1.0 + 1e-9, epsilon), [Phase(Gaussian(1.0))])
        assert claim.epsilon == pytest.approx(-math.log(claim.delta) * 1e9, rel=1e-3)
        assert check(claim).verdict == verdict
    assert claim_stating(ZeroConcentratedDP(1e10), [Phase(Gaussian(1.0))]).epsilon >= 1e10


def test_laplace_noise_has_the_rho_of_its_exact_characterisation() -> None:
    phases = [Phase(Laplace(2.0, clip_norm=1.0), 6)]
    rho = 6 * (0.5 + math.exp(-0.5) - 1)
    assert check(claim_stating(ZeroConcentratedDP(rho * 1.001), phases)).verdict == "certified"
    assert check(claim_stating(ZeroConcentratedDP(rho * 0.99), phases)).verdict == "refuted"


def test_pure_and_several_points() -> None:
    laplace, normal = [Phase(Laplace(1.0, clip_norm=1.0), 3)], [Phase(Gaussian(1.0), 10)]
    assert check(claim_stating(PureDP(3.0), laplace)).verdict == "certified"
    for epsilon in (0.0, 2.9):  # told with the true epsilon, not with the claimed one
        refuted = check(claim_stating(PureDP(epsilon), laplace))
        assert refuted.verdict == "refuted"
        assert refuted.guarantee is not None
        assert refuted.guarantee["lower"] == pytest.approx(3.0, rel=1e-3)
        assert refuted.guarantee["upper"] == pytest.approx(3.0, rel=1e-9)
    never = check(claim_stating(PureDP(500.0), normal))
    assert never.verdict == "refuted"
    assert "the loss of such noise has no bound" in never.reason
    good, bad = (18.0, 1e-5), (10.0, 1e-2)
    assert check(claim_stating(PrivacyCurve((good, (20.0, 1e-5))), normal)).verdict == "certified"
    verdict = check(claim_stating(PrivacyCurve((good, bad)), normal))
    assert verdict.verdict == "refuted"
    assert verdict.guarantee is not None
    assert verdict.guarantee["lower"] == 1


def test_sampled_histories_keep_no_smaller_mu_at_every_epsilon() -> None:
    phases = [Phase(Gaussian(1.0), 1000, 0.01)]
    above, below = (check(claim_stating(GaussianDP(mu), phases)) for mu in (0.57, 0.55))
    assert (above.verdict, below.verdict) == ("undecided", "refuted")
    assert "down to delta=1e-12" in above.reason
    assert check(claim_stating(GaussianDP(31.7), phases)).verdict == "certified"


@pytest.mark.parametrize(
    ("guarantee", "least"),
    [
        (GaussianDP(1.4285714), "1.4285714"),
        (ZeroConcentratedDP(1.0204081), "1.0204081"),
        (RenyiDP(2.0, 2.0408163), "2.0408163"),
        (PrivacyCurve(((1.0, 0.2919359),)), "0.2919359"),
    ],
)
def test_what_is_shown_is_told_in_the_digits_that_exceed_what_was_stated(guarantee: Guarantee, least: str) -> None:
    """The true mu is 1/.7; six digits, or four of a delta, are those of the claim."""
    verdict = check(claim_stating(guarantee, [Phase(Gaussian(0.7))]))
    assert verdict.verdict == "refuted"
    shown, stated = re.findall(r"[\d.]+\d", verdict.reason)[-2:]
    assert shown.startswith(least)
    assert float(shown) > float(stated)


def test_mu_is_that_of_the_decimals_and_not_of_their_products_float() -> None:
    assert Fraction(1.1 * 1.1) > Fraction("1.21")  # so the float's mu is below 1/1.1 = .90909...
    once = [Phase(Gaussian(1.1, clip=1.1, dimension=1), 1, 1.0, "none")]
    above, below = (check(claim_stating(GaussianDP(mu), once)) for mu in (0.9090909090909092, 0.909090909090909))
    assert (above.verdict, below.verdict) == ("certified", "undecided")


@pytest.mark.parametrize("rate", [1.0, 0.01])
def test_mu_of_a_subclass_is_that_of_its_structure(rate: float) -> None:
    """Its parameters may mean something else: half of the noise was certified at the mu of the whole."""

    @dataclass(frozen=True)
    class Half(Gaussian):
        @property
        def structure(self) -> NormalCoordinates:
            return Gaussian(self.noise_multiplier / 2).structure

    phase = Phase(Half(1.0), 4, rate)
    mu, rho = check(claim_stating(GaussianDP(2.1), [phase])), check(claim_stating(ZeroConcentratedDP(2.1), [phase]))
    assert mu.verdict != "certified"
    assert rho.verdict == "refuted"
    assert check(claim_stating(GaussianDP(4.0001), [phase])).verdict == "certified"


@pytest.mark.parametrize("mu", [0.1, 1.0, 4.0])
def test_operating_points_of_a_gaussian_are_its_own(mu: float) -> None:
    found = operating_points(implied_delta(GaussianDP(mu)))
    assert mu <= found.gdp_mu <= mu * 1.002
    for rate, limit in found.tpr_at_fpr.items():
        true = float(ndtr(ndtri(float(rate)) + mu))
        assert true <= limit <= true * 1.005


def test_the_least_mu_covers_curves_of_any_shape() -> None:
    rng = np.random.default_rng(5)
    sampled = check(Claim.single(Gaussian(0.6), epsilon=1.0, delta=1e-5, steps=50, sampling_prob=0.02))
    for curve in (implied_delta(PureDP(1.5)), implied_delta(ApproximateDP(0.7, 1e-13)), lambda e: sampled.delta(e)[1]):
        mu = operating_points(curve).gdp_mu
        at = rng.uniform(0.0, 12.0, 500)
        assert (curve(at) <= np.maximum(implied_delta(GaussianDP(mu))(at), 1e-12)).all()
        assert (curve(at) > np.maximum(implied_delta(GaussianDP(mu * 0.98))(at), 1e-12)).any()


@pytest.mark.parametrize("mu", [0.4, 2.0, math.inf])
def test_the_regret_of_mu_is_the_least_shift_between_two_trade_offs(mu: float) -> None:
    """f(alpha + kappa) - kappa <= f_mu(alpha) over a fine grid of alphas, by bisection."""
    epsilons = np.array([0.0, 0.1, 0.4, 1.0, 2.5])
    deltas = 0.6 * implied_delta(GaussianDP(min(mu, 2.0)))(epsilons)
    alphas = np.concatenate([np.linspace(0.0, 1.0, 20_001), np.geomspace(1e-9, 1e-3, 500)])
    told = ndtr(-mu - ndtri(alphas)) if math.isfinite(mu) else np.zeros(len(alphas))
    low, high, points = 0.0, 1.0, list(zip(epsilons, deltas, strict=True))
    for _ in range(40):
        middle = (low + high) / 2
        moved = np.minimum(alphas + middle, 1.0)
        lines = [np.maximum(1 - d - np.exp(e) * moved, np.exp(-e) * (1 - d - moved)) for e, d in points]
        shifted = np.maximum(0.0, np.max(lines, axis=0)) - middle
        low, high = (low, middle) if (shifted <= told + 1e-12).all() else (middle, high)
    regret = gdp_regret(mu, epsilons, deltas)
    assert regret == pytest.approx(high, abs=2e-5)
    assert regret >= high - 1e-9


def test_a_gaussian_has_hardly_a_regret_and_a_sampled_one_has() -> None:
    assert operating_points(implied_delta(GaussianDP(1.0))).gdp_regret < 1e-3
    sampled = check(Claim.single(Gaussian(0.6), epsilon=1.0, delta=1e-5, steps=50, sampling_prob=0.02))
    assert sampled.gdp_regret > 0.01


TABLES = {
    "pure": {"epsilon": 1.0},
    "approximate": {"epsilon": 1.0, "delta": 1e-5},
    "gdp": {"mu": 0.5},
    "zcdp": {"rho": 0.81},
    "rdp": {"order": 8.0, "epsilon": 1.0},
    "curve": {"points": [[1.0, 1e-5], [2.0, 1e-7]]},
}


@pytest.mark.parametrize("kind", GUARANTEES)
def test_a_table_is_read_and_written(kind: str) -> None:
    row = {
        "id": "a",
        "guarantee": {"kind": kind, **TABLES[kind]},
        "mechanism": {"name": "gaussian", "noise_multiplier": 4.0},
    }
    claim = claim_from_dict(row)
    written = claim_to_dict(claim)
    assert claim_from_dict(written) == claim
    if kind == "approximate":
        assert (claim.guarantee, written["epsilon"]) == (None, 1.0)
    else:
        assert written["guarantee"] == row["guarantee"]
        verdict = check(claim)
        again = Verdict.from_dict(verdict.to_dict())
        assert (again.guarantee, again.gdp_mu, again.gdp_regret, again.tpr_at_fpr) == (
            verdict.guarantee,
            verdict.gdp_mu,
            verdict.gdp_regret,
            verdict.tpr_at_fpr,
        )


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"epsilon": 1.0, "guarantee": {"kind": "zcdp", "rho": 1.0}}, "expected either epsilon or a [claim.guarantee]"),
        ({"epsilon": 1.0}, "expected delta to be given, or a [claim.guarantee]"),
        ({"guarantee": {"kind": "zCDP", "rho": 1.0}}, "expected guarantee.kind='zCDP' among 'pure'"),
        ({"guarantee": {"kind": "gdp", "rho": 1.0}}, "unknown key 'guarantee.rho': expected mu"),
        ({"guarantee": {"kind": "rdp", "order": 2.0}}, "expected guarantee.epsilon to be given"),
        ({"guarantee": {"kind": "rdp", "order": 1.0, "epsilon": 1.0}}, "Expected order=1.0 in (1, 1e+100]"),
        ({"guarantee": {"kind": "gdp", "mu": "1"}}, "Expected mu='1' to be a number"),
        ({"guarantee": {"kind": "curve", "points": [1.0]}}, "Expected every point to be [epsilon, delta], not 1.0"),
    ],
)
def test_a_wrong_table_is_one_line(keys: dict[str, object], message: str) -> None:
    row = {"id": "a", **keys, "mechanism": {"name": "gaussian", "noise_multiplier": 4.0}}
    with pytest.raises(ClaimFileError) as caught:
        claim_from_dict(row)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "guarantees.md").read_text(encoding="utf-8")
    exec("\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)), {})
    [table] = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "keyboard.toml").write_text(table)
    [claim] = load_claims(tmp_path / "keyboard.toml")
    assert check(claim).verdict == "certified"
    assert any("user" in text for text in check(claim).assumptions)


def test_both_engines_judge_a_rho_and_no_certificate_states_one() -> None:
    pytest.importorskip("flint")
    from dpaudit.verify.rigorous.agreement import confirmed
    from dpaudit.verify.rigorous.certificates import NotCovered, certificate

    claim = claim_stating(ZeroConcentratedDP(3.0), PHASES, id="a")
    verdict = confirmed(claim, check(claim))
    assert (verdict.verdict, verdict.promise) == ("refuted", "zero-concentrated rho 3")
    assert "Ball arithmetic proves the same: rho is at least 3.125" in verdict.reason
    found = certificate(claim, verdict)
    assert isinstance(found, NotCovered)
    assert "zero-concentrated rho=3 is none" in found.reason
    assert in_words(verdict).startswith("The promise is broken: the true rho is at least 3.12")
    claim_table = claim_to_dict(claim)
    assert "Stated is zero-concentrated rho 3, for" in prose(claim_table, verdict)
    assert "the true rho is at least 3.12" in prose(claim_table, verdict)


@pytest.mark.parametrize("order", [1.3, 2.0, 12.0])
@pytest.mark.parametrize("q", [0.02, 0.4])
def test_divergences_of_replaced_records_are_at_most_what_is_stated(order: float, q: float) -> None:
    """The pair of two opposite contributions, by quadrature, which mirrors itself; near it for normal noise."""
    cuts = [-40, -20, -10, -5, -1, 0, 1, 5, 10, 20, 40]
    for mechanism in (Gaussian(2.0), Laplace(2.0, clip_norm=1.0)):
        centred = (
            mpmath.npdf if isinstance(mechanism, Gaussian) else lambda x, c, s: mpmath.exp(-abs(x - c) / s) / 2 / s
        )
        law = lambda c, f=centred: lambda x: (1 - q) * f(x, 0, 2) + q * f(x, c, 2)  # noqa: E731
        true = renyi(law(1), law(-1), order, cuts)
        claim = Claim(1.0, 1e-5, [Phase(mechanism, 3, q)], "replace-one")
        found = divergence_upper(claim, np.array([order]))[0]
        assert 3 * true * (1 - 1e-9) <= found, mechanism.name
        if isinstance(mechanism, Gaussian):
            assert found <= 3 * true * 1.01


def test_a_bound_for_one_version_of_the_record_alone_would_be_too_small() -> None:
    """The positive control: what a sampled record of one contribution costs against none is less than the truth."""
    cuts = [-40, -20, -10, -5, -1, 0, 1, 5, 10, 20, 40]
    law = lambda c: lambda x: 0.6 * mpmath.npdf(x, 0, 2) + 0.4 * mpmath.npdf(x, c, 2)  # noqa: E731
    alone = divergence_upper(Claim(1.0, 1e-5, [Phase(Gaussian(2.0), 1, 0.4)]), np.array([12.0]))[0]
    assert alone < renyi(law(1), law(-1), 12.0, cuts)


@settings(deadline=None, max_examples=60)
@given(
    a=st.floats(1.001, 300.0), q=st.floats(1e-8, 0.5), log_ratio=st.floats(0.01, 20.0),
)  # fmt: skip
def test_a_single_event_proves_no_more_than_its_own_divergence_and_nearly_all_of_it(
    a: float, q: float, log_ratio: float
) -> None:
    p = min(q * math.exp(log_ratio), 0.999)

    def delta(epsilon: np.ndarray) -> np.ndarray:
        return np.maximum(p - np.exp(epsilon) * q, 0.0)

    with mpmath.workdps(40):
        first, second, order = mpmath.mpf(p), mpmath.mpf(q), mpmath.mpf(a)
        moment = first**order * second ** (1 - order) + (1 - first) ** order * (1 - second) ** (1 - order)
        true = float(mpmath.log(moment) / (order - 1))
    shown = float(divergence_at_least(delta, np.array([a]))[0])
    assert 0.5 * true - 1e-9 <= shown <= true * (1 + 1e-12)


@pytest.mark.parametrize("mu", [0.01, 1.0, 3.0])
@pytest.mark.parametrize("order", [1.01, 1.5, 2.0, 3.0, 32.0])
def test_a_curve_brackets_the_divergence_of_its_pair(mu: float, order: float) -> None:
    curve, true = implied_delta(GaussianDP(mu)), order * mu**2 / 2.0
    others = [(b, b * mu**2 / 2.0) for b in guarantee_check.LARGER_ORDERS * order]
    assert true <= divergence_at_most(curve, order, others) <= (1.02 if order < 10 else 1.1) * true
    assert 0.1 * true <= divergence_at_least(curve, np.array([order]))[0] <= true
    assert divergence_at_most(curve, order, [(2.0 * order, math.inf)]) == math.inf


def test_bins_have_a_divergence_on_both_sides() -> None:
    """One pass through n bins: E_Q[(dP/dQ)^2] = 1 + (e^(mu^2) - 1)/n, by the products of n normal densities."""
    mechanism, sampler = Gaussian(1.0), BallsInBins(batches=10, epochs=1)
    claim = claim_stating(RenyiDP(2.0, 0.0), [Phase(mechanism, 10, sampler=sampler)])
    verdict = check(claim)
    true = math.log1p(math.expm1(1.0) / 10.0)
    assert verdict.verdict == "refuted"
    assert verdict.guarantee is not None
    assert 0.999 * true < verdict.guarantee["lower"] < true < verdict.guarantee["upper"] < 1.03 * true
    below = check(claim_stating(RenyiDP(2.0, 0.999 * true), claim.phases))
    assert below.verdict == "refuted"
    above = check(claim_stating(RenyiDP(2.0, 1.03 * true), claim.phases))
    assert above.verdict == "certified"


@pytest.mark.parametrize(("bins", "order", "mu"), [(2, 4, 1.0), (3, 40, 0.3), (50, 32, 0.2), (1000, 8, 0.5)])
def test_the_divergence_of_bins_is_met_at_whole_orders(bins: int, order: int, mu: float) -> None:
    """order! times the coefficient of z^order in (sum of E_Q[W^k] (z/bins)^k/k!)^bins, by plain products."""
    with mpmath.workdps(50):
        factor = [
            mpmath.exp(mpmath.mpf(k * (k - 1)) * mu**2 / 2) / mpmath.factorial(k) / bins**k for k in range(order + 1)
        ]
        power = [mpmath.mpf(1)] + [mpmath.mpf(0)] * order
        for _ in range(bins):
            power = [mpmath.fsum(power[j] * factor[n - j] for j in range(n + 1)) for n in range(order + 1)]
        true = float(mpmath.log(power[-1] * mpmath.factorial(order)) / (order - 1))
    phase = Phase(Gaussian(1.0 / mu), sampler=BallsInBins(bins, 3))
    adjacencies: tuple[Adjacency, ...] = ("zero-out", "replace-one")  # one that contributes nothing is another one
    for adjacency in adjacencies:
        claim = Claim(0.0, 0.0, [phase], adjacency)
        found = divergence_lower(claim.canonical("lower"), np.array([order, order + 0.5]))
        assert 3 * true * (1 - 1e-8) <= found[0] <= min(3 * true, float(found[1]) * (1 + 1e-12)), adjacency


@pytest.mark.parametrize(("releases", "times", "mu"), [(10, 3, 1.0), (100, 5, 0.1), (7, 5, 2.0), (1000, 40, 9.0)])
def test_the_divergence_of_random_allocation_is_met_at_order_2(releases: int, times: int, mu: float) -> None:
    with mpmath.workdps(50):
        shared = [
            mpmath.binomial(times, j)
            * mpmath.binomial(releases - times, times - j)
            * mpmath.exp(j * mpmath.mpf(mu) ** 2)
            for j in range(max(0, 2 * times - releases), times + 1)
        ]
        true = float(mpmath.log(mpmath.fsum(shared) / mpmath.binomial(releases, times)))
    claim = Claim(0.0, 0.0, [Phase(Gaussian(1.0 / mu), sampler=RandomAllocation(releases, times))]).canonical("lower")
    found = divergence_lower(claim, np.array([2.0, 2.5]))
    assert true * (1 - 1e-8) <= found[0] <= min(true * (1 + 1e-13), float(found[1]))


@pytest.mark.parametrize("sampler", [BallsInBins(10, 3), BallsInBins(10, 3, "once"), RandomAllocation(10, 3)])
def test_a_replaced_record_may_be_replaced_by_one_that_contributes_nothing(sampler: Sampler) -> None:
    phases, orders = [Phase(Gaussian(3.0), sampler=sampler)], np.array([1.5, 2.0, 30.0, 1e9])
    removed = divergence_lower(Claim(0.0, 0.0, phases, "zero-out").canonical("lower"), orders)
    replaced = divergence_lower(Claim(0.0, 0.0, phases, "replace-one").canonical("lower"), orders)
    assert (removed > 0)[1:].all()
    assert (replaced >= removed * (1 - 1e-12)).all()


def test_bounds_on_a_guarantee_that_cross_decide_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    claim = claim_stating(RenyiDP(2.0, 0.5), [Phase(Gaussian(1.0), 1)])
    monkeypatch.setattr(guarantee_check, "divergence_upper", lambda claim, orders: np.full(len(orders), 0.1))
    verdict = check(claim)
    assert (verdict.verdict, verdict.methods[-1]) == ("undecided", "disagreement")
    assert verdict.reason.startswith("Two bounds disagree, please report: epsilon is at least ")


@pytest.mark.parametrize("sigma", [1e-150, 1e200])
def test_noise_beyond_floats_has_no_guarantee_but_points(sigma: float) -> None:
    """A record is in a batch once in a million: delta 1e-6 at every epsilon, which no mu, rho or epsilon implies."""
    phases = [Phase(Gaussian(sigma), 1, 1e-6)]
    for stated in (PureDP(1.0), GaussianDP(1.0), ZeroConcentratedDP(0.5), RenyiDP(2.0, 1.0)):
        assert check(claim_stating(stated, phases)).verdict == "undecided", stated
    assert check(claim_stating(PrivacyCurve(((1.0, 1e-5), (9.0, 2e-6))), phases)).verdict == "certified"
    assert check(claim_stating(PrivacyCurve(((1.0, 1e-5), (9.0, 2e-7))), phases)).verdict == "undecided"


def test_fixed_sizes_beside_other_noise_are_not_poisson_batches_to_a_renyi_bound() -> None:
    """In place of the record another one lies opposite: two clips apart, where Poisson batches put one.

    One pair shows log q a/(a - 1) + a (2 clip/sigma)^2/2 a release.
    """
    noise = Gaussian(0.272444, dimension=8)
    drawn = Phase(noise, sampler=WithoutReplacement(0.002, 14))
    phases = [drawn, Phase(GammaPLRVIID(14788.6, 0.00010538, dimension=1), sampler=RandomAllocation(9279, 4))]
    claim = claim_stating(RenyiDP(20.0, 30.0), phases, "replace-one")
    assert check(claim).verdict == "refuted"
    shown = 14 * (math.log(0.002) * 20 / 19 + 20 * (2 / 0.272444) ** 2 / 2)
    assert (
        divergence_lower(claim, np.array([20.0]))[0] <= divergence_upper(claim.canonical("upper"), np.array([20.0]))[0]
    )
    assert shown <= divergence_upper(claim.canonical("upper"), np.array([20.0]))[0]


def test_a_mu_rests_on_what_proves_it() -> None:
    """Laplace noise was certified by "shifts over sigma", which it does not have."""
    for noise, basis in ((Gaussian(1.0), "shifts over sigma"), (Laplace(1.0, clip_norm=1.0), "pure epsilon or curve")):
        certified = check(claim_stating(GaussianDP(5.0), [Phase(noise, 2)]))
        assert certified.verdict == "certified"
        assert basis in certified.reason


@pytest.mark.parametrize("noise", [Gaussian(4.0, dimension=3), Laplace(4.0, clip_norm=1.0, dimension=3)])
@pytest.mark.parametrize(("adjacency", "other"), [("zero-out", 0.0), ("replace-one", -1.0)])
def test_renyi_of_fixed_sizes_is_amplified_and_above_that_of_opposed_others(
    noise: Gaussian | Laplace, adjacency: Adjacency, other: float
) -> None:
    """P = (1-g) R_y + g R_1 against Q = (1-g) R_y + g R_w, by quadrature on a line; all is of the order of g^2."""
    g, steps, orders = 0.01, 10, np.array([1.01, 2.0, 8.0])
    x = np.linspace(-100.0, 100.0, 200_001)

    def density(centre: float) -> Array:
        away = np.abs(x - centre) / 4.0
        return np.asarray(np.exp(-away if isinstance(noise, Laplace) else -away * away / 2.0))

    claim = Claim(1.0, 1e-5, [Phase(noise, sampler=WithoutReplacement(g, steps))], adjacency).canonical("upper")
    upper = divergence_upper(claim, orders)
    for y in (-1.0, 1.0):
        laws = [(1 - g) * density(y) + g * density(centre) for centre in (1.0, other)]
        for p, q in (laws, laws[::-1]):
            for order, above in zip(orders, upper, strict=True):
                true = steps * math.log((q * (p / q) ** order).sum() / q.sum()) / (order - 1)
                assert true <= above * (1 + 1e-6)
    assert (upper <= steps * orders * (5 * g / 4.0) ** 2).all()


@pytest.mark.parametrize(
    "phase",
    [
        Phase(Gaussian(1.0), sampler=Shuffled(batches=10, epochs=2)),
        Phase(Gaussian(1.0), sampler=BallsInBins(batches=10, epochs=2)),
        Phase(Gaussian(1.0), 16, correlation=Correlation(SquareRootToeplitz(), Participation("min-sep", separation=2))),
        Phase(GeneralizedGaussian(1.5, 2.0, dimension=1), sampler=Shuffled(batches=10, epochs=2)),
    ],
)
@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_noise_of_unbounded_loss_is_never_pure(phase: Phase, adjacency: Adjacency) -> None:
    """Whatever the batches: far out, f(x - v)/f(x) exceeds every e^epsilon over the record's chance to be there."""
    claim = Claim(50.0, 0.0, [phase], adjacency)
    for verdict in (check(claim), check(claim_stating(PureDP(50.0), claim.phases, adjacency=adjacency))):
        assert verdict.verdict == "refuted"
        assert verdict.epsilon_lower == verdict.epsilon_upper == math.inf
        assert verdict.bracket == "no epsilon is enough"


@pytest.mark.parametrize("order", [1.001, 1.5, 2.0, 30.0])
@pytest.mark.parametrize(
    ("noise", "shift", "adjacency"),
    [
        (Laplace(4.0, clip_norm=1.0), 0.25, "add-remove"),
        (Laplace(1.5, dimension=1), 4.0 / 3.0, "replace-one"),
        (Laplace(0.5, clip_norm=1.0, dimension=3), 2.0, "add-remove"),
    ],
)
def test_renyi_of_laplace_noise_under_an_l1_bound_is_that_of_its_worst_pair(
    noise: Laplace, shift: float, adjacency: Adjacency, order: float
) -> None:
    """By quadrature of the pair; beside Gaussian releases, which add a mu^2/2 each."""
    with mpmath.workdps(30):
        outputs = [-mpmath.inf, 0, shift, mpmath.inf]
        integral = mpmath.quad(lambda x: mpmath.exp(-order * abs(x - shift) + (order - 1) * abs(x)) / 2, outputs)
        pair = float(mpmath.log(integral) / (order - 1))
    square = (1.0 if adjacency == "add-remove" else 4.0) / 16.0
    true = 5 * pair + 2 * order * square / 2
    phases = [Phase(noise, 5), Phase(Gaussian(4.0), 2)]
    above = check(claim_stating(RenyiDP(order, true * (1.0 + 1e-7)), phases, adjacency))
    assert above.verdict == "certified"
    assert above.guarantee is not None
    assert above.guarantee["upper"] >= true * (1.0 - 1e-13)


@pytest.mark.parametrize(
    "phase",
    [
        Phase(GeneralizedGaussian(3.0, 4.0, dimension=3), 2),
        Phase(GeneralizedGaussian(2.5, 40.0), 10, 0.1),
        Phase(GeneralizedGaussian(4.0, 9.0, dimension=1), sampler=Shuffled(batches=10, epochs=2)),
    ],
)
def test_noise_that_falls_faster_than_normal_noise_is_never_concentrated(phase: Phase) -> None:
    """A mu holds for every delta that matters, and is told as such."""
    rho_claim = claim_stating(ZeroConcentratedDP(1e4), [phase])
    rho = check(rho_claim)
    mu = check(claim_stating(GaussianDP(50.0), [phase]))
    assert (rho.verdict, mu.verdict) == ("refuted", "undecided")
    assert rho.guarantee is not None
    assert rho.guarantee["lower"] == math.inf
    assert rho.reason.startswith("No rho is enough: far out")
    assert in_words(rho).startswith("The promise is broken: no rho is enough; promised")
    assert prose(claim_to_dict(rho_claim), rho).endswith("This does not hold: no rho is enough.")
    assert "at every epsilon no mu is enough: far out" in mu.reason


@pytest.mark.parametrize(
    "phase",
    [
        Phase(Product(50.0, dimension=4)),
        Phase(Product(50.0, dimension=2), 3, 0.1),
        Phase(Product(50.0)),
        Phase(Product(90.0, dimension=3), sampler=Shuffled(batches=10, epochs=2)),
    ],
)
def test_product_noise_is_never_concentrated_and_of_no_moments_from_an_order_on(phase: Phase) -> None:
    """Its radius is as likely near 0 as a normal one, in whatever dimension n: n/(n - 1) is the order."""
    n = phase.mechanism.dimension or 2
    told = {
        ZeroConcentratedDP(1e4): "No rho is enough: a ball of radius r",
        RenyiDP(1.0 + 1.01 / (n - 1), 1e4): f"At order {1.0 + 1.01 / (n - 1):.6g} no epsilon is enough: a ball",
        PureDP(600.0): "With delta=0 no epsilon is enough",
    }
    for guarantee, reason in told.items():  # without the bracket of a point, which decides nothing here
        stating = claim_stating(guarantee, [phase])
        found = guarantee_check.decide_guarantee(stating, np.zeros_like, np.ones_like, lambda x: (0 * x, x + 1), "none")
        assert (found.verdict, found.lower) == ("refuted", math.inf)
        assert found.reason.startswith(reason)
    below = check(claim_stating(RenyiDP(1.0 + 0.99 / (n - 1), 1e4), [phase]))
    assert below.verdict == "undecided"


def test_only_sampling_is_said_to_leave_a_far_tail() -> None:
    """Noise whose far tail has no theorem, and Laplace noise known release by release, without any sampling."""
    power = check(claim_stating(GaussianDP(2.0), [Phase(GeneralizedGaussian(1.5, 2.0, dimension=1))]))
    laplace = check(claim_stating(GaussianDP(0.72), [Phase(Laplace(4.0, clip_norm=math.inf, dimension=3), 2)]))
    assert (power.verdict, laplace.verdict) == ("undecided", "undecided")
    assert power.reason.endswith("at every epsilon no mu is proven.")
    assert laplace.reason.endswith("at every epsilon only mu=0.7241 is proven.")


def test_a_pure_guarantee_is_refuted_by_losses_that_no_float_shows_and_in_words() -> None:
    """At epsilon = 4 no float holds delta. A power above 1 has no largest loss, Laplace noise has one."""
    powers = check(claim_stating(PureDP(4.0), [Phase(GeneralizedGaussian(1.5, 5000.0), 3)]))
    laplace = check(claim_stating(PureDP(4.0), [Phase(Laplace(1000.0, clip_norm=1.0), 10_000)]))
    assert (powers.verdict, laplace.verdict) == ("refuted", "refuted")
    assert powers.reason == "With delta=0 no epsilon is enough: the loss of such noise has no bound."
    assert "epsilon is at least 10 at delta=0" in laplace.reason


def test_lengths_that_are_rational_in_many_coordinates_are_not_rounded() -> None:
    """n C in the l1 norm under the largest coordinate, sqrt(n) C under the l2 norm: what a claim states holds."""
    for dimension, clip_norm, epsilon in ((3, math.inf, 0.6), (4, 2.0, 0.4)):
        noise = Laplace(0.5, clip=0.1, clip_norm=clip_norm, dimension=dimension)
        assert check(Claim.single(noise, epsilon=epsilon, delta=0.0)).verdict == "certified"
        assert check(Claim.single(noise, epsilon=epsilon * (1.0 - 1e-3), delta=0.0)).verdict == "refuted"
    for releases, epsilon in ((3, 0.3), (6, 0.6), (7, 0.7)):  # of which the binary number is less than the decimal
        assert check(
            Claim.single(Laplace(10.0, clip_norm=1.0), epsilon=epsilon, delta=0.0, steps=releases)
        ).verdict == ("certified")
    normal = [Phase(Gaussian(1.0, clip_norm=math.inf, dimension=5), 5)]
    for guarantee in (GaussianDP(5.0), ZeroConcentratedDP(12.5), RenyiDP(3.0, 37.5)):
        assert check(claim_stating(guarantee, normal)).verdict == "certified"


@pytest.mark.parametrize(("adjacency", "scales"), [("zero-out", 1.0), ("add-remove", 2.0), ("replace-one", 2.0)])
def test_laplace_noise_in_batches_that_are_cut_costs_no_more_than_without_sampling(
    adjacency: Adjacency, scales: float
) -> None:
    # given all coins a release is moved by one clip, or by two where another record has the place
    phase = Phase(Laplace(1.0, dimension=1), sampler=TruncatedPoisson(0.5, 1, 3, 2))
    rho = 2.0 * (scales + math.exp(-scales) - 1.0)
    assert check(claim_stating(ZeroConcentratedDP(rho * (1.0 + 1e-9)), [phase], adjacency)).verdict == "certified"
    # three records, places for one, the others opposed
    kept, nobody = 0.5 * (0.25 + 0.5 / 2 + 0.25 / 3), 0.5 * 0.25
    other = 1.0 - kept - nobody
    record = {1.0: kept, 0.0: nobody, -1.0: other}
    out = {
        "zero-out": {0.0: nobody + kept, -1.0: other},
        "add-remove": {0.0: 0.25, -1.0: 0.75},
        "replace-one": {0.0: nobody, -1.0: other + kept},
    }[adjacency]

    def density(x: float, weights: dict[float, float]) -> float:
        return sum(p * math.exp(-abs(x - c)) / 2.0 for c, p in weights.items())

    def power(p: dict[float, float], q: dict[float, float]) -> float:
        return float(mpmath.quad(lambda x: density(x, p) ** 4 / density(x, q) ** 3, [-40, -1, 0, 1, 40]))

    truth = 2.0 * math.log(max(power(record, out), power(out, record))) / 3.0
    found = check(claim_stating(RenyiDP(4.0, 4.0), [phase], adjacency))
    assert found.guarantee is not None
    assert found.guarantee["lower"] <= truth <= found.guarantee["upper"] < math.inf


@pytest.mark.parametrize("adjacency", ["zero-out", "add-remove", "replace-one"])
def test_batches_that_nothing_cuts_are_poisson_batches(adjacency: Adjacency) -> None:
    stated = RenyiDP(9.5, 1.0)
    found, told = (
        check(claim_stating(stated, [phase], adjacency)).guarantee
        for phase in (Phase(Gaussian(4.0), sampler=TruncatedPoisson(0.2, 2, 2, 10)), Phase(Gaussian(4.0), 10, 0.2))
    )
    assert found == told


@pytest.mark.parametrize(
    ("adjacency", "out"), [("zero-out", "ghost"), ("add-remove", "nobody"), ("replace-one", "opposite")]
)
def test_renyi_of_batches_that_are_cut_is_amplified(adjacency: Adjacency, out: str) -> None:
    # hardly ever cut, they are Poisson batches
    noise, stated = Gaussian(2.0), RenyiDP(8.0, 1.0)
    rarely, never = (
        check(claim_stating(stated, [phase], adjacency)).guarantee
        for phase in (Phase(noise, sampler=TruncatedPoisson(0.01, 60, 1000, 500)), Phase(noise, 500, 0.01))
    )
    assert rarely is not None
    assert never is not None
    assert rarely["upper"] <= never["upper"] * (1.0 + 1e-6)
    # three records at 0.3, places for one: the record's part, and what the others leave, at every value of theirs
    kept, nobody = 0.3 * (0.49 + 0.42 / 2 + 0.09 / 3), 0.7 * 0.49
    phase = Phase(Gaussian(1.0), sampler=TruncatedPoisson(0.3, 1, 3, 4))
    for others in (-1.0, 0.0, 1.0):
        rest = [(nobody, 0.0), (1.0 - kept - nobody, others)]
        first = [(kept, 1.0), *rest]
        second = {
            "ghost": [(kept, 0.0), *rest],
            "nobody": [(0.49, 0.0), (0.51, others)],
            "opposite": [(kept, -1.0), *rest],
        }[out]
        x = np.linspace(-16.0, 16.0, 32_001)
        p, q = (sum(weight * norm.pdf(x - centre) for weight, centre in law) for law in (first, second))
        found = check(claim_stating(RenyiDP(3.0, 1.0), [phase], adjacency)).guarantee
        assert found is not None
        for one, other in ((p, q), (q, p)):
            truth = 4.0 * math.log(float(np.sum(one**3 / other**2)) * 1e-3) / 2.0
            assert truth <= found["upper"] < 4.0 * 3.0 / 2.0 * (1.0 if adjacency == "zero-out" else 4.0)


def test_a_rho_of_laplace_noise_in_batches_that_are_cut_is_that_of_the_amplified_pure_epsilon() -> None:
    # two records, places for one: where both are drawn one of them is in, and the other one is at -1
    phase = Phase(Laplace(1.0, dimension=1), sampler=TruncatedPoisson(0.1, 1, 2, 3))
    found = check(claim_stating(ZeroConcentratedDP(0.1), [phase], "add-remove")).guarantee
    assert found is not None

    def ratio(x: float) -> float:
        out, record, other = (math.exp(-abs(x - centre)) / 2.0 for centre in (0.0, 1.0, -1.0))
        return (0.81 * out + 0.095 * (record + other)) ** 2 / (0.9 * out + 0.1 * other)

    least = 3.0 * math.log(float(mpmath.quad(ratio, [-40, -1, 0, 1, 40]))) / 2.0
    assert least <= found["upper"] <= 3.0 * math.log1p(0.1 * math.expm1(2.0)) ** 2 / 2.0 * (1.0 + 1e-9)


@pytest.mark.parametrize("sampler", [TruncatedPoisson(0.5, 1, 3, 2), WithoutReplacement(0.9, 2)])
def test_a_record_and_its_ghost_are_in_the_same_batches_and_pure_epsilons_add_up(
    sampler: TruncatedPoisson | WithoutReplacement,
) -> None:
    # given all coins each of two releases moves by one clip, a scale of the noise
    phase = Phase(Laplace(1.0, dimension=1), sampler=sampler)
    found = check(claim_stating(PureDP(2.0), [phase], "zero-out"))
    assert found.verdict == "certified"
    assert found.guarantee is not None
    assert found.guarantee["lower"] <= found.guarantee["upper"] <= 2.0
    swapped = check(claim_stating(PureDP(2.0), [phase], "replace-one"))
    assert swapped.verdict != "certified"


@pytest.mark.parametrize("scale", [0.02, 0.7, 2.0, 1000.0])
@pytest.mark.parametrize("rate", [0.01, 0.3, 0.999])
def test_the_pure_epsilon_of_fixed_sizes_is_met_where_the_others_are_opposed(scale: float, rate: float) -> None:
    with mpmath.workdps(60):
        once, twice = (1 + mpmath.mpf(rate) * mpmath.expm1(clips / mpmath.mpf(scale)) for clips in (1, 2))
        true = float(7 * mpmath.log(twice / once))
    phase = Phase(Laplace(scale, clip_norm=1.0), sampler=WithoutReplacement(rate, 7))
    for factor, wanted in ((0.999, "refuted"), (1.0 + 1e-9, "certified")):
        found = check(claim_stating(PureDP(true * factor), [phase], "zero-out"))
        assert found.verdict == wanted
        if rate == 0.3:
            assert check(Claim(true * factor, 0.0, [phase], "zero-out")).verdict == wanted


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
@pytest.mark.parametrize(("rate", "order"), [(4e-4, 2.0), (0.2, 8.0)])
@pytest.mark.parametrize("mechanism", [Gaussian(0.9), Laplace(0.9, dimension=1)])
def test_renyi_of_batches_of_fixed_size_is_met_where_the_others_are_alike(
    mechanism: Gaussian | Laplace, rate: float, order: float, adjacency: Adjacency
) -> None:
    out = -1.0 if adjacency == "replace-one" else 0.0

    # Gauss-Legendre between multiples of 1/5, where no density has a kink inside
    nodes, weights = np.polynomial.legendre.leggauss(12)
    x = np.add.outer(np.arange(-100, 100) + 0.5, nodes / 2.0).ravel() / 5.0
    weights = np.tile(weights, 200) / 10.0

    def density(centre: float) -> Array:
        z = np.abs(x - centre) / 0.9
        return np.exp(-z) / 1.8 if isinstance(mechanism, Laplace) else np.asarray(norm.pdf(z) / 0.9)

    def power(first: float, second: float, others: float) -> float:
        rest = (1.0 - rate) * density(others)
        p, q = rate * density(first) + rest, rate * density(second) + rest
        # less the terms that integrate to 0 and 1, so that little is lost where the two are nearly equal
        return float(weights @ (q * (np.exp(order * np.log(p / q)) - 1.0 - order * (p - q) / q)))

    ways = [(1.0, out), (out, 1.0)]
    truth = max(math.log1p(power(*way, others)) for way in ways for others in (-1.0, 0.0, 1.0)) / (order - 1.0)
    phase = Phase(mechanism, sampler=WithoutReplacement(rate, 50))
    found = divergence_lower(Claim(0.0, 0.0, [phase], adjacency).canonical("lower"), np.array([order]))[0]
    assert 0.995 * 50 * truth <= found <= 50 * truth * (1.0 + 1e-6)


@pytest.mark.parametrize("phase", [Phase(Gaussian(1.0)), Phase(Laplace(1.0, clip_norm=1.0), 10)])
@pytest.mark.parametrize(
    ("guarantee", "wanted"),
    [
        (ZeroConcentratedDP(1e300), "certified"),
        (ZeroConcentratedDP(5e-324), "refuted"),
        (GaussianDP(1e150), "certified"),
        (GaussianDP(5e-324), "refuted"),
        (RenyiDP(1e100, 1.7e308), "certified"),
        (RenyiDP(1e100, 5e-324), "refuted"),
        (RenyiDP(math.nextafter(1.0, 2.0), 1.7e308), "certified"),
        (RenyiDP(math.nextafter(1.0, 2.0), 5e-324), "refuted"),
        (PrivacyCurve(((1e300, 1e-300),)), "certified"),
        (PrivacyCurve(((1.7e308, 1e-300), (0.0, 0.0))), "refuted"),
        (PureDP(1.7e308), ""),  # enough for Laplace noise alone
        (PureDP(5e-324), "refuted"),
    ],
)
def test_numbers_at_the_ends_of_the_floats_are_decided_without_a_warning(
    guarantee: Guarantee, wanted: str, phase: Phase
) -> None:
    verdict = check(claim_stating(guarantee, [phase]))
    pure = "refuted" if isinstance(phase.mechanism, Gaussian) else "certified"
    assert verdict.verdict == (wanted or pure)
    assert 0.0 <= verdict.epsilon_claimed < math.inf
    assert verdict.gdp_mu is not None


@pytest.mark.parametrize(
    ("beta", "order", "rate", "adjacency"),
    [
        (1.5, 1e8, 1.0, "zero-out"),
        (3.0, 1e100, 1.0, "zero-out"),
        (1.5, 1e100, 0.01, "add-remove"),
        (3.0, 1e8, 0.01, "replace-one"),
        (40.0, 1e8, 0.01, "add-remove"),
        (40.0, 1e100, 0.01, "replace-one"),
    ],
)
def test_huge_orders_of_power_laws_are_decided_without_a_table_of_all_orders_below(
    beta: float, order: float, rate: float, adjacency: Adjacency
) -> None:
    phase = Phase(GeneralizedGaussian(beta, 3.0, dimension=1), 10, rate)
    verdict = check(claim_stating(RenyiDP(order, 2.0), [phase], adjacency))
    assert verdict.verdict == "refuted"
    assert verdict.reason.endswith("more than 2; no upper bound was computed.")
    assert verdict.guarantee is not None
    assert verdict.guarantee["upper"] == math.inf
    unproven = check(claim_stating(RenyiDP(order, 1e300), [phase], adjacency))
    assert unproven.verdict == "certified" or unproven.reason.endswith("of so large an order that floats hold.")
    assert unproven.guarantee is not None
    assert 2.0 < unproven.guarantee["lower"] <= unproven.guarantee["upper"]


def test_a_moment_beyond_the_binomial_sum_is_one_of_a_mixture() -> None:
    phase = Phase(GeneralizedGaussian(1.5, 3.0, dimension=1), 1, 0.01)
    claims = [Claim(0.0, 0.0, [part]) for part in (phase, phase.unsampled)]
    order = np.array([2.0**24])
    sampled, whole = (float(divergence_upper(claim, order)[0]) for claim in claims)
    assert sampled == pytest.approx(whole + math.log(0.01) / (order[0] - 1.0), rel=1e-9)
    assert float(divergence_lower(claims[0], order)[0]) <= sampled


def test_a_rho_and_an_order_beyond_floats_are_refused_as_they_are_written() -> None:
    with pytest.raises(ValueError, match=r"^Expected rho=1e\+308 in \[0, 1e\+300\]\.$"):
        ZeroConcentratedDP(1e308)
    with pytest.raises(ValueError, match=r"^Expected order=1e\+300 in \(1, 1e\+100\]\.$"):
        RenyiDP(1e300, 1.0)


def test_the_order_of_the_points_of_a_curve_does_not_matter() -> None:
    phase = Phase(Product(sigma=9.52, clip=0.5, dimension=2))
    points = ((0.0, 0.08), (8.0, 1e-5))  # of which the first says nothing of how far tails matter
    for order in (points, points[::-1]):
        assert check(claim_stating(PrivacyCurve(order), [phase])).verdict == "certified"
    assert headline(PrivacyCurve(((9.0, 0.0), *points))) == points[1]
    assert headline(PrivacyCurve(((9.0, 0.0),))) == (9.0, 0.0)


@pytest.mark.parametrize(
    ("guarantee", "exact", "sampled"),
    [
        (GaussianDP(2.0), "certified", "undecided"),
        (GaussianDP(0.3), "refuted", "refuted"),
        (ZeroConcentratedDP(0.6), "certified", "undecided"),
        (ZeroConcentratedDP(0.01), "refuted", "refuted"),
        (RenyiDP(2.0, 1e-6), "refuted", "refuted"),
        (RenyiDP(2.0, 1.1), "certified", "undecided"),
        (PureDP(0.5), "refuted", "refuted"),
        (PureDP(50.0), "refuted", "undecided"),
    ],
)
def test_simulation_alone_uses_no_theorem(guarantee: Guarantee, exact: str, sampled: str) -> None:
    """Of normal noise at mu 1: what it shows is at most the truth, and nothing is certified."""
    claim = claim_stating(guarantee, [Phase(Gaussian(1.0))], "add-remove", "a")
    assert check(claim).verdict == exact
    found = check(claim, method="monte-carlo", rng=1)
    assert found.verdict == sampled
    assert found.methods == ["monte-carlo"]
    assert found.guarantee is not None
    assert found.guarantee["upper"] == math.inf
    truth = {"gdp": 1.0, "zcdp": 0.5, "rdp": 1.0, "pure": math.inf}[found.guarantee["kind"]]
    assert found.guarantee["lower"] <= truth
