"""The verdict on a claim under another reading of the papers than noise on the sum."""

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from dpaudit.mechanisms.base import Array, Mechanism
from dpaudit.verify.batch_readings import hidden, revealed, told
from dpaudit.verify.batch_readings.hidden import Finding
from dpaudit.verify.batch_readings.revealed import Reading
from dpaudit.verify.checking import ADAPTIVE, ADJACENCY, POISSON, check
from dpaudit.verify.claims import STEPS, Claim
from dpaudit.verify.curves import Curve
from dpaudit.verify.results import Verdict, VerdictName, Witness

READINGS: dict[str, str] = {
    "per-example": "noise is added to every clipped contribution of the batch; the divisor is public",
    "realised": "noise is added to the sum of clipped contributions, and both are divided by the batch's realised size",
}
PUBLIC = "the number of other records ({}) is public; how many of them are in a batch is not"
EMPTY = "lower bound: an empty batch releases the sum of nothing, or nothing at all"
LOWER = "exact cell masses of one pair of neighbouring data sets, mixtures over the hidden batch size"


def batch_reading_bracket(claim: Claim, *, reading: Reading, records: int) -> Verdict:
    """What is certain about a claim if its noise is read as the papers' algorithms print it.

    per-example: S + z_1 + ... + z_|B| (plrvo, eq. (2)), with a public divisor. realised: (S + z)/|B| (lap2, Algorithm
    2; product, Algorithm 4). Upper bounds: `told` (batch size told) and `revealed` (number of others told); lower ones:
    `hidden`, where nobody is told anything. All hold for any data with that many other records.

    Args:
        claim: One phase with Poisson sampling or none. Under replace-one only the realised reading without sampling,
            where both neighbours have the same batch size and the reading is that of noise on the sum.
        reading: "per-example" or "realised".
        records: Records besides the one in question, public, at least 1.

    Raises:
        ValueError: A claim or a reading that is not covered; the message names the value and the rule.

    >>> from dpaudit.mechanisms import Gaussian
    >>> claim = Claim.single(Gaussian(1.0, dimension=10), epsilon=1.0, delta=1e-5, steps=50, sampling_prob=0.02)
    >>> batch_reading_bracket(claim, reading="per-example", records=5000).verdict
    'certified'
    >>> batch_reading_bracket(claim, reading="realised", records=5000).verdict
    'refuted'
    """
    started = time.perf_counter()
    _require(claim, reading, records)
    if claim.adjacency == "replace-one":
        same = check(claim)
        notes = [READINGS[reading], "both neighbours have the same batch size, so dividing by it changes nothing"]
        return replace(same, assumptions=[*notes, *same.assumptions[1:]])
    found = hidden.findings(claim, reading=reading, records=records)
    curves = [
        told.upper_curve(claim, reading=reading, records=records),
        revealed.upper_curve(claim.phases[0], reading=reading, records=records, delta=claim.delta),
    ]
    verdict = _verdict(claim, [curve for curve in curves if curve is not None], found)
    notes = _assumptions(claim, reading, records)
    return replace(verdict, assumptions=[*notes, *verdict.assumptions], seconds=time.perf_counter() - started)


def _verdict(claim: Claim, uppers: Sequence[Curve], found: Sequence[Finding]) -> Verdict:
    """What the curves decide; the assumptions are the curves' own."""
    delta_curve, epsilon_curve = partial(_delta, uppers, found), partial(_epsilon, uppers, found)
    delta = _pair(delta_curve(np.array([claim.epsilon])))
    epsilon = _pair(epsilon_curve(np.array([claim.delta])))
    name = _decide(claim, delta)
    best = min(uppers, key=lambda curve: float(curve.delta(np.array([claim.epsilon]))[0]), default=None)
    return Verdict(
        id=claim.id,
        verdict=name,
        reason=_reason(claim, name, delta, epsilon, best),
        epsilon_claimed=float(claim.epsilon),
        delta_claimed=float(claim.delta),
        epsilon_lower=epsilon[0],
        epsilon_upper=epsilon[1],
        delta_lower=delta[0],
        delta_upper=delta[1],
        confidence=1.0,
        sensitivity_ratio=None,
        witness=_witness(found, claim),
        published_epsilon=None,
        methods=[*([best.method] if best else []), *(["witness"] if found else [])],
        assumptions=[*(best.assumptions if best else ()), *([EMPTY] if found else [])],
        seconds=0.0,
        delta_curve=delta_curve,
        epsilon_curve=epsilon_curve,
    )


def _require(claim: Claim, reading: str, records: int) -> None:
    """Refuse what is not covered."""
    if reading not in READINGS:
        raise ValueError(f"Expected reading={reading!r} to be one of {', '.join(map(repr, READINGS))}.")
    STEPS.validate("records", records)  # whole, and at least 1
    if len(claim.phases) != 1:
        raise ValueError(f"Expected phases={len(claim.phases)} of claim {claim.id!r} to be 1.")
    phase = claim.phases[0]
    if phase.sampling_kind not in ("poisson", "none") or (phase.sampling_kind == "none" and phase.sampling_prob < 1):
        raise ValueError(f"Expected sampling_kind={phase.sampling_kind!r} to be 'poisson', or 'none' at rate 1.")
    if phase.mechanism.dimension is None:
        raise ValueError(f"Expected {phase.mechanism.name}.dimension to be set.")
    if claim.adjacency == "replace-one" and (reading != "realised" or phase.sampling_prob < 1):
        raise ValueError(
            f"Expected adjacency={claim.adjacency!r} with reading={reading!r} and sampling_prob="
            f"{phase.sampling_prob:g} to be add-remove, or replace-one with the realised size and no sampling."
        )


def _pair(sides: tuple[Array, Array]) -> tuple[float, float]:
    return float(sides[0][0]), float(sides[1][0])


def _delta(uppers: Sequence[Curve], found: Sequence[Finding], epsilon: Array) -> tuple[Array, Array]:
    """(lower, upper) at each epsilon >= 0."""
    lower, upper = np.zeros(len(epsilon)), np.ones(len(epsilon))
    for finding in found:
        lower = np.maximum(lower, finding.points.delta(epsilon))
    for curve in uppers:
        upper = np.minimum(upper, curve.delta(epsilon))
    return lower, upper


def _epsilon(uppers: Sequence[Curve], found: Sequence[Finding], delta: Array) -> tuple[Array, Array]:
    """(lower, upper) at each delta in [0, 1)."""
    lower, upper = np.zeros(len(delta)), np.full(len(delta), np.inf)
    for finding in found:
        lower = np.maximum(lower, finding.points.epsilon(delta))
    for curve in uppers:
        upper = np.minimum(upper, curve.epsilon(delta))
    return lower, upper


def _decide(claim: Claim, delta: tuple[float, float]) -> VerdictName:
    if delta[0] > delta[1]:
        raise ArithmeticError(f"Expected delta_lower={delta[0]} to be at most delta_upper={delta[1]}.")
    if delta[0] > claim.delta:
        return "refuted"
    return "certified" if delta[1] <= claim.delta else "undecided"


def _reason(
    claim: Claim, name: VerdictName, delta: tuple[float, float], epsilon: tuple[float, float], best: Curve | None
) -> str:
    """One sentence with the numbers that decided."""
    if name == "certified" and best is not None:
        return f"delta is at most {delta[1]:.4g} at epsilon={claim.epsilon:.4g}, by {best.theorem}."
    if name == "refuted":
        return f"delta >= {delta[0]:.4g} at epsilon={claim.epsilon:.4g}, more than {claim.delta:.4g}: {LOWER}."
    theorem = f" ({best.theorem})" if best else ": no theorem here covers this noise under this reading"
    gap = f"The true epsilon lies in [{epsilon[0]:.4g}, {epsilon[1]:.4g}] at delta={claim.delta:.4g}"
    return f"{gap}, and the claim lies between{theorem}."


def _assumptions(claim: Claim, reading: Reading, records: int) -> list[str]:
    """What the reader must accept, whatever the curves."""
    phase = claim.phases[0]
    notes = [READINGS[reading], PUBLIC.format(records), ADJACENCY[claim.adjacency]]
    return notes + [POISSON] * (phase.sampling_prob < 1) + [ADAPTIVE] * (phase.steps > 1)


def _witness(found: Sequence[Finding], claim: Claim) -> Witness | None:
    """The family that proves most at the claimed epsilon, or at the claimed delta where all prove nothing."""
    if not found:
        return None

    def merit(finding: Finding) -> tuple[float, float]:
        points = finding.points
        return float(points.delta(np.array([claim.epsilon]))[0]), float(points.epsilon(np.array([claim.delta]))[0])

    best = max(found, key=merit)
    points, shift = best.points, best.seen.shift
    event = "none"
    if len(points.threshold):
        at = claim.epsilon if merit(best)[0] > 0 else merit(best)[1]
        index = points.best_event(at)
        event = (
            f"privacy loss of the history's cells >= {points.threshold[index]:.6g}: probability at least "
            f"{points.first_lower[index]:.6g} against at most {math.exp(points.log_second_upper[index]):.6g}"
        )
    return Witness(
        family=f"others {'contribute nothing' if best.seen.family == 'apart' else 'contribute the opposite, each'}",
        coordinates=int(sum(size for _, size in shift)),
        norm=_norm(claim.phases[0].mechanism, shift),
        shift=shift,
        direction=best.direction,  # type: ignore[arg-type]
        event=event,
    )


def _norm(mechanism: Mechanism, shift: Sequence[Sequence[float]]) -> float:
    """The shift's norm in the mechanism's clip_norm, for one value."""
    ((value, size),) = shift
    return float(abs(value) * size ** (1.0 / mechanism.clip_norm))
