"""Every sampler played as it draws batches, against the certified bounds of the claims that name it.

A game is one record along one line, in histories whose batches come from the sampler's own `draw`, as in training. The
others contribute nothing, or pull against the record; without it there is a ghost in its place (zero-out), or its
opposite. Histories of either neighbour are counted in events {log likelihood ratio > t}, t fixed beforehand.

- Contradictions: the Clopper-Pearson interval of P(S) - e^t Q(S) lies above the certified upper bound on delta(t), or
  below the certified lower one. All intervals of a run hold together but for a probability of 1e-6.
- Power: at t = epsilon_lower, the certified lower bound at delta, log((P(S) - delta)/Q(S)) of the counts at 95%, over
  epsilon_lower; of the best game and direction, which share the error.

    python benchmarks/sampler_games.py --runs 100000 --seed 1

Prints one row per sampler, adjacency and mechanism. Exit status: 3 with a contradiction or a ratio
below 0.8, else 0.
"""

import argparse
import math
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy is loaded

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from scipy.stats import beta

from dpaudit.mechanisms import Gaussian, GeneralizedGaussian, Laplace
from dpaudit.mechanisms.base import Mechanism
from dpaudit.verify.claims import Adjacency, Claim, Phase
from dpaudit.verify.lower import certified_lower
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
from dpaudit.verify.sampling.games import HistoryGame, history_games, public_sizes
from dpaudit.verify.upper import upper_curve

Array = NDArray[np.float64]
DELTA = 0.05  # leaves rates that 1e5 histories can show
REACHED, TRUSTED = 0.8, 6.0  # of the log-odds where epsilon_lower is at most this
FALSE_ALARM = 1e-6  # of all contradictions of a run together
FRACTIONS = (0.1, 0.3, 0.5, 0.7, 0.9, 1.0, 1.1, 1.3)  # thresholds t, times the certified lower bound at DELTA
RECORDS = 23


@dataclass(frozen=True)
class Setting:
    """A way of drawing batches, with the noise it is played with.

    Args:
        name: In the table.
        sampler: None for a Poisson rate.
        noise: Standard deviation over the clip of normal noise; other noise is as wide.
        rate: Of Poisson batches, 1 for none.
        steps: Of them.
        records: Size of the data.
    """

    name: str
    sampler: Sampler | None
    noise: float
    rate: float = 1.0
    steps: int = 1
    records: int = RECORDS

    def phase(self, mechanism: Mechanism) -> Phase:
        """The history in a claim."""
        if self.sampler is not None:
            return Phase(mechanism, sampler=self.sampler)
        return Phase(mechanism, self.steps, self.rate, "none" if self.rate == 1 else "poisson")

    def mechanisms(self) -> tuple[Mechanism, ...]:
        """Normal noise, Laplace noise, and one between them, of one coordinate."""
        between = GeneralizedGaussian(1.5, 1.0, clip_norm=1.5, dimension=1)
        width = math.sqrt(math.gamma(3 / 1.5) / math.gamma(1 / 1.5))
        return (
            Gaussian(self.noise, dimension=1),
            Laplace(self.noise / math.sqrt(2.0), dimension=1),
            GeneralizedGaussian(between.beta, self.noise / width, clip_norm=1.5, dimension=1),
        )


SETTINGS = (
    Setting("none", None, 1.6, 1.0, 6),
    Setting("poisson", None, 0.9, 0.25, 12),
    Setting("deterministic", Deterministic(4, 3), 1.2),
    Setting("shuffled, equal", Shuffled(6, 3), 1.2, records=24),
    Setting("shuffled, kept", Shuffled.of(23, 4, 3), 1.2),
    Setting("shuffled, dropped", Shuffled.of(23, 4, 3, last_batch="dropped"), 1.2),
    Setting("shuffled, straddling", Shuffled.of(23, 4, 3, last_batch="straddling"), 1.2),
    Setting("shuffled once, equal", Shuffled(6, 4, reshuffle="once"), 1.5, records=24),
    Setting("shuffled once, kept", Shuffled.of(23, 4, 4, reshuffle="once"), 1.5),
    Setting("shuffled once, dropped", Shuffled.of(23, 4, 4, last_batch="dropped", reshuffle="once"), 1.5),
    Setting(
        "shuffled once, straddling", Shuffled.of(50, 4, 4, last_batch="straddling", reshuffle="once"), 0.8, records=50
    ),
    Setting("buffered, kept", BufferedShuffle(23, 4, 13, 3), 1.2),
    Setting("buffered, straddling", BufferedShuffle(23, 4, 15, 3, "straddling"), 1.2),
    Setting("balls-in-bins", BallsInBins(6, 3), 0.8),
    Setting("balls-in-bins once", BallsInBins(6, 3, reshuffle="once"), 1.0),
    Setting("random-allocation", RandomAllocation(12, 3), 0.8),
    Setting("without-replacement", WithoutReplacement(0.25, 8), 1.2, records=24),
    Setting("truncated-poisson, rarely", TruncatedPoisson(0.25, 20, 24, 8), 0.8, records=24),
    Setting("truncated-poisson, often", TruncatedPoisson(0.5, 10, 24, 8), 1.0, records=24),
    Setting("shuffled, straddling halves", Shuffled.of(23, 14, 5, last_batch="straddling"), 1.2),
    Setting("buffered, straddling, short", BufferedShuffle(23, 9, 4, 6, "straddling"), 1.2),
)


@dataclass(frozen=True)
class Draws:
    """What `draw` gave: how often the record was in each release, and how large the batch was; (runs, releases)."""

    counts: NDArray[np.int_]
    sizes: NDArray[np.int_]


def draws(setting: Setting, runs: int, rng: np.random.Generator) -> Draws:
    """So many histories of one record, each from a `draw` of its own: of a buffer the file's last, if it hides."""
    if setting.sampler is None:  # as training draws it: a coin for every record and step
        counts = (rng.random((runs, setting.steps)) < setting.rate).astype(int)
        return Draws(counts, np.zeros_like(counts))
    last = isinstance(setting.sampler, BufferedShuffle) and setting.sampler.hidden_batches > 0
    record = setting.records - 1 if last else 0
    counts = np.zeros((runs, setting.sampler.steps), dtype=int)
    sizes = np.zeros_like(counts)
    for run in range(runs):
        batches = setting.sampler.draw(rng, setting.records)
        sizes[run] = [len(batch) for batch in batches]
        places = np.flatnonzero(np.concatenate(batches) == record)
        np.add.at(counts[run], np.searchsorted(np.cumsum(sizes[run]), places, side="right"), 1)
    return Draws(counts, sizes)


def losses(
    game: HistoryGame, setting: Setting, mechanism: Mechanism, drawn: Draws, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Log likelihood ratios of histories with the record and without it, shape (runs,) each."""
    spare = 0.0
    if game.opposed and setting.sampler is not None:
        spare = public_sizes(setting.sampler, setting.records) - drawn.sizes
    shape = drawn.counts.shape
    found = []
    for contribution in game.contributions:
        outputs = mechanism.sample(rng, drawn.counts.size).reshape(shape) + spare + contribution * drawn.counts
        found.append(game.scores(mechanism, float(mechanism.clip), outputs))
    return found[0], found[1]


def counted(scores: Array, thresholds: Array) -> NDArray[np.int_]:
    """How many scores are above each threshold."""
    return len(scores) - np.searchsorted(np.sort(scores), thresholds, side="right")


def rate_bounds(hits: NDArray[np.int_], runs: int, tail: float) -> tuple[Array, Array]:
    """Clopper-Pearson bounds, each one-sided at error probability `tail`."""
    low = np.where(hits > 0, beta.ppf(tail, hits, runs - hits + 1), 0.0)
    high = np.where(hits < runs, beta.isf(tail, hits + 1, runs - hits), 1.0)
    return np.asarray(low), np.asarray(high)


@dataclass(frozen=True)
class Row:
    """What one claim's games showed.

    Args:
        setting, adjacency, mechanism: Which claim.
        lower, upper: Certified epsilon at DELTA, `upper` by bisection of the certified curve.
        reached: The log-odds of the counts at 95%, of the best game and direction.
        estimate: The same from the rates themselves.
        contradictions: In words.
        seconds: CPU time, draws aside.
    """

    setting: str
    adjacency: Adjacency
    mechanism: str
    lower: float
    upper: float
    reached: float
    estimate: float
    contradictions: tuple[str, ...]
    seconds: float

    @property
    def ratio(self) -> float:
        """Of the certified log-odds."""
        return self.reached / self.lower if self.lower > 0 else math.nan

    @property
    def weak(self) -> bool:
        """Whether the counts reach too little of a bound that they could show."""
        return 0 < self.lower <= TRUSTED and self.ratio < REACHED


def play(
    setting: Setting, mechanism: Mechanism, adjacency: Adjacency, drawn: Draws, rng: np.random.Generator, rows: int
) -> Row:
    """The row of one claim.

    Args:
        setting: Whose batches.
        mechanism: The noise.
        adjacency: "zero-out", or "replace-one".
        drawn: From `draws`.
        rng: Of the noise.
        rows: Of the run, which share the error probability.
    """
    began, runs = time.process_time(), len(drawn.counts)
    phase = setting.phase(mechanism)
    claim = Claim(1.0, DELTA, (phase,), adjacency)
    certified, allowed = certified_lower(claim), upper_curve(claim.canonical())
    lower = float(certified.epsilon(np.array([DELTA]))[0])
    games = history_games(phase, replace_one=adjacency == "replace-one")
    at = np.array(FRACTIONS) * (lower if lower > 0 else 1.0)
    tail = FALSE_ALARM / (rows * len(games) * 2 * 4 * len(at))
    reached, estimate, wrong = -math.inf, -math.inf, []
    proved, most = certified.delta(at), allowed(at)
    shown = np.zeros(len(at))
    for number, game in enumerate(games):
        with_record, without = losses(game, setting, mechanism, drawn, rng)
        for way, first, second in (("remove", with_record, without), ("add", -without, -with_record)):
            hits = counted(first, at), counted(second, at)
            (first_low, first_high), (second_low, second_high) = (rate_bounds(h, runs, tail) for h in hits)
            excess = first_low - np.exp(at) * second_high
            wrong += [
                f"game {number}, {way}: delta({t:.3g}) >= {e:.4g} was seen, certified <= {m:.4g}"
                for t, e, m in zip(at, excess, most, strict=True)
                if e > m
            ]
            shown = np.maximum(shown, first_high - np.exp(at) * second_low)
            odds = [
                log_odds(first, second, lower, 0.05 / (4 * len(games))),
                log_odds(first, second, lower, None),
            ]
            reached, estimate = max(reached, odds[0]), max(estimate, odds[1])
    wrong += [
        f"delta({t:.3g}) >= {p:.4g} is certified, and {s:.4g} was seen at most"
        for t, p, s in zip(at, proved, shown, strict=True)
        if p > s
    ]
    upper = smallest_epsilon(allowed)
    seconds = time.process_time() - began
    return Row(
        setting.name, adjacency, mechanism.name, lower, upper, reached, estimate, tuple(wrong), seconds
    )  # fmt: skip


def log_odds(first: Array, second: Array, threshold: float, tail: float | None) -> float:
    """log((P - DELTA)/Q) of the event {loss > threshold}, from bounds at `tail` on each rate; None: from the rates."""
    hits = [counted(scores, np.array([threshold])) for scores in (first, second)]
    p, q = hits[0] / len(first), hits[1] / len(second)
    if tail is not None:
        p, q = rate_bounds(hits[0], len(first), tail)[0], rate_bounds(hits[1], len(second), tail)[1]
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.log(np.maximum(p - DELTA, 0.0) / q)[0])


def smallest_epsilon(allowed: object) -> float:
    """The smallest epsilon with a certified delta(epsilon) <= DELTA, to 1e-6; inf beyond 1,000."""
    low, high = 0.0, 1000.0
    if float(allowed(np.array([high]))[0]) > DELTA:  # type: ignore[operator]
        return math.inf
    while high - low > 1e-6:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if float(allowed(np.array([middle]))[0]) <= DELTA else (middle, high)  # type: ignore[operator]
    return high


def table(settings: tuple[Setting, ...], runs: int, seed: int) -> Iterator[Row]:
    """The rows of some settings, in order; each setting has random numbers of its own."""
    adjacencies: tuple[Adjacency, ...] = ("zero-out", "replace-one")
    for setting in settings:
        rng = np.random.default_rng([seed, SETTINGS.index(setting)])
        drawn = draws(setting, runs, rng)
        for adjacency in adjacencies:
            for mechanism in setting.mechanisms():
                yield play(setting, mechanism, adjacency, drawn, rng, len(SETTINGS) * 6)


def main() -> int:
    """Play all settings and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--only", default="", help="settings whose name begins so")
    arguments = parser.parse_args()
    chosen = tuple(setting for setting in SETTINGS if setting.name.startswith(arguments.only))
    columns = (TextColumn("Games"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    rows: list[Row] = []
    print(f"{arguments.runs} histories of each neighbour, seed {arguments.seed}, delta {DELTA:g}")
    print("| sampler | adjacency | noise | epsilon | seen | of the lower bound | contradictions |\n" + "|---" * 7 + "|")
    with Progress(*columns, console=Console(stderr=True)) as bars:
        task = bars.add_task("", total=6 * len(chosen))
        for row in table(chosen, arguments.runs, arguments.seed):
            rows.append(row)
            bars.update(task, advance=1)
            print(
                f"| {row.setting} | {row.adjacency} | {row.mechanism} | [{row.lower:.3f}, {row.upper:.3f}] | "
                f"{row.estimate:.3f}, >= {row.reached:.3f} | {row.ratio:.2f} | {len(row.contradictions)} |",
                flush=True,
            )
            for wrong in row.contradictions:
                print(f"CONTRADICTION: {row.setting}, {row.adjacency}, {row.mechanism}: {wrong}", flush=True)
    weak = [row for row in rows if row.weak]
    print(f"{sum(len(row.contradictions) for row in rows)} contradictions; {len(weak)} below {REACHED:g}")
    print(f"{time.process_time():.0f} CPU s")
    return 3 if weak or any(row.contradictions for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
