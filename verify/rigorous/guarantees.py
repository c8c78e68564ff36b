"""Brackets in balls around the number of a guarantee that is no single (epsilon, delta).

mu^2 adds up over releases of normal noise (Dong, Roth and Su 2022, Corollary 3.3), and so do Renyi divergences over an
adaptive history (Mironov 2017, Proposition 1). From below they add up for one pair of neighbours whose record
contributes the same in all releases, and an event tells two laws apart at least as (p, 1-p) from (q, 1-q): data
processing. Where a sampler decides who is in a batch, that is revealed: divergences are quasi-convex.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from math import ceil, inf, nextafter

from flint import arb

from dpaudit.mechanisms.registry import to_dict
from dpaudit.verify.claims import Adjacency, Claim, Phase, lets_another_in
from dpaudit.verify.float_range import beyond_floats
from dpaudit.verify.guarantees import ApproximateDP, GaussianDP, PrivacyCurve, PureDP, RenyiDP, ZeroConcentratedDP
from dpaudit.verify.results import VerdictName, Witness
from dpaudit.verify.rigorous.balls import Unavailable, all_known, ball, float_above, float_below, precision, total
from dpaudit.verify.rigorous.bracket import (
    UpperProof,
    independent_brackets,
    rigorous_bracket,
    told_apart,
    upper_proof,
)
from dpaudit.verify.rigorous.divergences import (
    LARGEST_GROWTH,
    Pair,
    fixed_size_divergence,
    laplace_divergence,
    normal_divergence,
)
from dpaudit.verify.rigorous.divergences_below import both_ways, event_divergence, pair_divergence
from dpaudit.verify.rigorous.domination import (
    dominating_mu,
    is_gaussian,
    laplace_shift,
    log_moment,
)
from dpaudit.verify.rigorous.events import ToldApart
from dpaudit.verify.samplers import WithoutReplacement
from dpaudit.verify.upper.shift_norms import sampling_is_known

ORDERS = ("1.000001", "1.1", "1.5", "2", "4", "16", "64", "1000000000")  # at which rho is bounded from below
NEAR = (0.0, 0.1)  # (epsilon, delta) of a second look for an event
LARGEST_WHOLE = 1000  # order of a binomial sum
PARAMETERS = ("clip", "noise_multiplier", "scale")
SQUARES = "squares of shifts over sigma add up"
MOMENTS = "Renyi divergences of the releases add up"
ATTAINED = "the longest shift attains it"
EVENT = "an event"
Number = Fraction | arb


@dataclass(frozen=True)
class GuaranteeBracket:
    """The number of a guarantee, rounded outward.

    Args:
        parameter: "mu", "rho" or "epsilon"; "points" where it is how many points of a curve do not hold.
        lower, upper: Around the least value that the history keeps.
        stated: The number that is promised; 0 of points.
        theorem: What the upper bound comes from, or why there is none.
        witness: What the lower bound comes from, or why there is none.
        deltas: Of a curve, in the order of its points: around delta there.
    """

    parameter: str
    lower: float
    upper: float
    stated: float
    theorem: str
    witness: str
    deltas: tuple[tuple[float, float], ...] = ()

    @property
    def verdict(self) -> VerdictName:
        """What these bounds decide."""
        if self.lower > self.stated:
            return "refuted"
        return "certified" if self.upper <= self.stated else "undecided"


def guarantee_bracket(claim: Claim, witness: Witness | None = None) -> GuaranteeBracket | Unavailable:
    """Bounds in ball arithmetic on what a claim's guarantee promises.

    Args:
        claim: With a guarantee of its own kind.
        witness: From a verdict: its number of coordinates and direction say where the lower bound looks.

    Returns:
        The bracket; `Unavailable` where neither side has a bound.

    Raises:
        ValueError: The claim states a plain (epsilon, delta).

    >>> from dpaudit.mechanisms import Gaussian
    >>> from dpaudit.verify.implied import claim_stating
    >>> found = guarantee_bracket(claim_stating(ZeroConcentratedDP(3.0), [Phase(Gaussian(0.4))]))
    >>> (found.parameter, found.lower, found.upper, found.verdict)
    ('rho', 3.125, 3.125, 'refuted')
    """
    claim = claim.canonical()
    beyond = beyond_floats(claim)
    if beyond:
        return Unavailable(beyond)
    if any(phase.correlation is not None for phase in claim.phases):
        return _of_independent_noise(claim, witness)
    with precision():
        match claim.guarantee:
            case GaussianDP(mu):
                return _of_mu(claim, mu, witness)
            case ZeroConcentratedDP(rho):
                return _of_rho(claim, rho, witness)
            case RenyiDP(order, epsilon):
                return _of_order(claim, order, epsilon, witness)
            case PureDP(epsilon):
                return _pure(claim, epsilon, witness)
            case PrivacyCurve(points):
                return _points(claim, points, witness)
            case None | ApproximateDP():
                raise ValueError(f"Expected claim {claim.id!r} to state a guarantee of its own kind.")


def _of_independent_noise(claim: Claim, witness: Witness | None) -> GuaranteeBracket | Unavailable:
    """Each side by releases of independent noise in place of correlated ones."""
    low, high = independent_brackets(claim, partial(guarantee_bracket, witness=witness))
    if isinstance(low, Unavailable) and isinstance(high, Unavailable):
        return Unavailable(f"{high.reason}; {low.reason}")
    if isinstance(low, Unavailable):
        assert isinstance(high, GuaranteeBracket)
        return replace(high, lower=0.0, witness=low.reason, deltas=tuple((0.0, above) for _, above in high.deltas))
    if isinstance(high, Unavailable):
        most = float(len(low.deltas)) if low.parameter == "points" else inf
        return replace(low, upper=most, theorem=high.reason, deltas=tuple((below, 1.0) for below, _ in low.deltas))
    deltas = tuple((below, above) for (below, _), (_, above) in zip(low.deltas, high.deltas, strict=True))
    return replace(high, lower=low.lower, witness=low.witness, deltas=deltas)


def _bracketed(
    parameter: str,
    stated: float,
    lower: Number,
    upper: Number | Unavailable,
    theorem: str,
    witness: str,
    *,
    squared: bool = False,
) -> GuaranteeBracket:
    """The bracket of bounds on a number, or on its square."""
    goal = Fraction(repr(float(stated))) ** (2 if squared else 1)
    low = float_below(_root(lower) if squared else _ball(lower))
    if isinstance(upper, Unavailable):
        return GuaranteeBracket(parameter, max(low, 0.0), inf, stated, upper.reason, witness)
    high = float_above(_root(upper) if squared else _ball(upper))
    # the float of the stated number may lie above or below the decimal
    kept = upper <= goal if isinstance(upper, Fraction) else upper <= ball(goal)
    high = min(high, stated) if kept else max(high, nextafter(stated, inf))
    return GuaranteeBracket(parameter, max(low, 0.0), high, stated, theorem, witness)


def _ball(number: Number) -> arb:
    return ball(number) if isinstance(number, Fraction) else number


def _root(number: Number) -> arb:
    return _ball(number).sqrt()


def _of_mu(claim: Claim, mu: float, witness: Witness | None) -> GuaranteeBracket:
    exact = _attained_square(claim)
    if exact is not None:
        return _bracketed("mu", mu, exact, exact, SQUARES, ATTAINED, squared=True)
    upper = _sum([_mu_of_phase(claim, phase) for phase in claim.phases])
    told = _told_apart(claim, witness)
    if isinstance(told, Unavailable):
        return _bracketed("mu", mu, arb(0), upper, SQUARES, told.reason, squared=True)
    shown = _quantile(told.p) - _quantile(told.q)
    return _bracketed("mu", mu, shown * shown, upper, SQUARES, EVENT, squared=True)


def _of_rho(claim: Claim, rho: float, witness: Witness | None) -> GuaranteeBracket:
    exact = _attained_square(claim)
    if exact is not None:
        return _bracketed("rho", rho, exact / 2, exact / 2, SQUARES, ATTAINED)
    upper = _sum([_rho(claim, phase) for phase in claim.phases])
    shown = [
        (pair_divergence(claim, order) / order, f"the order {order.str(7, radius=False)}")
        for order in map(ball, ORDERS)
    ]
    told = _told_apart(claim, witness)
    if not isinstance(told, Unavailable):
        shown += [(event_divergence(told, order) / order, EVENT) for order in map(ball, ORDERS)]
    best, where = max(shown, key=lambda one: float(one[0].lower()))
    return _bracketed("rho", rho, best, upper, MOMENTS, where)


def _of_order(claim: Claim, order: float, epsilon: float, witness: Witness | None) -> GuaranteeBracket:
    exact = _attained_square(claim)
    if exact is not None:
        exact = exact * Fraction(repr(float(order))) / 2 if isinstance(exact, Fraction) else exact * ball(order) / 2
        return _bracketed("epsilon", epsilon, exact, exact, SQUARES, ATTAINED)
    at = ball(order)
    lower, where, told = pair_divergence(claim, at), "one pair of neighbours", _told_apart(claim, witness)
    if not isinstance(told, Unavailable):
        by_event = event_divergence(told, at)
        lower, where = (by_event, EVENT) if by_event > lower else (lower, where)
    return _bracketed("epsilon", epsilon, lower, _divergence(claim, at), MOMENTS, where)


def _pure(claim: Claim, epsilon: float, witness: Witness | None) -> GuaranteeBracket | Unavailable:
    """Of delta = 0."""
    found = rigorous_bracket(replace(claim, epsilon=epsilon, delta=0.0, guarantee=None), witness)
    if isinstance(found, Unavailable):
        return found
    # epsilon is bisected to some digits; a delta above 0 tells that it is larger than the stated one
    lower = max(found.epsilon_lower, nextafter(epsilon, inf) if found.delta_lower > 0 else 0.0)
    return GuaranteeBracket("epsilon", lower, found.epsilon_upper, epsilon, found.theorem, found.witness)


@dataclass(frozen=True)
class _Sides:
    """What bounds delta from both sides at any epsilon, or why a side has no bound."""

    proof: UpperProof | Unavailable
    told: ToldApart | Unavailable

    def at(self, epsilon: arb) -> tuple[arb, arb]:
        """(at least delta, at most delta); 0 and 1 where nothing is known."""
        upper = arb(1) if isinstance(self.proof, Unavailable) else self.proof.delta(epsilon)
        if not upper.is_finite():
            upper = arb(1)
        elif isinstance(self.proof, UpperProof) and self.proof.exact:
            return upper, upper
        lower = arb(0) if isinstance(self.told, Unavailable) else self.told.p - epsilon.exp() * self.told.q
        return lower, upper

    @property
    def words(self) -> tuple[str, str]:
        """The theorem and the witness."""
        theorem = self.proof.reason if isinstance(self.proof, Unavailable) else self.proof.kind
        return theorem, self.told.reason if isinstance(self.told, Unavailable) else self.told.witness


def _sides(claim: Claim, witness: Witness | None) -> _Sides:
    proof = upper_proof(claim)
    attained = isinstance(proof, UpperProof) and proof.exact
    return _Sides(proof, Unavailable(ATTAINED) if attained else told_apart(claim, witness, proof))


def _listed(words: Sequence[str]) -> str:
    """The first of different words, and how many more there are."""
    first, *others = dict.fromkeys(words)
    return f"{first}, and {len(others)} more" if others else first


def _points(
    claim: Claim, points: Sequence[tuple[float, float]], witness: Witness | None
) -> GuaranteeBracket | Unavailable:
    """How many points are broken, and how many are not proved to hold.

    What bounds delta at one point bounds it at the next, and is looked for anew only where that does not decide.
    """
    nothing = Unavailable("no point was looked at")
    sides, looked = _Sides(nothing, nothing), list[_Sides]()
    deltas = dict[tuple[float, float], tuple[float, float]]()
    broken, held = 0, 0
    for epsilon, delta in sorted(points, reverse=True):
        e, goal = ball(epsilon), ball(delta)
        lower, upper = sides.at(e)
        if not (lower > goal or upper <= goal):
            sides = _sides(replace(claim, epsilon=epsilon, delta=delta, guarantee=None), witness)
            looked.append(sides)
            low, high = sides.at(e)
            lower, upper = (low if low > lower else lower), (high if high < upper else upper)
        broken, held = broken + (lower > goal), held + (upper <= goal)
        deltas[epsilon, delta] = max(0.0, float_below(lower)), min(1.0, float_above(upper))
    if all(isinstance(one.proof, Unavailable) and isinstance(one.told, Unavailable) for one in looked):
        return Unavailable("; ".join(looked[0].words))
    theorem, event = (_listed([one.words[side] for one in looked]) for side in (0, 1))
    bounds = tuple(deltas[point] for point in points)
    return GuaranteeBracket("points", float(broken), float(len(points) - held), 0.0, theorem, event, bounds)


def _attained_square(claim: Claim) -> Number | None:
    """mu^2 where the longest shift attains it: normal noise, and releases that the record is always in."""
    if not all(p.sampler is None and p.sampling_prob == 1 and is_gaussian(p.mechanism) for p in claim.phases):
        return None
    square = _sum([_squared_mu(claim, phase) for phase in claim.phases])
    return None if isinstance(square, Unavailable) else square


def _sum(parts: Sequence[Number | Unavailable]) -> Number | Unavailable:
    """The sum, exact where all parts are; why one is missing."""
    known: list[Number] | Unavailable = all_known(parts)
    if isinstance(known, Unavailable):
        return known
    exact = [part for part in known if isinstance(part, Fraction)]
    return sum(exact, Fraction(0)) if len(exact) == len(known) else total(list(map(_ball, known)))


def _met(claim: Claim, phase: Phase) -> tuple[int, Adjacency] | Unavailable:
    """In how many releases the record can be, and by what it is replaced in them, given who is drawn."""
    if phase.sampler is None:
        known = sampling_is_known(phase)
        return (phase.steps, claim.adjacency) if known else Unavailable(f"no theorem for {phase.sampling_kind!r}")
    if phase.sampler.meets_twice and not is_gaussian(phase.mechanism):
        return Unavailable("the record can be in a batch twice")
    return phase.sampler.meetings, "replace-one" if lets_another_in(claim, phase) else claim.adjacency


def _squared_mu(claim: Claim, phase: Phase) -> Number | Unavailable:
    """mu^2 of a phase's releases, as if the record were in all that it can be in."""
    met = _met(claim, phase)
    if isinstance(met, Unavailable):
        return met
    if not is_gaussian(phase.mechanism):
        return Unavailable("only normal noise has a mu in balls")
    data = {key: Fraction(str(value)) for key, value in to_dict(phase.mechanism).items() if key in PARAMETERS}
    deviation = data["scale"] ** 2 / 2 if "scale" in data else (data["noise_multiplier"] * data["clip"]) ** 2
    p, dimension = phase.mechanism.clip_norm, phase.mechanism.dimension
    length = data["clip"] ** 2 * (1 if met[1] == "add-remove" else 4)
    if p <= 2 or dimension == 1:
        return met[0] * length / deviation
    if dimension is None:
        return Unavailable("the dimension is not set")
    if p == inf:
        return met[0] * length * dimension / deviation
    return met[0] * ball(length / deviation) * arb(dimension) ** (1 - 2 / ball(p))


def _mu_of_phase(claim: Claim, phase: Phase) -> Number | Unavailable:
    """mu^2 of a phase's releases, of Laplace noise too.

    One release moved by t scales has the mu with Phi(-mu/2) = e^(-t/2)/2, and what has a pure epsilon the one with
    1/(1 + e^epsilon) (`verify.renyi.mu_upper`).
    """
    found, met = _squared_mu(claim, phase), _met(claim, phase)
    if not isinstance(found, Unavailable) or isinstance(met, Unavailable):
        return found
    shift = laplace_shift(phase.mechanism, met[1])
    if isinstance(shift, Unavailable):
        return found
    error, known = (-shift / 2).exp() / 2, -(-shift / 2).expm1()  # and 1 - 2 error, which may be small
    if phase.sampler is None and phase.sampling_prob < 1 and claim.adjacency == "add-remove":
        gained = ball(phase.sampling_prob) * shift.expm1()
        error, known = 1 / (2 + gained), gained / (2 + gained)
    mu = 8 * known.erfinv() ** 2 if known < 0.5 else (2 * _quantile(error)) ** 2
    return met[0] * mu


def _rho(claim: Claim, phase: Phase) -> Number | Unavailable:
    """The least rho that a theorem gives the releases of a phase."""
    met, square = _met(claim, phase), _squared_mu(claim, phase)
    if isinstance(met, Unavailable):
        return met
    if not isinstance(square, Unavailable):
        return square / 2
    costs = []
    mu = dominating_mu(phase.mechanism, met[1])
    if not isinstance(mu, Unavailable):
        costs.append(mu * mu / 2)
    shift = laplace_shift(phase.mechanism, met[1])
    if not isinstance(shift, Unavailable):
        costs.append(shift + (-shift).expm1())  # Harrison and Manurangsi (2026): the Kullback-Leibler divergence
    return met[0] * min(costs, key=lambda cost: float(cost.upper())) if costs else Unavailable("no theorem has a rho")


def _divergence(claim: Claim, order: arb) -> arb | Unavailable:
    """At most D_a of the history, the sum over its releases."""
    known = all_known([_phase_divergence(claim, phase, order) for phase in claim.phases])
    if isinstance(known, Unavailable):
        return known
    return max((total([part[side] for part in known]) for side in (0, 1)), key=lambda x: float(x.upper()))


def _phase_divergence(claim: Claim, phase: Phase, order: arb) -> tuple[arb, arb] | Unavailable:
    """At most D_a of a phase's releases, with the record against without it and the reverse."""
    met = _met(claim, phase)
    if isinstance(met, Unavailable):
        return met
    steps, adjacency = met
    sampled = phase.sampler is None and phase.sampling_prob < 1
    mu = dominating_mu(phase.mechanism, "add-remove" if sampled and is_gaussian(phase.mechanism) else adjacency)
    shift = laplace_shift(phase.mechanism, adjacency)
    rate = ball(phase.sampling_prob) if sampled else arb(1)
    found: list[tuple[arb, arb]] = []
    if is_gaussian(phase.mechanism) and not isinstance(mu, Unavailable):
        found.append(both_ways(normal_divergence, Pair(mu, rate, sampled and adjacency == "replace-one"), order))
    elif not isinstance(mu, Unavailable):
        found.append(both_ways(normal_divergence, Pair(mu, arb(1)), order))
        if sampled and adjacency == "add-remove" and order <= LARGEST_WHOLE:
            lam = max(1, ceil(float(order.upper())) - 1)
            moment = log_moment([(replace(phase, steps=1), [mu])], lam) / lam  # D_a grows with a
            found.append((moment, moment))
    if isinstance(phase.sampler, WithoutReplacement) and is_gaussian(phase.mechanism):
        one_clip = dominating_mu(phase.mechanism, "add-remove")
        if not isinstance(one_clip, Unavailable) and order * (order - 1) * one_clip**2 < LARGEST_GROWTH:
            rate = ball(phase.sampler.prob)
            found.append(fixed_size_divergence(one_clip, rate, order, swaps=adjacency == "replace-one"))
    if not isinstance(shift, Unavailable):
        known = sampled and adjacency == "add-remove"  # of a record that is replaced, its coin is revealed
        found.append(both_ways(laplace_divergence, Pair(shift, rate if known else arb(1)), order))
    if not found:
        return Unavailable("no theorem has such moments")
    one, other = (min((ways[side] for ways in found), key=lambda x: float(x.upper())) for side in (0, 1))
    return steps * one, steps * other


def _told_apart(claim: Claim, witness: Witness | None) -> ToldApart | Unavailable:
    for epsilon, delta in ((claim.epsilon, claim.delta), NEAR):
        told = told_apart(replace(claim, epsilon=epsilon, delta=delta, guarantee=None), witness)
        if isinstance(told, Unavailable):
            return told
        p, q = told.p.lower(), told.q.upper()
        if 0 < q < p < 1:
            return ToldApart(p, q, told.witness)
    return Unavailable("no event tells the two apart")


def _quantile(p: arb) -> arb:
    """x with P(N(0, 1) <= x) = p."""
    if abs(p - 0.5) < 0.25:
        return arb(2).sqrt() * (2 * p - 1).erfinv()
    return -(arb(2).sqrt()) * (2 * p).erfcinv() if p < 0.5 else arb(2).sqrt() * (2 * (1 - p)).erfcinv()
