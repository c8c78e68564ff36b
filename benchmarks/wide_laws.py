"""What must hold of samplers, correlated noise and kinds of guarantee: every law with its reason.

Samplers are read as claims are: where batches depend on who is there, add-remove is zero-out, so that both neighbours
have the same batches. Three reasons serve for most laws, for every noise and whatever comes before and after.

- Prefix: releases that are left out are a post-processing.
- Revealed: who is in which release has one law for both neighbours, and hockey-stick divergences are jointly convex, so
  that to reveal some of it costs more.
- Silent: others that contribute nothing are data like any other. What they do under samplers in which everybody draws
  alone is known given their draws, so that there it is their worst.

Normal noise under add-remove: a record in a random set of releases, the same number in every set of a partition, has as
its worst pair the mean of products of likelihood ratios with equal shifts (`upper/balls_in_bins.py`).
"""

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from scipy.special import ndtri
from wide_draws import NUMBERS, numbered, stating

from dpaudit.mechanisms.base import NormalCoordinates
from dpaudit.verify import Claim
from dpaudit.verify.claims import Phase, lets_another_in
from dpaudit.verify.correlated import BLT, BandedToeplitz, Correlation, Participation, Tree
from dpaudit.verify.correlated.matrix import Matrix
from dpaudit.verify.correlated.toeplitz import Identity, SquareRootToeplitz
from dpaudit.verify.guarantees import GaussianDP, Guarantee, PureDP, RenyiDP, ZeroConcentratedDP
from dpaudit.verify.implied import implied_delta
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

Relation = Literal["dearer", "cheaper", "equal"]
Changed = Iterator[tuple[str, list[Phase], Relation]]
BELOW = 1.0 - 2.0**-40  # a rate that is smaller in spite of rounding
ROUNDING = 1e-9  # relative; of numbers that are equal but for it
MATRIX = 64  # steps up to which a strategy is written as a plain matrix


def phase_laws(phase: Phase, claim: Claim, rng: np.random.Generator) -> Changed:
    """(name, phases in its place, how they cost against it) of every law of its sampler or of its correlated noise."""
    more = int(rng.choice([1, 2, 10]))
    if phase.correlation is not None:
        yield from _correlated_laws(phase, phase.correlation, more)
    elif phase.sampler is not None:
        known = [*_shared_laws(phase, phase.sampler), *_own_laws(phase, phase.sampler, more)]
        # a record that is taken away lets another one in, two contributions away
        refilled = lets_another_in(claim, phase) and ("releases known", "everybody drawn")
        yield from (law for law in known if not (refilled and law[0] in refilled))
        if claim.adjacency != "replace-one" and isinstance(phase.mechanism.structure, NormalCoordinates):
            yield from _normal_laws(phase, phase.sampler, more)


def _under(phase: Phase, *samplers: Sampler) -> list[Phase]:
    return [Phase(phase.mechanism, sampler=sampler) for sampler in samplers]


def _plain(phase: Phase, steps: int, rate: float = 1.0) -> list[Phase]:
    return [Phase(phase.mechanism, steps, rate, "none" if rate == 1 else "poisson")]


def _shared_laws(phase: Phase, sampler: Sampler) -> Changed:
    """Against known releases, and against Poisson batches at the rate of one release of every pass."""
    if not sampler.meets_twice:
        known: Relation = "equal" if isinstance(sampler, Deterministic) else "dearer"
        yield "releases known", _plain(phase, sampler.meetings), known  # revealed
    rate = sampler.rate
    match sampler:
        case Deterministic():
            return
        case TruncatedPoisson():  # all others are drawn at worst, and max_batch of them kept
            times, rate = sampler.releases, sampler.prob * sampler.max_batch / sampler.records
        case WithoutReplacement():
            times = sampler.releases
        case BallsInBins(reshuffle="every-epoch") | Shuffled(reshuffle="every-epoch", straddles=False):
            times = sampler.epochs
        case _:
            times = 1
    yield "Poisson batches in a part", _plain(phase, times, rate * BELOW), "cheaper"  # prefix and silent


def _own_laws(phase: Phase, sampler: Sampler, more: int) -> Changed:
    match sampler:
        case Deterministic(batches, epochs):
            yield "more passes", _under(phase, Deterministic(batches, epochs + more)), "dearer"  # prefix
            yield "other fixed batches", _under(phase, Deterministic(batches + more, epochs)), "equal"  # both are known
        case BallsInBins(batches, epochs, reshuffle):
            yield from _pass_laws(phase, sampler, more)
            if epochs == 1:  # the same law of who is where
                yield "once of all releases", _under(phase, RandomAllocation(batches, 1)), "equal"
        case Shuffled(batches, epochs, records, batch, last, reshuffle):
            yield from _pass_laws(phase, sampler, more)
            if records is None or batch is None:
                yield "others silent", _under(phase, BallsInBins(batches, epochs, reshuffle)), "cheaper"
                return
            of = {"epochs": epochs, "reshuffle": reshuffle}
            if records % batch == 0:  # data of one size are some of those of any
                yield "data of any size", _under(phase, Shuffled(batches, epochs, reshuffle=reshuffle)), "dearer"
            elif last == "dropped":  # prefix of every pass
                yield "last batch kept", _under(phase, Shuffled.of(records, batch, **of)), "dearer"  # type: ignore[arg-type]
            if records % batch == 0 or (last == "straddling" and epochs == 1):  # no batch straddles
                way = "dropped" if last == "straddling" else "straddling"
                same = Shuffled.of(records, batch, last_batch=way, **of)  # type: ignore[arg-type]
                yield "nothing straddles", _under(phase, same), "equal"
        case BufferedShuffle(epochs=int(epochs)):
            yield "more passes", _under(phase, replace(sampler, epochs=epochs + more)), "dearer"  # prefix
        case BufferedShuffle(releases=int(releases)):
            yield "more releases", _under(phase, replace(sampler, releases=releases + more)), "dearer"  # prefix
        case RandomAllocation(releases, times):
            if times == 1:
                yield "bins of one pass", _under(phase, BallsInBins(releases, 1)), "equal"
        case WithoutReplacement(prob, releases):
            yield "more releases", _under(phase, WithoutReplacement(prob, releases + more)), "dearer"  # prefix
            if releases > 1:
                first = min(more, releases - 1)
                parts = WithoutReplacement(prob, first), WithoutReplacement(prob, releases - first)
                yield "releases in two phases", _under(phase, *parts), "equal"
        case TruncatedPoisson(prob, most, records, releases):
            yield "more releases", _under(phase, replace(sampler, releases=releases + more)), "dearer"  # prefix
            if most == records:  # nothing is cut
                yield "never cut", _plain(phase, releases, prob), "equal"
            elif prob == 1 and math.log2(records) % 1 == 0:  # cut to a uniform set; the rate is a float
                yield "everybody drawn", _under(phase, WithoutReplacement(most / records, releases)), "dearer"


def _pass_laws(phase: Phase, sampler: BallsInBins | Shuffled, more: int) -> Changed:
    """Of passes: prefixes, halves that are drawn anew, and one pass."""
    yield "more passes", _under(phase, replace(sampler, epochs=sampler.epochs + more)), "dearer"
    straddles = isinstance(sampler, Shuffled) and sampler.straddles
    if sampler.epochs == 1:
        other: Any = "once" if sampler.reshuffle == "every-epoch" else "every-epoch"
        yield "one pass has one order", _under(phase, replace(sampler, reshuffle=other)), "equal"
    elif sampler.reshuffle == "every-epoch" and not straddles:
        first = min(more, sampler.epochs - 1)
        parts = replace(sampler, epochs=first), replace(sampler, epochs=sampler.epochs - first)
        yield "passes in two phases", _under(phase, *parts), "equal"


def _normal_laws(phase: Phase, sampler: Sampler, more: int) -> Changed:
    """By the worst pair: means of products of ratios grow in the convex order where they are means of fewer."""
    match sampler:
        case BallsInBins(batches, epochs, reshuffle):
            yield "more bins", _under(phase, BallsInBins(batches + more, epochs, reshuffle)), "cheaper"
            if reshuffle == "every-epoch":  # independent bins are one bin, its numbers permuted anew in every pass
                yield "one order for all passes", _under(phase, BallsInBins(batches, epochs, "once")), "dearer"
        case RandomAllocation(releases, times):
            # products over random sets: a reversed martingale in the number of releases (U-statistics)
            yield "more releases to be in", _under(phase, RandomAllocation(releases + more, times)), "cheaper"
            if releases % times == 0:  # a random partition revealed
                yield "one of each part", _under(phase, BallsInBins(releases // times, times)), "dearer"


def _correlated_laws(phase: Phase, correlation: Correlation, more: int) -> Changed:
    """Rows left out, patterns left out (contributions of 0 are allowed), and bijections of contributions or outputs."""
    strategy, schema, steps = correlation.strategy, correlation.participation, phase.steps

    def under(strategy: Any = strategy, schema: Participation = schema, steps: int = steps) -> list[Phase]:
        return [Phase(phase.mechanism, steps, correlation=Correlation(strategy, schema))]

    yield (
        "more steps",
        under(steps=steps + more),
        "dearer",
    )  # the first rows of a longer strategy are those of a shorter
    match schema:
        case Participation("single"):
            yield "more patterns", under(schema=Participation("fixed-order", separation=more)), "dearer"
        case Participation("fixed-order", separation=apart) if apart is not None:
            yield "fewer patterns", under(schema=replace(schema, separation=apart * (more + 1))), "cheaper"
            yield "more patterns", under(schema=Participation("min-sep", separation=apart)), "dearer"
            bands = correlation.bandwidth(steps)
            if bands is not None and bands <= apart:
                sure = Participation("cyclic-poisson", groups=apart, prob=1.0)
                yield "groups that are always in", under(schema=sure), "equal"
            if isinstance(strategy, Identity) and steps % apart == 0:
                yield "fixed batches", _under(phase, Deterministic(apart, steps // apart)), "equal"
        case Participation("min-sep", separation=apart, times=times) if apart is not None:
            yield "fewer patterns", under(schema=replace(schema, separation=apart + more)), "cheaper"
            yield "more times", under(schema=replace(schema, times=None if times is None else times + more)), "dearer"
            if isinstance(strategy, Identity):
                yield "releases known", _plain(phase, schema.spacing(steps)[1]), "equal"
        case Participation("cyclic-poisson", groups=groups, prob=prob) if groups is not None and prob is not None:
            # a coin is one of a larger rate and another one, revealed
            yield "a larger rate", under(schema=replace(schema, prob=min(1.0, prob * (more + 1)))), "dearer"
            yield "always in", under(schema=Participation("fixed-order", separation=groups)), "dearer"
    match strategy:
        case Identity() | SquareRootToeplitz() | BandedToeplitz() | BLT() if steps <= MATRIX:
            yield "as a plain matrix", under(_matrix(strategy.coefficients(steps)[0], steps)), "equal"
        case Tree(nodes="prefix") if not schema.sampled:
            yield "more nodes", under(replace(strategy, nodes="all")), "dearer"
    match strategy:
        case BandedToeplitz(diagonals=diagonals) if diagonals is not None:
            # signs of every other contribution and output turned; the noise is symmetric
            turned = tuple(-c if j % 2 else c for j, c in enumerate(diagonals))
            yield "signs turned", under(BandedToeplitz(diagonals=turned)), "equal"
        case BandedToeplitz(bands=int(bands)) if not schema.sampled and isinstance(
            phase.mechanism.structure, NormalCoordinates
        ):
            # one normal release of a sensitivity that grows with entries of one sign
            yield "more diagonals", under(BandedToeplitz(bands=bands + more)), "dearer"
            yield "all diagonals", under(SquareRootToeplitz()), "equal" if bands >= steps else "dearer"


def _matrix(coefficients: np.ndarray, steps: int) -> Matrix:
    lag = np.subtract.outer(np.arange(steps), np.arange(steps))
    padded = np.concatenate([coefficients, np.zeros(steps - len(coefficients))])
    entries = np.where(lag >= 0, padded[np.maximum(lag, 0)], 0.0)
    return Matrix("drawn.npy", hashlib.sha256(entries.tobytes()).hexdigest(), entries)


def restated(claim: Claim, verdict: Verdict, rng: np.random.Generator) -> Claim:
    """The same history with a guarantee of another kind."""
    order, size = 1.0 + 10.0 ** rng.uniform(-3, 3), max(verdict.epsilon_lower, 1e-3)
    kinds: list[Guarantee] = [PureDP(size), GaussianDP(size), ZeroConcentratedDP(size), RenyiDP(order, size)]
    return stating(claim, kinds[int(rng.integers(len(kinds)))])


def guarantee_faults(claim: Claim, verdict: Verdict, epsilons: np.ndarray) -> list[str]:
    """What is wrong with the bracket of a guarantee of another kind by itself."""
    table, guarantee = verdict.guarantee, claim.guarantee
    if table is None or guarantee is None:
        return []
    lower, upper, found = float(table["lower"]), float(table["upper"]), list[str]()
    if math.isnan(lower) or math.isnan(upper) or lower > upper:
        found.append(f"{table['parameter']} is at least {lower:.17g} and at most {upper:.17g}")
    stated = 0.0 if guarantee.kind not in NUMBERS else getattr(guarantee, NUMBERS[guarantee.kind])
    if verdict.verdict == "refuted" and not (lower >= stated and lower > 0):
        found.append(f"refuted with a lower bound {lower:.17g}")
    if verdict.verdict == "certified" and not upper <= stated:
        found.append(f"certified with an upper bound {upper:.17g}")
    if guarantee.kind in NUMBERS and math.isfinite(upper):
        most = implied_delta(numbered(guarantee, upper))(epsilons)
        least = verdict.delta(epsilons)[0]
        for i in np.flatnonzero(least > most)[:1]:
            what = f"{table['parameter']} at most {upper:.17g} allows {most[i]:.17g}"
            found.append(f"delta at {epsilons[i]:.17g} is at least {least[i]:.17g}, and {what}")
    return found


def guarantee_disorder(cheap: Verdict, dear: Verdict) -> str:
    """Where the guarantee of `cheap` is proven larger than that of `dear` allows, "" if nowhere."""
    if cheap.guarantee is None or dear.guarantee is None or cheap.guarantee["kind"] not in NUMBERS:
        return ""
    least, most = float(cheap.guarantee["lower"]), _at_most(dear.guarantee, cheap.guarantee)
    if least > most * (1.0 + ROUNDING):
        kinds = f"{cheap.guarantee['kind']} of one is at least {least:.17g}"
        return f"{kinds}, at most {most:.17g} by {dear.guarantee['kind']} of the other"
    return ""


def _at_most(known: dict[str, Any], wanted: dict[str, Any]) -> float:
    """What an upper bound of one kind says of another kind (Bun and Steinke 2016; Dong, Roth and Su 2022)."""
    kind, value, order = known["kind"], float(known["upper"]), float(wanted.get("order", 1.0))
    squares: dict[str, Callable[[], float]] = {
        "gdp": lambda: value * value, "pure": lambda: value * value, "zcdp": lambda: 2.0 * value
    }  # fmt: skip
    match kind, wanted["kind"]:
        case ("rdp", "rdp"):  # divergences grow with the order
            return value if order <= known["order"] else math.inf
        case (same, other) if same == other and kind in NUMBERS:
            return value
        case ("pure", "gdp"):
            return 2.0 * float(ndtri(1.0 / (1.0 + math.exp(-value))))
        case (_, "zcdp") if kind in squares:
            return squares[kind]() / 2.0
        case (_, "rdp") if kind in squares:
            return min(order * squares[kind]() / 2.0, value if kind == "pure" else math.inf)
    return math.inf
