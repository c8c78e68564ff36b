"""Entries of the OpenDP registry of deployments (opendp/deployments-registry-data): YAML, of which a part is read.

An entry is second-hand: its authors read the primary source, and we read the entry.
"""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from dpaudit.audit.inputs.files import InputError, open_regular
from dpaudit.mechanisms.quoting import shown
from dpaudit.verify.validation import one_line

MAX_BYTES = 2**20


class _Known(BaseModel):
    """The keys that are read; the schema's others are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Parameters(_Known):
    """privacy_parameters: what is stated, None where it is not.

    `delta` may be a formula, which is kept as text in `delta_text`.
    """

    epsilon: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    rho: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    delta: float | str | None = None

    @field_validator("epsilon", "rho", "delta", mode="before")
    @classmethod
    def _no_truth_value(cls, value: object) -> object:
        """Which Python would take for 0 or 1."""
        if isinstance(value, bool):
            raise ValueError(f"expected {value} to be a number.")
        return value

    @field_validator("delta")
    @classmethod
    def _number(cls, value: float | str | None) -> float | str | None:
        """A number that YAML took for text, such as 1e-5, is a number."""
        try:
            number = None if value is None else float(value)
        except ValueError:
            return value
        if number is not None and not (math.isfinite(number) and 0 <= number < 1):
            raise ValueError(f"expected delta={shown(value)} in [0, 1).")
        return number


class _Variant(_Known):
    variant_name: str | None = None


class _Loss(_Known):
    privacy_unit: str | None = None
    privacy_parameters: Parameters | None = None
    privacy_parameters_details: str | None = None


class _Accounting(_Known):
    composition: str | None = None


class _Implementation(_Known):
    mechanisms: str | None = None


class _Basic(_Known):
    name: str
    publication_date: str | None = None


class _Deployment(_Known):
    basic: _Basic
    dp_variant: _Variant | None = None
    privacy_loss: _Loss | None = None
    accounting: _Accounting | None = None
    implementation: _Implementation | None = None


class Entry(_Known):
    """One deployment."""

    url_slug: str
    deployment: _Deployment

    @property
    def parameters(self) -> Parameters:
        """What is stated; empty where nothing is."""
        loss = self.deployment.privacy_loss
        return (loss.privacy_parameters if loss else None) or Parameters()

    @property
    def variant(self) -> str | None:
        """Pure DP, Approximate DP, Zero-concentrated DP, Renyi DP, Custom, or None."""
        return self.deployment.dp_variant.variant_name if self.deployment.dp_variant else None

    @property
    def texts(self) -> dict[str, str]:
        """The free texts that may hold numbers, by their keys."""
        deployment = self.deployment
        found = {
            "privacy_parameters_details": deployment.privacy_loss
            and deployment.privacy_loss.privacy_parameters_details,
            "composition": deployment.accounting and deployment.accounting.composition,
            "mechanisms": deployment.implementation and deployment.implementation.mechanisms,
        }
        return {key: text for key, text in found.items() if text}


def load_entries(path: Path) -> list[Entry]:
    """Read the entries of a file, or of all files of a folder in the order of their names.

    Args:
        path: FILE.yaml, a YAML document for each entry, or a folder of such files.

    Raises:
        InputError: There is none, or one is no entry; one line that names the file and the key.
    """
    paths = sorted(path.glob("*.yaml")) if path.is_dir() else [path]
    if not paths:
        raise InputError(f"Expected {path} to hold entries, *.yaml.")
    entries = [entry for file in paths for entry in _load(file)]
    times = Counter(entry.url_slug for entry in entries)
    twice = next((slug for slug in times if times[slug] > 1), None)
    if twice is not None:
        raise InputError(f"{path}: url_slug {shown(twice)} appears twice: expected every slug once.")
    return entries


def _load(path: Path) -> list[Entry]:
    with open_regular(path) as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise InputError(f"Expected {path} to be at most {MAX_BYTES} bytes.")
    try:
        tables: list[Any] = list(yaml.safe_load_all(data))
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: not YAML: {error}") from error
    if not tables or not all(isinstance(table, dict) for table in tables):
        raise InputError(f"Expected {path} to hold an entry of the registry, a table.")
    try:
        return [Entry.model_validate(table) for table in tables]
    except ValidationError as error:
        raise InputError(f"{path}: {one_line(error, Entry)}") from error
