"""Sampling agrees with closed forms, quadrature and theory's reference values, at stated error rates.

LEVEL is the confidence wherever an interval must contain a known value: each such test fails by chance with
probability at most 1e-6.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.stats import binom

from dpaudit.mechanisms import GammaPLRV, GammaPLRVIID, Gaussian, GeneralizedGaussian, Laplace, Product
from dpaudit.mechanisms.base import Array, Domain, IIDCoordinates
from dpaudit.verify.bounds import gaussian_delta, gaussian_epsilon
from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.lower import certified_lower
from dpaudit.verify.monte_carlo import delta_interval, monte_carlo_lower
from dpaudit.verify.sampling.histories import Direction

LEVEL = 1.0 - 1e-6


def generator(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def limit(trials: int, rate: float) -> int:
    """Errors that a bound with this error rate exceeds with probability at most 1e-6."""
    return int(binom.isf(1e-6, trials, rate))


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 4.0, 6.0, 9.0])
@pytest.mark.parametrize("steps", [1, 7])
def test_gaussian_deltas_down_to_1e_9_and_below(epsilon: float, steps: int) -> None:
    claim = Claim.single(Gaussian(math.sqrt(steps)), epsilon=1.0, delta=1e-5, steps=steps)
    lower, upper = delta_interval(claim, epsilon, rng=generator(11), samples=20_000, confidence=LEVEL)
    assert lower < gaussian_delta(1.0, epsilon) < upper
    assert upper < 1.3 * lower


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 0.9])
def test_laplace_in_one_coordinate(epsilon: float) -> None:
    claim = Claim.single(Laplace(1.0), epsilon=1.0, delta=0.0)
    lower, upper = delta_interval(claim, epsilon, rng=generator(12), samples=20_000, confidence=LEVEL)
    assert lower < -math.expm1((epsilon - 1.0) / 2.0) < upper < 1.3 * lower


@pytest.mark.parametrize(("direction", "epsilon"), [("remove", 0.6), ("remove", 2.0), ("add", 0.4), ("add", 0.8)])
def test_subsampled_gaussian_against_dp_accounting(direction: Direction, epsilon: float) -> None:
    claim = Claim.single(Gaussian(1.0), epsilon=1.0, delta=1e-5, steps=100, sampling_prob=0.03)
    lower, upper = delta_interval(
        claim, epsilon, rng=generator(13), samples=6000, confidence=LEVEL, direction=direction
    )
    bounds = []
    for pessimistic in (False, True):
        whole = pld.from_gaussian_mechanism(
            1.0, sampling_prob=0.03, value_discretization_interval=1e-4, pessimistic_estimate=pessimistic
        ).self_compose(100)
        part = whole._pmf_remove if direction == "remove" else whole._pmf_add
        bounds.append(part.get_delta_for_epsilon(epsilon))
    assert lower < bounds[1]
    assert bounds[0] < upper < 1.5 * lower


@pytest.mark.parametrize(
    ("coordinates", "delta"), [(1, 1e-5), (2, 1.271e-5), (3, 1.455e-5), (4, 1.541e-5), (10, 8.4e-6)]
)
def test_generalized_gaussian_in_a_few_coordinates(coordinates: int, delta: float) -> None:
    """theory's values for beta = 1.5, printed to four digits."""
    mechanism = GeneralizedGaussian(1.5, 2.88777, clip_norm=1.5, dimension=10)
    claim = Claim.single(mechanism, epsilon=1.0, delta=1e-5)
    lower, upper = delta_interval(
        claim, 1.0, rng=generator(14), samples=20_000, confidence=LEVEL, coordinates=coordinates
    )
    assert lower < delta * 1.006
    assert delta * 0.994 < upper < 1.15 * lower


@pytest.mark.parametrize(("beta", "scale", "delta"), [(2.33, 6.9717, 2.0e-3), (3.0, 10.5295, 5.45e-2)])
def test_generalized_gaussian_in_ten_thousand_coordinates(beta: float, scale: float, delta: float) -> None:
    """theory's values, printed to two and three digits."""
    mechanism = GeneralizedGaussian(beta, scale, clip_norm=beta, dimension=10_000)
    claim = Claim.single(mechanism, epsilon=1.0, delta=1e-5)
    lower, upper = delta_interval(claim, 1.0, rng=generator(15), samples=600, confidence=LEVEL, coordinates=10_000)
    assert lower < delta * 1.03
    assert delta * 0.97 < upper < 3.5 * lower


def test_the_spread_shift_of_plrvo_table_13() -> None:
    """theory: 256 equal coordinates of the table's last row cost 1.66 at delta = 1e-5, more than the 1.606 claimed."""
    mechanism = GammaPLRVIID(40_000.0, 6e-5, clip=0.5, dimension=26_000)
    claim = Claim.single(mechanism, epsilon=1.606, delta=1e-5, steps=300, sampling_prob=0.01)
    lower, upper = delta_interval(claim, 1.66, rng=generator(31), samples=400, confidence=0.999, coordinates=256)
    assert lower < 1.1e-5
    assert 0.9e-5 < upper < 4.0 * lower


@pytest.mark.parametrize(("dimension", "k", "delta"), [(100, 1e5, 0.160), (784, 1e3, 0.204)])
def test_product_noise_at_its_printed_calibration(dimension: int, k: float, delta: float) -> None:
    """sigma of product, Theorem 8, at epsilon = 0.1 and unit sensitivity: theory's values, to three digits."""
    power = 4.0 / dimension
    square = 2.0 * k**power * (dimension / 4.0 + 1.5) ** (1.0 + power) / math.exp(1.0 + power / 2.0)
    sigma = math.sqrt(square) / 0.1
    claim = Claim.single(Product(sigma, dimension=dimension), epsilon=0.1, delta=1e-6)
    lower, upper = delta_interval(claim, 0.1, rng=generator(16), samples=200_000, confidence=LEVEL)
    assert lower < delta + 5e-4
    assert delta - 5e-4 < upper < 1.1 * lower


def test_hidden_scale_witness_against_theorem_4_9() -> None:
    """theory: delta(2.804) = 3.8e-5 for the spread shift, k = 3, theta = 0.1, n = 20,000."""
    claim = Claim.single(GammaPLRV(3.0, 0.1, dimension=20_000), epsilon=2.804, delta=1e-5)
    lower, upper = delta_interval(
        claim, 2.804, rng=generator(17), samples=3_000_000, confidence=0.999, coordinates=20_000
    )
    assert 1e-5 < lower < 3.8e-5 < upper < 6e-5


def test_the_interval_misses_as_often_as_it_may() -> None:
    claim, truth, trials = Claim.single(Gaussian(1.0), epsilon=1.0, delta=1e-5), gaussian_delta(1.0, 5.0), 300
    rng, misses = generator(18), 0
    for _ in range(trials):
        lower, upper = delta_interval(claim, 5.0, rng=rng, samples=250, confidence=0.7)
        misses += not lower <= truth <= upper
    assert 0 < misses <= limit(trials, 0.3)


# ---- lower bounds for a claim ----


def replaced(epsilon: float) -> Claim:
    return Claim.single(Gaussian(1.0), epsilon=epsilon, delta=1e-5, adjacency="replace-one")


@pytest.mark.parametrize(
    ("claim", "truth"),
    [
        (Claim.single(Gaussian(1.0), epsilon=4.0, delta=1e-5), gaussian_epsilon(1.0, 1e-5)),
        (Claim.single(Gaussian(1.0), epsilon=4.0, delta=1e-9), gaussian_epsilon(1.0, 1e-9)),
        (replaced(5.0), gaussian_epsilon(2.0, 1e-5)),
        (Claim.single(Gaussian(2.0, clip_norm=math.inf, dimension=9), epsilon=1.0, delta=1e-5), None),
        (Claim.single(Laplace(2.0, clip_norm=1.0), epsilon=0.4, delta=0.0), 0.5),
    ],
    ids=["1e-5", "1e-9", "replace-one", "max-norm", "pure"],
)
def test_epsilon_lower_is_below_the_truth_and_near_it(claim: Claim, truth: float | None) -> None:
    truth = gaussian_epsilon(1.5, 1e-5) if truth is None else truth
    found = monte_carlo_lower(claim, rng=generator(19), samples=20_000, confidence=LEVEL)
    assert 0.97 * truth < found.epsilon_lower <= truth
    assert found.witness.norm <= claim.phases[0].mechanism.clip * (2.0 if claim.adjacency == "replace-one" else 1.0)
    assert found.curve.epsilon(np.array([claim.delta]))[0] == found.epsilon_lower
    assert found.curve.delta(np.array([claim.epsilon]))[0] == found.delta_lower > claim.delta
    assert found.curve.delta(np.array([found.epsilon_lower + 1e-6]))[0] < claim.delta + 1e-15


@pytest.mark.parametrize(
    "claim",
    [
        Claim.single(Gaussian(1.0), epsilon=1.5, delta=1e-5, steps=200, sampling_prob=0.02),
        Claim.single(Laplace(2.0, dimension=1000), epsilon=1.5, delta=1e-5),
        Claim.single(Laplace(2.0, dimension=1000), epsilon=0.5, delta=1e-5, steps=20, sampling_prob=0.1),
        Claim.single(GeneralizedGaussian(3.0, 10.5, clip_norm=3.0, dimension=200), epsilon=1.0, delta=1e-5),
        Claim.single(GammaPLRVIID(4.0, 0.05, dimension=100), epsilon=0.5, delta=1e-5),
        Claim(1.0, 1e-5, [Phase(Gaussian(2.0), 5, 0.3), Phase(Laplace(3.0), 2)]),
    ],
    ids=["dp-sgd", "laplace", "laplace-sampled", "gg", "plrv-iid", "two-phases"],
)
def test_sampling_agrees_with_the_exact_numerics(claim: Claim) -> None:
    """No method that shares a line of numerics: neither may exceed the other's bounds by more than its looseness."""
    exact = float(certified_lower(claim).epsilon(np.array([claim.delta]))[0])
    found = monte_carlo_lower(claim, rng=generator(20), samples=8000, confidence=LEVEL)
    assert 0.93 * exact < found.epsilon_lower < 1.01 * exact
    lower, upper = delta_interval(
        claim, exact, rng=generator(21), samples=8000, confidence=LEVEL, coordinates=found.witness.coordinates,
        direction=found.witness.direction,
    )  # fmt: skip
    assert upper > 0.97 * claim.delta
    assert lower < 1.1 * claim.delta


def test_epsilon_lower_errs_as_often_as_it_may() -> None:
    claim, trials, rng = Claim.single(Gaussian(1.0), epsilon=4.0, delta=1e-5), 200, generator(22)
    found = [monte_carlo_lower(claim, rng=rng, samples=300, confidence=0.6) for _ in range(trials)]
    wrong = [f.epsilon_lower > gaussian_epsilon(1.0, 1e-5) or f.delta_lower > gaussian_delta(1.0, 4.0) for f in found]
    assert 0 < sum(wrong) <= limit(trials, 0.4)


@dataclass(frozen=True)
class Liar:
    """Normal noise that states twice its true privacy loss."""

    name: ClassVar[str] = "liar"
    summary: ClassVar[str] = "a wrong density"
    domains: ClassVar[dict[str, Domain]] = Gaussian.domains
    noise_multiplier: float = 1.0
    clip: float = 1.0
    clip_norm: float = 2.0
    dimension: int | None = 1

    @property
    def structure(self) -> IIDCoordinates:
        return replace(Gaussian(1.0).structure, gaussian_sigma=None)

    def sample(self, rng: np.random.Generator, size: int) -> Array:
        return Gaussian(1.0, dimension=1).sample(rng, size)

    def privacy_loss(self, output: Array, shift: Array) -> Array:
        return 2.0 * Gaussian(1.0).privacy_loss(output, shift)

    def expected_norm(self, order: int) -> float:
        return 1.0


def test_a_hidden_scale_in_a_hundred_million_coordinates() -> None:
    """Some of the coordinates are looked at; what they prove is below what their number lets the whole prove."""
    large, small = (
        Claim.single(GammaPLRV(3.0, 0.1, dimension=n), epsilon=1.0, delta=1e-3) for n in (109_482_240, 2**17)
    )
    found = [monte_carlo_lower(claim, rng=generator(30), samples=4000) for claim in (large, small)]
    assert found[0].epsilon_lower == found[1].epsilon_lower > 0.5
    assert found[0].witness.coordinates <= 2**17


def test_counting_needs_no_true_density_and_weighing_does() -> None:
    claim, truth = Claim.single(Liar(), epsilon=1.0, delta=1e-3), gaussian_epsilon(1.0, 1e-3)
    counted = monte_carlo_lower(claim, rng=generator(23), samples=200_000, confidence=LEVEL, counting=True)
    weighed = monte_carlo_lower(claim, rng=generator(23), samples=20_000, confidence=LEVEL)
    assert 0.5 * truth < counted.epsilon_lower <= truth < weighed.epsilon_lower
    assert counted.delta_lower <= gaussian_delta(1.0, 1.0)
    assert "probability at least" in counted.witness.event


def test_replace_one_with_sampling_is_the_three_point_pair() -> None:
    """delta(0) is the total variation distance q (2 Phi(1) - 1) of (1-q) N(0) + q N(+-1)."""
    claim = Claim.single(Gaussian(1.0), epsilon=0.0, delta=1e-5, sampling_prob=0.3, adjacency="replace-one")
    lower, upper = delta_interval(claim, 0.0, rng=generator(24), samples=60_000, confidence=LEVEL, direction="swap")
    truth = 0.3 * math.erf(1.0 / math.sqrt(2.0))
    assert lower < truth < upper < 1.1 * lower


# ---- repeatability and refusals ----


def test_the_result_does_not_depend_on_the_number_of_processes() -> None:
    claim = Claim.single(Laplace(1.0, dimension=200), epsilon=1.0, delta=1e-5, steps=60, sampling_prob=0.1)
    told: list[int] = []
    settings: dict[str, Any] = {"samples": 4000, "coordinates": 200}
    alone = delta_interval(claim, 1.0, rng=generator(25), progress=told.append, **settings)
    assert delta_interval(claim, 1.0, rng=generator(25), workers=2, **settings) == alone
    assert delta_interval(claim, 1.0, rng=generator(26), **settings) != alone
    assert sum(told) == 4000
    assert len(told) > 3


def test_memory_is_bounded_by_the_chunk() -> None:
    """A million histories of one step arrive in chunks, none above a million floats."""
    told: list[int] = []
    claim = Claim.single(GammaPLRV(3.0, 0.1, dimension=8), epsilon=1.0, delta=1e-5)
    delta_interval(claim, 1.0, rng=generator(27), samples=300_000, progress=told.append)
    assert max(told) * 24 <= 2**20


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"samples": 10}, "samples=10"),
        ({"confidence": 1.0}, "confidence"),
        ({"coordinates": 2}, "coordinates=2"),
        ({"direction": "swap"}, "direction='swap'"),
        ({"workers": 0}, "workers=0"),
    ],
)
def test_bad_settings_are_refused(change: dict[str, Any], message: str) -> None:
    claim = Claim.single(Gaussian(1.0), epsilon=1.0, delta=1e-5)
    with pytest.raises(ValueError, match=message):
        delta_interval(claim, 1.0, rng=generator(28), **{"samples": 1000, **change})


def test_what_has_no_theorem_is_refused() -> None:
    shuffled = Claim(1.0, 1e-5, [Phase(Gaussian(1.0), 1, 0.5, "shuffled")])
    with pytest.raises(ValueError, match="sampling_kind='shuffled'"):
        monte_carlo_lower(shuffled, rng=generator(29))
    with pytest.raises(ValueError, match="dimension"):
        monte_carlo_lower(Claim.single(Product(1.0), epsilon=1.0, delta=1e-5), rng=generator(29))
    with pytest.raises(ValueError, match="epsilon=-1"):
        delta_interval(Claim.single(Gaussian(1.0), epsilon=1.0, delta=0.0), -1.0, rng=generator(29), samples=1000)
