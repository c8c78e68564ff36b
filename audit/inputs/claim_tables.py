"""Tables of very many claims on Gaussian noise: one line each, without the tables of TOML."""

import csv
import io
from itertools import islice
from pathlib import Path

import numpy as np

from dpaudit.audit.inputs.files import InputError, read_regular
from dpaudit.mechanisms.base import Array
from dpaudit.mechanisms.quoting import shown
from dpaudit.verify.claim_columns import ClaimColumns
from dpaudit.verify.claim_files import LONGEST_ID
from dpaudit.verify.validation import float_of

LARGEST_TABLE = 512 << 20  # bytes
COLUMNS = ("id", "noise_multiplier", "sampling_prob", "steps", "delta", "epsilon")


def read_claim_table(path: Path) -> ClaimColumns:
    """Claims from a comma-separated file whose first line names the columns COLUMNS, in any order.

    Raises:
        InputError: Not such a file, a cell that is no number, or a value outside its domain.
    """
    try:
        reader = csv.reader(
            io.StringIO(read_regular(path, limit=LARGEST_TABLE).decode("utf-8-sig"), newline=""), strict=True
        )
        names = [name.strip() for name in next(reader, [])]
        if sorted(names) != sorted(COLUMNS):
            raise InputError(f"Expected the first line of {path} to be {','.join(COLUMNS)}.")
        blocks: list[list[Array]] = []
        while rows := list(islice(reader, 100_000)):  # a million rows of text at once take a gigabyte
            while rows and not rows[-1]:  # blank lines at the end, as some editors leave
                rows.pop()
            blocks += [_columns(rows, names, path, sum(len(block[0]) for block in blocks) + 2)] if rows else []
    except UnicodeDecodeError as error:
        raise InputError(f"Expected {path} to be UTF-8 text.") from error
    except csv.Error as error:
        raise InputError(f"Expected {path} to be a table: line {reader.line_num}: {error}.") from error
    if not blocks:
        raise InputError(f"Expected {path} to hold at least one claim.")
    columns = {name: np.concatenate(parts) for name, parts in zip(names, zip(*blocks, strict=True), strict=True)}
    try:
        return ClaimColumns(*(columns[name] for name in COLUMNS))
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error


def _columns(rows: list[list[str]], names: list[str], path: Path, first: int) -> list[Array]:
    """The cells of some lines by column: ids as text, all else as numbers."""
    for number, row in enumerate(rows, first):
        if len(row) != len(names):
            raise InputError(f"Expected line {number} of {path} to have {len(names)} columns, not {len(row)}.")
        name = row[names.index("id")]
        if not 1 <= len(name) <= LONGEST_ID or "\0" in name:  # an array gives every id the room of the longest
            raise InputError(f"Expected the id in line {number} of {path} to be 1 to {LONGEST_ID} letters, none a NUL.")
    return [
        np.array(cells, dtype=str) if name == "id" else _numbers(cells, name, path, first)
        for name, cells in zip(names, zip(*rows, strict=True), strict=True)
    ]


def _numbers(cells: tuple[str, ...], name: str, path: Path, first: int) -> Array:
    try:
        numbers = np.array([float(cell) for cell in cells])
    except ValueError:
        number, cell = next((i, cell) for i, cell in enumerate(cells, first) if not _is_number(cell))
        raise InputError(f"Expected {name}={shown(cell)} in line {number} of {path} to be a number.") from None
    for row in np.flatnonzero(numbers == 0.0).tolist():
        try:
            float_of(cells[row])
        except ValueError as error:
            raise InputError(f"{path}: line {first + row}: {name}: {error}") from None
    return numbers


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
