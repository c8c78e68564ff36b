"""Every result the toolkit hands out, and its JSON. Other rooms read these; nothing here computes.

Infinity is written as the string "inf". Readers ignore unknown keys (`from_dict` drops them).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from functools import partial
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike

from dpaudit.mechanisms.base import Array, usual_errors

VERDICTS_FORMAT = "dpaudit-verdicts/1"
RESULT_FORMAT = "dpaudit-result/2"
READ_FORMATS = ("dpaudit-result/1", RESULT_FORMAT)

AS_ZERO_OUT = (
    "add-remove is read as zero-out: without the record others would be in its batches, which can cost more, so a "
    "ghost that contributes 0 takes its place"
)
DISAGREEMENT = "disagreement"  # among the methods of a verdict: two proven bounds contradict each other
CONTROLLED_NOISE = 0.5  # of the recipe's: what an audit should be able to find
PROMISED_POWER = 0.95  # how often it should
GUARANTEE_WORDS = {"gdp": "Gaussian", "zcdp": "zero-concentrated"}

Direction = Literal["remove", "add", "swap"]
VerdictName = Literal["certified", "refuted", "undecided"]
ControlUnit = Literal["model", "canary", "training"]
AuditVerdict = Literal["refuted", "not_refuted", "inconclusive", "gave_up"]


def to_json(value: Any) -> Any:
    """A value as JSON holds it: infinity as "inf", numpy scalars and arrays as plain numbers and lists, no NaN."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        if math.isnan(value):
            raise ValueError("Expected a result without NaN.")
        return ("inf" if value > 0 else "-inf") if math.isinf(value) else float(value)
    if isinstance(value, np.ndarray):
        return [to_json(item) for item in value.tolist()]
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    return value.to_dict() if hasattr(value, "to_dict") else value


def number(value: Any) -> Any:
    """The inverse of `to_json` for one number: "inf" becomes infinity."""
    return float(value) if isinstance(value, str) and value in ("inf", "-inf") else value


class _Record:
    """to_dict and from_dict for the frozen dataclasses below; `nested` names the fields that hold other records."""

    nested: ClassVar[Mapping[str, type["_Record"]]] = {}

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of this result."""
        return {f.name: to_json(getattr(self, f.name)) for f in fields(self) if f.init and f.repr}  # type: ignore[arg-type]

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read the JSON object again; unknown keys are ignored."""
        known = {f.name: f.type for f in fields(cls) if f.init and f.repr}  # type: ignore[arg-type]
        texts = {name for name, kind in known.items() if kind in (str, str | None)}  # of which "inf" is a word
        return cls(**{k: v if k in texts else cls._read(k, v) for k, v in data.items() if k in known})

    @classmethod
    def _read(cls, key: str, value: Any) -> Any:
        """The value of one field."""
        if key in cls.nested and value:
            read = cls.nested[key].from_dict
            return [read(item) for item in value] if isinstance(value, list) else read(value)
        return value if isinstance(value, (list, dict)) else number(value)


@dataclass(frozen=True)
class Witness(_Record):
    """A concrete pair of neighbouring inputs, and the event that tells them apart.

    Args:
        family: Name of the shift family, such as "equal" (m equal coordinates).
        coordinates: How many coordinates the shift moves.
        norm: The l_p norm of the shift, in the mechanism's clip_norm; at most clip.
        shift: The distinct values with their counts, [[value, count], ...]; every other coordinate is 0.
        direction: "remove" (P is with the record), "add" or "swap" (replace-one).
        event: The event in words, such as "loss > 1.23".
    """

    family: str
    coordinates: int
    norm: float
    shift: list[list[float]]
    direction: Direction
    event: str


@dataclass(frozen=True)
class OperatingPoints:
    """What an upper bound on delta(epsilon) leaves to an attack.

    Args:
        gdp_mu: The least mu with delta <= max(delta_mu, 1e-12) at every epsilon.
        tpr_at_fpr: The largest true-positive rate by false-positive rate.
        gdp_regret: How far the trade-off of mu lies below the one that is proved, at most, in both error rates; None
            where an older result does not tell.
    """

    gdp_mu: float
    tpr_at_fpr: dict[str, float]
    gdp_regret: float | None = None


@dataclass(frozen=True)
class Verdict(_Record):
    """What is certain about a claim.

    `epsilon_lower, epsilon_upper` bracket the true epsilon at the claimed delta, `delta_lower, delta_upper` the
    true delta at the claimed epsilon. `confidence` is 1.0 for exact methods. `guarantee` holds what is promised where
    that is no (epsilon, delta), with the bracket around its number: {"kind", ..., "parameter", "lower", "upper"}.
    """

    nested: ClassVar[Mapping[str, type[_Record]]] = {"witness": Witness}
    id: str
    verdict: VerdictName
    reason: str
    epsilon_claimed: float
    delta_claimed: float
    epsilon_lower: float
    epsilon_upper: float
    delta_lower: float
    delta_upper: float
    confidence: float
    sensitivity_ratio: float | None
    witness: Witness | None
    published_epsilon: float | None
    methods: list[str]
    assumptions: list[str]
    seconds: float
    guarantee: dict[str, Any] | None = None
    delta_curve: Callable[[Array], tuple[Array, Array]] | None = field(default=None, repr=False, compare=False)
    epsilon_curve: Callable[[Array], tuple[Array, Array]] | None = field(default=None, repr=False, compare=False)
    delta_upper_curve: Callable[[Array], Array] | None = field(default=None, repr=False, compare=False)
    operating: Callable[[], OperatingPoints] | None = field(default=None, repr=False, compare=False)

    @property
    def gdp_mu(self) -> float | None:
        """The least certified mu with delta <= max(delta_mu, 1e-12) at every epsilon; inf if none, None if unknown."""
        return None if self.operating is None else self.operating().gdp_mu

    @property
    def gdp_regret(self) -> float | None:
        """How far, in both error rates, mu alone lies below the trade-off that is proved; None if unknown."""
        return None if self.operating is None else self.operating().gdp_regret

    @property
    def tpr_at_fpr(self) -> dict[str, float] | None:
        """The largest true-positive rate that any attack can have, certified, by false-positive rate ("0.01")."""
        return None if self.operating is None else self.operating().tpr_at_fpr

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of this result."""
        if self.operating is None:
            return super().to_dict()
        points = {key: to_json(value) for key, value in vars(self.operating()).items() if value is not None}
        return super().to_dict() | points

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read the JSON object again; unknown keys are ignored."""
        read = super().from_dict(data)
        if read.guarantee is not None:
            read = replace(read, guarantee={key: number(value) for key, value in read.guarantee.items()})
        if "gdp_mu" not in data:
            return read
        points = OperatingPoints(number(data["gdp_mu"]), dict(data["tpr_at_fpr"]), data.get("gdp_regret"))
        return replace(read, operating=partial(_itself, points))

    def settled(self) -> Self:
        """The same without its curves, which hold megabytes; what they leave to an attack is worked out first."""
        points = None if self.operating is None else partial(_itself, self.operating())
        return replace(self, delta_curve=None, epsilon_curve=None, delta_upper_curve=None, operating=points)

    def __reduce__(self) -> tuple[Any, ...]:
        """So that a verdict comes back from another process: without its curves."""
        state = vars(self.settled())
        return partial(type(self), **state), ()

    def __copy__(self) -> Self:
        """Itself, with its curves: it is frozen."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Itself, with its curves: it is frozen."""
        return self

    @property
    def meaning(self) -> str:
        """The reason in numbers alone: without the pair of neighbours, which `witness` holds."""
        _, forces, numbers = self.reason.partition(" forces ")
        return numbers if forces and self.witness is not None else self.reason

    @property
    def promise(self) -> str:
        """What is claimed, in a few words."""
        if self.guarantee is None:
            return f"epsilon {self.epsilon_claimed:.12g} at delta {self.delta_claimed:.12g}"
        match self.guarantee:
            case {"kind": "pure", "epsilon": epsilon}:
                return f"pure epsilon {epsilon:.12g}"
            case {"kind": "rdp", "epsilon": epsilon, "order": order}:
                return f"Renyi epsilon {epsilon:.12g} at order {order:g}"
            case {"kind": "curve", "points": points}:
                return f"{len(points)} points (epsilon, delta)"
            case {"kind": kind, "parameter": name}:
                return f"{GUARANTEE_WORDS.get(kind, kind)} {name} {self.guarantee[name]:.12g}"
        return "a guarantee of unknown kind"

    @property
    def bracket(self) -> str:
        """What is proven about it, in a few words."""
        low, high, name, claimed = self.epsilon_lower, self.epsilon_upper, "epsilon", self.epsilon_claimed
        if self.guarantee is not None:
            low, high, name = self.guarantee["lower"], self.guarantee["upper"], self.guarantee["parameter"]
            claimed = self.guarantee.get(name, math.nan)
        if name == "points":
            return f"{low:g} to {high:g} of them broken"
        if low == math.inf:
            return f"no {name} is enough"
        least = told_apart(low, claimed, 5)[0] if low > claimed else down(low)
        most = f"{claimed:.12g}" if high <= claimed < float(up(high)) else up(high)  # what is shown proves it too
        return f"true {name} {least} to {most}"

    @property
    def read_as_zero_out(self) -> bool:
        """Whether it speaks of a ghost in the record's place, where the claim speaks of a record that is taken away."""
        return AS_ZERO_OUT in self.assumptions

    def __str__(self) -> str:
        """The verdict and its bracket, in a line; `reason` has the rest."""
        name = f"{self.id}: " if self.id else ""
        return f"{name}{self.verdict}: {self.promise}, {self.bracket}"

    def delta(self, epsilon: ArrayLike) -> tuple[Array, Array]:
        """(lower, upper) bounds on the true delta at each epsilon; arrays of the input's shape.

        Raises:
            ValueError: The verdict was read back from JSON, which does not hold the curves.
        """
        return _evaluate(self.delta_curve, epsilon)

    def delta_at_most(self, epsilon: ArrayLike) -> Array:
        """The upper bound of `delta` alone, to the bit, without the time that the lower one takes."""
        if self.delta_upper_curve is None:
            return self.delta(epsilon)[1]
        values = np.asarray(epsilon, dtype=np.float64)
        with usual_errors():
            return self.delta_upper_curve(values.ravel()).reshape(values.shape)

    def epsilon(self, delta: ArrayLike) -> tuple[Array, Array]:
        """(lower, upper) bounds on the true epsilon at each delta; arrays of the input's shape."""
        return _evaluate(self.epsilon_curve, delta)


def down(bound: float, digits: int = 5) -> str:
    """A lower bound in so many digits, rounded down; the nearest number where that agrees with it to nine digits.

    >>> down(0.23456), down(0.23456, 4), up(0.23454, 4)
    ('0.23456', '0.2345', '0.2346')
    """
    return _rounded(bound, digits, ROUND_FLOOR)


def up(bound: float, digits: int = 5) -> str:
    """An upper bound, rounded up; as `down`."""
    return _rounded(bound, digits, ROUND_CEILING)


def told_apart(bound: float, stated: float, digits: int) -> tuple[str, str]:
    """A lower bound and the stated number that it exceeds, in at least so many digits, and as many as show it.

    >>> told_apart(1.000004, 1.0, 4)
    ('1.000004', '1')
    """
    while digits < 17 and float(down(bound, digits)) <= float(f"{stated:.{digits}g}"):
        digits += 1
    return down(bound, digits), f"{stated:.{digits}g}"


def _rounded(bound: float, digits: int, rounding: str) -> str:
    nearest = f"{bound:.{digits}g}"
    if not math.isfinite(bound) or math.isclose(bound, float(nearest), rel_tol=1e-9):
        return nearest
    return f"{float(Context(prec=digits, rounding=rounding).create_decimal(Decimal(float(bound)))):.{digits}g}"


def _itself(points: OperatingPoints) -> OperatingPoints:
    return points


def _evaluate(curve: Callable[[Array], tuple[Array, Array]] | None, points: ArrayLike) -> tuple[Array, Array]:
    if curve is None:
        raise ValueError(
            "Expected a verdict from check(): one read back from JSON, or from another process, holds no curves."
        )
    values = np.asarray(points, dtype=np.float64)
    with usual_errors():
        lower, upper = curve(values.ravel())
    return lower.reshape(values.shape), upper.reshape(values.shape)


@dataclass(frozen=True)
class LowerBound(_Record):
    """A lower confidence bound on epsilon, with everything that went into it.

    Args:
        epsilon_lower: The bound, at least 0.
        delta: The delta it holds at.
        confidence: The level it holds with.
        method: Short name of the method, such as "clopper-pearson".
        inputs: The observed counts or sizes.
        threshold: The score threshold used, where there is one.
        assumes: What it assumes beyond independent trials, "" if nothing.
        source: Author (year), theorem.
    """

    epsilon_lower: float
    delta: float
    confidence: float
    method: str
    inputs: dict[str, Any]
    source: str
    threshold: float | None = None
    assumes: str = ""


@dataclass(frozen=True)
class CurveTest(_Record):
    """A test of two arms against the mechanism's whole certified curve, and the event that shows most.

    Args:
        violated: The scores contradict the curve at the stated confidence.
        p_value: Upper bound on the probability of such evidence if the curve holds, sharp enough to decide; that of a
            joint test is sampled, and need not fall with the evidence. None in results that tell none.
        confidence: Level of the test.
        threshold: The event is {score > threshold}.
        fpr: How often it happened without the record, in [0, 1].
        tpr: How often with it.
        tpr_allowed: The largest TPR that the curve allows at this FPR.
        inputs: The observed counts.
    """

    violated: bool
    p_value: float | None
    confidence: float
    threshold: float
    fpr: float
    tpr: float
    tpr_allowed: float
    inputs: dict[str, Any]

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read the JSON object again, also that of format 1, which held one point of the curve and bounds of rates."""
        if "tpr_allowed" in data:
            return super().from_dict(data)
        inputs = dict(data["inputs"])
        try:
            epsilon, delta = float(data["epsilon"]), float(data["delta_upper"])
            fpr = inputs["fp"] / (inputs["fp"] + inputs["tn"])
            tpr = inputs["tp"] / (inputs["tp"] + inputs["fn"])
        except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
            raise ValueError(
                f"Expected a point of a curve with epsilon, delta_upper and counts of both arms: {error}."
            ) from error
        allowed = (math.exp(epsilon) * fpr + delta, 1.0 - math.exp(-epsilon) * (1.0 - delta - fpr))
        return cls(
            violated=data["violated"],
            p_value=None,
            confidence=data["confidence"],
            threshold=number(data["threshold"]),
            fpr=fpr,
            tpr=tpr,
            tpr_allowed=min(1.0, *allowed),
            inputs=inputs,
        )


@dataclass(frozen=True)
class AttackResult(_Record):
    """What one attack measured.

    Args:
        name: "clipbkd", "membership", ...
        epsilon_lower: Lower bound at the claimed delta, None where the attack proves none.
        bound: The full LowerBound behind it.
        family_bound: What follows besides if the noise is of the claimed family, of whatever scale: its `assumes`.
        curve_violation: The CurveTest when it found a violation, else None.
        curve_test: The CurveTest whether or not violated; None if not tested.
        arms: The pair of neighbouring inputs, in words and numbers.
        confidence_spent: Error probability spent by this attack, out of 1 - confidence.
        auc: Area under the ROC curve.
        auc_interval: [lower, upper] for the AUC of the population, as if scores were independent; None if not known.
        tpr_at_fpr: {"0.01": TPR, "0.001": TPR}.
        trials: Models (or releases) per arm, or records on each side for a one-model attack.
        best_possible_epsilon: The largest epsilon_lower any outcome of this many trials could have proven.
        roc: {"fpr": [...], "tpr": [...], "tpr_lower": [...], "tpr_upper": [...], "confidence": c} for the plot.
        details: Anything else worth keeping, by name.
    """

    nested: ClassVar[Mapping[str, type[_Record]]] = {
        "bound": LowerBound,
        "family_bound": LowerBound,
        "curve_violation": CurveTest,
        "curve_test": CurveTest,
    }
    name: str
    epsilon_lower: float | None
    curve_violation: CurveTest | None
    arms: dict[str, Any]
    confidence_spent: float
    auc: float
    tpr_at_fpr: dict[str, float]
    trials: int
    best_possible_epsilon: float | None
    bound: LowerBound | None = None
    curve_test: CurveTest | None = None
    family_bound: LowerBound | None = None
    roc: dict[str, Any] | None = None
    details: dict[str, Any] = field(default_factory=dict)
    auc_interval: list[float] | None = None

    def refuting(self, claimed: float) -> list[str]:
        """What of it refutes a claim, by the names of `AuditResult.refuted_by`; but for sealed coins.

        A violated curve speaks of the mechanism; of the promise itself, where the attack's bound assumes nothing.

        Args:
            claimed: Epsilon.
        """
        violated = self.curve_violation is not None
        assumed = violated and self.bound is not None and self.bound.assumes
        above = self.epsilon_lower is not None and self.epsilon_lower > claimed
        found = [f"{self.name}:epsilon_lower"] if above and not assumed else []
        return [*found, f"{self.name}:curve_violation"] if violated else found


@dataclass(frozen=True)
class Control(_Record):
    """The positive control of an audit: what its attack found where noise was known to be missing.

    Args:
        attack: Its name.
        training: What was trained with less noise, in words.
        noise_factor: Of the noise that the recipe says.
        models: Units per arm that the power is for: as many as the audit's own, or fewer that are enough.
        trials: Units per arm that were scored after training with less noise.
        resamples: Bootstrap samples drawn of their scores.
        power: Share of these in which the audit's own tests refute.
        found: Whether that is at least `PROMISED_POWER`.
        no_noise_trials: Units per arm scored after training without noise.
        no_noise_found: The same of those.
        seed: Of the bootstrap samples.
        seconds: It took.
        unit: What the arms hold: models; canaries, put into one training or left out of it; or trainings.
        unlike: Why its training tells nothing of the one under audit; empty where it does.
        separation: Distance of the two arms' mean scores after training with less noise, in standard deviations of one;
            None where the arms were judged otherwise, or do not vary.
    """

    attack: str
    training: str
    noise_factor: float
    models: int
    trials: int
    resamples: int
    power: float
    found: bool
    no_noise_trials: int
    no_noise_found: bool
    seed: int
    seconds: float
    unit: ControlUnit = "model"
    unlike: str = ""
    separation: float | None = None

    @property
    def gives_power(self) -> bool:
        """Whether silence means something: half the noise, or more of it, was found, by a training like the audit's."""
        return self.found and self.noise_factor >= CONTROLLED_NOISE and not self.unlike


@dataclass(frozen=True)
class AuditResult(_Record):
    """What `dpaudit run` found.

    Args:
        model: {"path", "sha256", "architecture", "parameters"}.
        claim: The claim as stated: epsilon, delta, adjacency, mechanism, sampling, steps.
        verdict: "refuted", "not_refuted", "gave_up", or "inconclusive": nothing refuted, and the positive control was
            missed or not carried out, or the training was seen to add less noise than the claim takes, or some twice.
        refuted_by: Which findings refute it: "claim-check", "as-run", "<attack>:epsilon_lower",
            "<attack>:curve_violation".
        epsilon_lower: The combined bound over all attacks, at `confidence`.
        confidence: Level of everything statistical in this result taken together.
        claim_check: The verdict of `check` on the claim.
        certified_curve: {"epsilon": [...], "delta_lower": [...], "delta_upper": [...]}.
        tradeoff: {"fpr": [...], "tpr_max": [...]}: the largest TPR the certified curve allows at each FPR.
        budget: How the error probability was split, by name.
        reproduce: {"command", "recipe", "data_sha256", ...}.
        notes: Warnings and remarks a reader must see, in sentences.
        control: The positive control, of the attack that has the most power.
        check_as_run: The verdict of `check` on the same promise about the batches that the training draws; None where
            the claim accounts for no others.
    """

    nested: ClassVar[Mapping[str, type[_Record]]] = {
        "claim_check": Verdict,
        "check_as_run": Verdict,
        "attacks": AttackResult,
        "control": Control,
    }
    model: dict[str, Any]
    claim: dict[str, Any]
    verdict: AuditVerdict
    refuted_by: list[str]
    epsilon_lower: float | None
    confidence: float
    epsilon_claimed: float
    claim_check: Verdict | None
    attacks: list[AttackResult]
    seed: int
    versions: dict[str, str]
    seconds: float
    certified_curve: dict[str, Any] | None = None
    tradeoff: dict[str, Any] | None = None
    budget: dict[str, float] = field(default_factory=dict)
    reproduce: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    control: Control | None = None
    check_as_run: Verdict | None = None

    @property
    def calculation(self) -> Verdict | None:
        """What calculation says of the training: of the batches that it draws, where the claim accounts for others."""
        return self.claim_check if self.check_as_run is None else self.check_as_run

    def __str__(self) -> str:
        """The verdict, what is proven and by how many models, in a line."""
        proven = "no epsilon" if self.epsilon_lower is None else f"epsilon >= {down(self.epsilon_lower, 4)}"
        attacks = ", ".join(f"{attack.name} ({attack.trials:,} trials)" for attack in self.attacks) or "no attack"
        return (
            f"{self.model.get('path', 'model')}: {self.verdict}: {proven} at confidence {self.confidence:g}, claimed "
            f"{self.epsilon_claimed:.12g}; {attacks}"
        )

    def __repr__(self) -> str:
        """The line of `str`: the fields hold curves and scores by the hundred."""
        return f"<AuditResult {self}>"

    def to_dict(self) -> dict[str, Any]:
        """The JSON object, `format` first."""
        return {"format": RESULT_FORMAT, **super().to_dict()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read a result again.

        Raises:
            ValueError: The format is neither the one that this version writes nor an older one.
        """
        if data.get("format") not in READ_FORMATS:
            raise ValueError(f"Expected format={data.get('format')!r} to be {' or '.join(map(repr, READ_FORMATS))}.")
        return super().from_dict(data)
