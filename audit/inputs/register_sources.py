"""Sources of the register: a repository or a paper, what it prints, and which claims of the claims files judge it.

A source is `sources/<name>.toml` in the folder of claims: title, kind, url, commit, the day it was read, its claims
files, and a `[[row]]` for each published statement: where it stands, what is printed, what had to be assumed, what was
derived and how, and the ids of the claims that judge it, or what is missing to judge it at all.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from dpaudit.audit.inputs.files import InputError, read_regular
from dpaudit.verify.claim_files import ClaimFileError, load_claims
from dpaudit.verify.claims import Claim
from dpaudit.verify.validation import one_line, read_toml

FOLDER = "sources"
LARGEST_SOURCE = 1 << 24  # bytes


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class PublishedRow(_Strict):
    """One published statement about privacy.

    Args:
        id: Name on the page.
        where: File or table of the source.
        printed: What it says, in brief.
        claims: Ids of the claims that judge it; empty where it cannot be judged.
        assumed: What the source does not say and was assumed.
        derived: Which parameter was solved from which target, and by which solver.
        formula: The published formula, if it is not the source's.
        note: What else a reader should know, such as what would change the verdict.
        missing: What is missing to judge it; "" where claims judge it.
    """

    id: str = Field(min_length=1, max_length=200)
    where: str
    printed: str
    claims: list[str] = []
    assumed: list[str] = []
    derived: str = ""
    formula: str = ""
    note: str = ""
    missing: str = ""


class _Source(_Strict):
    title: str
    kind: Literal["repository", "paper", "deployment"]
    url: str = Field(pattern=r"^(https://\S*)?$")
    commit: str = Field(pattern=r"^[0-9a-f]{0,40}$")
    read: str = Field(pattern=r"^\d{4}-\d{2}-\d{2}$")
    files: list[str]
    summary: str
    formula: str
    bibtex: str
    row: list[PublishedRow] = []

    @field_validator("read")
    @classmethod
    def _day(cls, value: str) -> str:
        try:
            date.fromisoformat(value)
        except ValueError:
            raise ValueError(f"Expected read={value} to be a day of the calendar.") from None
        return value


@dataclass(frozen=True)
class Source:
    """A source with its claims.

    Args:
        name: Of its file, and of its page.
        facts: title, kind, url, commit, read, summary, formula, bibtex.
        rows: In the order of the file; every claim stands in exactly one.
        claims: By id.
        homes: The claims file that each id stands in.
    """

    name: str
    facts: Mapping[str, str]
    rows: Sequence[PublishedRow]
    claims: Mapping[str, Claim]
    homes: Mapping[str, Path]


def load_sources(folder: Path) -> list[Source]:
    """Read all sources of a folder of claims, in the order of their names.

    A claim that no row names becomes a row of its own, with the claim's own words about its source.

    Args:
        folder: Holds claims files and `sources/*.toml`.

    Raises:
        InputError: There is no source, a file is wrong, or an id appears twice; one line.
    """
    paths = sorted((folder / FOLDER).glob("*.toml"))
    if not paths:
        raise InputError(f"Expected {folder / FOLDER} to hold sources, *.toml.")
    sources = [_load(path, folder) for path in paths]
    seen: set[str] = set()
    for source in sources:
        if not names_a_page(source.name):
            raise InputError(f"Expected another name than {source.name}.toml: letters, digits and _.-, and not index.")
        for name in [*source.claims, *(row.id for row in source.rows if row.id not in source.claims)]:
            if name in seen:
                raise InputError(f"source {source.name}: id {name!r} appears twice: expected every id once.")
            seen.add(name)
    return sources


def names_a_page(name: object) -> bool:
    """Whether a source's name can be that of its page, in a folder and in a link: the page of all is index.html."""
    return isinstance(name, str) and re.fullmatch(r"\w[\w.-]*", name) is not None and name.casefold() != "index"


def _load(path: Path, folder: Path) -> Source:
    try:
        read = _Source.model_validate(read_toml(read_regular(path, limit=LARGEST_SOURCE).decode("utf-8-sig")))
    except ValidationError as error:
        raise InputError(f"{path}: {one_line(error, _Source)}") from error
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not TOML: {error}") from error
    claims: dict[str, Claim] = {}
    homes: dict[str, Path] = {}
    for name in read.files:
        home = folder / f"{name}.toml"
        try:
            for claim in load_claims(home):
                if claim.id in claims:
                    raise InputError(f"source {path.stem}: id {claim.id!r} appears twice: expected every id once.")
                claims[claim.id], homes[claim.id] = claim, home
        except ClaimFileError as error:
            raise InputError(str(error)) from error
    facts = read.model_dump(exclude={"files", "row"})
    return Source(path.stem, facts, _rows(path, read.row, claims), claims, homes)


def _rows(path: Path, rows: Sequence[PublishedRow], claims: Mapping[str, Claim]) -> list[PublishedRow]:
    """The file's rows, and one for every claim that none of them names."""
    named: set[str] = set()
    for row in rows:
        unknown = [name for name in row.claims if name not in claims]
        if unknown:
            raise InputError(f"{path}: row {row.id!r}: expected claim {unknown[0]!r} in the source's files.")
        if bool(row.claims) == bool(row.missing):
            raise InputError(f"{path}: row {row.id!r}: expected either claims, or what is missing.")
        if named & set(row.claims):
            raise InputError(f"{path}: row {row.id!r}: expected every claim in one row.")
        named |= set(row.claims)
    alone = [name for name in claims if name not in named]
    found = [*rows, *(PublishedRow(id=name, where=claims[name].source, printed="", claims=[name]) for name in alone)]
    twice = next((name for name, times in Counter(row.id for row in found).items() if times > 1), None)
    if twice is not None:
        raise InputError(f"{path}: row {twice!r} appears twice: expected every id once.")
    return found
