"""The toolkit audits itself: how often is each statistical bound wrong on mechanisms whose truth is known?"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.special import betainc, expit

from dpaudit.mechanisms import Gaussian, Laplace
from dpaudit.mechanisms.base import Array, Mechanism
from dpaudit.verify.bounds import (
    BOUNDS,
    JointTest,
    Tradeoff,
    choose_threshold,
    epsilon_gdp,
    epsilon_one_run,
    gaussian_delta,
    gaussian_epsilon,
    one_run_from_scores,
)
from dpaudit.verify.bounds.one_run import Method
from dpaudit.verify.bounds.rates import TRIALS, valid_count

CONFIDENCE = 0.9  # low, so that errors happen and can be counted
CHANCE = 1e-6  # that a row of a valid bound fails by bad luck
SELECTION, COUNTED, CANARIES = 50, 150, 120
GAUSSIAN = Gaussian(noise_multiplier=1.0, clip=1.0, dimension=1)  # mu = 1
LAPLACE = Laplace(scale=1.0, clip=1.0, dimension=1)  # epsilon = 1 at delta = 0

Audit = Callable[[np.random.Generator], bool]  # one audit of a correct mechanism: did it raise a false alarm?


@dataclass(frozen=True)
class ErrorRate:
    """The measured error rate of one bound at one correct mechanism.

    Args:
        bound: Name of the bound.
        mechanism: The mechanism with its truth.
        confidence: Level the bound was asked for.
        trials: Audits carried out.
        false_alarms: Audits in which the bound contradicted the truth.
        allowed: A bound that keeps its level exceeds this with probability at most CHANCE.
    """

    bound: str
    mechanism: str
    confidence: float
    trials: int
    false_alarms: int
    allowed: int

    @property
    def passed(self) -> bool:
        """Whether the measured rate is compatible with the stated level."""
        return self.false_alarms <= self.allowed


def measure_error_rates(
    rng: np.random.Generator, *, trials: int, progress: Callable[[int], None] | None = None
) -> list[ErrorRate]:
    """Audit correct mechanisms again and again, and count how often each bound contradicts the known truth.

    Every case includes what users run: sampling the mechanism, choosing a threshold on one part, counting on another.

    Args:
        rng: Source of all randomness.
        trials: Audits of each case, at least 1; 1000 tell an error rate of 0.15 from one of 0.1.
        progress: Told after each case how many audits were just done; None for silence.

    Returns:
        One row per case.

    Raises:
        ValueError: trials is not a positive integer.
    """
    valid_count("trials", trials, TRIALS)
    allowed = _binomial_limit(trials, 1.0 - CONFIDENCE)
    rows = []
    for (bound, mechanism), audit in cases().items():
        alarms = sum(audit(rng) for _ in range(trials))
        rows.append(ErrorRate(bound, mechanism, CONFIDENCE, trials, alarms, allowed))
        if progress:
            progress(trials)
    return rows


def cases() -> dict[tuple[str, str], Audit]:
    """(bound, mechanism) -> one audit of it, for every bound that is measured here."""
    of_counts: dict[tuple[str, str], Audit] = {}
    for name in BOUNDS:
        of_counts |= {
            (name, "randomised response, epsilon = 1"): partial(_counts_of_response, name),
            (name, "Laplace, epsilon = 1"): partial(_counts, name, LAPLACE, delta=0.0),
            (name, "Gaussian, mu = 1, epsilon = 1 at its delta"): partial(
                _counts, name, GAUSSIAN, delta=gaussian_delta(1.0, 1.0)
            ),
        }
    return {
        **of_counts,
        ("JointTest", "Laplace, its exact curve, and epsilon = 1"): partial(
            _joint, LAPLACE, Tradeoff.of(laplace_curve), 1.0, 0.0
        ),
        ("JointTest", "Gaussian, its exact curve, and epsilon = 1 at its delta"): partial(
            _joint, GAUSSIAN, Tradeoff.of(gaussian_curve), 1.0, gaussian_delta(1.0, 1.0)
        ),
        ("epsilon_gdp", "Gaussian, mu = 1, delta = 1e-5"): _gdp,
        ("epsilon_one_run, steinke", "randomised response, epsilon = 1"): partial(_one_run_response, delta=0.0),
        ("epsilon_one_run, steinke", "the same, all revealed with probability 0.02"): partial(
            _one_run_response, delta=0.02
        ),
        ("epsilon_one_run, steinke", "Laplace, epsilon = 1, chosen guesses"): partial(
            _one_run_scores, LAPLACE, epsilon=1.0, delta=0.0, method="steinke"
        ),
        ("epsilon_one_run, f-dp", "Gaussian, mu = 1, delta = 1e-5"): partial(
            _one_run_scores, GAUSSIAN, epsilon=gaussian_epsilon(1.0, 1e-5), delta=1e-5, method="f-dp"
        ),
    }


def laplace_curve(epsilon: Array) -> Array:
    """delta(epsilon) of one Laplace coordinate of scale 1 shifted by 1: (1 - e^((epsilon - 1)/2))_+."""
    return np.maximum(-np.expm1((np.asarray(epsilon) - 1.0) / 2.0), 0.0)


def gaussian_curve(epsilon: Array) -> Array:
    """delta(epsilon) of the Gaussian mechanism with mu = 1."""
    return np.array([gaussian_delta(1.0, float(e)) for e in np.asarray(epsilon)])


def _scores(mechanism: Mechanism, rng: np.random.Generator, size: int) -> tuple[Array, Array]:
    """Exact privacy losses, the strongest score there is, of `size` outputs with and without the record."""
    shift = np.ones(1)
    return (
        mechanism.privacy_loss(mechanism.sample(rng, size) + shift, shift),
        mechanism.privacy_loss(mechanism.sample(rng, size), shift),
    )


def _counts_of_response(name: str, rng: np.random.Generator) -> bool:
    tp, fp = (int(rng.binomial(COUNTED, expit(sign))) for sign in (1.0, -1.0))
    bound = BOUNDS[name](tp=tp, fp=fp, tn=COUNTED - fp, fn=COUNTED - tp, delta=0.0, confidence=CONFIDENCE)
    return bound.epsilon_lower > 1.0


def _counts(name: str, mechanism: Mechanism, rng: np.random.Generator, *, delta: float) -> bool:
    settings = {"delta": delta, "confidence": CONFIDENCE}
    cut = choose_threshold(*_scores(mechanism, rng, SELECTION), **settings, trials_in=COUNTED, trials_out=COUNTED)
    tp, fp = (int((scores > cut).sum()) for scores in _scores(mechanism, rng, COUNTED))
    bound = BOUNDS[name](tp=tp, fp=fp, tn=COUNTED - fp, fn=COUNTED - tp, **settings)
    return bound.epsilon_lower > 1.0


def _joint(mechanism: Mechanism, allowed: Tradeoff, epsilon: float, delta: float, rng: np.random.Generator) -> bool:
    """Both uses of the joint test on the same scores, which share one error probability."""
    inside, outside = _scores(mechanism, rng, COUNTED)
    test = JointTest(inside, outside, allowed, confidence=CONFIDENCE, seed=int(rng.integers(2**31)))
    return test.rejects(allowed) or test.rejects(Tradeoff.of_points([epsilon], [delta]))


def _gdp(rng: np.random.Generator) -> bool:
    bound = epsilon_gdp(*_scores(GAUSSIAN, rng, COUNTED), delta=1e-5, confidence=CONFIDENCE)
    return bound.epsilon_lower > gaussian_epsilon(1.0, 1e-5)


def _one_run_response(rng: np.random.Generator, *, delta: float) -> bool:
    correct = CANARIES if rng.random() < delta else int(rng.binomial(CANARIES, expit(1.0)))
    bound = epsilon_one_run(canaries=CANARIES, guesses=CANARIES, correct=correct, delta=delta, confidence=CONFIDENCE)
    return bound.epsilon_lower > 1.0


def _one_run_scores(
    mechanism: Mechanism, rng: np.random.Generator, *, epsilon: float, delta: float, method: Method
) -> bool:
    coins = rng.random(CANARIES) < 0.5
    scores = np.where(coins, *_scores(mechanism, rng, CANARIES))
    bound = one_run_from_scores(scores, coins, delta=delta, confidence=CONFIDENCE, method=method)
    return bound.epsilon_lower > epsilon


def _binomial_limit(trials: int, rate: float) -> int:
    """Smallest count that Binomial(trials, rate) exceeds with probability at most CHANCE."""
    counts = np.arange(trials)
    exceeds = betainc(counts + 1.0, trials - counts, rate)  # P(X > count)
    return int(np.argmax(np.append(exceeds, 0.0) <= CHANCE))
