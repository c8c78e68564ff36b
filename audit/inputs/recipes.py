"""A recipe: everything that determines how a private model is trained, as TOML and as JSON."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    Field,
    PlainSerializer,
    PlainValidator,
    PrivateAttr,
    ValidationError,
    field_validator,
    model_validator,
)

from dpaudit.audit.inputs.datasets import Dataset, load
from dpaudit.audit.inputs.errors import InputError
from dpaudit.audit.inputs.files import read_regular
from dpaudit.audit.inputs.recipe_errors import one_line
from dpaudit.audit.inputs.recipe_tables import (
    ArchitectureTable,
    ClaimTable,
    Count,
    DatasetTable,
    OptimizerTable,
    Positive,
    SamplingTable,
    Table,
    count_or_indices,
    read_mechanism,
)
from dpaudit.audit.inputs.sources import Stage
from dpaudit.mechanisms.broken import DEFECTS
from dpaudit.mechanisms.registry import from_dict, to_dict
from dpaudit.verify.claims import Claim, Phase

if TYPE_CHECKING:
    from dpaudit.mechanisms.learning.spec import TrainingSpec

LARGEST_RECIPE = 1 << 20  # bytes; 100,000 record indices take 700 kB
Seed = Annotated[int, Field(ge=0, lt=1 << 63)]


class Recipe(Table):
    """How a private model is trained, completely; see the examples folder.

    Args:
        algorithm: "dp-sgd" or "output-perturbation".
        steps: Noisy steps; 1 for output perturbation.
        seed: Root seed of training and coins; None: drawn when training.
        audit_records: Records whose membership is drawn by fair coins: how many (the first of `fixed_order`) or which.
        regularization: Lambda of output perturbation.
        planted_defect: A fault of `mechanisms.broken.DEFECTS` to train with while claiming otherwise: a positive
            control, to see an audit find it. The claim check does not look at it.
        dataset, architecture, mechanism, sampling, optimizer, claim: The tables.
    """

    algorithm: Literal["dp-sgd", "output-perturbation"]
    steps: Count = 1
    seed: Seed | None = None
    audit_records: int | list[int] = 0
    regularization: Positive | None = None
    planted_defect: str | None = None
    dataset: DatasetTable
    architecture: ArchitectureTable
    mechanism: Annotated[Any, PlainValidator(read_mechanism), PlainSerializer(to_dict)]
    sampling: SamplingTable = SamplingTable(kind="none")
    optimizer: OptimizerTable = OptimizerTable()
    claim: ClaimTable
    _folder: Path | None = PrivateAttr(default=None)

    @field_validator("audit_records", mode="before")
    @classmethod
    def _audit_records(cls, value: Any) -> Any:
        return count_or_indices(value, least=0)

    @field_validator("planted_defect")
    @classmethod
    def _known_defect(cls, value: str | None) -> str | None:
        if value is not None and value not in DEFECTS:
            raise ValueError(f"Expected planted_defect={value!r} among {', '.join(DEFECTS)}.")
        return value

    @model_validator(mode="after")
    def _fits_algorithm(self) -> Self:
        given = self.model_fields_set
        if self.algorithm == "dp-sgd":
            for key in ("steps", "sampling"):
                if key not in given:
                    raise ValueError(f"{key}: Expected this key with algorithm='dp-sgd'.")
            if self.regularization is not None:
                raise ValueError("regularization: Expected it only with algorithm='output-perturbation'.")
            if self.architecture.name == "logistic":
                raise ValueError("architecture.name: Expected 'logistic' only with algorithm='output-perturbation'.")
            return self
        if self.steps != 1 or self.sampling.kind != "none":
            raise ValueError("steps: Expected one step on all records with algorithm='output-perturbation'.")
        if self.regularization is None:
            raise ValueError("regularization: Expected this key with algorithm='output-perturbation'.")
        if self.architecture.name != "logistic":
            raise ValueError(
                f"architecture.name: Expected {self.architecture.name!r} to be 'logistic' "
                "with algorithm='output-perturbation'."
            )
        return self

    @property
    def sampling_prob(self) -> float:
        """Poisson rate; 1.0 without sampling."""
        return 1.0 if self.sampling.kind == "none" else float(self.sampling.prob or 1.0)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], *, name: str = "recipe", folder: Path | None = None) -> "Recipe":
        """Read and check a recipe.

        Args:
            data: As TOML or JSON holds it.
            name: What to call it in messages.
            folder: Where its relative paths begin, and the permission to run the code it names; None refuses that.

        Raises:
            InputError: The first thing wrong, by its dotted key.
        """
        try:
            recipe = cls.model_validate(dict(data))
        except ValidationError as error:
            raise InputError(f"{name}: {one_line(error, cls)}") from error
        recipe._folder = folder
        return recipe

    def to_dict(self) -> dict[str, Any]:
        """The recipe as JSON holds it: `from_dict` reads it again."""
        return self.model_dump(mode="json", exclude_none=True)

    def load_dataset(self, data: str | None = None, *, progress: Stage | None = None) -> Dataset:
        """The records that the recipe names.

        Args:
            data: Another name or .npz file for the same records.
            progress: Told of downloads.

        Raises:
            InputError: As `datasets.load`, or the arrays are not those of `dataset.sha256`.
        """
        table = self.dataset
        source = data or table.name or str(Path(self._folder or "", table.file or ""))
        dataset = load(source, classes=table.classes, records=table.records, progress=progress)
        self._check_sha256(dataset)
        return dataset

    def _check_sha256(self, dataset: Dataset) -> None:
        if self.dataset.sha256 not in (None, dataset.sha256):
            raise InputError(
                f"dataset.sha256: Expected {self.dataset.sha256}, but {dataset.name} has {dataset.sha256}."
            )

    def spec(self, dataset: Dataset) -> "TrainingSpec":
        """The training that this recipe describes, on these records.

        The divisor is `sampling_prob` times ALL records of the data set, coins included: a public number, which the
        coins do not move.

        Raises:
            InputError: The architecture or the mechanism's dimension does not fit the data, or the recipe came
                without permission to run the code it names.
        """
        from dpaudit.audit.inputs.networks import build_architecture, count_parameters
        from dpaudit.mechanisms.learning.spec import TrainingSpec

        architecture = build_architecture(self.architecture, dataset.x.shape[1], dataset.classes, self._folder)
        return TrainingSpec(
            algorithm=self.algorithm,
            architecture=architecture,
            mechanism=self.with_dimension(count_parameters(architecture)).mechanism,
            steps=self.steps,
            sampling_prob=self.sampling_prob,
            expected_batch_size=self.sampling_prob * len(dataset.y),
            learning_rate=self.optimizer.learning_rate,
            momentum=self.optimizer.momentum,
            init=self.optimizer.init,
            regularization=self.regularization or 0.0,
            defect=None if self.planted_defect is None else DEFECTS[self.planted_defect],
        )

    def with_dimension(self, dimension: int) -> "Recipe":
        """The recipe with the mechanism's dimension filled in.

        Raises:
            InputError: The recipe names another dimension, or one that the mechanism cannot have.
        """
        stated = self.mechanism.dimension
        if stated not in (None, dimension):
            raise InputError(f"mechanism.dimension: Expected {stated} to be the model's {dimension} parameters.")
        try:
            filled = from_dict({**to_dict(self.mechanism), "dimension": dimension})
        except (TypeError, ValueError) as error:
            raise InputError(f"mechanism.dimension: {error}") from error
        return self.model_copy(update={"mechanism": filled})

    def filled(self, dataset: Dataset, *, dimension: int, seed: int) -> "Recipe":
        """The recipe as a bundle keeps it: with the data's hash, the mechanism's dimension and the seed.

        Raises:
            InputError: One of them contradicts what the recipe says.
        """
        self._check_sha256(dataset)
        table = self.dataset.model_copy(update={"sha256": dataset.sha256})
        return self.with_dimension(dimension).model_copy(update={"dataset": table, "seed": seed})

    def claim_object(self) -> Claim:
        """The claim, with the mechanism's dimension where it is known."""
        phase = Phase(self.mechanism, self.steps, self.sampling_prob, self.sampling.kind)
        return Claim(self.claim.epsilon, self.claim.delta, (phase,), self.claim.adjacency)

    def claim_summary(self) -> dict[str, Any]:
        """The claim in the form of an entry of a claims file."""
        return {
            "epsilon": self.claim.epsilon,
            "delta": self.claim.delta,
            "adjacency": self.claim.adjacency,
            "steps": self.steps,
            "sampling": {"kind": self.sampling.kind, "prob": self.sampling_prob},
            "mechanism": to_dict(self.mechanism),
        }


def load_recipe(path: str | Path) -> Recipe:
    """Read a recipe from a TOML file; its relative paths begin in the file's folder.

    Raises:
        InputError: Not a readable TOML file, or the first thing wrong in it by its dotted key.
    """
    content = read_regular(path, limit=LARGEST_RECIPE)
    try:
        data = tomllib.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"Expected {path} to hold TOML: {re.sub(r'[^ -~]', '?', str(error))}.") from error
    return Recipe.from_dict(data, name=str(path), folder=Path(path).resolve().parent)
