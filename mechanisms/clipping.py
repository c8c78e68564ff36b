"""Clipping: how one record's contribution is held within the accounted norm."""

import numpy as np
from numpy.typing import ArrayLike

from dpaudit.mechanisms.base import CLIP, CLIP_NORM, Array, Mechanism

# a clipped record's norm is a few roundings away from clip; aiming this much lower keeps it on the right side
_MARGIN = 1.0 - 8 * float(np.finfo(np.float64).eps)


def norms(records: ArrayLike, order: float) -> Array:
    """The l_p norm of every record, (sum_j |x_ij|^p)^(1/p), without overflow or underflow on the way.

    Args:
        records: Finite, shape (n, d).
        order: p in [1, inf].

    Returns:
        Shape (n,).

    Raises:
        ValueError: p is outside its domain, `records` has another shape, or holds NaN or infinity.

    >>> norms(np.array([[3.0, -4.0], [1e-300, 0.0]]), 2)
    array([5.e+000, 1.e-300])
    """
    CLIP_NORM.validate("order", order)
    size = np.abs(_records(records))
    largest = size.max(axis=1, initial=0.0)
    if np.isinf(order):
        return np.asarray(largest)
    unit = np.divide(size, largest[:, None], out=size, where=largest[:, None] > 0)
    with np.errstate(under="ignore", over="ignore"):  # a norm beyond the largest float is infinite
        np.power(unit, order, out=unit)
        return np.asarray(largest * unit.sum(axis=1) ** (1.0 / order))


def clip_records(records: ArrayLike, clip: float, order: float) -> Array:
    """Clipped records: each scaled by min(1, clip / |record|_p), so that no norm exceeds clip, rounding included.

    Args:
        records: Finite, shape (n, d); left as they are.
        clip: Bound on the norm, in (0, inf).
        order: p in [1, inf].

    Returns:
        Shape (n, d); records within the bound are unchanged.

    Raises:
        ValueError: A parameter is outside its domain, or `records` holds NaN or infinity.

    >>> clip_records(np.array([[0.0, 2.0], [0.0, 0.5]]), 1.0, 2).round(12)
    array([[0. , 1. ],
           [0. , 0.5]])
    """
    CLIP.validate("clip", clip)
    values = _records(records)
    sizes = norms(values, order)
    beyond = sizes > clip
    factors = np.ones_like(sizes)
    # finite entries of infinite norm get the factor 0, which is within the bound too
    np.divide(clip * _MARGIN, sizes, out=factors, where=beyond)
    return np.asarray(values * factors[:, None])


def check_sensitivity(key: str, mechanism: Mechanism, least: float) -> None:
    """Refuse a mechanism that is accounted for less than the l2 sensitivity of a release without clipping.

    Args:
        key: What to call it in the message.
        mechanism: Its clip is the sensitivity it is accounted for.
        least: The sensitivity that there is.

    Raises:
        ValueError: Its clip is below `least`, or its norm below l2.
    """
    if mechanism.clip < least * (1 - 1e-9):
        raise ValueError(f"{key}.clip: Expected {mechanism.clip!r} to be at least {least:g}, the sensitivity.")
    if mechanism.clip_norm < 2:
        raise ValueError(f"{key}.clip_norm: Expected {mechanism.clip_norm!r} to be at least 2: sensitivity is in l2.")


def _records(records: ArrayLike) -> Array:
    values = np.asarray(records, dtype=np.float64)
    if values.ndim != 2:
        raise ValueError(f"Expected records.shape={values.shape} to be (n, d).")
    if not np.isfinite(values).all():
        row = int(np.flatnonzero(~np.isfinite(values).all(axis=1))[0])
        raise ValueError(f"Expected records to be finite: record {row} holds NaN or infinity.")
    return values
