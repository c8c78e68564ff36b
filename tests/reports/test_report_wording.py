"""Numbers and sentences: directed rounding is checked in exact arithmetic, sentences against their result."""

import math
from dataclasses import replace
from fractions import Fraction
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpaudit.reports.summary import tiles
from dpaudit.reports.wording import (
    at_least,
    at_most,
    control_sentence,
    duration,
    figure,
    finished,
    percent,
    stated,
    verdict_sentence,
    words,
)

MAGNITUDES = st.floats(min_value=1e-300, max_value=1e300)


def exact(text: str) -> Fraction:
    return Fraction(text.replace(",", "").removesuffix("%"))


@given(MAGNITUDES)
def test_a_printed_bound_is_still_a_bound(value: float) -> None:
    below, above = exact(at_least(value)), exact(at_most(value))
    shortest = Fraction(repr(value))
    assert below <= shortest <= above
    assert above - below <= shortest / 1000


@given(MAGNITUDES)
def test_rounding_to_nearest_is_within_half_of_the_last_digit(value: float) -> None:
    assert abs(exact(figure(value)) - Fraction(repr(value))) <= Fraction(repr(value)) / 2000


@given(MAGNITUDES, MAGNITUDES)
def test_a_bound_that_exceeds_the_claim_also_does_so_in_print(first: float, second: float) -> None:
    low, high = sorted((first, second))
    if low < high:
        assert low < float(exact(at_least(high, above=low))) <= high


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (math.inf, "∞"), (0, "0"), (0.00012344, "0.0001234"), (12345678, "12,350,000"), (2.5e-17, "2.5e-17")],
)
def test_special_values(value: float | None, text: str) -> None:
    assert figure(value) == text


def test_a_chosen_number_keeps_its_digits() -> None:
    assert [stated(value) for value in (2.445, 1e-5, 40_000.0)] == ["2.445", "1e-5", "40,000"]


def test_a_confidence_is_never_rounded_up() -> None:
    assert [percent(value) for value in (0.9999999, 0.29, 0.95)] == ["99.99%", "29%", "95%"]


def test_times_and_values_in_words() -> None:
    assert duration(59.4) == "59 seconds"
    assert duration(60.6) == "1 min 1 s"
    assert words([["a", True], None, "inf", {}]) == "(a, yes), –, ∞, (–)"
    assert words(list(range(100))).endswith("11, ... (100 in all)")


def test_integers_are_whole_and_a_seed_is_as_it_is_typed_again() -> None:
    settings = {"seed": 639340496, "init_seed": 24225, "records": 123456789, "attacks": ["a"], "deep": {"seed": 2**127}}
    assert words(settings) == (
        f"seed 639340496, init seed 24225, records 123,456,789, attacks (a), deep (seed {2**127})"
    )
    assert words(639340496, "seed") == "639340496"
    assert words(12345678901.0) == "1.235e10"


def test_refuted_by_an_attack(samples: ModuleType) -> None:
    result = samples.make_result("refuted")
    sentence = verdict_sentence(result)
    assert sentence.startswith("The claim did not survive: an attack shows that training this way leaks more than")
    assert f"at least epsilon = {at_least(result.epsilon_lower)} at delta = 1e-5, 95% confidence" in sentence
    assert "promised 2.445)" in sentence
    assert "succeeds more often than the mechanism as described can allow" in sentence


def test_refuted_by_the_curve_alone_does_not_speak_of_the_headline(samples: ModuleType) -> None:
    sentence = verdict_sentence(samples.make_result("curve_only"))
    assert "the training does not do what is described" in sentence
    assert "leaks more than promised" not in sentence


def test_refuted_by_calculation(samples: ModuleType) -> None:
    result = samples.make_result("claim_check")
    sentence = verdict_sentence(replace(result, refuted_by=["claim-check"]))
    assert "by calculation alone" in sentence
    assert "at least epsilon = 5,098 at delta = 1e-5; promised 0.1" in sentence
    assert "attack" not in sentence


def test_an_infinite_or_hair_thin_excess_is_shown(samples: ModuleType) -> None:
    result = replace(samples.make_result("claim_check"), refuted_by=["claim-check"])
    for lower, text in ((math.inf, "epsilon = ∞"), (0.10000000001, "epsilon = 0.10000000001 ")):
        check = replace(result.claim_check, epsilon_lower=lower)
        assert text in verdict_sentence(replace(result, claim_check=check))


@pytest.mark.parametrize("verdict", ["certified", "undecided"])
def test_not_refuted_never_says_private(samples: ModuleType, verdict: str) -> None:
    sentence = verdict_sentence(samples.make_result(claim_check=samples.make_verdict(verdict=verdict)))
    assert sentence.startswith("Nothing we tried contradicts the claim epsilon = 2.445 at delta = 1e-5.")
    assert "not proof of privacy" in sentence
    assert ("the proof is the claim check: certified" in sentence) == (verdict == "certified")


def test_inconclusive_says_that_silence_says_nothing(samples: ModuleType) -> None:
    missed = samples.make_result("inconclusive")
    assert "says nothing of the training: it would not have found half the noise either. As for the mechanism, the" in (
        verdict_sentence(missed)
    )
    assert "no positive control was carried out" in verdict_sentence(replace(missed, control=None))
    seen = replace(missed, reproduce={**missed.reproduce, "noise_seen": [0.43, 0.5132]})
    assert "steps of it were seen to get at most 51.32% of the accounted noise. As" in verdict_sentence(seen)
    assert tiles(seen)[0].value == "at most 51.32%"
    again = replace(seen, reproduce={**seen.reproduce, "noise_repeated": [23, 1024]})
    assert "23 of its 1,024 noisy steps were seen to add the noise of an earlier one. As" in verdict_sentence(again)
    assert tiles(again)[0].value == "23 of 1,024 steps"
    for other in ([1], [True, 2], [3, 2], "12", [0, 5], [1.0, 2.0]):
        strange = replace(missed, reproduce={**missed.reproduce, "noise_repeated": other})
        assert verdict_sentence(strange) == verdict_sentence(missed)
    for other in ("1", [], ["0.5"], [2.0], [math.nan]):  # of a file that somebody wrote
        strange = replace(missed, reproduce={**missed.reproduce, "noise_seen": other})
        assert verdict_sentence(strange) == verdict_sentence(missed)


def test_the_control_is_told_with_its_counts(samples: ModuleType) -> None:
    found, missed = (control_sentence(samples.make_control(found)) for found in (True, False))
    one = control_sentence(replace(samples.make_control(True), trials=1))
    assert "on 1 model per arm of" in one
    canaries = control_sentence(replace(samples.make_control(True), trials=500, unit="canary"))
    assert "one more training (the built-in training), with 500 of its canaries in it" in canaries
    assert "per arm" not in canaries
    assert found.startswith("This audit would have found half the noise: yes (20 of 20).")
    assert missed.startswith("This audit would have found half the noise: no (7 of 20).")


def test_an_audit_that_was_stopped_is_not_said_to_have_had_the_power(samples: ModuleType) -> None:
    """Its control may have had hundreds of models, and it a few, or none."""
    stopped = replace(samples.make_result("gave_up"), control=samples.make_control(True))
    told = control_sentence(stopped.control, finished=finished(stopped))
    assert told.startswith("Had it been finished, this audit would have found half the noise: yes (20 of 20).")
    assert [tile.label for tile in tiles(stopped) if "half the noise" in tile.label] == [
        "Finished, would have found half the noise"
    ]
    assert finished(samples.make_result("inconclusive"))


def test_gave_up_names_the_reason(samples: ModuleType) -> None:
    sentence = verdict_sentence(samples.make_result("gave_up"))
    assert "stopped before it was finished (budget of 10m used up)" in sentence


def test_an_unknown_finding_is_named_rather_than_dropped(samples: ModuleType) -> None:
    assert "“lira:new”" in verdict_sentence(samples.make_result("refuted", refuted_by=["lira:new"]))
