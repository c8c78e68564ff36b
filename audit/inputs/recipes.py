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
    DecayTable,
    OptimizerTable,
    Positive,
    SamplingTable,
    Table,
    check_keys,
    check_sensitivity,
    check_structure,
    count_or_indices,
    optional_mechanism,
    read_mechanism,
)
from dpaudit.audit.inputs.sources import Stage
from dpaudit.mechanisms.base import Mechanism
from dpaudit.mechanisms.broken import DEFECTS
from dpaudit.mechanisms.learning.schedule import Decay, occurrences, step_mechanisms
from dpaudit.mechanisms.registry import from_dict, to_dict
from dpaudit.verify.claims import Claim, Phase

if TYPE_CHECKING:
    from dpaudit.mechanisms.learning.spec import TrainingSpec

LARGEST_RECIPE = 1 << 20  # bytes; 100,000 record indices take 700 kB
Seed = Annotated[int, Field(ge=0, lt=1 << 63)]


class Recipe(Table):
    """How a private model is trained, completely; see the examples folder.

    Args:
        algorithm: "dp-sgd", "dp-ftrl", "output-perturbation" or "approximate-minima".
        steps: Noisy steps; 1 without gradient steps.
        batches: Batches of one pass of DP-FTRL.
        seed: Root seed of training and coins; None: drawn when training.
        audit_records: Records whose membership is drawn by fair coins: how many (the first of `fixed_order`) or which.
        regularization: Lambda of output perturbation and approximate minima.
        loss: "logistic" or "huber", of approximate minima.
        gradient_norm: Gamma of approximate minima, for the sum of the losses.
        output_mechanism: Noise on the approximate minimum; `mechanism` is that in its objective.
        schedule: DP-SGD's parameters of `mechanism` that change: a number per step, or a rule of start, end, levels.
        planted_defect: A fault of `mechanisms.broken.DEFECTS` to train with while claiming otherwise: a positive
            control, to see an audit find it. The claim check does not look at it.
        dataset, architecture, mechanism, sampling, optimizer, claim: The tables.
    """

    algorithm: Literal["dp-sgd", "dp-ftrl", "output-perturbation", "approximate-minima"]
    steps: Count = 1
    batches: Count | None = None
    seed: Seed | None = None
    audit_records: int | list[int] = 0
    regularization: Positive | None = None
    loss: Literal["logistic", "huber"] | None = None
    gradient_norm: Positive | None = None
    planted_defect: str | None = None
    dataset: DatasetTable
    architecture: ArchitectureTable
    mechanism: Annotated[Any, PlainValidator(read_mechanism), PlainSerializer(to_dict)]
    output_mechanism: Annotated[Any, PlainValidator(read_mechanism), PlainSerializer(optional_mechanism)] = None
    schedule: dict[str, DecayTable | list[Positive]] | None = None
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
        check_keys(self.algorithm, self.model_fields_set)
        check_structure(
            self.algorithm, self.architecture.name, steps=self.steps, sampling=self.sampling.kind,
            schedule=self.schedule is not None,
        )  # fmt: skip
        if self.schedule is not None:
            self.step_mechanisms()
        if self.output_mechanism is not None:
            error = float(self.gradient_norm or 0.0) / float(self.regularization or 1.0)
            check_sensitivity("mechanism", self.mechanism, 1.0)
            twice = 2.0 if self.claim.adjacency == "add-remove" else 1.0  # replace-one accounting doubles clip itself
            check_sensitivity("output_mechanism", self.output_mechanism, twice * error)
        return self

    def step_mechanisms(self) -> tuple[Mechanism, ...]:
        """The mechanism of every step where they differ, else ()."""
        if self.schedule is None:
            return ()
        curves = {
            name: Decay(**curve.model_dump()) if isinstance(curve, DecayTable) else curve
            for name, curve in self.schedule.items()
        }
        return step_mechanisms(self.mechanism, self.steps, curves)

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

        The divisor is `sampling_prob` (DP-FTRL: 1/batches) times ALL records of the data set, coins included: a public
        number, which the coins do not move.

        Raises:
            InputError: The architecture or the mechanism's dimension does not fit the data, or the recipe came
                without permission to run the code it names.
        """
        from dpaudit.audit.inputs.networks import build_architecture, count_parameters
        from dpaudit.mechanisms.learning.spec import TrainingSpec

        architecture = build_architecture(self.architecture, dataset.x.shape[1], dataset.classes, self._folder)
        filled = self.with_dimension(count_parameters(architecture))
        return TrainingSpec(
            algorithm=self.algorithm,
            architecture=architecture,
            mechanism=filled.mechanism,
            steps=self.steps,
            sampling_prob=self.sampling_prob,
            expected_batch_size=self.sampling_prob * len(dataset.y) / (self.batches or 1),
            learning_rate=self.optimizer.learning_rate,
            momentum=self.optimizer.momentum,
            init=self.optimizer.init,
            regularization=self.regularization or 0.0,
            defect=None if self.planted_defect is None else DEFECTS[self.planted_defect],
            schedule=filled.step_mechanisms(),
            batches=self.batches or 1,
            loss=self.loss or "logistic",
            gradient_norm=self.gradient_norm or 0.0,
            output_mechanism=filled.output_mechanism,
        )

    def with_dimension(self, dimension: int) -> "Recipe":
        """The recipe with the mechanism's dimension filled in.

        Raises:
            InputError: The recipe names another dimension, or one that the mechanism cannot have.
        """
        update = {}
        for key in ("mechanism", "output_mechanism"):
            mechanism = getattr(self, key)
            if mechanism is None:
                continue
            if mechanism.dimension not in (None, dimension):
                raise InputError(
                    f"{key}.dimension: Expected {mechanism.dimension} to be the model's {dimension} parameters."
                )
            try:
                update[key] = from_dict({**to_dict(mechanism), "dimension": dimension})
            except (TypeError, ValueError) as error:
                raise InputError(f"{key}.dimension: {error}") from error
        return self.model_copy(update=update)

    def filled(self, dataset: Dataset, *, dimension: int, seed: int) -> "Recipe":
        """The recipe as a bundle keeps it: with the data's hash, the mechanism's dimension and the seed.

        Raises:
            InputError: One of them contradicts what the recipe says.
        """
        self._check_sha256(dataset)
        table = self.dataset.model_copy(update={"sha256": dataset.sha256})
        return self.with_dimension(dimension).model_copy(update={"dataset": table, "seed": seed})

    def phases(self) -> tuple[Phase, ...]:
        """The releases that one record enters, from which the claim is accounted."""
        if self.algorithm == "dp-ftrl":
            from dpaudit.mechanisms.learning.dp_ftrl import releases_per_record  # loads torch

            return (Phase(self.mechanism, releases_per_record(self.steps, self.batches or 1), 1.0, "none"),)
        if self.output_mechanism is not None:
            return tuple(Phase(mechanism, 1, 1.0, "none") for mechanism in (self.mechanism, self.output_mechanism))
        used = occurrences(self.step_mechanisms()) or {self.mechanism: self.steps}
        return tuple(Phase(m, count, self.sampling_prob, self.sampling.kind) for m, count in used.items())

    def claim_object(self) -> Claim:
        """The claim, with the mechanism's dimension where it is known."""
        return Claim(self.claim.epsilon, self.claim.delta, self.phases(), self.claim.adjacency)

    def claim_summary(self) -> dict[str, Any]:
        """The claim in the form of an entry of a claims file; a history of several phases lists them as well."""
        phases = self.phases()
        sampling = {"kind": self.sampling.kind, "prob": self.sampling_prob}
        summary = {
            "epsilon": self.claim.epsilon,
            "delta": self.claim.delta,
            "adjacency": self.claim.adjacency,
            "steps": sum(phase.steps for phase in phases),
            "sampling": sampling,
            "mechanism": to_dict(self.mechanism),
        }
        if len(phases) == 1:
            return summary
        rows = [{"mechanism": to_dict(p.mechanism), "steps": p.steps, "sampling": sampling} for p in phases]
        return {**summary, "phase": rows}


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
