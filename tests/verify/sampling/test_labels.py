"""Counts of labelled coordinates: masses, normaliser, law and weights, and what they prove at the boundary."""

import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom, ks_2samp

from dpaudit.mechanisms import GammaPLRVIID, GeneralizedGaussian, Laplace
from dpaudit.mechanisms.base import Array, IIDCoordinates, with_dimension
from dpaudit.verify.claims import Claim
from dpaudit.verify.sampling.labels import LabelSum, label_sum
from dpaudit.verify.sampling.pilots import draw_level, weighing_pilot
from dpaudit.verify.sampling.proposals import TiltedStep, proposal_at
from dpaudit.verify.sampling.sums import CellSum, tilted_sum

NOISES: list[Any] = [
    Laplace(0.8),
    Laplace(30.0),
    GeneralizedGaussian(1.5, 1.2),
    GeneralizedGaussian(4.0, 15.9),
    GammaPLRVIID(0.5, 1.0),
    GammaPLRVIID(40_000.0, 6e-5),
]


def labels(noise: Any, shift: float, coordinates: int = 1) -> LabelSum:
    found = label_sum(noise.structure, shift, coordinates)
    assert found is not None
    return found


@pytest.mark.parametrize("noise", NOISES, ids=str)
@pytest.mark.parametrize("order", [-1.0, 0.4, 2.0, 5.0])
def test_labels_have_nearly_the_moments_of_the_coordinate_and_never_larger_ones(noise: Any, order: float) -> None:
    """Against cells four thousand times as many, whose moments lie above the true ones: data processing between."""
    shift = 0.1 * float(noise.structure.ppf(np.array(0.75)))
    whole = tilted_sum(noise, 1, shift)
    if isinstance(noise, Laplace):
        fine = whole.log_moments(np.array([order]))[0]  # type: ignore[union-attr]
    else:
        assert isinstance(whole, CellSum)
        # the middles of the cells in place of their largest values
        middle = LabelSum(np.log(np.abs(np.diff(whole.tails))), 0.5 * (whole.low + whole.high), 1)
        fine = middle.log_moments(np.array([order]))[0]
    few = labels(noise, shift).log_moments(np.array([order]))[0]
    sign = 1.0 if order < 0.0 or order > 1.0 else -1.0
    assert 0.98 * sign * fine < sign * few < sign * fine + 1e-6 * abs(fine) + 1e-12


@pytest.mark.parametrize("noise", NOISES, ids=str)
def test_masses_are_rounded_down_and_hardly(noise: Any) -> None:
    """Both laws of a coordinate's label, as far as they are drawn from, have total mass just below 1."""
    shift = 0.1 * float(noise.structure.ppf(np.array(0.75)))
    without, moved = np.exp(labels(noise, shift).log_moments(np.array([0.0, 1.0])))
    assert 1.0 - 1e-10 < without < 1.0
    assert 1.0 - 1e-10 < moved < 1.0


def test_laws_that_hardly_meet_have_no_labels() -> None:
    assert label_sum(Laplace(1e-6).structure, 1.0, 100) is None


def labelled(law: IIDCoordinates, found: LabelSum, outputs: Array, shift: float) -> Array:
    """Losses of the labels of drawn coordinates: every coordinate's cell is told by its share of the mass below it."""
    ends = np.cumsum(np.exp(found.log_masses))[:-1]
    return np.asarray(found.losses[np.searchsorted(ends, law.cdf(outputs))].sum(axis=1))


@pytest.mark.parametrize("noise", [GeneralizedGaussian(3.0, 10.5), GammaPLRVIID(9.0, 0.2), Laplace(2.0)], ids=str)
def test_counts_have_the_law_of_labels_of_drawn_noise(noise: Any) -> None:
    """Two-sample Kolmogorov-Smirnov, with and without the shift; 1e-6 each. Losses take few values, hence digits."""
    m, shift, rng, size = 120, 0.3, np.random.default_rng(1), 4000
    found = labels(noise, shift, m)
    for order in (0.0, 1.0):
        outputs = with_dimension(noise, m).sample(rng, size) + order * shift
        drawn, _ = found.draw(rng, np.full(size, order))
        whole = labelled(noise.structure, found, outputs, shift)
        assert ks_2samp(drawn.round(9), whole.round(9)).pvalue > 1e-6
        assert ks_2samp(1.3 * drawn.round(9), whole.round(9)).pvalue < 1e-6


def test_tilted_counts_have_the_tilted_mean_and_orders_keep_their_rows() -> None:
    found, rng = labels(Laplace(2.0), 0.07, 200), np.random.default_rng(2)
    orders = rng.choice([-1.5, 0.0, 1.0, 3.0], 80_000)
    loss, bound = found.draw(rng, orders)
    assert (loss == bound).all()
    for order in (-1.5, 0.0, 1.0, 3.0):
        part = loss[orders == order]
        rise = np.diff(found.log_moments(np.array([order - 1e-4, order + 1e-4])))[0] / 2e-4
        assert abs(part.mean() - rise) < 5 * part.std() / math.sqrt(len(part)) + 1e-6


# ---- error rates, where the truth is a binomial sum ----

SIGNS, CHANCE, RATE = 100, 0.53, 0.2  # signs of so many coordinates; how often one is positive; the record's chance


def sign_steps() -> tuple[TiltedStep, ...]:
    """Two sampled steps in which all that is left of each coordinate is its sign."""
    masses = np.log([CHANCE, 1.0 - CHANCE])
    return (TiltedStep(LabelSum(masses, masses[::-1] - masses, SIGNS), RATE, 2, mixes=True),)


def sign_delta(epsilon: float) -> float:
    """delta of the two steps, summed over both numbers of positive signs."""
    positive = np.arange(SIGNS + 1)
    still = binom.pmf(positive, SIGNS, 1.0 - CHANCE)
    first = (1.0 - RATE) * still + RATE * binom.pmf(positive, SIGNS, CHANCE)
    return float(np.maximum(np.outer(first, first) - math.exp(epsilon) * np.outer(still, still), 0.0).sum())


def refuted(epsilon: float, delta: float, runs: int, tail: float, samples: int) -> int:
    """How many runs refute the claim, each with a pilot and fresh draws of its own."""
    claim, steps, rng = Claim.single(Laplace(1.0), epsilon=epsilon, delta=delta), sign_steps(), np.random.default_rng(3)
    count = 0
    for _ in range(runs):
        _, outcome = weighing_pilot((), "remove", steps, claim, rng, pilot=samples // 4, final=samples)
        found = outcome(rng, tail)
        count += found.delta(epsilon) > delta or found.epsilon(delta) > epsilon
    return count


@pytest.mark.slow
@pytest.mark.parametrize(("tail", "runs"), [(0.05, 100), (0.4, 40)])
def test_a_claim_that_is_just_true_is_refuted_no_more_often_than_stated(tail: float, runs: int) -> None:
    """More than so many have probability at most 1e-4: 15% of the runs at 5%, two thirds of them at 40%."""
    wrong = refuted(1.5, sign_delta(1.5) * (1.0 + 1e-9), runs, tail, 800)
    assert wrong <= int(binom.isf(1e-4, runs, tail))
    assert wrong > 0 or tail < 0.1  # bounds that never err at 40% would be far too wide


@pytest.mark.slow
def test_a_claim_that_is_false_by_a_tenth_is_refuted_nearly_always() -> None:
    assert refuted(1.35, sign_delta(1.5), 20, 0.05, 4000) >= 19


def test_the_mean_of_the_weighted_excess_is_delta() -> None:
    """Under every tilt; five standard errors, which the draws keep small enough to see 15%."""
    for theta, epsilon in ((0.0, 0.5), (1.0, 0.5), (2.0, 1.0), (3.0, 1.5)):
        draws = draw_level(proposal_at(sign_steps(), theta), np.random.default_rng(4), 60_000)
        values = np.zeros(draws.size)
        found = draws.at(epsilon)
        values[: len(found)] = found
        error = values.std() / math.sqrt(draws.size)
        assert abs(values.mean() - sign_delta(epsilon)) < 5 * error
        assert error < 0.03 * sign_delta(epsilon)
