"""Opening, hashing and writing files whose content nobody vouches for."""

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO

from dpaudit.audit.inputs.errors import InputError


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading; never waits for a pipe and never reads from a device.

    Args:
        path: The file; a symbolic link is followed, and judged by what it leads to.

    Raises:
        InputError: There is no such file, it cannot be read, or it is a directory, pipe, socket or device.
    """
    try:
        # Without O_NONBLOCK opening a pipe waits for a writer, before anything can be asked about it.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
    except FileNotFoundError:
        raise InputError(f"Expected {path} to be a file: it does not exist.") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"Expected {path!s} to be a readable file: {reason}.") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InputError(f"Expected {path} to be a regular file, not a directory, pipe or device.")
    return os.fdopen(descriptor, "rb")


def read_regular(path: str | os.PathLike[str], *, limit: int) -> bytes:
    """The content of a regular file of at most `limit` bytes.

    Raises:
        InputError: As `open_regular`, or the file is larger than `limit`.
    """
    with open_regular(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise InputError(f"Expected {path} to hold at most {limit:,} bytes.")
    return content


def file_sha256(file: BinaryIO) -> str:
    """SHA-256 of an open file from its beginning, as hexadecimal digits, in constant memory."""
    file.seek(0)
    digest = hashlib.sha256()
    while chunk := file.read(1 << 20):
        digest.update(chunk)
    return digest.hexdigest()


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Write a file so that `path` holds all of it or what it held before.

    The content goes to a temporary name in the same folder, which takes the place of `path` at the end.

    Raises:
        InputError: The folder does not exist or cannot be written to.
    """
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        file = temporary.open("xb")
    except OSError as error:
        raise InputError(f"Expected to be able to write {target}: {error.strerror}.") from error
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
