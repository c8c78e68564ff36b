"""The claim that scores are held against: a bare (epsilon, delta), or one of a claims file with its mechanism."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from dpaudit.audit.inputs.files import InputError
from dpaudit.mechanisms.base import NormalCoordinates, keep_as_python_numbers
from dpaudit.verify.bounds import Tradeoff
from dpaudit.verify.checking import check
from dpaudit.verify.claim_files import ClaimFileError, claim_to_dict, load_claims
from dpaudit.verify.claims import PLAIN_KINDS, Claim, Phase
from dpaudit.verify.correlated import Participation
from dpaudit.verify.guarantees import DELTA, EPSILON, PrivacyCurve
from dpaudit.verify.implied import implied_delta
from dpaudit.verify.results import Verdict


@dataclass(frozen=True)
class ClaimUnderTest:
    """A promise, and the history it was made for where that is known.

    Args:
        epsilon: At least 0.
        delta: In [0, 1).
        adjacency: Of the promise.
        claim: With its mechanism, None for a bare promise.
    """

    epsilon: float
    delta: float
    adjacency: str = "add-remove"
    claim: Claim | None = None

    def __post_init__(self) -> None:
        keep_as_python_numbers(self)
        try:
            EPSILON.validate("epsilon", self.epsilon)
            DELTA.validate("delta", self.delta)
        except ValueError as error:
            raise InputError(str(error)) from error

    @cached_property
    def verdict(self) -> Verdict | None:
        """What calculation says of it; None for a bare promise."""
        return None if self.claim is None else check(self.claim)

    @cached_property
    def stated(self) -> Tradeoff:
        """What the promise alone allows, of whatever kind it is."""
        guarantee = None if self.claim is None else self.claim.guarantee
        if isinstance(guarantee, PrivacyCurve):  # its own points: a grid passes by them
            return Tradeoff.of_points(*zip(*guarantee.points, strict=True))
        if guarantee is not None:
            return Tradeoff.of(implied_delta(guarantee))
        return Tradeoff.of_points([self.epsilon], [self.delta])

    @cached_property
    def certified(self) -> Tradeoff | None:
        """What the mechanism's certified curve allows; None where nothing is certified."""
        verdict = self.verdict
        if verdict is None:
            return None
        curve = Tradeoff.of(verdict.delta_at_most)
        return curve if float(curve(0.5)) < 1.0 else None

    @property
    def gaussian(self) -> bool:
        """Whether the claimed history has a Gaussian trade-off curve: normal noise, all records in every release."""
        if self.claim is None or self.delta == 0:
            return False
        return all(
            isinstance(phase.mechanism.structure, NormalCoordinates)
            and phase.sampling_prob == 1
            and phase.sampling_kind in PLAIN_KINDS
            for phase in self.claim.phases
        )

    def summary(self) -> dict[str, Any]:
        """The claim as results hold it."""
        bare = {"epsilon": self.epsilon, "delta": self.delta, "adjacency": self.adjacency}
        return bare if self.claim is None else {**claim_to_dict(self.claim), **bare}


def claim_under_test(
    epsilon: float | None, delta: float | None, claims: Path | None = None, only: str | None = None
) -> ClaimUnderTest | None:
    """The claim that a command line names: --epsilon and --delta, or --claim and perhaps --only; None for neither.

    Args:
        epsilon: Of a bare promise.
        delta: Of a bare promise.
        claims: A claims file.
        only: The id of one of its claims, where there are several.

    Raises:
        InputError: Both or half of them, no such claim, or a file that is none.
    """
    if claims is None:
        if only is not None or (epsilon is None) != (delta is None):
            raise InputError("Expected --epsilon together with --delta, or --claim FILE and perhaps --only ID.")
        return None if epsilon is None or delta is None else ClaimUnderTest(epsilon, delta)
    if epsilon is not None or delta is not None:
        raise InputError("Expected --epsilon and --delta, or --claim FILE, not both.")
    try:
        found = load_claims(claims, only=only)
    except ClaimFileError as error:
        raise InputError(str(error)) from error
    if len(found) != 1:
        names = ", ".join(claim.id for claim in found[:5])
        raise InputError(
            f"Expected {claims} to hold one claim{f' {only!r}' if only else ''}, not {len(found)}"
            f"{f' ({names}): choose with --only' if names else ''}."
        )
    claim = found[0]
    return ClaimUnderTest(claim.epsilon, claim.delta, claim.adjacency, claim)


def check_coins_decide(claim: ClaimUnderTest) -> None:
    """Refuse a claim that compares other data than those with a canary and those without it, as fair coins do.

    A canary that is left out is not there, and keeps no place. Where the batches of the others depend on that, a true
    claim on a ghost in its place could be refuted by how many records there are; nor is add-remove meant of such.
    """
    if claim.adjacency == "replace-one":
        raise InputError("Expected a claim on adding or removing a record: coins put canaries in or leave them out.")
    if claim.claim is None:
        if claim.adjacency != "add-remove":
            raise InputError(f"Expected a claim with adjacency={claim.adjacency!r} to say how its batches are drawn.")
        return
    for phase in claim.claim.phases:
        if not _keeps_others(phase):
            raise InputError(
                "Expected a claim of batches that stay as they are without a canary, such as 'poisson': those of kind "
                f"{phase.sampling_kind!r} change, which adjacency={claim.adjacency!r} does not speak of; --epsilon and "
                "--delta alone judge the promise."
            )


def _keeps_others(phase: Phase) -> bool:
    """Whether the batches of the others do not depend on a record: the sampler's own word, where there is one."""
    if phase.sampler is not None:
        return phase.sampler.keeps_others
    if phase.correlation is not None:
        participation = phase.correlation.participation
        return participation.sampled or participation == Participation("fixed-order", separation=1)  # everybody always
    return phase.sampling_kind in PLAIN_KINDS
