"""The trial store: measured scores, keyed by a hash of everything that determines them.

One SQLite file beside the report. An interrupted audit picks up where it stopped, and nothing is trusted that was
measured under other circumstances: recipe, data, canary, seed, device, CPU and library versions are in the key.
"""

import hashlib
import io
import json
import platform
import sqlite3
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


def fingerprint(parts: Mapping[str, Any]) -> str:
    """SHA-256 over named parts: arrays by dtype, shape and bytes, everything else by canonical JSON."""
    digest = hashlib.sha256()
    for name in sorted(parts):
        digest.update(name.encode() + b"\0" + _bytes(parts[name]) + b"\0")
    return digest.hexdigest()


def _bytes(value: Any) -> bytes:
    if isinstance(value, np.ndarray):
        return f"{value.dtype.str}{value.shape}".encode() + np.ascontiguousarray(value).tobytes()
    return json.dumps(_plain(value), sort_keys=True).encode()


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        # asdict() would lose the types of the fields: two mechanisms may differ in nothing else
        return {"type": type(value).__name__, **{f.name: _plain(getattr(value, f.name)) for f in fields(value)}}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, partial):
        return [_plain(value.func), _plain(value.keywords)]
    if isinstance(value, np.ndarray):
        return hashlib.sha256(_bytes(value)).hexdigest()
    if callable(value):
        return f"{value.__module__}.{value.__qualname__}"
    return value


def circumstances(device: str) -> dict[str, str]:
    """What decides the bits of a trial besides its inputs."""
    gpu = torch.cuda.get_device_name() if device == "cuda" else ""
    return {
        "device": device,
        "gpu": gpu,
        "cpu": platform.processor() or platform.machine(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


class TrialStore(AbstractContextManager["TrialStore"]):
    """Scores by key, kept on disk as soon as they are measured.

    Args:
        path: The SQLite file; None keeps the scores in memory.
        fresh: Forget what was measured before.
    """

    def __init__(self, path: Path | None, *, fresh: bool = False) -> None:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(path if path is not None else ":memory:", isolation_level=None)
        self._db.execute("CREATE TABLE IF NOT EXISTS scores (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID")
        if fresh:
            self._db.execute("DELETE FROM scores")

    def get(self, key: str) -> NDArray[np.float64] | None:
        """The scores under a key, or None."""
        row = self._db.execute("SELECT value FROM scores WHERE key = ?", (key,)).fetchone()
        return None if row is None else np.asarray(np.load(io.BytesIO(row[0]), allow_pickle=False), dtype=np.float64)

    def put(self, key: str, scores: NDArray[np.float64]) -> None:
        """Keep the scores of one block, their shape with them."""
        file = io.BytesIO()
        np.save(file, scores.astype("<f8"), allow_pickle=False)
        self._db.execute("INSERT OR REPLACE INTO scores VALUES (?, ?)", (key, file.getvalue()))

    def __exit__(self, *exception: object) -> None:
        self._db.close()
