"""Opening and hashing files whose content nobody vouches for, and the one error that their loaders raise."""

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from dpaudit._plain_text import printable

_LONGEST = 600  # letters of a message


class InputError(ValueError):
    """Something from outside cannot be used; the message is one printable line that names it and the rule.

    >>> print(InputError("Expected\\n\\x1b[31mrecipe.toml to hold TOML."))
    Expected ?[31mrecipe.toml to hold TOML.
    """

    def __init__(self, message: str) -> None:
        line = printable(" ".join(message.split()))
        super().__init__(line if len(line) <= _LONGEST else line[: _LONGEST - 3] + "...")


@contextmanager
def unfit_is_input() -> Iterator[None]:
    """Around what is given a user's numbers: a value that it cannot use is the user's mistake, not a crash."""
    try:
        yield
    except ValueError as error:
        raise InputError(str(error)) from error


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


def read_verified(path: str | os.PathLike[str], sha256: str | None, *, limit: int) -> bytes:
    """The content of a regular file of at most `limit` bytes that has this SHA-256; None for any.

    Raises:
        InputError: As `read_regular`, or the content is another.
    """
    content = read_regular(path, limit=limit)
    digest = hashlib.sha256(content).hexdigest()
    if sha256 not in (None, digest):
        raise InputError(f"Expected {path} to have SHA-256 {sha256}, not {digest}: it is damaged or another file.")
    return content


def file_sha256(file: BinaryIO) -> str:
    """SHA-256 of an open file from its beginning, as hexadecimal digits, in constant memory."""
    file.seek(0)
    digest = hashlib.sha256()
    while chunk := file.read(1 << 20):
        digest.update(chunk)
    return digest.hexdigest()
