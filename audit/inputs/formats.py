"""The public formats of the known data sets, from bytes to arrays; nothing here touches the disk or the network."""

import gzip
import io
import re
import tarfile
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.audit.inputs.files import InputError
from dpaudit.mechanisms.quoting import shown

LARGEST_FILE = 300 << 20  # bytes of one unpacked file; the largest known one (Purchase-100) has 237 MB
TEXT_FEATURES = 1024
LARGEST_ID = 2**24 - 1  # of a token: float32 holds it exactly

_ADULT_LIMITS = {0: 100.0, 2: 1.5e6, 4: 16.0, 10: 1e5, 11: 5e3, 12: 100.0}  # age, fnlwgt, education-num, gain, loss, h
_ADULT_COLUMNS = 15


@dataclass(frozen=True, eq=False)
class Raw:
    """A data set as read: all classes, all records, in file order.

    Args:
        x, y: Training records, shape (n, ...), and integer labels, shape (n,).
        x_test, y_test: Test records and labels.
    """

    x: NDArray[Any]
    y: NDArray[np.int64]
    x_test: NDArray[Any]
    y_test: NDArray[np.int64]


def unpack(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Undo gzip, zip and tar: every file by its own name, without folders.

    Raises:
        InputError: An archive is damaged or unpacks to more than 300 MiB.
    """
    unpacked: dict[str, bytes] = {}
    for name, content in files.items():
        try:
            if name.endswith(".tgz"):
                with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as tar:
                    for member in tar:
                        stream = tar.extractfile(member) if member.isreg() and member.size <= LARGEST_FILE else None
                        if stream is not None:
                            unpacked[member.name.rpartition("/")[2]] = _limited(stream, name)
                        elif member.isreg():
                            raise InputError(f"Expected {name} to unpack to at most {LARGEST_FILE:,} bytes.")
            elif name.endswith(".zip"):
                with zipfile.ZipFile(io.BytesIO(content)) as archive:
                    for info in archive.infolist():
                        if info.filename.endswith(("train.tsv", "dev.tsv")) and "__MACOSX" not in info.filename:
                            with archive.open(info) as stream:
                                unpacked[info.filename.rpartition("/")[2]] = _limited(stream, name)
            elif name.endswith(".gz"):
                with gzip.open(io.BytesIO(content)) as unzipped:
                    unpacked[name.removesuffix(".gz")] = _limited(unzipped, name)
            else:
                unpacked[name] = content
        except (OSError, EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error, RuntimeError) as error:
            raise InputError(f"Expected {name} to be a whole archive: {error}.") from error
    return unpacked


def _limited(stream: IO[bytes] | gzip.GzipFile, name: str) -> bytes:
    chunks, size = [], 0
    while chunk := stream.read(1 << 20):
        chunks.append(chunk)
        size += len(chunk)
        if size > LARGEST_FILE:
            raise InputError(f"Expected {name} to unpack to at most {LARGEST_FILE:,} bytes.")
    return b"".join(chunks)


def read_idx(files: Mapping[str, bytes]) -> Raw:
    """MNIST and Fashion-MNIST: 28 x 28 images as rows of 784 bytes."""
    parts: list[NDArray[Any]] = []
    for part in ("train", "t10k"):
        images = _idx(files, f"{part}-images-idx3-ubyte", 3)
        parts += [images.reshape(len(images), -1), _idx(files, f"{part}-labels-idx1-ubyte", 1).astype(np.int64)]
    return Raw(*parts)


def _idx(files: Mapping[str, bytes], name: str, axes: int) -> NDArray[np.uint8]:
    content = _member(files, name)
    header = 4 + 4 * axes
    if len(content) < header or content[:4] != bytes([0, 0, 8, axes]):
        raise InputError(f"Expected {name} to be an idx file of bytes with {axes} axes.")
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", count=axes, offset=4))
    if len(content) != header + int(np.prod(shape, dtype=object)):
        raise InputError(f"Expected {name} to hold the {shape} bytes that it declares, not {len(content) - header}.")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def read_shokri(files: Mapping[str, bytes], *, features: int, test: NDArray[np.bool_] | None = None) -> Raw:
    """Purchase-100 and Location-30 (Shokri et al. 2017): rows of a label 1..k and 0/1 features; no split of their own.

    Args:
        files: One file of comma-separated rows.
        features: Number of features.
        test: Which records are for testing, shape (n,); None for `held_out_part(n)`.
    """
    if len(files) != 1:
        raise InputError(f"Expected one file of rows in the archive, not {len(files)}.")
    name, content = next(iter(files.items()))
    labels: list[int] = []
    rows: list[NDArray[np.uint8]] = []
    for line in content.splitlines():
        label, _, rest = line.partition(b",")
        cells = np.frombuffer(rest, np.uint8)
        bits = cells[::2] - np.uint8(ord("0"))
        whole = label.strip(b'"').isdigit() and len(rest) == 2 * features - 1
        if not whole or bits.max() > 1 or (cells[1::2] != ord(",")).any():
            raise InputError(f"Expected line {len(rows) + 1} of {name} to be a label and {features} values 0 or 1.")
        labels.append(int(label.strip(b'"')) - 1)
        rows.append(bits)
    x, y = np.array(rows, np.uint8).reshape(-1, features), np.array(labels, np.int64)
    held_out = held_out_part(len(y)) if test is None else test
    return Raw(x[~held_out], y[~held_out], x[held_out], y[held_out])


def read_adult(files: Mapping[str, bytes]) -> Raw:
    """UCI Adult: six numbers divided by fixed public limits, then one-hot categories ("?" is one of its own).

    The limits (age 100, fnlwgt 1.5e6, education-num 16, capital-gain 1e5, capital-loss 5e3, hours-per-week 100) are
    constants of this reader, not computed from the records: scaling by the records would itself be a release. The
    categories of a column are those that occur, sorted; in the public files they are the 102 of its schema.
    """
    tables = []
    for name in ("adult.data", "adult.test"):
        lines = _member(files, name).decode("ascii", "replace").splitlines()
        cells = [[cell.strip() for cell in line.split(",")] for line in lines if line and not line.startswith("|")]
        if not cells or any(len(row) != _ADULT_COLUMNS for row in cells):
            raise InputError(f"Expected every row of {name} to have {_ADULT_COLUMNS} columns.")
        tables.append(np.array(cells, dtype=object))
    parts: list[list[NDArray[np.float32]]] = [[], []]
    for column in range(_ADULT_COLUMNS - 1):
        limit = _ADULT_LIMITS.get(column)
        categories = np.unique(np.concatenate([table[:, column] for table in tables]).astype(str))
        for table, part in zip(tables, parts, strict=True):
            cells_of = table[:, column].astype(str)
            if limit is None:
                part.append((cells_of[:, None] == categories).astype(np.float32))
            else:
                part.append(np.clip(_numbers(cells_of) / limit, 0.0, 1.0).astype(np.float32)[:, None])
    labels = [np.array([str(cell).rstrip(".") == ">50K" for cell in table[:, -1]], np.int64) for table in tables]
    return Raw(np.hstack(parts[0]), labels[0], np.hstack(parts[1]), labels[1])


def _numbers(cells: NDArray[np.str_]) -> NDArray[np.float64]:
    try:
        return cells.astype(np.float64)
    except ValueError as error:
        raise InputError(f"Expected a column of numbers in Adult: {error}.") from error


def read_glue(files: Mapping[str, bytes], *, columns: tuple[str, ...], labels: tuple[str, ...]) -> Raw:
    """SST-2 and QNLI (GLUE): tab-separated text without quoting; several text columns are joined by a tab.

    Args:
        files: train.tsv and dev.tsv; dev is the labelled test set.
        columns: The text columns.
        labels: The texts of labels 0, 1, ...
    """
    parts: list[NDArray[Any]] = []
    for name in ("train.tsv", "dev.tsv"):
        texts, answers = _sentences(_member(files, name), name, columns)
        if not set(answers) <= set(labels):
            raise InputError(f"Expected every label of {name} among {', '.join(labels)}.")
        parts += [texts, np.array([labels.index(answer) for answer in answers], np.int64)]
    return Raw(*parts)


def read_tsv(content: bytes, name: str) -> Raw:
    """The user's own sentences: tab-separated columns "sentence" and "label" under a header, labels integers from 0.

    Args:
        content: Of the file; no test set.
        name: What to call it in messages.

    >>> read_tsv(b"label\\tsentence\\n1\\tA fine film\\n0\\tDull", "mine.tsv").x.tolist()
    ['A fine film', 'Dull']
    """
    texts, answers = _sentences(content, name, ("sentence",))
    wrong = next((answer for answer in answers if not re.fullmatch("[0-9]{1,9}", answer)), None)
    if wrong is not None or len(texts) < 2:
        found = f"the label {shown(wrong)}" if wrong is not None else f"{len(texts)} records"
        raise InputError(f"Expected {name} to have at least two records with integer labels from 0, not {found}.")
    return Raw(texts, np.array(answers, np.int64), texts[:0], np.empty(0, np.int64))


def _sentences(content: bytes, name: str, columns: Sequence[str]) -> tuple[NDArray[Any], list[str]]:
    """The texts and the labels of a file of tab-separated columns under a header."""
    rows = [line.split("\t") for line in content.decode("utf-8-sig", "replace").rstrip("\r\n").split("\n")]
    header = [cell.strip() for cell in rows.pop(0)]
    if not {*columns, "label"} <= set(header) or any(len(row) != len(header) for row in rows):
        raise InputError(f"Expected {name} to have the columns {', '.join((*columns, 'label'))} in every row.")
    where, label = [header.index(column) for column in columns], header.index("label")
    texts = np.array(["\t".join(row[index].strip() for index in where) for row in rows], dtype=object)
    return texts, [row[label].strip() for row in rows]


def _member(files: Mapping[str, bytes], name: str) -> bytes:
    if name not in files:
        raise InputError(f"Expected a file {name} among {', '.join(files) or 'none'}.")
    return files[name]


def scale_bytes(x: NDArray[Any]) -> NDArray[np.float32]:
    """Pixels 0..255 to [0, 1]."""
    return (x.reshape(len(x), -1) / np.float32(255)).astype(np.float32)


def as_float(x: NDArray[Any]) -> NDArray[np.float32]:
    """Numbers that are in [0, 1] already."""
    return np.ascontiguousarray(x, dtype=np.float32)


def bag_of_words(x: Sequence[str] | NDArray[Any]) -> NDArray[np.float32]:
    """Word counts hashed into 1024 columns (MurmurHash3 without signs), each record scaled to l2 norm 1."""
    from sklearn.feature_extraction.text import HashingVectorizer

    if not len(x):
        return np.zeros((0, TEXT_FEATURES), np.float32)
    vectorizer = HashingVectorizer(n_features=TEXT_FEATURES, alternate_sign=False, norm="l2", dtype=np.float32)
    return np.asarray(vectorizer.transform(x).toarray(), dtype=np.float32)


@dataclass(frozen=True)
class HashedTokens:
    """Sentences as ids of words: each MurmurHash3 of a lower-case word or mark into 1..2^24 - 1, then 0 for padding.

    Like `bag_of_words` it knows no vocabulary, for one that is read off the training records is an access to them that
    no noise hides.

    Args:
        length: Ids of one sentence; what is longer is cut.

    >>> HashedTokens(4)(["Good, good"]).astype(int).tolist()
    [[14778440, 11413961, 14778440, 0]]
    """

    length: int

    def __call__(self, texts: Sequence[str] | NDArray[Any]) -> NDArray[np.float32]:
        """The ids of every sentence, float32, shape (sentences, length)."""
        from sklearn.utils import murmurhash3_32

        rows = np.zeros((len(texts), self.length), np.float32)
        for row, text in zip(rows, texts, strict=True):
            words = re.findall(r"\w+|[^\w\s]", str(text).lower())[: self.length]
            row[: len(words)] = [murmurhash3_32(word, positive=True) % LARGEST_ID + 1 for word in words]
        return rows


def fixed_order(records: int) -> NDArray[np.int64]:
    """The fixed permutation of 0..records-1 by which subsets are chosen: ranks of the raw output of PCG64(0).

    Raw bit streams, unlike `Generator.permutation`, are the same in every version of numpy (NEP 19).

    >>> fixed_order(5).tolist()
    [3, 2, 1, 0, 4]
    """
    return np.argsort(np.random.PCG64(0).random_raw(records), kind="stable").astype(np.int64)


def held_out_part(records: int) -> NDArray[np.bool_]:
    """The held-out fifth of a data set without a split of its own: the last fifth of `fixed_order`."""
    chosen = np.zeros(records, bool)
    chosen[fixed_order(records)[records - records // 5 :]] = True
    return chosen
