"""The Gaussian curve in balls against mpmath at 60 digits."""

import mpmath as mp
import pytest

pytest.importorskip("flint")

from flint import arb

from dpaudit.verify.rigorous.balls import ball, decimal_above, decimal_below, float_above, float_below, precision
from dpaudit.verify.rigorous.gaussian import gaussian_delta, gaussian_epsilon


def truth(mu: float, epsilon: float) -> mp.mpf:
    with mp.workdps(60):
        m, e = mp.mpf(str(mu)), mp.mpf(str(epsilon))
        return mp.ncdf(m / 2 - e / m) - mp.exp(e) * mp.ncdf(-m / 2 - e / m)


def holds(enclosure: arb, value: mp.mpf) -> bool:
    with precision(256):
        return bool(enclosure.overlaps(arb(mp.nstr(value, 40)) * (1 + arb(0, 1e-38))))


@pytest.mark.parametrize("mu", [1e-3, 0.1, 1.0, 7.5])
@pytest.mark.parametrize("epsilon", [0.0, 1e-6, 0.5, 3.0, 25.0])
def test_delta_encloses_the_closed_form(mu: float, epsilon: float) -> None:
    found = gaussian_delta(ball(mu), ball(epsilon))
    assert holds(found, truth(mu, epsilon))


def test_delta_keeps_its_digits_where_it_is_tiny() -> None:
    found = gaussian_delta(ball(1), ball(1000))
    assert found.rel_accuracy_bits() > 40
    assert found > 0
    assert found < arb("1e-200000")


@pytest.mark.parametrize("delta", ["1e-300", "1e-5", "0.3"])
def test_epsilon_inverts_delta(delta: str) -> None:
    epsilon = gaussian_epsilon(arb(1), ball(delta))
    assert gaussian_delta(arb(1), epsilon.lower()) >= ball(delta)
    assert gaussian_delta(arb(1), epsilon.upper()) <= ball(delta)


def test_epsilon_is_0_where_delta_is_large() -> None:
    assert gaussian_epsilon(arb(1), ball("0.5")) == 0


@pytest.mark.parametrize("text", ["0.1", "-0.1", "1e-30", "123456789.123456789"])
def test_rounding_is_outward(text: str) -> None:
    value = ball(text)
    with precision(512):
        assert arb(float_below(value)) <= value
        assert arb(float_above(value)) >= value
        assert ball(decimal_below(value)) <= value
        assert ball(decimal_above(value)) >= value
