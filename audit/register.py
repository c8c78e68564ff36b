"""`dpaudit register`: builds the register of published claims, and checks a sampled share of it."""

import errno
import hashlib
import json
import os
import random
import shlex
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from importlib.metadata import version
from pathlib import Path
from typing import Any

import joblib

from dpaudit._files import write_whole
from dpaudit.audit.inputs.files import InputError, read_regular
from dpaudit.audit.inputs.register_sources import Source, load_sources, names_a_page
from dpaudit.audit.inputs.sources import Stage
from dpaudit.audit.register_entries import LARGEST_CERTIFICATE, difference, judged
from dpaudit.reports.register_pages import DATA, FORMAT, pages, register_text, write_register
from dpaudit.verify.claim_files import claim_to_dict
from dpaudit.verify.claims import Claim
from dpaudit.verify.results import to_json

CERTIFICATES = "certificates"
LARGEST_REGISTER = 1 << 28  # bytes of register.json
SEED = 1  # of every Monte Carlo check
_ENTRY = {"claim", "verdict", "curve", "program", "ways", "command"}  # keys of a claim's entry


def build_register(
    claims: Path, out: Path, *, only: str | None = None, workers: int = 1, stage: Stage, show: Callable[[str], None]
) -> None:
    """Judge every claim of every source and write register.json, the certificates and the pages.

    Args:
        claims: Folder of claims files and `sources/`.
        out: Folder of the register; made if absent.
        only: Name of the one source to judge again; the others stay as the register has them.
        workers: Processes.
        stage: Told what begins and how long it is.
        show: Prints the result.

    Raises:
        InputError: A source is wrong, or there is none of that name, or the folder takes no files.
    """
    sources = load_sources(claims)
    if only is not None and only not in {source.name for source in sources}:
        raise InputError(f"Expected only={only!r} to be a source: {', '.join(source.name for source in sources)}.")
    wanted = [source for source in sources if only in (None, source.name)]
    _standing(out, only)  # what is no register is told before hours of work, as is a folder that takes no files
    (out / CERTIFICATES).mkdir(parents=True, exist_ok=True)
    for folder in (folder for folder in (out, out / CERTIFICATES) if not os.access(folder, os.W_OK)):
        raise InputError(f"Expected {folder} to be a folder that can be written to.")
    found = _judge(wanted, workers, stage)
    new = {source.name: _entry(source, found, out) for source in wanted}
    both = {**_standing(out, only), **new}  # another build may have written its source meanwhile
    table = [both[source.name] for source in sources if source.name in both]
    versions = {name: version(name) for name in ("dpaudit", "numpy", "scipy")}
    write_register({"format": FORMAT, "versions": versions, "sources": table}, out)
    show(f"{sum(len(source['claims']) for source in table)} claims of {len(table)} sources: {out / 'index.html'}")


def _standing(out: Path, only: str | None) -> dict[str, dict[str, Any]]:
    """The sources that the register has, by name, where one alone is judged again."""
    if only is None or not (out / DATA).is_file():
        return {}
    return {source["name"]: source for source in _load(out)["sources"]}


def render_register(out: Path, *, show: Callable[[str], None]) -> None:
    """Write the pages of a register again, such as after a change of the templates; nothing is judged.

    Args:
        out: Folder of the register.
        show: Prints the result.

    Raises:
        InputError: There is no register.
    """
    write_register(_load(out), out)
    show(str(out / "index.html"))


def check_register(
    claims: Path, out: Path, *, share: float, seed: int, workers: int = 1, stage: Stage, show: Callable[[str], None]
) -> bool:
    """Whether a sampled share of the register's claims comes out as it stands there, and its pages all do.

    Exact verdicts, certificates and the short programs are computed again, and Monte Carlo for one refuted claim. The
    words of a reason, a note or an event are not compared.

    Args:
        claims: Folder of claims files and `sources/`.
        out: Folder of the register.
        share: In (0, 1] of the claims.
        seed: Of the choice.
        workers: Processes.
        stage: Told what begins and how long it is.
        show: Prints every difference, and the count.

    Raises:
        InputError: There is no register, a source is wrong, or the share is outside its domain.
    """
    if not 0 < share <= 1:
        raise InputError(f"Expected share={share!r} in (0, 1].")
    document, sources = _load(out), load_sources(claims)
    problems = [*_stale(document, sources), *_misdirected(document, sources), *_pages(document, out)]
    stored = {name: entry for source in document["sources"] for name, entry in source["claims"].items()}
    known = {name: claim for source in sources for name, claim in source.claims.items() if name in stored}
    chosen = random.Random(seed).sample(sorted(known), max(1, round(share * len(known)))) if known else []
    refuted = next((name for name in chosen if stored[name]["verdict"]["verdict"] == "refuted"), None)
    tasks = [(known[name], name == refuted) for name in chosen]
    for name, (entry, proof) in zip(chosen, _run(tasks, workers, stage), strict=True):
        problem = difference(stored[name], entry) or _refused(stored[name], proof, out)
        problems += [f"{name}: {problem}"] if problem else []
    for problem in problems:
        show(problem)
    show(f"{len(chosen)} of {len(stored)} claims computed again, {len(problems)} differences")
    return not problems


def _load(out: Path) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads(read_regular(out / DATA, limit=LARGEST_REGISTER))
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(f"Expected {out / DATA} to hold the register: {error}.") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InputError(f"Expected {out / DATA} to be of format {FORMAT!r}.")
    expected = f"Expected {out / DATA} to hold versions and sources, as dpaudit register build writes them"
    if not (isinstance(document.get("versions"), dict) and _whole(document.get("sources"))):
        raise InputError(f"{expected}.")
    try:
        pages(document)
        register_text(document)
    except Exception as error:  # whatever an entry that is no entry leads to
        raise InputError(f"{expected}: {type(error).__name__}: {error}") from error
    return document


def _whole(sources: Any) -> bool:
    """Whether a register's sources, and the entries of their claims, have every part that pages and checks read."""
    return isinstance(sources, list) and all(
        isinstance(source, dict)
        and source.keys() >= {"name", "digest", "facts", "rows", "claims"}
        and names_a_page(source["name"])
        and isinstance(source["claims"], dict)
        and all(isinstance(entry, dict) and entry.keys() >= _ENTRY for entry in source["claims"].values())
        for source in sources
    )


def _stale(document: dict[str, Any], sources: Sequence[Source]) -> Iterator[str]:
    """Sources whose words or claims have changed since the register was built."""
    stored = {source["name"]: source for source in document["sources"]}
    for source in sources:
        if source.name not in stored:
            yield f"{source.name}: not in the register"
        elif stored[source.name]["digest"] != _digest(source):
            yield f"{source.name}: the source has changed since the register was built"
        elif not _said(stored[source.name], source):
            yield f"{source.name}: the register does not hold what the source says"
    yield from (f"{name}: no such source any more" for name in stored.keys() - {source.name for source in sources})


def _said(stored: dict[str, Any], source: Source) -> bool:
    """Whether the register repeats a source to the letter: facts, rows, and every claim with its parameters."""
    claims = {name: claim_to_dict(claim) for name, claim in source.claims.items()}
    said = to_json({"facts": dict(source.facts), "rows": [row.model_dump() for row in source.rows], "claims": claims})
    held = {name: entry["claim"] for name, entry in stored["claims"].items()}
    return bool(said == {"facts": stored["facts"], "rows": stored["rows"], "claims": held})


def _misdirected(document: dict[str, Any], sources: Sequence[Source]) -> Iterator[str]:
    """Claims whose command is not the one that a build writes, from the folder as it is told or from here."""
    stored = {name: entry for source in document["sources"] for name, entry in source["claims"].items()}
    for source in sources:
        for name in source.claims.keys() & stored.keys():
            home = source.homes[name]
            if stored[name]["command"] not in {_command(home, name), _command(Path(os.path.relpath(home)), name)}:
                yield f"{name}: command: not the one that the claim gives"


def _pages(document: dict[str, Any], out: Path) -> Iterator[str]:
    """Pages that are not what register.json gives."""
    expected = {**pages(document), DATA: register_text(document).encode()}
    for name, content in expected.items():
        path = out / name
        if not path.is_file() or path.read_bytes() != content:
            yield f"{name}: not what {DATA} gives"


def _refused(stored: dict[str, Any], proof: dict[str, Any] | None, out: Path) -> str:
    """What is wrong with the certificate that stands beside an entry, "" if nothing, or none does."""
    file = stored["ways"].get("balls", {}).get("file")
    if file is None:
        return "" if proof is None or len(_text(proof)) > LARGEST_CERTIFICATE else "ways.balls: expected a certificate"
    if proof is None:
        return f"{file}: expected no certificate"
    from dpaudit.verify.rigorous.check_sampled_certificate import accepted

    try:
        text = read_regular(out / file, limit=LARGEST_CERTIFICATE).decode()
        accepted(text)
        same = json.loads(text)["claim"] == json.loads(json.dumps(proof["claim"]))
    except Exception as error:  # whatever a file that is none leads to
        return f"{file}: {type(error).__name__}: {error}"
    return "" if same else f"{file}: the certificate of another claim"


def _judge(sources: Sequence[Source], workers: int, stage: Stage) -> dict[str, tuple[dict[str, Any], Any]]:
    claims = {name: claim for source in sources for name, claim in source.claims.items()}
    tasks = [(claim, True) for claim in claims.values()]
    return dict(zip(claims, _run(tasks, workers, stage), strict=True))


def _run(tasks: Sequence[tuple[Claim, bool]], workers: int, stage: Stage) -> Iterator[tuple[dict[str, Any], Any]]:
    """Entries and certificates in the order of the tasks, the same on any number of workers."""
    advance = stage("Judging claims", len(tasks))
    calls = (joblib.delayed(judged)(claim, seed=SEED, sampled=sampled) for claim, sampled in tasks)
    with warnings.catch_warnings():  # a worker whose memory has grown is replaced, and its claim judged by the next
        warnings.filterwarnings("ignore", "A worker stopped while some jobs were given", UserWarning)
        try:
            for result in joblib.Parallel(n_jobs=workers, return_as="generator")(calls):
                yield result
                advance(1)
        except BrokenProcessPool as error:
            raise OSError(errno.ENOMEM, "a worker was killed before it finished; is there enough memory?") from error


def _entry(source: Source, found: dict[str, tuple[dict[str, Any], Any]], out: Path) -> dict[str, Any]:
    """A source as register.json holds it; its certificates are written."""
    entries = {}
    for name, claim in source.claims.items():
        entry, document = found[name]
        entries[name] = {**entry, "command": _command(source.homes[name], claim.id)}
        if document is not None:
            entry["ways"]["balls"] |= _kept(name, document, out)
    rows = [row.model_dump() for row in source.rows]
    facts = dict(source.facts)
    return {"name": source.name, "digest": _digest(source), "facts": facts, "rows": rows, "claims": entries}


def _command(home: Path, name: str) -> str:
    """What judges a claim alone."""
    return shlex.join(["dpaudit", "verify", home.as_posix(), "--only", name])


def _kept(name: str, document: dict[str, Any], out: Path) -> dict[str, str]:
    """Where the certificate stands, or that it is too large to stand here."""
    data = _text(document)
    if len(data) > LARGEST_CERTIFICATE:
        size = f"{len(data) / 1000:.0f} kB, which the command below writes with --certificates DIR"
        return {"note": f"certificate of kind {document['kind']}: {size}"}
    from dpaudit.audit.certificate_files import certificate_name  # needs python-flint

    file = f"{CERTIFICATES}/{certificate_name(name)}"
    write_whole({out / file: data})
    return {"file": file}


def _text(document: dict[str, Any]) -> bytes:
    """A certificate as its file holds it."""
    return (json.dumps(document) + "\n").encode()


def _digest(source: Source) -> str:
    """Of everything that a source says and claims."""
    rows = [row.model_dump() for row in source.rows]
    claims = [claim_to_dict(claim) for claim in source.claims.values()]
    return hashlib.sha256(json.dumps([dict(source.facts), rows, claims]).encode()).hexdigest()[:16]
