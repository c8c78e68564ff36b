"""Scores that others computed: a vector, or a number for every id."""

import csv
import io
import os
import re
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from dpaudit._npy import read_header
from dpaudit.audit.inputs.archives import UNREADABLE
from dpaudit.audit.inputs.files import InputError, open_regular, read_regular
from dpaudit.mechanisms.base import Array
from dpaudit.mechanisms.quoting import shown

LARGEST_SCORES = 256 << 20  # bytes
INTEGER = re.compile(r"\s*[+-]?\d+\s*")
NO_NAMES = {"na", "n/a", "nan", "null", "none", "nil", "true", "false", "yes", "no"}  # a score is missing, or is none
FAULT = re.compile(r"#[A-Z0-9/]+[!?]")  # of a spreadsheet
NAME = re.compile(r"\D*[^\W\d]")  # of a column: a letter before any digit, so that 0x10 and 1,5 are none


def read_scores(path: Path) -> Array:
    """A vector of scores from a .npy file, or from text with a number in every line.

    A first line that is no number is a header; of a table with a column score that column is read.

    Raises:
        InputError: Not such a file, another shape, not numbers, empty, with NaN, or a line with more or fewer columns
            than the first, such as an empty one or a decimal comma.
    """
    values = _array(path) if path.suffix == ".npy" else _column(path)
    if values.ndim != 1 or not len(values):
        raise InputError(f"Expected {path} to hold a vector of scores, not shape {values.shape}.")
    if np.isnan(values).any():
        raise InputError(f"Expected {path} without NaN: {int(np.isnan(values).sum())} of {len(values)} scores are.")
    return values


def read_scored_ids(path: Path) -> dict[str, float]:
    """The score of every id, from a comma-separated file with the columns id and score.

    Raises:
        InputError: Not such a file, an id twice, or a score that is no number.
    """
    rows = _rows(path)
    if not rows or any(rows[0].count(name) != 1 for name in ("id", "score")):
        raise InputError(f"Expected {path} to have the columns id and score, each once.")
    where = rows[0].index("id"), rows[0].index("score")
    found: dict[str, float] = {}
    for number, row in enumerate(rows[1:], 2):
        if not row:
            continue
        _check_columns(row, rows[0], path, number)
        name, score = row[where[0]].strip(), _number(row[where[1]], path, number)
        if name in found:
            raise InputError(f"Expected every id of {path} once: {shown(name)} is there again in line {number}.")
        found[name] = score
    return found


def _array(path: Path) -> Array:
    with open_regular(path) as file:
        try:
            header = read_header(file)
            left = os.fstat(file.fileno()).st_size - file.tell()
            if header.dtype.kind not in "biuf" or header.size != left or left > LARGEST_SCORES:
                raise ValueError(f"{header.dtype} of shape {header.shape} in {left:,} bytes")
            file.seek(0)
            return np.asarray(npy.read_array(file, allow_pickle=False), np.float64)
        except UNREADABLE as error:
            raise InputError(f"Expected {path} to be a .npy file of numbers: {error}.") from error


def _column(path: Path) -> Array:
    rows = _rows(path)
    column = rows[0].index("score") if rows and "score" in rows[0] else 0
    if rows and len(rows[0]) > 1 and rows[0].count("score") != 1:
        raise InputError(f"Expected {path} to have one number in a line, or one column score.")
    first = 1 if rows and NAME.match(rows[0][column]) and not _is_number(rows[0][column]) else 0
    if first and (rows[0][column].strip("#<>()").lower() in NO_NAMES or FAULT.fullmatch(rows[0][column])):
        raise InputError(
            f"Expected line 1 of {path} to be a score or the name of a column, not {shown(rows[0][column])}."
        )
    below_0 = [row[column] for row in rows[1:] if len(row) > column] if rows and rows[0][column] == "0" else []
    if below_0 and not any(map(INTEGER.fullmatch, below_0)):
        raise InputError(
            f"Expected line 1 of {path} to be a score: '0' above numbers with a point is the header that pandas writes "
            "over a column without a name. Name the column score."
        )
    found = []
    for number, row in enumerate(rows[first:], first + 1):
        _check_columns(row, rows[0], path, number)  # an empty line would move all pairs behind it
        found.append(_number(row[column], path, number))
    return np.array(found, np.float64)


def _check_columns(row: list[str], header: list[str], path: Path, line: int) -> None:
    if len(row) != len(header):
        raise InputError(f"Expected line {line} of {path} to have {len(header)} columns, not {len(row)}.")


def _rows(path: Path) -> list[list[str]]:
    try:
        text = read_regular(path, limit=LARGEST_SCORES).decode("utf-8-sig")
        rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"Expected {path} to be comma-separated text: {error}.") from error
    while rows and not rows[-1]:
        rows.pop()
    if rows:
        rows[0] = [cell.strip() for cell in rows[0]] or [""]
    return rows


def _number(cell: str, path: Path, line: int) -> float:
    if not _is_number(cell):
        raise InputError(f"Expected line {line} of {path} to hold a score, not {shown(cell)}.")
    value = float(cell)
    if value != value:
        raise InputError(f"Expected line {line} of {path} to hold a score that is not NaN.")
    return value


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell  # 1_000 is a number in Python's source alone
