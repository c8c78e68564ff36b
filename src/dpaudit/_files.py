"""Files that are written whole or not at all."""

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Write a file so that `path` holds all of it or what it held before.

    The content goes to a temporary name in the same folder, which takes the place of `path` at the end. Pipes and
    devices are written to instead.

    Raises:
        OSError: The folder does not exist or cannot be written to.
    """
    target = Path(path)
    if not target.name:
        raise OSError(f"Expected to be able to write {target}: it is a folder.")
    if _is_stream(target):
        with _named(target), target.open("wb") as stream:
            yield stream
        return
    # a name of its own each time: in a container every command has the same process id, and one that was killed leaves
    # its file; short, as the target's own may be as long as a name can be
    temporary = target.with_name(f".dpaudit-{secrets.token_hex(8)}.tmp")
    try:
        file = temporary.open("xb")
    except OSError as error:
        refused = OSError(f"Expected to be able to write {target}: {error.strerror}.")
        refused.errno = error.errno  # a full disk is told apart by it
        raise refused from error
    try:
        with _named(target), file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def _named(target: Path) -> Iterator[None]:
    """What the system refuses of an open file, such as a full disk, with the file's name."""
    try:
        yield
    except OSError as error:
        if error.strerror:  # else it is one of ours, of another file, and says all
            error.filename = error.filename or str(target)
        raise


def _is_stream(target: Path) -> bool:
    """Whether a path is a pipe, a device, or a name for an open file such as /dev/stdout; /dev/shm is a folder."""
    special = target.exists() and not target.is_file() and not target.is_dir()
    top = target.absolute().parts[1:3]
    return special or (top[:1] in (("dev",), ("proc",)) and top != ("dev", "shm"))


def write_whole(parts: Mapping[str | os.PathLike[str], bytes]) -> None:
    """Write files that belong together, as `atomic_write`: none takes its place before all are on the disk.

    Args:
        parts: The content of every file.
    """
    with ExitStack() as files:
        for path, content in parts.items():
            file = files.enter_context(atomic_write(path))
            file.write(content)
            file.flush()
            if not _is_stream(Path(path)):
                os.fsync(file.fileno())
