"""Radial noise in balls: known truths, and three dimensions in closed form."""

import mpmath as mp
import pytest

pytest.importorskip("flint")

from flint import arb

from dpaudit.verify.rigorous.balls import ball, precision
from dpaudit.verify.rigorous.radial import (
    RadialNoise,
    chosen_places,
    cosine_below,
    loss_tail,
    loss_tail_on,
    radial_delta,
)

TRUTHS = [
    (3, "0.3", "30", 8.72336e-6, 1e-6),
    (3, "1", "30", 2.08932e-7, 1e-6),
    (2, "10", "16", 4.51201e-9, 1e-6),
    (2, "0.3", "18", 2.3028e-5, 1e-6),
    (26_010, "461.84595493997756", "0.3", 0.2412, 1e-6),
]


@pytest.mark.parametrize(("dimension", "sigma", "epsilon", "delta", "width"), TRUTHS)
def test_delta_encloses_the_truth(dimension: int, sigma: str, epsilon: str, delta: float, width: float) -> None:
    found = radial_delta(RadialNoise(dimension, ball(sigma), arb(1)), ball(epsilon), 1e-7)
    assert float(found.lower()) <= delta * (1 + 2e-4)
    assert float(found.upper()) >= delta * (1 - 2e-4)
    assert float(found.rad()) < width * delta


@pytest.mark.parametrize("share", ["0.01", "0.3", "0.5", "0.77"])
def test_cosine_in_three_dimensions_is_uniform(share: str) -> None:
    with precision():
        assert abs(cosine_below(ball(share), 3) - ball(share)) < 1e-30


@pytest.mark.parametrize("dimension", [2, 4, 17, 5000])
def test_cosine_is_a_beta_law(dimension: int) -> None:
    with precision():
        for share in ("0.4", "0.49", "0.52"):
            a, w = mp.mpf(dimension - 1) / 2, 2 * mp.mpf(share) - 1
            area = mp.quad(lambda x, a=a: (1 - x * x) ** (a - 1), mp.linspace(0, w, 9))
            expected = mp.mpf(1) / 2 + area / mp.beta(a, mp.mpf(1) / 2)
            assert float(cosine_below(ball(share), dimension)) == pytest.approx(float(expected), rel=1e-9)


def three_dimensional_tail(sigma: float, loss: float, sign: int) -> mp.mpf:
    """P(L > loss) for sign 1 and P(L < -loss) for sign -1, by a quadrature over the radius: the cosine is uniform."""
    s = mp.mpf(str(sigma))

    def energy(r: mp.mpf) -> mp.mpf:
        return r * r / (2 * s * s) + 2 * mp.log(r)

    def inside(r: mp.mpf) -> mp.mpf:
        goal, low, high = energy(r) + sign * loss, mp.mpf(10) ** -30, mp.mpf(1e4)
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if energy(middle) < goal else (low, middle)
        share = min(mp.mpf(1), max(mp.mpf(0), (low * low - (r - 1) ** 2) / (4 * r)))
        return (1 - share if sign > 0 else share) * mp.sqrt(2 / mp.pi) / s * mp.exp(-r * r / (2 * s * s))

    step = s * 8 / 400
    return step * mp.fsum(inside(step * (i + mp.mpf(1) / 2)) for i in range(400))


@pytest.mark.parametrize("sign", [1, -1])
def test_tails_in_three_dimensions(sign: int) -> None:
    with mp.workdps(15):
        expected = three_dimensional_tail(1.0, 2.0, sign)
    noise = RadialNoise(3, arb(1), arb(1))
    found = loss_tail(noise, arb(2), sign)
    assert float(found.lower()) * (1 - 2e-3) <= float(expected) <= float(found.upper()) * (1 + 2e-3)
    assert float(found.rad()) < 1e-7 * float(found.mid())
    low, high = loss_tail_on(noise, arb(2), sign, [ball(place) for place in chosen_places(noise, arb(2), sign, 400)])
    assert low <= found <= high
    assert high - low < 0.03 * found


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("dimension", "sigma", "loss"), [(2, "0.3", "18"), (40, "2", "0.4")])
def test_series_lie_inside_the_monotone_bracket_at_any_number_of_cells(
    dimension: int, sigma: str, loss: str, sign: int
) -> None:
    """Two rules that share the border alone: a first-order Riemann sum, and Taylor series with Lagrange's remainder."""
    noise = RadialNoise(dimension, ball(sigma), arb(1))
    fine = loss_tail(noise, ball(loss), sign)
    for cells in (10, 150):
        places = chosen_places(noise, ball(loss), sign, cells)
        low, high = loss_tail_on(noise, ball(loss), sign, [ball(place) for place in places])
        assert low < fine < high
        coarse = loss_tail(noise, ball(loss), sign, 0.0, cells)
        assert coarse.overlaps(fine)
