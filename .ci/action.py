"""The entry of action.yml: lint and verify, told as annotations, outputs, a summary and SARIF.

Reads INPUT_PATHS, INPUT_IGNORE, INPUT_REQUIRE, INPUT_CLAIMS and INPUT_SARIF; appends to the files that GITHUB_OUTPUT
and GITHUB_STEP_SUMMARY name. The exit status is that of the commands: 3 beats 4 beats 5, and 2 (bad input) beats all.
"""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

NAMES = ("PATHS", "IGNORE", "CLAIMS")
GRAVEST = (2, 3, 4, 5)  # exit statuses, the one to return first
MARKUP = {"&": "&amp;", "<": "&lt;", "|": "&#124;", "`": "&#96;", "[": "&#91;", "\r": " ", "\n": " "}
CELL = str.maketrans(MARKUP)


def main() -> int:
    """Run both commands, tell what they found, and return the exit status."""
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        paths, ignored, claims = (shlex.split(os.environ.get(f"INPUT_{name}", "")) for name in NAMES)
    except ValueError as error:
        print(f"dpaudit: Expected paths, ignore and claims as words of a shell: {error}.", file=sys.stderr)
        return 2
    options = [word for rule in ignored for word in ("--ignore", rule)]
    required = os.environ.get("INPUT_REQUIRE", "").strip()
    options += ["--require", required] if required else []
    status, text = _dpaudit("lint", *paths, *options, "--format", "json")
    linted, written = json.loads(text) if text else {"findings": [], "unread": 0}, bool(text)
    findings, missed, statuses = linted["findings"], [], [status]
    if not written:
        missed.append(f"Lint ended with exit status {status}: the log says why.")
    if linted["unread"]:
        missed.append(f"Files and folders that could not be read: {linted['unread']}; the log names them.")
    sarif = os.environ.get("INPUT_SARIF") or "dpaudit.sarif"
    if written:
        try:
            Path(sarif).parent.mkdir(parents=True, exist_ok=True)
            Path(sarif).write_text(_dpaudit("lint", *paths, *options, "--format", "sarif")[1], encoding="utf-8")
        except OSError as error:
            written = False
            statuses.append(2)
            missed.append(f"SARIF was not written: {error}.")
            print(f"dpaudit: {missed[-1]}", file=sys.stderr)
    verdicts = []
    if claims:
        status, text = _dpaudit("verify", *claims, "--json", "-")
        statuses.append(status)
        verdicts = json.loads(text)["claims"] if text else []
        missed += [] if text else [f"The claims were not checked, exit status {status}: the log says why."]
    for finding in findings:
        print(annotation(finding))
    refuted = [verdict for verdict in verdicts if verdict["verdict"] == "refuted"]
    for verdict in refuted:
        print("::error title=dpaudit refuted::" + escaped(f"{verdict['id']}: {verdict['reason']}"))
    count = len(refuted) + sum(finding["level"] == "error" for finding in findings)
    _append("GITHUB_OUTPUT", f"findings={len(findings)}\nrefuted={count}\n" + f"sarif={sarif}\n" * written)
    _append("GITHUB_STEP_SUMMARY", summary(findings, verdicts, missed))
    lost = next((abs(status) for status in statuses if status not in (0, *GRAVEST)), 0)  # a crash, or a kill
    return next((grave for grave in GRAVEST if grave in statuses), lost)


def annotation(finding: dict[str, Any]) -> str:
    """A workflow command that marks the line of a finding."""
    level = {"note": "notice"}.get(finding["level"], finding["level"])
    place = f"file={escaped(finding['path'], True)},line={finding['line']},col={finding['column']}"
    message = escaped(f"{finding['message']}. {finding['fix']} ({finding['source']})")
    return f"::{level} {place},title=dpaudit {escaped(finding['rule'], True)}::{message}"


def escaped(text: str, in_property: bool = False) -> str:
    """Text as workflow commands take it, so that none of it is read as a command."""
    pairs = [("%", "%25"), ("\r", "%0D"), ("\n", "%0A"), *([(":", "%3A"), (",", "%2C")] if in_property else [])]
    for letter, code in pairs:
        text = text.replace(letter, code)
    return text


def summary(findings: list[dict[str, Any]], verdicts: list[dict[str, Any]], missed: Sequence[str] = ()) -> str:
    """What was found, as Markdown, and in sentences what was not looked at."""
    rows = [
        f"| {_cell(f['path'])}:{f['line']} | {f['level']} | {f['rule']} | {_cell(f['message'])} |" for f in findings
    ]
    table = ["| place | level | rule | finding |", "|---|---|---|---|", *rows] if rows else []
    table += ["", *missed] if missed else [] if rows else ["Lint found nothing."]
    claims = [f"| {_cell(v['id'])} | {v['verdict']} | {_cell(v['reason'])} |" for v in verdicts]
    checked = ["", "| claim | verdict | reason |", "|---|---|---|", *claims] if claims else []
    return "\n".join(["### dpaudit", "", *table, *checked, ""])


def _cell(text: str) -> str:
    """Text in a cell of a table: no markup, no end of the cell or line."""
    return text.translate(CELL)


def _dpaudit(*words: str) -> tuple[int, str]:
    """Exit status and stdout of a command; stderr goes on to ours."""
    done = subprocess.run(
        [sys.executable, "-m", "dpaudit.audit.cli", *words], stdout=subprocess.PIPE, encoding="utf-8", check=False
    )
    return done.returncode, done.stdout


def _append(variable: str, text: str) -> None:
    if os.environ.get(variable):
        with open(os.environ[variable], "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)


if __name__ == "__main__":
    sys.exit(main())
