"""One coordinate of exp(-|x|^beta) noise, and histories of different noises."""

import math
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from scipy.integrate import quad

from dpaudit.mechanisms import GammaPLRVIID, Gaussian, GeneralizedGaussian, Laplace
from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.pld.dominating_pairs import logconcave_pair
from dpaudit.verify.rdp import gaussian_moments
from dpaudit.verify.upper import mixed, one_dimensional, upper_curves


@pytest.mark.parametrize(("beta", "scale"), [(2.33, 6.9717), (3.0, 10.5295), (4.0, 15.892), (1.5, 2.88777)])
def test_papers_calibration_meets_its_delta_in_one_coordinate(beta: float, scale: float) -> None:
    """delta(1) = 1e-5 at n = 1, to the digits of the printed scales."""
    claim = Claim.single(GeneralizedGaussian(beta, scale, 1.0, beta, 1), epsilon=1.0, delta=1e-5)
    assert float(one_dimensional.bound(claim).delta(np.array([1.0]))[0]) == pytest.approx(1e-5, rel=5e-3)


@pytest.mark.parametrize("beta", [1.5, 2.33, 3.0, 4.0])
def test_one_release_against_mpmath(beta: float) -> None:
    """delta(epsilon) from the incomplete Gamma function, at a root found in 30 digits."""
    scale = 3.0 * beta
    claim = Claim.single(GeneralizedGaussian(beta, scale, 1.0, beta, 1), epsilon=1.0, delta=1e-5)
    curve = one_dimensional.bound(claim)
    assert curve.method == "exact-integral"
    with mpmath.workdps(30):
        b, s = mpmath.mpf(beta), mpmath.mpf(scale)

        def survival(x: mpmath.mpf) -> mpmath.mpf:
            half = mpmath.gammainc(1 / b, (abs(x) / s) ** b, mpmath.inf, regularized=True) / 2
            return half if x >= 0 else 1 - half

        for epsilon in (0.05, 0.4, 1.0):
            low, high = mpmath.mpf("0.5"), mpmath.mpf(1000)
            for _ in range(120):
                x = (low + high) / 2
                above = (abs(x) ** b - abs(x - 1) ** b) / s**b > epsilon
                low, high = (low, x) if above else (x, high)
            exact = float(survival(low - 1) - mpmath.exp(epsilon) * survival(low))
            found = float(curve.delta(np.array([epsilon]))[0])
            assert exact <= found <= exact * (1 + 1e-8) + 1e-12


@pytest.mark.parametrize("beta", [1.1, 1.5, 2.7, 6.0])
def test_tails_of_the_loss_against_a_root_and_an_integral(beta: float) -> None:
    law = GeneralizedGaussian(beta, 1.3).structure
    shift = 0.9
    pair = logconcave_pair(law, shift)
    losses = np.array([-1.5, -0.2, 0.0, 0.4, 2.0])
    tails = pair.tails(losses)

    def density(x: float) -> float:
        return float(np.exp(law.logpdf(np.array([x])))[0])

    for i, level in enumerate(losses):
        low, high = -200.0, 200.0
        for _ in range(200):
            x = (low + high) / 2
            loss = float((law.logpdf(np.array([x - shift])) - law.logpdf(np.array([x])))[0])
            low, high = (low, x) if loss > level else (x, high)
        ends = sorted({low, 0.0, shift, 40.0})
        above = [e for e in ends if e >= low]
        p = sum(quad(lambda x: density(x - shift), a, b)[0] for a, b in pairwise(above))
        assert float(tails.p_sf[i]) == pytest.approx(p, abs=1e-9)
        assert float(tails.p_sf[i] + tails.p_cdf[i]) == pytest.approx(1.0, abs=1e-12)
    # mirror image: Q(L > l) = P(L < -l)
    np.testing.assert_allclose(tails.q_sf, pair.tails(-losses[::-1]).p_cdf[::-1], rtol=1e-9)


def test_composed_history_against_a_plain_convolution() -> None:
    """beta 3, four releases: the loss on a fine grid of outputs, convolved with np.convolve, both roundings."""
    law, shift, steps = GeneralizedGaussian(3.0, 2.0, 1.0, 2.0, 1).structure, 1.0, 4
    x = np.linspace(-7.0, 8.0, 60_001)
    mass = np.diff(law.cdf(x - shift))
    loss = law.logpdf(x - shift) - law.logpdf(x)
    width = 2e-3
    epsilon = np.array([0.5, 1.5])
    bracket = []
    for rounded in (np.floor(loss[:-1] / width), np.ceil(loss[1:] / width)):
        places = rounded.astype(int)
        single = np.bincount(places - places.min(), weights=mass)
        total, start = single, places.min()
        for _ in range(steps - 1):
            total = np.convolve(total, single)
        at = (np.arange(len(total)) + steps * start) * width
        bracket.append([float(total @ np.maximum(-np.expm1(e - at), 0.0)) for e in epsilon])
    claim = Claim.single(GeneralizedGaussian(3.0, 2.0, 1.0, 2.0, 1), epsilon=1.0, delta=1e-5, steps=steps)
    value = one_dimensional.bound(claim).delta(epsilon)
    assert (np.array(bracket[0]) <= value).all()
    assert (value <= np.array(bracket[1])).all()


def test_laws_with_theorems_of_their_own_are_left_to_them() -> None:
    for beta in (1.0, 2.0):
        assert not one_dimensional.applies(
            Claim.single(GeneralizedGaussian(beta, 2.0, 1.0, 2.0, 1), epsilon=1.0, delta=1e-5)
        )
    assert not one_dimensional.applies(
        Claim.single(GeneralizedGaussian(3.0, 2.0, 1.0, 2.0, 2), epsilon=1.0, delta=1e-5)
    )


def test_mixed_history_by_pairs() -> None:
    """Gaussian and l1 Laplace phases against dp-accounting's composition of the two."""
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    claim = Claim(1.0, 1e-6, [Phase(Gaussian(3.0), 10, 0.2), Phase(Laplace(5.0, 1.0, 1.0), 4)])
    [curve] = upper_curves(claim, [mixed])  # type: ignore[list-item]
    laws = (
        pld.from_gaussian_mechanism(3.0, sampling_prob=0.2).self_compose(10),
        pld.from_laplace_mechanism(5.0).self_compose(4),
    )
    reference = laws[0].compose(laws[1]).get_epsilon_for_delta(1e-6)
    assert float(curve.epsilon(np.array([1e-6]))[0]) == pytest.approx(reference, rel=2e-3)


def test_mixed_history_by_moments() -> None:
    """Gaussian and l2 Laplace phases: the moments are those of one longer Gaussian history."""
    claim = Claim(1.0, 1e-5, [Phase(Gaussian(3.0), 10, 0.2), Phase(Laplace(3.0), 15, 0.2)])
    curve, _ = upper_curves(claim)  # the other one is that of never having been sampled
    assert curve.method == "rdp"  # by moments: smoothing is for phases of one kind
    lam = np.linspace(1.0, 60.0, 20_000)
    alpha = 25 * gaussian_moments(1 / 3, 0.2, lam)
    best = float((alpha / lam + np.log(lam / (lam + 1)) - (math.log(1e-5) + np.log1p(lam)) / lam).min())
    assert best * (1 - 1e-9) <= float(curve.epsilon(np.array([1e-5]))[0]) <= best * 1.002
    more = Claim(1.0, 1e-5, [*claim.phases, Phase(GammaPLRVIID(50.0, 0.01), 1)])
    [longer] = upper_curves(more)
    assert float(longer.epsilon(np.array([1e-5]))[0]) > float(curve.epsilon(np.array([1e-5]))[0])
