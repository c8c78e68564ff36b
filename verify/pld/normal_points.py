"""Operating points of one normal release in closed form, however small the probabilities."""

import numpy as np
from scipy.special import log_ndtr, logsumexp, ndtr

from dpaudit.mechanisms.base import Array
from dpaudit.mechanisms.numerics import UNIT
from dpaudit.verify.pld.cells import MixturePair
from dpaudit.verify.pld.normal_tails import tail_error
from dpaudit.verify.pld.operating_points import Points, merge

REACH = 38.4  # standard deviations, beyond which a tail is below the range of floats
NEAR, SPACING, WIDE = 12.0, 0.002, 0.008  # spacing costs mu (mu + z) SPACING^2/2 of epsilon, and is WIDE beyond NEAR


def normal_points(centres: Array, pair: MixturePair) -> Points:
    """Events {x > t}, or {x < t}, of one output x of unit normal noise around mixed centres.

    Every such event is a valid one; the best ones are of this kind, as the ratio of the two laws is monotone in x.

    Args:
        centres: Ascending, in standard deviations.
        pair: Weights of the centres under both laws.
    """
    weights = np.array([pair.first, pair.second])
    side = 1.0 if (weights[0] - weights[1]) @ centres >= 0 else -1.0
    far = np.arange(NEAR, REACH, WIDE)
    around = np.concatenate([-far[::-1], np.arange(-NEAR, NEAR, SPACING)[1:], far])
    t = np.unique(np.concatenate([c + around for c in centres]))
    x = side * (centres[:, None] - t)
    first = weights[0] @ (ndtr(x) * (1.0 - np.where(x < 0, tail_error(x), tail_error(np.zeros(1)))))
    with np.errstate(divide="ignore"):
        log_weights = np.log(weights)[:, :, None]
    log_second = logsumexp(log_weights[1] + log_ndtr(x) + tail_error(np.minimum(x, 0.0)), axis=0)
    loss = np.subtract(*logsumexp(log_weights - 0.5 * np.square(x), axis=1))
    # the weights, their logarithms and the sums of two or three terms
    return merge([Points(first * (1.0 - 8.0 * UNIT), log_second + 8.0 * UNIT * (2.0 + np.abs(log_second)), loss)])
