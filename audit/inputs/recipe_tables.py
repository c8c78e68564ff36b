"""The tables of a recipe, with the values that each key may take."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    model_validator,
)

from dpaudit.audit.inputs.files import InputError
from dpaudit.mechanisms.base import Mechanism
from dpaudit.mechanisms.learning.update_rules import UpdateRule
from dpaudit.mechanisms.quoting import shown
from dpaudit.mechanisms.registry import from_dict, to_dict
from dpaudit.verify.claims import PLAIN_KINDS, Adjacency, Phase
from dpaudit.verify.samplers import SAMPLERS, Sampler, sampler_from_dict, sampler_keys, sampler_to_dict, takes_steps

PROBABILITY = Field(gt=0, le=1)

_Rule = tuple[Callable[[Any], bool], str]
_TRUTH: _Rule = (lambda value: isinstance(value, bool), "true or false")
_WIDTH: _Rule = (lambda value: type(value) is int and 1 <= value <= 1_000_000, "an integer in 1..1000000")
_WIDTHS: _Rule = (  # of hidden layers, of one or of several
    lambda value: (
        _WIDTH[0](value) or (isinstance(value, list) and 1 <= len(value) <= 20 and all(map(_WIDTH[0], value)))
    ),
    "an integer in 1..1000000, or a list of 1..20 of them",
)
_ROWS: _Rule = (lambda value: type(value) is int and 2 <= value <= 1_000_000, "an integer in 2..1000000")
KWARGS: dict[str, dict[str, _Rule]] = {
    "linear": {"bias": _TRUTH},
    "fnn": {"hidden": _WIDTHS},
    "cnn": {},
    "logistic": {},
    "bag-of-embeddings": {"vocabulary": _ROWS, "width": _WIDTH},
    "encoder": {
        "folder": (lambda value: isinstance(value, str) and value != "", "the path of a folder"),
        "trained_layers": (lambda value: type(value) is int and 0 <= value <= 1000, "an integer in 0..1000"),
    },
    "transformer": {"vocabulary": _ROWS, "width": _WIDTH, "heads": _WIDTH, "layers": _WIDTH},
}

TOKEN_READERS = ("bag-of-embeddings", "transformer", "encoder")
NETWORKS = ("linear", "fnn", "cnn")  # what DP-FTRL and schedules are for

Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
Statement = Annotated[str, Field(min_length=1, max_length=1000)]


def count_or_indices(value: Any, *, least: int) -> Any:
    """A number of records, or their indices; checked here, because a union's own messages speak of both its members.

    Raises:
        ValueError: Neither.
    """
    if value is None or (type(value) is int and value >= least):
        return value
    whole = isinstance(value, list) and value and all(type(item) is int and item >= 0 for item in value)
    if not whole or len(set(value)) != len(value):
        raise ValueError(f"Expected an integer of at least {least}, or a list of different indices of at least 0.")
    return value


class Table(BaseModel):
    """Unknown keys, wrong types, NaN and infinity are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class ReportTable(Table):
    """[report]: what the owner of a model states for its report, which no computation looks at.

    Args:
        scope: What the report is for.
        privacy_unit: Whose data two neighbours differ in: a record, a user, ...
        sampler_run: How batches were drawn, where `sampling` is only what was accounted.
        released: What leaves the training: final weights, all checkpoints, predictions.
        threat_model: Against whom the promise stands.
        tuning: How hyperparameters were chosen, and whether that is accounted for.
        preprocessing: What else was computed from the data: vocabularies, statistics, filters.
        other_releases: What else was published about the same data.
    """

    scope: Statement | None = None
    privacy_unit: Statement | None = None
    sampler_run: Statement | None = None
    released: Statement | None = None
    threat_model: Statement | None = None
    tuning: Statement | None = None
    preprocessing: Statement | None = None
    other_releases: Statement | None = None


class TokensTable(Table):
    """[dataset.tokens]: sentences as `length` ids of hashed words each, or of the tokenizer in a `folder`."""

    length: Annotated[int, Field(ge=1, le=4096)]
    folder: str | None = None


class DatasetTable(Table):
    """[dataset]: one of `name` and `file`, and the part of it that is used; see `datasets.load`."""

    name: str | None = None
    file: str | None = None
    classes: list[int] | None = None
    records: Annotated[int | list[int] | None, BeforeValidator(partial(count_or_indices, least=1))] = None
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    tokens: TokensTable | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.name is None) == (self.file is None):
            raise ValueError("Expected exactly one of name and file.")
        return self


class ArchitectureTable(Table):
    """[architecture]: a name of KWARGS ("encoder" is Hugging Face's from a folder), or "my_model.py:build"."""

    name: str
    kwargs: dict[str, Any] = Field(default_factory=dict)

    @property
    def code(self) -> bool:
        """Whether the user's own code builds it."""
        return ":" in self.name

    @property
    def custom(self) -> bool:
        """Whether files of the user's build it."""
        return self.code or self.name == "encoder"

    @model_validator(mode="after")
    def _known(self) -> Self:
        if self.name == "encoder" and "folder" not in self.kwargs:
            raise ValueError("Expected kwargs.folder, the path of the encoder's folder.")
        if not self.code:
            if self.name not in KWARGS:
                raise ValueError(f"Expected name={shown(self.name)} among {', '.join(KWARGS)}, or 'my_model.py:build'.")
            for key, value in self.kwargs.items():
                if key not in KWARGS[self.name]:
                    known = ", ".join(KWARGS[self.name]) or "none"
                    raise ValueError(f"Expected kwargs.{key} among those of {self.name}: {known}.")
                holds, rule = KWARGS[self.name][key]
                if not holds(value):
                    raise ValueError(f"Expected kwargs.{key}={shown(value)} to be {rule}.")
        try:
            json.dumps(self.kwargs, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"Expected kwargs to hold finite numbers, text, truth values and lists: {error}."
            ) from None
        return self


class NetworkTable(ArchitectureTable):
    """[architecture] of a network whose steps this package computes itself."""

    name: Literal["linear", "fnn", "cnn"]


class LogisticTable(ArchitectureTable):
    """[architecture] of a logistic regression."""

    name: Literal["logistic"]


class SamplingTable(Table):
    """[sampling]: "poisson" with a rate, "none" for all records in every step, or a kind of SAMPLERS with its keys."""

    model_config = ConfigDict(extra="allow")
    kind: str
    prob: Annotated[float, PROBABILITY] | None = None

    @classmethod
    def known_keys(cls, data: Mapping[str, Any]) -> dict[str, Any]:
        """A table without the keys that its kind has not."""
        known = {*cls.model_fields, *sampler_keys(str(data.get("kind")))}
        return {key: value for key, value in data.items() if key in known}

    def sampler(self, steps: int | None = None) -> Sampler | None:
        """What draws the batches; None for "poisson" and "none", which need no more than the rate.

        Args:
            steps: Of the training, for kinds that have them as a key.

        Raises:
            ValueError: A key is missing, unknown to the kind, or outside its domain.
        """
        if self.kind not in SAMPLERS:
            return None
        keys = self.model_dump(exclude_none=True, exclude={"kind"})
        if steps is not None and takes_steps(self.kind, keys):
            keys.setdefault("steps", steps)
        try:
            return sampler_from_dict(self.kind, keys)
        except TypeError as error:  # pydantic only collects ValueError
            raise ValueError(str(error)) from error

    @property
    def rate(self) -> float:
        """The Poisson rate of a kind without a sampler; 1.0 without sampling."""
        return 1.0 if self.kind == "none" else float(self.prob or 1.0)

    def phase(self, mechanism: Mechanism, steps: int) -> Phase:
        """So many releases of a mechanism, their batches drawn like this."""
        sampler = self.sampler(steps)
        if sampler is not None:
            return Phase(mechanism, steps, sampler=sampler)
        return Phase(mechanism, steps, self.rate, self.kind)

    def summary(self, steps: int) -> dict[str, Any]:
        """The table of a claims file."""
        sampler = self.sampler(steps)
        return {"kind": self.kind, **({"prob": self.rate} if sampler is None else sampler_to_dict(sampler))}

    @model_validator(mode="after")
    def _keys(self) -> Self:
        kinds = (*PLAIN_KINDS, *SAMPLERS)
        if self.kind not in kinds:
            raise ValueError(f"Expected kind={shown(self.kind)} among {', '.join(map(repr, kinds))}.")
        if self.kind in PLAIN_KINDS and self.model_extra:
            raise ValueError(f"Expected only kind and prob with kind={self.kind!r}, not {sorted(self.model_extra)[0]}.")
        if self.kind == "poisson" and self.prob is None:
            raise ValueError("Expected prob in (0, 1] with kind='poisson'.")
        if self.kind == "none" and self.prob not in (None, 1.0):
            raise ValueError(f"Expected prob={self.prob} to be absent or 1.0 with kind='none'.")
        return self


class NoSamplingTable(SamplingTable):
    """[sampling] where every step, or the only one, is on the same records whatever is drawn."""

    kind: Literal["none"]


class OptimizerTable(Table):
    """[optimizer]: what moves the weights, given the noisy sum divided by the public batch size.

    "sgd" without kwargs is plain gradient descent with heavy-ball momentum; other names and kwargs are those of
    torch.optim, such as name = "adam", kwargs = {betas = [0.9, 0.99]}.
    """

    name: str = "sgd"
    learning_rate: Positive = 0.1
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    init: Literal["zeros", "glorot", "built"] = "glorot"
    kwargs: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _known(self) -> Self:
        rule = self.update_rule
        if rule is not None and rule.name != "sgd" and self.momentum:
            raise ValueError(f"Expected momentum={self.momentum} only with name='sgd'; others take theirs in kwargs.")
        return self

    @property
    def update_rule(self) -> UpdateRule | None:
        """The optimizer of torch's; None for plain descent."""
        if self.name == "sgd" and not self.kwargs:
            return None
        momentum = {"momentum": self.momentum} if self.name == "sgd" and self.momentum else {}
        return UpdateRule(self.name, {**momentum, **(self.kwargs or {})})

    def settings(self) -> dict[str, Any]:
        """The fields of a specification of descent.

        Raises:
            InputError: torch's optimizer does not take the kwargs.
        """
        rule = self.update_rule
        try:
            if rule is not None:
                rule.check(self.learning_rate)
        except ValueError as error:
            raise InputError(f"optimizer: {error}") from error
        return {
            "learning_rate": self.learning_rate,
            "momentum": self.momentum if rule is None else 0.0,
            "update_rule": rule,
            "init": self.init,
        }


class DecayTable(Table):
    """A rule of [schedule]: `levels` values from start to end in equal ratios, each for an equal part of the steps."""

    start: Positive
    end: Positive
    levels: Annotated[int, Field(ge=1, le=100)]


class ClaimTable(Table):
    """[claim]: the privacy that is promised; `unit` says whose, a record's where it is left out.

    `sampling` is how batches were accounted for, where that is not how the training draws them ([sampling]): the claim
    check judges what was accounted, attacks what is run.
    """

    epsilon: Positive
    delta: Annotated[float, Field(ge=0, lt=1)]
    adjacency: Adjacency = "add-remove"
    unit: Literal["record", "user"] | None = None
    sampling: SamplingTable | None = None


def read_mechanism(value: Any) -> Mechanism:
    """[mechanism]: the entry of a claims file.

    Raises:
        ValueError: Unknown, incomplete or outside its domain.
    """
    if not isinstance(value, Mapping):
        raise ValueError(f"Expected a table with name and parameters, not {shown(value)}.")
    try:
        return from_dict(dict(value))
    except TypeError as error:  # pydantic only collects ValueError
        raise ValueError(str(error)) from error


MechanismTable = Annotated[Any, PlainValidator(read_mechanism), PlainSerializer(to_dict)]
