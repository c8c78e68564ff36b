"""The header of an .npy file, read before anything that it declares is believed."""

import math
import sys
from dataclasses import dataclass
from tokenize import TokenError
from typing import IO

import numpy as np
from numpy.lib import format as npy

MOST_AXES = 64  # of an array in NumPy
# What numpy raises over damaged headers; the last two where they nest too deeply.
_DAMAGED = (ValueError, LookupError, SyntaxError, TypeError, EOFError, TokenError, MemoryError, RecursionError)


@dataclass(frozen=True)
class Header:
    """What an .npy file declares.

    Args:
        shape: At most 64 axes; each an int in [0, sys.maxsize], never a bool.
        fortran: Whether the first axis varies fastest.
        dtype: Of an element; perhaps of objects or text.
    """

    shape: tuple[int, ...]
    fortran: bool
    dtype: "np.dtype[np.generic]"

    @property
    def size(self) -> int:
        """Bytes of all elements, as a Python integer: a product that overflows int64 must not look small."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_header(stream: IO[bytes]) -> Header:
    """The header of version 1.0 or 2.0 at a stream's place; the stream is left at the first element.

    Raises:
        ValueError: There is none; the message says why, in words that follow a colon.
    """
    try:
        version = npy.read_magic(stream)
    except ValueError as error:
        raise ValueError("it does not begin as an .npy file does") from error
    read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
    if read is None:
        raise ValueError(f"its format has version {version}, not 1.0 or 2.0")
    try:
        header = Header(*read(stream))
    except _DAMAGED as error:  # NumPy's own words are advice on its arguments
        raise ValueError("its header is damaged, or too long") from error
    shape = header.shape
    if len(shape) > MOST_AXES or not all(type(axis) is int and 0 <= axis <= sys.maxsize for axis in shape):
        raise ValueError(f"its shape is {shape}")
    return header
