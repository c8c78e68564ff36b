"""Closed-form operating points and their charges for rounding, against ball arithmetic."""

import math

import numpy as np
import pytest
from scipy.special import log_ndtr, ndtr

from dpaudit.verify.pld.cells import MixturePair
from dpaudit.verify.pld.normal_points import normal_points
from dpaudit.verify.pld.normal_tails import tail_error

flint = pytest.importorskip("flint")
arb = flint.arb


@pytest.fixture(autouse=True)
def _precision() -> None:
    flint.ctx.prec = 200


def tail(x: "flint.arb") -> "flint.arb":
    """Phi(-x)."""
    return (x / arb(2).sqrt()).erfc() / 2


def relative(value: float, truth: "flint.arb") -> float:
    return float(abs(arb(value) / truth - 1).mid())


def test_scipys_tails_are_within_their_charge() -> None:
    rng = np.random.default_rng(3)
    for x in np.concatenate([np.exp(rng.uniform(math.log(1e-6), math.log(37.5), 900)), [0.0, 1.35486, 37.5]]):
        assert relative(float(ndtr(-x)), tail(arb(x))) <= float(tail_error(np.array(x)))
    for x in np.exp(rng.uniform(math.log(1e-3), math.log(1e5), 600)):
        assert float(abs(arb(float(log_ndtr(-x))) - tail(arb(x)).log()).mid()) <= float(tail_error(np.array(x)))


def test_arguments_whose_square_is_no_float_have_a_charge() -> None:
    """Warnings are errors here."""
    assert float(tail_error(np.array(-1e200))) == float(tail_error(np.array(1.0), 1e200)) == math.expm1(700.0)


def test_a_tail_moves_by_no_more_than_its_charge_when_the_argument_does() -> None:
    rng = np.random.default_rng(4)
    for _ in range(600):
        x, off = np.exp(rng.uniform(math.log(1e-3), math.log(37.0))), np.exp(rng.uniform(math.log(1e-14), 0.0))
        truth = tail(arb(x) - arb(off) if rng.random() < 0.5 else arb(x) + arb(off))
        # the charge is e^r - 1 either way: the other side of it is 1 - e^-r
        assert relative(float(ndtr(-x)), truth) <= float(tail_error(np.array(x), off))


@pytest.mark.parametrize(
    ("centres", "first", "second"),
    [
        ((0.0, 50.0), (0.0, 1.0), (1.0, 0.0)),
        ((0.0, 3e4), (0.0, 1.0), (1.0, 0.0)),
        ((0.0, 7.0), (0.99, 0.01), (1.0, 0.0)),
        ((0.0, 7.0), (1.0, 0.0), (0.99, 0.01)),
        ((-20.0, 0.0, 20.0), (0.0, 0.9, 0.1), (0.1, 0.9, 0.0)),
    ],
)
def test_points_are_certified_and_all_but_exact(
    centres: tuple[float, ...], first: tuple[float, ...], second: tuple[float, ...]
) -> None:
    """{x > t} or {x < t} at the threshold of the returned loss, which is monotone in t."""
    points = normal_points(np.array(centres), MixturePair(first, second))
    rising = np.dot(np.subtract(first, second), centres) > 0
    assert len(points.threshold) > 1000
    for at in np.linspace(0, len(points.threshold) - 1, 14).astype(int):
        p, log_q = float(points.first_lower[at]), float(points.log_second_upper[at])

        def masses(t: "flint.arb") -> list["flint.arb"]:
            tails = [tail(t - arb(c)) if rising else tail(arb(c) - t) for c in centres]
            return [sum((arb(w) * m for w, m in zip(ws, tails, strict=True)), arb(0)) for ws in (first, second)]

        low, high = arb(min(centres) - 45.0), arb(max(centres) + 45.0)
        for _ in range(110):  # the threshold whose event has probability p under the first law
            middle = ((low + high) / 2).mid()
            low, high = (middle, high) if (masses(middle)[0] > p) == rising else (low, middle)
        if not 1e-290 < p < 1 - 1e-9 or any(abs(p - w) < 1e-6 for w in first):
            continue  # where p hardly depends on t
        truth = masses(low)[1].log()
        assert truth < log_q
        assert log_q - float(truth.mid()) < 1e-9 * (1.0 + abs(log_q)) / min(1.0 - p, 1.0)
