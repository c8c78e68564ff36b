"""The search refutes what is wrong, is silent on what is right, and names every law that is broken."""

import json
import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from dpaudit.mechanisms import GammaPLRV, GammaPLRVIID, Gaussian, GeneralizedGaussian, Laplace, Product
from dpaudit.mechanisms.base import Mechanism
from dpaudit.verify.accountants import DPAccounting, Opacus, Published
from dpaudit.verify.accountants.audit import audit_accountant
from dpaudit.verify.claims import Phase
from dpaudit.verify.strategies import Setting, gaussian_settings, round_numbers


def exact(mechanism: Mechanism, steps: int, delta: float) -> float:
    """Unsampled Gaussian releases: Balle and Wang (2018), Theorem 8, inverted."""
    assert isinstance(mechanism, Gaussian)
    mu = math.sqrt(steps) / mechanism.noise_multiplier

    def excess(epsilon: float) -> float:
        second = math.exp(epsilon + float(log_ndtr(-mu / 2 - epsilon / mu)))
        return float(ndtr(mu / 2 - epsilon / mu)) - second - delta

    return float(brentq(excess, 0.0, mu * mu / 2 + 40 * mu, xtol=1e-13)) if excess(0.0) > 0 else 0.0


UNSAMPLED = st.builds(
    Setting,
    mechanism=st.builds(Gaussian, round_numbers(1.0, 20.0)),
    sampling_prob=st.just(1.0),
    steps=st.integers(1, 20),
    delta=round_numbers(1e-8, 1e-2, near=1e-5),
)


def once(
    mechanism: SearchStrategy[Any], sampling_prob: SearchStrategy[float], delta: float = 1e-5
) -> SearchStrategy[Setting]:
    """One release of the mechanism."""
    return st.builds(Setting, mechanism=mechanism, sampling_prob=sampling_prob, steps=st.just(1), delta=st.just(delta))


def laws_broken_by(accountant: Any) -> set[str]:
    audit = audit_accountant(accountant, UNSAMPLED, seed=3, examples=1, law_examples=8)
    return {item.law for item in audit.law_violations}


def test_the_exact_value_is_never_contradicted_and_breaks_no_law() -> None:
    audit = audit_accountant(lambda m, q, t, d: exact(m, t, d), UNSAMPLED, seed=1, examples=40, law_examples=4)
    assert (audit.refuted, audit.witness, audit.law_violations, audit.refusals) == (False, None, [], {})
    assert audit.tried >= 20


@pytest.mark.slow
def test_two_percent_below_the_exact_value_is_found() -> None:
    audit = audit_accountant(lambda m, q, t, d: 0.98 * exact(m, t, d), UNSAMPLED, seed=1, examples=20, law_examples=0)
    found = audit.witness
    assert found is not None
    truth = exact(found.setting.mechanism, found.setting.steps, found.setting.delta)
    assert found.epsilon_claimed < found.epsilon_lower <= truth
    assert found.delta_lower > found.setting.delta


@pytest.mark.slow
def test_the_same_seed_finds_the_same_again_and_the_finding_is_json() -> None:
    first, second = (
        audit_accountant(lambda m, q, t, d: 0.9 * exact(m, t, d), UNSAMPLED, seed=5, examples=5, law_examples=1)
        for _ in range(2)
    )
    assert first.to_dict() == second.to_dict()
    data = json.loads(json.dumps(first.to_dict()))
    assert data["witness"]["mechanism"]["name"] == "gaussian"
    assert data["witness"]["epsilon_claimed"] < data["witness"]["epsilon_lower"]
    assert data["witness"]["neighbours"]["norm"] <= 1.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("law", "accountant"),
    [
        ("an answer, not a crash", lambda m, q, t, d: 1 / (t - 1)),
        ("an answer, not a crash", lambda m, q, t, d: None),
        ("a number that is not negative", lambda m, q, t, d: math.nan if d > 0.5 else exact(m, t, d)),
        ("a number that is not negative", lambda m, q, t, d: exact(m, t, d) - (d > 0.5)),
        ("more steps never cost less", lambda m, q, t, d: exact(m, min(t, 10 - t % 10), d)),
        ("more noise never costs more", lambda m, q, t, d: m.noise_multiplier),
        ("a smaller delta never costs less", lambda m, q, t, d: d),
    ],
)
def test_a_broken_law_is_named(law: str, accountant: Any) -> None:
    assert law in laws_broken_by(accountant)


def test_releases_told_one_by_one_must_cost_what_they_cost_at_once() -> None:
    class Forgetful:
        def __call__(self, mechanism: Mechanism, q: float, steps: int, delta: float, /) -> float:
            return exact(mechanism, steps, delta)

        def history(self, phases: Sequence[Phase], delta: float) -> float:
            return exact(phases[-1].mechanism, phases[-1].steps, delta)

    assert laws_broken_by(Forgetful()) == {"n steps at once cost what n times one do"}
    assert laws_broken_by(DPAccounting("rdp")) == set()


def test_what_an_accountant_declines_is_counted_and_not_held_against_it() -> None:
    def declines(mechanism: Mechanism, q: float, steps: int, delta: float, /) -> float:
        raise NotImplementedError("not this noise")

    audit = audit_accountant(declines, UNSAMPLED, seed=1, examples=10, law_examples=5)
    assert (audit.refuted, audit.tried, audit.law_violations) == (False, 0, [])
    assert set(audit.refusals) == {"NotImplementedError: not this noise"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"examples": 0}, "Expected examples=0 at least 1"),
        ({"law_examples": -1}, "law_examples=-1 at least 0"),
        ({"tolerance": math.nan}, "Expected tolerance=nan at least 0"),
        ({"seed": -1}, r"Expected seed=-1 in the integers of \[0, inf\)"),
        ({"seed": "1"}, "Expected seed='1' to be a number in the integers"),
        ({"accountant": None}, r"Expected accountant=None to be a function \(mechanism, sampling_prob, steps, delta\)"),
    ],
)
def test_impossible_searches_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        audit_accountant(**{"accountant": Opacus("rdp"), "seed": 1, **arguments})


@pytest.mark.slow
def test_opacus_gdp_is_refuted_by_the_search_itself() -> None:
    audit = audit_accountant(Opacus("gdp"), seed=7, examples=40, law_examples=0)
    assert audit.witness is not None
    # what proves it is not our numerics alone: a pessimistic accountant agrees that the truth may be as large
    setting, found = audit.witness.setting, audit.witness
    above = DPAccounting("pld")(setting.mechanism, setting.sampling_prob, setting.steps, setting.delta)
    assert found.epsilon_claimed < found.epsilon_lower <= above


def test_opacus_gdp_is_a_fifth_of_an_epsilon_short_at_an_ordinary_setting() -> None:
    ordinary = st.just(Setting(Gaussian(1.0), 0.01, 1000, 1e-5))
    found = audit_accountant(Opacus("gdp"), ordinary, seed=1, examples=1, law_examples=0).witness
    assert found is not None
    assert found.epsilon_claimed == pytest.approx(1.618, abs=5e-4)
    assert 1.825 <= found.epsilon_lower <= 1.8285  # 1.828 by dp-accounting's PLD


@pytest.mark.slow
@pytest.mark.parametrize("accountant", [Opacus("rdp"), DPAccounting("rdp"), DPAccounting("pld", 1e-3)], ids=str)
def test_the_sound_accountants_are_not_contradicted(accountant: Any) -> None:
    moderate = gaussian_settings().filter(lambda s: s.steps <= 100 and s.mechanism.noise_multiplier >= 1)
    audit = audit_accountant(accountant, moderate, seed=11, examples=12, law_examples=0)
    assert not audit.refuted, audit.to_dict()
    assert audit.tried >= 6


def counterexample(name: str, strategy: SearchStrategy[Setting], examples: int) -> Setting:
    found = audit_accountant(Published(name), strategy, seed=1, examples=examples, law_examples=0).witness
    assert found is not None
    assert found.epsilon_claimed < found.epsilon_lower
    return found.setting


RATES = st.sampled_from([1.0, 0.5, 0.1, 0.01])
FEW = st.sampled_from([1, 2, 3, 4, 8])


@pytest.mark.slow
def test_sampled_laplace_shrinks_to_two_coordinates() -> None:
    noise = st.builds(Laplace, scale=st.sampled_from([1.0, 0.5, 2.0, 5.0, 20.0]), dimension=FEW)
    found = counterexample("lap2-theorem-iii.7", once(noise, RATES), 20)  # plrvo-theorem-4.5 is the same
    # in one coordinate, or without sampling, the theorem holds
    assert found.mechanism.dimension == 2
    assert found.sampling_prob < 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", [GammaPLRV, GammaPLRVIID])
def test_sampled_gamma_plrv_shrinks_to_a_few_coordinates(kind: Any) -> None:
    noise = st.builds(
        kind, k=st.sampled_from([10.0, 100.0, 1000.0]), theta=st.sampled_from([0.1, 0.01, 0.001]), dimension=FEW
    )
    found = counterexample("plrvo-theorem-4.9", once(noise, st.sampled_from([0.1, 0.01])), 20)
    assert found.mechanism.dimension in (2, 3, 4)


MANY = st.sampled_from([1, 2, 5, 10, 20, 50, 100])


@pytest.mark.slow
def test_a_shared_scale_is_refuted_without_sampling() -> None:
    noise = st.builds(GammaPLRV, k=st.sampled_from([3.0, 10.0]), theta=st.just(0.1), dimension=MANY)
    found = counterexample("plrvo-theorem-4.9", once(noise, st.just(1.0)), 14)
    assert found.mechanism.dimension in (50, 100)


def test_a_scale_per_coordinate_is_not_refuted_without_sampling() -> None:
    noise = st.builds(GammaPLRVIID, k=st.sampled_from([3.0, 10.0]), theta=st.just(0.1), dimension=MANY)
    theorem = Published("plrvo-theorem-4.9")
    audit = audit_accountant(theorem, once(noise, st.just(1.0)), seed=1, examples=14, law_examples=0)
    assert not audit.refuted
    assert audit.tried >= 8


@pytest.mark.slow
def test_product_noise_is_refuted_in_a_few_coordinates() -> None:
    noise = st.builds(Product, sigma=st.just(10.0), dimension=st.sampled_from([4, 5, 8]))
    found = counterexample("product-theorem-8", once(noise, st.just(1.0)), 3)
    # the theorem is about replaced records, whose sums are 2 clip apart: half of that already contradicts it
    assert found.mechanism.dimension in (4, 5, 8)


@pytest.mark.slow
def test_generalized_gaussian_is_refuted_in_a_few_coordinates() -> None:
    def noise(beta: float, scale: float, dimension: int) -> Mechanism:
        return GeneralizedGaussian(beta, scale, clip_norm=beta, dimension=dimension)

    drawn = st.builds(noise, st.sampled_from([2.0, 3.0]), st.just(3.0), st.sampled_from([1, 2, 6, 8]))
    found = counterexample("gg-b.2", once(drawn, st.just(1.0)), 12)
    assert isinstance(found.mechanism, GeneralizedGaussian)
    assert found.mechanism.beta == 3.0
    assert found.mechanism.dimension in (6, 8)


def argmax_delta(counts: int, moved: int, epsilon: float) -> float:
    """P(S) - e^epsilon Q(S), S: the argmax is none of the `moved` counts, which are up by 1 under Q; N(0, 1) noise."""

    def moved_wins(up: float) -> float:
        def density(x: float) -> float:  # the largest of the moved counts is at x, the unmoved ones are below
            weight = moved * math.exp(-0.5 * (x - up) ** 2) / math.sqrt(2 * math.pi)
            return float(weight * ndtr(x - up) ** (moved - 1) * ndtr(x) ** (counts - moved))

        return float(quad(density, -8.0, 10.0, epsabs=1e-12)[0])

    return 1.0 - moved_wins(0.0) - math.exp(epsilon) * (1.0 - moved_wins(1.0))


def test_the_noisy_argmax_is_refuted_by_few_counts() -> None:
    assert argmax_delta(10, 5, 0.5) == pytest.approx(0.2637, abs=5e-5)  # against 0.2384 for one count
    noise = GeneralizedGaussian(2.0, math.sqrt(2.0), dimension=10)
    claimed = Published("gg-theorem-2")(noise, 1.0, 1, 0.2384)
    assert claimed == pytest.approx(0.5, abs=0.01)
    refuting = [(n, m) for n in range(2, 11) for m in range(1, n) if argmax_delta(n, m, claimed) > 0.2384]
    assert (10, 5) in refuting
    assert refuting[0] == (8, 4)
