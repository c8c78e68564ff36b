"""The verdict: both bounds together, the reasons, and what the two accountants' times are."""

import copy
import json
import math
import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest

from dpaudit.mechanisms import GammaPLRV, GammaPLRVIID, Gaussian, GeneralizedGaussian, Laplace, Product
from dpaudit.mechanisms.base import Mechanism
from dpaudit.verify import Claim, Phase, Verdict, check
from dpaudit.verify.batch import check_all
from dpaudit.verify.claims import Adjacency
from dpaudit.verify.guarantees import GaussianDP, PrivacyCurve, ZeroConcentratedDP
from dpaudit.verify.implied import claim_stating, implied_delta
from dpaudit.verify.results import up
from dpaudit.verify.samplers import BufferedShuffle, TruncatedPoisson
from dpaudit.verify.upper import upper_curve
from dpaudit.verify.upper.gaussian_pld import analytic_delta


def test_a_little_above_the_truth_is_certified_and_a_little_below_refuted() -> None:
    """Gaussian DP-SGD (1, .01, 1000) at 1e-5: 1.828 by dp-accounting; 2% either way must be decided."""
    names = {
        factor: check(Claim.single(Gaussian(1.0), epsilon=1.8282 * factor, delta=1e-5, steps=1000, sampling_prob=0.01))
        for factor in (0.98, 1.02)
    }
    assert names[0.98].verdict == "refuted"
    assert names[1.02].verdict == "certified"
    for verdict in names.values():
        assert 0.99 * 1.8282 < verdict.epsilon_lower <= 1.8283
        assert 1.8281 <= verdict.epsilon_upper < 1.003 * 1.8282
        assert verdict.confidence == 1.0


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
@pytest.mark.parametrize("rate", [1.0, 0.01])
def test_a_pure_claim_of_a_long_history_is_decided_where_no_float_holds_delta(
    adjacency: Adjacency, rate: float
) -> None:
    """Laplace(1000) under l1, moved by s or from -s to s: far out the densities have the ratio below, 10,000 times."""
    ways = (1, -1) if adjacency == "replace-one" else (1,)
    steps, exact = 10_000, 10_000 * sum(way * math.log1p(rate * math.expm1(way * 1e-3)) for way in ways)
    verdicts = [
        check(
            Claim.single(
                Laplace(1000.0, clip_norm=1.0), epsilon=exact * factor, delta=0.0, steps=steps, sampling_prob=rate,
                adjacency=adjacency,
            )
        )
        for factor in (0.4, 1.0 - 1e-6, 1.0 + 1e-6)
    ]  # fmt: skip
    names = [verdict.verdict for verdict in verdicts]
    assert names == ["refuted", "refuted", "certified"]
    assert verdicts[0].epsilon_lower <= exact * (1 + 1e-12)


@pytest.mark.parametrize("noise", [Gaussian(100.0), GeneralizedGaussian(1.5, 50.0), GeneralizedGaussian(30.0, 9.0)])
def test_no_pure_epsilon_is_enough_for_noise_of_unbounded_loss(noise: Mechanism) -> None:
    """However large it is; of Laplace noise, which is the power 1, some is."""
    for rate in (1.0, 0.1):
        verdict = check(Claim.single(noise, epsilon=400.0, delta=0.0, steps=3, sampling_prob=rate))
        assert verdict.verdict == "refuted"
        assert verdict.epsilon_lower == math.inf
    assert (
        check(Claim.single(GeneralizedGaussian(1.0, 9.0, dimension=1), epsilon=4.0, delta=0.0)).verdict == "certified"
    )


@pytest.mark.parametrize(("sigma", "steps"), [(1.0, 1), (5.0, 7), (40.0, 2000)])
def test_the_bracket_holds_the_exact_curve(sigma: float, steps: int) -> None:
    verdict = check(Claim.single(Gaussian(sigma), epsilon=1.0, delta=1e-5, steps=steps))
    epsilon = np.linspace(0.0, 4.0, 17)
    exact = analytic_delta(math.sqrt(steps) / sigma, epsilon)
    lower, upper = verdict.delta(epsilon)
    assert (lower <= exact).all()
    assert (exact <= upper * (1 + 1e-12)).all()
    assert lower.shape == epsilon.shape
    low, high = verdict.epsilon([[1e-3], [1e-6]])
    assert low.shape == (2, 1)
    assert (low <= high).all()


CLAIMS: list[tuple[Mechanism, int, float, float]] = [
    (Gaussian(1.0), 100, 0.1, 1.0),
    (Laplace(2.0, 1.0, 1.0, 10), 5, 0.3, 0.5),
    (Laplace(3.0, 1.0, 2.0, 500), 5, 0.3, 0.5),
    (Laplace(3.0, 1.0, 1.4, 50), 3, 1.0, 0.5),
    (GammaPLRV(5.0, 0.1, 1.0, 2.0, 300), 3, 0.2, 0.5),
    (GammaPLRVIID(5.0, 0.1, 1.0, 2.0, 300), 3, 0.2, 0.5),
    (GeneralizedGaussian(1.4, 3.0, 1.0, 1.4, 20), 4, 0.5, 0.5),
    (GeneralizedGaussian(3.0, 5.0, 1.0, 2.0, 1), 4, 0.5, 0.5),
]
# both adjacencies of every mechanism, one of each claim where there are several of a mechanism
ADJACENCIES: tuple[tuple[Adjacency, ...], ...] = (
    ("add-remove", "replace-one"), ("add-remove",), ("replace-one",), ("add-remove",), ("add-remove", "replace-one"),
    ("add-remove", "replace-one"), ("replace-one",), ("add-remove",),
)  # fmt: skip
ROWS: list[tuple[Mechanism, int, float, float, Adjacency]] = [
    (*claim, adjacency) for claim, both in zip(CLAIMS, ADJACENCIES, strict=True) for adjacency in both
]
ROWS.append((Product(60.0, 1.0, 2.0, 50), 1, 1.0, 0.2, "replace-one"))  # the other in the tests of every upper bound


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mechanism", "steps", "sampling_prob", "epsilon", "adjacency"), ROWS, ids=lambda v: getattr(v, "name", None)
)
def test_no_witness_contradicts_an_upper_bound(
    mechanism: Mechanism, steps: int, sampling_prob: float, epsilon: float, adjacency: Adjacency
) -> None:
    """The lower bounds share no theorem with the upper ones; along the whole curve they must not cross."""
    claim = Claim.single(
        mechanism, epsilon=epsilon, delta=1e-5, steps=steps, sampling_prob=sampling_prob, adjacency=adjacency
    )
    verdict = check(claim)
    lower, upper = verdict.delta(np.linspace(0.0, 5 * epsilon, 26))
    assert (lower <= upper).all()
    assert (np.diff(lower) <= 1e-15).all()
    assert (np.diff(upper) <= 1e-15).all()
    assert verdict.epsilon_lower <= verdict.epsilon_upper
    assert verdict.delta_lower <= verdict.delta_upper
    if adjacency == "add-remove":
        assert verdict.delta_upper < 1


@pytest.mark.slow
def test_more_noise_and_fewer_steps_cost_less() -> None:
    for cheap, dear in [
        (
            Claim.single(Product(80.0, 1.0, 2.0, 50), epsilon=0.2, delta=1e-5),
            Claim.single(Product(60.0, 1.0, 2.0, 50), epsilon=0.2, delta=1e-5),
        ),
        (
            Claim.single(GammaPLRVIID(5.0, 0.08), epsilon=0.5, delta=1e-5, steps=9),
            Claim.single(GammaPLRVIID(5.0, 0.1), epsilon=0.5, delta=1e-5, steps=10),
        ),
    ]:
        low, high = (upper_curve(claim)(np.array([claim.epsilon]))[0] for claim in (cheap, dear))
        assert low < high < 1


@pytest.mark.slow
def test_reasons_say_what_decided_and_what_the_published_formula_comes_to() -> None:
    certified = check(Claim.single(Gaussian(3.0), epsilon=3.0, delta=1e-5))
    assert certified.verdict == "certified"
    assert "Balle and Wang" in certified.reason
    assert f"at most {up(certified.delta_upper, 4)} at" in certified.reason
    published = Claim.single(
        GammaPLRV(40_000.0, 6e-5, 0.5, 2.0, 26_000), epsilon=1.606, delta=1e-5, steps=300, sampling_prob=0.01,
        accountant="plrvo-theorem-4.9",
    )  # fmt: skip
    refuted = check(published)
    assert refuted.verdict == "refuted"
    assert refuted.published_epsilon == pytest.approx(1.6069, abs=1e-4)
    with pytest.raises(ValueError, match="plrvo-theorem-4\\.9"):
        check(Claim.single(Gaussian(1.0), epsilon=5.0, delta=1e-5, accountant="plrvo-theorem-9"))
    assert refuted.witness is not None
    assert str(refuted.witness.coordinates) in refuted.reason
    assert refuted.witness.norm <= 0.5
    assert refuted.epsilon_lower >= 1.7745
    between = Claim.single(GammaPLRVIID(5.0, 0.1, 1.0, 2.0, 300), epsilon=1.1, delta=1e-5, steps=3, sampling_prob=0.2)
    undecided = check(between)
    assert undecided.verdict == "undecided"
    assert "witness stronger" in undecided.reason
    assert any("sum of clipped contributions" in text for text in undecided.assumptions)
    assert any("samples every record independently" in text for text in undecided.assumptions)


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        (Claim(1.0, 1e-5, [Phase(Gaussian(1.0), 3, 0.1, "shuffled")]), "kind='shuffled'"),
        (Claim.single(Gaussian(1.0, 1.0, 4.0), epsilon=1.0, delta=1e-5), "dimension"),
    ],
)
def test_what_no_theorem_covers_is_never_certified(claim: Claim, words: str) -> None:
    verdict = check(claim)
    assert verdict.verdict != "certified"
    assert math.isinf(verdict.epsilon_upper)
    if verdict.verdict == "undecided":
        assert words in verdict.reason


@pytest.mark.parametrize("kind", ["shuffled", "buffered-shuffle"])
def test_a_rate_of_other_batches_than_poisson_ones_is_not_said_to_be_drawn_independently(kind: str) -> None:
    words = "samples every record independently"
    other = Phase(Gaussian(1.0), 3, 0.1, kind)
    assert not any(words in text for text in check(Claim(1.0, 1e-5, [other])).assumptions)
    assert any(words in text for text in check(Claim(1.0, 1e-5, [other, Phase(Gaussian(1.0), 3, 0.1)])).assumptions)


def test_arguments_are_refused_by_name() -> None:
    claim = Claim.single(Gaussian(1.0), epsilon=1.0, delta=1e-5)
    with pytest.raises(ValueError, match=r"method='monte' to be one of 'exact'"):
        check(claim, method="monte")
    with pytest.raises(ValueError, match=r"confidence=1.5 in \(0, 1\)"):
        check(claim, confidence=1.5)
    with pytest.raises(TypeError, match=r"confidence='high' to be a number in \(0, 1\)"):
        check(claim, confidence="high")  # type: ignore[arg-type]
    verdict = check(claim)
    with pytest.raises(ValueError, match="epsilon in"):
        verdict.delta([-1.0])
    with pytest.raises(ValueError, match="delta in"):
        verdict.epsilon([1.0])


@pytest.mark.parametrize("epsilon", [4.37745, 4.3765, 4.3755001])
def test_a_reason_speaks_of_the_epsilon_that_was_claimed(epsilon: float) -> None:
    """At 4.377, as 4.37745 was printed, delta is 1.0008e-5, and not at most 9.989e-06."""
    claim = Claim.single(Gaussian(1.0), epsilon=epsilon, delta=1e-5)
    assert f"at epsilon={epsilon}," in check(claim).reason


def test_an_id_may_be_a_word_for_infinity() -> None:
    verdict = check(Claim.single(Gaussian(1.0), epsilon=5.0, delta=1e-5, id="inf"))
    assert Verdict.from_dict(json.loads(json.dumps(verdict.to_dict()))) == verdict


def test_a_verdict_survives_json() -> None:
    verdict = check(Claim.single(Laplace(1.0, 1.0, 1.0), epsilon=1.0, delta=0.0, id="pure"))
    assert verdict.verdict == "certified"
    assert verdict.methods[0] == "pure"
    assert Verdict.from_dict(json.loads(json.dumps(verdict.to_dict()))) == verdict


def test_bounds_that_cross_decide_nothing_and_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One of the two is wrong, which is our fault: no crash, no verdict, exit status 4."""
    from dpaudit.audit.claims_run import run_claims
    from dpaudit.verify import checking
    from dpaudit.verify.curves import Curve

    def zeros(x: np.ndarray) -> np.ndarray:
        return np.zeros(len(x))

    monkeypatch.setattr(checking, "upper_curves", lambda claim: [Curve("upper", "wrong", "no theorem", zeros, zeros)])
    verdict = check(Claim.single(Gaussian(1.0), epsilon=1.0, delta=1e-5))
    assert verdict.verdict == "undecided"
    assert verdict.methods[-1] == checking.DISAGREEMENT
    assert verdict.reason.startswith("Two bounds disagree, please report: ")
    assert "by no theorem" in verdict.reason
    claims = tmp_path / "claims.toml"
    claims.write_text(
        '[[claim]]\nid = "a"\nepsilon = 1.0\ndelta = 1e-5\nmechanism = {name = "gaussian", noise_multiplier = 1.0}\n'
    )
    status = run_claims(
        [claims], only=None, method="exact", require=None, form="text", json_file=None, seed=0, out=None,
        stage=lambda what, total: lambda done: None, show=lambda text: None,
    )  # fmt: skip
    assert status == 4


def test_epsilons_that_cross_alone_decide_nothing_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim below the truth was refuted by its epsilon, beside an upper bound on it that contradicts that."""
    from dpaudit.verify import checking
    from dpaudit.verify.curves import Curve

    false = Curve("upper", "wrong", "no theorem", lambda at: np.ones(len(at)), lambda at: np.full(len(at), 0.5))
    monkeypatch.setattr(checking, "upper_curves", lambda claim: [false])
    verdict = check(Claim.single(Gaussian(1.0), epsilon=1.0, delta=1e-5))
    assert verdict.verdict == "undecided"
    assert verdict.methods[-1] == checking.DISAGREEMENT
    assert "epsilon at least 4.3" in verdict.reason


@pytest.mark.parametrize("delta", [0.126, 0.128])
def test_a_sampled_bound_above_a_proven_one_is_left_out(monkeypatch: pytest.MonkeyPatch, delta: float) -> None:
    """It is one of the few that are wrong: the claim was `undecided` by it, in a bracket that crosses."""
    from dpaudit.verify import monte_carlo
    from dpaudit.verify.curves import Curve

    wrong = Curve("lower", "monte-carlo", "none", lambda at: np.full(len(at), 0.2), lambda at: np.full(len(at), 3.0))
    monkeypatch.setattr(monte_carlo, "monte_carlo_lower", lambda *_, **__: wrong)
    claim = Claim.single(Gaussian(1.0), epsilon=1.0, delta=delta)  # the truth is .126937
    exact, both = check(claim), check(claim, method="both", rng=0)
    assert (both.verdict, both.confidence) == (exact.verdict, 1.0)
    assert both.delta_lower <= both.delta_upper
    assert check(claim, method="monte-carlo", rng=0).delta_lower == 0.2


def test_nor_is_one_that_contradicts_a_guarantee_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its delta is right where the claim's epsilon is, and far too large where that epsilon is not."""
    from dpaudit.verify import checking
    from dpaudit.verify.curves import Curve

    wrong = Curve("lower", "monte-carlo", "none", lambda at: np.where(at > 30.0, 0.01, 0.0), np.zeros_like)
    monkeypatch.setattr(checking, "_lower_by_sampling", lambda *_: wrong)
    claim = claim_stating(GaussianDP(1.05), [Phase(Gaussian(1.0))])
    exact, both = check(claim), check(claim, method="both", rng=0)
    assert (both.verdict, both.confidence, both.guarantee) == (exact.verdict, 1.0, exact.guarantee)


def lomax_delta(k: float, theta: float, epsilon: float) -> float:
    """delta of noise of density (k theta/2) (1 + theta |x|)^-(k+1) moved by 1: the loss is large on one interval."""
    r = math.exp(epsilon / (k + 1))
    left, right = (r - 1 + r * theta) / (theta * (1 + r)), (1 - r + r * theta) / (theta * (r - 1))

    def cdf(x: float) -> float:
        return 1 - (1 + theta * x) ** -k / 2 if x > 0 else (1 - theta * x) ** -k / 2

    return cdf(right - 1) - cdf(left - 1) - math.exp(epsilon) * (cdf(right) - cdf(left))


@pytest.mark.parametrize("k", [*(pytest.param(k, marks=pytest.mark.slow) for k in (0.01, 0.0571, 0.1)), 0.14])
def test_heavy_tails_beyond_the_range_of_floats(k: float) -> None:
    """A quantile of 1e-9 is infinite in floats here; the values agree with 30 digits to all of the interval's ten."""
    claim = Claim.single(GammaPLRVIID(k, 0.567, dimension=1), epsilon=0.447, delta=1e-5)
    verdict, truth = check(claim), lomax_delta(k, 0.567, 0.447)
    assert truth * 0.999 <= verdict.delta_lower <= truth * (1 + 1e-9)
    assert truth * (1 - 1e-9) <= verdict.delta_upper <= 1.5 * truth
    assert verdict.verdict == ("refuted" if truth > 1e-5 else "certified")


@pytest.mark.parametrize(
    "mechanism",
    [
        Gaussian(1e-300), Gaussian(1e300), Product(1e-200, dimension=4), GammaPLRV(0.01, 1.0, dimension=100),
        Laplace(1e-200), GeneralizedGaussian(1.954, 5.3e-82), Laplace(5e-310, 5e-310, 2.0, 4), Gaussian(1.0, 1.7e308),
        GammaPLRVIID(3.0, 1e308, 1e-323, 2.0, 2), GeneralizedGaussian(1.5, 1e308, 1e308, math.inf, 3),
    ],
)  # fmt: skip
def test_noise_out_of_the_range_of_floats_is_named_not_computed(mechanism: Mechanism) -> None:
    verdict = check(Claim.single(mechanism, epsilon=1.0, delta=1e-5, steps=3, sampling_prob=0.1))
    assert verdict.verdict == "undecided"
    assert "out of reach of floating point" in verdict.reason
    assert (verdict.epsilon_lower, verdict.epsilon_upper) == (0.0, math.inf)


def test_sampling_alone_refutes_what_the_numerics_refute_and_certifies_nothing() -> None:
    low, high = (Claim.single(Gaussian(1 / 0.6), epsilon=epsilon, delta=1e-5) for epsilon in (2.0, 2.6))
    refuted = check(low, method="monte-carlo", rng=1)
    assert (refuted.verdict, refuted.confidence) == ("refuted", 0.95)
    assert refuted.epsilon_lower <= 2.44493
    assert check(high, method="monte-carlo", rng=1).verdict == "undecided"
    assert check(high, method="both", rng=1).verdict == "certified"


@pytest.mark.parametrize("method", ["monte-carlo", "both"])
def test_sampling_needs_a_seed(method: str) -> None:
    with pytest.raises(TypeError, match="rng=None to be a generator or a seed"):
        check(Claim.single(Gaussian(1.0), epsilon=1.0, delta=1e-5), method=method)


@pytest.mark.parametrize("steps", [1, 100])
def test_a_verdict_comes_back_from_another_process(steps: int) -> None:
    """As of multiprocessing's `Pool.map(check, claims)`; the curves stay behind, a copy keeps them."""
    verdict = check(Claim.single(Gaussian(1.0), epsilon=2.0, delta=1e-5, steps=steps, sampling_prob=1 / steps))
    back = pickle.loads(pickle.dumps(verdict))
    assert back == verdict
    assert back.to_dict() == verdict.to_dict()
    assert copy.deepcopy(verdict).delta(1.0) == verdict.delta(1.0)
    with pytest.raises(ValueError, match="holds no curves"):
        back.delta(1.0)


def test_verdicts_on_a_file_of_claims_keep_no_curves() -> None:
    """17 MB each for sampled noise: a thousand claims would fill a machine."""
    claim = Claim.single(Gaussian(1.0), epsilon=2.0, delta=1e-5, steps=100, sampling_prob=0.01, id="a")
    [verdict] = check_all([claim], check, lambda done: None)
    assert verdict.delta_curve is verdict.epsilon_curve is verdict.delta_upper_curve is None
    assert {**verdict.to_dict(), "seconds": 0} == {**check(claim).to_dict(), "seconds": 0}


@pytest.mark.parametrize(
    "noise",
    [Product(1.0, dimension=3), GammaPLRV(3.0, 0.1, dimension=60), GammaPLRVIID(3.0, 0.1, dimension=60), Laplace(1.0)],
)
def test_an_epsilon_near_the_end_of_the_floats_is_decided_without_a_warning(noise: Mechanism) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = check(Claim.single(noise, epsilon=1.7e308, delta=1e-5, steps=10, sampling_prob=0.1))
    assert found.verdict == "certified"


@pytest.mark.parametrize(("epsilon", "noise"), [(100.0, 5.0), (20.0, 3.0), (700.0, 0.3)])
def test_a_pure_claim_of_unbounded_loss_names_no_event_that_does_not_contradict_it(
    epsilon: float, noise: float
) -> None:
    verdict = check(Claim.single(Gaussian(noise), epsilon=epsilon, delta=0.0))
    assert (verdict.verdict, verdict.epsilon_lower) == ("refuted", math.inf)
    assert verdict.witness is not None
    assert verdict.witness.event.startswith("privacy loss of the history larger than any epsilon")


def test_of_batches_that_are_cut_the_larger_data_set_is_counted() -> None:
    """{-1, -1} against {-1, -1, +1}, rate .9, batches cut to 2: delta .2025 at epsilon 1 by enumeration."""
    noise = Gaussian(1.0)
    small, large = (
        check(Claim(1.0, 1e-5, [Phase(noise, sampler=TruncatedPoisson(0.9, 2, records, 1))])) for records in (2, 3)
    )
    assert small.delta_upper < 0.2025 < large.delta_upper
    assert all("records counts the larger of the two data sets" in " ".join(v.assumptions) for v in (small, large))
    ghost = check(Claim(1.0, 1e-5, [Phase(noise, sampler=TruncatedPoisson(0.9, 2, 3, 1))], "zero-out"))
    assert "records counts" not in " ".join(ghost.assumptions)


def test_what_a_certified_rho_implies_is_certified_too() -> None:
    """In so many dimensions no other theorem has a bound for a stream of this noise."""
    stream = BufferedShuffle(60, 10, 20, releases=12)
    phases = [Phase(GammaPLRVIID(3.0, 1 / 15, 1.0, 2.0, 100_000), sampler=stream)]
    rho = ZeroConcentratedDP(0.3201)
    assert check(claim_stating(rho, phases, "zero-out")).verdict == "certified"
    verdict = check(Claim(4.5, 1e-5, phases, "zero-out"))
    assert verdict.verdict == "certified"
    assert verdict.delta_upper <= implied_delta(rho)(np.array([4.5]))[0]


def test_points_that_hold_alone_hold_together() -> None:
    sampler = TruncatedPoisson(0.1, 25, 100, 5)
    phases = [Phase(GammaPLRVIID(2000.0, 1e-4, 1.0, 3.0, 1000), sampler=sampler)]
    points = ((1.38276, 1e-3), (9.0, 1e-7))
    for some in (points[:1], points[1:], points):
        assert check(claim_stating(PrivacyCurve(some), phases)).verdict == "certified"
