"""Poisson batches that are cut, in balls: a release is one of fixed size where the others alone fill it, else uncut.

The theorem is that of `verify/upper/full_batches.py`. Of n - 1 others X ~ Bin(n - 1, q) are drawn; with B places the
chance of X >= B is a binomial tail, and in such a batch the record is with probability

    g = q E[B / (1 + X) | X >= B] = (B / n) P(Bin(n, q) > B) / P(X >= B).

From below, the others are silent: then it is a Poisson batch at q P(X < B) + (B / n) P(Bin(n, q) > B).
"""

from dataclasses import dataclass, replace

from flint import arb

from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.rigorous.balls import ball, float_above, float_below, precision
from dpaudit.verify.rigorous.events import binomial_tail
from dpaudit.verify.samplers import TruncatedPoisson


@dataclass(frozen=True)
class CutRates:
    """What is known of a release of batches that are cut.

    Args:
        full: Probability that the others alone fill it.
        kept: Probability that they do and the record is in.
        uncut: Probability that they do not and the record is in.
    """

    full: arb
    kept: arb
    uncut: arb

    @property
    def full_rate(self) -> float:
        """Upper bound on the probability of the record in a batch that the others fill; 1 where that is not told."""
        return min(1.0, float_above(self.kept / self.full)) if self.full > 0 else 1.0


def cut_rates(sampler: TruncatedPoisson) -> CutRates:
    """The rates of a sampler, some places less than records."""
    n, places, q = sampler.records, sampler.max_batch, ball(sampler.prob)
    full = arb(1) if sampler.prob == 1 else binomial_tail(n - 1, places, q)
    some = arb(1) if sampler.prob == 1 else binomial_tail(n, places + 1, q)
    return CutRates(full, some * places / n, q * (1 - full))


def with_silent_others(claim: Claim) -> Claim:
    """A claim that costs no more: batches that are cut as Poisson ones at the rate at which a record is kept."""
    with precision():
        phases = [_silent(phase) for phase in claim.phases]
    return claim if all(a is b for a, b in zip(phases, claim.phases, strict=True)) else replace(claim, phases=phases)


def _silent(phase: Phase) -> Phase:
    if not isinstance(phase.sampler, TruncatedPoisson):
        return phase
    rates = cut_rates(phase.sampler)
    rate = float_below(rates.kept + rates.uncut)
    return Phase(phase.mechanism, phase.steps, rate) if rate > 0 else phase
