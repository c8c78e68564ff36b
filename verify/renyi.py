"""Renyi divergences of a history, and what guarantees of its kind follow: at most what theorems give.

D_a = log E_Q[(dP/dQ)^a]/(a - 1), a > 1. Over the releases of an adaptive history upper bounds add up (Mironov 2017,
Proposition 1). What D_a is for the Gaussian: a mu^2/2 without sampling. From below: `lower.divergences`.
"""

import math
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any

import numpy as np
from scipy.special import erfinv, logsumexp, ndtri

from dpaudit.mechanisms import Gaussian, GeneralizedGaussian
from dpaudit.mechanisms.base import (
    Array,
    LaplaceCoordinates,
    NormalCoordinates,
)
from dpaudit.verify.claims import Adjacency, Claim, Phase, lets_another_in
from dpaudit.verify.rdp import (
    Moments,
    between_versions,
    laplace_moments,
    log_excess,
    replaced_moment,
    replaced_normal_moment,
)
from dpaudit.verify.samplers import BufferedShuffle, Shuffled, TruncatedPoisson, WithoutReplacement
from dpaudit.verify.upper import (
    bounded_loss,
    laplace_gaussian_domination,
    laplace_pure,
    mixed,
    replaced_coins,
    replaced_moments,
    sampled_normal,
)
from dpaudit.verify.upper.full_batches import kinds_of
from dpaudit.verify.upper.gaussian_pld import shift_over_sigma
from dpaudit.verify.upper.half_line_moments import half_moments
from dpaudit.verify.upper.met_releases import met_claim
from dpaudit.verify.upper.pass_moments import pass_moments
from dpaudit.verify.upper.shift_norms import exact_radius, sampling_is_known

INTERVALS = 48  # of orders, at most
NEAREST_ORDER = 1e-3  # to 1, at which a divergence is a bound on those of lesser ones
ENOUGH = 1e-4  # relative
ROUNDING = 1e-11  # relative, for sums of logarithms


def unamplified(claim: Claim) -> list[Phase] | None:
    """Releases that cost no less, without sampling; None where an unknown sampler decides who is in them.

    Who is in a release, its order or its bins have the same law for both neighbours, and given them the releases that
    the record enters are unsampled ones. A divergence whose exponential is jointly convex is at most the largest.
    """
    if not all(phase.sampler is not None or sampling_is_known(phase) for phase in claim.phases):
        return None
    return [
        Phase(phase.mechanism, phase.steps if phase.sampler is None else phase.sampler.meetings, 1.0, "none")
        for phase in claim.phases
    ]


def squared_mu(claim: Claim) -> Fraction | None:
    """mu^2 of a history of Gaussian noise as if unsampled, which it attains where nothing is; None for other noise.

    Exact, every parameter read as the decimal it is written as. Where a batch is cut, the removal of a record can bring
    another one in: a shift of two contributions, as under replace-one.
    """
    releases = unamplified(claim)
    if releases is None:
        return None
    total = Fraction(0)
    for phase, met in zip(claim.phases, releases, strict=True):
        structure = phase.mechanism.structure
        square = exact_radius(phase.mechanism, 2, _as_met(claim, phase).adjacency, 2)
        if not isinstance(structure, NormalCoordinates) or square is None:
            return None
        total += met.steps * square / _variance(phase.mechanism, structure)
    return total


def _variance(mechanism: Any, structure: NormalCoordinates) -> Fraction:
    """sigma^2, from the decimals of the mechanism's own parameters: a float of their product may lie above it.

    Of a subclass the structure alone says what its noise is.
    """
    if type(mechanism) is Gaussian:
        return (_decimal(mechanism.noise_multiplier) * _decimal(mechanism.clip)) ** 2
    if type(mechanism) is GeneralizedGaussian:
        return _decimal(mechanism.scale) ** 2 / 2
    return Fraction(math.nextafter(structure.sigma, 0.0)) ** 2


def _decimal(number: float) -> Fraction:
    return Fraction(repr(float(number)))


def mu_upper(claim: Claim) -> float:
    """A mu of the history by theorems for Gaussian and for Laplace noise, rounded up; inf where there is none.

    The curve of a pure epsilon lies below that of the mu with Phi(-mu/2) = 1/(1 + e^epsilon), since both are convex as
    trade-off functions and meet at (Phi(-mu/2), Phi(-mu/2)), its only vertex.

    Of one release of Laplace noise, t the l1 radius over its scale, false negatives f and false alarms a have
    a f = e^-t/4 for a and f up to 1/2. So with a = Phi(-x), f = Phi(-y) the mu that a needs is x + y, where log Phi is
    concave: 2 log Phi(-(x + y)/2) >= log(a f), and mu with Phi(-mu/2) = e^(-t/2)/2 is enough, and met at a = f. Where
    a < e^-t/2, f = 1 - a e^t: log Phi(-x) and log Phi(-y') with y' = -y are t apart, and x - y' is largest at y' = 0.
    """
    total = 0.0
    for phase in claim.phases:
        alone = replace(claim, phases=[phase])
        square = squared_mu(alone)
        if square is not None:
            total += float(square)
            continue
        pure = _pure_release(claim, phase)
        if pure is None:
            return math.inf
        whole = phase.sampler is None and phase.sampling_prob == 1
        laplace = whole and isinstance(phase.mechanism.structure, LaplaceCoordinates)
        total += pure[1] * (_squared_mu_of_laplace if laplace else _squared_mu_of)(pure[0])
    return math.sqrt(total) * (1.0 + ROUNDING)


def _squared_mu_of_laplace(shift: float) -> float:
    """mu^2 of one release of Laplace noise moved by so many scales; 4 shift is more, as 2 Phi(-x) <= e^(-x^2/2)."""
    if shift > 60.0:
        return 4.0 * shift
    if shift > 1.0:  # the smaller tail
        return (2.0 * float(ndtri(math.exp(-shift / 2.0) / 2.0))) ** 2
    return 8.0 * float(erfinv(-math.expm1(-shift / 2.0))) ** 2


def _squared_mu_of(epsilon: float) -> float:
    """mu^2 of the least mu whose curve is above a pure epsilon's; 8 epsilon is more, as 2 Phi(-x) <= e^(-x^2/2)."""
    if epsilon > 30.0:
        return 8.0 * epsilon
    if epsilon > 1.0:  # the smaller tail
        return (2.0 * float(ndtri(1.0 / (1.0 + math.exp(epsilon))))) ** 2
    # 2 Phi(mu/2) - 1 = tanh(epsilon/2), of which 1/(1 + e^-epsilon) would keep the digits beside 1/2 alone
    return 8.0 * float(erfinv(math.tanh(epsilon / 2.0))) ** 2


def _as_met(claim: Claim, phase: Phase) -> Claim:
    """The claim as of known releases: where removal of the record lets another in, the two are swapped."""
    return replace(claim, adjacency="replace-one") if lets_another_in(claim, phase) else claim


def _pure_release(claim: Claim, phase: Phase) -> tuple[float, int] | None:
    """Pure epsilon of one release that the record enters, and how many there are; None where it has none."""
    releases = unamplified(replace(claim, phases=[phase]))
    if releases is None:
        return None
    # amplified where each release samples for itself
    known = Phase(phase.mechanism, 1, phase.sampling_prob) if phase.sampler is None else replace(releases[0], steps=1)
    if isinstance(phase.sampler, WithoutReplacement):
        known = Phase(phase.mechanism, sampler=replace(phase.sampler, releases=1))
    alone = [replace(claim, phases=[known])]
    if isinstance(phase.sampler, TruncatedPoisson):
        alone = [one for _, one in kinds_of(claim, phase)]
    epsilon = max(map(_pure_epsilon, alone))
    return (epsilon, releases[0].steps) if math.isfinite(epsilon) else None


def _pure_epsilon(alone: Claim) -> float:
    """Of one release; inf where it has none."""
    [release] = alone.phases
    epsilon = bounded_loss.pure_epsilon(alone)
    of_its_coin = replaced_coins.release_epsilon(alone, release) if replaced_coins.applies(alone) else None
    return epsilon if of_its_coin is None else min(epsilon, of_its_coin)


def pure_upper(claim: Claim) -> float:
    """A pure epsilon of the history, those of the releases that the record enters added up; inf where one has none.

    A release that holds the record several times has so many times the epsilon of one.
    """
    total = Fraction(0)
    for phase in claim.phases:
        release = _pure_release(claim, phase)
        if release is None:
            return math.inf
        sampler, count = phase.sampler, release[1]
        if isinstance(sampler, Shuffled | BufferedShuffle):
            count = sum(times * releases for times, releases in sampler.worst_meetings)
        total += Fraction(release[0]) * count
    nearest = float(total)
    return nearest if nearest >= total else math.nextafter(nearest, math.inf)


def rho_upper(claim: Claim) -> float:
    """A rho of the history, rounded up; inf where no theorem gives one.

    mu^2/2 for Gaussian noise, and for noise with a Lipschitz log-density under an l2 bound by the inequality of
    moments in `laplace_gaussian_domination`; epsilon^2/2 for a pure epsilon (Bun and Steinke 2016, Proposition 1.4);
    `replaced_rho` for normal noise in Poisson batches, of a record that is replaced;
    epsilon + e^-epsilon - 1 for Laplace noise (Harrison and Manurangsi 2026; its Kullback-Leibler divergence, so the
    least that there can be).
    """
    releases = unamplified(claim)
    if releases is None:
        return math.inf
    total = 0.0
    for phase, met in zip(claim.phases, releases, strict=True):
        square = squared_mu(replace(claim, phases=[phase]))
        costs = [] if square is None else [float(square) / 2.0]
        replaced = claim.adjacency == "replace-one" and phase.sampler is None and phase.sampling_prob < 1.0
        mu = shift_over_sigma(phase, "add-remove") if replaced else None
        if mu is not None:
            costs.append(met.steps * replaced_rho(mu, phase.sampling_prob))
        shift = laplace_gaussian_domination.gaussian_shift(_as_met(claim, phase), met)
        if shift is not None:
            costs.append(met.steps * shift**2 / 2.0)
        pure = _pure_release(claim, phase)
        if pure is not None:
            costs.append(pure[1] * pure[0] ** 2 / 2.0)
            if phase.sampling_prob == 1.0 and isinstance(phase.mechanism.structure, LaplaceCoordinates):
                # of Laplace laws, which a sampled release is none of
                alone = replace(_as_met(claim, phase), phases=[replace(met, steps=1)])
                costs.append(met.steps * _laplace_rho(bounded_loss.pure_epsilon(alone)))
        total += min(costs, default=math.inf)
    return total * (1.0 + ROUNDING)


@lru_cache(maxsize=256)
def replaced_rho(mu: float, q: float) -> float:
    """At most so much is D_a/a, at every order, of (1-q) N(0, 1) + q N(mu, 1) against (1-q) N(0, 1) + q N(-mu, 1).

    log E_Q[(P/Q)^a] = (a-1) D_a is convex in a, 0 at 1: between two orders at most its chord. And Q >= (1-q) N(0, 1),
    where by convexity E[(1 - q + q W)^a] <= 1 - q + q E[W^a] <= e^(a (a-1) mu^2/2) for W = N(mu, 1)/N(0, 1), so that
    E_Q[(P/Q)^a] is at most (1-q)^(1-a) times that: D_a/a <= mu^2/2 - log(1-q)/a, which falls to what it is far out.
    The worst interval of orders is cut in two, until nothing is to be gained.

    Args:
        mu: clip over sigma, > 0.
        q: Rate of sampling, in (0, 1).
    """
    far = mu * mu / 2.0
    alphas, known = {0.0: 0.0, math.inf: math.inf}, far

    def most(low: float, high: float) -> tuple[float, float, float]:
        """Of the orders between two, less 1."""
        for lam in (low, high):
            alphas[lam] = alphas[lam] if lam in alphas else replaced_normal_moment(mu, q, lam)
        beyond = far - math.log1p(-q) / (low + 1.0)
        return min(_most_of_chord(low, high, alphas[low], alphas[high]), beyond), low, high

    worst = [most(0.0, NEAREST_ORDER), most(NEAREST_ORDER, 3.0), most(3.0, math.inf)]
    for _ in range(INTERVALS):
        known = max(known, *(alpha / (lam * (lam + 1.0)) for lam, alpha in alphas.items() if 0 < lam < math.inf))
        if max(worst)[0] <= known * (1.0 + ENOUGH):
            break
        _, low, high = worst.pop(worst.index(max(worst)))
        middle = math.sqrt(max(low, NEAREST_ORDER / 4.0) * high) if high < math.inf else 2.0 * low
        worst += [most(low, middle), most(middle, high)]
    return max(worst)[0]


def _most_of_chord(low: float, high: float, first: float, second: float) -> float:
    """The largest (c + d l)/(l (l + 1)) between two l, c + d l from `first` to `second` or 0 to it; inf of a ray."""
    if math.isinf(second):
        return math.inf
    slope = (second - first) / (high - low)
    start = first - slope * low
    if start >= 0.0:  # the chord from 0 says as much
        return second / high / (low + 1.0) * (1.0 + ROUNDING)
    at = min(max((math.sqrt(start * start - start * slope) - start) / slope, low), high)
    return (start + slope * at + ROUNDING * (slope * at - start)) / (at * (at + 1.0))


def _laplace_rho(epsilon: float) -> float:
    """epsilon + e^-epsilon - 1, by its series where it cancels."""
    if epsilon > 1e-2:
        return epsilon + math.expm1(-epsilon)
    return epsilon**2 / 2.0 - epsilon**3 / 6.0 + epsilon**4 / 24.0  # alternating: less is left out than is added


def divergence_upper(claim: Claim, orders: Array) -> Array:
    """Upper bounds on the Renyi divergence of the history, inf where no theorem gives one.

    The least of a rho times the order, of moments and of a pure epsilon, which is the divergence of order infinity
    and grows with the order (van Erven and Harremoes 2014, Theorem 3).

    Args:
        claim: The history.
        orders: Above 1, shape (orders,).
    """
    best = np.minimum(rho_upper(claim) * orders, pure_upper(claim))
    uncut = replace(claim, phases=[_uncut(phase) for phase in claim.phases])
    met = met_claim(uncut) or uncut
    if not all(sampling_is_known(p) or isinstance(p.sampler, WithoutReplacement) for p in met.phases):
        return np.asarray(best)
    total = np.zeros(len(orders))
    for own, phase in zip(claim.phases, met.phases, strict=True):
        found = np.full(len(orders), np.inf)
        if isinstance(own.sampler, TruncatedPoisson):
            found = _cut_moments(claim, own, orders - 1.0)
        elif phase.sampler is None:
            found = _release_moments(met, phase, orders - 1.0, poisson=own.sampler is None)
        if isinstance(own.sampler, WithoutReplacement):  # fixed sizes put another record in one's place
            found = np.minimum(found, _fixed_size_moments(claim, own, orders - 1.0))
        found = np.minimum(phase.steps * found, _straddling_moments(own, found))
        passes = pass_moments(own, orders - 1.0) if claim.adjacency == "add-remove" else None
        total += found if passes is None else np.minimum(found, passes)
    return np.asarray(np.minimum(best, total / (orders - 1.0) * (1.0 + ROUNDING)))


def _straddling_moments(phase: Phase, release: Array) -> Array:
    """Of passes whose batches can hold a record twice, which costs as much as four releases of normal noise.

    The mean over how many do (`upper.met_twice`): moments are jointly convex, and grow with that number.
    """
    sampler, normal = phase.sampler, isinstance(phase.mechanism.structure, NormalCoordinates)
    if not isinstance(sampler, Shuffled | BufferedShuffle) or not normal or (law := sampler.twice_chances) is None:
        return np.full(len(release), np.inf)
    places = sum(times * count for times, count in sampler.worst_meetings)
    twice = np.arange(len(law))
    return np.asarray(logsumexp(np.log(law) + np.multiply.outer(release, places + 2.0 * twice), axis=1))


def _release_moments(claim: Claim, phase: Phase, lams: Array, *, poisson: bool) -> Array:
    """Upper bounds on log E_P[e^(lam L)] of one release, Poisson-sampled or not; inf where no theorem has one.

    `poisson`: whether nobody takes the record's place where it is not drawn.
    """
    rate = phase.sampling_prob
    replaced = claim.adjacency == "replace-one" and rate < 1.0
    drawn = phase.unsampled if replaced else phase
    moments = mixed.moments_of(claim, drawn)
    found = np.minimum(np.inf if moments is None else moments(lams), _laplace_moments(claim, drawn, lams))
    if rate == 1.0:
        return found
    if not replaced:  # moments are jointly convex, and where the record is not drawn nothing tells
        whole = _release_moments(claim, phase.unsampled, lams, poisson=poisson)
        return np.minimum(found, np.logaddexp(0.0, math.log(rate) + log_excess(whole)) * (1.0 + ROUNDING))
    best = [replaced_moment(float(one), rate) for one in found]
    mu = shift_over_sigma(phase, "add-remove")
    if mu is not None and poisson:
        best = list(np.minimum(best, replaced_moments.replaced_normal(mu, rate, lams)))
    if not poisson:
        return np.array(best)
    version = partial(_version_moments, replace(claim, adjacency="add-remove"), phase)
    return np.minimum(best, between_versions(version, version, rate)(lams))


def _fixed_size_moments(claim: Claim, phase: Phase, lams: Array) -> Array:
    """Of one release of a batch of fixed size, both orders, as `upper.replaced_moments` has them for delta(epsilon).

    Of normal noise those of the worst losses too, which are of half-lines (`upper.sampled_normal`).
    """

    def at(adjacency: Adjacency, rate: float) -> Moments:
        alone = Claim(0.0, 0.0, [Phase(phase.mechanism, 1)], adjacency)
        return partial(_version_moments, alone, Phase(phase.mechanism, 1, rate))

    found = replaced_moments.carried(claim, phase, at)(lams)
    normal = sampled_normal.halves(phase, claim.adjacency)
    return found if normal is None else np.minimum(found, half_moments(normal, lams))


def _cut_moments(claim: Claim, phase: Phase, lams: Array) -> Array:
    """Of one release of batches that are cut: the mean over its kinds (`upper.full_batches`).

    Which of them it is has one law for both neighbours, whatever was released before, and moments are jointly convex.
    """
    kinds = [math.log(chance) + _kind_moments(one, lams) for chance, one in kinds_of(claim, phase)]
    return np.asarray(np.logaddexp.reduce(kinds, axis=0))


def _kind_moments(alone: Claim, lams: Array) -> Array:
    [kind] = alone.phases
    if isinstance(kind.sampler, WithoutReplacement):
        return _fixed_size_moments(alone, kind, lams)
    return _release_moments(alone, kind, lams, poisson=True)


def _uncut(phase: Phase) -> Phase:
    """A phase, as if nothing of its batches was cut."""
    sampler = phase.sampler
    return Phase(phase.mechanism, sampler.steps, sampler.prob) if isinstance(sampler, TruncatedPoisson) else phase


def _version_moments(claim: Claim, phase: Phase, lams: Array) -> Array:
    """Of one release: of the record's one version against none, or against another one."""
    moments = mixed.moments_of(claim, phase, phase.sampling_prob)
    return np.minimum(np.inf if moments is None else moments(lams), _laplace_moments(claim, phase, lams))


def _laplace_moments(claim: Claim, phase: Phase, lams: Array) -> Array:
    """Of Laplace noise with an l1 radius: those of the pair that dominates (`upper.laplace_pure`); inf of others."""
    shift = laplace_pure.shift_over_scale(claim, phase)
    if shift is None:
        return np.full(len(lams), np.inf)
    return laplace_moments(shift, phase.sampling_prob, lams)
