"""plrvo: Laplace noise of Gamma-distributed inverse scale, accounted at a majorization vector."""

import math

import numpy as np
from scipy.special import gammainc

from dpaudit.mechanisms.base import Array, Mechanism, require_dimension
from dpaudit.mechanisms.gamma_plrv import GammaPLRV
from dpaudit.mechanisms.gamma_plrv_iid import GammaPLRVIID
from dpaudit.mechanisms.numerics import gaussian_delta
from dpaudit.mechanisms.published import lap2
from dpaudit.mechanisms.published.majorization import (
    InverseScale,
    coordinate_moment_excess,
    least_epsilon,
    majorization_log_moments,
)
from dpaudit.mechanisms.published.moments import MAX_ORDER, PublishedValue, validate_release

GammaMechanism = GammaPLRV | GammaPLRVIID


def _gamma(mechanism: Mechanism) -> GammaMechanism:
    """Either reading of the paper: one scale per vector (Definition 4.6) or per coordinate (its released code)."""
    if not isinstance(mechanism, (GammaPLRV, GammaPLRVIID)):
        raise TypeError(f"Expected mechanism={mechanism.name!r} to be 'gamma-plrv' or 'gamma-plrv-iid'.")
    return mechanism


def _law(mechanism: GammaMechanism) -> InverseScale:
    return InverseScale(float(mechanism.k) * float(mechanism.theta), float(mechanism.k))


# Theorems 4.2 and 4.5 account Laplace noise: one coordinate moved by C, and the majorization vector. The formulas are
# those that lap2 prints.
theorem_4_2 = lap2.theorem_iii_2
theorem_4_5 = lap2.theorem_iii_7


def theorem_4_8(
    mechanism: Mechanism, *, sampling_prob: float, steps: int, delta: float, max_order: int = MAX_ORDER
) -> PublishedValue:
    """epsilon from alpha = T log sum_eta w_eta G(C, eta): one coordinate (plrvo, Theorem 4.8).

    G(x, eta) = eta/(2 eta-1) M_u((eta-1)x) + (eta-1)/(2 eta-1) M_u(-eta x), M_u(t) = (1 - theta t)^-k, infinite from
    theta t = 1 on.

    Args:
        mechanism: Gamma-PLRV noise of either kind; its dimension is not looked at, the theorem is univariate.
        sampling_prob: zeta in (0, 1].
        steps: T, at least 1.
        delta: In [0, 1).
        max_order: Last moment tried.

    Raises:
        TypeError, ValueError: Another mechanism, or a value outside its domain.
    """
    return least_epsilon(
        _law(_gamma(mechanism)), clip=mechanism.clip, dimension=None, sampling_prob=sampling_prob, steps=steps,
        delta=delta, max_order=max_order,
    )  # fmt: skip


def theorem_4_9(
    mechanism: Mechanism, *, sampling_prob: float, steps: int, delta: float, max_order: int = MAX_ORDER
) -> PublishedValue:
    """epsilon from alpha = T sum_i log sum_eta w_eta G(x_i, eta), x_i = C (sqrt i - sqrt(i-1)) (plrvo, Theorem 4.9).

    Coordinates are subsampled one by one although they are sampled together, and the expectation over a scale that
    may be shared is taken inside the sum: the value may lie below the true epsilon.

    Args:
        mechanism: Gamma-PLRV noise of either kind, its dimension set, clip_norm at most 2.
        sampling_prob: zeta in (0, 1].
        steps: T, at least 1.
        delta: In [0, 1).
        max_order: Last moment tried.

    Raises:
        TypeError, ValueError: Another mechanism, no dimension, or a value outside its domain.

    >>> mechanism = GammaPLRV(k=40_000.0, theta=6e-5, clip=0.5, dimension=26_000)
    >>> value = theorem_4_9(mechanism, sampling_prob=0.01, steps=300, delta=1e-5)
    >>> round(value.epsilon, 4), value.settings["order"]
    (1.6069, 11.0)
    """
    law = _law(_gamma(mechanism))
    lap2.require_l2(mechanism)
    return least_epsilon(
        law, clip=mechanism.clip, dimension=require_dimension(mechanism), sampling_prob=sampling_prob, steps=steps,
        delta=delta, max_order=max_order,
    )  # fmt: skip


def algorithm_2(
    order: int, *, sampling_prob: float, k: float, theta: float, population: int, clip: float
) -> tuple[float, float]:
    """alpha_lam of one step, the sum that Algorithm 2 runs over i = 1, ..., N, for any N (plrvo, Algorithm 2).

    The far coordinates are grouped (`majorization_log_moments` has the proof), so N = 10^8 takes milliseconds.

    Args:
        order: lam, an integer at least 1.
        sampling_prob: zeta in (0, 1].
        k: Shape of the Gamma law, > 0.
        theta: Its scale, > 0.
        population: N, the coordinates, at least 1.
        clip: C > 0.

    Returns:
        The log-moment, infinite where theta lam C >= 1, and a bound on its error.

    Raises:
        TypeError, ValueError: A value outside its domain.
    """
    validate_release(sampling_prob, order, 0.0)
    mechanism = GammaPLRV(k=k, theta=theta, clip=clip, dimension=population)
    value, error = majorization_log_moments(
        _law(mechanism), np.array([float(order)]), clip=clip, dimension=population, sampling_prob=sampling_prob
    )
    return float(value[0]), float(error[0])


def distortion(mechanism: Mechanism) -> float:
    """E|z_i| = 1 / ((k-1) theta), infinite for k <= 1; printed as that of |z|_1 (plrvo, Theorem 5.1).

    Raises:
        TypeError: Another mechanism.

    >>> round(distortion(GammaPLRV(k=141.06, theta=8.32e-4)), 2)  # printed in Table 2
    8.58
    """
    noise = _gamma(mechanism)
    return 1 / ((noise.k - 1) * noise.theta) if noise.k > 1 else math.inf


def objective(mechanism: Mechanism) -> float:
    """J = C (k-1) theta, the signal-to-noise ratio that Algorithm 1 maximises (plrvo, Algorithm 1).

    Raises:
        TypeError: Another mechanism.
    """
    noise = _gamma(mechanism)
    return noise.clip * (noise.k - 1) * noise.theta


def constraint_slacks(
    mechanism: Mechanism, *, clip_min: float, clip_max: float, epsilon: float, epsilon_target: float,
    max_order: int, cdf_at_tenth: float = 1e-3,
) -> dict[str, float]:  # fmt: skip
    """How far each constraint of Algorithm 1 is from being violated: at least 0 where it is met (plrvo, Section 5.1).

    c0: C_min <= C <= C_max. mgf: lam_max C theta < 1. c1: GammaCDF(0.1; k, theta) "close to 0", b rarely above 10.
    c2: the accountant's epsilon within the target. c3: k > 1. c4: theta >= 0.1/(k-1), a distortion of at most 10,
    kept as (k-1) theta - 0.1 so that it stays finite at k = 1.

    Args:
        mechanism: Gamma-PLRV noise of either kind.
        clip_min: C_min > 0.
        clip_max: C_max > 0.
        epsilon: Of whatever accountant is used.
        epsilon_target: What it may be.
        max_order: lam_max.
        cdf_at_tenth: What counts as close to 0 in c1; the paper gives no number, its released code 0.001.

    Returns:
        {"c0_min", "c0_max", "mgf", "c1", "c2", "c3", "c4"}.

    Raises:
        TypeError: Another mechanism.
    """
    noise = _gamma(mechanism)
    return {
        "c0_min": noise.clip - clip_min,
        "c0_max": clip_max - noise.clip,
        "mgf": 1 - max_order * noise.clip * noise.theta,
        "c1": cdf_at_tenth - float(gammainc(noise.k, 0.1 / noise.theta)),
        "c2": epsilon_target - epsilon,
        "c3": noise.k - 1,
        "c4": (noise.k - 1) * noise.theta - 0.1,
    }


def search_space_slacks(mechanism: Mechanism, *, noise_multiplier: float, max_order: int) -> dict[str, float]:
    """How far a configuration is inside the search space around a Gaussian baseline (plrvo, Theorem D.1).

    moments: min over eta = 2, ..., lam_max + 1 of (eta^2 - eta)/(2 sigma^2) - log G(C, eta). distortion:
    sqrt(2/pi) C sigma - 1/((k-1) theta). A configuration belongs to the space where both are at least 0.

    Args:
        mechanism: Gamma-PLRV noise of either kind.
        noise_multiplier: sigma of the Gaussian baseline, > 0.
        max_order: lam_max, at least 1.

    Raises:
        TypeError: Another mechanism.
    """
    noise = _gamma(mechanism)
    eta = np.arange(2.0, max_order + 2)
    excess = coordinate_moment_excess(_law(noise), eta, np.array([float(noise.clip)]))[0]
    return {
        "moments": float(np.min((eta * eta - eta) / (2 * noise_multiplier**2) - np.log1p(excess))),
        "distortion": math.sqrt(2 / math.pi) * noise.clip * noise_multiplier - distortion(noise),
    }


def shape_bounds(eta: Array, *, clip: float, theta: float) -> tuple[Array, Array]:
    """k_1 and k_2 as printed: [4 log(1 - C theta (eta-1)) -+ sqrt(D)] / (2 C^2 theta^2 (eta - eta^2)).

    D = 16 log^2(1 + C theta - C eta theta) + 11.09375 C^2 theta^2 (eta - eta^2) (plrvo, Corollary D.2). As printed
    k_1 > k_2 wherever they are real, since both numerators and the denominator are negative; and for C theta -> 0
    they are real from eta = 4 on only. No k lies between them for every eta.

    Args:
        eta: Integers from 2 on, shape (m,).
        clip: C > 0.
        theta: theta > 0.

    Returns:
        (k_1, k_2), shape (m,) each; NaN where the square root is not real.

    >>> k1, k2 = shape_bounds(np.array([2.0, 30.0]), clip=0.5, theta=6e-5)
    >>> np.isnan(k1).tolist(), bool(k1[1] > k2[1])
    ([True, False], True)
    """
    eta = np.asarray(eta, dtype=np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        logs = np.log1p(-clip * theta * (eta - 1))
        spread = (clip * theta) ** 2 * (eta - eta**2)
        root = np.sqrt(16 * logs**2 + 11.09375 * spread)
        return (4 * logs - root) / (2 * spread), (4 * logs + root) / (2 * spread)


def delta_test_ratio(*, sigma: float, scale: float, epsilon: float) -> float:
    """delta(epsilon) of one Gaussian release over that of one Laplace release, sensitivity 1 (plrvo, Figure 1).

    Gaussian: Phi(1/(2 sigma) - epsilon sigma) - e^epsilon Phi(-1/(2 sigma) - epsilon sigma) (Balle and Wang 2018,
    Theorem 8). Laplace: 1 - e^((epsilon - 1/b)/2) up to epsilon = 1/b and 0 beyond. The figure's test is epsilon -> 0.

    Args:
        sigma: Standard deviation of the Gaussian noise, > 0.
        scale: b of the Laplace noise, > 0; the figure does not say which b it sets beside a sigma.
        epsilon: At least 0.

    Returns:
        The ratio; infinite where only the Laplace delta is 0.

    >>> round(delta_test_ratio(sigma=10.0, scale=10.0, epsilon=0.0), 3)
    0.818
    """
    laplace = -math.expm1(0.5 * (epsilon - 1 / scale)) if epsilon * scale < 1 else 0.0
    return gaussian_delta(1 / sigma, epsilon) / laplace if laplace > 0 else math.inf
