"""Sealed coins: which canaries are in, and the commitment that keeps both sides from changing their minds.

The file is JSON, and its commitment the SHA-256 of its bytes. Ids, coins and nonce follow from the seed by
`seed_stream`, so a file whose coins are not those of its seed is refused, whoever changed it, and after the judgement
anybody can repeat the planting.
"""

import hashlib
import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dpaudit.audit.canaries.seed_stream import digest, fair_coin, token
from dpaudit.audit.inputs.files import InputError, file_sha256, open_regular, read_regular
from dpaudit.mechanisms.quoting import shown
from dpaudit.verify.validation import one_line

FORMAT = "dpaudit-coins/1"
LARGEST_COINS = 256 << 20  # bytes
MOST = 10_000_000  # ids in all runs
_HEX = "^[0-9a-f]{64}$"


@dataclass(frozen=True)
class Draw:
    """How coins fall.

    Args:
        seed: Everything random follows from it.
        runs: Trainings, at least 1, each with ids of its own.
        units: Canaries in each, at least 1; with groups, users.
        group_size: Records of a unit, in or out together.
        every: None for a fair coin for each unit of each run; k for a canary in one of k runs, runs/k of them.
    """

    seed: int
    runs: int
    units: int
    group_size: int = 1
    every: int | None = None

    def __post_init__(self) -> None:
        for name in ("runs", "units", "group_size"):
            if getattr(self, name) < 1:
                raise InputError(f"Expected {name.replace('_', ' ')}={getattr(self, name)} to be at least 1.")
        if self.runs * self.units * self.group_size > MOST:
            raise InputError(f"Expected runs * count={self.runs * self.units} canaries to be at most {MOST:,} records.")
        if self.every is not None and (self.units != 1 or not 2 <= self.every <= self.runs // 2):
            raise InputError(
                f"Expected every={self.every} to be at least 2 and at most half of runs={self.runs}, and "
                f"count={self.units} to be 1: canaries in some of many runs are one at a time."
            )
        if self.every is None and self.units < 2:
            raise InputError("Expected count=1 to be at least 2, or every to say in which runs the one canary is.")

    def included(self) -> NDArray[np.bool_]:
        """Which units are in, shape (runs, units)."""
        if self.every is None:
            coins = [
                [fair_coin(self.seed, "coin", run, unit) for unit in range(self.units)] for run in range(self.runs)
            ]
            return np.array(coins, bool)
        chosen = sorted(range(self.runs), key=lambda run: digest(self.seed, "run", run))[: self.runs // self.every]
        return np.isin(np.arange(self.runs), chosen)[:, None]

    def ids(self) -> list[list[str]]:
        """The ids of every run's records, a unit after the other."""
        records = self.units * self.group_size
        return [[token(self.seed, "id", run, record) for record in range(records)] for run in range(self.runs)]

    def nonce(self) -> str:
        """256 bits that nobody can guess who does not know the seed."""
        return digest(self.seed, "nonce").hex()


class _File(BaseModel):
    """The keys of a coins file; unknown ones are ignored."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)
    format: Literal["dpaudit-coins/1"]
    data_sha256: str = Field(pattern=_HEX)
    queries_sha256: str = Field(pattern=_HEX)
    kind: str
    ids: list[str] = Field(max_length=MOST)
    included: list[bool] = Field(max_length=MOST)
    nonce: str = Field(pattern=_HEX)
    seed: int = Field(ge=0)
    runs: int
    group_size: int
    every: int | None
    source: str
    count: int


@dataclass(frozen=True)
class SealedCoins:
    """What a coins file holds.

    Args:
        draw: How the coins fell.
        kind: Of the canaries.
        data_sha256: Of what was planted: see `files_sha256`.
        queries_sha256: Of the queries.
        source: The data that they were planted in, in words.
        commitment: SHA-256 of the file.
        agreed: Whether it was compared with one that was known before.
    """

    draw: Draw
    kind: str
    data_sha256: str
    queries_sha256: str
    source: str
    commitment: str = ""
    agreed: bool = False

    def to_bytes(self) -> bytes:
        """The file."""
        draw = self.draw
        settings = asdict(draw)
        settings["count"] = settings.pop("units")
        content = {
            "format": FORMAT,
            "data_sha256": self.data_sha256,
            "queries_sha256": self.queries_sha256,
            "kind": self.kind,
            "ids": [name for run in draw.ids() for name in run],
            "included": np.repeat(draw.included().ravel(), draw.group_size).tolist(),
            "nonce": draw.nonce(),
            "source": self.source,
            **settings,
        }
        return (json.dumps(content) + "\n").encode()


def load_coins(path: Path, *, commitment: str | None = None) -> SealedCoins:
    """Read a coins file, and refuse one that was changed.

    Args:
        path: The file.
        commitment: The SHA-256 that was agreed upon; None to go without.

    Raises:
        InputError: Not a coins file; not the one committed to; coins, ids or nonce that are not those of its seed.
    """
    content = read_regular(path, limit=LARGEST_COINS)
    found = hashlib.sha256(content).hexdigest()
    if commitment is not None and not re.fullmatch("[0-9a-fA-F]{64}", commitment):
        raise InputError(f"Expected commitment={commitment!r} to be a SHA-256, 64 hexadecimal digits.")
    if commitment is not None and commitment.lower() != found:
        raise InputError(f"Expected {path} to have the commitment {commitment.lower()}, not {found}: it was changed.")
    try:
        data = _File.model_validate_json(content)
        draw = Draw(data.seed, data.runs, data.count, data.group_size, data.every)
    except ValidationError as error:
        raise InputError(f"{path}: expected sealed coins: {one_line(error, _File).removeprefix(': ')}") from error
    except ValueError as error:  # of Draw, or of an integer too long to be printed
        raise InputError(f"{path}: expected sealed coins: {error}") from error
    records = draw.runs * draw.units * draw.group_size
    if not len(data.ids) == len(data.included) == records:  # before as many are drawn
        raise InputError(f"Expected {path} to have {records:,} ids and coins: it was changed.")
    if data.ids != [name for run in draw.ids() for name in run] or data.nonce != draw.nonce():
        raise InputError(f"Expected the ids and the nonce of {path} to be those of its seed: it was changed.")
    if data.included != np.repeat(draw.included().ravel(), draw.group_size).tolist():
        raise InputError(f"Expected the coins of {path} to be those of its seed: it was changed.")
    return SealedCoins(
        draw, data.kind, data.data_sha256, data.queries_sha256, data.source, found, commitment is not None
    )


def files_sha256(paths: Sequence[Path]) -> str:
    """SHA-256 of a file; of several, or of a folder, of the lines "<sha256>  <name>" as sha256sum prints them.

    Args:
        paths: A file or a folder for each run, in their order. The names of a folder are relative to it, sorted; those
            of several runs are their numbers, from 1.

    Raises:
        InputError: One of them does not exist.
    """
    digests = [_sha256(path) for path in paths]
    if len(digests) == 1:
        return digests[0]
    return _lines_sha256([(value, str(number)) for number, value in enumerate(digests, 1)])


def _sha256(path: Path) -> str:
    if path.is_dir():
        files = sorted(entry for entry in path.rglob("*") if entry.is_file())
        return _lines_sha256([(_sha256(file), file.relative_to(path).as_posix()) for file in files])
    with open_regular(path) as file:
        return file_sha256(file)


def _lines_sha256(lines: Sequence[tuple[str, str]]) -> str:
    return hashlib.sha256("".join(f"{value}  {name}\n" for value, name in lines).encode()).hexdigest()


def guesses_per_run(draw: Draw) -> int:
    """Half of a run's units, an even number: as many are guessed in as out, fixed before any score is read.

    >>> guesses_per_run(Draw(0, 1, 1000)), guesses_per_run(Draw(0, 1, 2))
    (500, 2)
    """
    return 2 * max(1, math.floor(draw.units / 4)) if draw.units > 1 else 0


def unit_scores(scores: dict[str, float], ids: Sequence[str], group_size: int, name: str) -> NDArray[np.float64]:
    """The score of every unit: the mean of its records'.

    Args:
        scores: By id.
        ids: Of a run, in the order of its coins.
        group_size: Records of a unit.
        name: Of the file.

    Raises:
        InputError: The ids are not those of the run: a file of another planting, of another run, or not a whole one.
    """
    known = set(ids)
    stranger = next((key for key in scores if key not in known), None)
    if stranger is not None:
        raise InputError(f"Expected every id of {name} to be one of this planting: {shown(stranger)} is not.")
    missing = next((key for key in ids if key not in scores), None)
    if missing is not None:
        raise InputError(
            f"Expected {name} to have a score for every id: {shown(missing)} and perhaps others are missing."
        )
    values: NDArray[np.float64] = np.array([scores[key] for key in ids], np.float64)
    with np.errstate(invalid="ignore"):
        means: Any = values.reshape(-1, group_size).mean(axis=1)
    if np.isnan(means).any():
        raise InputError(f"Expected no group of {name} to have scores of both infinities.")
    return np.asarray(means)
