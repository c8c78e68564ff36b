"""A recipe: everything that determines how a private model is trained, as TOML and as JSON, a class per algorithm."""

import math
import re
from collections.abc import Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, PrivateAttr, ValidationError, field_validator, model_validator

from dpaudit.audit.inputs.datasets import Dataset, Encoder, load
from dpaudit.audit.inputs.files import InputError, read_regular
from dpaudit.audit.inputs.formats import HashedTokens
from dpaudit.audit.inputs.recipe_tables import (
    NETWORKS,
    TOKEN_READERS,
    ArchitectureTable,
    ClaimTable,
    Count,
    DatasetTable,
    DecayTable,
    LogisticTable,
    MechanismTable,
    NetworkTable,
    NoSamplingTable,
    OptimizerTable,
    Positive,
    ReportTable,
    SamplingTable,
    Table,
    TokensTable,
    count_or_indices,
)
from dpaudit.audit.inputs.sources import Stage
from dpaudit.mechanisms.base import Mechanism, with_dimension
from dpaudit.mechanisms.clipping import check_sensitivity
from dpaudit.mechanisms.defects import CORRECT, DEFECTS
from dpaudit.mechanisms.learning.schedule import Decay, occurrences, step_mechanisms
from dpaudit.mechanisms.quoting import shown
from dpaudit.mechanisms.registry import to_dict
from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.correlated import Correlation, Participation, Tree
from dpaudit.verify.samplers import SAMPLERS, Sampler, sampler_from_dict
from dpaudit.verify.validation import one_line, read_toml

if TYPE_CHECKING:
    from dpaudit.mechanisms.learning.spec import Architecture, TrainingSpec

LARGEST_RECIPE = 1 << 20  # bytes; 100,000 record indices take 700 kB
KEY_ORDER = (  # of a recipe as bundles keep it, whatever its algorithm
    "algorithm", "steps", "batches", "seed", "audit_records", "regularization", "loss", "gradient_norm",
    "planted_defect", "dataset", "architecture", "mechanism", "output_mechanism", "schedule", "sampling", "optimizer",
    "claim", "report",
)  # fmt: skip
Seed = Annotated[int, Field(ge=0, lt=1 << 63)]


class Recipe(Table):
    """How a private model is trained, completely: what every algorithm has; see the examples folder.

    Args:
        algorithm: "dp-sgd", "dp-ftrl", "output-perturbation" or "approximate-minima": the key of the class in RECIPES.
        steps: Noisy steps; 1 without gradient steps.
        seed: Root seed of training and coins; None: drawn when training.
        audit_records: Records whose membership is drawn by fair coins: how many (the first of `fixed_order`) or which.
        planted_defect: A fault of `mechanisms.defects.DEFECTS` to train with while claiming otherwise: a positive
            control, to see an audit find it. The claim check does not look at it.
        dataset, architecture, mechanism, sampling, optimizer, claim: The tables.
        report: What its owner states for the report.
    """

    algorithm: Literal["dp-sgd", "dp-ftrl", "output-perturbation", "approximate-minima"]
    steps: Count = 1
    seed: Seed | None = None
    audit_records: Annotated[int | list[int], BeforeValidator(partial(count_or_indices, least=0))] = 0
    planted_defect: str | None = None
    dataset: DatasetTable
    architecture: ArchitectureTable
    mechanism: MechanismTable
    sampling: SamplingTable = NoSamplingTable(kind="none")
    optimizer: OptimizerTable = OptimizerTable()
    claim: ClaimTable
    report: ReportTable | None = None
    mechanism_keys: ClassVar[tuple[str, ...]] = ("mechanism",)
    _folder: Path | None = PrivateAttr(default=None)

    @field_validator("planted_defect")
    @classmethod
    def _known_defect(cls, value: str | None) -> str | None:
        if value is not None and value not in DEFECTS:
            raise ValueError(f"Expected planted_defect={shown(value)} among {', '.join(DEFECTS)}.")
        return value

    @model_validator(mode="after")
    def _claimed_batches(self) -> Self:
        if self.algorithm != "dp-sgd":
            if self.claim.sampling is not None:
                raise ValueError("claim.sampling: Expected only with algorithm='dp-sgd', which draws batches.")
            if self.claim.adjacency == "zero-out":
                raise ValueError("claim.adjacency: Expected 'zero-out' only with algorithm='dp-sgd'.")
        return self

    @cached_property
    def sampler(self) -> Sampler | None:
        """What draws the batches of the training, and is accounted unless the claim says otherwise."""
        return self.sampling.sampler(self.steps)

    @property
    def sampling_prob(self) -> float:
        """Share of the records expected in a batch: the Poisson rate; 1.0 without sampling."""
        return self.sampling.rate if self.sampler is None else self.sampler.rate

    @property
    def claimed_sampling(self) -> SamplingTable:
        """How batches are accounted for in the claim: as they are drawn, unless it says otherwise."""
        return self.claim.sampling or self.sampling

    @staticmethod
    def from_dict(data: Mapping[str, Any], *, name: str = "recipe", folder: Path | None = None) -> "Recipe":
        """Read and check a recipe, of the class of its algorithm.

        Args:
            data: As TOML or JSON holds it.
            name: What to call it in messages.
            folder: Where its relative paths begin, and the permission to run the code it names; None refuses that.

        Raises:
            InputError: The first thing wrong, by its dotted key.
        """
        kind = recipe_class(data)
        try:
            recipe = kind.model_validate(dict(data))
        except ValidationError as error:
            raise InputError(f"{name}: {one_line(error, kind, RECIPES)}") from error
        recipe._folder = folder
        return recipe

    def to_dict(self) -> dict[str, Any]:
        """The recipe as JSON holds it, scalars first: `from_dict` reads it again."""
        data = self.model_dump(mode="json", exclude_none=True)
        return {key: data[key] for key in KEY_ORDER if key in data}

    @property
    def files(self) -> list[Path]:
        """The user's files that it names: records, and code that builds the network."""
        code = self.architecture.name.rpartition(":")[0] if self.architecture.code else None
        return [Path(self._folder or "", name) for name in (self.dataset.file, code) if name]

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
        tokens = None if table.tokens is None else tokenizer(table.tokens, self._folder)
        dataset = load(source, classes=table.classes, records=table.records, tokens=tokens, progress=progress)
        self._check_sha256(dataset)
        return dataset

    def _check_sha256(self, dataset: Dataset) -> None:
        if self.dataset.sha256 not in (None, dataset.sha256):
            raise InputError(
                f"dataset.sha256: Expected {self.dataset.sha256}, but {dataset.name} has {dataset.sha256}."
            )

    def network(self, dataset: Dataset) -> "Architecture":
        """The architecture that this recipe names, for these records.

        Raises:
            InputError: It does not fit the data, or the recipe came without permission to run the code it names.
        """
        from dpaudit.audit.inputs.networks import build_architecture

        self._check_tokens(dataset)
        return build_architecture(self.architecture, dataset.x.shape[1], dataset.classes, self._folder)

    def spec(self, dataset: Dataset, network: "Architecture | None" = None) -> "TrainingSpec":
        """The training that this recipe describes, on these records.

        The divisor is the rate of sampling (DP-FTRL: 1/batches) times ALL records of the data set, coins included: a
        public number, which the coins do not move.

        Args:
            dataset: The records.
            network: `network(dataset)`, where it is known.

        Raises:
            InputError: As `network`, or the mechanism's dimension does not fit the data.
        """
        from dpaudit.audit.inputs.networks import parameter_shapes
        from dpaudit.mechanisms.learning.spec import SPECS

        architecture = self.network(dataset) if network is None else network
        filled = self.with_dimension(sum(math.prod(shape) for shape in parameter_shapes(architecture).values()))
        return SPECS[self.algorithm](
            architecture=architecture,
            mechanism=filled.mechanism,
            defect=DEFECTS.get(self.planted_defect or "", CORRECT),
            **filled._settings(len(dataset.y)),
        )

    def _check_tokens(self, dataset: Dataset) -> None:
        """Token ids are numbers in form alone: a network of features would compute with them.

        Raises:
            InputError: The architecture does not read what the data hold.
        """
        if not self.architecture.code and dataset.tokens != (self.architecture.name in TOKEN_READERS):
            rule = "to read features, not tokens" if dataset.tokens else "to have [dataset.tokens]"
            raise InputError(f"architecture.name: Expected {shown(self.architecture.name)} {rule}.")

    def _settings(self, records: int) -> dict[str, Any]:
        """What the training on so many records has besides architecture, mechanism and fault."""
        raise NotImplementedError

    def with_dimension(self, dimension: int) -> Self:
        """The recipe with the mechanism's dimension filled in.

        Raises:
            InputError: The recipe names another dimension, or one that the mechanism cannot have.
        """
        update = {}
        for key in self.mechanism_keys:
            mechanism = getattr(self, key)
            if mechanism.dimension not in (None, dimension):
                raise InputError(
                    f"{key}.dimension: Expected {mechanism.dimension} to be the model's {dimension} parameters."
                )
            try:
                update[key] = with_dimension(mechanism, dimension)
            except (TypeError, ValueError) as error:
                raise InputError(f"{key}.dimension: {error}") from error
        return self.model_copy(update=update)

    def filled(self, dataset: Dataset, *, dimension: int, seed: int) -> Self:
        """The recipe as a bundle keeps it: with the data's hash, the mechanism's dimension and the seed.

        Raises:
            InputError: One of them contradicts what the recipe says.
        """
        self._check_sha256(dataset)
        table = self.dataset.model_copy(update={"sha256": dataset.sha256})
        return self.with_dimension(dimension).model_copy(update={"dataset": table, "seed": seed})

    def phases(self) -> tuple[Phase, ...]:
        """The releases that one record enters, from which the claim is accounted."""
        return tuple(Phase(getattr(self, key), 1, 1.0, "none") for key in self.mechanism_keys)

    def record_releases(self) -> tuple[int, ...]:
        """How many releases of each phase one record enters at most."""
        return tuple(phase.steps for phase in self.phases())

    def as_run(self) -> Self:
        """The recipe with a claim that accounts for the batches as they are drawn."""
        return self.model_copy(update={"claim": self.claim.model_copy(update={"sampling": None})})

    def claim_object(self) -> Claim:
        """The claim, with the mechanism's dimension where it is known."""
        unit = self.claim.unit or "record"
        return Claim(self.claim.epsilon, self.claim.delta, self.phases(), self.claim.adjacency, unit=unit)

    def claim_summary(self) -> dict[str, Any]:
        """The claim in the form of an entry of a claims file; a history of several phases lists them as well."""
        phases, releases = self.phases(), self.record_releases()
        sampling = self.claimed_sampling.summary(self.steps)
        summary = {
            "epsilon": self.claim.epsilon,
            "delta": self.claim.delta,
            "adjacency": self.claim.adjacency,
            "steps": sum(releases),
            "sampling": sampling,
            "mechanism": to_dict(self.mechanism),
            **({} if self.claim.unit is None else {"unit": self.claim.unit}),
        }
        if len(phases) == 1:
            return summary
        rows = [{"mechanism": to_dict(p.mechanism), "steps": p.steps, "sampling": sampling} for p in phases]
        return {**summary, "phase": rows}


class DPSGDRecipe(Recipe):
    """DP-SGD.

    Args:
        schedule: Parameters of `mechanism` that change: a number per step, or a rule of start, end, levels.
    """

    algorithm: Literal["dp-sgd"]
    steps: Count
    sampling: SamplingTable
    schedule: dict[str, DecayTable | list[Positive]] | None = None

    @model_validator(mode="before")
    @classmethod
    def _steps_of_the_sampler(cls, data: Any) -> Any:
        """Fill in the steps where they follow from the batches."""
        table = data.get("sampling") if isinstance(data, dict) and "steps" not in data else None
        if isinstance(table, dict) and isinstance(table.get("kind"), str) and table["kind"] in SAMPLERS:
            try:
                sampler = sampler_from_dict(table["kind"], {key: table[key] for key in table if key != "kind"})
            except (TypeError, ValueError) as error:
                raise ValueError(f"sampling: {error}") from error
            return {**data, "steps": sampler.steps}
        return data

    @model_validator(mode="after")
    def _batches(self) -> Self:
        for name, table in (("sampling", self.sampling), ("claim.sampling", self.claimed_sampling)):
            try:
                sampler = table.sampler(self.steps)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error
            if sampler is not None and sampler.steps != self.steps:
                raise ValueError(f"{name}: Expected steps={self.steps} to be left out, or {sampler.steps}.")
            if sampler is not None and self.schedule is not None:
                raise ValueError(
                    f"{name}.kind: Expected {shown(table.kind)} to be 'poisson' or 'none' with a schedule."
                )
        return self

    @model_validator(mode="after")
    def _network(self) -> Self:
        name = self.architecture.name
        if name == "logistic":
            users = " or ".join(repr(key) for key, kind in RECIPES.items() if issubclass(kind, MinimumRecipe))
            raise ValueError(f"architecture.name: Expected 'logistic' only with algorithm={users}.")
        if self.schedule is not None and name not in NETWORKS:
            raise ValueError(
                f"architecture.name: Expected {shown(name)} to be one of {', '.join(NETWORKS)} with a schedule."
            )
        self.step_mechanisms()
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

    def phases(self) -> tuple[Phase, ...]:
        """The releases that one record enters, from which the claim is accounted."""
        counts = occurrences(self.step_mechanisms()) or {self.mechanism: self.steps}
        return tuple(self.claimed_sampling.phase(m, count) for m, count in counts.items())

    def _settings(self, records: int) -> dict[str, Any]:
        stated = getattr(self.sampler, "records", None)
        if stated not in (None, records):
            raise InputError(f"sampling.records: Expected {stated} to be the data's {records} records.")
        return {
            "expected_batch_size": self.sampling_prob * records,
            "sampling_prob": self.sampling_prob,
            "sampler": self.sampler,
            "steps": self.steps,
            "schedule": self.step_mechanisms(),
            **self.optimizer.settings(),
        }


class DPFTRLRecipe(Recipe):
    """DP-FTRL.

    Args:
        batches: Batches of one pass.
    """

    algorithm: Literal["dp-ftrl"]
    steps: Count
    batches: Count
    architecture: NetworkTable
    sampling: NoSamplingTable = NoSamplingTable(kind="none")

    def phases(self) -> tuple[Phase, ...]:
        """The noisy nodes of a tree per pass, in each of which a record takes part once."""
        once_a_pass = Participation("fixed-order", separation=self.batches)
        return (Phase(self.mechanism, self.steps, correlation=Correlation(Tree(restart=self.batches), once_a_pass)),)

    def record_releases(self) -> tuple[int, ...]:
        """The most nodes that one record enters."""
        from dpaudit.mechanisms.learning.dp_ftrl import releases_per_record  # loads torch

        return (releases_per_record(self.steps, self.batches),)

    def _settings(self, records: int) -> dict[str, Any]:
        return {
            "expected_batch_size": records / self.batches,
            "steps": self.steps,
            "batches": self.batches,
            **self.optimizer.settings(),
        }


class MinimumRecipe(Recipe):
    """A minimum of a regularised convex objective, released once.

    Args:
        regularization: Lambda.
    """

    steps: Literal[1] = 1  # on all records: there are no gradient steps
    regularization: Positive
    architecture: LogisticTable
    sampling: NoSamplingTable = NoSamplingTable(kind="none")

    def _settings(self, records: int) -> dict[str, Any]:
        return {"expected_batch_size": float(records), "regularization": self.regularization}


class OutputPerturbationRecipe(MinimumRecipe):
    """Output perturbation of logistic regression: `mechanism` is the noise on the minimum."""

    algorithm: Literal["output-perturbation"]

    @model_validator(mode="after")
    def _sensitivity(self) -> Self:
        check_sensitivity("mechanism", self.mechanism, 1.0 / self.regularization)  # replace-one accounting doubles clip
        return self


class ApproximateMinimaRecipe(MinimumRecipe):
    """Approximate-minima perturbation: `mechanism` is the noise in the objective.

    Args:
        gradient_norm: Gamma, for the sum of the losses.
        output_mechanism: Noise on the approximate minimum.
        loss: "logistic" or "huber"; None is logistic.
    """

    algorithm: Literal["approximate-minima"]
    gradient_norm: Positive
    output_mechanism: MechanismTable
    loss: Literal["logistic", "huber"] | None = None
    mechanism_keys: ClassVar[tuple[str, ...]] = ("mechanism", "output_mechanism")

    @model_validator(mode="after")
    def _sensitivities(self) -> Self:
        check_sensitivity("mechanism", self.mechanism, 1.0)
        twice = 2.0 if self.claim.adjacency == "add-remove" else 1.0  # replace-one accounting doubles clip itself
        check_sensitivity("output_mechanism", self.output_mechanism, twice * (self.gradient_norm / self.regularization))
        return self

    def _settings(self, records: int) -> dict[str, Any]:
        settings = {"output_mechanism": self.output_mechanism, "gradient_norm": self.gradient_norm}
        return {**super()._settings(records), **settings, "loss": self.loss or "logistic"}


RECIPES: dict[str, type[Recipe]] = {
    "dp-sgd": DPSGDRecipe,
    "dp-ftrl": DPFTRLRecipe,
    "output-perturbation": OutputPerturbationRecipe,
    "approximate-minima": ApproximateMinimaRecipe,
}


def recipe_class(data: Mapping[str, Any]) -> type[Recipe]:
    """The class of the algorithm that a recipe names; `Recipe`, which refuses it, where it names none that is known."""
    algorithm = data.get("algorithm")
    return RECIPES.get(algorithm, Recipe) if isinstance(algorithm, str) else Recipe


def tokenizer(table: TokensTable, folder: Path | None) -> Encoder:
    """From sentences to token ids, as a recipe's [dataset.tokens] says.

    Raises:
        InputError: There is no tokenizer in its folder, or the recipe came without permission to open it.
    """
    if table.folder is None:
        return HashedTokens(table.length)
    if folder is None:
        raise InputError(
            f"dataset.tokens.folder: Expected {table.folder!r} to be named by a recipe that you give (--recipe)."
        )
    from dpaudit.audit.inputs.huggingface import folder_tokens  # loads torch

    return folder_tokens(folder / table.folder, table.length)


def load_recipe(path: str | Path) -> Recipe:
    """Read a recipe from a TOML file; its relative paths begin in the file's folder.

    Raises:
        InputError: Not a readable TOML file, or the first thing wrong in it by its dotted key.
    """
    content = read_regular(path, limit=LARGEST_RECIPE)
    try:
        data = read_toml(content.decode("utf-8-sig"))  # some editors begin with a mark
    except (ValueError, RecursionError) as error:
        raise InputError(f"Expected {path} to hold TOML: {re.sub(r'[^ -~]', '?', str(error)).rstrip('.')}.") from error
    if "algorithm" not in data and isinstance(data.get("claim"), list):
        raise InputError(f"Expected {path} to be a recipe, not claims: dpaudit verify {path} checks them.")
    return Recipe.from_dict(data, name=str(path), folder=Path(path).resolve().parent)
