"""One coordinate of exp(-|x|^beta) noise, and histories of different noises."""

import math
from itertools import pairwise
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy.integrate import quad

from dpaudit.mechanisms import GammaPLRVIID, GammaScaleLaplace, Gaussian, GeneralizedGaussian, Laplace
from dpaudit.verify import check
from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.pld.dominating_pairs import logconcave_pair, lomax_pair, peaked_pair
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


def lomax_tails(k: float, theta: float, shift: float, level: float) -> tuple[Any, Any]:
    """P(L > level) and Q(L > level) of one Lomax coordinate, level >= 0, from the outputs that bisection finds."""
    with mpmath.workdps(50):
        k_, theta_, shift_ = mpmath.mpf(k), mpmath.mpf(theta), mpmath.mpf(shift)

        def loss(x: mpmath.mpf) -> mpmath.mpf:
            return (k_ + 1) * mpmath.log((1 + theta_ * abs(x)) / (1 + theta_ * abs(x - shift_)))

        def survival(x: mpmath.mpf) -> mpmath.mpf:
            return (1 + theta_ * x) ** -k_ / 2

        def crossing(inside: mpmath.mpf, outside: mpmath.mpf) -> mpmath.mpf:
            for _ in range(230):
                middle = (inside + outside) / 2
                inside, outside = (middle, outside) if loss(middle) > level else (inside, middle)
            return inside

        if level >= loss(shift_):
            return mpmath.mpf(0), mpmath.mpf(0)
        left = crossing(shift_, mpmath.mpf(0))
        right = crossing(shift_, (shift_ + 1 / theta_) * mpmath.mpf(10) ** 25) if level > 0 else mpmath.inf
        return 1 - survival(shift_ - left) - survival(right - shift_), survival(left) - survival(right)


@pytest.mark.parametrize("seed", range(2))
def test_tails_of_a_lomax_loss_against_bisection(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(8):
        k, d = 10 ** rng.uniform(-2, 3), 10 ** rng.uniform(-4, 3)
        shift = 10 ** rng.uniform(-3, 3)
        pair = lomax_pair(GammaPLRVIID(k, d / shift).structure, shift)
        levels = pair.largest * np.array([0.0, 10 ** -rng.uniform(0, 6), rng.random(), 1 - 1e-3 * rng.random()])
        tails = pair.tails(levels)
        for i, level in enumerate(levels):
            moved = pair.slack * (1 + level)
            exact = [
                lomax_tails(k, d / shift, shift, max(float(at), 0.0)) for at in (level - moved, level, level + moved)
            ]
            for value, relative, (low, truth, high) in zip(
                (tails.p_sf[i], tails.q_sf[i]),
                (tails.p_error[i], tails.q_error[i]),
                zip(*exact, strict=True),
                strict=True,
            ):
                error = relative * max(min(truth, 1 - truth), 1e-300) + 4e-16 * truth
                assert high - error <= value <= low + error
                assert abs(value - truth) <= 1e-9 * truth + 1e-290
        np.testing.assert_allclose(tails.p_cdf + tails.p_sf, 1.0, rtol=1e-14)
        mirrored = pair.tails(-levels[1:])  # -L under Q has the law of L under P
        np.testing.assert_array_equal([mirrored.p_cdf, mirrored.q_cdf], [tails.q_sf[1:], tails.p_sf[1:]])
        np.testing.assert_array_equal([mirrored.p_sf, mirrored.q_sf], [tails.q_cdf[1:], tails.p_cdf[1:]])


@pytest.mark.parametrize(("k", "theta"), [(0.3, 5.0), (3.0, 0.1), (414.0, 2e-3)])
def test_one_release_of_lomax_noise_is_exact(k: float, theta: float) -> None:
    largest = (k + 1) * math.log1p(theta)
    claim = Claim.single(GammaPLRVIID(k, theta, dimension=1), epsilon=1.0, delta=1e-5)
    curve = one_dimensional.bound(claim)
    epsilon = largest * np.array([0.0, 0.3, 0.9, 0.999])
    for value, at in zip(curve.delta(epsilon), epsilon, strict=True):
        p, q = lomax_tails(k, theta, 1.0, float(at))
        assert p - math.exp(at) * q <= value <= p - math.exp(at) * q + 1e-10 * p
    assert float(curve.delta(np.array([largest * 1.0001]))[0]) <= 1e-300


def test_composed_lomax_releases_are_within_brackets_of_histograms() -> None:
    """Three sampled releases: outputs in fine cells, losses rounded down and up, convolved by np.convolve."""
    k, theta, q, steps = 2.0, 0.8, 0.3, 3
    law = GammaPLRVIID(k, theta).structure
    edges = np.unique(np.concatenate([[0.0, 1.0], np.sinh(np.linspace(-12, 12, 40_001))]))
    base = np.append(np.diff(law.cdf(edges)), 2 * law.cdf(edges[:1]))  # both far ends, where the loss is next to 0
    moved = np.append(np.diff(law.cdf(edges - 1.0)), law.cdf(edges[:1] - 1.0) + law.cdf(1.0 - edges[-1:]))
    ratio = np.exp(law.logpdf(edges - 1.0) - law.logpdf(edges))
    low, high = np.minimum(ratio[1:], ratio[:-1]), np.maximum(ratio[1:], ratio[:-1])
    low, high = np.append(low, min(ratio[0], 1.0)), np.append(high, max(ratio[-1], 1.0))
    width, epsilon = 1e-3, np.array([0.2, 0.8])
    bracket = []
    for rounded in (np.floor(np.log1p(q * (low - 1)) / width), np.ceil(np.log1p(q * (high - 1)) / width)):
        places = rounded.astype(int)
        single = np.bincount(places - places.min(), weights=q * moved + (1 - q) * base)
        total, start = single, steps * places.min()
        for _ in range(steps - 1):
            total = np.convolve(total, single)
        losses = (np.arange(len(total)) + start) * width
        bracket.append([float(total @ np.maximum(-np.expm1(e - losses), 0.0)) for e in epsilon])
    claim = Claim(1.0, 1e-5, [Phase(GammaPLRVIID(k, theta, dimension=1), steps, q)])
    # the other direction may be the larger one
    value = one_dimensional.bound(claim).delta(epsilon)
    assert (np.array(bracket[0]) <= value).all()
    assert value == pytest.approx(np.mean(bracket, axis=0), rel=2e-2)


def bessel_tail(k: float, y: Any) -> Any:
    """P(X > x) of Laplace noise of a Gamma(k) scale at y = x/theta >= 0 (Gradshteyn and Ryzhik, 3.471.9)."""
    return mpmath.mpf(1) / 2 if y == 0 else y ** (k / 2) * mpmath.besselk(k, 2 * mpmath.sqrt(y)) / mpmath.gamma(k)


def bessel_log_density(k: float, y: Any) -> Any:
    """log f(x) theta at y = |x|/theta."""
    if y == 0:
        return -mpmath.log(2 * (k - 1))
    return mpmath.log(y ** ((k - 1) / 2) * mpmath.besselk(k - 1, 2 * mpmath.sqrt(y)) / mpmath.gamma(k))


def peaked_tails(k: float, shift: float, level: float) -> tuple[Any, Any]:
    """P(L > level) and Q(L > level) of that noise, theta = 1, moved by a shift; level >= 0."""
    k_, d, half = mpmath.mpf(k), mpmath.mpf(shift), mpmath.mpf(1) / 2

    def loss(x: Any) -> Any:
        return bessel_log_density(k_, abs(x - d)) - bessel_log_density(k_, abs(x))

    def crossing(inside: Any, outside: Any) -> Any:
        for _ in range(110):
            middle = (inside + outside) / 2
            inside, outside = (middle, outside) if loss(middle) > level else (inside, middle)
        return inside

    if level >= loss(d):
        return mpmath.mpf(0), mpmath.mpf(0)
    left = crossing(d, d / 2)
    right = crossing(d, d + 2000 * k_) if level > 0 else mpmath.inf
    far = [0 if right == mpmath.inf else bessel_tail(k_, right - centre) for centre in (d, mpmath.mpf(0))]
    return (half - far[0]) + (half - bessel_tail(k_, d - left)), bessel_tail(k_, left) - far[1]


@pytest.mark.parametrize(("k", "shift"), [(2.05, 0.3), (2.5, 5.5), (3.7, 40.0), (60.0, 20.0)])
def test_a_release_of_laplace_noise_with_a_random_scale_against_mpmath(k: float, shift: float) -> None:
    """k below 4, where no other theorem but the pure epsilon knew the law, and above."""
    claim = Claim.single(GammaScaleLaplace(k, 1.0, clip=shift, dimension=1), epsilon=1.0, delta=1e-5)
    curve = one_dimensional.bound(claim)
    with mpmath.workdps(30):
        largest = float(bessel_log_density(mpmath.mpf(k), 0) - bessel_log_density(mpmath.mpf(k), mpmath.mpf(shift)))
        epsilon = largest * np.array([0.0, 0.3, 0.9, 0.999])
        tails_at = [peaked_tails(k, shift, float(at)) for at in epsilon]
        for value, at, (p, q) in zip(curve.delta(epsilon), epsilon, tails_at, strict=True):
            assert p - mpmath.exp(at) * q <= value <= (p - mpmath.exp(at) * q) * (1 + 1e-4) + 1e-8 * p
        pair = peaked_pair(claim.phases[0].mechanism.structure, shift)  # type: ignore[arg-type]
        tails = pair.tails(epsilon)
        exact = np.array([[float(part) for part in pair_at] for pair_at in tails_at])
    np.testing.assert_allclose(np.transpose([tails.p_sf, tails.q_sf]), exact, rtol=1e-6)
    assert pair.largest == pytest.approx(largest, rel=1e-9)
    assert float(curve.delta(np.array([largest * 1.0001]))[0]) <= 1e-300
    mirrored = pair.tails(-epsilon[1:])  # -L under Q has the law of L under P
    np.testing.assert_array_equal([mirrored.p_cdf, mirrored.q_cdf], [tails.q_sf[1:], tails.p_sf[1:]])


@pytest.mark.parametrize(("steps", "rate"), [(1, 0.2), (1000, 0.01), (50, 1.0)])
def test_releases_of_laplace_noise_with_a_random_scale_compose_from_both_sides(steps: int, rate: float) -> None:
    noise = GammaScaleLaplace(2.5, 0.4, dimension=1)
    claim = Claim.single(noise, epsilon=0.5, delta=1e-6, steps=steps, sampling_prob=rate)
    verdict = check(claim)
    assert 0 < verdict.epsilon_lower <= verdict.epsilon_upper <= verdict.epsilon_lower * 1.002


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
    [curve] = upper_curves(claim, [mixed])  # type: ignore[list-item]
    assert curve.method == "rdp"  # by moments: smoothing is for phases of one kind
    lam = np.linspace(1.0, 60.0, 20_000)
    alpha = 25 * gaussian_moments(1 / 3, 0.2, lam)
    best = float((alpha / lam + np.log(lam / (lam + 1)) - (math.log(1e-5) + np.log1p(lam)) / lam).min())
    assert best * (1 - 1e-9) <= float(curve.epsilon(np.array([1e-5]))[0]) <= best * 1.002
    more = Claim(1.0, 1e-5, [*claim.phases, Phase(GammaPLRVIID(50.0, 0.01), 1)])
    [longer] = upper_curves(more, [mixed])  # type: ignore[list-item]
    assert float(longer.epsilon(np.array([1e-5]))[0]) > float(curve.epsilon(np.array([1e-5]))[0])


def test_one_release_of_noise_far_wider_than_the_clip() -> None:
    """The losses are below the pair's slack: where an event ends is unknown, and an empty one proves nothing."""
    claim = Claim.single(GeneralizedGaussian(3.0, 1.0, 2e-17, 2.0, 1), epsilon=1e-18, delta=1e-17)
    at_least = 1.07e-17  # mpmath: 1.0746643e-17, about 2e-17 f(0) - 1e-18/2
    assert float(one_dimensional.bound(claim).delta(np.array([claim.epsilon]))[0]) >= at_least
