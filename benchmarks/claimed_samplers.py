"""Trainings that draw their batches with one sampler and claim another: which are told, by calculation and by attack.

For every ordered pair of samplers (as run, as claimed) at one setting: the certified lower bound on delta(epsilon) as
run against the certified upper one as claimed. Where the first is larger somewhere the claimed curve is false, and the
claim itself if at the claimed delta. The attack `history` is played on all of them: scores of `--models` histories of
each neighbour, as `audit/attacks/history.py` computes them, from the same draws and noise as its trainings release,
judged by the same joint test against the certified curve of the claim at 95%.

    python benchmarks/claimed_samplers.py --seeds 20 --models 60

Prints for every pair how many of the audits refute. Pairs of a sampler with itself are correct twins.
"""

import argparse
import os
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy is loaded

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from sampler_games import Array, Setting, draws, losses

from dpaudit.mechanisms import Gaussian
from dpaudit.verify.bounds import JointTest, Tradeoff
from dpaudit.verify.checking import check
from dpaudit.verify.claims import Adjacency, Claim
from dpaudit.verify.samplers import (
    BallsInBins,
    Deterministic,
    RandomAllocation,
    Shuffled,
    TruncatedPoisson,
    WithoutReplacement,
)
from dpaudit.verify.sampling.games import history_games
from dpaudit.verify.upper import upper_curve

DELTA, CONFIDENCE, NOISE, RECORDS = 1e-5, 0.95, 1.0, 43
GRID = np.geomspace(0.1, 40.0, 30) - 0.1  # epsilons
SETTINGS = (
    Setting("none", None, NOISE, 1.0, 150, RECORDS),
    Setting("poisson", None, NOISE, 0.1, 150, RECORDS),
    Setting("deterministic", Deterministic(10, 15), NOISE, records=RECORDS),
    Setting("shuffled", Shuffled.of(RECORDS, 4, 15), NOISE, records=RECORDS),
    Setting("shuffled, dropped", Shuffled.of(RECORDS, 4, 15, last_batch="dropped"), NOISE, records=RECORDS),
    Setting("shuffled, straddling", Shuffled.of(RECORDS, 4, 15, last_batch="straddling"), NOISE, records=RECORDS),
    Setting("shuffled once", Shuffled(10, 15, reshuffle="once"), NOISE, records=RECORDS),
    Setting("balls-in-bins", BallsInBins(10, 15), NOISE, records=RECORDS),
    Setting("random-allocation", RandomAllocation(150, 15), NOISE, records=RECORDS),
    Setting("without-replacement", WithoutReplacement(0.1, 150), NOISE, records=RECORDS),
    Setting("truncated-poisson", TruncatedPoisson(0.1, 2, RECORDS, 150), NOISE, records=RECORDS),
)


def scores(setting: Setting, adjacency: Adjacency, models: int, seed: int) -> list[tuple[Array, Array]]:
    """Scores of so many histories with the record and without it, for each way of the others to contribute."""
    rng, noise = np.random.default_rng([seed, SETTINGS.index(setting)]), Gaussian(setting.noise, dimension=1)
    games = history_games(setting.phase(noise), replace_one=adjacency == "replace-one")
    found = []
    for game in games:
        both = [losses(game, setting, noise, draws(setting, models, rng), rng)[arm] for arm in (0, 1)]
        found.append((both[0], both[1]))
    return found


def main() -> int:
    """Print a line for every pair."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--models", type=int, default=60)
    parser.add_argument("--adjacency", choices=["zero-out", "replace-one"], default="zero-out")
    parser.add_argument("--claimed", default="", help="only these samplers as claimed, by the beginning of their name")
    arguments = parser.parse_args()
    adjacency: Adjacency = arguments.adjacency
    claims = {
        setting.name: Claim(1.0, DELTA, (setting.phase(Gaussian(setting.noise, dimension=1)),), adjacency)
        for setting in SETTINGS
    }
    bounds = {name: check(claim) for name, claim in claims.items()}
    deltas = {name: verdict.delta(GRID) for name, verdict in bounds.items()}
    played = {
        s.name: [scores(s, adjacency, arguments.models, seed) for seed in range(arguments.seeds)] for s in SETTINGS
    }
    claimed = [name for name in claims if name.startswith(arguments.claimed)]
    print(f"{adjacency}, {arguments.models} models of each neighbour, {arguments.seeds} audits of each pair")
    print("| as run | epsilon >= | as claimed | epsilon <= | false by calculation | refuted |\n" + "|---" * 6 + "|")
    with Progress(
        TextColumn("Pairs"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=Console(stderr=True)
    ) as bars:
        task = bars.add_task("", total=len(claimed) * len(claims))
        for name in claimed:
            curve = Tradeoff.of(upper_curve(claims[name].canonical()))
            for run, verdict in bounds.items():
                bars.update(task, advance=1)
                low, high = verdict.epsilon_lower, bounds[name].epsilon_upper
                above = (deltas[run][0] > deltas[name][1]).any()
                known = "epsilon" if low > high else "curve" if above else "no"
                refuted = [
                    sum(
                        JointTest(*audit[game], curve, confidence=CONFIDENCE, seed=seed).rejects(curve)
                        for seed, audit in enumerate(played[run])
                    )
                    for game in range(len(played[run][0]))
                ]
                counts = ", ".join(map(str, refuted))
                print(f"| {run} | {low:.3f} | {name} | {high:.3f} | {known} | {counts} |", flush=True)
    print(f"{time.process_time():.0f} CPU s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
