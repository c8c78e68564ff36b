"""Guarantees of every kind decided: by theorems of the kind itself, or by what it implies about delta(epsilon)."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from dpaudit.mechanisms.base import Array, Function
from dpaudit.verify.claims import Claim
from dpaudit.verify.guarantees import (
    ApproximateDP,
    GaussianDP,
    Guarantee,
    PrivacyCurve,
    PureDP,
    RenyiDP,
    ZeroConcentratedDP,
    guarantee_to_dict,
)
from dpaudit.verify.implied import LEAST_DELTA, divergence_at_least, divergence_at_most, most_mu, operating_points
from dpaudit.verify.lower.divergences import divergence_lower
from dpaudit.verify.lower.histories import POLE, never_gaussian, never_moments, never_pure, pure_reason
from dpaudit.verify.renyi import divergence_upper, mu_upper, pure_upper, rho_upper, squared_mu
from dpaudit.verify.results import VerdictName, down, told_apart, up

NO_SMALLER = "the certified lower bounds on delta(epsilon) leave no smaller"
ORDERS = np.concatenate(
    [[1.0 + 1e-9], np.geomspace(1.001, 2.0, 6)[:-1], 2.0 ** np.arange(1.0, 41.0)]
)  # where rho is compared
LARGER_ORDERS = np.array([1.001, 1.1, 1.25, 1.5, 2.0, 4.0, 16.0])  # times an order: theirs bound its far tail, and it
SMALLER_ORDERS = np.array([256.0, 1e4, 1e8])  # of which one shows more than an order where rounding hides all
CROSSED = 1e-9  # relative: more is a fault of one of two bounds
TIGHT = 1e-4  # relative: a bracket of a refuted number that is worth no more time
EXACT = 1e-12  # relative: less is the rounding of two equal numbers

Curves = Callable[[Array], tuple[Array, Array]]


@dataclass(frozen=True)
class Finding:
    """What is proven about a guarantee.

    Args:
        verdict: "certified", "refuted" or "undecided".
        reason: One or two sentences.
        parameter: Its number: "epsilon", "mu" or "rho"; "points" where it is how many points of a curve do not hold.
        lower: The least value that the history can have, proven.
        upper: A value that it keeps, proven; inf where none is.
    """

    verdict: VerdictName
    reason: str
    parameter: str
    lower: float
    upper: float

    @property
    def crossed(self) -> bool:
        """Whether the bounds contradict each other, by more than rounding."""
        return self.lower > self.upper * (1.0 + CROSSED)

    def undecided(self) -> "Finding":
        """What is told where the bounds contradict each other."""
        reason = (
            f"Two bounds disagree, please report: {self.parameter} is at least {down(self.lower, 6)} and at most "
            f"{up(self.upper, 6)}. {self.reason}"
        )
        return replace(self, verdict="undecided", reason=reason)

    def to_dict(self, guarantee: Guarantee) -> dict[str, Any]:
        """The guarantee's own table with the bracket around its number."""
        return {**guarantee_to_dict(guarantee), "parameter": self.parameter, "lower": self.lower, "upper": self.upper}


def decide_guarantee(claim: Claim, at_least: Function, at_most: Function, epsilon: Curves, theorem: str) -> Finding:
    """The verdict on a guarantee that is not a single (epsilon, delta).

    Args:
        claim: With its guarantee.
        at_least: Certified lower bounds on delta at each epsilon.
        at_most: Certified upper bounds on delta at each epsilon.
        epsilon: Certified (lower, upper) bounds on epsilon at each delta.
        theorem: Of the upper bound.

    Raises:
        ValueError: The claim states a plain (epsilon, delta).
    """
    match claim.guarantee:
        case PureDP():
            return _pure(claim, at_least, at_most, epsilon, theorem)
        case GaussianDP(mu):
            return _gaussian(claim, mu, at_least, at_most)
        case ZeroConcentratedDP(rho):
            return _concentrated(claim, rho, at_least)
        case RenyiDP() as stated:
            return _renyi(claim, stated, at_least, at_most)
        case PrivacyCurve() as stated:
            return _points(stated, at_least, at_most, theorem)
        case None | ApproximateDP():
            raise ValueError(f"Expected claim {claim.id!r} to state a guarantee of its own kind.")


def shown_alone(claim: Claim, at_least: Function) -> Finding:
    """What lower bounds on delta show of such a guarantee by themselves, whatever is known of the noise.

    Args:
        claim: With its guarantee, not a curve.
        at_least: Lower bounds on delta at each epsilon, all of which hold together.
    """
    match claim.guarantee:
        case GaussianDP(mu):
            parameter, stated, shown = "mu", mu, most_mu(at_least)
        case ZeroConcentratedDP(rho):
            parameter, stated = "rho", rho
            shown = float((divergence_at_least(at_least, ORDERS) / ORDERS).max())
        case RenyiDP() as renyi:
            parameter, stated = "epsilon", renyi.epsilon
            shown = float(divergence_at_least(at_least, np.array([renyi.order]))[0])
        case _:
            parameter, stated = "epsilon", claim.epsilon
            lower = min(float(at_least(np.array([stated]))[0]), 1.0 - 1e-16)
            shown = stated - math.log1p(-lower) if lower > 0 else 0.0  # as in `_pure`
    if shown * (1.0 - EXACT) > stated:
        reason = f"the lower bounds on delta(epsilon) leave no smaller {parameter} than {down(shown, 6)}."
        return Finding("refuted", reason, parameter, shown, math.inf)
    reason = f"{parameter} is shown to be at least {down(shown, 4)}; simulation has no upper bound."
    return Finding("undecided", reason, parameter, shown, math.inf)


def decide_points(claim: Claim, at_least: Function, at_most: Function, theorem: str, unreached: str) -> Finding:
    """The verdict on such a guarantee where floats do not reach the noise: only points of a curve can be proven.

    Args:
        claim: With its guarantee.
        at_least: Valid lower bounds on delta at each epsilon.
        at_most: Valid upper bounds on delta at each epsilon.
        theorem: Of the upper bound.
        unreached: Why nothing else is computed.
    """
    match claim.guarantee:
        case PrivacyCurve() as stated:
            return _points(stated, at_least, at_most, theorem)
        case GaussianDP():
            parameter = "mu"
        case ZeroConcentratedDP():
            parameter = "rho"
        case _:
            parameter = "epsilon"
    return Finding("undecided", f"no {parameter} is proven: {unreached}.", parameter, 0.0, math.inf)


def _pure(claim: Claim, at_least: Function, at_most: Function, epsilon: Curves, theorem: str) -> Finding:
    stated = claim.epsilon
    lower, upper = (float(side(np.array([stated]))[0]) for side in (at_least, at_most))
    if never_pure(claim):
        return Finding("refuted", pure_reason(math.inf), "epsilon", math.inf, math.inf)
    shown, highest = (float(side[0]) for side in epsilon(np.zeros(1)))
    added = pure_upper(claim.canonical("upper"))
    highest = min(highest, added)
    if lower > 0:
        # P(S) > e^epsilon Q(S) + lower and P(S) <= 1 leave P(S) > e^epsilon Q(S)/(1 - lower)
        shown = max(shown, stated - math.log1p(-lower) if lower < 1 else math.inf)
        reason = f"delta is at least {down(lower, 4)} at epsilon={stated:.12g}, where a pure guarantee leaves none."
        return Finding("refuted", reason, "epsilon", shown, highest)
    if upper <= 0:
        reason = f"delta is 0 at epsilon={stated:.12g}, by {theorem}."
        return Finding("certified", reason, "epsilon", min(shown, stated), min(highest, stated))
    if added <= stated:
        reason = f"the pure epsilons of the releases that a record enters add up to {up(added, 6)} (Dwork et al. 2006)."
        return Finding("certified", reason, "epsilon", min(shown, stated), added)
    if shown > stated:
        return Finding("refuted", pure_reason(shown), "epsilon", shown, highest)
    reason = f"no theorem here proves delta=0 at epsilon={stated:.12g}, and no event found contradicts it."
    return Finding("undecided", reason, "epsilon", shown, highest)


def _gaussian(claim: Claim, mu: float, at_least: Function, at_most: Function) -> Finding:
    upper, lower = claim.canonical("upper"), claim.canonical("lower")
    exact, attained, highest = squared_mu(upper), squared_mu(lower), mu_upper(upper)
    shown = most_mu(at_least)
    if attained is not None and all(phase.sampler is None and phase.sampling_prob == 1.0 for phase in lower.phases):
        shown = max(shown, math.sqrt(attained) * (1.0 - EXACT))
    if exact is not None and exact <= Fraction(repr(float(mu))) ** 2:
        highest = min(highest, mu)
    if highest <= mu:
        each = "shifts over sigma" if exact is not None else "the mu that a release has by its pure epsilon or curve"
        reason = f"mu is at most {up(highest, 6)}: squares of {each} add up (Dong, Roth and Su 2022, Corollary 3.3)."
        return Finding("certified", reason, "mu", shown, highest)
    if shown > mu:
        known, claimed = told_apart(shown, mu, 6)
        reason = f"the history is told apart as well as with mu={known}, more than mu={claimed}."
        return Finding("refuted", reason, "mu", shown, highest)
    reason = f"mu is proven at least {down(shown, 4)} and at most {up(highest, 4)}."
    practical = operating_points(at_most).gdp_mu
    if practical <= mu:
        known = "no mu is proven" if math.isinf(highest) else f"only mu={up(highest, 4)} is proven"
        never = never_gaussian(claim)
        if never:
            known = f"no mu is enough: {never}"
        elif any(phase.sampler is not None or phase.sampling_prob < 1 for phase in claim.phases):
            known = f"{known}: sampling leaves the far tail as heavy as it was"
        reason = f"mu={up(practical, 4)} holds down to delta={LEAST_DELTA:g}; at every epsilon {known}."
    return Finding("undecided", reason, "mu", shown, highest)


def _concentrated(claim: Claim, rho: float, at_least: Function) -> Finding:
    never = never_gaussian(claim)
    if never:
        return Finding("refuted", f"No rho is enough: {never}.", "rho", math.inf, math.inf)
    upper = claim.canonical("upper")
    exact, highest = squared_mu(upper), rho_upper(upper)
    if exact is not None and exact / 2 <= Fraction(repr(float(rho))):
        highest = min(highest, rho)
    ratios = divergence_lower(claim.canonical("lower"), ORDERS) / ORDERS
    shown = float(ratios.max())
    if highest <= rho:
        reason = f"the Renyi divergence of the history is at most {up(highest, 6)} times its order, at every order"
        return Finding("certified", f"{reason} (Bun and Steinke 2016, Lemma 1.7).", "rho", shown, highest)
    over = np.flatnonzero(ratios * (1.0 - EXACT) > rho)
    if len(over):
        plainest = over[np.argmin(np.abs(np.log(ORDERS[over] / 2.0)))]
        order, ratio = float(ORDERS[plainest]), float(ratios[plainest])
        known, claimed = told_apart(ratio, rho, 6)
        reason = (
            f"at order {order:.4g} the Renyi divergence of one pair of neighbours is at least {known} times the order, "
            f"more than rho={claimed} times it."
        )
        return Finding("refuted", reason, "rho", shown, highest)
    shown = max(shown, float((divergence_at_least(at_least, ORDERS) / ORDERS).max()))
    if shown * (1.0 - EXACT) > rho:
        return Finding("refuted", f"{NO_SMALLER} rho than {down(shown, 6)}.", "rho", shown, highest)
    return Finding(
        "undecided", f"rho is proven at least {down(shown, 4)} and at most {up(highest, 4)}.", "rho", shown, highest
    )


def _renyi(claim: Claim, stated: RenyiDP, at_least: Function, at_most: Function) -> Finding:
    if never_moments(claim, stated.order):
        reason = f"At order {stated.order:.6g} no epsilon is enough: {POLE}."
        return Finding("refuted", reason, "epsilon", math.inf, math.inf)
    upper, where = claim.canonical("upper"), f"at order {stated.order:.6g} the Renyi divergence"
    order, larger = np.array([stated.order]), LARGER_ORDERS * stated.order
    huge = stated.order > SMALLER_ORDERS[0]
    smaller = np.append(SMALLER_ORDERS[stated.order > SMALLER_ORDERS], order)  # it grows with the order
    of_a_pair = float(divergence_lower(claim.canonical("lower"), smaller).max())
    known_least, claimed = told_apart(of_a_pair, stated.epsilon, 6)
    over = f"{where} of one pair of neighbours is at least {known_least}, more than {claimed}"
    refuted = of_a_pair * (1.0 - EXACT) > stated.epsilon
    if refuted and huge and math.isinf(min(rho_upper(upper), pure_upper(upper))):
        # moments of so large an order take long, and cannot certify what is refuted
        return Finding("refuted", f"{over}; no upper bound was computed.", "epsilon", of_a_pair, math.inf)
    highest = float(divergence_upper(upper, order)[0])
    exact = squared_mu(upper)
    if exact is not None and Fraction(repr(float(stated.order))) * exact / 2 <= Fraction(repr(float(stated.epsilon))):
        highest = min(highest, stated.epsilon)
    shown = max(of_a_pair, float(divergence_at_least(at_least, order)[0]))
    if highest <= stated.epsilon:
        reason = f"{where} of the history is at most {up(highest, 6)} (Mironov 2017, Proposition 1)."
        return Finding("certified", reason, "epsilon", shown, highest)
    apart = TIGHT if stated.epsilon < shown else EXACT  # it takes seconds, and cannot certify what is refuted
    if highest > shown * (1.0 + apart):
        others = divergence_upper(upper, larger)
        highest = min(highest, float(others.min()))  # it grows with the order
        if highest <= stated.epsilon:
            reason = f"{where} of the history is at most {up(highest, 6)}, as that of a larger order is."
            return Finding("certified", reason, "epsilon", shown, highest)
        known = list(zip(larger, others, strict=True))
        highest = min(highest, divergence_at_most(at_most, stated.order, known))
    if highest <= stated.epsilon:
        reason = f"{where} of the history is at most {up(highest, 6)}, by the certified upper bounds on delta(epsilon)."
        return Finding("certified", reason, "epsilon", shown, highest)
    if refuted:
        return Finding("refuted", f"{over}.", "epsilon", shown, highest)
    if shown * (1.0 - EXACT) > stated.epsilon:
        reason = f"{NO_SMALLER} Renyi divergence at order {stated.order:.6g} than {down(shown, 6)}."
        return Finding("refuted", reason, "epsilon", shown, highest)
    unknown = ": no theorem here has a moment of so large an order that floats hold" if math.isinf(highest) else ""
    reason = f"{where} is proven at least {down(shown, 4)} and at most {up(highest, 4)}{unknown if huge else ''}."
    return Finding("undecided", reason, "epsilon", shown, highest)


def _points(stated: PrivacyCurve, at_least: Function, at_most: Function, theorem: str) -> Finding:
    epsilons, deltas = np.array(stated.points).T
    lower, upper = at_least(epsilons), at_most(epsilons)
    broken, open_ = lower > deltas, upper > deltas
    share = float(broken.sum()), float(open_.sum())
    if not open_.any():
        reason = f"delta is at most the stated one at each of {len(deltas)} points, by {theorem}."
        return Finding("certified", reason, "points", *share)
    worst = int(np.argmax(broken if broken.any() else open_))
    at = f"epsilon={epsilons[worst]:.6g}"
    if broken.any():
        known, claimed = told_apart(lower[worst], deltas[worst], 4)
        reason = f"delta is at least {known} at {at}, more than {claimed}."
        return Finding("refuted", reason, "points", *share)
    reason = f"delta lies in [{down(lower[worst], 4)}, {up(upper[worst], 4)}] at {at}, and {deltas[worst]:.4g} between."
    return Finding("undecided", reason, "points", *share)
