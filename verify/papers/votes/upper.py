"""Valid upper bound for noisy argmaxes over votes: the whole noisy vote vector, whatever the data.

One answer. The argmax is a function of the vector n + z. A vote that moves from class b to class a shifts it by
e_a - e_b. Counts other than a and b have the same law on both sides and are independent of the rest, so they carry no
privacy loss; count a is (f(x - 1), f(x)), count b is (f(x + 1), f(x)), its mirror image as f is symmetric. So the pair
of vectors is that of TWO independent releases of one coordinate moved by 1; where the vote does not change there is no
loss at all. For the vector this is exact; so it is for one argmax, up to the whole numbers that votes are: of two
classes, {n_a + z_a > n_b + z_b} can be put at the best place.

One check. max_j n_j moves by at most 1, and for symmetric unimodal noise delta grows with the shift (boundary lemma,
`upper.shift_norms`): one release of one coordinate moved by 1.

All of them, in an order that may depend on what was seen. By Blackwell (1953; Dong, Roth and Su 2022, Theorem 2.10)
each release is a post-processing, which knows the earlier outputs but not which neighbour it is, of a draw from its
pair. Draw `checks` times from the check's pair and `answers` times from the answer's beforehand, and let every release
use the next unused one of its kind: the transcript is a post-processing of the draws. What the history costs is
therefore that of the numbers ALLOWED, not of those that came to pass.

The bound does not look at the votes. Bounds that do (Papernot et al. 2018) are smaller where teachers agree, are
themselves functions of the private votes, and are not computed here.
"""

from dataclasses import replace

import numpy as np

from dpaudit.verify.curves import Curve
from dpaudit.verify.papers.votes.history import VoteHistory
from dpaudit.verify.upper import upper_curves

THEOREM = (
    "whole noisy vote vector: a changed vote costs two releases of one count moved by 1, a check one, in any order "
    "(Dong, Roth and Su 2022, Theorem 2.10)"
)
DATA_INDEPENDENT = "the bound holds for any votes: agreement among the teachers earns nothing"


def votes_upper(history: VoteHistory, *, epsilon: float, delta: float) -> Curve:
    """Upper bound on delta(epsilon) of all labels and all checks together.

    Args:
        history: The queries allowed.
        epsilon, delta: Where the bound should be tight; it holds everywhere.

    Raises:
        ValueError: No theorem covers one coordinate of the noise.

    >>> from dpaudit.mechanisms import GeneralizedGaussian
    >>> noise = GeneralizedGaussian(beta=2.0, scale=40.0 * 2**0.5)  # standard deviation 40
    >>> history = VoteHistory(noise, answers=100, teachers=250, classes=10)
    >>> curve = votes_upper(history, epsilon=1.0, delta=1e-5)
    >>> float(curve.epsilon(np.array([1e-5]))[0]).__round__(3)  # mu = sqrt(200)/40 = 0.3536
    1.356
    """
    curves = upper_curves(history.claim(epsilon=epsilon, delta=delta))
    if not curves:
        raise ValueError(f"Expected noise={history.noise.name!r} to have an upper bound in one dimension.")
    best = min(curves, key=lambda curve: float(curve.epsilon(np.array([delta]))[0]))
    return replace(best, theorem=f"{THEOREM}; {best.theorem}", assumptions=(*best.assumptions, DATA_INDEPENDENT))
