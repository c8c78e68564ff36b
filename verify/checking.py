"""The verdict on a claim: the best valid upper bound, the best certified lower bound, and what they decide."""

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpaudit.mechanisms.base import CONFIDENCE, Array, Function, generator, usual_errors
from dpaudit.verify.causes import first_cause
from dpaudit.verify.claims import Claim
from dpaudit.verify.curves import FARTHEST_EPSILON, Curve
from dpaudit.verify.float_range import beyond_floats
from dpaudit.verify.guarantees import PrivacyCurve, ZeroConcentratedDP
from dpaudit.verify.lower import certified_lower
from dpaudit.verify.lower.histories import pure_reason
from dpaudit.verify.results import (
    AS_ZERO_OUT,
    DISAGREEMENT,
    OperatingPoints,
    Verdict,
    VerdictName,
    down,
    told_apart,
    up,
)
from dpaudit.verify.samplers import TruncatedPoisson
from dpaudit.verify.upper import never_sampled, obstacle, upper_curves
from dpaudit.verify.upper.shift_norms import sampling_is_known

if TYPE_CHECKING:
    from dpaudit.verify.guarantee_check import Finding

LARGEST_RHO, MOST_POINTS = 1e6, 32
BY_RHO = "zero-concentrated differential privacy of the releases, who is in them revealed: Bun and Steinke (2016)"
METHODS = ("exact", "monte-carlo", "both")
FAR_ABOVE = 2.0  # times a delta, above which a curve is not asked where it falls to it
SUM = "noise is added to the sum of clipped contributions; the divisor that turns the sum into a mean is public"
ADJACENCY = {
    "add-remove": "neighbours differ by the presence of one record",
    "zero-out": "neighbours differ by one record that a ghost, which contributes 0, takes the place of",
    "replace-one": "neighbours differ in the value of one record, and both values are clipped",
}
WITH_THE_RECORD = "records counts the larger of the two data sets, that with the record"
POISSON = "each release samples every record independently, and which records were in is secret"
WHOLE_USER = "the unit is a user: what all data of one contribute to a release is clipped together"
UNSAMPLED = "nothing was sampled"
ONE_RELEASE = "the history is a single release (steps = 1)"
ADAPTIVITY = "the adversary sees every release, and later ones may depend on earlier ones"


@usual_errors()
def check(
    claim: Claim, *, method: str = "exact", confidence: float = 0.95, rng: np.random.Generator | int | None = None
) -> Verdict:
    """Certify or refute a claimed (epsilon, delta), or say what would decide it.

    `certified`: a valid upper bound has delta_upper(epsilon) <= delta. `refuted`: a pair of neighbouring inputs has
    delta_lower(epsilon) > delta or epsilon_lower(delta) > epsilon, with all float errors. Otherwise `undecided`.

    Args:
        claim: The claim.
        method: "exact": theorems and certified numerics, no sampling. "monte-carlo": sampling alone, independent of
            the numerics; it can refute, and certifies nothing. "both": the exact bracket, and the sampled lower bound
            where that is stronger, and below what is proven.
        confidence: Level of a sampling method, in (0, 1); exact verdicts hold with confidence 1.
        rng: Generator or seed, required by the sampling methods; exact ones draw nothing.

    Raises:
        TypeError: Not a claim, or a sampling method without a generator or seed; says what to give.
        ValueError: The method or the confidence is not allowed; the message names the value and the rule.

    >>> from dpaudit.mechanisms import Laplace
    >>> check(Claim.single(Laplace(scale=1.0, clip=1.0, clip_norm=1.0), epsilon=1.0, delta=0.0)).verdict
    'certified'
    """
    if not isinstance(claim, Claim):
        raise TypeError(_no_claim(claim))
    if method not in METHODS:
        raise ValueError(f"Expected method={method!r} to be one of {', '.join(map(repr, METHODS))}.")
    CONFIDENCE.validate("confidence", confidence)
    draws = None if method == "exact" else generator("rng", rng)
    started = time.perf_counter()
    beyond = beyond_floats(claim.canonical())
    if beyond:
        return _out_of_reach(claim, beyond, started)
    uppers = [] if method == "monte-carlo" else upper_curves(claim)
    lower = certified_lower(claim) if draws is None else _lower_by_sampling(claim, method, confidence, draws)
    bracket, finding = _held(claim, uppers, lower, method)
    if bracket.sampled and (bracket.crossed or (finding is not None and finding.crossed)):
        # by chance: a sampled bound above a proven one says nothing
        lower = certified_lower(claim)
        bracket, finding = _held(claim, uppers, lower, method)
    published = _published(claim)
    return bracket.verdict(
        _reason(bracket, lower) if finding is None else finding.reason,
        (SUM,),
        confidence=confidence if bracket.sampled else 1.0,
        published=published,
        finding=finding,
        started=started,
    )


def _held(claim: Claim, uppers: Sequence[Curve], lower: Curve, method: str) -> tuple["Bracket", "Finding | None"]:
    """The bracket between bounds, and what it says of the claim's guarantee, None where it states epsilon and delta."""
    bracket = Bracket(claim, uppers, lower)
    is_open = bracket.name == "undecided" and not bracket.crossed
    if is_open and method != "monte-carlo" and (curve := curve_by_rho(claim)) is not None:
        at = np.array([claim.epsilon])
        if float(curve.delta(at)[0]) < bracket.delta_upper:
            bracket = Bracket(claim, [*uppers, curve], lower)
    if claim.guarantee is None or bracket.disagreement:
        return bracket, None
    from dpaudit.verify.guarantee_check import decide_guarantee, shown_alone  # most claims state epsilon and delta

    if method == "monte-carlo" and not isinstance(claim.guarantee, PrivacyCurve):
        return bracket, shown_alone(claim, bracket.delta_at_least)  # nothing but what was sampled
    theorem = "no theorem" if bracket.best is None else bracket.best.theorem
    sides: tuple[Function, Function] = bracket.delta_at_least, bracket.delta_at_most
    if isinstance(claim.guarantee, PrivacyCurve) and method == "exact":
        sides = _point_by_point(claim, claim.guarantee.points, bracket)
    finding = decide_guarantee(claim, *sides, bracket.epsilon, theorem)
    if finding.crossed and not bracket.sampled:
        finding, bracket.disagreement = finding.undecided(), True
    return bracket, finding


def _point_by_point(
    claim: Claim, points: Sequence[tuple[float, float]], bracket: "Bracket"
) -> tuple[Function, Function]:
    """Bounds on delta at the points of a curve, of which those that are left open are asked for one by one.

    Bounds are sharpest where a claim is told, and a curve has one such place.
    """
    epsilons, deltas = np.array(points).T
    lower, upper = bracket.delta(epsilons)
    left = np.flatnonzero((lower <= deltas) & (upper > deltas))
    for i in left if len(left) <= MOST_POINTS else ():
        one = check(replace(claim, epsilon=float(epsilons[i]), delta=float(deltas[i]), guarantee=None))
        lower[i], upper[i] = max(lower[i], one.delta_lower), min(upper[i], one.delta_upper)
    return lambda _: lower, lambda _: upper


def curve_by_rho(claim: Claim) -> Curve | None:
    """What the least rho that a theorem gives implies, for histories that only such a theorem covers; None without."""
    from dpaudit.verify.implied import implied_delta
    from dpaudit.verify.renyi import rho_upper

    rho = rho_upper(claim.canonical("upper"))
    if not 0 < rho < LARGEST_RHO:
        return None
    return Curve.upper("rdp", BY_RHO, implied_delta(ZeroConcentratedDP(rho)))


def _out_of_reach(claim: Claim, beyond: str, started: float) -> Verdict:
    """The verdict where floats do not reach: by how rarely a record is in a batch, whatever the noise."""
    bracket = Bracket(claim, upper_curves(claim, [never_sampled]), None)
    reason = bracket.proof if bracket.name == "certified" else f"{bracket.gap}: {beyond}."
    finding = None
    if claim.guarantee is not None:
        from dpaudit.verify.guarantee_check import decide_points

        finding = decide_points(claim, bracket.delta_at_least, bracket.delta_at_most, never_sampled.THEOREM, beyond)
        reason = finding.reason
    return bracket.verdict(reason, (SUM,), started=started, finding=finding)


class Bracket:
    """Valid bounds around a claim's true curve, and what they decide.

    Args:
        claim: The claim.
        uppers: Upper bounds, of which the pointwise least counts.
        lower: The lower bound, None where there is none.

    A lower bound that was not sampled and exceeds an upper one is a fault of one of them: nothing is decided then, and
    "disagreement" stands among the methods.
    """

    def __init__(self, claim: Claim, uppers: Sequence[Curve], lower: Curve | None) -> None:
        at = np.array([claim.epsilon])
        self.claim, self._lower = claim, lower
        self._uppers = sorted(uppers, key=lambda curve: float(curve.delta(np.minimum(at, FARTHEST_EPSILON))[0]))
        self.best = self._uppers[0] if uppers else None
        self.sampled = lower is not None and lower.method == "monte-carlo"
        self.delta_lower, self.delta_upper = (float(side[0]) for side in self.delta(at))
        self.epsilon_lower, self.epsilon_upper = (float(side[0]) for side in self.epsilon(np.array([claim.delta])))
        self.crossed = self.delta_lower > self.delta_upper or self.epsilon_lower > self.epsilon_upper
        self.disagreement = self.crossed and not self.sampled
        bounds = self.delta_lower, self.delta_upper, self.epsilon_lower
        self.name: VerdictName = "undecided" if self.crossed else decide(claim, *bounds)

    def delta(self, epsilon: Array) -> tuple[Array, Array]:
        """(lower, upper) at each epsilon >= 0."""
        return self.delta_at_least(epsilon), self.delta_at_most(epsilon)

    def delta_at_least(self, epsilon: Array) -> Array:
        """The lower one alone."""
        finite, lower = _finite(epsilon), np.zeros(len(epsilon))
        if self._lower is not None:
            lower[finite] = self._lower.delta(epsilon[finite])
        return lower

    def delta_at_most(self, epsilon: Array) -> Array:
        """The upper one alone."""
        finite = _finite(epsilon)
        # a bound of 1 is always right, and 0 is right at an infinite epsilon
        upper = np.where(finite, 1.0, 0.0)
        for curve in self._uppers:
            upper[finite] = np.minimum(upper[finite], curve.delta(np.minimum(epsilon[finite], FARTHEST_EPSILON)))
        return upper

    def epsilon(self, delta: Array) -> tuple[Array, Array]:
        """(lower, upper) at each delta in [0, 1)."""
        if not ((delta >= 0) & (delta < 1)).all():
            raise ValueError("Expected delta in [0, 1).")
        lower = np.zeros(len(delta)) if self._lower is None else self._lower.epsilon(delta)
        return lower, self._epsilon_upper(delta)

    def _epsilon_upper(self, delta: Array) -> Array:
        upper = np.full(len(delta), np.inf)
        for curve in self._uppers:
            near, known = np.ones(len(delta), dtype=bool), np.isfinite(upper)
            if known.any():  # a curve that falls and is still far above delta there has no smaller epsilon
                near[known] = curve.delta(upper[known]) <= FAR_ABOVE * delta[known]
            if near.any():
                upper[near] = np.minimum(upper[near], curve.epsilon(delta[near]))
        return upper

    def operating_points(self) -> OperatingPoints:
        """What the upper bounds leave to an attack; on demand, since it costs a tenth of a check."""
        from dpaudit.verify.implied import operating_points

        return operating_points(self.delta_at_most, self._epsilon_upper)

    @property
    def gap(self) -> str:
        """Where the true epsilon lies, in words."""
        low, high = self.epsilon_lower, self.epsilon_upper
        return f"The true epsilon lies in [{down(low, 4)}, {up(high, 4)}] at delta={self.claim.delta:.12g}"

    @property
    def proof(self) -> str:
        """The sentence of a certified claim."""
        assert self.best is not None  # nothing else certifies
        return (
            f"delta is at most {up(self.delta_upper, 4)} at epsilon={self.claim.epsilon:.12g}, by {self.best.theorem}."
        )

    def verdict(
        self,
        reason: str,
        reading: Sequence[str],
        *,
        started: float,
        confidence: float = 1.0,
        published: float | None = None,
        finding: "Finding | None" = None,
    ) -> Verdict:
        """The verdict with its reason.

        Args:
            reason: One or two sentences.
            reading: How the release is read, before all other assumptions.
            started: `time.perf_counter()` when the work began.
            confidence: Of a sampled bound.
            published: What the claim's published formula gives.
            finding: On a guarantee that is no (epsilon, delta).
        """
        claim, used = self.claim, [curve for curve in (self.best, self._lower) if curve is not None]
        return Verdict(
            id=claim.id,
            verdict=self.name if finding is None else finding.verdict,
            reason=claim.worded(reason),
            epsilon_claimed=float(claim.epsilon),
            delta_claimed=float(claim.delta),
            epsilon_lower=self.epsilon_lower,
            epsilon_upper=self.epsilon_upper,
            delta_lower=self.delta_lower,
            delta_upper=self.delta_upper,
            confidence=confidence,
            sensitivity_ratio=None,
            witness=self._lower.witness if self._lower is not None else None,
            published_epsilon=published,
            methods=[*dict.fromkeys(curve.method for curve in used), *([DISAGREEMENT] if self.disagreement else [])],
            assumptions=_assumptions(claim, reading, used),
            seconds=time.perf_counter() - started,
            guarantee=None if finding is None or claim.guarantee is None else finding.to_dict(claim.guarantee),
            delta_curve=self.delta,
            epsilon_curve=self.epsilon,
            delta_upper_curve=self.delta_at_most,
            operating=cache(self.operating_points),
        )


def _finite(epsilon: Array) -> NDArray[np.bool_]:
    """Which are finite; all are numbers of at least 0."""
    if np.isnan(epsilon).any() or (epsilon < 0).any():
        raise ValueError("Expected epsilon in [0, inf).")
    return np.isfinite(epsilon)


def _lower_by_sampling(claim: Claim, method: str, confidence: float, rng: np.random.Generator) -> Curve:
    """The sampled lower bound, or with method "both" the certified one where that is the stronger."""
    from dpaudit.verify.monte_carlo import monte_carlo_lower, undrawable  # costs a second

    phases = claim.canonical("lower").phases
    kinds = [p.sampling_kind for p in phases if p.sampler is None and not sampling_is_known(p)]
    if kinds and method == "monte-carlo":
        correlated = any(phase.correlation is not None for phase in phases)
        unknown = f"a rate alone does not say how sampling_kind={kinds[0]!r} makes batches"
        note = f"{UNSAMPLED}: {obstacle(claim) if correlated else unknown}"
        return Curve("lower", "monte-carlo", "none applies", np.zeros_like, np.zeros_like, (note,))
    missing = "" if kinds else undrawable(claim)
    if missing and method == "monte-carlo":
        return Curve("lower", "monte-carlo", "none applies", np.zeros_like, np.zeros_like, (f"{UNSAMPLED}: {missing}",))
    if kinds or missing:
        return certified_lower(claim)
    sampled = monte_carlo_lower(claim, rng=rng, confidence=confidence)
    if method == "monte-carlo":
        return sampled
    epsilon, delta = np.array([claim.epsilon]), np.array([claim.delta])

    def strength(curve: Curve) -> tuple[bool, float]:
        return bool(curve.epsilon(delta)[0] > claim.epsilon), float(curve.delta(epsilon)[0])

    return max((certified_lower(claim), sampled), key=strength)


def _published(claim: Claim) -> float | None:
    """What the claim's published formula gives; None where it names none or its theorem does not apply."""
    if claim.accountant is None or len(claim.phases) != 1 or claim.phases[0].correlation is not None:
        return None
    from dpaudit.mechanisms.published import ACCOUNTANTS

    if claim.accountant not in ACCOUNTANTS:
        raise ValueError(f"Expected accountant={claim.accountant!r} among {', '.join(ACCOUNTANTS)}.")
    phase = claim.phases[0]
    try:
        value = ACCOUNTANTS[claim.accountant](
            phase.mechanism, sampling_prob=phase.sampling_prob, steps=phase.steps, delta=claim.delta
        )
    except (TypeError, ValueError):
        return None
    return float(value.epsilon)


def decide(claim: Claim, delta_lower: float, delta_upper: float, epsilon_lower: float) -> VerdictName:
    """The verdict of bounds at the claimed epsilon and delta, with all float errors; of two engines' these may meet."""
    broken, kept = delta_lower > claim.delta or epsilon_lower > claim.epsilon, delta_upper <= claim.delta
    return "undecided" if broken == kept else "refuted" if broken else "certified"


def _no_claim(value: object) -> str:
    """What to give `check` in place of a value that is no claim."""
    if isinstance(value, (str, os.PathLike)):
        return (
            f"Expected a Claim, not the path {os.fspath(value)!r}: check each of "
            "dpaudit.verify.claim_files.load_claims(path), or run dpaudit verify."
        )
    how = "Claim.single(mechanism, epsilon=..., delta=..., steps=..., sampling_prob=...)"
    return f"Expected a Claim, not {type(value).__name__}: {how} states one."


def _reason(bracket: Bracket, lower: Curve) -> str:
    """One or two sentences with the numbers that decided, or would decide."""
    claim, delta, best = bracket.claim, (bracket.delta_lower, bracket.delta_upper), bracket.best
    goal = f"delta={claim.delta:.12g} at epsilon={claim.epsilon:.12g}"
    if bracket.disagreement:
        upper = best.theorem if best is not None else "the trivial bound"
        return (
            f"Two bounds disagree, please report: delta is at least {down(delta[0], 6)} by {lower.theorem}, and at "
            f"most {up(delta[1], 6)} by {upper}; epsilon at least {down(bracket.epsilon_lower, 6)} and at most "
            f"{up(bracket.epsilon_upper, 6)}."
        )
    if bracket.name == "certified":
        return bracket.proof
    if bracket.name == "refuted" and not delta[0] > claim.delta:
        if claim.delta == 0:
            return pure_reason(bracket.epsilon_lower)
        shown, stated = told_apart(bracket.epsilon_lower, claim.epsilon, 6)
        return f"{_witness(lower)} forces epsilon >= {shown} at delta={claim.delta:.12g}, more than {stated}."
    if bracket.name == "refuted":
        shown, stated = told_apart(delta[0], claim.delta, 4)
        return f"{_witness(lower)} forces delta >= {shown} at epsilon={claim.epsilon:.12g}, more than {stated}."
    if best is None and bracket.sampled:
        return f"{bracket.gap}: simulation has no upper bound, which the exact method may have."
    cause = first_cause(claim)
    if best is None or (best.method == never_sampled.METHOD and np.isinf(bracket.epsilon_upper)):
        if cause:
            return f"{cause} {bracket.gap}."
        return f"{bracket.gap}: {obstacle(claim)}. A theorem for it, or a stronger witness, would decide {goal}."
    kinds = [phase.sampling_kind for phase in claim.canonical().phases if phase.sampler is not None]
    if kinds:
        return (
            f"{kinds[0]}: proven at least {down(bracket.epsilon_lower, 4)} and at most {up(bracket.epsilon_upper, 4)} "
            f"at delta={claim.delta:.12g}; no theorem here decides between. The upper bound: {best.theorem}."
        )
    return (
        f"{cause}{' ' if cause else ''}{bracket.gap}, and the claim lies between. To decide {goal}, it takes a witness "
        f"stronger than delta={down(delta[0], 4)} or an upper bound tighter than delta={up(delta[1], 4)} "
        f"({best.theorem}){'' if bracket.sampled else '; method=both looks for such a witness by simulation'}."
    )


def _witness(lower: Curve) -> str:
    """The neighbouring pair in words."""
    witness = lower.witness
    if witness is None:
        return "A pair of neighbouring inputs"
    return (
        f"A shift of {witness.coordinates} coordinate(s) ({witness.family}, norm {witness.norm:.6g}, direction "
        f"{witness.direction}, event {witness.event})"
    )


def _assumptions(claim: Claim, reading: Sequence[str], used: Sequence[Curve]) -> list[str]:
    """What the reader must accept for the verdict."""
    own = [*reading, ADJACENCY[claim.adjacency]]
    samplers = [phase.sampler for phase in claim.phases if phase.sampler is not None]
    if claim.adjacency == "add-remove" and not all(
        sampler.keeps_others or isinstance(sampler, TruncatedPoisson) for sampler in samplers
    ):
        own.append(AS_ZERO_OUT)
    if claim.adjacency == "add-remove" and any(isinstance(sampler, TruncatedPoisson) for sampler in samplers):
        own.append(WITH_THE_RECORD)
    own += [f"batches: {sampler.summary}" for sampler in samplers]
    correlated = [(phase.correlation, phase) for phase in claim.phases if phase.correlation is not None]
    own += [text for noise, phase in correlated for text in noise.assumptions(phase.mechanism, phase.steps)]
    own += [WHOLE_USER] if claim.unit == "user" else []
    if any(phase.sampling_prob < 1 and sampling_is_known(phase) for phase in claim.phases):
        own.append(POISSON)
    if sum(phase.steps for phase in claim.phases) > 1:
        own.append(ADAPTIVITY)
    elif claim.phases[0].sampling_prob < 1 or samplers:
        own.append(ONE_RELEASE)
    texts = [*own, *(text for curve in used for text in curve.assumptions)]
    return list(dict.fromkeys(map(claim.worded, texts)))
