"""SARIF 2.1.0: findings as code-scanning services read them."""

import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

_ID = re.compile(r"""(?:^|[{,])[ \t]*(?:id|"id"|'id')[ \t]*=[ \t]*("(?:[^"\\\n]|\\.)*"|'[^'\n]*')""", re.MULTILINE)
# what spans lines, and what comments, holds no keys; other strings may hold the beginning of either
_TOKEN = re.compile(r"""("{3}(?:\\.|[^\\])*?"{3}|'{3}.*?'{3}|\#[^\n]*)|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'""", re.DOTALL)


def id_lines(text: str) -> dict[str, int]:
    """The line, from 1, in which every id of a claims file stands, by the id; the TOML reader does not tell.

    >>> id_lines('[[claim]]\\nid = "a"\\n[[claim]]\\nid = "b"  # the second')
    {'a': 2, 'b': 4}
    """
    lines: dict[str, int] = {}
    line, counted = 1, 0
    text = _TOKEN.sub(lambda found: re.sub(r"[^\n]", " ", found[0]) if found[1] else found[0], text)
    for match in _ID.finditer(text):
        line, counted = line + text.count("\n", counted, match.start(1)), match.start(1)
        try:
            name = str(tomllib.loads(f"id = {match[1]}")["id"])
        except tomllib.TOMLDecodeError:  # inside another text
            continue
        lines.setdefault(name, line)
    return lines


def sarif_log(
    rules: Sequence[Mapping[str, Any]], results: Iterable[Mapping[str, Any]], *, version: str, whole: bool = True
) -> str:
    """One run of dpaudit as a SARIF document.

    Args:
        rules: Of SARIF's `reportingDescriptor`, each with its id.
        results: Of SARIF's `result`, from `sarif_result`.
        version: Of dpaudit.
        whole: Whether the run came to its end.
    """
    driver = {"name": "dpaudit", "version": version, "rules": list(rules)}
    document = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": driver},
                "columnKind": "unicodeCodePoints",
                "invocations": [{"executionSuccessful": whole}],
                "results": list(results),
            }
        ],
    }
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def sarif_result(
    rule: str, level: str, text: str, *, uri: str, line: int | None = None, column: int = 1, **more: Any
) -> dict[str, Any]:
    """One finding.

    Args:
        rule: Id of its rule.
        level: "error", "warning", "note" or "none".
        text: What was found.
        uri: The file, with forward slashes.
        line, column: Where in it, from 1; None for the file as a whole.
        more: Other properties of the result.
    """
    place: dict[str, Any] = {"artifactLocation": {"uri": quote(uri, errors="surrogateescape")}}
    if line is not None:
        place["region"] = {"startLine": line, "startColumn": column}
    location = {"physicalLocation": place}
    return {"ruleId": rule, "level": level, "message": {"text": text}, "locations": [location], **more}
