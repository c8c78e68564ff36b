"""Docstrings made ready for Sphinx: they are written for people who read the source, with formulas in plain text."""

import re
from collections.abc import Iterator

SECTION = re.compile(r"(Args|Attributes|Raises|Returns|Yields|Note|Warns):$")
CODE_SPAN = re.compile(r"`+[^`]*`+")
MARKUP = re.compile(r"[\\*_|]")
ITEM = re.compile(r"\s*- ")
NUMBER = re.compile(r"^(\s*)(\(\w+\)\s|\d+\. )")


def restructured(lines: list[str]) -> list[str]:
    """A docstring as reStructuredText: formulas keep stars and underscores, indented lines and lists their form."""
    return list(_lines(lines))


def _lines(lines: list[str]) -> Iterator[str]:
    section = code = session = False
    before = ""
    for line in lines:
        indented = line.startswith("  ")
        if line.strip() and not indented:
            section = bool(SECTION.match(line))
        session = line.lstrip().startswith(">>>") or (session and bool(line.strip()))
        began, code = code, not section and indented and (code or not before.strip()) and not ITEM.match(line)
        if code and not began:
            yield from ("::", "")
        elif ITEM.match(line) and before.strip() and not code and not ITEM.match(before) and not before[:1].isspace():
            yield ""
        yield line if code or session else _escaped(line)
        before = line


def _escaped(line: str) -> str:
    """A line of prose: `code` in single backticks, and nothing else that would be markup."""
    pieces, end = [], 0
    for span in CODE_SPAN.finditer(line):
        # a literal must stand apart from letters and opening brackets: an escaped blank does it, and is not shown
        pieces += [MARKUP.sub(r"\\\g<0>", line[end : span.start()]), f"\\ ``{span[0].strip('`')}``\\ "]
        end = span.end()
    return NUMBER.sub(r"\1\\\2", "".join([*pieces, MARKUP.sub(r"\\\g<0>", line[end:])]))
