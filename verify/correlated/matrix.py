"""A strategy as a plain matrix, from an .npy file that is read as data.

G = C^T C and A = |C|^T |C| are computed in floats; |fl(G) - G| <= gamma_m A for m rows, gamma_m = m u / (1 - m u), in
any order of summation (Higham 2002, Section 3.1), so |fl(G)| + 2 gamma_m fl(A) bounds |G| from above. The upper bound
is that of the rows (`patterns`), exact where G_ij = 0 for |i - j| >= b, and the sum over the pattern for fixed
orders. The lower bound is |C u| of one pattern with signs, of which `improved_signs` tries some, with its own rounding
subtracted.
"""

import hashlib
import io
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np

from dpaudit._npy import read_header
from dpaudit.mechanisms.base import Array
from dpaudit.mechanisms.numerics import UNIT
from dpaudit.verify.correlated.participation import Participation
from dpaudit.verify.correlated.patterns import Sensitivity, Steps, between, heaviest, heaviest_pair, row_weights
from dpaudit.verify.correlated.toeplitz import ENTRY, SMALLEST

MAX_STEPS, MAX_ROWS = 4096, 8192
MAX_BYTES = 8 * MAX_STEPS * MAX_ROWS + 4096  # of a file
MAX_WORK = 2e10  # additions: about a minute
SWEEPS = 50


@dataclass(frozen=True)
class Matrix:
    """A strategy given entry by entry.

    Args:
        file: Where it came from.
        sha256: Of the file's bytes.
        entries: C, shape (releases, steps); kept as a copy that nothing writes to.

    Raises:
        ValueError: It is no matrix of allowed size, or an entry is outside its domain.
    """

    name: ClassVar[str] = "file.npy"
    file: str
    sha256: str
    entries: Array = field(compare=False, repr=False)
    digest: str = field(init=False, repr=False)  # of the entries: what is known of one matrix is kept for its equals

    def __post_init__(self) -> None:
        shape, entries = self.entries.shape, self.entries
        if entries.ndim != 2 or not (1 <= shape[0] <= MAX_ROWS and 1 <= shape[1] <= MAX_STEPS):
            raise ValueError(
                f"Expected {self.file} of shape {shape} to hold a matrix of at most {MAX_ROWS} releases (rows) and "
                f"{MAX_STEPS} steps (columns)."
            )
        if not (np.abs(entries) <= ENTRY.high).all():
            raise ValueError(f"Expected the entries of {self.file} in {ENTRY}.")
        if not (np.abs(entries) >= SMALLEST).any():
            raise ValueError(f"Expected an entry of {self.file} of at least {SMALLEST:g} in size.")
        kept = np.array(entries, dtype=np.float64, order="C")
        kept.flags.writeable = False
        object.__setattr__(self, "entries", kept)
        object.__setattr__(self, "digest", hashlib.sha256(repr(shape).encode() + kept.tobytes()).hexdigest())

    @property
    def steps(self) -> int:
        """Columns."""
        return int(self.entries.shape[1])

    @cached_property
    def magnitudes(self) -> tuple[Array, Array]:
        """Bounds on |G|, from above, and A."""
        error = 2.0 * len(self.entries) * UNIT * (1 + 1e-9)
        sizes = np.abs(self.entries)
        around = sizes.T @ sizes
        return np.abs(self.entries.T @ self.entries) + error * around, around

    def bandwidth(self) -> int | None:
        """Diagonals of a square lower triangular matrix; None for another one."""
        row, column = np.nonzero(self.entries)
        if self.entries.shape[0] != self.steps or (row < column).any():
            return None
        return int((row - column).max()) + 1


def matrix_from_bytes(data: bytes, file: str) -> Matrix:
    """A matrix from the bytes of an .npy file; nothing is unpickled, and the size is judged before memory is taken.

    Raises:
        ValueError: Not the .npy format, not numbers, or not as large as the header says.
    """
    stream = io.BytesIO(data)
    try:
        header = read_header(stream)
    except ValueError as error:
        raise ValueError(f"Expected {file} in version 1.0 or 2.0 of the .npy format: {error}.") from error
    shape, dtype, rest = header.shape, header.dtype, len(data) - stream.tell()
    if dtype.kind not in "iuf" or dtype.itemsize > 8:
        raise ValueError(f"Expected {file} of dtype {dtype} to hold integers, or floats of at most 8 bytes.")
    if header.size != rest or len(shape) != 2:
        raise ValueError(f"Expected {file} of shape {shape} and {rest} bytes to hold a matrix of {header.size} bytes.")
    values = np.frombuffer(data, dtype, offset=stream.tell()).reshape(shape, order="F" if header.fortran else "C")
    return Matrix(file, hashlib.sha256(data).hexdigest(), np.array(values, dtype=np.float64))


def improved_signs(entries: Array) -> Array:
    """Signs of columns that make |C u| large: one after another is turned while that helps."""
    gram = entries.T @ entries
    signs = np.ones(len(gram))
    for _ in range(SWEEPS):
        before = signs.copy()
        for index in range(len(gram)):
            pull = gram[index] @ signs - gram[index, index] * signs[index]
            signs[index] = 1.0 if pull >= 0 else -1.0
        if (signs == before).all():
            break
    return signs


def moved_at_least(matrix: Matrix, pattern: Steps) -> Array:
    """|C u| row by row, from below, of equal contributions to a pattern, some of them turned round."""
    columns = matrix.entries[:, pattern]
    signs = improved_signs(columns)
    moved, sizes = np.abs(columns @ signs), np.abs(columns).sum(1)
    return np.asarray(np.maximum(moved - 2 * (len(pattern) + 1) * UNIT * sizes, 0.0))


def matrix_sensitivity(matrix: Matrix, steps: int, participation: Participation) -> Sensitivity:
    """sens of a plain matrix.

    Args:
        matrix: The strategy.
        steps: n, its columns.
        participation: The schema, without sampling.

    Raises:
        ValueError: It would take too long.
    """
    apart, times = participation.spacing(steps)
    magnitudes, _ = matrix.magnitudes
    if participation.kind == "fixed-order":
        orders = [np.arange(start, steps, apart, dtype=np.int64) for start in range(min(apart, steps))]
        upper = max(float(magnitudes[np.ix_(order, order)].sum()) for order in orders)
    else:
        limited = times - 1 < -(-steps // apart)
        if limited and times * float(steps) ** 2 > MAX_WORK:
            raise ValueError(f"Expected times={times} and {steps} steps of a plain matrix to be fewer.")
        if times == 2:
            upper, pattern = heaviest_pair(magnitudes, apart)
        else:
            upper, pattern = heaviest(row_weights(magnitudes, apart, times), apart, times)
        orders = [pattern, np.arange(times, dtype=np.int64) * apart]
    squares = [float(np.sum(moved_at_least(matrix, order) ** 2)) for order in orders]
    best = int(np.argmax(squares))
    return between(squares[best], upper, orders[best], (steps + len(matrix.entries) + 3 * times + 16) * UNIT)
