"""The trial store: measured scores, keyed by a hash of everything that determines them, in one SQLite file.

An interrupted audit picks up where it stopped, and nothing is trusted that was measured under other circumstances or
is not byte for byte what was written: every row carries a checksum of its key and value.
"""

import errno
import hashlib
import io
import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from os import PathLike
from pathlib import Path
from tokenize import TokenError

import numpy as np
from numpy.typing import NDArray

from dpaudit.audit.inputs.files import InputError

APPLICATION = 0x64704175  # in the header of every store, bytes 68 to 71 of the file
VERSION = 2  # a change of what looks are kept under, such as a field of TrainingSpec, takes the next
LOOKS = "looks.sqlite"  # of all the stores in its folder
PATIENCE = 5.0  # seconds to wait for another process's lock
UNRECORDED = 10**6  # the look that one counts as which could not be written down: it spends next to nothing
_TABLE = "CREATE TABLE entries (key TEXT PRIMARY KEY, value BLOB NOT NULL, checksum BLOB NOT NULL) WITHOUT ROWID"


class DamagedError(InputError):
    """A store that is not what was written, or no store at all."""


class LockedError(InputError):
    """A store that another process does not let be read."""


class StorageError(OSError):
    """What was measured cannot be written down or looked up: a full disk, a lock that is not given up."""


class TrialStore(AbstractContextManager["TrialStore"]):
    """Scores by key, kept on disk as soon as they are measured; the seed they belong to; the looks taken at them.

    The stores of a folder count their looks together, in a file of their own: they read each other's scores, or
    measure the same ones from the same seeds.

    Args:
        path: The SQLite file, written by this process or by several; None keeps everything in memory.
        fresh: Forget the scores and the seed of before, and a damaged store. The looks at evidence that is measured
            anew from the same seeds stay counted.
        shared: Read the other stores of the folder as well: those of processes that measure other parts.

    Raises:
        InputError: The file is no trial store, damaged, locked, or cannot be opened.
        OSError: The disk is full.
    """

    def __init__(self, path: str | PathLike[str] | None, *, fresh: bool = False, shared: bool = False) -> None:
        path = None if path is None else Path(path)
        self._path, self._shared = path, shared and path is not None
        self._others: dict[Path, sqlite3.Connection] = {}
        self.disputed: set[str] = set()  # keys of which the stores of the folder hold different scores
        self.unwritten = ""  # why a look could not be written down
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            if fresh:
                _forget(path)
        self._db = _open(path)
        self.refresh()

    def refresh(self) -> None:
        """Open what other processes have put into a shared folder meanwhile, and neither lock nor have moved away.

        Raises:
            InputError: It is no trial store.
        """
        for path in sorted(self._folder.glob("*.sqlite")) if self._shared else ():
            with suppress(FileNotFoundError, LockedError):
                if path != self._path and path not in self._others and path.stat().st_size:
                    self._others[path] = _open(path)

    def get(self, key: str, *, models: int | None = None) -> NDArray[np.float64] | None:
        """The scores under a key, or None; where the stores differ (`disputed`), those of the first that has some.

        Stores of other processes that are locked are passed over.

        Args:
            key: From `block_keys`.
            models: How many models they are of, where that is known.

        Raises:
            InputError: They are not what was written.
            StorageError: The own store is locked.
        """
        values = [(path, value) for path, value in self._values(f"scores {key}") if value is not None]
        if not values:
            return None
        if len({value for _, value in values}) > 1:
            self.disputed.add(key)
        path, value = values[0]
        with _as_written(path):
            scores = np.asarray(np.lib.format.read_array(io.BytesIO(value), allow_pickle=False), dtype=np.float64)
            if np.isnan(scores).any() or (models is not None and scores.shape[:1] != (models,)):
                raise ValueError
            return scores

    def put(self, key: str, scores: NDArray[np.float64]) -> None:
        """Keep the scores of one block, their shape with them.

        Raises:
            StorageError: They cannot be written.
        """
        file = io.BytesIO()
        np.save(file, scores.astype("<f8"), allow_pickle=False)
        self._write(f"scores {key}", file.getvalue())

    def put_seed(self, seed: int) -> None:
        """Keep the root seed of an audit, for `stored_seed`.

        Raises:
            StorageError: It cannot be written.
        """
        value = str(seed).encode()
        if _read(self._db, self._path, "seed") != value:  # a finished store may be one that takes nothing any more
            self._write("seed", value)

    def look(self, game: str, evidence: str, *, count: bool = True) -> int:
        """Count a look at growing evidence: 1 for the first verdict from it, 2 for the second.

        The i-th look may spend 6 / (pi^2 i^2) of an error probability: over all looks together that is all of it, if
        the amount of evidence at each does not depend on scores seen before. The same evidence looked at again tells
        nothing new and is the same look. A look is written down before it is used; one that cannot be is the
        UNRECORDED-th.

        Args:
            game: What the evidence is of, from `evidence_key`.
            evidence: The scores there are of it: their key and number, from `TrialRunner.look`.
            count: Whether it is written down; else it is only said which look it would be.

        Raises:
            InputError: The file of looks is not what was written, or looks at these scores are no longer in it.
        """
        name = f"look {game}"
        try:
            with self._looks() as (db, path), _errors(path):
                looks = _look_list(db, path, name)
                if not looks and path is not None and self._has_looked(game):
                    raise InputError(
                        f"Expected {path} to hold the looks that were taken at these scores, each of which counts: "
                        "put it back, or name another seed (--seed)."
                    )
                if evidence in looks:  # looks are never taken back: no lock is needed
                    return looks.index(evidence) + 1
                db.execute("BEGIN IMMEDIATE")
                try:
                    looks = _look_list(db, path, name)
                    if evidence not in looks:
                        looks.append(evidence)
                        if count:
                            _insert(db, name, json.dumps(looks).encode())
                    db.execute("COMMIT")
                finally:
                    if db.in_transaction:
                        db.execute("ROLLBACK")
        except StorageError as error:
            self.unwritten = str(error.strerror) if count else self.unwritten
            return UNRECORDED
        if count:
            with suppress(StorageError):  # it is written down where it counts
                if not self._has_looked(game):
                    self._write(f"looked {game}", b"")
        return looks.index(evidence) + 1

    def _has_looked(self, game: str) -> bool:
        """Whether a look is known of from elsewhere than the file of looks: by a row of whatever value."""
        with suppress(LockedError), _errors(self._path, reading=True):
            return bool(_number(self._db, "SELECT count(*) FROM entries WHERE key = ?", f"looked {game}"))
        return False

    def __exit__(self, *exception: object) -> None:
        for db in (self._db, *self._others.values()):
            db.close()

    @contextmanager
    def _looks(self) -> Iterator[tuple[sqlite3.Connection, Path | None]]:
        """Where looks are counted: a file of the folder, or memory."""
        if self._path is None:
            yield self._db, None
            return
        path = self._folder / LOOKS
        with closing(_open(path)) as db:
            yield db, path

    @property
    def _folder(self) -> Path:
        return Path() if self._path is None else self._path.parent

    def _write(self, key: str, value: bytes) -> None:
        with _errors(self._path):
            _insert(self._db, key, value)

    def _values(self, key: str) -> Iterator[tuple[Path | None, bytes | None]]:
        """What each store has under a key."""
        try:
            yield self._path, _read(self._db, self._path, key)
        except LockedError as error:
            raise StorageError(errno.EIO, f"what was kept could not be read. {error}") from error
        for path, db in self._others.items():
            with suppress(LockedError):
                yield path, _read(db, path, key)


def stored_seed(path: Path, *, shared: bool = False) -> int | None:
    """The seed of the last audit with a store; None where there is no store yet.

    Args:
        path: The store.
        shared: The seed of all stores in its folder, this one among them.

    Raises:
        InputError: As `TrialStore`; the stores have different seeds.
    """
    found = set()
    for file in [path, *(sorted(path.parent.glob("*.sqlite")) if shared else ())]:
        if file.exists() and file.stat().st_size:
            with closing(_open(file)) as db:
                value = _read(db, file, "seed")
            if value is not None and not re.fullmatch(rb"\d{1,1000}", value):
                raise _damaged(file)
            if value is not None and not shared:
                return int(value)
            found |= set() if value is None else {int(value)}
    if len(found) > 1:
        raise InputError(f"Expected one seed in the stores of {path.parent}, not {sorted(found)}: name it (--seed).")
    return next(iter(found), None)


def _forget(path: Path) -> None:
    """Delete the scores and the seed of a store; all of a damaged one."""
    if not path.exists():
        return
    try:
        with closing(_open(path)) as db, _errors(path):
            db.execute("DELETE FROM entries WHERE key NOT LIKE 'looked %'")
    except DamagedError:
        with path.open("rb") as file:
            header = file.read(72)
        if header[68:] != APPLICATION.to_bytes(4, "big"):
            raise
        path.unlink()


def _open(path: Path | None) -> sqlite3.Connection:
    with _errors(path, reading=True):
        db = sqlite3.connect(path if path is not None else ":memory:", timeout=PATIENCE, isolation_level=None)
        try:
            _check_or_create(db, path)
        except BaseException:
            db.close()
            raise
        return db


def _check_or_create(db: sqlite3.Connection, path: Path | None) -> None:
    if _number(db, "PRAGMA application_id") == APPLICATION:
        version = _number(db, "PRAGMA user_version")
        if version != VERSION:
            raise InputError(
                f"Expected {path} to be a trial store of version {VERSION}, not {version}: "
                "move the stores of its folder away."
            )
        if path is not None and not _ends_with_a_page(db, path):
            raise _damaged(path)
        return
    db.execute("BEGIN IMMEDIATE")
    if _number(db, "PRAGMA application_id") != APPLICATION:  # another process may have been quicker
        if _number(db, "SELECT count(*) FROM sqlite_master") or _number(db, "PRAGMA application_id"):
            raise InputError(f"Expected {path} to be a trial store: it is another file. Move it away.")
        db.execute(_TABLE)
        db.execute(f"PRAGMA application_id = {APPLICATION}")
        db.execute(f"PRAGMA user_version = {VERSION}")
    db.execute("COMMIT")


def _ends_with_a_page(db: sqlite3.Connection, path: Path) -> bool:
    """False of a file that was cut: SQLite takes the rest of its last page for zeros, and rows on it for absent."""
    db.execute("BEGIN")
    try:
        _number(db, "SELECT count(*) FROM sqlite_master")  # nobody writes now, and what a killed process left is undone
        return path.stat().st_size % _number(db, "PRAGMA page_size") == 0
    finally:
        db.execute("COMMIT")


def _number(db: sqlite3.Connection, query: str, *values: str) -> int:
    return int(db.execute(query, values).fetchone()[0])


def _checksum(key: str, value: bytes) -> bytes:
    return hashlib.sha256(key.encode() + b"\0" + value).digest()


def _insert(db: sqlite3.Connection, key: str, value: bytes) -> None:
    db.execute("INSERT OR REPLACE INTO entries VALUES (?, ?, ?)", (key, value, _checksum(key, value)))


def _read(db: sqlite3.Connection, path: Path | None, key: str) -> bytes | None:
    with _errors(path, reading=True):  # CAST: what is no longer bytes is compared as such
        row = db.execute(
            "SELECT CAST(value AS BLOB), CAST(checksum AS BLOB) FROM entries WHERE key = ?", (key,)
        ).fetchone()
    if row is None:
        return None
    value, checksum = row
    if value is None or _checksum(key, value) != checksum:
        raise _damaged(path)
    return bytes(value)


def _look_list(db: sqlite3.Connection, path: Path | None, name: str) -> list[str]:
    """The looks under a key."""
    if (value := _read(db, path, name)) is None:
        return []
    with _as_written(path):
        looks = json.loads(value)
        if not isinstance(looks, list):
            raise TypeError
        return looks


@contextmanager
def _as_written(path: Path | None) -> Iterator[None]:
    """Take what cannot be read as damage: with the right checksum, somebody else put it there."""
    try:
        yield
    except (ValueError, TypeError, EOFError, MemoryError, RecursionError, SyntaxError, TokenError) as error:
        raise _damaged(path) from error


def _damaged(path: Path | None) -> DamagedError:
    anew, name = "move it away, or without --store start it anew with --fresh", "" if path is None else path.name
    if name == LOOKS:
        anew = "move it away, and name another seed"
    elif name.startswith("shard-"):
        anew = "move it away, and its models are trained again"
    return DamagedError(f"Expected {path} to be as it was written: it is damaged; {anew}.")


@contextmanager
def _errors(path: Path | None, *, reading: bool = False) -> Iterator[None]:
    """What SQLite raises, as errors of ours: InputError while reading and for damage, else StorageError."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # without the extension in the higher bits
        if code == sqlite3.SQLITE_NOTADB:
            raise DamagedError(f"Expected {path} to be a trial store: it is another file. Move it away.") from error
        if code == sqlite3.SQLITE_CORRUPT or (reading and code == sqlite3.SQLITE_ERROR):
            raise _damaged(path) from error
        locked, reason = code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED), str(error)
        if locked:
            reason = f"another process has locked it for more than {PATIENCE:g} seconds"
        elif getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_READONLY_DBMOVED or (
            not reading and path is not None and not path.exists()
        ):
            reason = "it was moved or deleted"
        if reading and code != sqlite3.SQLITE_FULL:
            kind = LockedError if locked else InputError
            raise kind(f"Expected to be able to read and write {path}: {reason}.") from error
        number = errno.ENOSPC if code == sqlite3.SQLITE_FULL else errno.EIO
        raise StorageError(number, f"cannot write to {path}: {reason}") from error
