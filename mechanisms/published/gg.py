"""gg: generalized Gaussian noise, accounted in one dimension by composing its privacy loss on a grid."""

import math

import numpy as np
from scipy.special import gammaincc

from dpaudit.mechanisms.base import Array, Domain, Mechanism
from dpaudit.mechanisms.generalized_gaussian import GeneralizedGaussian
from dpaudit.mechanisms.published.moments import PublishedValue, validate_release
from dpaudit.mechanisms.published.prv import GridLoss, OneCoordinate, composed_loss

_SHARE = 1e-3  # of delta, what each source of error may spend
_NATS = Domain(0.0, math.inf, (1e-4, 50.0), "nats")
_SAMPLES = Domain(1, math.inf, (10**4, 10**8), "samples", closed_low=True, integer=True)
_FAILURE = Domain(0.0, 1.0, (1e-9, 1e-2), "probability")
ACCURACY = 5e-3


def _one_coordinate(mechanism: Mechanism, sampling_prob: float) -> OneCoordinate:
    if not isinstance(mechanism, GeneralizedGaussian):
        raise TypeError(f"Expected mechanism={mechanism.name!r} to be 'generalized-gaussian'.")
    noise = GeneralizedGaussian(beta=float(mechanism.beta), scale=float(mechanism.scale), dimension=1)
    return OneCoordinate(noise, float(mechanism.clip), float(sampling_prob))


def privacy_loss_samples(mechanism: Mechanism, *, sampling_prob: float, size: int, rng: np.random.Generator) -> Array:
    """Draws of the loss of one coordinate moved by clip, from outputs with the record (gg, Proposition 1).

    L(o) = (|o|^beta - |o - c|^beta) / sigma^beta at o = c + noise. With Poisson sampling log(1 - q + q e^L), and o is
    moved with probability q only.

    Args:
        mechanism: Generalized Gaussian noise; its dimension is not looked at.
        sampling_prob: q in (0, 1].
        size: How many, at least 1.
        rng: Where they come from.

    Returns:
        Shape (size,).

    Raises:
        TypeError, ValueError: Another mechanism, or a value outside its domain.
    """
    validate_release(sampling_prob, 1, 0.0)
    _SAMPLES.validate("size", size)
    coordinate = _one_coordinate(mechanism, sampling_prob)
    return coordinate.loss(coordinate.sample(rng, size))


def b_2(
    mechanism: Mechanism, *, sampling_prob: float, steps: int, delta: float, accuracy: float = ACCURACY
) -> PublishedValue:
    """epsilon of ONE coordinate moved by clip, whatever the dimension (gg, Section B.2).

    "Accounting is dimension independent under l_beta sensitivity": the loss of Proposition 1, from its exact
    distribution function, composed T times by the fast Fourier transform (Gopi et al. 2021, Algorithm 1). The record's
    removal is accounted, as the code that the paper builds on does.

    Args:
        mechanism: Generalized Gaussian noise clipped in its own norm, clip_norm = beta; its dimension is not looked at.
        sampling_prob: q in (0, 1].
        steps: T, at least 1.
        delta: In [0, 1).
        accuracy: What rounding to the grid may add up to, in epsilon, where 2^20 points allow it.

    Returns:
        The value, with the proven bound on its numerical error.

    Raises:
        TypeError, ValueError: Another mechanism, another clip_norm, or a value outside its domain.

    >>> noise = GeneralizedGaussian(beta=2.0, scale=2**0.5 * 3.7306, clip_norm=2.0, dimension=1000)
    >>> round(b_2(noise, sampling_prob=1.0, steps=1, delta=1e-5).epsilon, 4)  # sigma = 3.7306, as in one dimension
    1.0
    """
    validate_release(sampling_prob, steps, delta)
    coordinate = _one_coordinate(mechanism, sampling_prob)
    if mechanism.clip_norm != coordinate.noise.beta:
        raise ValueError(
            f"Expected clip_norm={mechanism.clip_norm!r} to be beta={coordinate.noise.beta!r}: B.2 measures in l_beta."
        )
    return _one_dimensional(coordinate, steps=steps, delta=delta, accuracy=accuracy)


def theorem_2(
    mechanism: Mechanism, *, sampling_prob: float, steps: int, delta: float, accuracy: float = ACCURACY
) -> PublishedValue:
    """epsilon of ONE count moved by clip, for the noisy argmax of any number of counts (gg, Theorem 2).

    Args:
        mechanism: Generalized Gaussian noise on every count; neither dimension nor clip_norm are looked at.
        sampling_prob: q in (0, 1].
        steps: Queries answered, at least 1.
        delta: In [0, 1).
        accuracy: What rounding to the grid may add up to, in epsilon.

    Raises:
        TypeError, ValueError: Another mechanism, or a value outside its domain.
    """
    validate_release(sampling_prob, steps, delta)
    return _one_dimensional(_one_coordinate(mechanism, sampling_prob), steps=steps, delta=delta, accuracy=accuracy)


def _one_dimensional(coordinate: OneCoordinate, *, steps: int, delta: float, accuracy: float) -> PublishedValue:
    _NATS.validate("accuracy", accuracy)
    if delta == 0:
        largest = float(coordinate.loss(np.array([2 * coordinate.move]))[0]) if coordinate.noise.beta == 1 else math.inf
        return PublishedValue(steps * largest, {"reason": "the largest loss"})
    step = coordinate.rounded(steps=steps, accuracy=accuracy, slack=_SHARE * delta)
    return _composed(step, steps=steps, delta=delta)


def _composed(step: GridLoss, *, steps: int, delta: float, **settings: float) -> PublishedValue:
    """epsilon of T steps with its error, beside further settings."""
    whole = composed_loss(step, steps=steps, slack=_SHARE * delta)
    epsilon, error = whole.epsilon_with_error(delta)
    used = {
        **settings, "mesh": step.mesh, "truncation": step.mesh * len(step.masses) / 2,
        "epsilon_error": whole.epsilon_error, "delta_error": whole.delta_error,
    }  # fmt: skip
    return PublishedValue(epsilon, used, error)


def sampled_compose_prv(
    mechanism: Mechanism, *, sampling_prob: float, steps: int, delta: float, samples: int, mesh: float,
    truncation: float, failure_prob: float, rng: np.random.Generator,
) -> PublishedValue:  # fmt: skip
    """SampledComposePRV: epsilon from N drawn losses instead of their distribution (gg, Algorithms 5 and 6).

    The N draws that lie within the truncation are rounded to the grid; their frequencies, and the mean of what rounding
    took away, are composed T times. The error is that of Theorem 6, with constants of our own (see `composed_loss`):
    with probability 1 - failure_prob over the draws

    * the frequencies are within tau = sqrt(B/N)/2 + sqrt(log(2/failure_prob)/(2N)) of the rounded law in total
      variation, B grid points (Canonne 2020, Theorem 1), T tau for T steps;
    * the mean residue is within h sqrt(log(4/failure_prob)/(2N)) of its expectation, by Hoeffding.

    delta_error exceeds every useful delta unless N is larger than B T^2 / (4 delta^2): with 1e7 draws and an ordinary
    delta the error in epsilon is infinite.

    Args:
        mechanism: Generalized Gaussian noise; dimension and clip_norm are not looked at.
        sampling_prob: q in (0, 1].
        steps: T, at least 1.
        delta: In (0, 1).
        samples: N, at least 1.
        mesh: h > 0.
        truncation: L > 0, rounded up to a multiple of the mesh.
        failure_prob: Of the error bound, in (0, 1).
        rng: Where the draws come from.

    Returns:
        The value; its error holds with probability 1 - failure_prob.

    Raises:
        TypeError, ValueError: Another mechanism, a value outside its domain, or no draw within the truncation.
    """
    validate_release(sampling_prob, steps, delta)
    for name, value, domain in (
        ("samples", samples, _SAMPLES), ("mesh", mesh, _NATS), ("truncation", truncation, _NATS),
        ("failure_prob", failure_prob, _FAILURE), ("delta", delta, _FAILURE),
    ):  # fmt: skip
        domain.validate(name, value)
    coordinate = _one_coordinate(mechanism, sampling_prob)
    n = max(math.ceil(truncation / mesh), 2)
    drawn = coordinate.loss(coordinate.sample(rng, int(samples)))
    drawn = drawn[np.abs(drawn) <= (n - 0.5) * mesh * (1 - 1e-12)]
    if not len(drawn):
        raise ValueError(f"Expected truncation={truncation!r} to be larger: every drawn loss lies beyond it.")
    cells = np.rint(drawn / mesh).astype(np.int64)
    frequencies = np.bincount(cells + n, minlength=2 * n) / len(drawn)
    residue = float(np.mean(drawn - cells * mesh))
    distance = 0.5 * math.sqrt(2 * n / len(drawn)) + math.sqrt(math.log(2 / failure_prob) / (2 * len(drawn)))
    drift = mesh * math.sqrt(math.log(4 / failure_prob) / (2 * len(drawn)))
    step = GridLoss(frequencies, mesh, residue, mesh, drift, distance + coordinate.outside((n - 0.5) * mesh))
    return _composed(step, steps=steps, delta=delta, samples=float(len(drawn)), failure_prob=failure_prob)


def tail_weight(mechanism: Mechanism, threshold: Array) -> Array:
    """P(|x| > t) = Gamma(1/beta, (t/sigma)^beta) / Gamma(1/beta) of one coordinate of noise (gg, Section B.5).

    Args:
        mechanism: Generalized Gaussian noise.
        threshold: t >= 0, any shape.

    Raises:
        TypeError: Another mechanism.

    >>> noise = GeneralizedGaussian(beta=1.0, scale=2.0)
    >>> tail_weight(noise, np.array([0.0, 2.0])).round(6).tolist()  # e^(-t/scale)
    [1.0, 0.367879]
    """
    noise = _one_coordinate(mechanism, 1.0).noise
    power = (np.asarray(threshold, dtype=np.float64) / noise.scale) ** noise.beta
    return np.asarray(gammaincc(1.0 / noise.beta, power))
