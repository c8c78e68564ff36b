"""The pair of batches of fixed size under zero-out, from those of a record against nothing and against another one.

Given the rest of a batch, the record at v takes the place of another one at y, or its ghost at 0 does: a release is
(1 - g) R_y + g R_v against (1 - g) R_y + g R_0. Let a set S have mass s under the first law's part of rate g, and let
L_d(s) be the least mass of such a set around a point that a record at most d clips away moves to: 1 - U(1-s) of a pair
that dominates (`replaced_pairs`). For a = e^epsilon >= 1 the record first, which is at most two clips from the other
and one from its ghost, and the ghost first, one clip from both:

    P(S) - a Q(S) <= g s - (a - 1)(1 - g) L_2(s) - a g L_1(s),
    Q(S) - a P(S) <= g s - (a - 1 + g) L_1(s).

The largest over s, of the first for a >= 1 and of the second, mirrored, for a < 1, lie above the profile of each such
release, hence so does the largest convex function below them, which is the profile of a pair that dominates and
composes (Zhu, Dong and Wang 2022, Lemma 8 and Theorem 10). At a = 1 both are g times the total variation V of L_1's
pair, and there they are convex: the masses beyond a loss of 0 on the two sides are at most g V + Q and Q with
V + 2 Q <= 1. Both L are straight between points, and so is what is maximised: at one of those.

On the line, for noise whose loss rises with the output, half-lines attain the first at y = -v and the second at y = v.
"""

import numpy as np

from dpaudit.mechanisms.base import Array
from dpaudit.verify.pld.curve_pairs import Beyond, Curves, convex, of_one_end, pair_of_curve
from dpaudit.verify.pld.dominating_pairs import DominatingPair
from dpaudit.verify.pld.replaced_pairs import LARGEST, MOST, largest_difference, least_mass


def fixed_size_pair(near: Curves, far: Curves, g: float) -> DominatingPair | None:
    """A pair that dominates a release; the record first. None for losses beyond floats.

    Args:
        near: Of a record against nothing: losses and deltas, straight in e^loss between.
        far: Of a record against another one.
        g: Sampling probability, in (0, 1).
    """
    curves = fixed_size_curves(near, far, g)
    return None if curves is None else pair_of_curve(*of_one_end(*curves))


def fixed_size_curves(near: Curves, far: Curves, g: float) -> tuple[Curves, Curves] | None:
    """Its curves, the record first and its ghost first."""
    if max(near[0][-1], far[0][-1]) > LARGEST:
        return None
    near_points, far_points = least_mass(Beyond.of_curve(*near)), least_mass(Beyond.of_curve(*far))
    s = np.unique(np.concatenate([near_points[0], far_points[0]]))
    near_mass, far_mass = np.interp(s, *near_points), np.interp(s, *far_points)
    whole, own = far[0], np.minimum(0.5 * far[0], near[0][-1])
    record = _convex(g, (s, far_mass, near_mass), whole, np.append(own[:-1], min(near[0][-1], whole[-1])))
    return record, _convex(g, (s, near_mass, near_mass), near[0], near[0])


def _convex(g: float, masses: tuple[Array, Array, Array], losses: Array, own: Array) -> Curves:
    """The largest convex curve below the bounds of one order at some losses, 0 first.

    Args:
        g: Sampling probability.
        masses: Of sets in the first law's part of rate g, and the least of them in the others' and in the second's.
        losses: Of the first's against the others', ascending: those of the mixtures' at them are where the bounds are.
        own: Of the first's against the second's there; guesses but for the last, which is the largest.
    """
    at = np.unique(np.linspace(0, len(losses) - 1, min(len(losses), MOST)).astype(int))
    mixed = np.log1p(g * np.expm1(losses)) - np.log1p(g * np.expm1(losses - own))
    epsilons = np.unique(np.append(0.0, mixed[at]))
    bounds = np.minimum.accumulate(largest_difference(g, *masses, epsilons))
    kept = convex(epsilons, bounds)
    return epsilons[kept], bounds[kept]
