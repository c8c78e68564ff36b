"""Renyi divergences of a history from below, in balls: by one pair of neighbours, or by an event that tells them apart.

Releases of one pair of neighbours add up whose record contributes the same in all of them. Where a sampler decides who
is in a batch, and the others contribute what leaves nothing without the record, P is at least w times the noise around
one way for it to be in the releases of a pass, w its probability, and Q is the noise around nothing: with D'_a of these

    D_a >= a/(a-1) log w + D'_a.
"""

from collections.abc import Callable
from math import inf

from flint import arb

from dpaudit.mechanisms.base import Mechanism, with_dimension
from dpaudit.verify.claims import Adjacency, Claim, Phase
from dpaudit.verify.rigorous.balls import Unavailable, ball, total
from dpaudit.verify.rigorous.cut_batches import with_silent_others
from dpaudit.verify.rigorous.divergences import Pair, laplace_divergence, normal_divergence
from dpaudit.verify.rigorous.domination import attained_mu, is_gaussian, is_laplace, laplace_shift
from dpaudit.verify.rigorous.events import ToldApart
from dpaudit.verify.rigorous.passes import pass_pairs
from dpaudit.verify.upper.shift_norms import sampling_is_known

Divergence = Callable[..., arb]


def pair_divergence(claim: Claim, order: arb) -> arb:
    """At least D_a of the history, by one pair of neighbours; phases without one are left out."""
    sides = [arb(0), arb(0)]
    for phase in with_silent_others(claim).phases:
        found = _pairs(claim, phase, order) if phase.sampler is None else _patterns(claim, phase, order)
        ways = max(found, key=lambda ways: float(ways[0].lower()), default=None)
        if ways is not None and all(way.is_finite() for way in ways):
            sides = [side + way for side, way in zip(sides, ways, strict=True)]
    return max(sides, key=lambda x: float(x.lower()))


def event_divergence(told: ToldApart, order: arb) -> arb:
    """D_a of (p, 1-p) from (q, 1-q)."""
    p, q = told.p, told.q
    return (p**order * q ** (1 - order) + (1 - p) ** order * (1 - q) ** (1 - order)).log() / (order - 1)


def both_ways(divergence: Divergence, pair: Pair, order: arb) -> tuple[arb, arb]:
    """With the record against without it, and the reverse."""
    one = divergence(pair, order)
    return one, one if pair.swaps or pair.rate == 1 else divergence(pair, order, reverse=True)


def _law(noise: Mechanism, distance: Adjacency) -> tuple[Divergence, arb] | None:
    """What the divergence of the longest shift, or of one coordinate's, is, and this shift; None of other noise."""
    if is_gaussian(noise):
        return normal_divergence, attained_mu(noise, distance)
    alone = laplace_shift(with_dimension(noise, 1), distance) if is_laplace(noise) else Unavailable("other noise")
    return None if isinstance(alone, Unavailable) else (laplace_divergence, alone)


def _pairs(claim: Claim, phase: Phase, order: arb) -> list[tuple[arb, arb]]:
    """Poisson batches: by the longest shift, or one coordinate, and by all of them alike."""
    noise, rate, sampled = phase.mechanism, ball(phase.sampling_prob), phase.sampling_prob < 1
    law = _law(noise, "add-remove" if sampled else claim.adjacency)
    if law is None or not sampling_is_known(phase):
        return []
    divergence, shift = law
    found = [both_ways(divergence, Pair(shift, rate, claim.adjacency == "replace-one" and sampled), order)]
    count = noise.dimension or 1
    if is_laplace(noise) and not sampled and count > 1:
        share = arb(1) if noise.clip_norm == inf else arb(count) ** (-1 / ball(noise.clip_norm))
        alike = count * laplace_divergence(Pair(shift * share, rate), order)
        found.append((alike, alike))
    return [(phase.steps * one, phase.steps * other) for one, other in found]


def _patterns(claim: Claim, phase: Phase, order: arb) -> list[tuple[arb, arb]]:
    """Passes whose second law is the noise alone, as it is where the others are silent or like what replaces it."""
    law, swaps = _law(phase.mechanism, "add-remove"), claim.adjacency == "replace-one"
    if law is None:
        return []
    found, (divergence, shift) = list[tuple[arb, arb]](), law
    for pair in pass_pairs(phase, swaps=swaps):
        alone = all(once == twice == 0 for _, (_, once, twice) in pair.second)
        for chance, (none, once, twice) in pair.first:
            silent = (once, twice) if alone else (once + twice, 0)
            if not any(silent) or (swaps and not alone):
                continue
            counts = none, once, twice
            ways = arb(sum(counts) + 1).lgamma() - total([arb(count + 1).lgamma() for count in counts])
            weight = order / (order - 1) * (ball(chance).log() - ways)
            moved = [n * divergence(Pair(k * shift, arb(1)), order) for k, n in enumerate(silent, start=1) if n]
            found.append((pair.passes * (weight + pair.orders * total(moved)).max(arb(0)), arb(0)))
    return found
