"""The search all calibrations share: the least noise that is enough, to a relative tolerance, as a short decimal."""

import math
from collections.abc import Callable
from decimal import ROUND_CEILING, ROUND_FLOOR, Context

from scipy.optimize import brentq

from dpaudit.mechanisms.base import Domain

TOLERANCE = Domain(0.0, 1.0, (1e-6, 1e-2), "relative")
_LARGEST = 40.0  # an infinite excess, for the interpolation
_FIRST_STEP = 0.1  # of log noise away from the start
_FARTHEST = 35.0  # no target needs e^35 times the noise that a Gaussian would
_LAST = 708.0  # of log noise, whose e^ is a float
_HALVINGS = 60  # of what the root finder leaves; never reached


class InfeasibleError(ValueError):
    """No value of the parameters meets the target.

    Args:
        message: One sentence with the constraint's name.
        nearest: The nearest feasible value of what the sentence names, NaN where there is none.
    """

    def __init__(self, message: str, nearest: float) -> None:
        super().__init__(message)
        self.nearest = nearest

    def __reduce__(self) -> tuple[type["InfeasibleError"], tuple[str, float]]:
        """So that the error comes back whole from another process."""
        return type(self), (str(self), self.nearest)


class NoiseBracket:
    """Every noise level tried: the least that was enough, the largest below it that was not.

    Args:
        excess: Noise (> 0) -> a number that is at most 0 where that noise is enough, and falls with the noise.
    """

    def __init__(self, excess: Callable[[float], float]) -> None:
        self._excess = excess
        self._known: dict[float, float] = {}
        self.enough, self.short = math.inf, 0.0

    @property
    def count(self) -> int:
        """How many noise levels were tried."""
        return len(self._known)

    def __call__(self, noise: float) -> float:
        """The excess, finite."""
        if noise in self._known:
            return self._known[noise]
        value = self._excess(noise)
        value = self._known[noise] = _LARGEST if math.isnan(value) else min(max(value, -_LARGEST), _LARGEST)
        if value <= 0:
            self.enough = min(self.enough, noise)
        elif noise < self.enough:
            self.short = max(self.short, noise)
        return value

    def log(self, log_noise: float) -> float:
        """The excess at e^log_noise."""
        return self(math.exp(log_noise))


def least_noise(excess: Callable[[float], float], start: float, tolerance: float) -> NoiseBracket:
    """Find the noise where the excess changes sign, to a factor of 1 + tolerance.

    Ever larger steps away from the start find a bracket, which Brent's method narrows in the logarithm of the noise.
    Where numerical error makes the excess uneven, the answer is still enough by its own evaluation.

    Args:
        excess: Noise (> 0) -> at most 0 where that is enough.
        start: Where to look first, > 0.
        tolerance: Relative, in (0, 1).

    Returns:
        What was tried: `enough` is inf where no noise was, `short` is 0 where all was.

    >>> found = least_noise(lambda noise: 3.0 - noise, start=50.0, tolerance=1e-6)
    >>> 3.0 <= found.enough <= 3.0 * (1 + 1e-6)
    True
    """
    TOLERANCE.validate("tolerance", tolerance)
    bracket = NoiseBracket(excess)
    here = min(max(math.log(start), -_LAST), _LAST)
    value = bracket.log(here)
    side = 1.0 if value > 0 else -1.0
    end, step = min(max(here + side * _FARTHEST, -_LAST), _LAST), _FIRST_STEP
    while (value > 0) == (side > 0):
        if here == end:
            return bracket
        before, before_value = here, value
        here = min(here + step, end) if side > 0 else max(here - step, end)
        value = bracket.log(here)
        # on to 1.3 times where a straight line would cross, at least 2 times and at most 4 times as far as before
        fallen = side * (before_value - value)
        step *= min(max(1.3 * side * value / fallen, 2.0), 4.0) if fallen > 0 else 4.0
    if value != 0 and before_value != 0:
        brentq(bracket.log, min(here, before), max(here, before), xtol=0.5 * tolerance)
    for _ in range(_HALVINGS):
        if bracket.enough <= bracket.short * (1 + tolerance):
            break
        bracket(math.sqrt(bracket.enough * bracket.short))
    return bracket


def shortest_between(low: float, high: float, *, most: int = 16) -> float | None:
    """The number with the fewest decimal digits in [low, high], the smallest such; None where none has so few.

    Args:
        low: > 0.
        high: At least low.
        most: Significant digits.

    >>> shortest_between(0.99973, 1.00031), shortest_between(2.4449, 2.4463), shortest_between(0.41, 0.44, most=1)
    (1.0, 2.445, None)
    """
    for digits in range(1, most + 1):
        up = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(repr(low))
        down = Context(prec=digits, rounding=ROUND_FLOOR).create_decimal(repr(high))
        for candidate in (float(up), float(down)):
            if low <= candidate <= high:
                return candidate
    return None
