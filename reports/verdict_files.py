"""Verdicts as machines and people read them: JSON, text, JUnit XML, SARIF."""

import json
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from xml.etree import ElementTree

from dpaudit._plain_text import printable
from dpaudit.reports.sarif import sarif_log, sarif_result
from dpaudit.reports.wording import percent
from dpaudit.verify.results import VERDICTS_FORMAT, Verdict, up

SARIF_LEVELS = {"refuted": "error", "undecided": "warning", "certified": "none"}


def verdicts_json(verdicts: Sequence[Verdict]) -> str:
    """The verdicts as one JSON document of format dpaudit-verdicts/1."""
    document = {"format": VERDICTS_FORMAT, "claims": [verdict.to_dict() for verdict in verdicts]}
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def verdict_text(
    verdict: Verdict, *, width: int = 100, paint: Callable[[str, str], str] = lambda text, kind: text
) -> str:
    """A verdict in a few lines for a terminal: what it comes to, then why, then the witness.

    Args:
        verdict: What was found.
        width: Columns to wrap at.
        paint: Gives a text the colour of a kind of verdict.
    """
    name = paint(f"{verdict.verdict:<9}", verdict.verdict)
    sure = "" if verdict.confidence >= 1 else f" ({percent(verdict.confidence)} confidence)"
    head = f"{name} {printable(verdict.id)}: {verdict.promise}; {verdict.bracket}{sure}"
    meaning, by, theorem = verdict.meaning.partition(", by ")
    lines = _wrapped(meaning, width) + (_wrapped(f"by {theorem}", width) if by else [])
    if verdict.read_as_zero_out:
        lines += _wrapped("read as zero-out: a ghost that contributes 0 takes the place of the record", width)
    witness = verdict.witness
    if witness is not None and verdict.verdict == "refuted" and verdict.guarantee is None:
        lines += _wrapped(
            f"witness: {witness.family} shift of {witness.coordinates} coordinate{'s' * (witness.coordinates != 1)}, "
            f"norm {witness.norm:.6g}, direction {witness.direction}, event {witness.event}",
            width,
        )
    mu = verdict.gdp_mu
    if verdict.verdict != "refuted" and mu is not None and mu < math.inf and verdict.tpr_at_fpr is not None:
        found = f"an attack with 1% false alarms finds at most {up(100 * verdict.tpr_at_fpr['0.01'], 3)}% of members"
        lines += _wrapped(f"{found} (mu {up(mu, 3)} down to a delta of 1e-12)", width)
    return "\n".join([head, *lines])


def _wrapped(text: str, width: int) -> list[str]:
    margin = " " * 10
    return textwrap.wrap(
        printable(text), max(width, 40), initial_indent=margin, subsequent_indent=margin + "  ",
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def verdicts_junit(verdicts: Sequence[Verdict], *, require: str | None, left: Sequence[str] = ()) -> str:
    """A JUnit test suite: a claim is a case, a refuted one a failure, an undecided one skipped or failed.

    Args:
        verdicts: What was found.
        require: "certified" where other claims are failures.
        left: The ids of claims that a run which was ended did not come to: errors.
    """
    suite = ElementTree.Element("testsuite", name="dpaudit")
    failures = skipped = 0
    for verdict in verdicts:
        case = ElementTree.SubElement(
            suite, "testcase", classname="dpaudit.claims", name=printable(verdict.id), time=f"{verdict.seconds:.3f}"
        )
        text = printable(verdict.reason)
        if verdict.verdict == "refuted" or (require == "certified" and verdict.verdict != "certified"):
            failures += 1
            ElementTree.SubElement(case, "failure", message=text, type=verdict.verdict).text = verdict_text(verdict)
        elif verdict.verdict == "undecided":
            skipped += 1
            ElementTree.SubElement(case, "skipped", message=text)
    for name in left:
        case = ElementTree.SubElement(suite, "testcase", classname="dpaudit.claims", name=printable(name), time="0.000")
        ElementTree.SubElement(case, "error", message="not checked: the run was ended before")
    tests = len(verdicts) + len(left)
    counts = {"tests": tests, "failures": failures, "errors": len(left), "skipped": skipped}
    for name, count in counts.items():
        suite.set(name, str(count))
    suite.set("time", f"{sum(verdict.seconds for verdict in verdicts):.3f}")
    document: bytes = ElementTree.tostring(suite, encoding="us-ascii", xml_declaration=True)
    return document.decode() + "\n"  # fit for any stdout


def verdicts_sarif(
    verdicts: Sequence[Verdict], *, places: Mapping[str, tuple[str, int | None]], version: str, whole: bool = True
) -> str:
    """SARIF 2.1.0: a result for every claim that is not certified, for code-scanning services.

    Args:
        verdicts: What was found.
        places: The claims file of every id, with forward slashes, and the line in it where the id stands.
        version: Of dpaudit.
        whole: Whether every claim was checked.
    """
    rules = [
        {"id": name, "shortDescription": {"text": text}}
        for name, text in (
            ("refuted", "A certified lower bound contradicts the claim."),
            ("undecided", "Neither a valid upper bound nor a certified lower bound decides the claim."),
        )
    ]
    results = (
        sarif_result(
            verdict.verdict,
            SARIF_LEVELS[verdict.verdict],
            f"{verdict.id}: {verdict.reason}",
            uri=places[verdict.id][0],
            line=places[verdict.id][1],
            partialFingerprints={"claim": verdict.id},
        )
        for verdict in verdicts
        if verdict.verdict != "certified"
    )
    return sarif_log(rules, results, version=version, whole=whole)
