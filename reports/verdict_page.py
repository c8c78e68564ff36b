"""The report of `dpaudit verify`: verdicts.html, which needs nothing but itself, and verdicts.json, which holds it all.

A file may hold thousands of claims: the table shows the first LISTED, refuted ones first, and DETAILED of them are
explained. What is left out is counted on the page.
"""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from pprint import pformat
from typing import Any, Self

from dpaudit._files import write_whole
from dpaudit.reports import rendering, verdict_wording
from dpaudit.reports.consistency import claims_contradiction
from dpaudit.reports.epsilon_axis import verdict_figure
from dpaudit.reports.rendering import check_agrees, fill, load_json, load_result, write_report
from dpaudit.verify.results import VERDICTS_FORMAT, Verdict, to_json

PAGE, DATA = "verdicts.html", "verdicts.json"
DETAILED, LISTED = 30, 1000  # claims explained one by one, and rows of the table
READ_ALONE = ("poisson", "none")  # kinds of sampling whose witness proves alone what the verdict says
ORDER = ("refuted", "undecided", "certified")

_SNIPPET = """\
# Lower bounds on delta at the claimed epsilon and on epsilon at the claimed delta, {how}.
# Needs dpaudit and nothing else.
import numpy as np

from dpaudit.verify.claim_files import parse_claims
from dpaudit.verify.lower import {name}
from dpaudit.verify.results import Witness

claim = {claim}
witness = {witness}

[parsed] = parse_claims({{"claim": [claim]}}, source="this snippet")
curve = {call}
print(float(curve.delta(np.array([parsed.epsilon]))[0]))
print(float(curve.epsilon(np.array([parsed.delta]))[0]))
"""


@dataclass(frozen=True)
class ClaimEntry:
    """What the report holds on one claim.

    Args:
        verdict: On the claim.
        claim: The claim as a claims file holds it, None where it is not known.
        command: The command that checks this claim alone.
        accountants: Accountants side by side, rows of {"accountant", "epsilon", "valid", "gap", "contradicted",
            "note"}; None where they were not asked.
    """

    verdict: Verdict
    claim: Mapping[str, Any] | None = None
    command: str | None = None
    accountants: Sequence[Mapping[str, Any]] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The JSON object: the verdict's, with three more keys."""
        extra = {"claim": self.claim, "command": self.command, "accountants": self.accountants}
        return {**self.verdict.to_dict(), **to_json(extra)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read the JSON object again; the three keys may be absent."""
        return cls(Verdict.from_dict(data), data.get("claim"), data.get("command"), data.get("accountants"))


def write_verdicts(entries: Sequence[ClaimEntry], out: Path, *, versions: Mapping[str, str]) -> Path:
    """Write verdicts.html and verdicts.json into a folder, each complete or not at all.

    Args:
        entries: The claims in the order of their files.
        out: Folder; made if absent.
        versions: Of dpaudit and what it ran on.

    Returns:
        The path of the page.
    """
    claims = [entry.to_dict() for entry in entries]
    document = {"format": VERDICTS_FORMAT, "versions": dict(versions), "claims": claims}
    data = (json.dumps(document, indent=1, allow_nan=False) + "\n").encode()
    as_read = [ClaimEntry.from_dict(claim) for claim in claims]  # so that `write_again` leads to the same page
    page = _html(as_read, versions, hashlib.sha256(data).hexdigest())
    out.mkdir(parents=True, exist_ok=True)
    write_whole({out / DATA: data, out / PAGE: page.encode("utf-8", "replace")})
    return out / PAGE


def write_again(path: Path, out: Path) -> Path:
    """Render the report of an audit's result.json, or of a verdicts.json, again.

    Args:
        path: The JSON file.
        out: Folder; made if absent.

    Returns:
        The path of the page.

    Raises:
        ValueError: The file cannot be read, is no JSON, does not follow the schema of its format, contradicts itself,
            or another result lies in the folder, whose JSON would be lost; one line.
    """
    verdicts = _holds_verdicts(path)
    beside = out / (DATA if verdicts else rendering.DATA)
    if path.exists() and beside.exists() and not path.samefile(beside) and _read_json(path) != _read_json(beside):
        raise ValueError(f"Expected {out} to hold no {beside.name} of another result: name another folder with --out.")
    try:
        if not verdicts:
            return write_report(load_result(path), out)
        document = load_json(path, "verdicts")
        entries = [ClaimEntry.from_dict(claim) for claim in document["claims"]]
        check_agrees(path, claims_contradiction((entry.verdict, entry.claim) for entry in entries))
        return write_verdicts(entries, out, versions=document.get("versions", {}))
    except (OverflowError, RecursionError) as error:  # free parts of the file, which no schema limits
        raise ValueError(
            f"Expected {path} to hold numbers within the range of floats, not too deeply nested."
        ) from error


def page_beside(path: Path) -> Path:
    """Where the page of an audit's or of verdicts' JSON lies, in its folder."""
    return path.with_name(PAGE if _holds_verdicts(path) else rendering.PAGE)


def data_beside(page: Path) -> Path:
    """Where the JSON of a page lies that was written with it."""
    return page.with_name(DATA if page.name == PAGE else rendering.DATA)


def _read_json(path: Path) -> object:
    """What a file holds; its bytes where that is no JSON."""
    data = path.read_bytes()
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return data


def _holds_verdicts(path: Path) -> bool:
    try:
        return path.is_file() and bool(json.loads(path.read_bytes()).get("format") == VERDICTS_FORMAT)
    except (OSError, ValueError, AttributeError, RecursionError):
        return False  # whoever reads it as a result refuses it, in words


def shown_in_detail(verdicts: Sequence[Verdict]) -> list[int]:
    """Which claims the page explains: at most DETAILED, the refuted ones first, then the undecided ones."""
    return _by_weight(verdicts)[:DETAILED]


def snippet(entry: ClaimEntry) -> str | None:
    """Python that recomputes the lower bounds; None where no witness has them or the claim is not known."""
    if entry.claim is None or entry.verdict.witness is None or math.isinf(entry.verdict.epsilon_lower):
        return None
    python = partial(pformat, width=100, sort_dicts=False)
    # the witness of batches that are drawn otherwise is one of many a search goes through
    alone = all(_kind(table) in READ_ALONE for table in (entry.claim, *_phases(entry.claim)))
    how, name = ("from the witness alone", "replayed_lower") if alone else ("searched again", "certified_lower")
    call = f"{name}(parsed, Witness(**witness))" if alone else f"{name}(parsed)"
    claim, witness = python(dict(entry.claim)), python(entry.verdict.witness.to_dict())
    return _SNIPPET.format(how=how, name=name, call=call, claim=claim, witness=witness)


def _phases(claim: Mapping[str, Any]) -> list[Any]:
    phases = claim.get("phase", [])
    return phases if isinstance(phases, list) else []


def _kind(table: object) -> object:
    """How a claim's or a phase's batches are drawn, as it says."""
    sampling = table.get("sampling") if isinstance(table, Mapping) else None
    return sampling.get("kind", "poisson") if isinstance(sampling, Mapping) else "poisson"


def _by_weight(verdicts: Sequence[Verdict]) -> list[int]:
    return sorted(range(len(verdicts)), key=lambda index: ORDER.index(verdicts[index].verdict))


def _html(entries: Sequence[ClaimEntry], versions: Mapping[str, str], digest: str) -> str:
    verdicts = [entry.verdict for entry in entries]
    counts: Counter[str] = Counter(verdict.verdict for verdict in verdicts)
    order = _by_weight(verdicts)
    detailed = order[:DETAILED]
    return fill(
        "verdicts.html",
        overall=next((name for name in ORDER if counts[name]), "none"),
        title=verdict_wording.title(counts),
        sentence=verdict_wording.summary(counts),
        counts=[(name, counts[name]) for name in ORDER],
        rows=[
            {
                "verdict": verdicts[index],
                "words": verdict_wording.in_words(verdicts[index]),
                "anchor": f"claim-{index + 1}" if index in detailed else None,
            }
            for index in order[:LISTED]
        ],
        details=[_detail(index, entries[index]) for index in detailed],
        left_out=verdict_wording.left_out(len(entries), LISTED, DETAILED),
        versions=versions,
        digest=digest,
        data_name=DATA,
    )


def _detail(index: int, entry: ClaimEntry) -> dict[str, Any]:
    """What the page explains about a claim."""
    return {
        "anchor": f"claim-{index + 1}",
        "verdict": entry.verdict,
        "words": verdict_wording.in_words(entry.verdict),
        "bracket": verdict_wording.proven_bracket(entry.verdict),
        "claim": {key: value for key, value in (entry.claim or {}).items() if key != "id"},
        "command": entry.command,
        "accountants": entry.accountants and [_accountant(row) for row in entry.accountants],
        "snippet": snippet(entry),
        "figures": [
            (kind, verdict_figure(entry.verdict, key=f"{kind}{index + 1}", wide=kind == "wide"))
            for kind in ("wide", "narrow")
        ],
    }


def _accountant(row: Mapping[str, Any]) -> dict[str, Any]:
    """One accountant's row, its numbers ready to print."""
    numbers = {key: None if row[key] is None else float(row[key]) for key in ("epsilon", "gap")}
    return {**row, **numbers, "reading": verdict_wording.reading(row)}
