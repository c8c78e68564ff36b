"""Numbers and sentences of the report. A printed bound is still a bound: lower ones are rounded down, upper ones up."""

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal
from functools import partial
from typing import Any

from dpaudit.verify.results import AttackResult, AuditResult, Control, CurveTest, Verdict

DASH = "–"
LONGEST = 6  # zeros that are written out
DIGITS = 4
SHORT = 10  # characters up to which a number that somebody chose keeps its digits; the JSON holds all of them
NOT_HIDDEN_BY_NOISE = "no, so these scores hardly tell who trained, whatever the noise is"
_EXACT = 17  # significant digits that tell any two doubles apart


def figure(value: float | None, digits: int = DIGITS) -> str:
    """A number to `digits` significant digits, rounded to nearest.

    >>> figure(0.00001), figure(1234567), figure(math.inf), figure(None), figure(20000)
    ('1e-5', '1,235,000', '∞', '–', '20,000')
    """
    return _text(value, digits, ROUND_HALF_EVEN)


def at_least(value: float | None, *, above: float | None = None) -> str:
    """A lower bound, rounded down; to as many digits as still show that it exceeds `above`, where it does.

    >>> at_least(2.44556), at_least(2.4450001, above=2.445), at_least(2.4450000000000007, above=2.445)
    ('2.445', '2.4450001', '2.4450000000000007')
    """
    if above is not None:
        above = max(above, _number(stated(above, below=value)))  # a reader compares with what is printed
    return _apart(value, above, ROUND_FLOOR)


def at_most(value: float | None, *, within: float | None = None) -> str:
    """An upper bound, rounded up; not beyond a promise that it keeps, so that what is shown proves it too.

    >>> at_most(2.44511), at_most(1.82844, within=1.82851), at_most(1.8279, within=1.9), at_most(1.9, within=1.82851)
    ('2.446', '1.82851', '1.828', '1.9')
    """
    short = _text(value, DIGITS, ROUND_CEILING)
    if value is None or within is None or not value <= within < _number(short):
        return short
    return stated(within)


def stated(value: float | None, *, below: float | None = None) -> str:
    """A number that somebody chose, with all its digits; of a calculated one as many as show that `below` exceeds it.

    >>> stated(2.445), stated(1e-5), stated(1.6061234), stated(2.5564312345678)
    ('2.445', '1e-5', '1.6061234', '2.55643123457')
    >>> stated(2.5564312345678, below=2.556431234568)
    '2.5564312345678'
    """
    short = figure(value, 12)
    if value is None or below is None or not below > value or _number(short) < below:
        return short
    return figure(value, _EXACT)


def percent(value: float, *, up: bool = False) -> str:
    """A confidence or a rate as a percentage to four digits, rounded down; a limit is rounded up.

    >>> percent(0.95), percent(0.99999), percent(1 - 0.05 / 3), percent(0.0012345, up=True)
    ('95%', '99.99%', '98.33%', '0.1235%')
    >>> percent(2.19149e-26, up=True)
    '2.192e-24%'
    """
    context = Context(prec=DIGITS, rounding=ROUND_CEILING if up else ROUND_FLOOR)
    hundredths = context.create_decimal(Decimal(repr(float(value))) * 100)
    if hundredths and hundredths.adjusted() < -LONGEST:
        return f"{hundredths:.{DIGITS - 1}e}%"
    return f"{_trim(f'{hundredths:f}')}%"


def duration(seconds: float) -> str:
    """A time in words.

    >>> duration(0.42), duration(75.2), duration(7300)
    ('0.42 seconds', '1 min 15 s', '2 h 1 min')
    """
    if seconds < 60.0:
        return f"{figure(seconds, 2)} seconds"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def date(text: str) -> str:
    """A date and time of ISO 8601 to the minute; other text as it is.

    >>> date("2026-03-01T17:05:42+00:00"), date("on a date not recorded")
    ('2026-03-01 17:05 UTC', 'on a date not recorded')
    """
    try:
        moment = datetime.fromisoformat(text)
    except (ValueError, TypeError):
        return str(text)
    return f"{moment:%Y-%m-%d %H:%M} {moment.tzname() or ''}".strip()


def counted(number: int, noun: str) -> str:
    """So many of something.

    >>> counted(1, "model"), counted(25000, "model")
    ('1 model', '25,000 models')
    """
    return f"{number:,} {noun}{'s' * (number != 1)}"


def words(value: Any, key: str = "") -> str:
    """Any JSON value on one line, for a reader. An integer is whole, and a seed as it is typed again.

    Args:
        value: Of the JSON.
        key: Its key, where it has one.

    >>> words({"name": "gaussian", "clip": 1.0, "sampling": {"kind": "poisson", "prob": 0.25}})
    'name gaussian, clip 1, sampling (kind poisson, prob 0.25)'
    >>> words([1.6666666666666667, 25000])
    '1.667, 25,000'
    >>> words({"records": 123456789, "seed": 639340496})
    'records 123,456,789, seed 639340496'
    """
    if value is None:
        return DASH
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and key.endswith("seed"):
        return str(value)
    if isinstance(value, int) and math.isfinite(value):  # OverflowError beyond floats: such a document is refused
        return f"{value:,}"
    if isinstance(value, float):
        return stated(value) if len(stated(value)) <= SHORT else figure(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{plain(name)} {_nested(item, name)}" for name, item in value.items()) or DASH
    if isinstance(value, Sequence) and not isinstance(value, str):
        shown = ", ".join(_nested(item) for item in value[:12])
        return f"{shown}, ... ({len(value)} in all)" if len(value) > 12 else shown or DASH
    return "∞" if value == "inf" else str(value)


def plain(key: Any) -> str:
    """A key of the JSON as a reader says it.

    >>> plain("canary_label")
    'canary label'
    """
    return str(key).replace("_", " ")


def rate(key: str) -> str:
    """A false-positive rate, the key of `tpr_at_fpr`, as a percentage.

    >>> rate("0.001"), rate("best")
    ('0.1%', 'best')
    """
    try:
        return percent(float(key))
    except ValueError:
        return key


def title(result: AuditResult) -> str:
    """The verdict in two or three words."""
    return {
        "refuted": "Claim refuted",
        "not_refuted": "Claim not refuted",
        "inconclusive": "Audit inconclusive",
        "gave_up": "Audit not finished",
    }[result.verdict]


def verdict_sentence(result: AuditResult) -> str:
    """The verdict in words that need no training in privacy.

    Args:
        result: A finished audit.
    """
    promise = f"epsilon = {promised_epsilon(result)}{at_delta(result)}"
    if result.verdict == "refuted":
        findings = [finding(result, name) for name in result.refuted_by] or ["its evidence contradicts the promise"]
        return f"The claim did not survive: {'; moreover, '.join(findings)}."
    if result.verdict == "gave_up":
        why = str(result.reproduce.get("stopped") or "").strip().rstrip(".")
        return (
            f"The audit stopped before it was finished{f' ({why})' if why else ''}. What was measured until then does "
            f"not contradict the claim {promise}; too little was measured to conclude anything from that."
        )
    if result.verdict == "inconclusive":
        control, seen, again = result.control, noise_seen(result), noise_repeated(result)
        why = (
            f"{again[0]:,} of its {again[1]:,} noisy steps were seen to add the noise of an earlier one"
            if again is not None
            else f"weights or steps of it were seen to get at most {percent(seen, up=True)} of the accounted noise"
            if seen is not None
            else "no positive control was carried out"
            if control is None
            else f"its positive control, which found {found_by(control)}, is of a training that shows more of a record "
            "than this one"
            if control.unlike
            else f"that it would have found {found_by(control)} is not to say that it would have found half the noise"
            if control.found
            else f"it would not have found {found_by(control)} either"
        )
        return (
            f"Nothing this audit tried contradicts the claim {promise}, and that says nothing of the training: {why}. "
            f"As for the mechanism, {_proof(result.calculation).removeprefix('and ')}"
        )
    tried = "Nothing we tried contradicts" if result.attacks else "No attack was carried out, and nothing contradicts"
    return f"{tried} the claim {promise}. That is not proof of privacy by itself; {_proof(result.calculation)}"


def noise_seen(result: AuditResult) -> float | None:
    """The most noise that some weights or steps got, of what was accounted, where the claim is refuted with it."""
    seen = result.reproduce.get("noise_seen")
    most = seen[-1] if isinstance(seen, list) and seen else None
    return most if isinstance(most, float) and 0 <= most < 1 else None


def noise_repeated(result: AuditResult) -> tuple[int, int] | None:
    """How many steps were seen to add the noise of an earlier one, and of how many."""
    seen = result.reproduce.get("noise_repeated")
    if not isinstance(seen, list) or len(seen) != 2 or not all(type(count) is int for count in seen):
        return None
    again, steps = seen
    return (again, steps) if 0 < again < steps else None


def control_badge(control: Control | None) -> str:
    """What the positive control showed, in a word or two."""
    if control is not None and control.unlike:
        return "another training"
    return "not done" if control is None else "found" if control.found else "missed"


def control_sentence(control: Control | None, *, finished: bool = True) -> str:
    """What the positive control showed, in sentences.

    Args:
        control: None where there was none.
        finished: Whether the audit had all the models that its control speaks of.
    """
    if control is None:
        return "Whether this audit would have found half the noise was not tried."
    power = power_sentence(control, finished=finished)
    if not control.no_noise_trials:  # judged by right guesses, and not by scores
        return (
            f"{power} The same canaries were scored after {counted(control.trials, 'training')} "
            f"({control.training}); of {control.resamples} samples drawn again of the right guesses, so many refute. "
            f"Were every guess right: {'yes' if control.no_noise_found else 'no'}. None of it counts for or against "
            "the claim."
        )
    tried = f"carried out on {counted(control.trials, 'model')} per arm of {control.training}"
    drawn = f"from their scores, {control.models:,} per arm, so many"
    if control.unit == "canary":
        tried = f"carried out in one more training ({control.training}), with {control.trials:,} of its canaries in it"
        drawn = "from the canaries' scores, so many"
    return (
        f"{power} The same attack was {tried}; of {control.resamples} samples drawn again {drawn} "
        f"refute. Without any noise: {'yes' if control.no_noise_found else NOT_HIDDEN_BY_NOISE}. None of it counts "
        "for or against the claim."
    )


def power_sentence(control: Control | None, *, finished: bool = True) -> str:
    """Whether the audit would have found the fault of its positive control, as `control_sentence`."""
    if control is None:
        return "Whether this audit would have found half the noise was not tried."
    answer = f"{'yes' if control.found else 'no'} ({times_found(control)})"
    if control.unlike:
        answer = f"not known ({times_found(control)} of another training). {control.unlike.removesuffix('.')}"
    audit = "This audit" if finished else "Had it been finished, this audit"
    return f"{audit} would have found {found_by(control)}: {answer}."


def finished(result: AuditResult) -> bool:
    """Whether nothing ended an audit early."""
    return not result.reproduce.get("stopped")


def times_found(control: Control) -> str:
    """How many of a control's simulated audits refute, such as "20 of 20"."""
    return f"{round(control.power * control.resamples)} of {control.resamples}"


def found_by(control: Control | None) -> str:
    """What a positive control looks for: a training with the share of the noise that it keeps."""
    factor = 0.5 if control is None else control.noise_factor
    if factor == 0:
        return "a training without any noise"
    return f"{'half' if factor == 0.5 else f'{figure(factor)} of'} the noise"


def proven_by(attack: AttackResult, claimed: float) -> str:
    """What an attack proves and what it takes for granted, as a clause.

    Args:
        attack: One of an audit's.
        claimed: Epsilon.
    """
    if attack.epsilon_lower is None:
        return "no epsilon"
    rounded = partial(at_least, above=claimed)
    assumed = f", supposing {attack.bound.assumes}" if attack.bound is not None and attack.bound.assumes else ""
    family = attack.family_bound
    more = "" if family is None else f" ({rounded(family.epsilon_lower)} if the noise is of the claimed family)"
    return f"epsilon >= {rounded(attack.epsilon_lower)}{assumed}{more}"


def finding(result: AuditResult, name: str) -> str:
    """One entry of `refuted_by` as a clause."""
    promised = f"promised {promised_epsilon(result)}"
    check = result.claim_check
    if name == "claim-check" and check is not None:
        level = "" if check.confidence >= 1.0 else f", {percent(check.confidence)} confidence"
        shown = at_least(check.epsilon_lower, above=check.epsilon_claimed)
        return (
            "by calculation alone, the mechanism can leak more than promised "
            f"(at least epsilon = {shown}{at_delta(result)}{level}; {promised})"
        )
    run = result.check_as_run
    if name == "as-run" and run is not None:
        shown = at_least(run.epsilon_lower, above=run.epsilon_claimed)
        return (
            "by calculation alone, the batches that the training draws, which are not those that were accounted, can "
            f"leak more than promised (at least epsilon = {shown}{at_delta(result)}; {promised})"
        )
    attack_name, _, kind = name.rpartition(":")
    attack = next((attack for attack in result.attacks if attack.name == attack_name), None)
    if attack is not None and kind == "epsilon_lower":
        shown = at_least(attack.epsilon_lower, above=result.epsilon_claimed)
        return (
            "an attack shows that training this way leaks more than promised "
            f"(at least epsilon = {shown}{at_delta(result)}, {percent(result.confidence)} confidence; {promised})"
        )
    if attack is not None and kind == "curve_violation" and attack.curve_violation is not None:
        seen = attack.curve_violation
        return (
            "an attack succeeds more often than the mechanism as described can allow, so the training does not do what "
            f"is described (it recognised {percent(seen.tpr)} of the {_members(attack)} where "
            f"{percent(seen.tpr_allowed, up=True)} is the most that {percent(seen.fpr)} false alarms allow; "
            f"{percent(result.confidence)} confidence)"
        )
    if attack is not None and kind == "p_value":
        return (
            f"an attack succeeds more often than what is promised allows ({promised}{at_delta(result)}; evidence as "
            f"strong as this has probability at most {figure(attack.details['p_value'], 2)} where that holds; "
            f"{percent(result.confidence)} confidence)"
        )
    return f"the finding “{name}” contradicts it"


def finding_certainty(result: AuditResult, finding: tuple[AttackResult, CurveTest] | None) -> str:
    """How sure a finding of rates above the certified curve is, in sentences; "" without one."""
    if finding is None:
        return ""
    test = finding[1]
    counts = test.inputs
    chance = (
        f"If the training did what is described, evidence as strong as this had probability at most "
        f"{figure(test.p_value, 2)}. "
        if test.p_value is not None
        else ""
    )
    numbers = (
        f"Counted: {stated(counts['tp'])} of {stated(counts['tp'] + counts['fn'])} models with the record recognised, "
        f"{stated(counts['fp'])} of {stated(counts['fp'] + counts['tn'])} without it accused. "
        if {"tp", "fp", "tn", "fn"} <= counts.keys()
        else ""
    )
    of = "all thresholds at once"
    if {"correct", "guesses", "canaries"} <= counts.keys():
        numbers = f"Counted: {stated(counts['correct'])} of {stated(counts['guesses'])} guesses right. "
        of = "that number"
    return (
        f"{chance}{numbers}The test is of {of}, at {percent(test.confidence)} confidence; all tests of this audit "
        f"together at {percent(result.confidence)}."
    )


def claimed_delta(result: AuditResult) -> float | None:
    """The delta of the claim, where the result names it."""
    delta = result.claim.get("delta")
    if delta is None and result.claim_check is not None:
        delta = result.claim_check.delta_claimed
    return None if delta is None else float(delta)


def at_delta(result: AuditResult) -> str:
    """The words " at delta = ...", or nothing."""
    delta = claimed_delta(result)
    return "" if delta is None else f" at delta = {stated(delta)}"


def promised_epsilon(result: AuditResult) -> str:
    """The claimed epsilon, with as many digits as tell it from every bound that exceeds it."""
    found = [result.epsilon_lower, *(attack.epsilon_lower for attack in result.attacks)]
    found += [check.epsilon_lower for check in (result.claim_check, result.check_as_run) if check is not None]
    above = [bound for bound in found if bound is not None and bound > result.epsilon_claimed]
    return stated(result.epsilon_claimed, below=min(above, default=None))


def check_summary(check: Verdict | None, *, as_run: Verdict | None = None) -> str:
    """What the claim check settled, in one sentence; one more of the batches as they are drawn, if these are others."""
    if as_run is not None:
        drawn = check_summary(as_run).replace("as described", "with these batches")
        return f"As accounted: {check_summary(check)} The training draws other batches: {drawn}"
    if check is None:
        return "The claim was not checked by calculation."
    if check.verdict == "certified":
        limit = at_most(check.epsilon_upper, within=check.epsilon_claimed)
        return (
            f"A valid upper bound proves epsilon ≤ {limit} at delta = "
            f"{stated(check.delta_claimed)} for the mechanism as described."
        )
    if check.verdict == "refuted":
        promised = stated(check.epsilon_claimed, below=check.epsilon_lower)
        return (
            f"A valid lower bound proves epsilon ≥ {at_least(check.epsilon_lower, above=check.epsilon_claimed)} at "
            f"delta = {stated(check.delta_claimed)}; {promised} was promised."
        )
    return (
        f"The bounds known here leave epsilon between {at_least(check.epsilon_lower)} and "
        f"{at_most(check.epsilon_upper)} at delta = {stated(check.delta_claimed)}, which does not decide the claim."
    )


def of_canaries(attack: AttackResult) -> bool:
    """Whether an attack counted right guesses of canaries that sealed coins put into trainings that nobody saw."""
    return unseen(attack) and "canaries" in attack.details


def unseen(attack: AttackResult) -> bool:
    """Whether an attack judged trainings that were not the audit's own, by their scores alone."""
    return "runs" in attack.arms


def _members(attack: AttackResult) -> str:
    return "canaries that were in" if of_canaries(attack) else "models trained with the record"


def _proof(check: Verdict | None) -> str:
    if check is None:
        return "and the claim itself was not checked by calculation."
    if check.verdict == "certified":
        return (
            f"the proof is the claim check: certified, epsilon is at most "
            f"{at_most(check.epsilon_upper, within=check.epsilon_claimed)} for a model trained exactly as described."
        )
    return f"and the claim check proves nothing either way: {check.verdict}."


def _nested(value: Any, key: str = "") -> str:
    return f"({words(value, key)})" if isinstance(value, (Mapping, list, tuple)) else words(value, key)


def _apart(value: float | None, above: float | None, rounding: str) -> str:
    if value is None or above is None or not value > above:
        return _text(value, DIGITS, rounding)
    texts = (_text(value, digits, rounding) for digits in range(DIGITS, _EXACT + 1))
    return next((text for text in texts if _number(text) > above), repr(value))


def _number(text: str) -> float:
    return float(text.replace("∞", "inf").replace(",", ""))


def _text(value: float | None, digits: int, rounding: str) -> str:
    """Rounded in decimal, so that a directed rounding is not undone by the float that would hold it."""
    if value is None:
        return DASH
    value = float(value)
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    shortest = Decimal(repr(value))
    rounded = Context(prec=digits, rounding=rounding).create_decimal(shortest)
    if rounded == 0:
        return "0"
    if not -4 <= rounded.adjusted() < 9:
        mantissa, _, exponent = f"{rounded:e}".partition("e")
        return f"{_trim(mantissa)}e{int(exponent)}"
    return _trim(f"{rounded:,f}")


def _trim(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text
