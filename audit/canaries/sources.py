"""What canaries are planted in: arrays, tables, folders of images or of `datasets`, each written as it was read."""

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dpaudit._files import write_whole
from dpaudit.audit.canaries.crafting import craft_arrays, craft_labels
from dpaudit.audit.canaries.folder_sources import DatasetSource, ImageSource, Order
from dpaudit.audit.canaries.table_canaries import craft_rows
from dpaudit.audit.inputs import dataset_folders, image_folders
from dpaudit.audit.inputs.arrays import read_npz
from dpaudit.audit.inputs.files import InputError
from dpaudit.audit.inputs.formats import Raw, fixed_order
from dpaudit.audit.inputs.tables import SUFFIXES, Table, chosen_columns, read_table, write_table

if TYPE_CHECKING:
    from dpaudit.audit.inputs.datasets import Dataset


class Source(Protocol):
    """Records that canaries are planted in.

    Args:
        suffix: Of the files that it writes; "" for folders.
        records: How many there are to train on.
        templates: How many canaries can be made from them.
    """

    @property
    def suffix(self) -> str: ...
    @property
    def records(self) -> int: ...
    @property
    def templates(self) -> int: ...

    def craft(self, kind: str, count: int, rng: np.random.Generator) -> Any:
        """So many canaries, at most `templates`.

        Raises:
            InputError: The kind does not apply.
        """

    def write_planted(self, path: Path, canaries: Any, chosen: Order, order: Order) -> None:
        """The records followed by the chosen canaries, both together in an order, as a trainer reads them."""

    def write_queries(self, path: Path, canaries: Any, ids: Sequence[str]) -> None:
        """All canaries with their ids."""


@dataclass(frozen=True, eq=False)
class ArraySource:
    """Arrays x (n, ...) and y (n,); canaries are made from other records where there are some.

    Args:
        x, y: To train on.
        x_others, y_others: Records that are not trained on.
    """

    x: NDArray[Any]
    y: NDArray[np.int64]
    x_others: NDArray[Any]
    y_others: NDArray[np.int64]
    suffix: str = field(default=".npz", init=False)

    @property
    def records(self) -> int:
        return len(self.y)

    @property
    def templates(self) -> int:
        return len(self.y) + len(self.y_others)

    def craft(self, kind: str, count: int, rng: np.random.Generator) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """x and y of canaries."""
        classes = np.unique(self.y)
        rows = fixed_order(len(self.y_others))[:count], fixed_order(len(self.y))[: max(0, count - len(self.y_others))]
        x = np.concatenate([self.x_others[rows[0]], self.x[rows[1]]])
        codes = np.searchsorted(classes, np.append(self.y_others[rows[0]], self.y[rows[1]]))
        return craft_arrays(kind, x, rng), classes[craft_labels(kind, codes, len(classes), rng)]

    def write_planted(
        self, path: Path, canaries: tuple[NDArray[Any], NDArray[np.int64]], chosen: Order, order: Order
    ) -> None:
        """An .npz file with x and y."""
        x, y = np.concatenate([self.x, canaries[0][chosen]]), np.append(self.y, canaries[1][chosen])
        write_whole({path: npz_bytes(x=x[order], y=y[order])})

    def write_queries(self, path: Path, canaries: tuple[NDArray[Any], NDArray[np.int64]], ids: Sequence[str]) -> None:
        """An .npz file with x, y and id."""
        write_whole({path: npz_bytes(x=canaries[0], y=canaries[1], id=np.array(ids))})


@dataclass(frozen=True, eq=False)
class GradientSource:
    """Canaries that are gradients: each the unit vector of a parameter of its own, for trainers that add them.

    Args:
        arrays: The records, which stay as they are.
        parameters: Of the model.
    """

    arrays: ArraySource
    parameters: int
    suffix: str = field(default=".npz", init=False)

    @property
    def records(self) -> int:
        return self.arrays.records

    @property
    def templates(self) -> int:
        return self.parameters

    def craft(self, kind: str, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """The place of each canary's one nonzero coordinate."""
        return rng.permutation(self.parameters)[:count]

    def write_planted(self, path: Path, canaries: NDArray[np.int64], chosen: Order, order: Order) -> None:
        """An .npz file with x, y and the coordinates of the canaries that are in, sorted."""
        x, y = self.arrays.x, self.arrays.y
        write_whole({path: npz_bytes(x=x, y=y, coordinates=np.sort(canaries[chosen]))})

    def write_queries(self, path: Path, canaries: NDArray[np.int64], ids: Sequence[str]) -> None:
        """An .npz file with coordinates and id."""
        write_whole({path: npz_bytes(coordinates=canaries, id=np.array(ids))})


@dataclass(frozen=True, eq=False)
class TableSource:
    """Rows of a table.

    Args:
        table: The records.
        suffix: Of the file.
    """

    table: Table
    suffix: str

    @property
    def records(self) -> int:
        return len(self.table.rows)

    @property
    def templates(self) -> int:
        return len(self.table.rows)

    def craft(self, kind: str, count: int, rng: np.random.Generator) -> list[dict[str, Any]]:
        """Rows of canaries."""
        return craft_rows(kind, self.table, fixed_order(self.records)[:count], rng)

    def write_planted(self, path: Path, canaries: list[dict[str, Any]], chosen: Order, order: Order) -> None:
        """A file of the same columns."""
        rows = [*self.table.rows, *(canaries[place] for place in chosen)]
        write_whole({path: write_table(self.table.columns, [rows[place] for place in order], self.suffix)})

    def write_queries(self, path: Path, canaries: list[dict[str, Any]], ids: Sequence[str]) -> None:
        """A file of the same columns after id."""
        rows = [{"id": name, **row} for name, row in zip(ids, canaries, strict=True)]
        write_whole({path: write_table(("id", *self.table.columns), rows, self.suffix)})


def open_source(data: str, *, label: str | None = None, text: str | None = None) -> Source:
    """The records that a path or the name of a known data set stands for.

    Args:
        data: .npz, .csv, .tsv or .jsonl file; folder of images, or of `datasets`; or a name such as "digits".
        label: Column of labels, for tables and data sets.
        text: Column of sentences.

    Raises:
        InputError: There is no such data, or it is not what it must be.
    """
    path = Path(data)
    if path.is_dir():
        if not dataset_folders.is_dataset_folder(path):
            return ImageSource(image_folders.read_image_folder(path))
        records = dataset_folders.read_dataset_folder(path)
        columns = tuple(records.column_names)
        _check_no_ids(columns, data)
        return DatasetSource(
            records, Table(columns, list(records), *chosen_columns(columns, data, label=label, text=text))
        )
    if path.suffix == ".npz":
        return _arrays(read_npz(path, native=True), data)
    if path.suffix in SUFFIXES:
        table = read_table(path, label=label, text=text)
        _check_no_ids(table.columns, data)
        return TableSource(table, path.suffix)
    return _known(data)


def _check_no_ids(columns: Sequence[str], name: str) -> None:
    """Refuse a column id: in the queries it is the canaries' own, under which the scores come back."""
    if "id" in columns:
        raise InputError(f"Expected {name} to have no column id, which the queries get: give it another name.")


def _known(name: str) -> Source:
    from dpaudit.audit.inputs.datasets import NAMES, load

    if name not in NAMES:
        raise InputError(
            f"Expected data={name!r} to be an .npz, .csv, .tsv or .jsonl file, a folder of images or of datasets, "
            f"or one of {', '.join(NAMES)}."
        )
    known = load(name)
    if known.texts is None:
        return _arrays(known, name)
    rows = [{"sentence": text, "label": int(y)} for text, y in zip(known.texts, known.y, strict=True)]
    return TableSource(Table(("sentence", "label"), rows, "label", "sentence"), ".jsonl")


def _arrays(raw: "Raw | Dataset", name: str) -> ArraySource:
    if len(np.unique(raw.y)) < 2:
        raise InputError(f"Expected {name} to hold labels of at least two classes.")
    others = np.isin(raw.y_test, raw.y)
    return ArraySource(raw.x, raw.y, raw.x_test[others], raw.y_test[others])


def npz_bytes(**arrays: NDArray[Any]) -> bytes:
    """An .npz file, the same bytes for the same arrays."""
    stream = io.BytesIO()
    np.savez(stream, **arrays)  # type: ignore[arg-type]
    return stream.getvalue()
