"""`dpaudit verify`: claims files in, verdicts out."""

import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpaudit._files import write_whole
from dpaudit._plain_text import as_argument, printable
from dpaudit.audit.exit_status import BAD_INPUT, GAVE_UP, LACKING, REFUTED, Lost, keep_what_is_done
from dpaudit.audit.inputs.files import InputError
from dpaudit.audit.inputs.sources import Stage
from dpaudit.reports.badge import verdicts_badge
from dpaudit.reports.sarif import id_lines
from dpaudit.reports.verdict_exports import EXPORTS
from dpaudit.reports.verdict_files import verdict_text, verdicts_json, verdicts_junit, verdicts_sarif
from dpaudit.verify.batch import check_all
from dpaudit.verify.checking import check
from dpaudit.verify.claim_files import STDIN, ClaimFileError, claim_to_dict, claims_of_text, claims_text
from dpaudit.verify.claims import Claim
from dpaudit.verify.results import DISAGREEMENT, Verdict

if TYPE_CHECKING:
    from dpaudit.audit.certificate_files import CertificateFiles

COMPARING_SECONDS = 60.0  # no comparison of accountants begins later than this after the first


def run_claims(
    paths: Sequence[Path], *, only: str | None = None, method: str = "exact", require: str | None = None,
    form: str = "text", json_file: str | None = None, seed: int = 0, out: Path | None = None, rigorous: bool = False,
    certificates: Path | None = None, stage: Stage, show: Callable[[str], None],
    warn: Callable[[str], None] = lambda line: None, as_text: Callable[[Verdict], str] = verdict_text,
) -> int:  # fmt: skip
    """Check the claims of some files.

    Args:
        paths: Claims files; ids are unique across them.
        only: The one id to check, None for all.
        method: "exact", "monte-carlo" or "both".
        require: "certified" to demand it of every claim.
        form: "text", "junit", "sarif", "badge", or one of `EXPORTS`, on stdout.
        json_file: File for the verdicts' JSON; "-" for stdout and nothing else there.
        seed: Of the sampling methods.
        out: Folder of the report, None for no report.
        rigorous: Whether the second engine judges every claim as well.
        certificates: Folder of a certificate for every decided claim, None for none.
        stage: Told what begins and how long it is.
        show: Prints the result.
        warn: Prints what is no part of it.
        as_text: A verdict for people.

    Returns:
        The exit status: 3 if a claim is refuted, else 4 if interrupted, two bounds disagree or a disk is full, else 2
        if something cannot be written, else 5 if a claim is not certified as required.

    Raises:
        InputError: A file is no claims file, no claim has the id, or the second engine is not installed.
        OSError: A folder cannot be made.
    """
    claims, homes, texts = _load(paths, only)
    places = _places(homes, texts) if form == "sarif" else {}
    lost = Lost(warn)
    for folder in (out, certificates):
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)  # before the work, so that a bad name costs none
    judge: Callable[[Claim], Verdict] = check
    if method != "exact":
        judge = partial(check, method=method, rng=seed)  # a generator for each claim: alone it draws the same
    files = None
    if rigorous or certificates is not None:
        confirmed, certificate_files = _second_engine()
        judge = partial(_judged_twice, judge, confirmed) if rigorous else judge
        files = None if certificates is None else certificate_files(certificates)
    verdicts: list[Verdict] = []
    compared: dict[int, list[dict[str, Any]]] = {}
    interrupted = False
    keep_what_is_done()
    try:
        for claim, verdict in zip(claims, check_all(claims, judge, stage("Checking claims", len(claims))), strict=True):
            verdicts.append(verdict)
            if files is not None:
                with lost:
                    files.add(claim, verdict)
                files = None if lost.statuses else files
        if out is not None:
            compared.update(_comparisons(claims, verdicts, stage, method == "exact"))
    except KeyboardInterrupt:
        interrupted = True
        warn(f"dpaudit: interrupted when {len(verdicts)} of {len(claims)} claims had been checked")
    page = None
    if out is not None:
        from dpaudit.reports.verdict_page import ClaimEntry, write_verdicts  # draws: half a second of matplotlib

        entries = [
            ClaimEntry(verdict, claim_to_dict(claim), _command(homes[claim.id], claim.id, method, seed, rigorous), rows)
            for claim, verdict, rows in zip(claims, verdicts, map(compared.get, range(len(claims))), strict=False)
        ]
        with lost:
            page = write_verdicts(entries, out, versions={n: version(n) for n in ("dpaudit", "numpy", "scipy")})
    if json_file not in (None, "-"):
        with lost:
            write_whole({str(json_file): verdicts_json(verdicts).encode()})
    _show(claims, verdicts, places, form, require, json_file, show, as_text)
    if page is not None:
        (show if form == "text" and json_file != "-" else warn)(f"report: {printable(str(page))}")
    for line in [] if files is None else files.lines():
        warn(line)
    kinds = {verdict.verdict for verdict in verdicts}
    if "refuted" in kinds:
        return REFUTED
    if interrupted or GAVE_UP in lost.statuses or any(DISAGREEMENT in verdict.methods for verdict in verdicts):
        return GAVE_UP
    if lost.statuses:
        return BAD_INPUT
    return LACKING if require == "certified" and kinds != {"certified"} else 0


def _second_engine() -> tuple[Callable[[Claim, Verdict], Verdict], type["CertificateFiles"]]:
    """What judges a verdict again, and what writes certificates; both need python-flint."""
    try:
        from dpaudit.audit.certificate_files import CertificateFiles
        from dpaudit.verify.rigorous.agreement import confirmed
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "flint":
            raise
        raise InputError(
            "Expected python-flint to be installed for --rigorous and --certificates: pip install python-flint"
        ) from error
    return confirmed, CertificateFiles


def _judged_twice(
    judge: Callable[[Claim], Verdict], confirmed: Callable[[Claim, Verdict], Verdict], claim: Claim
) -> Verdict:
    return confirmed(claim, judge(claim))


def _command(path: Path, name: str, method: str, seed: int, rigorous: bool) -> str:
    """The command that checks one claim alone."""
    sampled = [] if method == "exact" else ["--method", method, "--seed", str(seed)]
    twice = ["--rigorous"] if rigorous else []
    read = "-" if path == STDIN else as_argument(path)
    return shlex.join(["dpaudit", "verify", read, "--only", name, *sampled, *twice])


def _comparisons(
    claims: Sequence[Claim], verdicts: Sequence[Verdict], stage: Stage, exact: bool
) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Accountants side by side for the claims that the page explains, while time is left."""
    from dpaudit.reports.verdict_page import shown_in_detail
    from dpaudit.verify.accountants.table import cross_check  # loads every published formula

    wanted = shown_in_detail(verdicts)
    advance, started = stage("Comparing accountants", len(wanted)), time.monotonic()
    known: dict[Claim, list[dict[str, Any]]] = {}
    for index in wanted:
        history = replace(claims[index], id="", source="", epsilon=0.0, guarantee=None)
        if history not in known:
            if time.monotonic() - started > COMPARING_SECONDS:
                continue
            # a sampled lower bound holds at its confidence only: let the exact one be computed
            lower = verdicts[index].epsilon_lower if exact else None
            known[history] = [row.to_dict() for row in cross_check(claims[index], epsilon_lower=lower)]
        yield index, known[history]
        advance(1)


def _load(paths: Sequence[Path], only: str | None) -> tuple[list[Claim], Mapping[str, Path], Mapping[Path, str]]:
    """The claims to check, the file that every id stands in, and the files' texts: a pipe gives its own once."""
    texts: dict[Path, str] = {}
    files: list[tuple[Path, list[Claim]]] = []
    try:
        for path in paths:
            texts[path] = claims_text(path)
            files.append((path, claims_of_text(texts[path], path, only=only)))
    except ClaimFileError as error:
        raise InputError(str(error)) from error
    claims = [claim for _, read in files for claim in read]
    homes = {claim.id: path for path, read in files for claim in read}
    if len(homes) < len(claims):
        twice = next(name for name, count in Counter(claim.id for claim in claims).items() if count > 1)
        raise InputError(f"claim {twice!r}: id appears in two files: expected every id once.")
    if only is not None and not claims:
        raise InputError(f"Expected only={only!r} to be the id of a claim.")
    return claims, homes, texts


def _places(homes: Mapping[str, Path], texts: Mapping[Path, str]) -> dict[str, tuple[str, int | None]]:
    """The file and the line of every id."""
    lines = {path: id_lines(text) for path, text in texts.items()}
    return {name: (path.as_posix(), lines[path].get(name)) for name, path in homes.items()}


def _show(
    claims: Sequence[Claim], verdicts: Sequence[Verdict], places: Mapping[str, tuple[str, int | None]], form: str,
    require: str | None, json_file: str | None, show: Callable[[str], None], as_text: Callable[[Verdict], str],
) -> None:  # fmt: skip
    left = claims[len(verdicts) :]
    if json_file == "-":
        show(verdicts_json(verdicts).rstrip())
        return
    if form == "junit":
        show(verdicts_junit(verdicts, require=require, left=[claim.id for claim in left]).rstrip())
    elif form == "sarif":
        show(verdicts_sarif(verdicts, places=places, version=version("dpaudit"), whole=not left).rstrip())
    elif form == "badge":
        show(verdicts_badge(verdicts, left=len(left)).rstrip())
    elif form in EXPORTS:
        for claim, verdict in zip(claims, verdicts, strict=False):
            name = f"{printable(claim.id)}: " if form == "prose" and len(verdicts) > 1 else ""
            show(name + EXPORTS[form](claim_to_dict(claim), verdict))
    else:
        for verdict in verdicts:
            show(as_text(verdict))
