"""`dpaudit verify`: claims files in, verdicts out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

import numpy as np

from dpaudit.audit.inputs.errors import InputError
from dpaudit.audit.inputs.files import atomic_write
from dpaudit.audit.inputs.sources import Stage
from dpaudit.reports import verdict_text, verdicts_json, verdicts_junit, verdicts_sarif
from dpaudit.verify.batch import check_all
from dpaudit.verify.checking import check
from dpaudit.verify.claim_files import ClaimFileError, load_claims
from dpaudit.verify.claims import Claim
from dpaudit.verify.results import Verdict

REFUTED, GAVE_UP, NOT_CERTIFIED = 3, 4, 5


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
    """

    only: str | None
    method: str
    require: str | None
    format: str
    json: str | None
    seed: int


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
    """
    claims = _load(paths, settings.only)
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
    _show(verdicts, paths, settings, show)
    kinds = {verdict.verdict for verdict in verdicts}
    if "refuted" in kinds:
        return REFUTED
    if interrupted:
        return GAVE_UP
    return NOT_CERTIFIED if settings.require == "certified" and kinds != {"certified"} else 0


def _load(paths: Sequence[Path], only: str | None) -> list[Claim]:
    try:
        claims = [claim for path in paths for claim in load_claims(path)]
    except ClaimFileError as error:
        raise InputError(str(error)) from error
    ids = [claim.id for claim in claims]
    if len(set(ids)) < len(ids):
        twice = next(name for name in ids if ids.count(name) > 1)
        raise InputError(f"claim {twice!r}: id appears in two files: expected every id once.")
    if only is None:
        return claims
    if only not in ids:
        raise InputError(f"Expected only={only!r} to be the id of a claim.")
    return [claims[ids.index(only)]]


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
