"""Noise of a bounded density ratio: pure epsilons against ratios that are reached, curves against enumerations."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import erfinv, ndtri
from scipy.stats import binom

from dpaudit.mechanisms import GammaPLRV, GammaPLRVIID, GammaScaleLaplace, Gaussian, Laplace
from dpaudit.mechanisms.base import Mechanism
from dpaudit.verify import Claim, GaussianDP, check, claim_stating
from dpaudit.verify.claims import Phase
from dpaudit.verify.lower import certified_lower
from dpaudit.verify.renyi import mu_upper, rho_upper
from dpaudit.verify.samplers import Shuffled
from dpaudit.verify.upper import bounded_loss, laplace_pure

NOISES: list[Mechanism] = [
    GammaPLRVIID(5.0, 0.1, dimension=1),
    GammaPLRVIID(0.5, 2.0, dimension=3, clip=2.0),
    GammaPLRVIID(15.0, 1e-6, dimension=1000, clip=800.0, clip_norm=math.inf),
    GammaPLRV(5.0, 0.1, dimension=4),
    GammaPLRV(0.3, 7.0, dimension=2, clip_norm=1.0),
    GammaScaleLaplace(5.0, 0.3, dimension=3),
    GammaScaleLaplace(2.5, 1.0, dimension=1),
]


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
@pytest.mark.parametrize("noise", NOISES, ids=lambda noise: f"{noise.name}-{noise.dimension}")
def test_no_loss_exceeds_the_pure_epsilon_and_the_one_at_the_centre_reaches_it(
    noise: Mechanism, adjacency: str
) -> None:
    """Losses at 1,000 outputs of 9 allowed shifts; two versions of a record are up to twice as far apart."""
    rng, n, longest = np.random.default_rng(1), noise.dimension or 1, noise.clip * (1 + (adjacency == "replace-one"))
    pure = bounded_loss.release_epsilon(noise, adjacency)  # type: ignore[arg-type]
    assert pure is not None
    equal = np.full(n, longest / n ** (1 / noise.clip_norm))
    for shift in [equal, *(rng.laplace(size=(8, n)) ** 3)]:
        allowed = shift * longest / np.linalg.norm(shift, noise.clip_norm)
        outputs = np.concatenate([noise.sample(rng, 1_000), np.zeros((1, n)), [allowed]])
        assert np.abs(noise.privacy_loss(outputs, allowed)).max() <= pure
    reached = abs(float(noise.privacy_loss(np.zeros(n), equal)))
    tight = not isinstance(noise, GammaScaleLaplace) or noise.k >= 4  # below it a Lipschitz constant counts
    assert reached <= pure <= reached * (1 + 1e-9 if tight else 2.8)


@pytest.mark.parametrize(("rate", "steps"), [(1.0, 1), (1.0, 2), (1.0, 7), (0.2, 7)])
def test_one_phase_costs_what_randomized_response_does(rate: float, steps: int) -> None:
    """Its delta summed over the binomial number of truthful answers (Kairouz, Oh and Viswanath 2015, Theorem 3.3)."""
    claim = Claim.single(GammaPLRV(5.0, 0.1, dimension=4), epsilon=1.0, delta=1e-5, steps=steps, sampling_prob=rate)
    pure = math.log1p(rate * math.expm1(9 * math.log(1.2)))
    truthful = np.arange(steps + 1)
    masses, losses = binom.pmf(truthful, steps, 1 / (1 + math.exp(-pure))), (2 * truthful - steps) * pure
    curve = bounded_loss.bound(claim)
    for epsilon in (0.0, 0.3 * steps * pure, 0.9 * steps * pure):
        exact = float(masses @ np.maximum(-np.expm1(epsilon - losses), 0.0))
        assert exact <= float(curve.delta(np.array([epsilon]))[0]) <= exact * (1 + 1e-6) + 1e-9
    assert float(curve.epsilon(np.array([0.0]))[0]) == pytest.approx(steps * pure, rel=1e-10)
    assert float(curve.delta(np.array([steps * pure * (1 + 1e-9)]))[0]) == 0.0


def test_pure_claims_of_noise_with_heavy_tails_are_decided() -> None:
    """Around the exact epsilon of one release, 6 log 1.1, and of ten that are sampled."""
    noise = GammaPLRVIID(5.0, 0.1, dimension=1)
    for steps, rate in ((1, 1.0), (10, 0.1)):
        exact = steps * math.log1p(rate * math.expm1(6 * math.log(1.1)))
        for factor, verdict in ((1.0001, "certified"), (0.99, "refuted")):
            claim = Claim.single(noise, epsilon=exact * factor, delta=0.0, steps=steps, sampling_prob=rate)
            assert check(claim).verdict == verdict


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_histories_of_several_noises_are_above_every_certified_lower_bound(adjacency: str) -> None:
    phases = [
        Phase(GammaPLRVIID(5.0, 0.1, dimension=2), 3, 0.5),
        Phase(GammaScaleLaplace(6.0, 0.4, dimension=2), 2),
        Phase(Laplace(40.0, dimension=2), 50, 0.1),
    ]
    claim = Claim(1.0, 1e-6, phases, adjacency)  # type: ignore[arg-type]
    assert bounded_loss.applies(claim)
    deltas = np.array([0.0, 1e-12, 1e-6, 1e-3])
    upper = bounded_loss.bound(claim).epsilon(deltas)
    assert np.isfinite(upper).all()
    assert (certified_lower(claim).epsilon(deltas) <= upper).all()
    assert (np.diff(upper) <= 0).all()
    assert not bounded_loss.applies(replace(claim, phases=[*phases, Phase(Gaussian(1.0, dimension=2), 1)]))


def test_enormous_losses_of_laplace_noise_still_end() -> None:
    """l1 radius over scale, sampled or not: beyond the exponential of a float there is no pair, but an epsilon."""
    noise = Laplace(0.01, dimension=400)  # 20/0.01 in l1
    for rate, exact in ((1.0, 2000.0), (0.25, 2000.0 + math.log(0.25))):
        claim = Claim.single(noise, epsilon=1.0, delta=1e-5, steps=3, sampling_prob=rate)
        assert laplace_pure.pure_epsilon(claim) == pytest.approx(3 * exact, rel=1e-11)
        assert float(laplace_pure.bound(claim).epsilon(np.array([0.0]))[0]) == laplace_pure.pure_epsilon(claim)
    assert mu_upper(Claim.single(noise, epsilon=1.0, delta=1e-5)) >= math.sqrt(2 * 2000.0)


@pytest.mark.parametrize(("steps", "rate"), [(2000, 1.0), (10_000, 1.0), (10_000, 0.1)])
@pytest.mark.parametrize(
    "noise", [Laplace(100.0, clip_norm=1.0), GammaPLRVIID(100.0, 1e-4, dimension=1)], ids=lambda noise: noise.name
)
def test_an_underflow_is_no_proof_of_delta_zero(noise: Mechanism, steps: int, rate: float) -> None:
    """All releases at their largest loss at once have a probability of 2^-steps, so nothing below the sum is pure."""
    slope = 0.01 if noise.name == "laplace" else 101.0 * math.log1p(1e-4)
    pure = steps * math.log1p(rate * math.expm1(slope))
    claims = [Claim.single(noise, epsilon=pure * f, delta=0.0, steps=steps, sampling_prob=rate) for f in (0.999, 0.5)]
    for verdict in map(check, claims):
        assert verdict.verdict != "certified"
        assert verdict.delta_upper > 0
        assert verdict.epsilon_upper == pytest.approx(pure, rel=1e-10)


@pytest.mark.parametrize("scale", [1e17, 1e16, 7e15, 1e13, 1e9, 1e3, 3.0])
def test_a_tiny_pure_epsilon_keeps_its_digits_in_mu(scale: float) -> None:
    """delta(0) = 1 - e^(-1/(2 scale)) of one release alone is that of this mu, and a slightly smaller one is none."""
    found = mu_upper(Claim.single(Laplace(scale, clip_norm=1.0), epsilon=1.0, delta=1e-5))
    least = 2.0 * math.sqrt(2.0) * float(erfinv(-math.expm1(-0.5 / scale)))
    assert least <= found <= least * (1.0 + 1.0 / scale + 1e-10)


@pytest.mark.parametrize("shift", [0.01, 0.5, 1.0, 1.001, 4.0, 30.0])
@pytest.mark.parametrize("steps", [1, 9])
def test_mu_of_laplace_noise_is_that_of_its_own_error_rates(shift: float, steps: int) -> None:
    """The largest z(1 - alarms) - z(misses) over all false-alarm rates, of which a pure epsilon alone proves more."""
    alarms = np.concatenate([np.geomspace(1e-9, 1.0, 200_001) * math.exp(-shift) / 2, np.linspace(0.0, 0.5, 200_001)])
    alarms = np.unique(np.append(alarms[alarms > 0], math.exp(-shift / 2) / 2))
    middle = alarms >= math.exp(-shift) / 2
    misses = np.where(middle, math.exp(-shift) / (4 * alarms), 1 - alarms * math.exp(shift))
    exact = float(np.max(-ndtri(alarms) - ndtri(misses)))
    claim = Claim.single(Laplace(1.0 / shift, clip_norm=1.0), epsilon=1.0, delta=1e-5, steps=steps)
    assert mu_upper(claim) == pytest.approx(exact * math.sqrt(steps), rel=1e-9)
    assert mu_upper(claim) >= exact * math.sqrt(steps) * (1 - 1e-14)
    if steps == 1:
        found = check(claim_stating(GaussianDP(exact * 1.001), claim.phases))
        assert found.verdict == "certified"
    sampled = Claim.single(Laplace(1.0 / shift, clip_norm=1.0), epsilon=1.0, delta=1e-5, sampling_prob=0.5)
    pure = math.log1p(0.5 * math.expm1(shift))
    assert mu_upper(sampled) == pytest.approx(-2 * ndtri(1 / (1 + math.exp(pure))), rel=1e-9)


def test_a_bounded_ratio_bounds_rho_by_half_its_square_and_no_less() -> None:
    """The formula for Laplace noise is of its own divergence, and smaller."""
    claim = Claim.single(GammaPLRV(5.0, 0.1, dimension=4), epsilon=1.0, delta=1e-5)
    pure = 9 * math.log(1.2)
    assert rho_upper(claim) == pytest.approx(pure**2 / 2, rel=1e-10)


def test_passes_that_straddle_compose_with_passes_that_do_not() -> None:
    """Each alone has a bound: three passes of either kind cost three epsilons at most."""
    noise = Laplace(20.0, clip_norm=1.0)
    straddling = Phase(noise, sampler=Shuffled.of(100, 30, 3, last_batch="straddling"))
    verdict = check(Claim(0.3001, 1e-9, (straddling, Phase(noise, sampler=Shuffled(30, 3))), "zero-out"))
    assert verdict.verdict == "certified"
    assert verdict.epsilon_upper <= 0.3001
