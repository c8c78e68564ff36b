"""`dpaudit verify --screen`: files of very many claims in, counts and the ids that are left out."""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dpaudit._files import write_whole
from dpaudit._plain_text import printable
from dpaudit.audit.exit_status import LACKING, Lost
from dpaudit.audit.exit_status import REFUTED as REFUTED_STATUS
from dpaudit.audit.inputs.claim_tables import read_claim_table
from dpaudit.audit.inputs.files import InputError
from dpaudit.audit.inputs.sources import Stage
from dpaudit.verify.claim_files import ClaimFileError, load_claims
from dpaudit.verify.screening import CERTIFIED, LEFT, REFUTED, columns_of, screen

SCREENING_FORMAT = "dpaudit-screening/1"


def run_screening(
    paths: Sequence[Path], *, require: str | None, json_file: str | None, stage: Stage, show: Callable[[str], None],
    warn: Callable[[str], None],
) -> int:  # fmt: skip
    """Screen the claims of some files: .csv tables, anything else a claims file.

    Args:
        paths: The files; ids are unique across them.
        require: "certified" to demand it of every claim.
        json_file: File for the JSON document; "-" for stdout and nothing else there.
        stage: Told what begins and how long it is.
        show: Prints the result.
        warn: Prints what could not be written.

    Returns:
        The exit status: 3 if a claim is refuted, else 4 (a full disk) or 2 if the document cannot be written, else 5
        if one is not certified as required, else 0.

    Raises:
        InputError: A file is no table and no claims file, or an id appears twice.
    """
    started, lost = time.monotonic(), Lost(warn)
    document = _screened(paths, stage)
    document["seconds"] = round(time.monotonic() - started, 3)
    text = json.dumps(document, indent=1) + "\n"
    show(text.rstrip() if json_file == "-" else "\n".join(_lines(document)))
    counts = document["counts"]
    if json_file not in (None, "-"):
        with lost:
            write_whole({str(json_file): text.encode()})
    if counts[REFUTED]:
        return REFUTED_STATUS
    if lost.statuses:
        return lost.statuses[0]
    return LACKING if require == "certified" and counts[LEFT] else 0


def _screened(paths: Sequence[Path], stage: Stage) -> dict[str, Any]:
    """Verdicts of all files as one document."""
    ids: dict[str, list[str]] = {CERTIFIED: [], REFUTED: [], LEFT: []}
    deciding: dict[str, int] = {}
    for path in paths:
        try:
            claims, others = (
                (read_claim_table(path), []) if path.suffix.lower() == ".csv" else columns_of(load_claims(path))
            )
        except ClaimFileError as error:
            raise InputError(str(error)) from error
        result = screen(claims, advance=stage("Screening claims", len(claims)))
        for verdict, names in ids.items():
            names += result.ids(verdict)
        ids[LEFT] += others
        for name, count in result.deciding().items():
            deciding[name] = deciding.get(name, 0) + count
    seen: set[str] = set()
    for name in (name for names in ids.values() for name in names):
        if name in seen:
            raise InputError(f"claim {name!r}: id appears twice: expected every id once.")
        seen.add(name)
    counts = {verdict: len(names) for verdict, names in ids.items()}
    return {
        "format": SCREENING_FORMAT, "claims": len(seen), "counts": counts, "bounds": deciding,
        REFUTED: ids[REFUTED], LEFT: ids[LEFT],
    }  # fmt: skip


def _lines(document: dict[str, Any]) -> list[str]:
    """Counts, then the refuted ids and those left, one in a line."""
    counts = ", ".join(f"{count:,} {name}" for name, count in document["counts"].items())
    bounds = ", ".join(f"{count:,} by {name}" for name, count in document["bounds"].items() if count)
    lines = [f"{document['claims']:,} claims: {counts}", *([f"decided: {bounds}"] if bounds else [])]
    for verdict in (REFUTED, LEFT):
        lines += [f"{verdict:<9} {printable(name)}" for name in document[verdict]]
    return lines
