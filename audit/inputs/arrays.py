"""The user's own arrays: an .npz file, judged by its headers before anything large is read."""

import os
import zipfile
from typing import BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from dpaudit._npy import read_header
from dpaudit.audit.inputs.archives import UNREADABLE, open_zip
from dpaudit.audit.inputs.files import InputError, open_regular
from dpaudit.audit.inputs.formats import Raw

LARGEST_ARRAYS = 2 << 30  # bytes of all arrays together
SMALL = 64 << 20  # below this the ratio is nobody's concern
LARGEST_RATIO = 100  # unpacked : packed; 0/1 features in float64 reach about 60, a bomb 1000

_TRAIN, _TEST = ("x", "y"), ("x_test", "y_test")


def read_npz(path: str | os.PathLike[str], *, native: bool = False) -> Raw:
    """Records and labels from an .npz file with x (n, d) and y (n,), and perhaps x_test and y_test.

    Pickled objects are never loaded. Sizes are compared with the file's before an array is read.

    Args:
        path: The file.
        native: Whether x keeps its type and may have any shape (n, ...), in place of float32 of shape (n, d).

    Raises:
        InputError: Not an .npz file; arrays missing, too large, of another shape, not numeric, not finite; labels
            not integers.
    """
    with open_regular(path) as file, open_zip(file, str(path)) as archive:
        names = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        known = (*_TRAIN, *_TEST) if set(_TEST) & set(names) else _TRAIN
        if set(names) != set(known):
            raise InputError(f"Expected {path} to hold the arrays {', '.join(known)}, not {', '.join(names)}.")
        shapes = {name: _declared(archive, names[name], f"{path}:{name}") for name in known}
        total, size = sum(info.file_size for info in names.values()), os.fstat(file.fileno()).st_size
        if total > LARGEST_ARRAYS or total > max(SMALL, LARGEST_RATIO * size):
            raise InputError(f"Expected {path} ({size:,} bytes) not to unpack to {total:,} bytes.")
        _check_shapes(shapes, str(path), flat=not native)
        arrays = {name: _read(archive, names[name], f"{path}:{name}") for name in known}
    features = _as_stored if native else _features
    x, y = features(arrays["x"], f"{path}:x"), _labels(arrays["y"], f"{path}:y")
    if "x_test" not in arrays:
        return Raw(x, y, x[:0], y[:0])
    return Raw(x, y, features(arrays["x_test"], f"{path}:x_test"), _labels(arrays["y_test"], f"{path}:y_test"))


def _declared(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str) -> tuple[int, ...]:
    """The shape in an array's header, once header, dtype and size agree."""
    try:
        with archive.open(info) as stream:
            header = read_header(stream)
            left = info.file_size - stream.tell()
    except UNREADABLE as error:
        raise InputError(f"Expected {name} to be an array: {error}.") from error
    if header.dtype.kind not in "biuf":
        raise InputError(f"Expected {name} of dtype {header.dtype} to hold numbers: objects and text are refused.")
    if header.size != left:
        raise InputError(f"Expected {name} to hold the {header.size:,} bytes that its header declares.")
    return header.shape


def _check_shapes(shapes: dict[str, tuple[int, ...]], path: str, *, flat: bool) -> None:
    for features, labels in (_TRAIN, _TEST):
        if features not in shapes:
            continue
        x, y = shapes[features], shapes[labels]
        if len(x) < 2 or (flat and len(x) > 2) or len(y) != 1 or x[0] != y[0] or 0 in x[1:]:
            wanted = "(n, d)" if flat else "(n, ...)"
            raise InputError(
                f"Expected {path}:{features} of shape {wanted} and {labels} of shape (n,), not {x} and {y}."
            )
    if shapes["x"][0] < 2 or ("x_test" in shapes and shapes["x_test"][1:] != shapes["x"][1:]):
        raise InputError(f"Expected {path} to hold at least two records, and as many features in x_test as in x.")


def _read(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str) -> NDArray[np.generic]:
    try:
        with archive.open(info) as stream:
            binary: BinaryIO = stream  # type: ignore[assignment]  # zipfile's stream is IO[bytes]
            return np.asarray(npy.read_array(binary, allow_pickle=False))
    except UNREADABLE as error:
        raise InputError(f"Expected {name} to be readable: {error}.") from error


def _features(array: NDArray[np.generic], name: str) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):  # a float64 beyond float32 becomes infinite, and is refused below
        features = np.ascontiguousarray(array, dtype=np.float32)
    if not np.isfinite(features).all():
        raise InputError(f"Expected every value of {name} to be finite in float32.")
    return features


def _as_stored(array: NDArray[np.generic], name: str) -> NDArray[np.generic]:
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise InputError(f"Expected every value of {name} to be finite.")
    return array


def _labels(array: NDArray[np.generic], name: str) -> NDArray[np.int64]:
    if array.dtype.kind not in "iu":
        raise InputError(f"Expected {name} of dtype {array.dtype} to hold integer labels.")
    if array.dtype == np.uint64 and len(array) and int(array.max()) > np.iinfo(np.int64).max:
        raise InputError(f"Expected every label of {name} to fit into 64 bits with a sign.")
    return array.astype(np.int64)
