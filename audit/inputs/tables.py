"""Tables of records as people keep them: comma- or tab-separated with a header, or a JSON object in each line."""

import csv
import io
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpaudit.audit.inputs.files import InputError, read_regular
from dpaudit.audit.inputs.formats import LARGEST_FILE

SEPARATORS = {".csv": ",", ".tsv": "\t"}
JSON_LINES = ".jsonl"
SUFFIXES = (*SEPARATORS, JSON_LINES)
LABELS, TEXTS = ("label", "y", "target", "class"), ("sentence", "text")


@dataclass(frozen=True, eq=False)
class Table:
    """Records by column.

    Args:
        columns: Names, in the file's order.
        rows: Every record by column; texts in separated files, whatever JSON holds in others.
        label: The column of labels, None where there are sentences alone, as language models are trained on.
        text: The column of sentences, None where the other columns are the features.
    """

    columns: tuple[str, ...]
    rows: Sequence[dict[str, Any]]
    label: str | None
    text: str | None

    @property
    def features(self) -> tuple[str, ...]:
        """The columns that are neither the label nor the sentence."""
        return tuple(column for column in self.columns if column not in (self.label, self.text))


def read_table(path: Path, *, label: str | None = None, text: str | None = None) -> Table:
    """Read a .csv, .tsv or .jsonl file.

    Args:
        path: The file, UTF-8.
        label: Its column of labels; None for the first of label, y, target, class that there is, if any.
        text: Its column of sentences; None for sentence or text if there is one.

    Raises:
        InputError: Not such a file, records of different columns, fewer than two, no column of that name, or neither
            labels nor sentences.
    """
    content = read_regular(path, limit=LARGEST_FILE)
    try:
        lines = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"Expected {path} in UTF-8: {error.reason} at byte {error.start}.") from error
    rows = _json_lines(lines, path) if path.suffix == JSON_LINES else _separated(lines, path)
    if len(rows) < 2:
        raise InputError(f"Expected {path} to hold at least two records, not {len(rows)}.")
    columns = tuple(rows[0])
    return Table(columns, rows, *chosen_columns(columns, str(path), label=label, text=text))


def chosen_columns(
    columns: Sequence[str], name: str, *, label: str | None, text: str | None
) -> tuple[str | None, str | None]:
    """The columns of labels and of sentences, as `read_table`.

    Raises:
        InputError: There is no such column.
    """
    for wanted in (label, text):
        if wanted is not None and wanted not in columns:
            raise InputError(f"Expected {name} to have a column {wanted!r}: it has {', '.join(columns)}.")
    found = label or next((column for column in LABELS if column in columns), None)
    sentences = text or next((column for column in TEXTS if column in columns), None)
    if found is None and sentences is None:
        raise InputError(f"Expected {name} to have a column label: it has {', '.join(columns)}; name it with --label.")
    return found, sentences


def as_number(cell: Any) -> float | None:
    """The number in a cell, None where there is none.

    >>> as_number(" 1.5"), as_number("red"), as_number(True)
    (1.5, None, None)
    """
    if isinstance(cell, bool) or not isinstance(cell, (int, float, str)):
        return None
    try:
        value = float(cell)
    except (ValueError, OverflowError):
        return None
    return value if math.isfinite(value) else None


def write_table(columns: Sequence[str], rows: Sequence[dict[str, Any]], suffix: str) -> bytes:
    """The bytes of a table in the format of a suffix."""
    if suffix == JSON_LINES:
        return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    stream = io.StringIO()
    writer = csv.DictWriter(stream, columns, delimiter=SEPARATORS[suffix], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue().encode()


def _separated(lines: str, path: Path) -> list[dict[str, Any]]:
    csv.field_size_limit(min(LARGEST_FILE, sys.maxsize))
    reader = csv.reader(io.StringIO(lines, newline=""), delimiter=SEPARATORS[path.suffix], strict=True)
    try:
        table = [row for row in reader if row]
    except csv.Error as error:
        raise InputError(f"Expected {path} to be a table: line {reader.line_num}: {error}.") from error
    header = table.pop(0) if table else []
    if len(set(header)) != len(header):
        raise InputError(f"Expected the columns of {path} to have different names.")
    wrong = next((number for number, row in enumerate(table) if len(row) != len(header)), None)
    if wrong is not None:
        raise InputError(
            f"Expected record {wrong + 1} of {path} to have {len(header)} columns, not {len(table[wrong])}."
        )
    return [dict(zip(header, row, strict=True)) for row in table]


def _json_lines(lines: str, path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            json.dumps(row, ensure_ascii=False).encode()  # half of a letter, such as \\ud800, can be written nowhere
        except (ValueError, RecursionError) as error:
            raise InputError(f"Expected line {number} of {path} to be JSON: {error}.") from error
        if not isinstance(row, dict) or (rows and row.keys() != rows[0].keys()):
            raise InputError(f"Expected line {number} of {path} to be an object with the keys of the first one.")
        rows.append(row)
    return rows
