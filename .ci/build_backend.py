"""setuptools' build backend, with source archives that are the same bytes wherever SOURCE_DATE_EPOCH is the same.

Its wheels are so already; of archives it keeps the times, owners and modes of the files at hand.
"""

import gzip
import os
import tarfile
from pathlib import Path

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403  # every other hook as it is


def build_sdist(sdist_directory: str, config_settings: dict[str, str] | None = None) -> str:
    """The source archive; without SOURCE_DATE_EPOCH, as setuptools makes it."""
    name = build_meta.build_sdist(sdist_directory, config_settings)
    if "SOURCE_DATE_EPOCH" in os.environ:
        _settle(Path(sdist_directory) / name, int(os.environ["SOURCE_DATE_EPOCH"]))
    return name


def _settle(path: Path, time: int) -> None:
    """Write an archive again: members by name, of one time and of nobody, and readable by everybody."""
    settled = path.with_suffix(".settled")
    with (
        tarfile.open(path) as archive,
        settled.open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=time) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as result,
    ):
        for member in sorted(archive.getmembers(), key=lambda member: member.name):
            member.mtime, member.pax_headers = time, {}
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            result.addfile(member, archive.extractfile(member) if member.isreg() else None)
    settled.replace(path)
