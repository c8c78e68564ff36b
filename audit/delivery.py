"""Where a report goes: never in the place of one that rests on more evidence."""

import json
from itertools import count
from pathlib import Path

from dpaudit.reports import load_result
from dpaudit.verify.results import AuditResult


def report_folder(result: AuditResult, folder: Path) -> Path:
    """The folder itself, or a new one inside it where its report on the same model and claim has more evidence.

    Args:
        result: What is to be reported.
        folder: The folder of reports.
    """
    try:
        before = load_result(folder / "result.json")
    except ValueError:  # none, or none that can be read
        return folder
    if not has_less_evidence(result, before):
        return folder
    return next(path for number in count(2) if not (path := folder / f"run-{number}").exists())


def has_less_evidence(result: AuditResult, before: AuditResult) -> bool:
    """Whether an earlier audit of the same model and claim had an attack that this one lacks, or more models for one.

    Args:
        result: The later one.
        before: The earlier one.
    """
    claims = [json.loads(json.dumps(audit.to_dict()["claim"])) for audit in (result, before)]
    if result.model.get("sha256") != before.model.get("sha256") or claims[0] != claims[1]:
        return False
    trials = {attack.name: attack.trials for attack in result.attacks}
    return any(trials.get(attack.name, -1) < attack.trials for attack in before.attacks)
