"""Bounding one record's contribution in an l_p norm."""

import numpy as np

from dpaudit.mechanisms.base import Array


def norms(records: Array, order: float) -> Array:
    """l_p norms of the rows, shape (n,), scaled so that no power over- or underflows.

    Args:
        records: Shape (n, d), finite.
        order: p in [1, inf].

    Raises:
        ValueError: p < 1 or NaN, or a record is not finite.
    """
    if not order >= 1.0:
        raise ValueError(f"Expected order={order} in [1, inf].")
    values = np.abs(np.asarray(records, dtype=np.float64))
    if not np.isfinite(values).all():
        raise ValueError("Expected finite records.")
    largest = values.max(axis=1, initial=0.0)
    if np.isinf(order):
        return largest
    scale = np.where(largest > 0.0, largest, 1.0)
    return np.asarray(largest * np.power(np.power(values / scale[:, None], order).sum(axis=1), 1.0 / order))


def clip_records(records: Array, clip: float, order: float) -> Array:
    """Rows scaled down to l_p norm at most clip; shorter rows are left as they are.

    >>> clip_records(np.array([[3.0, 4.0], [0.3, 0.4]]), 1.0, 2.0)
    array([[0.6, 0.8],
           [0.3, 0.4]])
    """
    length = norms(records, order)
    factor = np.minimum(1.0, clip / np.where(length > 0.0, length, 1.0))
    return np.asarray(np.asarray(records, dtype=np.float64) * factor[:, None])
