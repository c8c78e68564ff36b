"""One hidden scale per vector: the average over the truncated scale, and the rows of the paper's table."""

import math
from typing import Any

import mpmath
import numpy as np
import pytest

from dpaudit.mechanisms import GammaPLRV, GammaPLRVIID, Gaussian
from dpaudit.verify.claims import Claim
from dpaudit.verify.lower import certified_lower
from dpaudit.verify.upper import envelope, gamma_plrv_shared, gaussian_pld, laplace_gaussian_domination
from dpaudit.verify.upper.gamma_plrv_shared import SHARES, rounded_up, truncated


@pytest.mark.slow
@pytest.mark.parametrize(
    ("k", "theta", "beyond"), [(3.0, 0.1, 1e-3), (3.0, 0.1, 1e-9), (400.0, 2e-3, 1e-9), (40_000.0, 6e-5, 1e-9)]
)
def test_average_over_the_truncated_scale(k: float, theta: float, beyond: float) -> None:
    """E[exp(a u^2) | u <= u_max] by mpmath, over pieces of the Gamma law about its bulk and its end."""
    law = truncated(GammaPLRV(k, theta).structure, 0.5, beyond)
    assert law.beyond == pytest.approx(beyond, rel=1e-6)
    top = float(law.nodes.max())
    u_max = float(GammaPLRV(k, theta).structure.scale_isf(np.array([beyond]))[0])
    assert top < u_max
    orders = np.array([1.0, 3.0, 10.0])
    values = law.release(1.0, orders)
    with mpmath.workdps(40):
        kk, tt = mpmath.mpf(k), mpmath.mpf(theta)
        mean, sd = k * theta, math.sqrt(k) * theta
        ends = [0, *(x for x in mean + sd * np.arange(-20, 60, 2.0) if 0 < x < u_max), u_max]

        def density(u: mpmath.mpf) -> mpmath.mpf:
            return (
                mpmath.exp((kk - 1) * mpmath.log(u) - u / tt - mpmath.loggamma(kk) - kk * mpmath.log(tt))
                if u > 0
                else mpmath.mpf(0)
            )

        for lam, value in zip(orders, values, strict=True):
            a = lam * (lam + 1) / 2 * 0.25
            total = mpmath.quad(lambda u, a=a: density(u) * mpmath.exp(a * u * u), ends) / (1 - mpmath.mpf(law.beyond))
            exact = float(mpmath.log(total))
            assert exact <= value <= exact * (1 + 1e-6) + 1e-7


def test_rare_scales_are_cut_off_by_what_the_smallest_delta_allows() -> None:
    """They were cut off at a probability of 1e-36 however small delta is: no bound but those of pure epsilon."""
    claim = Claim.single(GammaPLRV(8000.0, 1e-3 / 8000, 1000.0, dimension=250_000), epsilon=300.0, delta=1e-163)
    delta = gamma_plrv_shared.bound(claim).delta(np.array([2.0, 20.0, 60.0]))
    assert delta[2] <= 1e-163 < delta[1] < delta[0]
    assert certified_lower(claim).epsilon(np.array([1e-163]))[0] <= 60.0


def exact_log_mean(k: float, growth: float, last: float) -> Any:
    """log E[exp(growth u^2) | u <= last] for u of scale 1, in balls."""
    flint = pytest.importorskip("flint")
    arb, acb = flint.arb, flint.acb
    constant, low = arb(k).lgamma(), min(max(k - 12.0 * math.sqrt(k), 1e-9 * k), 0.5 * last)

    def integrand(s: Any, _: bool) -> Any:
        u = s.exp()
        return (arb(k) * s - u + arb(growth) * (u * u - arb(last) ** 2) - constant).exp()

    ends = arb(low).log(), arb(last).log()
    total = acb.integral(integrand, *ends, rel_tol=arb(2) ** -70, abs_tol=arb(2) ** -2000).real
    below = 1 - arb(low).gamma_upper(arb(k), regularized=1)
    total += below * (-arb(growth) * arb(last) ** 2).exp() * arb(1).union((arb(growth) * arb(low) ** 2).exp())
    return (total / (1 - arb(last).gamma_upper(arb(k), regularized=1))).log() + arb(growth) * arb(last) ** 2


def test_a_moment_of_500_nats() -> None:
    """Fixed panels were low by up to 5e-4 here: the mass lies within a thousandth of u_max."""
    flint = pytest.importorskip("flint")
    with flint.ctx.workprec(100):
        for k, beyond in ((3.0, 1e-9), (400.0, 1e-6), (0.5, 1e-12), (3.0, 1e-282), (8000.0, 1e-282)):
            law = truncated(GammaPLRV(k, 1.0).structure, 1.0, beyond)
            last = float(law.nodes.max())
            for nats in (100.0, 500.0, 2000.0, 1e4):
                eta = 0.5 + math.sqrt(0.25 + 2.0 * nats / last**2)
                value = float(law.log_ratio_moments(np.array([eta]))[0])
                exact = exact_log_mean(k, eta * (eta - 1) / 2, last)
                assert exact <= value
                assert value <= float(exact) * (1 + 1e-9) + 1e-7


@pytest.mark.slow
def test_moments_are_never_low_at_random_points() -> None:
    """Four hundred means of exp(A u^2) given u <= u_max against balls, from next to nothing to 3,000 nats."""
    flint = pytest.importorskip("flint")
    rng, above = np.random.default_rng(7), []
    with flint.ctx.workprec(100):
        for _ in range(100):
            k = math.exp(rng.uniform(math.log(0.02), math.log(2000.0)))
            law = truncated(GammaPLRV(k, 1.0).structure, 1.0, math.exp(rng.uniform(-50.0, -1.0)))
            last = float(law.nodes.max())
            for nats in np.exp(rng.uniform(-8.0, 8.0, 4)):
                eta = 0.5 + math.sqrt(0.25 + 2.0 * nats / last**2)
                value = float(law.log_ratio_moments(np.array([eta]))[0])
                exact = exact_log_mean(k, eta * (eta - 1) / 2, last)
                assert exact <= value
                above.append(value / (float(exact) + 1.0) - float(exact) / (float(exact) + 1.0))
    assert max(above) < 1e-8


@pytest.mark.parametrize("k", [0.3, 3.0, 2000.0])
def test_the_law_rounded_up_is_larger_and_near(k: float) -> None:
    """P(u >= end) of its atoms against the incomplete gamma functions in balls."""
    flint = pytest.importorskip("flint")
    arb, law = flint.arb, rounded_up(GammaPLRV(k, 1.0).structure, 1.0, 1e-6)
    weights = np.exp(law.log_weights)
    assert weights.sum() == pytest.approx(1.0, abs=1e-13)
    with flint.ctx.workprec(120):
        last = arb(float(law.nodes[-1])).gamma_upper(arb(k), regularized=1)
        for i in range(1, len(weights), 7):
            exact = (arb(float(law.nodes[i - 1])).gamma_upper(arb(k), regularized=1) - last) / (1 - last)
            assert exact <= weights[i:].sum() * (1 + 1e-13)
            assert weights[i:].sum() <= float(exact) * (1 + 1e-8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("clip", "theta", "k", "expected", "claimed"),
    [
        (0.1, 1e-5, 6e4, 0.0336, 0.065),
        (0.5, 3e-5, 6e4, 1.150, 1.172),
    ],
)
def test_table_13_rows_that_hold(clip: float, theta: float, k: float, expected: float, claimed: float) -> None:
    """The reference values by moments; the smoothed curve is tighter, and never below the Gaussian's own curve."""
    claim = Claim.single(
        GammaPLRV(k, theta, clip, 2.0, 26_000), epsilon=claimed, delta=1e-5, steps=300, sampling_prob=0.01
    )
    point = np.array([1e-5])
    moments = min(
        float(gamma_plrv_shared.conditioned(claim, share * 1e-5, smooth=False).epsilon(point)[0]) for share in SHARES
    )
    assert 0.96 * expected < moments <= expected * 1.002
    found = float(gamma_plrv_shared.bound(claim).epsilon(point)[0])
    assert found <= moments < claimed
    # the scale hardly varies: revealed or not, a Gaussian of the same information costs as much
    twin = Claim.single(
        GammaPLRVIID(k, theta, clip, 2.0, 26_000), epsilon=claimed, delta=1e-5, steps=300, sampling_prob=0.01
    )
    assert moments == pytest.approx(float(envelope.bound(twin).epsilon(point)[0]), rel=2e-2)
    assert found == pytest.approx(float(laplace_gaussian_domination.bound(twin).epsilon(point)[0]), rel=1.5e-2)
    limit = Claim.single(Gaussian(1 / (clip * k * theta)), epsilon=claimed, delta=1e-5, steps=300, sampling_prob=0.01)
    assert found > float(gaussian_pld.bound(limit).epsilon(point)[0])


def test_pair_of_the_revealed_scale() -> None:
    """P(L > l) and Q(L > l) as means over u by mpmath; rounding the scale up raises the one and lowers the other."""
    law = rounded_up(GammaPLRV(141.06, 8.32e-4).structure, 10.0, 1e-9)
    losses = np.array([0.0, 0.7, 4.0])
    tails = law.pair().tails(losses)
    u_max = float(law.nodes[-1])
    with mpmath.workdps(30):
        k, theta = mpmath.mpf(141.06), mpmath.mpf(8.32e-4)

        def density(u: mpmath.mpf) -> mpmath.mpf:
            return mpmath.exp((k - 1) * mpmath.log(u) - u / theta - mpmath.loggamma(k) - k * mpmath.log(theta))

        ends = list(np.linspace(0.04, u_max, 12))
        for i, loss in enumerate(losses):
            exact = [
                float(mpmath.quad(lambda u, x=loss, s=s: density(u) * mpmath.ncdf(-x / (10 * u) + s * 5 * u), ends))
                for s in (1, -1)
            ]
            assert exact[0] <= float(tails.p_sf[i]) <= exact[0] * 1.03
            gain = exact[0] - math.exp(loss) * exact[1]
            assert gain <= float(tails.p_sf[i] - math.exp(loss) * tails.q_sf[i]) <= gain * 1.05


def test_every_truncation_pays_for_its_tail() -> None:
    """delta(epsilon) can never fall below the probability that u is cut, nor epsilon(0) be finite."""
    claim = Claim.single(GammaPLRV(3.0, 0.1, 1.0, 2.0, 20_000), epsilon=2.804, delta=1e-5)
    curve = gamma_plrv_shared.bound(claim)
    deltas = curve.delta(np.array([0.0, 1.0, 3.39, 50.0]))
    assert (np.diff(deltas) <= 0).all()
    assert deltas[-1] >= 1e-11
    assert math.isinf(float(curve.epsilon(np.array([0.0]))[0]))
    # the witness of the spread shift: delta(2.804) = 3.8e-5, true epsilon 3.39
    assert float(curve.delta(np.array([2.804]))[0]) > 3.8e-5
    assert 3.39 < float(curve.epsilon(np.array([1e-5]))[0]) < 1.5 * 3.39


def test_conditions() -> None:
    assert not gamma_plrv_shared.applies(Claim.single(GammaPLRVIID(3.0, 0.1), epsilon=1.0, delta=1e-5))
    assert not gamma_plrv_shared.applies(Claim.single(GammaPLRV(3.0, 0.1, 1.0, 3.0), epsilon=1.0, delta=1e-5))
    several = Claim.single(
        GammaPLRV(3.0, 0.1), epsilon=1.0, delta=1e-5, steps=2, sampling_prob=0.1, adjacency="replace-one"
    )
    assert not gamma_plrv_shared.applies(several)
    one = Claim.single(GammaPLRV(3.0, 0.1), epsilon=1.0, delta=1e-5, sampling_prob=0.1, adjacency="replace-one")
    assert 0 < float(gamma_plrv_shared.bound(one).delta(np.array([1.0]))[0]) < 0.1


def test_a_scale_with_a_singular_density() -> None:
    """k = 0.3: every u is rounded up to the end of a cell, which costs little and never falls below the witness."""
    claim = Claim.single(GammaPLRV(0.3, 0.5, 1.0, 2.0, 40), epsilon=1.0, delta=1e-3)
    curve = gamma_plrv_shared.bound(claim)
    low = certified_lower(claim)
    epsilon = np.linspace(0.1, 3.0, 8)
    assert (low.delta(epsilon) <= curve.delta(epsilon)).all()
    law = truncated(GammaPLRV(0.3, 0.5).structure, 1.0, 1e-6)
    mean = float(np.exp(law.log_weights) @ law.nodes)
    assert 0.15 * (1 - 1e-4) <= mean <= 0.15 + np.diff(law.nodes).max()  # the truncated tail holds next to nothing
