"""Approximate-minima perturbation: noise in a convex objective, an approximate minimum of it, and noise on that.

Iyengar et al. (2019), "Towards Practical Differentially Private Convex Optimization", Algorithm 1; product,
Algorithm 3. On sums instead of means (the paper's values times n: b_1 = n n_1, Gamma = n gamma), for records of l2
norm at most 1 and a loss of the margin with slope in [-1, 0]:

    J(w) = sum_i loss(s_i <w, x_i>) + (Lambda/2) |w|^2 + <b_1, w>,   released: w~ + b_2 with |grad J(w~)| <= Gamma.

The noise that makes w the minimum is b(w; D) = -sum_i loss'(..) s_i x_i - Lambda w, a bijection, so the minimum has the
density f(b(w; D)) |det H(w; D)|. One record moves b by at most L = 1 (replacing it: 2), so the first release has
clip 1. Its Hessian has rank 1 and curvature at most beta: with one record more the determinant grows by a factor
1 + loss'' <x, H^-1 x> in [1, 1 + beta/Lambda]; replacing one multiplies it by at most that either way. The piecewise
constant Hessian of the Huber loss does no harm: the change of variables holds for Lipschitz maps almost everywhere
(Federer (1969), Theorem 3.2.5).

|w~ - argmin J| <= Gamma/Lambda for each of two neighbours, so the second release, of w~ - argmin J + b_2, has a
sensitivity of 2 Gamma/Lambda. The papers' proofs (Iyengar et al., Lemma IV.3; product, Appendix C.2) take Gamma/Lambda,
which bounds one of the two vectors and not their difference. Hence `output_mechanism.clip` is at least 2 Gamma/Lambda
for an add-remove claim, and Gamma/Lambda, half of the sensitivity, for a replace-one claim.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from dpaudit.mechanisms.base import Array
from dpaudit.mechanisms.clipping import check_sensitivity, clip_records
from dpaudit.mechanisms.learning.minimiser import (
    LIPSCHITZ,
    LOGISTIC,
    TOLERANCE,
    Loss,
    ToleranceError,
    find_minimum,
    minimum_ledger,
)
from dpaudit.mechanisms.learning.noise import Streams, draw, noise_stream
from dpaudit.mechanisms.learning.spec import ApproximateMinimaSpec, Pool, Progress, TrainedModels

HALF_WIDTH = 0.1  # h of the Huber loss (product, Appendix E.1)


def _huber(m: Array) -> Array:
    """1 - m left of 1 - h, 0 right of 1 + h, between them the parabola that joins them smoothly."""
    t = 1.0 - m
    middle = np.square(t) / (4 * HALF_WIDTH) + t / 2 + HALF_WIDTH / 4
    return np.where(t > HALF_WIDTH, t, np.where(t < -HALF_WIDTH, 0.0, middle))


def _huber_descent(m: Array) -> Array:
    return np.clip((1.0 - m + HALF_WIDTH) / (2 * HALF_WIDTH), 0.0, 1.0)


def _huber_curvature(m: Array) -> Array:
    return np.where(np.abs(1.0 - m) <= HALF_WIDTH, 1 / (2 * HALF_WIDTH), 0.0)


LOSSES: dict[str, Loss] = {
    "logistic": LOGISTIC,
    "huber": Loss(_huber, _huber_descent, _huber_curvature, 1 / (2 * HALF_WIDTH)),
}


def jacobian_loss(loss: str, regularization: float) -> float:
    """log(1 + beta / Lambda): what the determinants of two neighbours' Hessians add to the privacy loss at most.

    Args:
        loss: One of `LOSSES`.
        regularization: Lambda > 0.

    >>> round(jacobian_loss("logistic", 10.0), 6), round(jacobian_loss("huber", 10.0), 6)
    (0.024693, 0.405465)
    """
    return float(np.log1p(LOSSES[loss].smoothness / regularization))


def train(
    spec: ApproximateMinimaSpec,
    pool: Pool,
    members: NDArray[np.bool_],
    seeds: Sequence[int],
    *,
    device: str = "cpu",
    progress: Progress | None = None,
) -> TrainedModels:
    """Perturb the objective, find its approximate minimum and release that with noise, once per seed.

    Args:
        spec: `mechanism` is the law of b_1, `output_mechanism` that of b_2.
        pool: Records of two classes.
        members: Who trains which model, shape (models, records).
        seeds: One nonnegative integer per model.
        device: Ignored: minima are found on the CPU in float64.
        progress: Called with 1 after every model.

    Raises:
        ValueError: A parameter is missing, or a mechanism is accounted for a smaller sensitivity than there is.
        ToleranceError: No point with a gradient of norm at most Gamma was found; nothing is released then.
    """
    _check(spec, len(pool.y))
    factor = spec.defect.noise_scale(spec.expected_batch_size)
    cpu, inputs = torch.device("cpu"), pool.x.shape[1]
    released, draws = torch.empty(len(seeds), 1, inputs), 0
    for model, (row, seed) in enumerate(zip(members, seeds, strict=True)):
        stream = Streams(seed, cpu)
        noise = [
            factor * draw(mechanism, noise_stream(stream, spec.defect), inputs, cpu).double().numpy()
            for mechanism in spec.mechanisms
        ]
        if not np.isfinite(noise).all():
            raise ToleranceError(
                "Expected the noise of mechanism and output_mechanism to be finite: float32 holds no more."
            )
        x, y = pool.x[row], pool.y[row]
        minimum = find_minimum(
            spec.defect.clip(x, y, LIPSCHITZ, 2.0), y, spec.regularization, loss=LOSSES[spec.loss], linear=noise[0],
            accepted=math.inf,
        )  # fmt: skip
        reached = minimum.gradient_upper
        if not reached <= spec.gradient_norm:
            raise ToleranceError(
                f"Expected gradient_norm={spec.gradient_norm:g} to be at least {1.01 * reached:.3g}: a norm of "
                f"{reached:.3g}, rounding included, is the least that was reached. Raise gradient_norm, and "
                "output_mechanism.clip with it, or lower the noise of mechanism."
            )
        released[model, 0] = torch.from_numpy(minimum.weights + noise[1])
        draws = len(noise)
        if progress is not None:
            progress(1)
    return TrainedModels({"weight": released}, spec.architecture, minimum_ledger(spec, members[0], releases=draws))


def implied_noise(weights: Array, x: NDArray[np.float32], y: NDArray[np.int64], spec: ApproximateMinimaSpec) -> Array:
    """b(w; D) = -sum_i loss'(s_i <w, x_i>) s_i x_i - Lambda w: the noise that makes w the minimum on these records.

    Args:
        weights: w, shape (models, inputs).
        x: Records, shape (n, inputs); longer ones are scaled to norm 1.
        y: Labels 0 or 1, shape (n,).
        spec: Loss and regularization.

    Returns:
        Shape (models, inputs).

    >>> from dpaudit.mechanisms import Gaussian
    >>> from dpaudit.mechanisms.learning.spec import Architecture
    >>> spec = ApproximateMinimaSpec(
    ...     architecture=Architecture("logistic", 1, 2), mechanism=Gaussian(1.0), expected_batch_size=1.0,
    ...     regularization=2.0, output_mechanism=Gaussian(1.0), gradient_norm=1e-6,
    ... )
    >>> implied_noise(np.array([[1.0]]), np.zeros((0, 1), np.float32), np.zeros(0, np.int64), spec)
    array([[-2.]])
    """
    signed = clip_records(x, LIPSCHITZ, 2.0) * (2.0 * y - 1.0)[:, None]
    return np.asarray(LOSSES[spec.loss].descent(weights @ signed.T) @ signed - spec.regularization * weights)


def _check(spec: ApproximateMinimaSpec, records: int) -> None:
    if spec.loss not in LOSSES:
        raise ValueError(f"Expected loss={spec.loss!r} to be one of {', '.join(LOSSES)}.")
    if not spec.gradient_norm >= TOLERANCE * records:
        raise ToleranceError(
            f"Expected gradient_norm={spec.gradient_norm:g} >= {TOLERANCE * records:g}, {TOLERANCE:g} for each record: "
            "sums of so many gradients are rounded by about that much."
        )
    check_sensitivity("mechanism", spec.mechanism, LIPSCHITZ)
    check_sensitivity("output_mechanism", spec.output_mechanism, spec.gradient_norm / spec.regularization)
