"""Coordinate envelope: moments of iid noise under any shift of bounded l_p norm.

For iid noise and |v|_p <= C, with h_eta(s) = log E_Q[(dP/dQ)^eta] of ONE coordinate shifted by s, E over the vector
factorises and every eta >= 2, or > 1 for log-concave noise, has

    sum_i h_eta(|v_i|) <= C^p sup_{0 < s <= C} h_eta(s)/s^p,   and, in n dimensions,
    sum_i h_eta(|v_i|) <= n (concave envelope of t -> h_eta(t^(1/p)))(C^p/n),

because it is a sum of values of one function of t_i = |v_i|^p with sum t_i <= C^p. Call the smaller one H_eta. Under
Poisson sampling P' = (1-q) Q + q P the binomial theorem gives E_Q[(dP'/dQ)^(lam+1)] = sum_eta w_eta E_Q[(dP/dQ)^eta]
<= sum_eta w_eta e^(H_eta), eta = 0..lam+1: all coordinates are in the sample or none is. H_eta is convex in eta (a
supremum of convex functions), so values between computed orders are bounded by chords.

For Laplace the supremum lies at s -> 0; there the bound is that of the Gaussian with the same Fisher information.
"""

import math
from bisect import bisect_left
from functools import partial

import numpy as np

from dpaudit.mechanisms.base import Array, IIDCoordinates, LaplaceCoordinates, Mechanism, NormalCoordinates
from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.curves import Curve
from dpaudit.verify.pld.coordinate_moments import Coordinate, coordinate
from dpaudit.verify.pld.shift_allocation import SpreadMoment
from dpaudit.verify.rdp import Moments, rdp_curve, replace_one_release, replaced_moment, sampled_moments
from dpaudit.verify.upper.shift_norms import moments_reach

THEOREM = (
    "coordinate envelope: for iid noise the moments of any shift of norm at most clip are bounded by the best spread "
    "of one coordinate's moments; sampled by the binomial theorem; Balle et al. (2020), Theorem 21"
)
# orders evaluated, as far as there are bounds at them; beyond, by a factor of SPACING
DENSE_ORDERS = (1.125, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, *map(float, range(4, 17)))
SPACING = 1.06
FEW_ORDERS = 8  # so many are evaluated themselves, not by chords
MOST_TERMS, MOST_SEARCHES = 2**20, 2**12  # of a binomial sum; where a moment is a search for the worst shift


class EnvelopeMoments:
    """Bounds H_eta on log E_Q[(dP/dQ)^eta] of any shift, computed once for each order and joined by chords."""

    def __init__(self, noise: Coordinate, clip: float, clip_norm: float, dimension: int | None) -> None:
        self._compute = SpreadMoment(noise, clip, clip_norm, dimension)
        self._least = 1.0 if noise.convex or self._compute.alike else 2.0  # above it any order has a bound
        self._orders = [0.0, 1.0]
        self._values = [0.0, 0.0]

    def release(self, sampling_prob: float, orders: Array) -> Array:
        """Log-moments alpha(lam) of one release at each order."""
        if sampling_prob == 1:
            return self._unsampled(orders)
        near, found = orders <= (MOST_TERMS if self._compute.alike else MOST_SEARCHES), np.empty(len(orders))
        if near.any():
            self._upto(orders[near])
            table = self._joined(np.arange(math.ceil(float(orders[near].max())) + 2.0))
            self._add_few(orders[near])
            found[near] = sampled_moments(table, sampling_prob, orders[near], self._joined)
        if not near.all():  # by joint convexity, which holds of a record that comes or goes as well
            found[~near] = [replaced_moment(float(one), sampling_prob) for one in self._unsampled(orders[~near])]
        return found

    def _unsampled(self, orders: Array) -> Array:
        if len(orders) <= FEW_ORDERS and (orders + 1 > self._least).all():  # no chord is asked for
            return np.array([self._compute(float(eta)) for eta in orders + 1])
        self._upto(orders)
        self._add_few(orders)
        return self._joined(orders + 1)

    def _upto(self, orders: Array) -> None:
        """Evaluate orders from 1 on, as far as there are bounds."""
        largest = math.ceil(float(orders.max())) + 1
        while self._orders[-1] < largest and math.isfinite(self._values[-1]):
            last = self._orders[-1]
            dense = [order for order in DENSE_ORDERS if order > last and order >= self._least]
            self._add(dense[0] if dense else float(math.ceil(last * SPACING)))

    def _add_few(self, orders: Array) -> None:
        for eta in orders[orders + 1 > self._least] + 1 if len(orders) <= FEW_ORDERS else []:
            self._add(float(eta))

    def _add(self, eta: float) -> None:
        place = bisect_left(self._orders, eta)
        if eta not in self._orders[place : place + 1]:
            self._orders.insert(place, eta)
            self._values.insert(place, self._compute(eta))

    def _joined(self, orders: Array) -> Array:
        """The bounds by chords: H is convex, and a chord to an infinite end is infinite."""
        finite = np.isfinite(self._values)
        known = np.array(self._orders)[finite]
        values = np.interp(orders, known, np.array(self._values)[finite])
        return np.where(orders > known[-1], math.inf, values)


def moments(phase: Phase, claim: Claim, rate: float | None = None) -> Moments | None:
    """Log-moments of one release of a phase, None where the coordinate envelope has none.

    Args:
        phase: The phase.
        claim: Its adjacency says how long a shift is.
        rate: Probability of the shift, else none; that of the phase under add-remove, else 1, if None.
    """
    law = _law(phase.mechanism)
    if law is None:
        return None
    if rate is None:
        rate = phase.sampling_prob if claim.adjacency == "add-remove" else 1.0
    clip = float(phase.mechanism.clip) * (1.0 if claim.adjacency == "add-remove" else 2.0)
    table = EnvelopeMoments(law, clip, float(phase.mechanism.clip_norm), phase.mechanism.dimension)
    return partial(table.release, rate)


def _law(mechanism: Mechanism) -> Coordinate | None:
    """The coordinate's law where the envelope is the theorem to use."""
    structure = mechanism.structure
    if not isinstance(structure, IIDCoordinates) or isinstance(structure, NormalCoordinates):
        return None
    if isinstance(structure, LaplaceCoordinates) and (mechanism.clip_norm == 1 or 2 <= mechanism.clip_norm < math.inf):
        return None  # the l1 pair and the Gaussian domination are exact there, or next to it
    if mechanism.clip_norm > 2 and mechanism.dimension is None:
        return None
    return coordinate(structure)


def applies(claim: Claim) -> bool:
    """Independent coordinates of a law with a recognised shape, a dimension where p > 2, and add-remove if sampled.

    Not where Gaussian domination is as good: a Lipschitz log-density whose square slope is nearly its mean everywhere.
    """
    if not moments_reach(claim):
        return False
    only = claim.phases[0]
    if len(claim.phases) == 1 and only.steps == 1 and only.sampling_prob == 1 and only.mechanism.dimension == 1:
        return False  # one event of one coordinate is exact, and moments of wide noise are dear
    laws = [_law(phase.mechanism) for phase in claim.phases]
    if claim.adjacency == "add-remove" and all(law is not None and _dominated(law, claim) for law in laws):
        return False
    return all(law is not None for law in laws)


def _dominated(noise: Coordinate, claim: Claim) -> bool:
    """Whether Gaussian domination, by the largest slope 1/b of log f where J has its mean, loses next to nothing.

    Moments cost the envelope some 10% of epsilon against the smoothed curve, and 1/b^2 over J is 5% of it.
    """
    slope = noise.law.lipschitz
    l2 = all(phase.mechanism.clip_norm == 2 for phase in claim.phases)
    return l2 and slope is not None and noise.fisher >= 0.9 * slope**2


def bound(claim: Claim) -> Curve:
    """Upper bound on delta(epsilon) by the envelope's moments.

    Raises:
        ValueError: `applies(claim)` is false.
    """
    parts = [(moments(phase, claim), phase.steps) for phase in claim.phases]
    known = [(function, steps) for function, steps in parts if function is not None]
    if len(known) < len(parts) or not moments_reach(claim):
        raise ValueError(f"Expected claim {claim.id!r} to have independent coordinates the envelope covers.")
    sampled = any(phase.sampling_prob < 1 for phase in claim.phases)
    curve = rdp_curve(
        claim,
        known,
        sampled=sampled and claim.adjacency == "add-remove",
        method="envelope",
        theorem=THEOREM,
    )
    return (
        replace_one_release(curve, claim.phases[0].sampling_prob)
        if sampled and claim.adjacency == "replace-one"
        else curve
    )
