"""How a result is delivered: told, and its report written, never in the place of one that rests on more evidence."""

import json
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

from dpaudit._files import write_whole
from dpaudit._plain_text import printable
from dpaudit.audit.exit_status import os_reason, undisturbed
from dpaudit.reports import load_result, result_json
from dpaudit.reports.rendering import DATA, PAGE
from dpaudit.reports.signing import PUBLIC, SIGNATURE, SUMS
from dpaudit.verify.results import AttackResult, AuditResult

REPORT = (PAGE, DATA, SUMS, SIGNATURE, PUBLIC)


def deliver(
    result: AuditResult,
    folder: Path,
    json_file: str | None,
    lines: Sequence[str],
    *,
    advice: Sequence[str] = (),
    show: Callable[[str], None],
    warn: Callable[[str], None],
    written: Callable[[], object] = lambda: None,
) -> None:
    """Write a report and tell its result: neither waits for the other to succeed, and Ctrl-C does not end the first.

    Args:
        result: Of an audit or a judgement.
        folder: Of reports; a new one inside it takes what has less evidence than the report there, or what that report
            was where it is of another model, claim or loop.
        json_file: Where the result is written as well; "-" shows it in place of all lines.
        lines: What is shown of it.
        advice: What its reader is told besides.
        show: Takes what belongs to standard output.
        warn: Takes what belongs to standard error.
        written: Called before anything is told.

    Raises:
        OSError: Something could not be written, and the result has no exit status that must be seen.
    """
    told: list[tuple[Callable[[str], None], str]] = []
    try:
        with undisturbed():
            failure = _write(
                result,
                folder,
                json_file,
                lambda line: told.append((show, line)),
                lambda line: told.append((warn, line)),
            )
    finally:
        written()
        show(result_json(result) if json_file == "-" else "\n".join(lines))
    for tell, line in told:
        tell(line)
    for line in advice:
        warn(line)
    if failure is not None and result.verdict not in ("refuted", "gave_up"):
        raise failure
    if failure is not None:
        warn(f"dpaudit: {os_reason(failure)}")


def _write(
    result: AuditResult, folder: Path, json_file: str | None, show: Callable[[str], None], warn: Callable[[str], None]
) -> OSError | None:
    """What kept the files from being written."""
    from dpaudit.reports import write_report  # draws: half a second of matplotlib

    try:
        before = _earlier(folder)
        place = _free(folder) if before is not None and has_less_evidence(result, before) else folder
        other = _set_aside(folder) if before is not None and not _alike(result, before) else None
        page = write_report(result, place)
        if json_file not in (None, "-"):
            write_whole({str(json_file): result_json(result).encode()})
    except OSError as error:
        return error
    if place != folder:
        warn(printable(f"the report in {folder} rests on more evidence and stays; this one is in {place}"))
    if other is not None:
        warn(printable(f"the report in {folder} was of another model, claim or loop; it is now in {other}"))
    if json_file != "-":
        show(f"report: {printable(str(page))}")
    return None


def _earlier(folder: Path) -> AuditResult | None:
    """The result that a folder's report shows; None where there is none, or none that can be read."""
    try:
        return load_result(folder / DATA)
    except ValueError:
        return None


def _set_aside(folder: Path) -> Path:
    """A new folder inside, with the report that was in it."""
    place = _free(folder)
    place.mkdir()
    for name in REPORT:
        if (folder / name).exists():
            (folder / name).rename(place / name)
    return place


def _free(folder: Path) -> Path:
    """A folder inside that is not there yet."""
    return next(path for number in count(2) if not (path := folder / f"run-{number}").exists())


def has_less_evidence(result: AuditResult, before: AuditResult) -> bool:
    """Whether an earlier audit of the same model, claim and loop proved, or could prove, something that this cannot.

    What is proven stays so, whatever is found later: each audit keeps to its own error probability, and each look at
    growing evidence to its share of it. So a report has more evidence if it has a refutation that is missing here; or,
    where this one refutes nothing that it did not, an attack that is missing, or could have proven more there (the
    epsilon that perfect scores of as many models would prove at the level of its look; where there is no such number,
    more models or more error probability); or a positive control that was found, so that silence means something,
    where this one has none and is silent.

    Args:
        result: The later one.
        before: The earlier one.
    """
    if not _alike(result, before):
        return False
    if set(before.refuted_by) - set(result.refuted_by):
        return True
    if set(result.refuted_by) - set(before.refuted_by):  # whatever else was tried before, it did not find this
        return False
    if not result.refuted_by and _controlled(before) and not _controlled(result):
        return True
    attacks = {attack.name: attack for attack in result.attacks}
    return any(attack.name not in attacks or _proves_less(attacks[attack.name], attack) for attack in before.attacks)


def _alike(result: AuditResult, before: AuditResult) -> bool:
    """Whether two audits are of the same model, claim and loop, an edited one being another."""
    claims = [json.loads(json.dumps(audit.to_dict()["claim"])) for audit in (result, before)]
    same = result.model.get("sha256") == before.model.get("sha256") and claims[0] == claims[1]
    return same and result.reproduce.get("trainer") == before.reproduce.get("trainer")


def _controlled(result: AuditResult) -> bool:
    return result.control is not None and result.control.gives_power


def _proves_less(attack: AttackResult, before: AttackResult) -> bool:
    """Whether an attack could have proven less than its like did, whatever its scores were."""
    most, most_before = attack.best_possible_epsilon, before.best_possible_epsilon
    if most is not None and most_before is not None:
        return most < most_before
    return attack.trials < before.trials or attack.confidence_spent < before.confidence_spent
