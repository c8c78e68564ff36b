"""Findings as people and machines read them: text, JSON, SARIF."""

import json
import textwrap
from collections.abc import Callable
from pathlib import Path

from dpaudit._plain_text import printable
from dpaudit.audit.lint.findings import Finding
from dpaudit.audit.lint.linting import LintResult
from dpaudit.audit.lint.rules import RULES
from dpaudit.reports.sarif import sarif_log, sarif_result

LINT_FORMAT = "dpaudit-lint/1"


def lint_text(
    result: LintResult, *, width: int = 100, paint: Callable[[str, str], str] = lambda text, kind: text
) -> str:
    """The findings by place; why and what to do once, where a rule is met first; how many there are.

    Args:
        result: What was found.
        width: Columns to wrap reasons at.
        paint: Gives a text the colour of a level.
    """
    lines: list[str] = []
    told: set[str] = set()
    for finding in result.findings:
        cell = f" ({finding.cell})" if finding.cell else ""
        place = f"{printable(finding.path)}:{finding.line}:{finding.column}{cell}"
        lines.append(f"{place}: {paint(finding.level, finding.level)}[{finding.rule}] {printable(finding.message)}")
        if finding.rule not in told:
            told.add(finding.rule)
            for word, text in (("why", finding.reason), ("fix", finding.fix), ("see", finding.source)):
                lines += _wrapped(word, text, width)
    counts = {level: sum(item.level == level for item in result.findings) for level in ("error", "warning", "note")}
    told_counts = ", ".join(f"{count} {level}{'s' * (count != 1)}" for level, count in counts.items() if count)
    files = f"{result.files:,} file{'s' * (result.files != 1)}"
    unread = f"; {result.unread:,} could not be read" if result.unread else ""
    others = f"; {result.others:,} left alone: no privacy library, no parameters of one" if result.others else ""
    return "\n".join([*lines, f"{told_counts or 'nothing found'} in {files}{unread}{others}"])


def _wrapped(word: str, text: str, width: int) -> list[str]:
    start = f"    {word}: "
    return textwrap.wrap(
        text, width, initial_indent=start, subsequent_indent=" " * len(start), break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


def lint_json(result: LintResult) -> str:
    """The findings as one JSON document of format dpaudit-lint/1."""
    document = {
        "format": LINT_FORMAT,
        "files": result.files,
        "left_alone": result.others,
        "unread": result.unread,
        "findings": [finding.to_dict() for finding in result.findings],
    }
    return json.dumps(document, indent=1) + "\n"


def lint_sarif(result: LintResult, *, version: str) -> str:
    """The findings as SARIF 2.1.0, with every rule's reason and fix.

    Args:
        result: What was found.
        version: Of dpaudit.
    """
    rules = [
        {
            "id": rule.name,
            "shortDescription": {"text": rule.summary},
            "fullDescription": {"text": rule.reason},
            "help": {"text": f"{rule.fix}\n{rule.source}"},
        }
        for rule in RULES.values()
    ]
    return sarif_log(rules, map(_sarif, result.findings), version=version)


def _sarif(finding: Finding) -> dict[str, object]:
    text = f"{finding.message} ({finding.cell})" if finding.cell else finding.message
    uri = Path(finding.path).as_posix()
    return sarif_result(finding.rule, finding.level, text, uri=uri, line=finding.line, column=finding.column)
