"""Sentences of the verdicts' page, for readers without training in privacy."""

from collections.abc import Mapping
from typing import Any

from dpaudit.reports.wording import at_least, at_most, percent, stated
from dpaudit.verify.results import Verdict

INFINITE = "∞"  # a bound that is none, from below one that no number meets


def title(counts: Mapping[str, int]) -> str:
    """What was found, in a few words.

    >>> title({"refuted": 1, "certified": 4}), title({"certified": 3}), title({})
    ('1 of 5 claims is refuted', 'All 3 claims are certified', 'No claim was checked')
    """
    total = sum(counts.values())
    if not total:
        return "No claim was checked"
    name = next(name for name in ("refuted", "undecided", "certified") if counts.get(name))
    count = counts[name]
    if total == 1:
        return f"The claim is {name}"
    if count == total:
        return f"All {total:,} claims are {name}"
    return f"{count:,} of {total:,} claims {'is' if count == 1 else 'are'} {name}"


def summary(counts: Mapping[str, int]) -> str:
    """What that means, in a sentence.

    >>> summary({"refuted": 1})
    'A refuted claim promises more privacy than the mechanism can give: the proof is below.'
    """
    if counts.get("refuted"):
        return "A refuted claim promises more privacy than the mechanism can give: the proof is below."
    if counts.get("undecided"):
        return "No claim is refuted, but not every one is proved: what would decide the others is said below."
    if counts.get("certified"):
        return "Every claim is proved, under the assumptions listed with it."
    return "The check was stopped before the first claim was decided."


def in_words(verdict: Verdict) -> str:
    """A verdict in one sentence.

    Args:
        verdict: On one claim.
    """
    if verdict.guarantee is not None:
        return _of_guarantee(verdict)
    at = f"at delta = {stated(verdict.delta_claimed)}"
    promised = f"epsilon = {stated(verdict.epsilon_claimed, below=verdict.epsilon_lower)} was promised"
    if verdict.verdict == "refuted":
        shown = at_least(verdict.epsilon_lower, above=verdict.epsilon_claimed)
        sure = "" if verdict.confidence >= 1.0 else f" ({percent(verdict.confidence)} confidence)"
        if shown == INFINITE:
            return f"The promise is broken: no epsilon is enough {at}{sure}; {promised}."
        return f"The promise is broken: the mechanism can leak at least epsilon = {shown} {at}{sure}; {promised}."
    if verdict.verdict == "certified":
        limit = at_most(verdict.epsilon_upper, within=verdict.epsilon_claimed)
        return f"The promise is kept, by proof: the mechanism leaks at most epsilon = {limit} {at}; {promised}."
    high = at_most(verdict.epsilon_upper)
    known = f"between {at_least(verdict.epsilon_lower)} and {high}" if high != INFINITE else (
        f"at least {at_least(verdict.epsilon_lower)}, with no upper limit known"
    )  # fmt: skip
    return f"Not decided: all that is proved is that the true epsilon is {known} {at}; {promised}."


def _of_guarantee(verdict: Verdict) -> str:
    """The same of a promise that is no (epsilon, delta)."""
    opening = {
        "refuted": "The promise is broken",
        "certified": "The promise is kept, by proof",
        "undecided": "Not decided",
    }[verdict.verdict]
    name, lower, upper = proven_bracket(verdict)
    known = f"no {name} is enough" if lower == INFINITE else f"the true {name} is at least {lower} and at most {upper}"
    return f"{opening}: {known}; promised was {verdict.promise}."


def proven_bracket(verdict: Verdict) -> tuple[str, str, str]:
    """The number that is promised, and its proven bounds."""
    kept = verdict.guarantee
    if kept is None:
        least = at_least(verdict.epsilon_lower, above=verdict.epsilon_claimed)
        return "epsilon", least, at_most(verdict.epsilon_upper, within=verdict.epsilon_claimed)
    name = "number of points that do not hold" if kept["parameter"] == "points" else kept["parameter"]
    return name, at_least(kept["lower"], above=kept.get(name)), at_most(kept["upper"], within=kept.get(name))


def reading(row: Mapping[str, Any]) -> str:
    """What an accountant's value is worth.

    >>> reading({"epsilon": 1.6, "valid": False, "contradicted": True})
    'wrong here: less than is proved to leak'
    """
    if row["epsilon"] is None:
        return "n/a"
    if row["contradicted"]:
        return "wrong here: less than is proved to leak"
    return "a proven limit" if row["valid"] else "not proven, not contradicted"


def left_out(claims: int, listed: int, detailed: int) -> list[str]:
    """What a page on many claims does not show.

    >>> left_out(3, 1000, 30)
    []
    """
    notes = []
    if claims > listed:
        notes.append(f"The table lists {listed:,} of {claims:,} claims, the refuted first, then the undecided.")
    if claims > detailed:
        notes.append(f"{detailed:,} of {claims:,} claims are explained one by one, in the same order.")
    if notes:
        notes.append("The verdict on every claim is in the machine-readable file beside this page.")
    return notes
