"""The first screen of an audit's report: what decided, what was tested and what was not, and with what power."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpaudit.reports.wording import (
    at_delta,
    at_least,
    at_most,
    control_badge,
    counted,
    finished,
    found_by,
    noise_repeated,
    noise_seen,
    of_canaries,
    percent,
    promised_epsilon,
    stated,
    times_found,
    unseen,
    words,
)
from dpaudit.verify.results import AttackResult, AuditResult, Control, CurveTest

NOT_STATED = "not stated"
FEWEST_FALSE_ALARMS = 5  # expected ones, below which a true-positive rate at that false-positive rate says nothing
# what the attacker of each shipped attack holds, unless it tells that itself, as "attacker_sees" of its arms
ATTACKER_SEES = {
    "membership": "outputs of the delivered model",
    "class-loss": "outputs of the delivered model",
    "lira": "outputs of the delivered model and of shadow models",
    "lira-online": "outputs of the delivered model and of shadow models",
    "rmia": "outputs of the delivered model and of shadow models",
    "reference": "outputs of the delivered model and of shadow models",
    "clipbkd": "outputs of retrained models",
    "history": "every noisy sum of retrained models along one line, on data of its own making",
    "output-perturbation": "released weights, computed anew",
    "approximate-minima": "released weights, computed anew",
    "one-run-blank": "outputs of one new model, and of some without canaries",
    "one-run-random-label": "outputs of one new model, and of some without canaries",
    "one-run-mislabelled": "outputs of one new model, and of some without canaries",
    "one-run-movement": "first and final weights of one new model",
    "one-run-sentences": "first and final weights of one new model",
    "sealed-canaries": "scores of the canaries, by whoever has the model",
    "white-box": "every noisy sum of one new training, and all other records",
}


@dataclass(frozen=True)
class Tile:
    """One number of the first screen.

    Args:
        label: What it is.
        value: The number.
        note: What it is measured against.
        tone: "decisive", "proof", "attack" or "".
    """

    label: str
    value: str
    note: str
    tone: str = ""


def curve_finding(result: AuditResult) -> tuple[AttackResult, CurveTest] | None:
    """The attack that exceeds the certified curve with the least p-value; None where none does."""
    found = [
        (attack, attack.curve_violation)
        for attack in result.attacks
        if attack.curve_violation is not None and f"{attack.name}:curve_violation" in result.refuted_by
    ]
    return min(found, key=lambda pair: 1.0 if pair[1].p_value is None else pair[1].p_value, default=None)


def by_curve_alone(result: AuditResult) -> bool:
    """Whether nothing refutes the claim but rates above the certified curve."""
    return bool(result.refuted_by) and all(name.endswith(":curve_violation") for name in result.refuted_by)


def training_deviates(result: AuditResult) -> bool:
    """Whether the mechanism as described would keep the promise that an attack refutes."""
    check = result.calculation
    return check is not None and check.verdict == "certified" and by_experiment(result)


def by_experiment(result: AuditResult) -> bool:
    """Whether something besides calculation refutes the claim."""
    return not set(result.refuted_by) <= {"claim-check", "as-run"}


def tiles(result: AuditResult) -> list[Tile]:
    """The first screen's numbers: what decided, the promise, the power, the mechanism, the attacks."""
    decided = decision(result)
    promised = Tile("Promised", f"ε = {promised_epsilon(result)}", at_delta(result).strip() or "δ not recorded")
    power = [] if result.verdict == "inconclusive" else [_power_tile(result)]
    rest = [*power, _mechanism_tile(result), _attack_tile(result)]
    return [decided, promised, *(tile for tile in rest if tile.value != decided.value)]


def decision(result: AuditResult) -> Tile:
    """The number that decided, and what it was held against."""
    check, promised = result.calculation, f"{promised_epsilon(result)} was promised"
    if result.verdict == "gave_up":
        return Tile(
            "Decided by", "nothing", str(result.reproduce.get("stopped") or "the audit was stopped"), "decisive"
        )
    if result.verdict == "inconclusive":
        return _inconclusive_tile(result)
    as_accounted = ", of the batches as accounted" if result.check_as_run is not None else ""
    for name, proof, batches in (
        ("as-run", result.check_as_run, ", of the batches as they are drawn"),
        ("claim-check", result.claim_check, as_accounted),
    ):
        if name in result.refuted_by and proof is not None:
            shown = at_least(proof.epsilon_lower, above=proof.epsilon_claimed)
            return Tile("Decided by: calculation", f"ε ≥ {shown}", f"by proof{batches}; {promised}", "decisive")
    if result.verdict == "refuted" and not by_curve_alone(result) and result.epsilon_lower is not None:
        shown = at_least(result.epsilon_lower, above=result.epsilon_claimed)
        return Tile("Decided by: an attack", f"ε ≥ {shown}", f"by experiment; {promised}", "decisive")
    finding = curve_finding(result)
    if finding is not None:
        seen = finding[1]
        return Tile(
            f"Decided by: members recognised at {percent(seen.fpr)} false alarms",
            f"seen {percent(seen.tpr)}",
            f"at most {percent(seen.tpr_allowed, up=True)} allowed by the mechanism",
            "decisive",
        )
    if check is None or check.verdict != "certified":
        return Tile("Decided by", "nothing", "no attack refutes the claim, and no proof settles it", "decisive")
    limit = at_most(check.epsilon_upper, within=check.epsilon_claimed)
    return Tile("Decided by: calculation", f"ε ≤ {limit}", f"by proof; {promised}", "decisive")


def _inconclusive_tile(result: AuditResult) -> Tile:
    most, again = noise_seen(result), noise_repeated(result)
    if again is not None:
        value = f"{again[0]:,} of {again[1]:,} steps"
        note = "were seen to add the noise of an earlier one, so that no epsilon holds, and no attack shows it"
    elif most is not None:
        value = f"at most {percent(most, up=True)}"
        note = "of what was accounted, where it is least; with so little the claim is refuted, and no attack shows it"
    else:
        value = "not done" if result.control is None else times_found(result.control)
        note = f"simulated audits found {found_by(result.control)}; {_asked_for(result.control)}"
    decided = "the positive control" if most is None and again is None else "the noise of one training"
    return Tile(f"Decided by: {decided}", value, note, "decisive")


def _power_tile(result: AuditResult) -> Tile:
    control, would = result.control, "Would have found" if finished(result) else "Finished, would have found"
    answers = {"found": "yes", "missed": "no", "not done": "not tried", "another training": "not known"}
    answer = answers[control_badge(control)]
    note = "" if control is None else f"{times_found(control)} simulated audits"
    return Tile(f"{would} {found_by(control)}", answer, note or "no positive control was carried out")


def _asked_for(control: Control | None) -> str:
    """What a control that was not enough lacks."""
    if control is not None and control.unlike:
        return "of a training that shows more of a record than this one"
    return "half the noise is asked for" if control is not None and control.found else "19 of 20 are asked for"


def _mechanism_tile(result: AuditResult) -> Tile:
    check = result.calculation
    note = "for a training that does as described"
    if training_deviates(result):
        note = "the mechanism as described would keep the promise; this training is not it"
    known = check is not None and at_most(check.epsilon_upper) != "∞"
    value = "no limit known"
    if check is not None and known:
        value = f"ε ≤ {at_most(check.epsilon_upper, within=check.epsilon_claimed)}"
    return Tile("Mechanism as described, by proof", value, note, "proof")


def _attack_tile(result: AuditResult) -> Tile:
    proven = result.epsilon_lower
    value = "no ε" if proven is None else f"ε ≥ {at_least(proven, above=result.epsilon_claimed)}"
    note = f"of the training; all tests together {percent(result.confidence)} sure"
    above = proven is not None and proven > result.epsilon_claimed
    if training_deviates(result) and by_curve_alone(result) and not above:
        note = "this number alone would not refute; the rates do"
    assumed = {a.bound.assumes for a in result.attacks if a.bound is not None and a.epsilon_lower == proven}
    if assumed - {""} and "" not in assumed:
        note += f"; supposes {'; '.join(sorted(assumed))}"
    family = [attack.family_bound.epsilon_lower for attack in result.attacks if attack.family_bound is not None]
    if family:
        note += f"; ε ≥ {at_least(max(family), above=result.epsilon_claimed)} if its noise is of the claimed family"
    return Tile("Shown by attack", value, note, "attack")


def tested(result: AuditResult) -> list[str]:
    """What the audit looked at, a line each."""
    check = result.claim_check
    lines = [] if check is None else [f"The claim, by calculation, for the mechanism as described: {check.verdict}."]
    if result.check_as_run is not None:
        lines.append(f"The claim, by calculation, for the batches as they are drawn: {result.check_as_run.verdict}.")
    return lines + [f"{attack.name}: {evidence(attack)}; {attacker_sees(attack)}." for attack in result.attacks]


def untested(result: AuditResult) -> list[str]:
    """What the audit did not look at, a line each."""
    lines = []
    if result.claim_check is None:
        lines.append("The claim, by calculation.")
    if any(unseen(attack) for attack in result.attacks):
        lines.append("How the training went, and whether its scores are the delivered model's: neither was seen.")
    elif not any("delivered" in attacker_sees(a) and a.epsilon_lower is not None for a in result.attacks):
        lines.append("How this very file came about: what decides here is the claim and models trained anew.")
    stated_by_owner = statements(result)
    accesses = [name for key, name in ACCESSES.items() if key not in stated_by_owner]
    lines.append(
        f"Accesses to the data outside the training ({', '.join(accesses)}: not stated)."
        if accesses
        else "Accesses to the data outside the training: stated by the owner below, not tested."
    )
    lines.append("Faults smaller than the control's or of another kind, weak random numbers, timing, floating point.")
    return lines


def one_model(attack: AttackResult) -> bool:
    """Whether an attack judged the records of one model, not many models."""
    return "members" in attack.details and "non_members" in attack.details


def evidence(attack: AttackResult) -> str:
    """What an attack's numbers rest on."""
    if one_model(attack):
        inside, outside = attack.details["members"], attack.details["non_members"]
        return f"one model; {stated(inside)} members against {stated(outside)} others"
    if unseen(attack):
        trainings = f"{counted(attack.arms['runs'], 'training')} that nobody here saw"
        if of_canaries(attack):
            return f"{trainings}; {stated(attack.trials)} canaries, each in or out by a coin"
        return f"{trainings}; with the canary and without it at least {stated(attack.trials)} each"
    if "canaries" in attack.arms:
        return f"one training; {stated(attack.trials)} canaries on each side at least"
    return f"{stated(attack.trials)} models on each side"


def attacker_sees(attack: AttackResult) -> str:
    """The threat model of an attack."""
    return f"the attacker sees {attack.arms.get('attacker_sees') or ATTACKER_SEES.get(attack.name) or NOT_STATED}"


def rates_shown(attack: AttackResult) -> dict[str, float]:
    """Those of its true-positive rates that have at least FEWEST_FALSE_ALARMS expected false alarms behind them."""
    others = float(attack.details.get("non_members", attack.trials)) if one_model(attack) else float(attack.trials)
    others /= 2 if of_canaries(attack) else 1  # half of all coins say out
    return {rate: tpr for rate, tpr in attack.tpr_at_fpr.items() if _number(rate) * others >= FEWEST_FALSE_ALARMS}


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


ACCESSES = {"tuning": "tuning", "preprocessing": "preprocessing", "other_releases": "other releases"}


def statements(result: AuditResult) -> Mapping[str, Any]:
    """The table [report] of the recipe."""
    return _table(result, "report")


def _table(result: AuditResult, name: str) -> Mapping[str, Any]:
    """A table of the recipe; empty where it has none."""
    recipe = result.reproduce.get("recipe")
    table = recipe.get(name) if isinstance(recipe, Mapping) else None
    return table if isinstance(table, Mapping) else {}


def planted_defect(result: AuditResult) -> str | None:
    """The fault that the recipe plants, which makes the whole audit a positive control."""
    recipe = result.reproduce.get("recipe")
    return str(recipe["planted_defect"]) if isinstance(recipe, Mapping) and recipe.get("planted_defect") else None


def scope(result: AuditResult) -> list[tuple[str, str, bool]]:
    """What the promise is about, (name, words, whether stated): what the recipe says, and what only its owner can."""
    own, claim, drawn = statements(result), result.claim, _table(result, "sampling")
    rows = [
        ("scope", own.get("scope")),
        ("privacy unit", own.get("privacy_unit") or claim.get("unit")),
        ("neighbours", claim.get("adjacency")),
        ("batches, as accounted", claim.get("sampling") and words(claim["sampling"])),
        ("batches, as run", own.get("sampler_run") or (drawn and words(drawn))),
        ("what is released", own.get("released")),
        ("threat model", own.get("threat_model")),
        ("tuning", own.get("tuning")),
        ("preprocessing", own.get("preprocessing")),
        ("other releases", own.get("other_releases")),
    ]
    return [(name, str(text) if text else NOT_STATED, bool(text)) for name, text in rows]
