"""Moments of batches of fixed size of normal noise, against plain sums over a fine grid."""

import itertools

import numpy as np
import pytest
from scipy.stats import norm

from dpaudit.mechanisms import Gaussian
from dpaudit.mechanisms.base import Array
from dpaudit.verify.claims import Adjacency, Claim, Phase
from dpaudit.verify.lower.divergences import divergence_lower
from dpaudit.verify.renyi import divergence_upper
from dpaudit.verify.samplers import WithoutReplacement
from dpaudit.verify.upper.half_line_moments import half_moments
from dpaudit.verify.upper.sampled_normal import halves

STEP = 1e-4
X = np.arange(-12.0, 25.0, STEP)  # in units of sigma
LAWS: dict[Adjacency, tuple[tuple[float, ...], ...]] = {  # centres of rate 1 - g and g, of both laws of each pair
    "zero-out": ((0, 2, 0, 1), (0, 1, 0, 0)),
    "replace-one": ((0, 2, 0, 0), (0, 2, 0, 0)),
}


def psi(ratio: Array, order: float) -> Array:
    return np.asarray(ratio**order - 1.0 - order * (ratio - 1.0))


def moment(sigma: float, rate: float, order: float, adjacency: Adjacency) -> float:
    """The larger of both orders: what one pair has above a ratio of 1, and the mirror image of the other below it."""

    def pair(a: float, b: float, c: float, d: float) -> tuple[Array, Array]:
        mixed = [(1 - rate) * norm.pdf(X, s / sigma) + rate * norm.pdf(X, t / sigma) for s, t in ((a, b), (c, d))]
        return mixed[0], mixed[1]

    def above(first: Array, second: Array) -> float:
        seen = (first > second) & (second > 1e-290)
        return STEP * float((second * psi(np.where(seen, first / np.maximum(second, 1e-300), 1.0), order)).sum())

    def below(first: Array, second: Array) -> float:
        ratio = np.where(first > second, second / np.maximum(first, 1e-300), 1.0)
        return STEP * float((first * psi(ratio, order)).sum())

    one, other = (pair(*centres) for centres in LAWS[adjacency])
    return float(np.log1p(max(above(*one) + below(*other), above(*other) + below(*one))))


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
@pytest.mark.parametrize(
    ("sigma", "rate", "order"),
    [(0.9, 4e-4, 2.0), (0.9, 0.2, 1.3), (3.0, 0.2, 8.0), (3.0, 0.7, 20.0), (20.0, 0.05, 3.0)],
)
def test_moments_are_those_of_the_worst_losses(sigma: float, rate: float, order: float, adjacency: Adjacency) -> None:
    phase = Phase(Gaussian(sigma), sampler=WithoutReplacement(rate, 1))
    known = halves(phase, "replace-one" if adjacency == "replace-one" else "add-remove")
    assert known is not None
    found, exact = half_moments(known, np.array([order - 1.0]))[0], moment(sigma, rate, order, adjacency)
    assert exact * (1.0 - 1e-9) <= found <= 1.005 * exact


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_no_lower_bound_is_above_at_rates_shifts_and_orders_of_any_size(adjacency: Adjacency) -> None:
    orders = np.array([1.001, 7.0, 1e5])
    for sigma, rate in itertools.product((0.01, 2.0, 1e5), (1e-12, 0.03, 1.0 - 1e-9)):
        claim = Claim(0.0, 0.0, [Phase(Gaussian(sigma), sampler=WithoutReplacement(rate, 7))], adjacency)
        low, high = (
            divergence_lower(claim.canonical("lower"), orders),
            divergence_upper(claim.canonical("upper"), orders),
        )
        assert (low <= high * (1.0 + 1e-9)).all()
        assert np.isfinite(high).all()
