"""The published votes of 250 teachers on MNIST, SVHN and Adult (Papernot et al. 2018)."""

import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dpaudit.audit.inputs.files import InputError, read_verified
from dpaudit.audit.inputs.sources import FOLDER_VARIABLE, read_source

VoteSet = Literal["mnist", "svhn", "adult"]
NAMES: tuple[VoteSet, ...] = ("mnist", "svhn", "adult")
FOLDER, FILE = "pate", "pate_votes_250.npz"
SHA256 = "9565fc60831e66b722c5f651e4623c2f5e10cc3e7c00198e2d618a02ca209821"
SHAPES = {"mnist": (9000, 10), "svhn": (26032, 10), "adult": (16281, 2)}
TEACHERS = 250
LARGEST_FILE = 1 << 20  # bytes; the file has 172,886


@dataclass(frozen=True, eq=False)
class TeacherVotes:
    """Votes of an ensemble on public queries.

    Args:
        name: "mnist", "svhn" or "adult".
        counts: Shape (queries, classes), every row summing to `teachers`.
        teachers: How many voted.
        labels: True labels, shape (queries,); None for SVHN, whose test labels are not among the known data sets.
    """

    name: VoteSet
    counts: NDArray[np.int64]
    teachers: int
    labels: NDArray[np.int64] | None


def load_votes(name: VoteSet, *, labels: bool = True) -> TeacherVotes:
    """Load published votes from the folder `pate` under the one that DPAUDIT_DATA names; they are never downloaded.

    The queries are the first 9,000 test images of MNIST, the 26,032 test images of SVHN and the 16,281 test records of
    Adult, in their order.

    Args:
        name: One of NAMES.
        labels: Whether to load the true labels too, from the data sets "mnist" and "adult".

    Raises:
        InputError: The file is not there or is another one.
    """
    if name not in NAMES:
        raise InputError(f"Expected votes={name!r} to be one of {', '.join(NAMES)}.")
    root = os.environ.get(FOLDER_VARIABLE)
    if not root:
        raise InputError(f"Expected {FOLDER_VARIABLE} to name the folder that holds {FOLDER}/{FILE}.")
    path = Path(root, FOLDER, FILE)
    with np.load(io.BytesIO(read_verified(path, SHA256, limit=LARGEST_FILE)), allow_pickle=False) as archive:
        counts = archive[f"{name}_250_teachers"].astype(np.int64)
    assert counts.shape == SHAPES[name], "the file with this checksum has these shapes"
    return TeacherVotes(name, counts, TEACHERS, _labels(name) if labels else None)


def _labels(name: VoteSet) -> NDArray[np.int64] | None:
    return None if name == "svhn" else read_source(name).y_test[: SHAPES[name][0]]
