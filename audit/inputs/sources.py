"""Where the files of the known data sets come from, and the SHA-256 that each must have."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.audit.inputs import formats
from dpaudit.audit.inputs.files import InputError, read_regular, read_verified

FOLDER_VARIABLE = "DPAUDIT_DATA"
Stage = Callable[[str, int], Callable[[int], None]]  # (what, how many) -> called with the number just finished


@dataclass(frozen=True)
class RemoteFile:
    """One public file.

    Args:
        name: Its name inside the data set's folder.
        sha256: Of its bytes; None where no publisher or mirror states one: such a file is never downloaded.
        url: Its public address; None where only a folder can provide it.
    """

    name: str
    sha256: str | None
    url: str | None = None


@dataclass(frozen=True)
class Source:
    """A known data set.

    Args:
        folder: Its folder under the one that DPAUDIT_DATA names.
        variants: Sets of files with the same content, packed differently; the first complete one is used.
        read: From the unpacked files, by name, to records and labels.
        finish: From the chosen records to float32 features.
        shape: (training + test records, classes) checked where the files have no known checksum.
        home: Where a person finds the files.
    """

    folder: str
    variants: tuple[tuple[RemoteFile, ...], ...]
    read: Callable[[dict[str, bytes]], formats.Raw]
    finish: Callable[[NDArray[Any]], NDArray[np.float32]]
    home: str
    shape: tuple[int, int] | None = field(default=None)


def _idx_source(folder: str, home: str, digests: Sequence[str]) -> Source:
    names = [f"{part}-{what}-ubyte.gz" for part in ("train", "t10k") for what in ("images-idx3", "labels-idx1")]
    files = tuple(RemoteFile(name, digest, home + name) for name, digest in zip(names, digests, strict=True))
    return Source(folder, (files,), formats.read_idx, formats.scale_bytes, home)


_GLUE = "https://dl.fbaipublicfiles.com/glue/data/"
_ADULT = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult/"
_SHOKRI = "https://github.com/privacytrustlab/datasets"

SOURCES: dict[str, Source] = {
    "fashion-mnist": _idx_source(
        "fashion_mnist",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        (
            "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        ),
    ),
    "mnist": _idx_source(
        "mnist",
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        (
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
    ),
    "purchase100": Source(
        "purchase100",
        ((RemoteFile("dataset_purchase.tgz", None),),),
        partial(formats.read_shokri, features=600),
        formats.as_float,
        _SHOKRI,
        shape=(197_324, 100),
    ),
    "location30": Source(
        "location30",
        ((RemoteFile("dataset_location.tgz", "927203f85a868f8ee17a0ded1dc61699efe602167beabe34fbf45b4b1de94b33",
                     f"{_SHOKRI}/raw/master/dataset_location.tgz"),),),
        partial(formats.read_shokri, features=446),
        formats.as_float,
        _SHOKRI,
    ),
    "adult": Source(
        "adult",
        (
            (
                RemoteFile("adult.data.gz", "fb986d3609cdf068a1c234ed2695603b74c66c4be723467d9d69542024847442"),
                RemoteFile("adult.test.gz", "74aa81a0e0880467a50de97be6ba8130df14a3ef8c0c3a14de2a9a997d068fbf"),
            ),
            (
                RemoteFile("adult.data", "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
                           f"{_ADULT}adult.data"),
                RemoteFile("adult.test", "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
                           f"{_ADULT}adult.test"),
            ),
        ),
        formats.read_adult,
        formats.as_float,
        _ADULT,
    ),
    "sst2": Source(
        "sst2",
        (
            (
                RemoteFile("train.tsv.gz", "1c4843303462f8f93e006ff618a9e61d207468cafd030046d7d7fd6b78af342b"),
                RemoteFile("dev.tsv.gz", "19553efc6f7bac0b7fdd37d4e29dc37c15e9e779767249a16f857fbfcedb23fa"),
            ),
            (RemoteFile("SST-2.zip", "d67e16fb55739c1b32cdce9877596db1c127dc322d93c082281f64057c16deaa",
                        f"{_GLUE}SST-2.zip"),),
        ),
        partial(formats.read_glue, columns=("sentence",), labels=("0", "1")),
        formats.bag_of_words,
        _GLUE,
    ),
    "qnli": Source(
        "qnli",
        ((RemoteFile("QNLIv2.zip", "e634e78627a29adaecd4f955359b22bf5e70f2cbd93b493f2d624138a0c0e5f5",
                     f"{_GLUE}QNLIv2.zip"),),),
        partial(formats.read_glue, columns=("question", "sentence"), labels=("entailment", "not_entailment")),
        formats.bag_of_words,
        _GLUE,
    ),
}  # fmt: skip


def read_source(name: str, *, progress: Stage | None = None) -> formats.Raw:
    """The records of a known data set, from the folder named by DPAUDIT_DATA or else from its public address.

    Args:
        name: One of SOURCES.
        progress: Told of a download and its bytes; None for silence.

    Raises:
        InputError: The files are neither in the folder nor to be had from the network, or are not the known ones.
    """
    source = SOURCES[name]
    files = _from_folder(source)
    raw = source.read(formats.unpack(files if files is not None else _from_network(name, source, progress)))
    shape = (len(raw.y) + len(raw.y_test), int(max(raw.y.max(initial=0), raw.y_test.max(initial=0))) + 1)
    if source.shape is not None and shape != source.shape:
        raise InputError(
            f"Expected {name} to have {source.shape[0]:,} records of {source.shape[1]} classes, not {shape}."
        )
    return raw


def _from_folder(source: Source) -> dict[str, bytes] | None:
    """The files under DPAUDIT_DATA with their checksums verified; None where it names no folder with them."""
    root = os.environ.get(FOLDER_VARIABLE)
    for variant in source.variants if root else ():
        paths = [Path(root or "", source.folder, file.name) for file in variant]
        if all(path.exists() for path in paths):
            return {
                file.name: read_verified(path, file.sha256, limit=formats.LARGEST_FILE)
                for path, file in zip(paths, variant, strict=True)
            }
    return None


def _from_network(name: str, source: Source, progress: Stage | None) -> dict[str, bytes]:
    import pooch

    pooch.get_logger().setLevel("ERROR")
    variant = next((files for files in source.variants if all(file.url and file.sha256 for file in files)), None)
    if variant is None:
        reason = "no checksum of it is published, so it is not downloaded unasked"
        raise InputError(_both_ways(name, source, reason))
    contents = {}
    for file in variant:
        bar = _Bar(f"Downloading {file.name}", progress) if progress else False
        try:
            path = pooch.retrieve(
                url=file.url,
                known_hash=f"sha256:{file.sha256}",
                fname=file.name,
                path=pooch.os_cache("dpaudit") / source.folder,
                downloader=pooch.HTTPDownloader(progressbar=bar, chunk_size=1 << 16, timeout=30),
            )
        except Exception as error:  # requests, urllib3, OSError for the cache, ValueError for the checksum
            raise InputError(_both_ways(name, source, f"{file.url}: {type(error).__name__}")) from error
        contents[file.name] = read_regular(path, limit=formats.LARGEST_FILE)
    return contents


def _both_ways(name: str, source: Source, reason: str) -> str:
    files = " or ".join(", ".join(file.name for file in variant) for variant in source.variants)
    return (
        f"Expected data set {name} in the folder ${FOLDER_VARIABLE}/{source.folder} ({files}; see {source.home}) "
        f"or by download, and neither worked ({reason})."
    )


class _Bar:
    """What pooch expects of a progress bar, told on to a `Stage`."""

    def __init__(self, what: str, stage: Stage) -> None:
        self._what, self._stage = what, stage
        self._advance: Callable[[int], None] | None = None
        self._done = 0
        self.total = 0

    def update(self, size: int) -> None:
        """Take note of `size` more bytes; pooch reports the last chunk as a whole one, hence the limit."""
        if self._advance is None:
            self._advance = self._stage(self._what, self.total)
        step = max(0, min(size, self.total - self._done))
        self._done += step
        self._advance(step)

    def reset(self) -> None:
        """Pooch resets before it fills the bar; what was told already stays told."""

    def close(self) -> None:
        """Nothing to close."""
