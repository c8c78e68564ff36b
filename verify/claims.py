"""A claim: which mechanism, how often, and the (epsilon, delta) it is said to meet."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Literal, get_args

from dpaudit.mechanisms.base import (
    Domain,
    IIDCoordinates,
    LaplaceCoordinates,
    Mechanism,
    NormalCoordinates,
    in_python_numbers,
    keep_as_python_numbers,
    with_dimension,
)
from dpaudit.mechanisms.gamma_plrv import GammaPLRV
from dpaudit.mechanisms.gamma_plrv_iid import GammaPLRVIID
from dpaudit.mechanisms.quoting import shown
from dpaudit.verify.correlated import Correlation, Matrix, Side
from dpaudit.verify.guarantees import DELTA, EPSILON, ApproximateDP, Guarantee, PrivacyCurve, PureDP, check_guarantee
from dpaudit.verify.samplers import SAMPLERS, BufferedShuffle, GhostPoisson, PassGame, Sampler, TruncatedPoisson

Adjacency = Literal["add-remove", "zero-out", "replace-one"]
Unit = Literal["record", "user"]
PLAIN_KINDS = ("poisson", "none")  # of sampling, which need no more than a rate

SAMPLING_PROB = Domain(1e-300, 1.0, (1e-3, 1.0), "probability", closed_low=True, closed_high=True)
STEPS = Domain(1, 10**12, (1, 20_000), "releases", closed_low=True, integer=True)
MOST_COORDINATES = 10_000_000  # of a phase that are composed one by one: of more, the grid's rounding is felt
FEW_COORDINATES = 16  # of which each is looked at as if it were moved by the whole clip


@dataclass(frozen=True)
class Phase:
    """`steps` releases of one mechanism, each on an independent sample of the data.

    Args:
        mechanism: The noise, with its clipping.
        steps: Releases, at least 1.
        sampling_prob: Rate in [1e-300, 1]; 1.0 together with kind "none".
        sampling_kind: "poisson" and "none" need no more than the rate; the others have theorems as a `sampler`.
        sampler: A sampler from `verify.samplers`; steps and kind then follow from it.
        correlation: How the noise of the steps hangs together, from `verify.correlated`; its participation is the kind.
        part_of: Of what `independent` gives, the phase in whose releases one contribution is seen again and again.

    Raises:
        TypeError: The mechanism is none, such as the name of one.
        ValueError: A field is outside its domain, a rate below 1 is given together with kind "none", steps are
            neither 1 nor the sampler's, or correlated noise comes with a rate or a sampler.
    """

    mechanism: Mechanism
    steps: int = 1
    sampling_prob: float = 1.0
    sampling_kind: str = "poisson"
    sampler: Sampler | None = None
    correlation: Correlation | None = None
    part_of: "Phase | None" = None

    def __post_init__(self) -> None:
        keep_as_python_numbers(self)
        if not hasattr(type(self.mechanism), "name"):  # the structure can be a field, and some compute theirs
            raise TypeError(f"Expected mechanism={self.mechanism!r} to be a mechanism, such as Gaussian(1.0).")
        object.__setattr__(self, "mechanism", in_python_numbers(self.mechanism))
        if self.correlation is not None:
            self._check_correlation(self.correlation)
        if self.sampler is not None:
            if self.steps not in (1, self.sampler.steps):
                raise ValueError(f"Expected steps={self.steps} to be left out, or the sampler's {self.sampler.steps}.")
            object.__setattr__(self, "steps", self.sampler.steps)
            object.__setattr__(self, "sampling_kind", self.sampler.kind)
        STEPS.validate("steps", self.steps)
        SAMPLING_PROB.validate("sampling_prob", self.sampling_prob)
        kinds = (*PLAIN_KINDS, *SAMPLERS)
        if self.sampling_kind not in kinds and self.correlation is None:
            raise ValueError(f"Expected sampling_kind={self.sampling_kind!r} among {', '.join(map(repr, kinds))}.")
        if self.sampling_kind == "none" and self.sampling_prob != 1:
            raise ValueError(f"Expected sampling_prob={self.sampling_prob!r} to be 1 with sampling_kind='none'.")

    def _check_correlation(self, correlation: Correlation) -> None:
        if self.sampler is not None or self.sampling_prob != 1:
            raise ValueError("Expected correlated noise to have its participation alone, and no sampling besides.")
        if isinstance(correlation.strategy, Matrix) and self.steps == 1:
            object.__setattr__(self, "steps", correlation.strategy.steps)
        STEPS.validate("steps", self.steps)
        correlation.check_steps(self.steps)
        object.__setattr__(self, "sampling_kind", correlation.participation.kind)

    def independent(self, side: Side, *, delta: float = 0.0) -> "list[Phase] | None":
        """Releases of independent noise that cost at least ("upper") or at most ("lower") as much; None without any.

        Args:
            side: Which.
            delta: Where that is to be tight; it holds everywhere.
        """
        if self.correlation is None:
            return [self]
        parts = self.correlation.independent(self.mechanism, self.steps, side, delta=delta)
        if parts is None:
            return None
        whole = None if len(parts) == 1 or self.correlation.participation.sampled else self  # a round is seen once
        return [
            Phase(noise, steps, prob, "none" if prob == 1 else "poisson", part_of=whole) for noise, steps, prob in parts
        ]

    @property
    def unsampled(self) -> "Phase":
        """The phase with the record in every release."""
        return replace(self, sampling_prob=1.0, sampling_kind="none")

    def games(self, *, replace_one: bool) -> Sequence[PassGame]:
        """Pairs of laws of a pass that neighbours can have under the sampler; () without one."""
        return () if self.sampler is None else self.sampler.games(replace_one=replace_one)


@dataclass(frozen=True)
class Claim:
    """(epsilon, delta)-differential privacy of a history of releases.

    Args:
        epsilon: Finite, at least 0.
        delta: In [0, 1).
        phases: The history, in order; the adversary sees every release.
        adjacency: "add-remove" (shifts of norm at most clip), "zero-out" (the same; one record is replaced by a ghost
            that contributes 0, so that batches stay as they are) or "replace-one" (at most 2 clip).
        id: Name in a file of claims.
        accountant: Published formula to recompute beside it, such as "plrvo-theorem-4.9".
        source: Free text.
        unit: Whose privacy it is: what the words say "record" of is one "record", or one "user" with all records.
        guarantee: What is promised, where that is not (epsilon, delta)-differential privacy; epsilon and delta are then
            a point that it implies, where the brackets are told (`implied.claim_stating` fills them); of a pure one,
            that one.
    """

    epsilon: float
    delta: float
    phases: Sequence[Phase]
    adjacency: Adjacency = "add-remove"
    id: str = ""
    accountant: str | None = None
    source: str = ""
    unit: Unit = "record"
    guarantee: Guarantee | None = None

    def __post_init__(self) -> None:
        keep_as_python_numbers(self)
        if self.guarantee is not None:
            check_guarantee(self.guarantee)
        if isinstance(self.guarantee, ApproximateDP):
            object.__setattr__(self, "epsilon", self.guarantee.epsilon)
            object.__setattr__(self, "delta", self.guarantee.delta)
            object.__setattr__(self, "guarantee", None)
        if isinstance(self.guarantee, PureDP):  # what it implies at delta 0 is all that it says
            object.__setattr__(self, "epsilon", self.guarantee.epsilon)
            object.__setattr__(self, "delta", 0.0)
        EPSILON.validate("epsilon", self.epsilon)
        DELTA.validate("delta", self.delta)
        for name in ("epsilon", "delta"):
            object.__setattr__(self, name, getattr(self, name) + 0)  # of a zero with a sign, the one without
        if self.adjacency not in get_args(Adjacency):
            raise ValueError(f"Expected adjacency={self.adjacency!r} to be 'add-remove', 'zero-out' or 'replace-one'.")
        if self.unit not in get_args(Unit):
            raise ValueError(f"Expected unit={self.unit!r} to be 'record' or 'user'.")
        if not isinstance(self.phases, Iterable):
            raise TypeError(f"Expected phases={shown(self.phases)} to be a sequence of phases, such as [Phase(...)].")
        object.__setattr__(self, "phases", tuple(self.phases))
        if not self.phases:
            raise ValueError("Expected at least one phase.")
        for phase in self.phases:
            if not isinstance(phase, Phase):
                raise TypeError(f"Expected phases of a claim to be of type Phase, not {type(phase).__name__}.")

    @classmethod
    def single(
        cls,
        mechanism: Mechanism,
        *,
        epsilon: float,
        delta: float,
        steps: int = 1,
        sampling_prob: float = 1.0,
        adjacency: Adjacency = "add-remove",
        id: str = "",
        accountant: str | None = None,
        source: str = "",
    ) -> "Claim":
        """The claim of one phase, the common case."""
        return cls(epsilon, delta, (Phase(mechanism, steps, sampling_prob),), adjacency, id, accountant, source)

    @property
    def least_delta(self) -> float:
        """The smallest delta above 0 that is asked about, where tails are looked at farthest; 0 if there is none."""
        curve = self.guarantee.points if isinstance(self.guarantee, PrivacyCurve) else ()
        return min((delta for delta in (self.delta, *(delta for _, delta in curve)) if delta > 0), default=0.0)

    def worded(self, text: str) -> str:
        """A text of the verdict with the claim's unit in place of "record"."""
        return text if self.unit == "record" else re.sub(r"\brecord(s?)\b", rf"{self.unit}\1", text)

    def canonical(self, side: Side | None = None) -> "Claim":
        """The same claim in fewer words: every history that it speaks of is as private in the one as in the other.

        Args:
            side: Of the bound that is wanted: correlated noise then reads as independent noise that costs at least
                ("upper") or at most ("lower") as much, where a theorem has such; without a side it stays, uncovered.
                From above, independent coordinates that are clipped one by one read as releases of one coordinate.

        A ghost that contributes nothing is as good as no record, so zero-out reads as add-remove, and with it an
        add-remove claim of batches of which a place cannot be left is read as zero-out; in Poisson batches that are cut
        a ghost is one of its own (`GhostPoisson`). A record of fixed batches, or of batches of everybody, is met in
        known releases, and costs what they would cost without sampling. One coordinate's scale is its own.
        """
        adjacency, phases = self.adjacency, list(self.phases)
        if adjacency == "zero-out":
            adjacency, phases = "add-remove", [_with_ghost(phase) for phase in phases]
        phases = [
            _in_known_releases(replace(phase, mechanism=_of_independent_scales(phase.mechanism))) for phase in phases
        ]
        if side is not None and any(phase.correlation is not None for phase in phases):
            phases = [part for phase in phases for part in self._independent(phase, side)]
        if side == "upper":
            phases = [coordinate_by_coordinate(phase) for phase in phases]
        return replace(self, adjacency=adjacency, phases=phases)

    def _independent(self, phase: Phase, side: Side) -> list[Phase]:
        """The phase's independent releases; itself where a theorem is missing."""
        parts = phase.independent(side, delta=self.delta)
        return [phase] if parts is None else parts


def first_seen(phases: Sequence[Phase]) -> list[int]:
    """For each phase the first one whose releases show the same contribution, mostly itself; see `Phase.part_of`."""
    wholes = [phase.part_of for phase in phases]
    return [i if whole is None else wholes.index(whole) for i, whole in enumerate(wholes)]


def _with_ghost(phase: Phase) -> Phase:
    """The phase as it is under zero-out."""
    sampler = phase.sampler
    if not isinstance(sampler, TruncatedPoisson):
        return phase
    return replace(
        phase, sampler=GhostPoisson(**{field.name: getattr(sampler, field.name) for field in fields(sampler)})
    )


def lets_another_in(claim: Claim, phase: Phase) -> bool:
    """Whether the record's removal lets another one into its batches: Poisson ones that are cut, under add-remove."""
    cut = isinstance(phase.sampler, TruncatedPoisson) and not isinstance(phase.sampler, GhostPoisson)
    return cut and claim.adjacency == "add-remove"


def _in_known_releases(phase: Phase) -> Phase:
    """Releases that the record is known to be in, without sampling, batches that nothing cuts; else as it is."""
    sampler = phase.sampler
    if sampler is None or (isinstance(sampler, TruncatedPoisson) and sampler.max_batch < sampler.records):
        return phase
    if isinstance(sampler, BufferedShuffle):
        return _of_a_buffer(phase, sampler)
    if sampler.rate == 1:  # everybody is in every release
        return Phase(phase.mechanism, sampler.steps, 1.0, "none")
    if isinstance(sampler, TruncatedPoisson):  # nothing is ever cut
        return Phase(phase.mechanism, sampler.steps, sampler.prob)
    if phase.sampling_kind == "deterministic":
        return Phase(phase.mechanism, sampler.meetings, 1.0, "none")
    return phase


def _of_a_buffer(phase: Phase, sampler: BufferedShuffle) -> Phase:
    """A buffer of one record keeps the order of the file; one of all records shuffles a pass as a whole."""
    if sampler.buffer == 1:
        passes = sampler.begun if sampler.passes is None else sampler.passes.epochs
        return Phase(phase.mechanism, passes, 1.0, "none")
    if sampler.passes is None or sampler.buffer < sampler.records:
        return phase
    return _in_known_releases(replace(phase, sampler=sampler.passes))


def coordinate_by_coordinate(phase: Phase, together: int = 1) -> Phase:
    """Everybody's releases of coordinates that are independent and clipped each, as releases of one coordinate.

    All coordinates moved by the clip are the worst shift, and their pair dominates (boundary lemma,
    `upper.shift_norms`): a product of one coordinate's pair. Normal noise has a curve of its own.

    Args:
        phase: The phase.
        together: Of at most so many coordinates also those that are clipped together: none of them moves further, so
            that the releases cost at least as much. Not Laplace noise, whose l1 pair costs less.
    """
    noise, structure = phase.mechanism, phase.mechanism.structure
    if not isinstance(structure, IIDCoordinates) or isinstance(structure, NormalCoordinates):
        return phase
    known = phase.sampler is None and phase.correlation is None and phase.sampling_kind in PLAIN_KINDS
    if not known or phase.sampling_prob < 1 or noise.dimension is None:
        return phase
    if noise.clip_norm < math.inf and (noise.dimension > together or isinstance(structure, LaplaceCoordinates)):
        return phase
    try:
        one, steps = with_dimension(noise, 1), phase.steps * noise.dimension
    except ValueError:  # noise that is of more coordinates only
        return phase
    if steps > MOST_COORDINATES or not _same_law(structure, one.structure):  # some scale noise by the dimension
        return phase
    return replace(phase, mechanism=one, steps=steps)


def _same_law(one: object, other: object) -> bool:
    """Whether two laws of one coordinate are seen to be the same functions of the same parameters."""
    if isinstance(one, IIDCoordinates) and type(one) is type(other):
        return all(_same_law(getattr(one, part.name), getattr(other, part.name)) for part in fields(one))
    try:
        if isinstance(one, partial) and isinstance(other, partial):
            return (one.func, one.args, one.keywords) == (other.func, other.args, other.keywords)
        return bool(one == other)
    except ValueError:  # parameters that are arrays have no single truth
        return False


def _of_independent_scales(mechanism: Mechanism) -> Mechanism:
    """Noise of one scale for all coordinates, of which there is one, as noise of a scale for each: the same law."""
    if type(mechanism) is not GammaPLRV or mechanism.dimension != 1:  # a subclass may have a law of its own
        return mechanism
    return GammaPLRVIID(mechanism.k, mechanism.theta, mechanism.clip, mechanism.clip_norm, 1)
