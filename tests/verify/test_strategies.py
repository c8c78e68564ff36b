"""What the strategies draw: inside the declared domains, feasible, readable, and shrinking to the simplest."""

import math
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from dpaudit.mechanisms import GammaPLRV, GammaPLRVIID, Gaussian, GeneralizedGaussian, Product
from dpaudit.mechanisms.base import CLIP, Mechanism
from dpaudit.mechanisms.registry import MECHANISMS
from dpaudit.verify.claims import SAMPLING_PROB, STEPS, Adjacency, Claim, Phase
from dpaudit.verify.guarantees import DELTA, EPSILON
from dpaudit.verify.lower import certified_lower
from dpaudit.verify.strategies import (
    Setting,
    accountant_settings,
    aim_at_violation,
    gaussian_settings,
    mechanisms,
    round_numbers,
)
from dpaudit.verify.upper import upper_curves
from dpaudit.verify.upper.shift_norms import radius

steady = settings(max_examples=100, derandomize=True, deadline=None, database=None)


def found(strategy: Any, condition: Any = lambda _: True) -> Any:
    return hypothesis.find(strategy, condition, settings=settings(database=None, derandomize=True, deadline=None))


@steady
@given(st.data(), st.sampled_from([(1e-3, 1.0), (0.5, 10.0), (1e-10, 1e-3), (0.7, 0.9)]))
def test_round_numbers_have_three_digits_and_stay_inside(data: Any, ends: tuple[float, float]) -> None:
    value = data.draw(round_numbers(*ends))
    assert ends[0] <= value <= ends[1]
    assert float(f"{value:.2e}") == value


def test_round_numbers_shrink_to_few_digits_near_the_simplest_value() -> None:
    assert found(round_numbers(1e-10, 1e-3, near=1e-5)) == 1e-5
    one_digit = found(round_numbers(1.0, 20_000.0, integer=True), lambda t: t > 130)
    assert one_digit > 130
    assert float(f"{one_digit:.0e}") == one_digit


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (2.0, 1.0), (1.0, math.inf), (1.2341, 1.2349)])
def test_round_numbers_refuse_a_range_without_them(low: float, high: float) -> None:
    with pytest.raises(ValueError, match="Expected"):
        round_numbers(low, high)


def test_every_registered_mechanism_is_drawn_from_its_typical_ranges() -> None:
    seen = set()

    @settings(steady, max_examples=300)
    @given(mechanisms())
    def look(mechanism: Mechanism) -> None:
        seen.add(mechanism.name)
        for name, domain in {**mechanism.domains, "clip": CLIP}.items():
            assert domain.typical[0] <= getattr(mechanism, name) <= domain.typical[1]
        assert mechanism.dimension is not None

    look()
    assert seen == set(MECHANISMS)


def test_an_unknown_mechanism_is_refused() -> None:
    with pytest.raises(ValueError, match="Expected name='gausian' to be one of gaussian"):
        mechanisms(["gausian"])


@steady
@given(gaussian_settings())
def test_gaussian_settings_are_ordinary_and_within_reach_of_a_grid(setting: Setting) -> None:
    assert isinstance(setting.mechanism, Gaussian)
    for domain, value in ((SAMPLING_PROB, setting.sampling_prob), (STEPS, setting.steps), (DELTA, setting.delta)):
        assert domain.typical[0] <= value <= domain.typical[1]
    growth = math.expm1(setting.mechanism.noise_multiplier**-2.0)
    assert setting.sampling_prob * math.sqrt(setting.steps * growth) <= 10.0 * (1 + 1e-12)


def test_few_drawn_settings_are_alike() -> None:
    seen: list[Setting] = []

    @settings(steady, max_examples=300)
    @given(gaussian_settings())
    def look(setting: Setting) -> None:
        seen.append(setting)

    look()
    assert len(set(seen)) >= 0.7 * len(seen)  # Hypothesis repeats itself now and then
    assert sum(setting.sampling_prob == 1.0 for setting in seen) >= 3


@st.composite
def claims(
    draw: st.DrawFn, mechanism: SearchStrategy[Mechanism], *, adjacency: SearchStrategy[Adjacency], max_phases: int
) -> Claim:
    drawn = [draw(accountant_settings(mechanism)) for _ in range(draw(st.integers(1, max_phases)))]
    return Claim(
        epsilon=draw(round_numbers(*EPSILON.typical)),
        delta=drawn[0].delta,
        phases=[Phase(item.mechanism, item.steps, item.sampling_prob) for item in drawn],
        adjacency=draw(adjacency),
    )


def test_the_search_is_told_the_logarithm_of_the_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[float] = []
    monkeypatch.setattr(hypothesis, "target", lambda value, label: told.append(value))
    aim_at_violation(2e-5, 1e-5)
    aim_at_violation(0.0, 1e-5)
    aim_at_violation(1e-5, 0.0)
    assert told == [math.log(2e-5 / 1e-5)]


def moderate(claim: Claim) -> bool:
    """At most 300 releases; Gamma-PLRV's shifts at most a hundred times the noise: its cells grow in number with them.

    Beyond, epsilon is in the hundreds and a handful of claims would take most of the memory and the time. So would
    sampled noise of these two, which the tests of every upper bound have.
    """
    for phase in claim.phases:
        mechanism = phase.mechanism
        if isinstance(mechanism, (Product, GeneralizedGaussian)) and phase.sampling_prob < 1:
            return False
        if isinstance(mechanism, (GammaPLRV, GammaPLRVIID)):
            longest = radius(mechanism, 2.0, claim.adjacency)
            if longest is None or longest * mechanism.k * mechanism.theta > 100:
                return False
    return sum(phase.steps for phase in claim.phases) <= 300


@pytest.mark.slow
@settings(
    max_examples=7, derandomize=True, deadline=None, database=None, suppress_health_check=list(hypothesis.HealthCheck)
)
@given(claims(mechanisms(), adjacency=st.sampled_from(["add-remove", "replace-one"]), max_phases=2).filter(moderate))
def test_no_bound_offered_as_valid_lies_below_a_witness(claim: Any) -> None:
    lower, uppers = certified_lower(claim), upper_curves(claim)
    at_epsilon, at_delta = np.array([claim.epsilon]), np.array([claim.delta])
    delta_lower = float(lower.delta(at_epsilon)[0])
    for curve in uppers:
        assert curve.delta(at_epsilon)[0] >= delta_lower, (curve.theorem, lower.witness)
        assert curve.epsilon(at_delta)[0] >= lower.epsilon(at_delta)[0], (curve.theorem, lower.witness)
    aim_at_violation(delta_lower, min((float(curve.delta(at_epsilon)[0]) for curve in uppers), default=1.0))


def test_settings_of_other_mechanisms_can_be_asked_for() -> None:
    setting = found(accountant_settings(mechanisms(["gamma-plrv"])))
    assert isinstance(setting.mechanism, GammaPLRV)
    assert (setting.sampling_prob, setting.steps, setting.delta) == (1.0, 1, 1e-5)
