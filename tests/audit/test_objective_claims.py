"""The bound for perturbed objectives, against the exact hockey-stick divergence in one dimension, by quadrature."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dpaudit.audit.inputs.recipes import Recipe
from dpaudit.audit.runner import check_recipe
from dpaudit.mechanisms import Gaussian
from dpaudit.mechanisms.learning.approximate_minima import LOSSES
from dpaudit.verify import Claim, Phase, check
from dpaudit.verify.claims import Adjacency
from dpaudit.verify.implied import operating_points
from dpaudit.verify.perturbed_objective import check_perturbed_objective
from dpaudit.verify.results import Verdict

Array = NDArray[np.float64]
LAMBDA, GAMMA = 2.0, 0.05
EPSILONS = np.array([0.7, 1.0, 1.5, 2.5])


def recipe(loss: str, adjacency: str, second: float, mechanism: dict[str, object] | None = None) -> Recipe:
    return Recipe.from_dict(
        {
            "algorithm": "approximate-minima", "regularization": LAMBDA, "gradient_norm": GAMMA, "loss": loss,
            "dataset": {"name": "digits", "classes": [0, 1]}, "architecture": {"name": "logistic"},
            "mechanism": mechanism or {"name": "gaussian", "noise_multiplier": 1.5, "dimension": 1},
            "output_mechanism": {"name": "gaussian", "noise_multiplier": second, "clip": 2 * GAMMA / LAMBDA,
                                 "dimension": 1},
            "claim": {"epsilon": 1.0, "delta": 1e-3, "adjacency": adjacency},
        }
    )  # fmt: skip


def log_density(loss: str, records: Array, w: Array) -> Array:
    """Of the perturbed minimum at w, records being signed numbers in [-1, 1]."""
    own, margins = LOSSES[loss], np.outer(w, records)
    b = own.descent(margins) @ records - LAMBDA * w
    return np.asarray(stats.norm.logpdf(b, scale=1.5) + np.log(own.curvature(margins) @ records**2 + LAMBDA))


def gaussian_delta(epsilon: Array, mu: float) -> Array:
    """Balle and Wang (2018), Theorem 8, at any real epsilon."""
    tail = np.exp(np.minimum(epsilon + stats.norm.logcdf(-mu / 2 - epsilon / mu), 0.0))
    return np.maximum(stats.norm.cdf(mu / 2 - epsilon / mu) - tail, 0.0)


def exact_delta(loss: str, p: Array, q: Array, mu: float) -> Array:
    """E over w ~ P of the second release's delta at epsilon - log p/q: both releases seen, errors opposite.

    Gauss-Legendre between the kinks of the Huber loss, 60 nodes on each of at least 40 pieces.
    """
    span = 8.0 * (1.5 + len(p)) / LAMBDA
    ends = {end / x for x in (*p, *q) if x for end in (0.9, 1.1)}
    kinks = sorted({end for end in ends if abs(end) < span} | set(np.linspace(-span, span, 41)))
    nodes, weights = np.polynomial.legendre.leggauss(60)
    low, high = np.array(kinks[:-1])[:, None], np.array(kinks[1:])[:, None]
    w, area = ((low + high + (high - low) * nodes) / 2).ravel(), ((high - low) * weights / 2).ravel()
    log_p, log_q = log_density(loss, p, w), log_density(loss, q, w)
    mass = np.exp(log_p) * area
    assert mass.sum() == pytest.approx(1.0, abs=1e-8)
    return np.array([float(mass @ gaussian_delta(epsilon - (log_p - log_q), mu)) for epsilon in EPSILONS])


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
@pytest.mark.parametrize("loss", ["logistic", "huber"])
@pytest.mark.parametrize("second", [40.0, 3.0])
def test_the_bound_is_above_the_exact_divergence_and_not_far(loss: str, adjacency: str, second: float) -> None:
    verdict = check_recipe(recipe(loss, adjacency, second))
    rng, nearest = np.random.default_rng(5), 0.0
    shift = 2.0 * GAMMA / LAMBDA  # of two approximate minima
    mu = shift / (second * 2 * GAMMA / LAMBDA)
    upper = verdict.delta(EPSILONS)[1]
    np.testing.assert_array_equal(verdict.delta_at_most(EPSILONS), upper)
    for trial in range(12):
        others = rng.uniform(-1, 1, int(rng.integers(0, 6))) if trial else np.full(40, -1.0)
        with_one = np.append(others, rng.choice([-1.0, 1.0]) if trial else 1.0)
        without = others if adjacency == "add-remove" else np.append(others, -with_one[-1])
        for p, q in ((with_one, without), (without, with_one)):
            true = exact_delta(loss, p, q, mu)
            assert (true <= upper * (1 + 1e-6)).all()
            nearest = max(nearest, float((true / upper).max()))
    assert nearest > 0.02  # loose by the factors of the proof, not by orders of magnitude


def test_the_verdict_certifies_or_leaves_open_and_never_refutes() -> None:
    certified = check_recipe(recipe("logistic", "add-remove", 40.0))
    assert certified.verdict == "undecided"
    bound = certified.epsilon_upper
    for epsilon, name in ((1.01 * bound, "certified"), (0.99 * bound, "undecided"), (0.01, "undecided")):
        data = recipe("logistic", "add-remove", 40.0).to_dict()
        data["claim"]["epsilon"] = epsilon
        verdict = check_recipe(Recipe.from_dict(data))
        assert (verdict.verdict, verdict.epsilon_lower, verdict.witness) == (name, 0.0, None)
        assert Verdict.from_dict(verdict.to_dict()).to_dict() == verdict.to_dict()
        assert verdict.delta([0.0, np.inf])[1].tolist() == [1.0, 0.0]
        assert float(verdict.epsilon(verdict.delta_upper)[1]) <= epsilon * (1 + 1e-6) or verdict.delta_upper == 1


def test_a_density_that_is_not_quasi_concave_gets_no_bound() -> None:
    mechanism = {"name": "gamma-plrv-iid", "k": 50.0, "theta": 0.01, "dimension": 64}
    data = recipe("logistic", "add-remove", 40.0).to_dict()
    data["mechanism"], data["output_mechanism"]["dimension"] = mechanism, 64
    verdict = check_recipe(Recipe.from_dict(data))
    assert (verdict.verdict, verdict.delta_upper, verdict.epsilon_upper) == ("undecided", 1.0, np.inf)


def test_other_algorithms_get_the_check_of_their_history() -> None:
    data = recipe("logistic", "add-remove", 40.0).to_dict()
    kept = {key: data[key] for key in ("regularization", "dataset", "architecture", "mechanism", "claim")}
    output = Recipe.from_dict({**kept, "algorithm": "output-perturbation"})
    assert check_recipe(output).verdict == "refuted"


def test_a_record_that_is_zeroed_is_bounded_as_one_that_is_removed() -> None:
    """Features of 0 have no gradient and no curvature, whatever the label."""
    phases = [Phase(Gaussian(1.5, dimension=1)), Phase(Gaussian(1.0, dimension=1))]
    removed, zeroed = (
        check_perturbed_objective(Claim(2.0, 1e-3, phases, adjacency), jacobian=0.4)
        for adjacency in ("add-remove", "zero-out")
    )
    assert removed.delta_upper < 1
    assert (zeroed.verdict, zeroed.delta_upper) == (removed.verdict, removed.delta_upper)


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
@pytest.mark.parametrize("jacobian", [0.0, 0.5])
def test_what_is_left_to_an_attack_follows_from_the_bound_itself(adjacency: Adjacency, jacobian: float) -> None:
    """And not from that of plain noise, which is less."""
    claim = Claim(3.0, 1e-5, [Phase(Gaussian(4.0)), Phase(Gaussian(4.0))], adjacency)
    verdict = check_perturbed_objective(claim, jacobian=jacobian)
    found, own = verdict.tpr_at_fpr, operating_points(verdict.delta_at_most)
    assert found is not None
    assert found == pytest.approx(own.tpr_at_fpr, rel=1e-3)
    assert verdict.gdp_mu == pytest.approx(own.gdp_mu, rel=1e-3)
    plain = check(claim).tpr_at_fpr
    assert plain is not None
    assert all(found[rate] > plain[rate] for rate in plain)
    assert (verdict.gdp_mu == np.inf) == (verdict.delta_at_most(0.0) == 1)  # nothing is proved of an epsilon of 0
