"""`dpaudit canaries plant`: canaries into data by coins that are sealed."""

import hashlib
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dpaudit._files import atomic_write
from dpaudit.audit.canaries.crafting import KINDS
from dpaudit.audit.canaries.sealing import Draw, SealedCoins, files_sha256
from dpaudit.audit.canaries.seed_stream import generator
from dpaudit.audit.canaries.sources import ArraySource, GradientSource, Source, open_source
from dpaudit.audit.inputs.files import InputError


@dataclass(frozen=True)
class Planting:
    """What was written.

    Args:
        coins: As sealed, the commitment with them.
        planted: What the trainer trains on, one for each run.
        queries: What the trainer scores afterwards, one for each run.
    """

    coins: SealedCoins
    planted: tuple[Path, ...]
    queries: tuple[Path, ...]


def plant(
    data: str,
    *,
    out: Path,
    sealed: Path,
    draw: Draw,
    kind: str = "mislabelled",
    label: str | None = None,
    text: str | None = None,
    parameters: int | None = None,
) -> Planting:
    """Make canaries, flip coins, write the data that a trainer is given and seal the coins.

    Args:
        data: As `open_source`.
        out: Name of the planted files without suffix; that of the data is taken off.
        sealed: The coins file to write; kept by the auditor until the scores are there.
        draw: How coins fall.
        kind: One of KINDS; tables with a column of sentences take the kinds of text.
        label: Column of labels.
        text: Column of sentences.
        parameters: Of the model, for canaries of kind "gradient".

    Raises:
        InputError: The data or the kind cannot be used, there are too few records, a file exists already, or the coins
            would take the place of what the trainer is given.
        OSError: The coins, or a planted file, cannot be written there.
    """
    if kind not in KINDS:
        raise InputError(f"Expected kind={kind!r} to be {', '.join(KINDS)}.")
    source = _gradients(open_source(data, label=label, text=text), kind, parameters)
    count = draw.units * draw.group_size
    if count > source.templates:
        made_of = "parameters, a canary for each" if kind == "gradient" else "records canaries are made from"
        raise InputError(f"Expected count={count} to be at most {source.templates}, the {made_of}.")
    name = out.name.removesuffix(source.suffix)
    if not name.strip("."):
        raise InputError(f"Expected out={str(out)!r} to be the name of a file or of a new folder.")
    base = out.with_name(name)
    parts = [""] if draw.runs == 1 else [f"-{run}" for run in range(1, draw.runs + 1)]
    planted = tuple(base.with_name(f"{base.name}{part}{source.suffix}") for part in parts)
    queries = tuple(base.with_name(f"{base.name}{part}.queries{source.suffix}") for part in parts)
    existing = next((path for path in (sealed, *planted, *queries) if path.exists()), None)
    if existing is not None:
        raise InputError(f"Expected {existing} not to exist: no planting is overwritten.")
    if sealed.resolve() in [path.resolve() for path in (*planted, *queries)]:
        raise InputError(f"Expected sealed={sealed} to be another file than those that the trainer is given.")
    canaries = source.craft(kind, count, generator(draw.seed, "canaries"))
    ids = draw.ids()
    try:
        with atomic_write(sealed) as file:  # opened first: a planting without its coins is good for nothing
            for run, coins in enumerate(draw.included()):
                chosen = np.flatnonzero(np.repeat(coins, draw.group_size))
                order = generator(draw.seed, "order", run).permutation(source.records + len(chosen))
                source.write_planted(planted[run], canaries, chosen, order)
                source.write_queries(queries[run], canaries, ids[run])
            unsigned = SealedCoins(draw, kind, files_sha256(planted), files_sha256(queries), data)
            content = unsigned.to_bytes()
            file.write(content)
    except BaseException:
        for path in (*planted, *queries):  # none existed before, and nobody shall train on what cannot be judged
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        raise
    return Planting(replace(unsigned, commitment=hashlib.sha256(content).hexdigest()), planted, queries)


def _gradients(source: Source, kind: str, parameters: int | None) -> Source:
    """The source itself, but for canaries that are gradients."""
    if (kind == "gradient") != (parameters is not None):
        raise InputError("Expected the number of the model's parameters with kind='gradient', and with no other kind.")
    if kind != "gradient":
        return source
    if not isinstance(source, ArraySource) or parameters is None or parameters < 1:
        raise InputError("Expected arrays and a positive number of parameters for kind='gradient'.")
    return GradientSource(source, parameters)
