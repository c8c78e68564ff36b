"""The noise that Opacus's optimizer was seen to add, against what its accountant was told.

Over all steps, with every value divided by the standard deviation that the accountant counted, the sum of N squares is
rho^2 times a chi-square variable of N degrees of freedom if normal noise of rho times that deviation was added,
independent from value to value. That gives an interval for rho from a single training.
"""

import math
from dataclasses import dataclass, replace

from scipy.stats import chi2

from dpaudit.mechanisms import Gaussian
from dpaudit.verify.checking import check
from dpaudit.verify.claims import Claim

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
        if not self.values:
            return 0.0, math.inf
        tail = MISSED / (2.0 * self.intervals)
        low, high = chi2.ppf([1.0 - tail, tail], self.values)
        return math.sqrt(self.squares / low), math.sqrt(self.squares / high)

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
            f"The noise that the optimizer was seen to add{self.where} has {low:.4g} to {high:.4g} of the standard "
            f"deviation that was accounted ({self.values:,} values of one training)"
        )
        phases = []
        for phase in claim.phases:
            assert isinstance(phase.mechanism, Gaussian)
            noise = replace(phase.mechanism, noise_multiplier=max(phase.mechanism.noise_multiplier * high, 1e-6))
            phases.append(replace(phase, mechanism=noise))
        found = check(replace(claim, phases=phases))
        if found.verdict != "refuted":
            return f"{seen}; with that noise the claim is {found.verdict}.", False
        least = f"{found.epsilon_lower * 0.9995:.4g}"
        return f"{seen}; with that noise the claim is refuted: epsilon is at least {least}.", True
