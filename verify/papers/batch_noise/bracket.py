"""The verdict on a claim under another reading of the papers than noise on the sum."""

import time
from collections.abc import Sequence
from dataclasses import replace

from dpaudit.mechanisms.base import usual_errors
from dpaudit.verify.checking import Bracket, check
from dpaudit.verify.claims import STEPS, Claim
from dpaudit.verify.curves import Curve
from dpaudit.verify.lower.strongest import aim, event, strongest_curve
from dpaudit.verify.papers.batch_noise import known_others, known_size, unknown_size
from dpaudit.verify.papers.batch_noise.known_others import Reading
from dpaudit.verify.papers.batch_noise.unknown_size import Finding
from dpaudit.verify.results import Verdict, Witness, told_apart

READINGS: dict[str, str] = {
    "per-example": "noise is added to every clipped contribution of the batch; the divisor is public",
    "realised": "noise is added to the sum of clipped contributions, and both are divided by the batch's realised size",
}
PUBLIC = "the number of other records ({}) is public; how many of them are in a batch is not"
EMPTY = "lower bound: an empty batch releases the sum of nothing, or nothing at all"
LOWER = "exact cell masses of one pair of neighbouring data sets, mixtures over the hidden batch size"


@usual_errors()
def batch_noise_bracket(claim: Claim, *, reading: Reading, records: int) -> Verdict:
    """What is certain about a claim if its noise is read as the papers' algorithms print it.

    per-example: S + z_1 + ... + z_|B| (plrvo, eq. (2)), with a public divisor. realised: (S + z)/|B| (lap2, Algorithm
    2; product, Algorithm 4). Upper bounds: `known_size` (the batch's size is given away) and `known_others` (that of
    others is); lower ones: `unknown_size`, where nothing is. All hold for any data with that many other records.

    Args:
        claim: One phase with Poisson sampling or none. Under replace-one only the realised reading without sampling,
            where both neighbours have the same batch size and the reading is that of noise on the sum.
        reading: "per-example" or "realised".
        records: Records besides the one in question, public, at least 1.

    Raises:
        ValueError: A claim or a reading that is not covered; the message names the value and the rule.

    >>> from dpaudit.mechanisms import Gaussian
    >>> claim = Claim.single(Gaussian(1.0, dimension=10), epsilon=1.0, delta=1e-5, steps=50, sampling_prob=0.02)
    >>> batch_noise_bracket(claim, reading="per-example", records=5000).verdict
    'certified'
    >>> batch_noise_bracket(claim, reading="realised", records=5000).verdict
    'refuted'
    """
    started = time.perf_counter()
    _require(claim, reading, records)
    records = int(records)
    if claim.adjacency == "replace-one":
        same = check(claim)
        notes = [READINGS[reading], "both neighbours have the same batch size, so dividing by it changes nothing"]
        return replace(same, assumptions=[*notes, *same.assumptions[1:]])
    findings = unknown_size.findings(claim, reading=reading, records=records)
    uppers = [
        known_size.upper_curve(claim, reading=reading, records=records),
        known_others.upper_curve(claim.phases[0], reading=reading, records=records, delta=claim.delta),
    ]
    bracket = Bracket(claim, [curve for curve in uppers if curve is not None], _lower(claim, findings))
    return bracket.verdict(_reason(bracket), (READINGS[reading], PUBLIC.format(records)), started=started)


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


def _lower(claim: Claim, findings: Sequence[Finding]) -> Curve | None:
    """The pointwise best of what was found."""
    if not findings:
        return None
    points = [finding.points for finding in findings]
    return strongest_curve(points, claim, LOWER, (EMPTY,), lambda index: _witness(findings[index], claim))


def _reason(bracket: Bracket) -> str:
    """One sentence with the numbers that decided."""
    claim, best = bracket.claim, bracket.best
    if bracket.name == "certified":
        return bracket.proof
    if bracket.name == "refuted":
        shown, stated = told_apart(bracket.delta_lower, claim.delta, 4)
        return f"delta >= {shown} at epsilon={claim.epsilon:.12g}, more than {stated}: {LOWER}."
    theorem = f" ({best.theorem})" if best else ": no theorem here covers this noise under this reading"
    return f"{bracket.gap}, and the claim lies between{theorem}."


def _witness(finding: Finding, claim: Claim) -> Witness:
    """The pair, and the event that is best at the claim."""
    seen, points = finding.seen, finding.points
    ((value, size),) = seen.shift
    return Witness(
        family=f"others {'contribute nothing' if seen.family == 'apart' else 'contribute the opposite, each'}",
        coordinates=int(size),
        norm=float(abs(value) * size ** (1.0 / claim.phases[0].mechanism.clip_norm)),
        shift=seen.shift,
        direction=finding.direction,  # type: ignore[arg-type]
        event=event(points, aim(points, claim), "privacy loss of the history's cells"),
    )
