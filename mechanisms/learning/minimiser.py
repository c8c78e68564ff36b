"""Output perturbation: the exact minimiser of regularised logistic regression, released once with noise.

Chaudhuri, Monteleoni and Sarwate (2011), "Differentially Private Empirical Risk Minimization", Algorithm 1: the
objective sum_i log(1 + exp(-s_i <w, x_i>)) + (Lambda/2) |w|^2 is Lambda-strongly convex, and a record of l2 norm at
most 1 has a gradient of norm at most L = 1, so replacing one record moves the minimiser by at most 2 L / Lambda
(their Corollary 8), adding or removing one by at most L / Lambda.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.sparse.linalg import LinearOperator, cg
from scipy.special import expit

from dpaudit.mechanisms.base import Array
from dpaudit.mechanisms.clipping import check_sensitivity, clip_records
from dpaudit.mechanisms.learning.noise import Streams, draw, noise_stream
from dpaudit.mechanisms.learning.spec import (
    Ledger,
    MinimumSpec,
    OutputPerturbationSpec,
    Pool,
    Progress,
    TrainedModels,
)
from dpaudit.mechanisms.numerics import UNIT

LIPSCHITZ = 1.0  # of the logistic loss on records of l2 norm at most 1
TOLERANCE = 1e-10  # largest gradient norm accepted, per record
NEWTON_STEPS = 30
REMEMBERED_MINIMA = 8  # more than one: blocks of releases from the same few data sets follow each other


@dataclass(frozen=True)
class Loss:
    """A convex loss of the margin m = s <w, x>, with a slope in [-1, 0]: 1-Lipschitz in w for records of norm <= 1.

    Args:
        value: loss(m).
        descent: -loss'(m), in [0, 1].
        curvature: loss''(m), where it exists.
        smoothness: beta, the largest curvature.
    """

    value: Callable[[Array], Array]
    descent: Callable[[Array], Array]
    curvature: Callable[[Array], Array]
    smoothness: float


LOGISTIC = Loss(lambda m: np.logaddexp(0.0, -m), lambda m: expit(-m), lambda m: expit(m) * expit(-m), 0.25)


class ToleranceError(ValueError):
    """The gradient at the minimum cannot be made as small as was asked for; the message says how small it gets.

    It depends on the records, so it is for the eyes of whoever trains.
    """


@dataclass(frozen=True)
class Minimum:
    """A minimiser, and how far the true one can be.

    Args:
        weights: w, shape (inputs,).
        gradient_upper: Bound on the l2 norm of the gradient there, rounding included. Divided by Lambda it bounds
            |w - w*|, as the objective is Lambda-strongly convex (Boyd and Vandenberghe (2004), eq. (9.11) without its
            factor 2: |g| |w - w*| >= <g, w - w*> >= Lambda |w - w*|^2).
    """

    weights: Array
    gradient_upper: float


def minimise(x: NDArray[np.floating], y: NDArray[np.int64], regularization: float) -> Array:
    """The minimiser of (1/n) sum log(1 + exp(-s <w, x>)) + (Lambda / 2n) |w|^2, records scaled to l2 norm <= 1.

    Args:
        x: Records, shape (n, inputs); a row longer than 1 is divided by its norm.
        y: Labels 0 or 1, shape (n,); s = 2 y - 1.
        regularization: Lambda > 0.

    Returns:
        Shape (inputs,).

    Raises:
        ValueError: Labels other than 0 and 1, Lambda not positive, a record that is not finite.
        ToleranceError: The gradient did not get small enough.

    >>> x = np.array([[1.0, 0.0], [-1.0, 0.0]])
    >>> minimise(x, np.array([1, 0]), 2.0).round(6)  # the root of w = 1 / (1 + e^w)
    array([0.401058, 0.      ])
    """
    return find_minimum(clip_records(x, 1.0, 2.0), y, regularization).weights


def find_minimum(
    x: Array,
    y: NDArray[np.int64],
    regularization: float,
    *,
    loss: Loss = LOGISTIC,
    linear: Array | None = None,
    accepted: float | None = None,
) -> Minimum:
    """The minimiser for records as they are, by L-BFGS, then Newton's method to the last digits.

    Args:
        x: Records, shape (n, inputs), used as given.
        y: Labels 0 or 1, shape (n,).
        regularization: Lambda > 0.
        loss: Of the margin.
        linear: b of a further term <b, w>, shape (inputs,).
        accepted: Largest gradient norm accepted, rounding included: None for 1e-10 per record, inf for any.

    Raises:
        ValueError: Labels other than 0 and 1, or Lambda not positive.
        ToleranceError: The gradient did not get small enough.
    """
    if not (math.isfinite(regularization) and regularization > 0):
        raise ValueError(f"Expected regularization={regularization!r} in (0, inf).")
    if not np.isin(y, (0, 1)).all():
        raise ValueError(f"Expected labels {sorted(set(y.tolist()))} to be 0 and 1.")
    signed = np.asarray(x, dtype=np.float64) * (2.0 * y - 1.0)[:, None]
    extra = np.zeros(signed.shape[1]) if linear is None else linear

    def objective(w: Array) -> tuple[float, Array]:
        value = loss.value(signed @ w).sum() + 0.5 * regularization * (w @ w) + extra @ w
        return float(value), gradient(w)

    def gradient(w: Array) -> Array:
        return np.asarray(regularization * w - loss.descent(signed @ w) @ signed + extra)

    w = minimize(objective, np.zeros(signed.shape[1]), jac=True, method="L-BFGS-B", options={"gtol": 1e-6}).x
    best, size = w, float(np.linalg.norm(gradient(w)))
    for _ in range(NEWTON_STEPS):
        w = best - _newton_step(signed, loss.curvature(signed @ best), gradient(best), regularization)
        next_size = float(np.linalg.norm(gradient(w)))
        if next_size >= 0.5 * size:  # only rounding is left
            break
        best, size = w, next_size
    size += _rounding(signed, best, loss, regularization * float(np.linalg.norm(best)) + float(np.linalg.norm(extra)))
    bound = TOLERANCE * max(len(signed), 1) if accepted is None else accepted
    if not size <= bound:
        raise ToleranceError(
            f"Expected a gradient of norm at most {bound:g} at the minimum: with regularization={regularization:g} the "
            f"least that can be vouched for is {size:g}, rounding included; another regularization may do."
        )
    return Minimum(best, size)


def _rounding(signed: Array, w: Array, loss: Loss, others: float) -> float:
    """Bound on the l2 norm of the error of the computed gradient at w.

    Products of k terms are off by at most k u / (1 - k u) times their moduli (Higham (2002), Section 3.1): margins by
    p u |x_i| |w|, which moves a slope by at most the smoothness times that, beside a few u of its own; sums over the n
    records by n u |x_i| each, as no slope exceeds 1. The last terms, of size `others` and |sum|, are added with 4 u.
    """
    records, inputs = signed.shape
    lengths, unit = np.linalg.norm(signed, axis=1), 1.01 * UNIT
    slopes = loss.smoothness * (inputs + 2) * float(np.linalg.norm(w)) * lengths + 8 + records
    return unit * (float(lengths @ slopes) + 4 * (others + float(lengths.sum())))


def _newton_step(signed: Array, curvature: Array, gradient: Array, regularization: float) -> Array:
    def times_hessian(v: Array) -> Array:
        return np.asarray(regularization * v + (curvature * (signed @ v)) @ signed)

    hessian = LinearOperator((len(gradient), len(gradient)), matvec=times_hessian, dtype=np.float64)
    return np.asarray(cg(hessian, gradient, rtol=1e-6)[0])


def train(
    spec: OutputPerturbationSpec,
    pool: Pool,
    members: NDArray[np.bool_],
    seeds: Sequence[int],
    *,
    device: str = "cpu",
    progress: Progress | None = None,
) -> TrainedModels:
    """Release the minimiser with noise, once per seed; models with the same members share their minimiser.

    Args:
        spec: Output perturbation; `mechanism.clip` is half the replace-one sensitivity, L / Lambda with L = 1.
        pool: Records of two classes.
        members: Who trains which model, shape (models, records).
        seeds: One nonnegative integer per model.
        device: Ignored: the minimiser is found on the CPU in float64.
        progress: Called with 1 after every release.

    Raises:
        ValueError: The mechanism is accounted for a smaller sensitivity than the objective has.
        ToleranceError: The gradient at the minimum did not get small enough; nothing is released then.
    """
    check_sensitivity("mechanism", spec.mechanism, LIPSCHITZ / spec.regularization)
    factor = spec.defect.noise_scale(spec.expected_batch_size)
    cpu, inputs = torch.device("cpu"), pool.x.shape[1]
    released = torch.empty(len(seeds), 1, inputs)
    minima: dict[bytes, torch.Tensor] = {}
    noise = torch.empty(inputs)
    for model, (row, seed) in enumerate(zip(members, seeds, strict=True)):
        key = np.packbits(row).tobytes()
        if key not in minima:
            minima[key] = torch.from_numpy(_solved(spec, pool.x[row], pool.y[row]).weights)
        draw(spec.mechanism, noise_stream(Streams(seed, cpu), spec.defect), inputs, cpu, out=noise)
        released[model, 0] = minima[key] + factor * noise
        if progress is not None:
            progress(1)
    return TrainedModels({"weight": released}, spec.architecture, minimum_ledger(spec, members[0], releases=1))


def minimum_ledger(spec: MinimumSpec, members: NDArray[np.bool_], *, releases: int) -> Ledger:
    """What happened where so many noise vectors were drawn once each, for a minimum over these members."""
    return Ledger(
        noise_draws=releases,
        sampling_prob=1.0,
        batch_sizes=(int(members.sum()),),
        divisor=1.0,
        clip=float(spec.mechanism.clip),
        clip_norm=spec.defect.clipping_norm(2.0),
        device="cpu",
        engine="minimiser",
        releases=(1,) * releases,
    )


_SOLUTIONS: dict[bytes, Minimum] = {}


def _solved(spec: OutputPerturbationSpec, x: NDArray[np.float32], y: NDArray[np.int64]) -> Minimum:
    """The minimiser of these records, remembered: a pure function, so memory changes no result."""
    digest = hashlib.sha256(np.ascontiguousarray(x).tobytes() + np.ascontiguousarray(y).tobytes())
    digest.update(repr((x.shape, spec.regularization, spec.defect.clip_norm, spec.defect.unclipped_class)).encode())
    key = digest.digest()
    if key not in _SOLUTIONS:
        while len(_SOLUTIONS) >= REMEMBERED_MINIMA:
            _SOLUTIONS.pop(next(iter(_SOLUTIONS)))
        _SOLUTIONS[key] = find_minimum(spec.defect.clip(x, y, LIPSCHITZ, 2.0), y, spec.regularization)
    return _SOLUTIONS[key]
