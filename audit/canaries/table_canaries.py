"""Canaries that are rows of a table: copies of rows with another label, sentence or features."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.audit.canaries.crafting import blank, craft_labels, craft_sentences, kind_names
from dpaudit.audit.inputs.files import InputError
from dpaudit.audit.inputs.tables import Table, as_number


def craft_rows(kind: str, table: Table, places: NDArray[np.int64], rng: np.random.Generator) -> list[dict[str, Any]]:
    """Rows of canaries made from the rows at some places; columns that a kind says nothing of stay as they are.

    Args:
        kind: One of KINDS.
        table: Where the rows are.
        places: A canary is made from each.
        rng: Of the choice.

    Raises:
        InputError: The kind does not apply, or the table has a column of labels with fewer than two.
    """
    kinds = kind_names(text=table.text is not None)
    if table.label is None:
        kinds = [name for name in kinds if name not in ("mislabelled", "random-label")]
    if kind not in kinds:
        without = " without a column of labels" * (table.label is None)
        raise InputError(f"Expected kind={kind!r} to be {', '.join(kinds)} here{without}.")
    rows = [dict(table.rows[place]) for place in places]
    if table.label is not None:
        _relabel(rows, kind, table, table.label, rng)
    if table.text is not None:
        sentences = craft_sentences(kind, [str(row[table.text]) for row in rows], rng)
        for row, sentence in zip(rows, sentences, strict=True):
            row[table.text] = sentence
    elif kind == "out-of-distribution":
        for column in table.features:
            for row, other in zip(rows, rng.integers(0, len(table.rows), len(rows)), strict=True):
                row[column] = table.rows[other][column]
    elif kind == "blank":
        _empty(rows, table)
    return rows


def _relabel(rows: Sequence[dict[str, Any]], kind: str, table: Table, column: str, rng: np.random.Generator) -> None:
    """Every row with the label that the kind gives it."""
    if any(isinstance(row[column], (dict, list)) for row in table.rows):
        raise InputError(f"Expected column {column} to hold labels, not lists or objects.")
    classes = sorted({row[column] for row in table.rows}, key=lambda label: (str(type(label)), label))
    if len(classes) < 2 or len(classes) > len(table.rows) // 2:
        raise InputError(f"Expected column {column} to hold labels of at least two classes, not {len(classes)}.")
    codes = np.array([classes.index(row[column]) for row in rows], np.int64)
    for row, label in zip(rows, craft_labels(kind, codes, len(classes), rng), strict=True):
        row[column] = classes[label]


def _empty(rows: Sequence[dict[str, Any]], table: Table) -> None:
    """Every row 0 but for one feature."""
    values = [[as_number(row[column]) for column in table.features] for row in rows]
    if any(value is None for cells in values for value in cells) or not table.features:
        raise InputError("Expected columns of numbers alone for blank canaries.")
    for row, cells in zip(rows, blank(np.array(values, np.float64)), strict=True):
        row.update({column: _like(row[column], value) for column, value in zip(table.features, cells, strict=True)})


def _like(cell: Any, value: float) -> Any:
    """A number as the cell holds it: text, integer or float."""
    return f"{value:.6g}" if isinstance(cell, str) else round(value) if isinstance(cell, int) else float(value)
