"""What a result that was read says against itself, as after an edit by hand: a page would show both."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from dpaudit.verify.results import DISAGREEMENT, PROMISED_POWER, AttackResult, AuditResult, Verdict, to_json

ROUNDING = 1e-6  # relative, of bounds that meet


def verdict_contradiction(verdict: Verdict) -> str:
    """Why a verdict is not what its own bracket decides, as a clause; "" where it is."""
    least, most = (verdict.epsilon_lower, verdict.delta_lower), (verdict.epsilon_upper, verdict.delta_upper)
    proven = verdict.confidence == 1 and DISAGREEMENT not in verdict.methods  # else bounds may cross
    for name, low, high in zip(("epsilon", "delta"), least, most, strict=True):
        if proven and low > high * (1 + ROUNDING):
            return f"{name} is at least {low:g} and at most {high:g}"
    if verdict.guarantee is not None:
        return _of_a_guarantee(verdict, verdict.guarantee) if proven else ""
    claimed = verdict.epsilon_claimed, verdict.delta_claimed
    if (
        verdict.verdict == "undecided"
        and proven
        and (verdict.delta_upper <= claimed[1] or verdict.delta_lower > claimed[1])
    ):
        return (
            f"it is undecided, and delta is at least {verdict.delta_lower:g} and at most {verdict.delta_upper:g}, "
            f"which decides {verdict.delta_claimed:g}"
        )
    if verdict.verdict == "certified" and not any(bound <= at for bound, at in zip(most, claimed, strict=True)):
        return f"it is certified, and delta is at most {verdict.delta_upper:g}, not {verdict.delta_claimed:g}"
    if verdict.verdict == "refuted" and not any(bound > at for bound, at in zip(least, claimed, strict=True)):
        return f"it is refuted, and delta is at least {verdict.delta_lower:g}, not above {verdict.delta_claimed:g}"
    for name, low, high, at in zip(("epsilon", "delta"), least, most, claimed, strict=True) if proven else ():
        if verdict.verdict == "certified" and low > at * (1 + ROUNDING):
            return f"it is certified, and {name} is at least {low:g}, not at most {at:g}"
        if verdict.verdict == "refuted" and high < at * (1 - ROUNDING):
            return f"it is refuted, and {name} is at most {high:g}, not above {at:g}"
    return ""


def claims_contradiction(claims: Iterable[tuple[Verdict, Mapping[str, Any] | None]]) -> str:
    """Why verdicts are not those of the claims beside them, each named once, as a clause; "" where they are.

    Args:
        claims: Every verdict with its claim as a claims file holds it, None where that is not known.
    """
    named: Counter[str] = Counter()
    for verdict, claim in claims:
        named[verdict.id] += 1
        if verdict.id and named[verdict.id] > 1:  # claims that are stated in Python may have none
            return f"the id {verdict.id!r} is that of two claims"
        if why := verdict_contradiction(verdict) or (claim and _of_another_claim(verdict, claim)):
            return f"{verdict.id}: {why}"
    return ""


def _of_another_claim(verdict: Verdict, claim: Mapping[str, Any]) -> str:
    said = {"id": verdict.id, "epsilon": verdict.epsilon_claimed, "delta": verdict.delta_claimed}
    told = claim.get("guarantee")
    if verdict.guarantee is not None and isinstance(told, Mapping):
        said["guarantee"] = to_json({key: verdict.guarantee.get(key) for key in told})
    for name, value in said.items():
        if claim.get(name) not in (None, value):
            return f"its {name} is {value!r}, and that of the claim beside it {claim[name]!r}"
    return ""


def _of_a_guarantee(verdict: Verdict, guarantee: Mapping[str, Any]) -> str:
    name, low, high = guarantee["parameter"], guarantee["lower"], guarantee["upper"]
    if low > high * (1 + ROUNDING):
        return f"{name} is at least {low:g} and at most {high:g}"
    stated = 0.0 if name == "points" else guarantee[name]  # of points: how many are broken
    if verdict.verdict == "certified" and low > stated * (1 + ROUNDING):
        return f"it is certified, and {name} is at least {low:g}, not at most {stated:g}"
    if verdict.verdict == "refuted" and high < stated * (1 - ROUNDING):
        return f"it is refuted, and {name} is at most {high:g}, not above {stated:g}"
    return ""


def _of_an_attack(attack: AttackResult, result: AuditResult) -> str:
    shown, bound, seen = attack.epsilon_lower, attack.bound, attack.curve_violation
    if shown is not None and (result.epsilon_lower is None or shown > result.epsilon_lower):
        return f"{attack.name} shows epsilon at least {shown:g}, and all attacks together {result.epsilon_lower}"
    if bound is not None and result.claim.get("delta") not in (None, bound.delta):
        return f"{attack.name} has a bound at delta {bound.delta:g}, and the claim is of {result.claim['delta']:g}"
    if bound is not None and bound.epsilon_lower != shown:
        return f"{attack.name} shows epsilon at least {shown}, by a bound of {bound.epsilon_lower:g}"
    if seen is not None and not (seen.violated and (seen.p_value is None or seen.p_value < 1 - result.confidence)):
        return f"{attack.name} exceeds a curve that its own test does not find violated"
    p_value = attack.details.get("p_value", 0.0)
    if f"{attack.name}:p_value" in result.refuted_by and not 0 <= p_value <= 1 - result.confidence:
        return f"{attack.name} refutes with a p-value of {p_value:g} at {result.confidence:g} confidence"
    return ""


def contradiction(result: AuditResult) -> str:
    """Why an audit's verdict is not what its findings decide, as a clause; "" where it is."""
    found, stated = [], result.claim
    if stated.get("epsilon", result.epsilon_claimed) != result.epsilon_claimed:
        return f"epsilon_claimed is {result.epsilon_claimed:g}, and the claim is of epsilon {stated['epsilon']:g}"
    for name, check in (("claim-check", result.claim_check), ("as-run", result.check_as_run)):
        if check is not None and (why := verdict_contradiction(check)):
            return f"{name}: {why}"
        if check is not None and check.epsilon_claimed != result.epsilon_claimed:
            return f"{name} is of epsilon {check.epsilon_claimed:g}, and the claim of {result.epsilon_claimed:g}"
        if check is not None and (why := _of_another_claim(check, stated)):
            return f"{name}: {why}"
        found += [name] if check is not None and check.verdict == "refuted" else []
    possible: list[str] = []
    for attack in result.attacks:
        above = attack.epsilon_lower is not None and attack.epsilon_lower > result.epsilon_claimed
        tested = isinstance(attack.details.get("p_value"), float)
        found += attack.refuting(result.epsilon_claimed)
        possible += [
            f"{attack.name}:{kind}" for kind, shown in (("epsilon_lower", above), ("p_value", tested)) if shown
        ]
    possible += found
    for name in result.refuted_by:
        if name not in possible:
            return f"it is refuted by {name!r}, which its findings do not show"
    for name in found:
        if name not in result.refuted_by:
            return f"{name} contradicts the claim, and is not among what refutes it"
    if (result.verdict == "refuted") != bool(result.refuted_by):
        return f"it is {result.verdict}, and what refutes it is {', '.join(result.refuted_by) or 'nothing'}"
    if result.verdict == "not_refuted" and result.control is not None and not result.control.gives_power:
        return "it is not_refuted, and its positive control does not give it the power to say so"
    if result.verdict == "not_refuted" and {"noise_seen", "noise_repeated"} & set(result.reproduce):
        return "it is not_refuted, and its training was seen to lack noise"
    for attack in result.attacks:
        if why := _of_an_attack(attack, result):
            return why
    most = max((attack.epsilon_lower or 0.0 for attack in result.attacks), default=0.0)
    if result.epsilon_lower is not None and result.epsilon_lower > most:
        return f"epsilon is at least {result.epsilon_lower:g}, and no attack shows more than {most:g}"
    if result.control is not None and result.control.found and result.control.power < PROMISED_POWER:
        return f"its positive control found what it finds in a share of {result.control.power:g}"
    return ""
