"""Canaries planted in folders: of images, or of `datasets`; each is written as it was read."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit._files import write_whole
from dpaudit.audit.canaries.crafting import craft_arrays, craft_labels, scrambled
from dpaudit.audit.canaries.table_canaries import craft_rows
from dpaudit.audit.inputs import dataset_folders, image_folders
from dpaudit.audit.inputs.formats import fixed_order
from dpaudit.audit.inputs.tables import Table, write_table

Order = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ImageSource:
    """Images in a folder for each class.

    Args:
        images: Where they are.
    """

    images: image_folders.ImageFolder
    suffix: str = field(default="", init=False)

    @property
    def records(self) -> int:
        return len(self.images.files)

    @property
    def templates(self) -> int:
        return len(self.images.files)

    def craft(self, kind: str, count: int, rng: np.random.Generator) -> list[tuple[bytes, str, str]]:
        """Content, suffix and class of canaries: images as they are under another class are copied byte by byte."""
        rows = fixed_order(self.records)[:count]
        labels = craft_labels(kind, self.images.labels[rows], len(self.images.classes), rng)
        names = [self.images.classes[label] for label in labels]
        files = [self.images.files[row] for row in rows]
        if kind in ("mislabelled", "random-label"):
            contents = [(image_folders.file_bytes(file), file.suffix) for file in files]
        elif kind == "out-of-distribution":
            pixels = (image_folders.read_image(file) for file in files)
            contents = [(image_folders.image_bytes(scrambled(p, rng, channels=p.ndim - 2)), ".png") for p in pixels]
        else:
            like = image_folders.read_image(files[0])
            empty = craft_arrays(kind, np.broadcast_to(like, (count, *like.shape)), rng)
            contents = [(image_folders.image_bytes(image), ".png") for image in empty]
        return [(content, suffix, name) for (content, suffix), name in zip(contents, names, strict=True)]

    def write_planted(self, path: Path, canaries: list[tuple[bytes, str, str]], chosen: Order, order: Order) -> None:
        """A folder such as the one read; files are numbered, so that their names tell nothing."""
        for name in self.images.classes:
            (path / name).mkdir(parents=True)
        for number, place in enumerate(order):
            if place < self.records:
                file, label = self.images.files[place], self.images.labels[place]
                content, suffix, name = image_folders.file_bytes(file), file.suffix, self.images.classes[label]
            else:
                content, suffix, name = canaries[chosen[place - self.records]]
            (path / name / f"{number:07d}{suffix}").write_bytes(content)

    def write_queries(self, path: Path, canaries: list[tuple[bytes, str, str]], ids: Sequence[str]) -> None:
        """A folder of images named by their ids, and queries.csv with id, file and label."""
        path.mkdir(parents=True)
        rows = []
        for (content, suffix, name), key in zip(canaries, ids, strict=True):
            (path / f"{key}{suffix}").write_bytes(content)
            rows.append({"id": key, "file": f"{key}{suffix}", "label": name})
        write_whole({path / "queries.csv": write_table(("id", "file", "label"), rows, ".csv")})


@dataclass(frozen=True, eq=False)
class DatasetSource:
    """A data set of Hugging Face's `datasets`.

    Args:
        data: Its training records.
        table: How its columns are to be read; its rows are the records that canaries are made from.
    """

    data: Any
    table: Table
    suffix: str = field(default="", init=False)

    @property
    def records(self) -> int:
        return len(self.data)

    @property
    def templates(self) -> int:
        return len(self.table.rows)

    def craft(self, kind: str, count: int, rng: np.random.Generator) -> list[dict[str, Any]]:
        """Rows of canaries."""
        return craft_rows(kind, self.table, fixed_order(self.templates)[:count], rng)

    def write_planted(self, path: Path, canaries: list[dict[str, Any]], chosen: Order, order: Order) -> None:
        """A folder for load_from_disk."""
        rows = [canaries[place] for place in chosen]
        dataset_folders.with_rows(self.data, rows, order).save_to_disk(str(path))

    def write_queries(self, path: Path, canaries: list[dict[str, Any]], ids: Sequence[str]) -> None:
        """A folder for load_from_disk, with a column id."""
        dataset_folders.query_rows(self.data, canaries, ids).save_to_disk(str(path))
