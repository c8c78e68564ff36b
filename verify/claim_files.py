"""Claims as files hold them: read, written, and every mistake named by claim, key, value and rule.

A mistake is the file's, never a traceback: `ClaimFileError` carries one line.
"""

import stat
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from dpaudit.mechanisms.base import Mechanism
from dpaudit.mechanisms.quoting import shown
from dpaudit.mechanisms.registry import from_dict, to_dict
from dpaudit.verify.claims import Adjacency, Claim, Phase, Unit
from dpaudit.verify.correlated import Matrix, correlation_from_dict, matrix_from_bytes
from dpaudit.verify.correlated.matrix import MAX_BYTES as MAX_MATRIX_BYTES
from dpaudit.verify.guarantees import Guarantee, guarantee_from_dict, guarantee_to_dict
from dpaudit.verify.implied import claim_stating
from dpaudit.verify.samplers import (
    SAMPLERS,
    required_keys,
    sampler_from_dict,
    sampler_to_dict,
    takes_steps,
)
from dpaudit.verify.validation import one_line, read_toml

MAX_BYTES = 64 * 2**20
LONGEST_ID = 200  # letters
STDIN = Path("-")
CLAIMS_FORMATS = ("dpaudit-claims/1", "dpaudit-claims/2")  # either may be left out, and both have the same keys


class ClaimFileError(ValueError):
    """A claims file that cannot be read as claims; the message is one line."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


Number = Annotated[float, Field(allow_inf_nan=False)]


class _Sampling(BaseModel):
    """The kind with its rate; the keys of a sampler are its own, and it checks them."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)
    kind: str
    prob: Number | None = None


class _Phase(_Strict):
    mechanism: dict[str, Any]
    steps: int | None = None
    sampling_prob: Number | None = None
    sampling: _Sampling | None = None
    correlation: dict[str, Any] | None = None


class _Claim(_Strict):
    id: str = Field(min_length=1, max_length=LONGEST_ID)
    epsilon: Number | None = None
    delta: Number | None = None
    guarantee: dict[str, Any] | None = None
    adjacency: Adjacency = "add-remove"
    accountant: str | None = None
    source: str = ""
    unit: Unit = "record"
    mechanism: dict[str, Any] | None = None
    steps: int | None = None
    sampling_prob: Number | None = None
    sampling: _Sampling | None = None
    correlation: dict[str, Any] | None = None
    phase: list[_Phase] | None = None


_CLAIMS = TypeAdapter(Annotated[list[dict[str, Any]], Field(min_length=1)])


def load_claims(path: str | Path, *, only: str | None = None) -> list[Claim]:
    """Read a claims file.

    Args:
        path: TOML with one or more [[claim]] tables.
        only: The id of the one claim to read, whatever the others are; None for all.

    Returns:
        The claims in the file's order.

    Raises:
        ClaimFileError: The file is no claims file, or a claim in it is wrong; names the claim and the key.
    """
    path = Path(path)
    return claims_of_text(claims_text(path), path, only=only)


def claims_text(path: Path) -> str:
    """The text of a claims file; a pipe gives it once.

    Args:
        path: The file; "-" is the standard input.

    Raises:
        ClaimFileError: It cannot be read as text, or is too large.
    """
    try:
        with open(0, "rb", closefd=False) if path == STDIN else path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)  # a device has no size, and no end
        if len(data) > MAX_BYTES:
            raise ClaimFileError(f"{path}: expected a claims file of at most {MAX_BYTES} bytes.")
        return data.decode("utf-8-sig")  # some editors begin with a mark
    except OSError as error:
        raise ClaimFileError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ClaimFileError(f"{path}: not TOML: {error}") from error


def claims_of_text(text: str, path: Path, *, only: str | None = None) -> list[Claim]:
    """The claims of a file's text.

    Args:
        text: From `claims_text`.
        path: The file.
        only: As `load_claims`.

    Raises:
        ClaimFileError: As `load_claims`.
    """
    try:
        data = read_toml(text)
    except (ValueError, RecursionError) as error:  # of integers with thousands of digits, too
        hint = "; dpaudit verify --screen reads tables of claims" if path.suffix.lower() == ".csv" else ""
        raise ClaimFileError(f"{path}: not TOML: {error}{hint}") from error
    try:
        return parse_claims(data, source=str(path), folder=path.parent, only=only)
    except RecursionError as error:
        raise ClaimFileError(f"{path}: expected tables that are not nested so deeply.") from error


def parse_claims(
    data: Mapping[str, Any], *, source: str, folder: Path | None = None, only: str | None = None
) -> list[Claim]:
    """The claims of an already parsed file.

    Args:
        data: {"claim": [...]}.
        source: What error messages call the file.
        folder: Where .npy files of strategies lie, and the permission to read them.
        only: As `load_claims`.

    Raises:
        ClaimFileError: As `load_claims`.
    """
    known = data.get("format", CLAIMS_FORMATS[-1])
    if known not in CLAIMS_FORMATS:
        raise ClaimFileError(
            f"{source}: expected format={shown(known)} to be {' or '.join(map(repr, CLAIMS_FORMATS))}."
        )
    unknown = set(data) - {"claim", "format"}
    if "algorithm" in unknown:
        raise ClaimFileError(f"{source}: a recipe, not claims: dpaudit train {source} --out model.pt trains it.")
    if unknown:
        raise ClaimFileError(f"{source}: unknown key {shown(sorted(unknown)[0])}: expected only [[claim]] tables.")
    try:
        rows = _CLAIMS.validate_python(data.get("claim"))
    except ValidationError as error:
        raise ClaimFileError(f"{source}: expected one or more [[claim]] tables.") from error
    mechanisms: dict[str, Mechanism] = {}
    claims, seen = [], set()
    for number, row in enumerate(rows, start=1):
        if only is not None and row.get("id") != only:
            continue
        where = f"{source}: claim {shown(row.get('id', number))}"
        claim = claim_from_dict(row, where=where, mechanisms=mechanisms, folder=folder)
        if claim.id in seen:
            raise ClaimFileError(f"{where}: id appears twice: expected every id once.")
        seen.add(claim.id)
        claims.append(claim)
    return claims


def claim_from_dict(
    data: Mapping[str, Any],
    *,
    where: str = "claim",
    mechanisms: dict[str, Mechanism] | None = None,
    folder: Path | None = None,
) -> Claim:
    """A claim from one [[claim]] table.

    Args:
        data: The table.
        where: What error messages call the claim.
        mechanisms: Those of other claims; equal ones become one object.
        folder: As `parse_claims`.

    Raises:
        ClaimFileError: As `load_claims`.
    """
    try:
        read = _Claim.model_validate(data)
        if read.accountant is not None:
            from dpaudit.mechanisms.published import ACCOUNTANTS

            if read.accountant not in ACCOUNTANTS:
                raise ValueError(f"expected accountant={shown(read.accountant)} among {', '.join(ACCOUNTANTS)}.")
        phases = _phases(read, {} if mechanisms is None else mechanisms, folder)
        told = (read.adjacency, read.id, read.accountant, read.source, read.unit)
        stated = _guarantee(read)
        if stated is not None:
            return claim_stating(stated, phases, *told)
        assert read.epsilon is not None
        assert read.delta is not None
        return Claim(read.epsilon, read.delta, phases, *told)
    except ValidationError as error:
        raise ClaimFileError(f"{where}: {one_line(error, _Claim)}") from error
    except (ValueError, TypeError) as error:
        raise ClaimFileError(f"{where}: {error}") from error


def claim_to_dict(claim: Claim) -> dict[str, Any]:
    """A claim as one [[claim]] table, ready for JSON; `claim_from_dict` reads it again.

    >>> from dpaudit.mechanisms import Gaussian
    >>> claim_to_dict(Claim.single(Gaussian(1.0), epsilon=1.0, delta=1e-5, steps=3, id="a"))["steps"]
    3
    """
    if claim.guarantee is None:
        stated: dict[str, Any] = {"epsilon": float(claim.epsilon), "delta": float(claim.delta)}
    else:
        stated = {"guarantee": guarantee_to_dict(claim.guarantee)}
    data: dict[str, Any] = {"id": claim.id, **stated, "adjacency": claim.adjacency}
    data |= {key: text for key, text in (("accountant", claim.accountant), ("source", claim.source)) if text}
    data |= {"unit": claim.unit} if claim.unit != "record" else {}
    phases = [phase_to_dict(phase) for phase in claim.phases]
    return {**data, **phases[0]} if len(phases) == 1 else {**data, "phase": phases}


def phase_to_dict(phase: Phase) -> dict[str, Any]:
    """A phase as one [[claim.phase]] table."""
    if phase.correlation is not None:
        return {
            "steps": int(phase.steps),
            "correlation": phase.correlation.to_dict(),
            "mechanism": to_dict(phase.mechanism),
        }
    if phase.sampler is not None:
        keys = sampler_to_dict(phase.sampler)
    else:
        keys = {} if phase.sampling_kind == "none" else {"prob": float(phase.sampling_prob)}
    return {
        "steps": int(phase.steps),
        "sampling": {"kind": phase.sampling_kind, **keys},
        "mechanism": to_dict(phase.mechanism),
    }


def _guarantee(claim: _Claim) -> Guarantee | None:
    """What a [claim.guarantee] table states; None for a plain epsilon and delta."""
    plain = {"epsilon": claim.epsilon, "delta": claim.delta}
    if claim.guarantee is not None:
        extra = [key for key, value in plain.items() if value is not None]
        if extra:
            raise ValueError(f"expected either {extra[0]} or a [claim.guarantee] table, not both.")
        return guarantee_from_dict(claim.guarantee)
    for key, value in plain.items():
        if value is None:
            raise ValueError(f"expected {key} to be given, or a [claim.guarantee] table.")
    return None


def _phases(claim: _Claim, mechanisms: dict[str, Mechanism], folder: Path | None) -> list[Phase]:
    if claim.phase is not None:
        extra = [key for key in _Phase.model_fields if getattr(claim, key) is not None]
        if extra:
            raise ValueError(f"expected either {extra[0]} or [[claim.phase]] tables, not both.")
        return [_phase(phase, mechanisms, folder) for phase in claim.phase]
    if claim.mechanism is None:
        raise ValueError("expected mechanism to be given.")
    alone = _Phase.model_validate({key: getattr(claim, key) for key in _Phase.model_fields})
    return [_phase(alone, mechanisms, folder)]


def _phase(phase: _Phase, mechanisms: dict[str, Mechanism], folder: Path | None) -> Phase:
    """One phase; equal mechanisms become one object."""
    if phase.sampling is not None and phase.sampling_prob is not None:
        raise ValueError("expected either sampling_prob or sampling, not both.")
    key = repr(sorted(phase.mechanism.items(), key=str))
    if key not in mechanisms:
        mechanisms[key] = from_dict(phase.mechanism)
    built = _built_phase(phase, mechanisms[key], folder)
    if phase.steps not in (None, built.steps):
        owner = "sampler" if built.sampler is not None else "matrix"
        raise ValueError(f"Expected steps={phase.steps} to be left out, or the {owner}'s {built.steps}.")
    return built


def _built_phase(phase: _Phase, noise: Mechanism, folder: Path | None) -> Phase:
    steps = 1 if phase.steps is None else phase.steps
    if phase.correlation is not None:
        if phase.sampling is not None or phase.sampling_prob is not None:
            raise ValueError("expected correlation.participation to say who takes part, and no sampling besides.")
        return Phase(noise, steps, correlation=correlation_from_dict(phase.correlation, partial(_matrix, folder)))
    if phase.sampling is None:
        return Phase(noise, steps, 1.0 if phase.sampling_prob is None else phase.sampling_prob)
    given = phase.sampling.model_dump(exclude_none=True, exclude={"kind"})
    kind, prob = phase.sampling.kind, phase.sampling.prob
    if phase.steps is not None and takes_steps(kind, given):
        given.setdefault("steps", phase.steps)
    if set(given) == {"prob"} and set(required_keys(kind)) == {"prob", "steps"}:  # one release, as of a Poisson rate
        given["steps"] = steps
    others = sorted(set(given) - {"prob"})
    if kind in SAMPLERS and others:
        return Phase(noise, steps, sampler=sampler_from_dict(kind, given))
    released = Phase(noise, steps, 1.0 if prob is None else prob, kind)  # an unknown kind before its keys
    if others:
        raise ValueError(f"unknown key 'sampling.{others[0]}': kind {kind!r} does not have it.")
    if kind != "none" and prob is None:
        raise ValueError(f"expected sampling.prob to be given with kind {kind!r}.")
    return released


def _matrix(folder: Path | None, name: str) -> Matrix:
    """The strategy of an .npy file beside the claims file, or below it."""
    if folder is None:
        raise ValueError(
            f"Expected correlation.strategy={shown(name)} only in a claims file: .npy files lie beside it."
        )
    inside = Path(name)
    if inside.is_absolute() or ".." in inside.parts:
        raise ValueError(f"Expected correlation.strategy={shown(name)} to be a path below the claims file's folder.")
    path = folder / inside
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_MATRIX_BYTES:
            raise ValueError(f"Expected {path} to be a regular file of at most {MAX_MATRIX_BYTES} bytes.")
        return matrix_from_bytes(path.read_bytes(), name)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
