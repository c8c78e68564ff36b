"""Data to train and audit on: by name, or the user's own arrays in an .npz file."""

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.audit.inputs.arrays import read_npz
from dpaudit.audit.inputs.files import InputError, read_regular
from dpaudit.audit.inputs.formats import LARGEST_FILE, Raw, as_float, bag_of_words, fixed_order, held_out_part, read_tsv
from dpaudit.audit.inputs.sources import SOURCES, Stage, read_source

BUNDLED = ("digits", "breast_cancer")  # they ship with scikit-learn
NAMES = (*BUNDLED, *SOURCES)
TEXTS = ("sst2", "qnli")
Encoder = Callable[[Sequence[str] | NDArray[Any]], NDArray[np.float32]]  # from sentences to a row of features each


@dataclass(frozen=True, eq=False)
class Dataset:
    """Records with labels, ready for training.

    Args:
        name: One of NAMES, or the path of the .npz or .tsv file.
        x: Training features, shape (n, d), float32, in [0, 1] for the named sets; of sentences perhaps token ids.
        y: Training labels 0..classes-1, shape (n,), int64.
        classes: Number of classes, at least 2.
        sha256: `arrays_sha256(x, y)`.
        x_test, y_test: Records for testing only; may be empty for the user's own data.
        texts: The raw sentences behind x for text, else None.
        texts_test: The raw sentences behind x_test for text, else None.
        encode: From sentences to rows such as those of x for text, else None.
        tokens: Whether x holds token ids.
    """

    name: str
    x: NDArray[np.float32]
    y: NDArray[np.int64]
    classes: int
    sha256: str
    x_test: NDArray[np.float32]
    y_test: NDArray[np.int64]
    texts: tuple[str, ...] | None = None
    texts_test: tuple[str, ...] | None = None
    encode: Encoder | None = None
    tokens: bool = False


def arrays_sha256(x: NDArray[np.float32], y: NDArray[np.int64]) -> str:
    """SHA-256 of "float32 (n, d)\\n", the bytes of x, "int64 (n,)\\n", the bytes of y (little-endian, C order).

    >>> arrays_sha256(np.zeros((2, 3), np.float32), np.array([0, 1]))[:16]
    'c9ed884e05a5f21f'
    """
    digest = hashlib.sha256()
    for array, dtype in ((x, "float32"), (y, "int64")):
        digest.update(f"{dtype} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array, dtype=np.dtype(dtype).newbyteorder("<")).tobytes())
    return digest.hexdigest()


def load(
    name_or_path: str | os.PathLike[str],
    *,
    classes: Sequence[int] | None = None,
    records: int | Sequence[int] | None = None,
    tokens: Encoder | None = None,
    progress: Stage | None = None,
) -> Dataset:
    """Load a data set, or the part of it that a recipe names.

    Named sets: `digits` (8 x 8 pixels / 16) and `breast_cancer` (30 measures, each scaled to [0, 1] by the range its
    description prints) ship with scikit-learn and have no test set of their own, nor have `location30` and
    `purchase100`: the last fifth of `fixed_order` is held out. `fashion-mnist`, `mnist` (pixels / 255), `adult`
    (one-hot, fixed limits), `sst2`, `qnli` (1024 hashed words) keep their published split; these come from the folder
    named by DPAUDIT_DATA, or are downloaded, and their checksums are verified either way.

    Args:
        name_or_path: One of NAMES, or the path of an .npz file with x (n, d) and y (n,), and perhaps x_test, y_test;
            or of a .tsv file with the columns sentence and label.
        classes: Original labels to keep; they become 0, 1, ... in this order. None: all, in ascending order.
        records: How many training records to keep, of the chosen classes: the first ones of `fixed_order`; or their
            indices in file order, counted among the chosen classes. None: all, in file order.
        tokens: From sentences to token ids, in place of 1024 hashed words.
        progress: Told of downloads.

    Raises:
        InputError: The data cannot be had, are not what they must be, or the selection leaves fewer than two classes.
    """
    name = os.fspath(name_or_path)
    if name in BUNDLED:
        raw = _bundled(name)
    elif name in SOURCES:
        raw = read_source(name, progress=progress)
    elif name.endswith(".npz"):
        raw = read_npz(name)
    elif name.endswith(".tsv"):
        raw = read_tsv(read_regular(name, limit=LARGEST_FILE), name)
    else:
        raise InputError(f"Expected dataset={name!r} to be a .npz or .tsv file or one of {', '.join(NAMES)}.")
    text = name in TEXTS or name.endswith(".tsv")
    if tokens is not None and not text:
        raise InputError(f"Expected tokens only with sentences ({', '.join(TEXTS)} or a .tsv file), not with {name!r}.")
    return _select(name, raw, classes, records, (tokens or bag_of_words) if text else None, tokens is not None)


def _bundled(name: str) -> Raw:
    x, y = _table(name)
    scaled = x / 16.0 if name == "digits" else (x - x.min(axis=0)) / (x.max(axis=0) - x.min(axis=0))
    features, labels, held_out = as_float(scaled), y.astype(np.int64), held_out_part(len(y))
    return Raw(features[~held_out], labels[~held_out], features[held_out], labels[held_out])


def _table(name: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Features and labels from the file in scikit-learn's folder: importing the package takes a second and more."""
    package = find_spec("sklearn")
    assert package is not None  # a dependency
    assert package.origin is not None
    file, header = ("digits.csv.gz", 0) if name == "digits" else ("breast_cancer.csv", 1)
    table = np.loadtxt(Path(package.origin).parent / "datasets" / "data" / file, delimiter=",", skiprows=header)
    return table[:, :-1], table[:, -1]


def _select(
    name: str,
    raw: Raw,
    classes: Sequence[int] | None,
    records: int | Sequence[int] | None,
    encode: Encoder | None,
    tokens: bool,
) -> Dataset:
    """Choose classes, then records, then turn what is left into features: most of a large set is never converted."""
    present = np.unique(raw.y)
    kept = present if classes is None else np.array(list(classes), np.int64)
    missing = sorted(set(kept.tolist()) - set(present.tolist()))
    if missing or len(set(kept.tolist())) != len(kept):
        raise InputError(f"Expected classes={kept.tolist()} to be different labels of {name}: {_brief(present)}.")
    strange = np.setdiff1d(raw.y_test, present)
    if classes is None and name not in SOURCES and len(strange):
        rule = "training never saw; classes chooses labels, and drops the others"
        raise InputError(f"Expected no labels in the test records of {name} that {rule}: {_brief(strange)}.")
    if len(kept) < 2:
        raise InputError(f"Expected {name} to have at least two classes, not {len(kept)} ({_brief(kept)}).")
    train, test = np.flatnonzero(np.isin(raw.y, kept)), np.flatnonzero(np.isin(raw.y_test, kept))
    train = train[_chosen(len(train), records)]
    y, y_test = _relabel(raw.y[train], kept), _relabel(raw.y_test[test], kept)
    if len(np.unique(y)) < 2:
        raise InputError(f"Expected records={_brief(records)} of {name} to cover at least two classes.")
    finish = encode or (SOURCES[name].finish if name in SOURCES else as_float)
    x, x_test = finish(raw.x[train]), finish(raw.x_test[test])
    data = Dataset(name, x, y, len(kept), arrays_sha256(x, y), x_test, y_test, encode=encode, tokens=tokens)
    if encode is None:
        return data
    return replace(data, texts=tuple(map(str, raw.x[train])), texts_test=tuple(map(str, raw.x_test[test])))


def _chosen(available: int, records: int | Sequence[int] | None) -> NDArray[np.int64]:
    if records is None:
        return np.arange(available)
    if isinstance(records, int):
        if not 1 <= records <= available:
            raise InputError(f"Expected records={records} in 1..{available}, the training records of these classes.")
        return fixed_order(available)[:records]
    chosen = np.array(list(records), np.int64)
    if not len(chosen) or chosen.min() < 0 or chosen.max() >= available or len(set(chosen.tolist())) != len(chosen):
        raise InputError(f"Expected records={_brief(records)} to be different indices in 0..{available - 1}.")
    return chosen


def _relabel(labels: NDArray[np.int64], kept: NDArray[np.int64]) -> NDArray[np.int64]:
    order = np.argsort(kept)
    return order[np.searchsorted(kept, labels, sorter=order)].astype(np.int64)


def _brief(values: Any) -> str:
    """At most ten values of a list, for a message."""
    if values is None or isinstance(values, int):
        return str(values)
    items = [str(value) for value in list(values)[:10]]
    return ", ".join(items) + (", ..." if len(values) > len(items) else "")
