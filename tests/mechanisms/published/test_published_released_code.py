"""What the papers' public code computes, against its loop written out, and the figures it is known to give."""

import mpmath
import pytest

from dpaudit.mechanisms import Gaussian, Laplace
from dpaudit.mechanisms.published.lap2 import theorem_iii_2
from dpaudit.mechanisms.published.released_code import lap2_univariate


def looped(ratio: float, q: float, steps: int, delta: float, orders: range) -> float:
    """The loop, term by term, at 40 digits; ratio = clip / scale."""
    best = mpmath.inf
    with mpmath.workdps(40):
        s = mpmath.mpf(ratio)
        for lam in orders:
            total = mpmath.mpf(0)
            for eta in range(lam):
                up = eta * mpmath.exp((eta - 1) * s) + (eta - 1) * mpmath.exp(-eta * s)
                total += mpmath.binomial(lam, eta) * mpmath.mpf(1 - q) ** (lam - eta) * mpmath.mpf(q) ** eta * (
                    up / (2 * eta - 1)
                )  # fmt: skip
            value = steps * mpmath.log(total) / lam + mpmath.log(mpmath.mpf(lam) / (lam + 1))
            best = min(best, value - (mpmath.log(delta) + mpmath.log(lam + 1)) / lam)
    return float(best)


@pytest.mark.parametrize(("scale", "known"), [(70.0, 0.154), (30.0, 0.372), (15.0, 0.758)])
def test_the_released_settings_cost_what_the_code_says(scale: float, known: float) -> None:
    value = lap2_univariate(Laplace(scale=scale, clip=10.0), sampling_prob=0.02, steps=250, delta=1e-5)
    assert value.epsilon == pytest.approx(known, abs=5e-4)
    order = int(value.settings["order"])
    assert value.epsilon == pytest.approx(looped(10.0 / scale, 0.02, 250, 1e-5, range(order - 1, order + 2)), rel=1e-12)


@pytest.mark.parametrize("scale", [30.0, 15.0])
def test_the_missing_term_makes_it_less_than_its_theorem(scale: float) -> None:
    mechanism = Laplace(scale=scale, clip=10.0)
    value = lap2_univariate(mechanism, sampling_prob=0.02, steps=250, delta=1e-5)
    assert value.epsilon < 0.98 * theorem_iii_2(mechanism, sampling_prob=0.02, steps=250, delta=1e-5).epsilon


def test_its_sum_is_below_one_at_the_first_order() -> None:
    # the sum without its last term is 1 - q^2 + ..., so the Renyi part is negative there
    value = lap2_univariate(Laplace(scale=1e6, clip=1.0), sampling_prob=0.5, steps=10_000, delta=0.5, max_order=2)
    assert value.epsilon == 0.0


def test_other_noise_is_refused() -> None:
    with pytest.raises(TypeError, match="to be 'laplace'"):
        lap2_univariate(Gaussian(1.0), sampling_prob=0.5, steps=1, delta=1e-5)
