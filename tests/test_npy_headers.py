"""Headers of .npy files that lie, held against every reader of such files."""

import re
import struct
import zipfile
from pathlib import Path

import pytest

from dpaudit.audit.inputs.arrays import read_npz
from dpaudit.audit.inputs.files import InputError
from dpaudit.audit.inputs.score_files import read_scores
from dpaudit.verify.correlated import matrix_from_bytes

DAMAGED = "its header is damaged, or too long."


def npy_file(shape: str, descr: str = "'<i8'", version: int = 1) -> bytes:
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}".encode()
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H", len(header)) + header + bytes(48)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (npy_file("(True, 6)"), "its shape is (True, 6)"),
        (npy_file("(6, True)"), "its shape is (6, True)"),
        (npy_file("(-2, -3)"), "its shape is (-2, -3)"),
        (npy_file(f"(0, {1 << 70})"), f"its shape is (0, {1 << 70})"),
        (npy_file(str((1,) * 65)), "its shape is (1, 1"),
        (npy_file("(6,)", "()"), DAMAGED),
        (npy_file("(6,)", "(" * 9), DAMAGED),
        (npy_file("(6,)", "-" * 9000 + "1"), DAMAGED),
        (npy_file("(6,)" + " " * 20_000), DAMAGED),
        (b"PK" + bytes(98), "it does not begin as an .npy file does"),
        (npy_file("(6,)", version=3), "its format has version (3, 0), not 1.0 or 2.0"),
    ],
    ids=["bool", "bool-last", "negative", "huge", "axes", "descr", "brackets", "nested", "long", "magic", "version"],
)
def test_every_reader_refuses_the_header_and_says_why(content: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(content)
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", npy_file("(6, 1)"))
        archive.writestr("y.npy", content)
    said = f": .*{re.escape(reason)}"
    with pytest.raises(InputError, match=f"y to be an array{said}"):
        read_npz(tmp_path / "a.npz")
    with pytest.raises(InputError, match=f"npy file of numbers{said}"):
        read_scores(tmp_path / "a.npy")
    with pytest.raises(ValueError, match=f"format{said}"):
        matrix_from_bytes(content, "C.npy")
