"""The noise that Opacus's optimizer was seen to add, against what its accountant was told.

Over all steps, with every value divided by the standard deviation that the accountant counted, the sum of N squares is
rho^2 times a chi-square variable of N degrees of freedom if normal noise of rho times that deviation was added,
independent from value to value. That gives an interval for rho from a single training.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2

from dpaudit.mechanisms import Gaussian
from dpaudit.verify.checking import check
from dpaudit.verify.claims import Claim, Phase

MISSED = 1e-6  # probability that an interval does not hold the ratio


@dataclass
class AddedNoise:
    """Noise that was seen, in units of the standard deviation that was accounted.

    Args:
        squares: Sum of the squares of all values.
        values: How many.
        where: Which values they are, as a phrase; "" for all.
        intervals: How many share the probability of a wrong one.
    """

    squares: float = 0.0
    values: int = 0
    where: str = ""
    intervals: int = 1

    def interval(self) -> tuple[float, float]:
        """Bounds on the ratio of the noise's standard deviation to the accounted one.

        Those of all that share it are wrong with probability MISSED at most.
        """
        low, high = bounds(np.array([self.squares]), np.array([self.values]), self.intervals)
        return float(low[0]), float(high[0])

    def lacking(self, claim: Claim) -> tuple[str, bool] | None:
        """What there is to say of too little noise, in a sentence, and whether the claim is refuted with it.

        None where it is not less than what was accounted. What holds of some weights holds of the claim: a record's
        gradient may lie in them alone.

        Args:
            claim: On the training as it was accounted, Gaussian noise.
        """
        low, high = self.interval()
        if not high < 1.0:
            return None
        seen = (
            f"The noise that the optimizer was seen to add{self.where} has {low * 0.9995:.4g} to {high * 1.0005:.4g} "
            f"of the standard deviation that was accounted ({self.values:,} values of one training)"
        )
        return _worth(seen, claim, [_with_noise(phase, high) for phase in claim.phases])


@dataclass(frozen=True)
class WeakSteps:
    """Steps each of which was seen to get less noise than was accounted.

    Args:
        counts: How many there are, by their place in the accountant's history and a bound, rounded up, on the ratio of
            their noise's standard deviation to the accounted one.
        least: The smallest such bound, as it is.
        steps: Of the optimizer, in all.
    """

    counts: Mapping[tuple[int, float], int]
    least: float
    steps: int

    def interval(self) -> tuple[float, float]:
        """Bounds on the ratio in the weakest of these steps."""
        return 0.0, self.least

    def lacking(self, claim: Claim, rate: float, poisson: bool) -> tuple[str, bool]:
        """What there is to say of them, in a sentence, and whether they refute the claim: the others may cost nothing.

        Args:
            claim: On the training as it was accounted, Gaussian noise; of Poisson batches a phase for each entry of the
                history.
            rate: Probability of a record to be in a step's batch, at least.
            poisson: Whether batches are Poisson ones.
        """
        least = f"at most {self.least * 1.0005:.4g}" if self.least else "none"
        seen = (
            f"The noise that the optimizer was seen to add in {sum(self.counts.values()):,} of {self.steps:,} steps "
            f"has less than the standard deviation that was accounted, {least} of it where it has least"
        )
        if not self.least and rate > claim.delta:  # so likely a step without noise shows whether the record is there
            return f"{seen}; a record is in its batch with probability {rate:.3g} or more: no epsilon holds.", True
        if not poisson:
            return f"{seen}; what that costs with such batches is not known.", False
        phases = [
            replace(_with_noise(claim.phases[place], ratio), steps=k) for (place, ratio), k in self.counts.items()
        ]
        told, refuted = _worth(seen, claim, phases)
        return (told, True) if refuted else (f"{seen}; these steps alone do not refute the claim.", False)


def bounds(
    squares: NDArray[np.float64], values: NDArray[np.int64], intervals: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Bounds on ratios of standard deviations, from sums of squares of so many values; 0 and inf of none.

    Args:
        squares: Sums of squares of values that have the standard deviation 1 if the ratio is 1, shape (ratios,).
        values: How many were summed, shape (ratios,).
        intervals: How many ratios share the probability MISSED that any is outside.
    """
    tail = MISSED / (2.0 * intervals)
    some = np.maximum(values, 1)
    low, high = (np.sqrt(squares / chi2.ppf(share, some)) for share in (1.0 - tail, tail))
    return np.where(values > 0, low, 0.0), np.where(values > 0, high, math.inf)


def _worth(seen: str, claim: Claim, phases: list[Phase]) -> tuple[str, bool]:
    """A sentence, from its beginning, on a claim's worth with phases of other noise, and whether it is refuted."""
    found = check(replace(claim, phases=phases))
    if found.verdict != "refuted":
        return f"{seen}; with that noise the claim is {found.verdict}.", False
    least = f"{found.epsilon_lower * 0.9995:.4g}"
    return f"{seen}; with that noise the claim is refuted: epsilon is at least {least}.", True


def _with_noise(phase: Phase, ratio: float) -> Phase:
    assert isinstance(phase.mechanism, Gaussian)
    noise = replace(phase.mechanism, noise_multiplier=max(phase.mechanism.noise_multiplier * ratio, 1e-6))
    return replace(phase, mechanism=noise)
