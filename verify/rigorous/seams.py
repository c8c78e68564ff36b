"""Batches that straddle two passes, normal noise, in balls: the mean over how many hold a record twice.

The theorem is that of `verify/upper/met_twice.py`: with the order revealed, j batches that hold a record twice cost
four releases each and its E - 2 j other places one, and delta is at most the mean over j. A place in a pass is in a
batch that the pass before began, or in one that the next pass ends, with the share that these have of the records; j
counts how often one follows upon the other.
"""

from collections.abc import Callable
from fractions import Fraction

from flint import arb

from dpaudit.verify.claims import Claim
from dpaudit.verify.rigorous.balls import Unavailable, ball, total
from dpaudit.verify.rigorous.domination import dominating_mu, is_gaussian
from dpaudit.verify.rigorous.gaussian import gaussian_delta
from dpaudit.verify.samplers import Shuffled
from dpaudit.verify.upper.met_releases import met_claim

MOST_TOLD = 30  # batches with the record twice that are told apart; more count as the most
MOST_PASSES = 5_000


def twice_chances(records: int, batch: int, epochs: int, told: int) -> list[arb]:
    """Probabilities of 0, ..., told - 1 batches that hold a record twice, and of more.

    >>> [round(float(chance), 6) for chance in twice_chances(3, 2, 2, 2)]
    [0.888889, 0.111111, 0.0]
    """
    at_end, elsewhere = [arb(0)] * (told + 1), [arb(1), *[arb(0)] * told]
    for epoch in range(epochs):
        begun = -epoch * records % batch
        over = (epoch + 1) * records % batch if epoch + 1 < epochs else 0
        first, last = ball(Fraction(begun, records)), ball(Fraction(over, records))
        between = ball(Fraction(records - begun - over, records))
        either = [a + b for a, b in zip(at_end, elsewhere, strict=True)]
        met = [arb(0), *at_end[:-2], at_end[-2] + at_end[-1]] if told else at_end
        elsewhere = [b * first + m * first + x * between for b, m, x in zip(elsewhere, met, either, strict=True)]
        at_end = [x * last for x in either]
    return [a + b for a, b in zip(at_end, elsewhere, strict=True)]


def straddled_curve(claim: Claim) -> Callable[[arb], arb] | Unavailable:
    """Upper bound on delta of a claim with one phase of straddling batches, all of normal noise and without sampling.

    Args:
        claim: Canonical.
    """
    met = met_claim(claim)
    if met is None or not all(is_gaussian(phase.mechanism) and phase.sampling_prob == 1 for phase in met.phases):
        return Unavailable("other noise, or sampling")
    found = [(i, one) for i, one in enumerate(phase.sampler for phase in claim.phases) if isinstance(one, Shuffled)]
    several = [(i, one) for i, one in found if one.meets_twice]
    mus = [dominating_mu(phase.mechanism, claim.adjacency) for phase in met.phases]
    squares = [mu * mu for mu in mus if not isinstance(mu, Unavailable)]
    if len(several) != 1 or len(squares) < len(mus):
        return Unavailable("not one phase of straddling batches")
    [(at, passes)] = several
    most, records, batch = passes.most_twice, passes.records, passes.batch
    if records is None or batch is None or not most or passes.epochs > MOST_PASSES:
        return Unavailable("too many passes")
    chances = twice_chances(records, batch, passes.epochs, min(MOST_TOLD, most))
    rest = total([phase.steps * x for i, (phase, x) in enumerate(zip(met.phases, squares, strict=True)) if i != at])
    twice = [*range(len(chances) - 1), most]
    roots = [(rest + (passes.epochs + 2 * j) * squares[at]).sqrt() for j in twice]
    return lambda e: total([c * gaussian_delta(mu, e) for c, mu in zip(chances, roots, strict=True)])
