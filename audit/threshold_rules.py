"""How the threshold of a bound from counts is chosen: beforehand, on a part of the scores, or at ranks of them all."""

from dataclasses import dataclass

import numpy as np

from dpaudit.mechanisms.base import SEED, Array, Domain
from dpaudit.mechanisms.quoting import shown
from dpaudit.verify.bounds import choose_threshold, epsilon_from_counts, epsilon_from_ranks
from dpaudit.verify.bounds.rates import THRESHOLD
from dpaudit.verify.results import LowerBound

SHARE = Domain(0.0, 1.0, (0.1, 0.5), "share of the scores")


@dataclass(frozen=True)
class Explicit:
    """A threshold that was fixed before the scores were seen; the event is {score > threshold}.

    Args:
        threshold: In units of the scores.

    Raises:
        TypeError: The threshold is not a number.
        ValueError: It is NaN.
    """

    threshold: float

    def __post_init__(self) -> None:
        THRESHOLD.validate("threshold", self.threshold)

    def bound(self, inside: Array, outside: Array, *, delta: float, confidence: float) -> LowerBound:
        """Clopper-Pearson on the counts at the threshold."""
        return _counted(inside, outside, self.threshold, delta, confidence)


@dataclass(frozen=True)
class Split:
    """The best threshold of a random part of both arms, counted on the rest.

    Args:
        seed: Of the parts.
        share: For the choice, in (0, 1).

    Raises:
        TypeError: The seed or the share is not a number.
        ValueError: The seed is no integer of at least 0, or the share is out of range.
    """

    seed: int
    share: float = 0.2

    def __post_init__(self) -> None:
        SEED.validate("seed", self.seed)
        SHARE.validate("share", self.share)

    def bound(self, inside: Array, outside: Array, *, delta: float, confidence: float) -> LowerBound:
        """Clopper-Pearson on the counts of the rest."""
        rng = np.random.default_rng(self.seed)
        parts = [np.split(rng.permutation(np.sort(arm)), [round(self.share * len(arm))]) for arm in (inside, outside)]
        if any(not len(part) for arm in parts for part in arm):
            sizes = f"{len(inside)} and {len(outside)} scores"
            raise ValueError(
                f"Expected {sizes} to be enough for two parts of each arm, share={self.share} in the first."
            )
        (chosen_in, counted_in), (chosen_out, counted_out) = parts
        threshold = choose_threshold(
            chosen_in, chosen_out, delta=delta, confidence=confidence, trials_in=len(counted_in),
            trials_out=len(counted_out),
        )  # fmt: skip
        return _counted(counted_in, counted_out, threshold, delta, confidence)


@dataclass(frozen=True)
class Bonferroni:
    """Thresholds at fixed ranks of the scores, which share the error probability; nothing is set aside."""

    def bound(self, inside: Array, outside: Array, *, delta: float, confidence: float) -> LowerBound:
        """The best of `epsilon_from_ranks`."""
        return epsilon_from_ranks(inside, outside, delta=delta, confidence=confidence)


ThresholdRule = Explicit | Split | Bonferroni


def rule_or_usual(threshold: ThresholdRule | None) -> ThresholdRule:
    """The rule that was given, `Bonferroni` without one.

    Raises:
        TypeError: It is none; the message names the value and the rule.
    """
    if threshold is None:
        return Bonferroni()
    if not isinstance(threshold, ThresholdRule):
        raise TypeError(f"Expected threshold={shown(threshold)} to be a rule, such as Explicit(1.5).")
    return threshold


def _counted(inside: Array, outside: Array, threshold: float, delta: float, confidence: float) -> LowerBound:
    tp, fp = int((inside > threshold).sum()), int((outside > threshold).sum())
    bound = epsilon_from_counts(
        tp=tp, fp=fp, tn=len(outside) - fp, fn=len(inside) - tp, delta=delta, confidence=confidence
    )
    return LowerBound(**{**vars(bound), "threshold": threshold})
