"""Opening zip archives whose directory may be hostile."""

import io
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from dpaudit.audit.inputs.errors import InputError

LARGEST_DIRECTORY = 4 << 20  # bytes; a record takes about 60, a Python object for it ten times that


class _Bounded(io.RawIOBase):
    """A file that refuses to hand out more than `limit` bytes at once: zipfile reads a directory in one go."""

    def __init__(self, file: BinaryIO, limit: int, name: str) -> None:
        super().__init__()
        self._file, self._name, self.limit = file, name, limit
        self._size = os.fstat(file.fileno()).st_size

    def read(self, size: int | None = -1) -> bytes:
        wanted = self._size - self._file.tell() if size is None or size < 0 else size
        if wanted > self.limit:
            raise InputError(f"Expected {self._name} to have a directory of at most {LARGEST_DIRECTORY:,} bytes.")
        return self._file.read(wanted)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True


@contextmanager
def open_zip(file: BinaryIO, name: str) -> Iterator[zipfile.ZipFile]:
    """A zip archive whose directory is small, with distinct names.

    Args:
        file: An open regular file.
        name: What to call it in messages.

    Raises:
        InputError: Not a zip archive, damaged, encrypted, or its directory is too large or names a record twice.
    """
    file.seek(0)
    start = file.read(4)
    if start != b"PK\x03\x04":
        raise InputError(
            f"Expected {name} to be a zip archive, " + (f"not to begin with {start!r}." if start else "not empty.")
        )
    bounded = _Bounded(file, LARGEST_DIRECTORY, name)
    try:
        archive = zipfile.ZipFile(bounded)
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, UnicodeDecodeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"Expected {name} to be a whole zip archive: {error}.") from error
    bounded.limit = 1 << 62  # from here on the caller has seen the sizes
    with archive:
        records = archive.infolist()
        if len({info.filename for info in records}) != len(records):
            raise InputError(f"Expected {name} to name each of its records once.")
        if any(info.flag_bits & 1 for info in records):
            raise InputError(f"Expected {name} not to be encrypted.")
        yield archive
