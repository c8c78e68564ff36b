"""`dpaudit verify`: claims files in, verdicts out."""

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from dpaudit.audit.inputs.errors import InputError
from dpaudit.audit.inputs.files import atomic_write
from dpaudit.audit.inputs.sources import Stage
from dpaudit.mechanisms.registry import to_dict
from dpaudit.reports import (
    ClaimEntry,
    shown_in_detail,
    verdict_text,
    verdicts_json,
    verdicts_junit,
    verdicts_sarif,
    write_verdicts,
)
from dpaudit.verify.batch import check_all
from dpaudit.verify.checking import check
from dpaudit.verify.claim_files import ClaimFileError, load_claims
from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.results import Verdict

REFUTED, GAVE_UP, NOT_CERTIFIED = 3, 4, 5
COMPARING_SECONDS = 60.0  # no comparison of accountants begins later than this after the first


@dataclass(frozen=True)
class ClaimsSettings:
    """How claims are checked and shown.

    Args:
        only: The one id to check, None for all.
        method: "exact", "monte-carlo" or "both".
        require: "certified" to demand it of every claim.
        format: "text", "junit" or "sarif", on stdout.
        json: File for the verdicts' JSON; "-" for stdout and nothing else there.
        seed: Of the sampling methods.
        out: Folder of the report, None for no report.
    """

    only: str | None
    method: str
    require: str | None
    format: str
    json: str | None
    seed: int
    out: Path | None = None


def run_claims(paths: Sequence[Path], settings: ClaimsSettings, *, stage: Stage, show: Callable[[str], None]) -> int:
    """Check the claims of some files.

    Args:
        paths: Claims files; ids are unique across them.
        settings: How.
        stage: Told what begins and how long it is.
        show: Prints the result.

    Returns:
        The exit status: 3 if a claim is refuted, else 4 if interrupted, else 5 if one is not certified as required.

    Raises:
        InputError: A file is no claims file, or no claim has the id.
        OSError: The report's folder cannot be made or written to.
    """
    claims, homes = _load(paths, settings.only)
    if settings.out is not None:
        settings.out.mkdir(parents=True, exist_ok=True)  # before the work, so that a bad name costs none
    judge: Callable[[Claim], Verdict] = check
    if settings.method != "exact":
        judge = partial(check, method=settings.method, rng=np.random.default_rng(settings.seed))
    verdicts: list[Verdict] = []
    interrupted = False
    try:
        for verdict in check_all(claims, judge, stage("Checking claims", len(claims))):
            verdicts.append(verdict)
    except KeyboardInterrupt:
        interrupted = True
    if settings.out is not None:
        compared, stopped = (
            _compare(claims, verdicts, stage, settings.method == "exact") if not interrupted else ({}, True)
        )
        interrupted = interrupted or stopped
        entries = [
            ClaimEntry(verdict, claim_table(claim), _command(homes[claim.id], claim.id, settings), compared.get(index))
            for index, (claim, verdict) in enumerate(zip(claims, verdicts, strict=False))
        ]
        write_verdicts(entries, settings.out, versions={name: version(name) for name in ("dpaudit", "numpy", "scipy")})
    _show(verdicts, paths, settings, show)
    kinds = {verdict.verdict for verdict in verdicts}
    if "refuted" in kinds:
        return REFUTED
    if interrupted:
        return GAVE_UP
    return NOT_CERTIFIED if settings.require == "certified" and kinds != {"certified"} else 0


def claim_table(claim: Claim) -> dict[str, Any]:
    """A claim as a claims file holds it, ready for JSON; `parse_claims` reads it again.

    >>> from dpaudit.mechanisms import Gaussian
    >>> claim_table(Claim.single(Gaussian(1.0), epsilon=1.0, delta=1e-5, steps=3, id="a"))["steps"]
    3
    """
    data: dict[str, Any] = {
        "id": claim.id,
        "epsilon": float(claim.epsilon),
        "delta": float(claim.delta),
        "adjacency": claim.adjacency,
    }
    data |= {key: text for key, text in (("accountant", claim.accountant), ("source", claim.source)) if text}
    phases = [_phase_table(phase) for phase in claim.phases]
    return {**data, **phases[0]} if len(phases) == 1 else {**data, "phase": phases}


def _phase_table(phase: Phase) -> dict[str, Any]:
    sampling: dict[str, Any] = {"kind": phase.sampling_kind}
    if phase.sampling_kind != "none":
        sampling["prob"] = float(phase.sampling_prob)
    return {"steps": int(phase.steps), "sampling": sampling, "mechanism": to_dict(phase.mechanism)}


def _command(path: Path, name: str, settings: ClaimsSettings) -> str:
    """The command that checks one claim alone."""
    words = ["dpaudit", "verify", str(path), "--only", name]
    if settings.method != "exact":
        words += ["--method", settings.method, "--seed", str(settings.seed)]
    return shlex.join(words)


def _compare(
    claims: Sequence[Claim], verdicts: Sequence[Verdict], stage: Stage, exact: bool
) -> tuple[dict[int, list[dict[str, Any]]], bool]:
    """Accountants side by side for the claims that the page explains, while time is left; and whether interrupted."""
    from dpaudit.verify.accountants.table import cross_check  # loads every published formula

    wanted = shown_in_detail(verdicts)
    advance, started = stage("Comparing accountants", len(wanted)), time.monotonic()
    known: dict[Claim, list[dict[str, Any]]] = {}
    rows = {}
    try:
        for index in wanted:
            question = replace(claims[index], id="", source="", epsilon=0.0)
            if question not in known:
                if time.monotonic() - started > COMPARING_SECONDS:
                    continue
                # a sampled lower bound holds at its confidence only: let the exact one be computed
                lower = verdicts[index].epsilon_lower if exact else None
                known[question] = [row.to_dict() for row in cross_check(claims[index], epsilon_lower=lower)]
            rows[index] = known[question]
            advance(1)
    except KeyboardInterrupt:
        return rows, True
    return rows, False


def _load(paths: Sequence[Path], only: str | None) -> tuple[list[Claim], Mapping[str, Path]]:
    """The claims to check, and the file that every id stands in."""
    try:
        files = [(path, load_claims(path)) for path in paths]
    except ClaimFileError as error:
        raise InputError(str(error)) from error
    claims = [claim for _, found in files for claim in found]
    homes = {claim.id: path for path, found in files for claim in found}
    if len(homes) < len(claims):
        ids = [claim.id for claim in claims]
        twice = next(name for name in ids if ids.count(name) > 1)
        raise InputError(f"claim {twice!r}: id appears in two files: expected every id once.")
    if only is None:
        return claims, homes
    if only not in homes:
        raise InputError(f"Expected only={only!r} to be the id of a claim.")
    return [claim for claim in claims if claim.id == only], homes


def _show(
    verdicts: Sequence[Verdict], paths: Sequence[Path], settings: ClaimsSettings, show: Callable[[str], None]
) -> None:
    document = verdicts_json(verdicts)
    if settings.json == "-":
        show(document.rstrip())
        return
    if settings.json is not None:
        with atomic_write(settings.json) as file:
            file.write(document.encode())
    if settings.format == "junit":
        show(verdicts_junit(verdicts, require=settings.require).rstrip())
    elif settings.format == "sarif":
        show(verdicts_sarif(verdicts, uri=paths[0].as_posix(), version=version("dpaudit")).rstrip())
    else:
        for verdict in verdicts:
            show(verdict_text(verdict))
