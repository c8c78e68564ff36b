"""Sampled records that are replaced: brackets, and releases on a grid, against which no bound may be lower."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from dpaudit.mechanisms import GammaPLRVIID, Gaussian, GeneralizedGaussian, Laplace, Product
from dpaudit.mechanisms.base import Mechanism
from dpaudit.verify import Claim, check
from dpaudit.verify.claims import Phase
from dpaudit.verify.pld.dominating_pairs import gaussian_pair
from dpaudit.verify.pld.replaced_pairs import replaced_pair
from dpaudit.verify.samplers import TruncatedPoisson, WithoutReplacement
from dpaudit.verify.upper import replaced_records, upper_curve


@pytest.mark.parametrize("q", [1e-4, 0.05, 0.5, 0.95])
@pytest.mark.parametrize("mu", [0.05, 0.5, 3.0])
def test_the_curve_of_normal_noise_is_that_of_half_lines(mu: float, q: float) -> None:
    """(1 - q) N(0) + q N(mu) against (1 - q) N(0) + q N(-mu), whose loss rises with the output."""
    pair = replaced_pair(gaussian_pair(mu), 1, q, 1e-18)
    assert pair is not None
    outputs = np.linspace(-10.0, mu + 10.0, 200_001)
    p = (1 - q) * norm.sf(outputs) + q * norm.sf(outputs - mu)
    r = (1 - q) * norm.sf(outputs) + q * norm.sf(outputs + mu)
    epsilons = np.log1p(q * np.expm1(np.array([0.01, 0.3, 1.0, 2.0]) * mu + mu * mu / 2))
    exact = np.array([float((p - math.exp(e) * r).max()) for e in epsilons])
    tails = pair.tails(epsilons)
    found = tails.p_sf - np.exp(epsilons) * tails.q_sf + pair.lost
    assert (found >= exact * (1 - 1e-9)).all()
    assert (found <= exact * 1.01 + 1e-15).all()


@pytest.mark.parametrize(
    ("noise", "rate", "steps"),
    [
        (Laplace(10.0, clip_norm=math.inf, dimension=10), 0.05, 200),
        (Laplace(2.0, clip_norm=1.0, dimension=3), 0.3, 4),
        (GeneralizedGaussian(3.0, 2.0, dimension=1), 0.05, 200),
        (GeneralizedGaussian(3.0, 10.0, clip_norm=math.inf, dimension=10), 0.01, 1000),
    ],
    ids=["laplace-each", "laplace-l1", "power-line", "power-each"],
)
def test_both_bounds_nearly_meet_for_a_replaced_record(noise: Mechanism, rate: float, steps: int) -> None:
    claim = Claim(1.0, 1e-5, [Phase(noise, steps, rate)], "replace-one")
    verdict = check(claim)
    assert verdict.epsilon_lower <= verdict.epsilon_upper <= 1.02 * verdict.epsilon_lower
    sampler = TruncatedPoisson(rate, 10**6, 10**6 + 1, steps)
    cut = check(Claim(1.0, 1e-5, [Phase(noise, sampler=sampler)], "replace-one"))
    assert cut.epsilon_upper == pytest.approx(verdict.epsilon_upper, rel=1e-3)


@pytest.mark.parametrize(
    "noise",
    [Laplace(1.5, dimension=1), GeneralizedGaussian(4.0, 2.0, dimension=1), GammaPLRVIID(4.0, 0.3, dimension=1)],
    ids=lambda n: n.name,
)
@pytest.mark.parametrize("rate", [0.1, 0.6])
def test_no_bound_is_below_any_two_versions_on_a_grid(noise: Mechanism, rate: float) -> None:
    """Two releases; both versions anywhere within the clip. Cells are joined, which only loses."""
    edges = np.linspace(-9.0, 9.0, 721)
    epsilons = np.array([0.05, 0.2, 0.6, 1.2])
    found = upper_curve(Claim(0.3, 1e-3, [Phase(noise, 2, rate)], "replace-one"))(epsilons)
    law = {
        v: np.diff(noise.structure.cdf(np.concatenate([[-np.inf], edges - v, [np.inf]]))) for v in np.linspace(-1, 1, 5)
    }
    largest = np.zeros(len(epsilons))
    for v in law:
        for w in law:
            p, q = ((1 - rate) * law[0.0] + rate * law[at] for at in (v, w))
            both = np.multiply.outer(p, p).ravel(), np.multiply.outer(q, q).ravel()
            largest = np.maximum(largest, [np.maximum(both[0] - math.exp(e) * both[1], 0.0).sum() for e in epsilons])
    assert (found >= largest).all()
    if noise.name != "gamma-plrv-iid":  # whose loss is not monotone, so that half-lines are not the best sets
        assert (found <= largest * 1.05 + 1e-6).all()


def test_what_has_no_coin_of_its_own_is_left_to_other_theorems() -> None:
    """Of two records one is drawn: the other, which is at -1 where the record is at 1, takes its place."""
    noise = Laplace(1.5, dimension=1)
    drawn = Claim(0.3, 1e-3, [Phase(noise, sampler=WithoutReplacement(0.5, 1))], "replace-one")
    edges = np.linspace(-20.0, 20.0, 4001)
    law = {v: np.diff(noise.structure.cdf(np.concatenate([[-np.inf], edges - v, [np.inf]]))) for v in (-1.0, 1.0)}
    epsilons = np.array([0.1, 0.4])
    exact = [np.maximum(0.5 * law[1.0] + 0.5 * law[-1.0] - math.exp(e) * law[-1.0], 0.0).sum() for e in epsilons]
    assert (upper_curve(drawn)(epsilons) >= exact).all()
    for phase in (Phase(Gaussian(1.0), 3, 0.1), Phase(Product(1.0, dimension=3), 3, 0.1), Phase(noise, 3)):
        assert not replaced_records.applies(Claim(1.0, 1e-5, [phase], "replace-one"))
    assert not replaced_records.applies(Claim(1.0, 1e-5, [Phase(noise, 3, 0.1)]))
    assert replaced_records.applies(
        Claim(1.0, 1e-5, [Phase(noise, 3, 0.1), Phase(Gaussian(1.0, dimension=1), 2)], "replace-one")
    )
