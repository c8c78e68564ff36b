"""Scores, events and composed pairs in balls against counts and closed forms."""

from itertools import product
from math import comb, prod

import pytest

pytest.importorskip("flint")

from flint import arb

from dpaudit.mechanisms import Gaussian
from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.rigorous.balls import ball, precision, total
from dpaudit.verify.rigorous.bracket import rigorous_bracket
from dpaudit.verify.rigorous.choices import chosen_event
from dpaudit.verify.rigorous.events import Event, binomial_tail, event_probabilities
from dpaudit.verify.rigorous.gaussian import gaussian_delta
from dpaudit.verify.rigorous.scores import ScoreWindow, resolution

BITS = 128


@pytest.mark.parametrize("count", [1, 2, 7, 30])
def test_sums_of_fair_signs_are_binomial(count: int) -> None:
    window = ScoreWindow(40, BITS)
    masses = window.masses(window.repeated(window.law([arb(1) / 2, arb(1) / 2], [-1, 1]), count))
    for k in range(count + 1):
        assert masses[2 * k - count + 40] == comb(count, k) << (BITS - count)


def folded(one: int | None, other: int | None, size: int) -> int | None:
    """None is above the window, for good; what is below counts as its end."""
    if one is None or other is None or one + other > size:
        return None
    return max(-size, one + other)


def test_a_low_sum_counts_as_the_end_and_a_high_one_is_left_out() -> None:
    size, steps = 3, {-2: 0.25, 1: 0.5, 2: 0.25}
    window = ScoreWindow(size, BITS)
    expected = dict.fromkeys(range(-size, size + 1), 0.0)
    for draws in product(steps, repeat=4):  # four draws are added in two pairs
        total = folded(folded(*draws[:2], size), folded(*draws[2:], size), size)
        if total is not None:
            expected[total] += prod(steps[draw] for draw in draws)
    law = window.law([arb(mass) for mass in steps.values()], list(steps))
    masses = window.masses(window.repeated(law, 4))
    assert [float(window.ball(mass)) for mass in masses] == list(expected.values())
    assert sum(expected.values()) < 1


def test_masses_are_rounded_down_and_what_is_unknown_is_left_out() -> None:
    window = ScoreWindow(1, 64)
    with precision():
        third = window.floor(arb(1) / 3)
    assert 3 * third < 2**64 <= 3 * third + 3
    assert window.floor(arb("nan")) == window.floor(arb(-1)) == window.floor(arb("1e-99999")) == 0
    assert window.floor(arb("0.5 +/- 0.1")) <= 2 * 2**64 // 5


@pytest.mark.parametrize("delta", [0.0, 1e-300, 1e-60, 1e-5, 0.5])
def test_the_resolution_lies_far_below_delta(delta: float) -> None:
    assert 2.0 ** -resolution(delta) <= max(delta, 1e-60) * 1e-24
    assert resolution(delta, 100.0) >= resolution(delta) + 144


def test_binomial_tail_is_the_sum() -> None:
    p = ball("0.3")
    with precision():
        for k in range(-1, 13):
            direct = total([arb(comb(11, i)) * p**i * (1 - p) ** (11 - i) for i in range(max(k, 0), 12)])
            assert binomial_tail(11, k, p).overlaps(direct)


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0])
def test_one_gaussian_release_is_met_from_both_sides(epsilon: float) -> None:
    claim = Claim.single(Gaussian(1.0), epsilon=epsilon, delta=1e-5)
    found, truth = rigorous_bracket(claim), gaussian_delta(arb(1), ball(epsilon))
    assert not hasattr(found, "reason")
    assert found.delta_lower <= truth <= found.delta_upper
    assert found.delta_lower > 0.999 * float(truth)


def test_phases_compose_to_one_gaussian() -> None:
    phases = [Phase(Gaussian(4.0), 7), Phase(Gaussian(3.0), 5)]
    claim, mu = Claim(1.0, 1e-5, phases), (arb(7) / 16 + arb(5) / 9).sqrt()
    event = chosen_event(claim, 1, "remove")
    assert isinstance(event, Event)
    with precision():
        p, q = event_probabilities(claim.phases, event)
        lower, truth = p - arb(1).exp() * q, gaussian_delta(mu, arb(1))
    assert lower <= truth
    assert lower > 0.99 * truth


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_sampling_mixes_before_composition(direction: str) -> None:
    claim = Claim.single(Gaussian(1.0), epsilon=0.5, delta=1e-5, sampling_prob=0.25)
    event = chosen_event(claim, 1, direction)
    assert isinstance(event, Event)
    with precision():
        p, q = event_probabilities(claim.phases, event)
        growth, rate = arb(1) / 2, arb(1) / 4
        a = growth.exp()
        inner = (1 + (a - 1) / rate) if direction == "remove" else rate * a / (1 - (1 - rate) * a)
        factor = rate if direction == "remove" else 1 - (1 - rate) * a
        truth = factor * gaussian_delta(arb(1), inner.log()) if factor > 0 and inner > 0 else arb(0)
        assert p - a * q <= truth + arb(1e-25)


@pytest.mark.slow
def test_a_long_sampled_history_is_bracketed_like_the_fast_engine() -> None:
    from dpaudit.verify import check

    claim = Claim.single(Gaussian(1.0), epsilon=1.5, delta=1e-5, steps=200, sampling_prob=0.01)
    found, fast = rigorous_bracket(claim), check(claim)
    assert not hasattr(found, "reason")
    assert found.delta_lower <= fast.delta_upper
    assert fast.delta_lower <= found.delta_upper
    assert found.delta_upper < 1.05 * found.delta_lower
