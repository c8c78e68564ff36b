"""Claims files: TOML in, claims out, and every mistake named by claim, key, value and rule.

A mistake is the file's, never a traceback: `ClaimFileError` carries one line.
"""

import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from dpaudit.mechanisms.base import Mechanism
from dpaudit.mechanisms.registry import from_dict
from dpaudit.verify.claims import Claim, Phase

MAX_BYTES = 64 * 2**20


class ClaimFileError(ValueError):
    """A claims file that cannot be read as claims; the message is one line."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


Number = Annotated[float, Field(allow_inf_nan=False)]


class _Sampling(_Strict):
    kind: Literal["poisson", "none", "shuffled", "without-replacement"]
    prob: Number | None = None


class _Phase(_Strict):
    mechanism: dict[str, Any]
    steps: int = 1
    sampling_prob: Number | None = None
    sampling: _Sampling | None = None


class _Claim(_Strict):
    id: str = Field(min_length=1, max_length=200)
    epsilon: Number
    delta: Number
    adjacency: Literal["add-remove", "replace-one"] = "add-remove"
    accountant: str | None = None
    source: str = ""
    mechanism: dict[str, Any] | None = None
    steps: int | None = None
    sampling_prob: Number | None = None
    sampling: _Sampling | None = None
    phase: list[_Phase] | None = None


_CLAIMS = TypeAdapter(list[dict[str, Any]])


def load_claims(path: Path) -> list[Claim]:
    """Read a claims file.

    Args:
        path: TOML with one or more [[claim]] tables.

    Returns:
        The claims in the file's order.

    Raises:
        ClaimFileError: The file is no claims file, or a claim in it is wrong; names the claim and the key.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ClaimFileError(f"{path}: expected a claims file of at most {MAX_BYTES} bytes.")
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ClaimFileError(f"{path}: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ClaimFileError(f"{path}: not TOML: {error}") from error
    return parse_claims(data, source=str(path))


def parse_claims(data: Mapping[str, Any], *, source: str) -> list[Claim]:
    """The claims of an already parsed file.

    Args:
        data: {"claim": [...]}.
        source: What error messages call the file.

    Raises:
        ClaimFileError: As `load_claims`.
    """
    unknown = set(data) - {"claim"}
    if unknown:
        raise ClaimFileError(f"{source}: unknown key {sorted(unknown)[0]!r}: expected only [[claim]] tables.")
    try:
        rows = _CLAIMS.validate_python(data.get("claim"))
    except ValidationError as error:
        raise ClaimFileError(f"{source}: expected one or more [[claim]] tables.") from error
    if not rows:
        raise ClaimFileError(f"{source}: expected one or more [[claim]] tables.")
    mechanisms: dict[str, Mechanism] = {}
    claims, seen = [], set()
    for number, row in enumerate(rows, start=1):
        where = f"{source}: claim {row.get('id', number)!r}"
        claim = _claim(row, where, mechanisms)
        if claim.id in seen:
            raise ClaimFileError(f"{where}: id appears twice: expected every id once.")
        seen.add(claim.id)
        claims.append(claim)
    return claims


def _claim(row: Mapping[str, Any], where: str, mechanisms: dict[str, Mechanism]) -> Claim:
    """One claim, its errors rewritten to one line each."""
    try:
        read = _Claim.model_validate(row)
        _check_accountant(read.accountant)
        phases = _phases(read, mechanisms)
        return Claim(read.epsilon, read.delta, phases, read.adjacency, read.id, read.accountant, read.source)
    except ValidationError as error:
        raise ClaimFileError(f"{where}: {_first(error)}") from error
    except (ValueError, TypeError) as error:
        raise ClaimFileError(f"{where}: {error}") from error


def _check_accountant(name: str | None) -> None:
    if name is None:
        return
    from dpaudit.mechanisms.published import ACCOUNTANTS  # loads mpmath, which most files do not need

    if name not in ACCOUNTANTS:
        raise ValueError(f"expected accountant={name!r} among {', '.join(ACCOUNTANTS)}.")


def _first(error: ValidationError) -> str:
    """The first complaint of pydantic, in the project's words."""
    detail = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "extra_forbidden":
        near = get_close_matches(key.split(".")[-1], list(_Claim.model_fields), n=1)
        return f"unknown key {key!r}" + (f": did you mean {near[0]!r}?" if near else ".")
    if detail["type"] == "missing":
        return f"expected {key} to be given."
    return f"expected {key}={detail['input']!r}: {detail['msg'].lower()}."


def _phases(claim: _Claim, mechanisms: dict[str, Mechanism]) -> list[Phase]:
    if claim.phase is not None:
        extra = [key for key in ("mechanism", "steps", "sampling_prob", "sampling") if getattr(claim, key) is not None]
        if extra:
            raise ValueError(f"expected either {extra[0]} or [[claim.phase]] tables, not both.")
        return [_phase(phase, mechanisms) for phase in claim.phase]
    if claim.mechanism is None:
        raise ValueError("expected mechanism to be given.")
    steps = 1 if claim.steps is None else claim.steps
    return [
        _phase(
            _Phase(mechanism=claim.mechanism, steps=steps, sampling_prob=claim.sampling_prob, sampling=claim.sampling),
            mechanisms,
        )
    ]


def _phase(phase: _Phase, mechanisms: dict[str, Mechanism]) -> Phase:
    """One phase; equal mechanisms become one object."""
    if phase.sampling is not None and phase.sampling_prob is not None:
        raise ValueError("expected either sampling_prob or sampling, not both.")
    key = repr(sorted(phase.mechanism.items(), key=str))
    if key not in mechanisms:
        mechanisms[key] = from_dict(phase.mechanism)
    kind: Literal["poisson", "none", "shuffled", "without-replacement"] = "poisson"
    prob = 1.0 if phase.sampling_prob is None else phase.sampling_prob
    if phase.sampling is not None:
        kind = phase.sampling.kind
        prob = 1.0 if phase.sampling.prob is None else phase.sampling.prob
        if kind == "none" and prob != 1.0:
            raise ValueError(f"expected sampling.prob={prob} to be 1 or absent with kind 'none'.")
        if kind != "none" and phase.sampling.prob is None:
            raise ValueError(f"expected sampling.prob to be given with kind {kind!r}.")
    return Phase(mechanisms[key], phase.steps, prob, kind)
