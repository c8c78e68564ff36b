"""What `Scores.judge` found, for a reader."""

from collections.abc import Mapping
from typing import Any

from dpaudit.reports.wording import at_least, at_most, stated


def scores_text(judged: Mapping[str, Any]) -> list[str]:
    """What `Scores.judge` found, in lines for a reader."""
    level = f"{100 * judged['confidence']:g}%"
    lines = []
    assumed = judged["bounds"][judged["decided_by"]]["assumes"]
    how = f"{level}, {judged['decided_by']}" + (f", assumes {assumed}" if assumed else "")
    if judged["verdict"] is not None:
        claim = judged["claim"]
        proven = at_least(judged["epsilon_lower"], above=claim["epsilon"])
        promised = stated(claim["epsilon"], below=judged["epsilon_lower"])
        lines.append(
            f"{judged['verdict']}{_by_what(judged)}: claimed epsilon {promised} at delta {stated(claim['delta'])}; the "
            f"scores prove at least {proven} ({how})"
        )
        lines += [] if judged["claim_check"] is None else [f"by calculation the claim is {judged['claim_check']}"]
        lines += [
            f"p-value of {what}: {judged[name]:.3g}"
            for name, what in (("p_value", "the claim"), ("curve_p_value", "the mechanism's certified curve"))
            if judged[name] is not None
        ]
    else:
        lines.append(f"epsilon >= {at_least(judged['epsilon_lower'])} at delta {stated(judged['delta'])} ({how})")
    lines.append(f"supposes: {judged['supposes']}")
    others = {name: bound for name, bound in judged["bounds"].items() if name != judged["decided_by"]}
    if others:
        lines.append(f"other bounds, each at {level} for itself:")
    for name, bound in others.items():
        assumes = f", assumes {bound['assumes']}" if bound["assumes"] else ""
        lines.append(f"  {name}: epsilon >= {at_least(bound['epsilon_lower'])}{assumes}")
    return [*lines, *_operating_text(judged)]


def _by_what(judged: Mapping[str, Any]) -> str:
    """What refutes a claim whose epsilon the scores do not contradict."""
    if judged["verdict"] != "refuted" or judged["epsilon_lower"] > judged["claim"]["epsilon"]:
        return ""
    if judged["claim_check"] == "refuted":
        return " by calculation"
    p_value, curve = judged["p_value"], judged["curve_p_value"]
    broken = curve is not None and (p_value is None or curve < p_value)
    return " by the mechanism's certified curve, which the scores break" if broken else ""


def _operating_text(judged: Mapping[str, Any]) -> list[str]:
    area, level = judged["auc"], f"{100 * judged['confidence']:g}%"
    known = "lower" in area
    lines = [f"AUC {area['value']:.4f}" + (f" in {_between(area)} ({level})" if known else "")]
    if known:
        estimate = area["estimate"]
        lines[0] += f"; bootstrap estimate [{estimate['lower']:.4f}, {estimate['upper']:.4f}], no bound"
    if (area["upper"] if known else area["value"]) < 0.5:
        lines.append("scores of members are lower than those of others: are they losses, or the files exchanged?")
    rates = judged["tpr_at_fpr"]
    for fpr, rate in rates.items():
        band = f" in {_between(rate)} ({level}, all rates together)" if known else ""
        lines.append(f"TPR at FPR {fpr}: {rate['value']:.4f}{band}")
    return lines


def _between(found: Mapping[str, float]) -> str:
    return f"[{at_least(found['lower'])}, {at_most(found['upper'])}]"
