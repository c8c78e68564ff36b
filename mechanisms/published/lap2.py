"""lap2: Laplace noise under l2 clipping, accounted coordinate by coordinate at a majorization vector."""

import math

import numpy as np

from dpaudit.mechanisms.base import Array, Mechanism, require_dimension
from dpaudit.mechanisms.gaussian import Gaussian
from dpaudit.mechanisms.laplace import Laplace
from dpaudit.mechanisms.published.majorization import InverseScale, least_epsilon, majorization_log_moments
from dpaudit.mechanisms.published.moments import (
    MAX_ORDER,
    PublishedValue,
    delta_from_moments,
    gaussian_log_moments,
    validate_release,
)


def laplace_law_of(mechanism: Mechanism, *, within_l2: bool = True) -> InverseScale:
    """Law of the inverse scale of a Laplace mechanism, the constant 1/b, if the theorem applies to it.

    Args:
        mechanism: Laplace noise.
        within_l2: Whether contributions must lie in the l2 ball of radius clip.

    Raises:
        TypeError: Another mechanism.
        ValueError: clip_norm is above 2, so that contributions may leave the l2 ball.
    """
    if not isinstance(mechanism, Laplace):
        raise TypeError(f"Expected mechanism={mechanism.name!r} to be 'laplace'.")
    if within_l2:
        require_l2(mechanism)
    return InverseScale(1.0 / float(mechanism.scale))


def require_l2(mechanism: Mechanism) -> None:
    """Refuse a clipping norm whose unit ball is not inside that of l2.

    Raises:
        ValueError: clip_norm is above 2.
    """
    if mechanism.clip_norm > 2:
        raise ValueError(f"Expected clip_norm={mechanism.clip_norm!r} in [1, 2]: the theorem clips in l2.")


def theorem_iii_2(
    mechanism: Mechanism, *, sampling_prob: float, steps: int, delta: float, max_order: int = MAX_ORDER
) -> PublishedValue:
    """epsilon from alpha = T log sum_eta w_eta F(C/b, eta): one coordinate (lap2, Theorem III.2).

    Args:
        mechanism: Laplace noise; its dimension is not looked at, the theorem is univariate.
        sampling_prob: zeta in (0, 1].
        steps: T, at least 1.
        delta: In [0, 1).
        max_order: Last moment tried.

    Raises:
        TypeError, ValueError: Another mechanism, or a value outside its domain.
    """
    return least_epsilon(
        laplace_law_of(mechanism, within_l2=False), clip=mechanism.clip, dimension=None, sampling_prob=sampling_prob,
        steps=steps, delta=delta, max_order=max_order,
    )  # fmt: skip


def theorem_iii_7(
    mechanism: Mechanism, *, sampling_prob: float, steps: int, delta: float, max_order: int = MAX_ORDER
) -> PublishedValue:
    """epsilon from alpha = T sum_i log sum_eta w_eta F(x_i/b, eta), x_i = C (sqrt i - sqrt(i-1)).

    lap2, Theorem III.7, with its conversion (Balle et al. 2020). Every coordinate is subsampled by itself, although
    they are sampled together: the value may lie below the true epsilon.

    Args:
        mechanism: Laplace noise, its dimension set, clip_norm at most 2.
        sampling_prob: zeta in (0, 1].
        steps: T, at least 1.
        delta: In [0, 1).
        max_order: Last moment tried.

    Raises:
        TypeError, ValueError: Another mechanism, no dimension, or a value outside its domain.

    >>> mechanism = Laplace(scale=1.521, clip=1.0, dimension=26_000)
    >>> round(theorem_iii_7(mechanism, sampling_prob=0.0043, steps=5860, delta=1e-5).epsilon, 2)
    1.68
    """
    return least_epsilon(
        laplace_law_of(mechanism), clip=mechanism.clip, dimension=require_dimension(mechanism),
        sampling_prob=sampling_prob, steps=steps, delta=delta, max_order=max_order,
    )  # fmt: skip


def initial_scale(clip: float, *, sampling_prob: float, steps: int, epsilon: float, delta: float) -> float:
    """b* = (2 zeta / epsilon) sqrt(T log(1/delta)) C, where the search for b starts (lap2, Section IV-B).

    Args:
        clip: C > 0.
        sampling_prob: zeta in (0, 1].
        steps: T, at least 1.
        epsilon: Target, > 0.
        delta: In (0, 1).

    >>> round(initial_scale(1.0, sampling_prob=0.0043, steps=5860, epsilon=1.68, delta=1e-5), 4)
    1.3296
    """
    return 2 * sampling_prob / epsilon * math.sqrt(steps * math.log(1 / delta)) * clip


def right_wall_slope(noise: Array, epsilon: Array) -> Array:
    """W_R = |d log(noise) / d log(epsilon)| along a curve of noise against epsilon (lap2, Figure 4, top row).

    Args:
        noise: Noise scales (sigma or b), > 0, shape (n,), n >= 3.
        epsilon: What the accountant says each costs, shape (n,).

    Returns:
        Shape (n,): second-order differences in log-log coordinates, one-sided at the ends.

    >>> right_wall_slope(np.array([1.0, 2.0, 4.0]), np.array([8.0, 4.0, 2.0])).round(9).tolist()
    [1.0, 1.0, 1.0]
    """
    return np.asarray(np.abs(np.gradient(np.log(noise), np.log(epsilon), edge_order=2)))


def left_wall_ratio(
    epsilon: Array, mechanism: Mechanism, gaussian: Gaussian, *, sampling_prob: float, steps: int,
    max_order: int = 256,
) -> Array:  # fmt: skip
    """delta_g(epsilon) / delta_L2(epsilon), both by the tail bound of eq. (II.9) (lap2, Figure 4, bottom row).

    The paper calls the first epsilon with a ratio above 2 the onset of saturation. It does not say which Gaussian
    belongs to which b; the caller does.

    Args:
        epsilon: Shape (n,), at least 0.
        mechanism: Laplace noise with its dimension, accounted by Theorem III.7.
        gaussian: Accounted by plrvo's eq. (8).
        sampling_prob: zeta in (0, 1].
        steps: T.
        max_order: Last moment tried.

    Returns:
        Shape (n,).
    """
    validate_release(sampling_prob, steps, 0.0)
    orders = np.arange(1.0, max_order + 1)
    ours = steps * majorization_log_moments(
        laplace_law_of(mechanism), orders, clip=mechanism.clip, dimension=require_dimension(mechanism),
        sampling_prob=sampling_prob,
    )[0]  # fmt: skip
    theirs = steps * gaussian_log_moments(
        orders, noise_multiplier=float(gaussian.noise_multiplier), sampling_prob=sampling_prob
    )
    return delta_from_moments(theirs, orders, epsilon) / delta_from_moments(ours, orders, epsilon)
