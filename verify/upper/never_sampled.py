"""Any noise under Poisson sampling: what a record can cost is at most the probability that it was ever sampled.

Run the two neighbouring histories with the same coins for who is sampled. While the record that differs stays out, the
next release has the same law in both, whatever came before, so both transcripts agree unless it was sampled once. Hence
the total variation distance of the histories, and delta(epsilon) at every epsilon >= 0, is at most

    1 - prod_i (1 - q_i)^T_i,

for phases of T_i steps at rate q_i, whether the record is added, removed or replaced (Lindvall 2002, Lectures on the
Coupling Method, Theorem 5.2).
"""

import math

import numpy as np

from dpaudit.mechanisms.base import Array
from dpaudit.verify.claims import Claim
from dpaudit.verify.curves import Curve
from dpaudit.verify.upper.shift_norms import sampling_is_known

METHOD = "coupling"
THEOREM = "the probability that the record is ever sampled: coupling inequality, Lindvall (2002), Theorem 5.2"


def ever_sampled(claim: Claim) -> float:
    """Upper bound on the probability that a record is in any batch of a history."""
    rates = [(phase.sampling_prob, phase.steps) for phase in claim.phases]
    if any(rate >= 1 for rate, _ in rates):
        return 1.0
    if len(rates) == 1 and rates[0][1] == 1:  # the rate itself, to the bit: it is what such a claim says
        return rates[0][0]
    return min(-math.expm1(sum(steps * math.log1p(-rate) for rate, steps in rates)) * (1.0 + 1e-12), 1.0)


def applies(claim: Claim) -> bool:
    """Poisson sampling in every phase, and a probability below 1."""
    return all(sampling_is_known(phase) for phase in claim.phases) and ever_sampled(claim) < 1


def bound(claim: Claim) -> Curve:
    """Upper bound on delta(epsilon), the same at every epsilon.

    Raises:
        ValueError: `applies(claim)` is false.
    """
    if not applies(claim):
        raise ValueError(f"Expected claim {claim.id!r} to have Poisson sampling at rates below 1 in every phase.")
    most = ever_sampled(claim)

    def delta(epsilon: Array) -> Array:
        return np.full(len(epsilon), most)

    def epsilon_of(delta: Array) -> Array:
        return np.where(delta >= most, 0.0, np.inf)

    return Curve("upper", METHOD, THEOREM, delta, epsilon_of)
