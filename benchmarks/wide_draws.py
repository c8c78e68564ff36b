"""Claims over everything that a claim can say: samplers, correlated noise, kinds of guarantee, ghosts, users."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import get_args

import numpy as np
from claim_draws import drawn_mechanism, drawn_strength, nearer, plain_claim, plain_phase, spread

from dpaudit.mechanisms.registry import MECHANISMS
from dpaudit.verify import Claim
from dpaudit.verify.claims import Phase
from dpaudit.verify.correlated import BLT, BandedToeplitz, Correlation, Participation, Tree
from dpaudit.verify.correlated.correlation import Strategy
from dpaudit.verify.correlated.toeplitz import Identity, SquareRootToeplitz
from dpaudit.verify.guarantees import (
    GaussianDP,
    Guarantee,
    PrivacyCurve,
    PureDP,
    RenyiDP,
    ZeroConcentratedDP,
    guarantee_from_dict,
    guarantee_to_dict,
)
from dpaudit.verify.implied import claim_stating
from dpaudit.verify.results import Verdict
from dpaudit.verify.samplers import (
    BallsInBins,
    BufferedShuffle,
    Deterministic,
    RandomAllocation,
    Sampler,
    Shuffled,
    TruncatedPoisson,
    WithoutReplacement,
)
from dpaudit.verify.samplers.shuffled import LastBatch, Reshuffle

WIDE = 0.25  # share of the claims that are drawn here
STATED = 0.25  # share of these that state a guarantee of another kind
NUMBERS = {"pure": "epsilon", "gdp": "mu", "zcdp": "rho", "rdp": "epsilon"}  # what a kind of guarantee is about
RATE_ALONE = ("buffered-shuffle", "shuffled", "balls-in-bins")  # of which a rate alone says nothing


def drawn_claim(rng: np.random.Generator, index: int = 0, wide: float = WIDE) -> Claim:
    """A claim; so large a share of them may be of any kind.

    The others are what they are without this share, whatever it is.

    Raises:
        ValueError: The parameters drawn are refused.
    """
    own = rng.spawn(1)[0]
    return _wide_claim(own, index) if own.random() < wide else plain_claim(rng, index)


def _wide_claim(rng: np.random.Generator, index: int) -> Claim:
    claim = plain_claim(rng, index, _wide_phase)
    if claim.adjacency == "add-remove" and rng.random() < 0.4:
        claim = replace(claim, adjacency="zero-out")
    if rng.random() < 0.1:
        claim = replace(claim, unit="user")
    return stating(claim, _guarantee(rng, claim)) if rng.random() < STATED else claim


def stating(claim: Claim, guarantee: Guarantee) -> Claim:
    """The claim's history with another guarantee."""
    return claim_stating(guarantee, claim.phases, claim.adjacency, claim.id, unit=claim.unit)


def _guarantee(rng: np.random.Generator, claim: Claim) -> Guarantee:
    size = spread(rng, 0.01, 30.0)
    kinds: tuple[Callable[[], Guarantee], ...] = (
        lambda: PureDP(claim.epsilon),
        lambda: GaussianDP(size),
        lambda: ZeroConcentratedDP(float(f"{size**2 / 2:.6g}")),
        lambda: RenyiDP(order := 1.0 + spread(rng, 1e-3, 1e3), float(f"{order * size**2 / 2:.6g}")),
        lambda: PrivacyCurve(((claim.epsilon, claim.delta), (2.0 * claim.epsilon + 1.0, claim.delta**2))),
    )
    return kinds[int(rng.integers(len(kinds)))]()


def nearest(rng: np.random.Generator, claim: Claim, verdict: Verdict) -> Claim:
    """The same history with a claim near the ends of its bracket, whatever it states."""
    if claim.guarantee is None or verdict.guarantee is None:
        return nearer(rng, claim, verdict)
    ends = [end for end in (verdict.guarantee["lower"], verdict.guarantee["upper"]) if 0 < end < 1e6]
    if claim.guarantee.kind not in NUMBERS or not ends:
        return claim
    place = float(rng.choice(ends)) * float(rng.choice([1 - 1e-9, 1.0, 1 + 1e-9, 0.999, 1.001, 0.5, 2.0]))
    return stating(claim, numbered(claim.guarantee, place))


def numbered(guarantee: Guarantee, number: float) -> Guarantee:
    """The guarantee with another number."""
    return guarantee_from_dict({**guarantee_to_dict(guarantee), NUMBERS[guarantee.kind]: number})


def _wide_phase(rng: np.random.Generator, mu: float) -> Phase:
    kind = rng.random()
    if kind < 0.15:
        return plain_phase(rng, mu)
    names = ("gaussian",) if rng.random() < 0.4 else tuple(MECHANISMS)
    if kind < 0.17:
        noise = drawn_mechanism(rng, drawn_strength(rng, mu, 1.0, 1.0), names)
        return Phase(noise, 1, spread(rng, 1e-3, 1.0), str(rng.choice(RATE_ALONE)))
    if kind < 0.35:
        return _correlated(rng, mu, ("gaussian",) if rng.random() < 0.7 else names)
    sampler = drawn_sampler(rng)
    known = rng.random() < 0.5  # as if the releases that a record enters were known, or were drawn at its rate
    strength = drawn_strength(rng, mu, *((1.0, sampler.meetings) if known else (sampler.rate, sampler.steps)))
    return Phase(drawn_mechanism(rng, strength, names), sampler=sampler)


def _count(rng: np.random.Generator, usual: float, most: float) -> int:
    """A whole number, often 1 or a power of 2, seldom above `usual`."""
    kind = rng.random()
    found = spread(rng, 1.0, most if kind < 0.1 else usual)
    return 1 if kind > 0.8 else 2 ** int(math.log2(found)) if kind > 0.6 else int(found)


def drawn_sampler(rng: np.random.Generator) -> Sampler:
    """Any of the samplers.

    Raises:
        ValueError: The keys drawn are refused.
    """
    batches, epochs = _count(rng, 1e4, 1e9), _count(rng, 100.0, 1e4)
    reshuffle: Reshuffle = get_args(Reshuffle)[int(rng.integers(2))]
    kind = rng.random()
    if kind < 0.1:
        return Deterministic(batches, epochs)
    if kind < 0.25:
        return Shuffled(batches, epochs, reshuffle=reshuffle)
    if kind < 0.45:
        records = _count(rng, 1e5, 1e12)
        last: LastBatch = get_args(LastBatch)[int(rng.integers(3))]
        batch = max(1, int(records / min(batches * spread(rng, 1.0, 2.0), records)))
        return Shuffled.of(records, batch, epochs, last_batch=last, reshuffle=reshuffle)
    if kind < 0.52:
        records = _count(rng, 1e5, 1e12)
        batch, buffer = (max(1, int(records / spread(rng, 1.0, 1e3))) for _ in range(2))
        if rng.random() < 0.5:
            return BufferedShuffle(records, batch, buffer * _count(rng, 2.0, 100.0), releases=batches)
        return BufferedShuffle(records, batch, buffer, epochs, get_args(LastBatch)[int(rng.integers(3))])
    if kind < 0.62:
        return BallsInBins(batches, epochs, reshuffle)
    if kind < 0.75:
        return RandomAllocation(batches, min(batches, _count(rng, 30.0, 1e4)))
    rate = 1.0 if rng.random() < 0.05 else spread(rng, 1e-5, 1.0)
    if kind < 0.88:
        return WithoutReplacement(rate, batches)
    records = _count(rng, 1e5, 1e12)
    most = min(records, 1 + int(records * rate * spread(rng, 0.5, 4.0)))
    return TruncatedPoisson(rate, most, records, batches)


def _correlated(rng: np.random.Generator, mu: float, names: tuple[str, ...]) -> Phase:
    steps, separation = _count(rng, 300.0, 5000.0), _count(rng, 50.0, 1000.0)
    strategies: tuple[Callable[[], Strategy], ...] = (
        Identity,
        SquareRootToeplitz,
        lambda: BandedToeplitz(bands=_count(rng, 30.0, 300.0)),
        lambda: BandedToeplitz(diagonals=(1.0, *(spread(rng, 1e-3, 1.0) * rng.choice([-1.0, 1.0], 3)).tolist())),
        lambda: BLT((spread(rng, 0.1, 1.0), 0.5), (spread(rng, 1e-3, 1.0), float(rng.choice([-0.25, 0.25])))),
        lambda: Tree(
            None if rng.random() < 0.5 else _count(rng, 100.0, 1e3), "all" if rng.random() < 0.3 else "prefix"
        ),
    )
    times = None if rng.random() < 0.5 else _count(rng, 20.0, 100.0)
    schemas: tuple[Callable[[], Participation], ...] = (
        lambda: Participation("single"),
        lambda: Participation("fixed-order", separation=separation),
        lambda: Participation("min-sep", separation=separation, times=times),
        lambda: Participation("cyclic-poisson", groups=separation, prob=spread(rng, 1e-3, 1.0)),
    )
    strategy = strategies[int(rng.integers(len(strategies)))]()
    correlation = Correlation(strategy, schemas[int(rng.integers(len(schemas)))]())
    strength = drawn_strength(rng, mu, 1.0, -(-steps // separation))
    return Phase(drawn_mechanism(rng, strength, names), steps, correlation=correlation)
