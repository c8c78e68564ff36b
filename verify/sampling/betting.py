"""Lower confidence bounds for the mean of a variable in [0, 1] by betting against every candidate mean.

Waudby-Smith and Ramdas (2024), "Estimating means of bounded random variables by betting", Section 4.1. Where the
variable is mostly zero, as an excess of a privacy loss is, the bounds are as tight as those for a binomial count.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import bisect

from dpaudit.mechanisms.base import Array, Domain

TAIL = Domain(0.0, 1.0, (0.005, 0.05), "probability of an error")
SHARE = 0.95  # of the largest bet that cannot lose everything at once
SMALLEST_MEAN = 1e-12  # means below it are not told from 0
PILOT_VALUES = 2000  # of the pilot's nonzero values are enough to choose a bet
BETS = 32


@dataclass(frozen=True)
class Sample:
    """Independent draws of a variable in [0, 1]; the zeros are only counted.

    Args:
        values: Those that are not 0, in (0, 1].
        size: Number of draws, zeros included.
    """

    values: Array
    size: int


@dataclass(frozen=True)
class Excesses:
    """Independent draws of a loss L with a weight w; those with L <= 0 are only counted.

    Args:
        loss: L, positive.
        log_weight: log w.
        size: Number of draws, uncounted ones included.
    """

    loss: Array
    log_weight: Array
    size: int

    def at(self, epsilon: float) -> Array:
        """w (1 - e^(epsilon - L)) where L > epsilon."""
        above = self.loss > epsilon
        return np.asarray(np.exp(self.log_weight[above]) * -np.expm1(epsilon - self.loss[above]))


def mean_lower(sample: Sample, pilot: Sample, *, tail: float) -> float:
    """A number that exceeds the mean with probability at most `tail`.

    The largest m whose capital K(m) = prod_i (1 + b(m) (Y_i - m)) reaches 1/tail, with b(m) = min(bet, SHARE/m).

    Proof. Let mu be the mean. The factors of K(mu) are independent, have mean 1, and are at least 1 - SHARE > 0; so
    E K(mu) = 1, and K(mu) >= 1/tail has probability at most tail (Markov; Waudby-Smith and Ramdas (2024), Section
    4, at a fixed sample size). Every factor falls in m: 1 + bet (Y - m) does, and so does 1 + SHARE (Y/m - 1), and
    the one that applies changes where they agree. So the m with K(m) >= 1/tail form an interval from 0, and its end
    exceeds mu only if K(mu) >= 1/tail. The bet comes from the pilot alone, which is independent of the sample.

    Args:
        sample: The draws that count.
        pilot: Independent draws of the same variable, from which the bet is chosen.
        tail: Error probability in (0, 1).

    Raises:
        ValueError: tail is outside (0, 1).

    >>> rng = np.random.default_rng(1)
    >>> bound = mean_lower(Sample(rng.uniform(size=9000), 9000), Sample(rng.uniform(size=1000), 1000), tail=0.05)
    >>> print(f"{bound:.2f}")
    0.50
    """
    TAIL.validate("tail", tail)
    largest = SHARE / max(float(pilot.values.sum()) / pilot.size, 1.0 / (pilot.size + sample.size))
    # below sqrt(2 log(1/tail)/size)/sd, the best bet on a variable of that spread; sd is at most 1/2
    smallest = math.sqrt(2.0 * math.log(1.0 / tail) / sample.size)
    bets = np.geomspace(min(smallest, largest), largest, BETS)
    thin = max(1, math.ceil(len(pilot.values) / PILOT_VALUES))
    values = pilot.values[::thin]
    # an empty pilot must not promise that the sample is empty too
    few = Sample(values if len(values) else np.ones(1), max(len(values), round(pilot.size / thin)))
    goal = math.log(1.0 / tail)
    # the bet that does best on the pilot, were it as large as the sample
    bet = float(bets[int(np.argmax([_crossing(few, bet, goal * few.size / sample.size) for bet in bets]))])
    # the sum of logarithms is rounded: less than 1e-12 for each draw
    return _crossing(sample, bet, goal + 1e-12 * sample.size)


def _crossing(sample: Sample, bet: float, goal: float) -> float:
    """Where the log of the capital of one who bets that the true mean is larger falls to the goal; 0 if it is below."""
    low, high = math.log(SMALLEST_MEAN), math.log1p(-SMALLEST_MEAN)

    def excess(log_mean: float) -> float:
        mean = math.exp(log_mean)
        stake = min(bet, SHARE / mean)
        zeros = (sample.size - len(sample.values)) * math.log1p(-stake * mean)
        return zeros + float(np.log1p(stake * (sample.values - mean)).sum()) - goal

    if excess(low) < 0:
        return 0.0
    if excess(high) >= 0:
        return math.exp(high)
    return math.exp(float(bisect(excess, low, high, xtol=1e-7)) - 2e-7)


def level_lower(sample: Excesses, delta: float, *, bet: float, tail: float) -> float:
    """A number that exceeds every epsilon with E w (1 - e^(epsilon - L))_+ <= delta with probability at most `tail`.

    The largest epsilon at which the capital prod_i (1 + bet (Y_i - delta)), Y = w (1 - e^(epsilon - L))_+, reaches
    1/tail; 0 where there is none.

    Proof. Y falls in epsilon, so the capital does: the epsilons at which it reaches 1/tail form an interval from 0.
    Let e* be the least epsilon with E Y <= delta. The factors are nonnegative for bet delta <= 1, and at e* their
    means are at most 1; so the capital at e* reaches 1/tail with probability at most `tail` (Markov), and only then
    does the interval's end exceed e*. No bound on Y is needed.

    Args:
        sample: The draws that count.
        delta: In [0, 1).
        bet: Chosen without the sample, in (0, 1/delta).
        tail: Error probability in (0, 1).
    """
    goal = math.log(1.0 / tail) + 1e-12 * sample.size
    return _level(sample, delta, bet, goal)


def choose_level_bet(pilot: Excesses, delta: float, *, share: float) -> tuple[float, float]:
    """The bet under which the pilot, were it `share` times as large, proves most, and the epsilon that it would prove.

    Args:
        pilot: Draws independent of those that will count.
        delta: In [0, 1).
        share: Size of the sample that will count, in pilots.
    """
    largest = SHARE / max(delta, 1e-9 / max(pilot.size * share, 1.0))
    levels = [
        (_level(pilot, delta, bet, math.log(40.0) / share), bet) for bet in np.geomspace(1e-4, 1.0, BETS) * largest
    ]
    epsilon, bet = max(levels)
    return float(bet), epsilon


def _level(sample: Excesses, delta: float, bet: float, goal: float) -> float:
    """Where the logarithm of the capital falls to the goal."""

    def excess(epsilon: float) -> float:
        values = sample.at(epsilon)
        rest = (sample.size - len(values)) * math.log1p(-bet * delta)
        return rest + float(np.log1p(bet * (values - delta)).sum()) - goal

    if not len(sample.loss) or excess(0.0) < 0.0:
        return 0.0
    top = float(sample.loss.max())
    return max(float(bisect(excess, 0.0, top, xtol=1e-9 * (1.0 + top))) - 2e-9 * (1.0 + top), 0.0)
