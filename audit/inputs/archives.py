"""Zip archives whose directory may be hostile, and a torch file judged by its bytes, before torch opens it.

`torch.load(weights_only=True)` runs no code, but it inflates compressed records, believes declared sizes and builds
whatever a pickle of plain containers describes: 8 MB could take 16 GB.
"""

import io
import lzma
import os
import pickletools
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from dpaudit.audit.inputs.files import InputError
from dpaudit.mechanisms.quoting import shown

LARGEST_DIRECTORY = 4 << 20  # bytes; a record takes about 60, a Python object for it ten times that
LARGEST_PICKLE = 16 << 20  # bytes
MOST_OPCODES = 1_000_000  # a tensor takes about 40; each opcode can make an object of 100 bytes
_LOCAL_HEADER = 30  # bytes before a record's name

# What zipfile raises over damaged records; NotImplementedError is a RuntimeError, UnicodeDecodeError a ValueError.
UNREADABLE = (ValueError, EOFError, OSError, RuntimeError, zipfile.BadZipFile, zlib.error, lzma.LZMAError)

_STORAGES = ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool", "ComplexFloat",
             "ComplexDouble")  # fmt: skip
_HARMLESS = {
    "collections OrderedDict",
    "torch._utils _rebuild_tensor_v2",
    "torch._utils _rebuild_parameter",
    *(f"torch {name}Storage" for name in _STORAGES),
}


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
        old = " Save it again with torch.save(model.state_dict(), ...) of PyTorch 1.6 or later." * (
            start[:1] == b"\x80"
        )
        raise InputError(
            f"Expected {name} to be a zip archive, as torch.save and numpy.savez write, "
            + (f"not to begin with {start!r}.{old}" if start else "not empty.")
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


def check_archive(file: BinaryIO, name: str) -> int:
    """Refuse a torch file that is not a plain zip of stored records around a small, harmless pickle.

    Args:
        file: An open regular file.
        name: What to call it in messages.

    Returns:
        Bytes of all tensor records together.

    Raises:
        InputError: Not a zip, records compressed, overlapping or larger than the file, no or a too large data.pkl, or
            a pickle that names anything but tensors.
    """
    size = os.fstat(file.fileno()).st_size
    with open_zip(file, name) as archive:
        records = archive.infolist()
        if any(info.filename.endswith(("/constants.pkl", "/archive_format")) for info in records):
            raise InputError(
                f"Expected {name} to hold tensors, not a program (TorchScript, torch.export): save model.state_dict()."
            )
        packed = [info.filename for info in records
                  if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size]  # fmt: skip
        if packed:
            raise InputError(f"Expected every record of {name} to be stored, but {shown(packed[0])} is compressed.")
        if sum(info.file_size for info in records) > size:
            raise InputError(f"Expected the records of {name} to be no larger than its {size:,} bytes.")
        _check_layout(archive, name)
        pickles = [info for info in records if info.filename.rpartition("/")[2] == "data.pkl"]
        if len(pickles) != 1 or pickles[0].filename.count("/") != 1:
            raise InputError(f"Expected {name} to hold one data.pkl, as torch.save writes it.")
        if pickles[0].file_size > LARGEST_PICKLE:
            raise InputError(f"Expected data.pkl of {name} to have at most {LARGEST_PICKLE:,} bytes.")
        try:
            content = archive.read(pickles[0])
            damaged = archive.testzip()  # torch compares no checksums
        except UNREADABLE as error:
            raise InputError(f"Expected the records of {name} to be readable: {error}.") from error
        if damaged is not None:
            raise InputError(
                f"Expected record {shown(damaged)} of {name} to have the checksum that was written with it."
            )
        prefix = pickles[0].filename.removesuffix("data.pkl")
    _check_pickle(content, name)
    return sum(info.file_size for info in records if info.filename.startswith(f"{prefix}data/"))


def _check_layout(archive: zipfile.ZipFile, name: str) -> None:
    """Records lie one after the other from byte 0 to the directory: two zip readers then see the same records."""
    end = 0
    for info in sorted(archive.infolist(), key=lambda info: info.header_offset):
        if info.header_offset < end or (end == 0) != (info.header_offset == 0):
            raise InputError(f"Expected the records of {name} not to overlap.")
        end = info.header_offset + _LOCAL_HEADER + len(info.filename.encode()) + info.compress_size
    if end > archive.start_dir or archive.comment:
        raise InputError(f"Expected {name} to end with the directory of its records.")


def _check_pickle(content: bytes, name: str) -> None:
    """Read the opcodes without carrying any out."""
    count = 0
    try:
        for opcode, argument, _ in pickletools.genops(content):
            count += 1
            if count > MOST_OPCODES:
                raise InputError(f"Expected data.pkl of {name} to have at most {MOST_OPCODES:,} opcodes.")
            if opcode.name in ("GLOBAL", "INST") and argument not in _HARMLESS:
                raise InputError(
                    f"Expected {name} to hold nothing but tensors; it names {str(argument).replace(' ', '.')}. "
                    "Save model.state_dict(), not the model."
                )
            if opcode.name in ("STACK_GLOBAL", "EXT1", "EXT2", "EXT4"):
                raise InputError(f"Expected {name} to be pickled with protocol 2, as torch.save does.")
    except InputError:
        raise
    except Exception as error:  # genops documents no list of what a malformed pickle raises
        raise InputError(f"Expected data.pkl of {name} to be a pickle: {error}.") from error
