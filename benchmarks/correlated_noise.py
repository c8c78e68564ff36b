"""Seconds and memory to bound the sensitivity of correlated noise, and how far apart the bounds are.

Processor seconds of the first call and the most memory that Python held, for 10,000 steps; plain matrices have no
structure to use and are given with fewer steps.

    python benchmarks/correlated_noise.py
"""

import argparse
import time
import tracemalloc

import numpy as np

from dpaudit.verify.correlated import (
    BLT,
    BandedToeplitz,
    Correlation,
    Matrix,
    Participation,
    Sensitivity,
    SquareRootToeplitz,
    Tree,
)
from dpaudit.verify.correlated.correlation import Strategy

SCHEMAS = ((1, 10_000), (1, 5_000), (7, 50), (100, 100), (500, 3), (1000, 10))


def strategies(plain_steps: int) -> dict[str, tuple[Strategy, int | None]]:
    """Name -> strategy, and its number of steps where that is not free."""
    plain = np.tril(np.random.default_rng(1).normal(size=(plain_steps, plain_steps)))
    return {
        "tree": (Tree(), None),
        "tree, all nodes": (Tree(nodes="all"), None),
        "tree of 1000": (Tree(1000), None),
        "square root": (SquareRootToeplitz(), None),
        "100 bands": (BandedToeplitz(100), None),
        "blt": (BLT((0.999, 0.9), (0.1, 0.1)), None),
        f"plain, {plain_steps}": (Matrix("random.npy", "", plain), plain_steps),
    }


def measured(correlation: Correlation, steps: int) -> tuple[Sensitivity, float, float]:
    """The bounds, processor seconds and megabytes; tracing memory costs little beside arrays."""
    tracemalloc.start()
    began = time.process_time()
    found = correlation.sensitivity(steps)
    seconds, most = time.process_time() - began, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return found, seconds, most / 1e6


def main() -> None:
    """Print a row for each strategy and schema."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--plain-steps", type=int, default=1000)
    arguments = parser.parse_args()
    print(f"{'strategy':<16}{'apart':>6}{'times':>7}{'lower':>12}{'upper':>12}{'ratio - 1':>11}{'CPU s':>8}{'MB':>7}")
    for name, (strategy, own_steps) in strategies(arguments.plain_steps).items():
        steps = own_steps or arguments.steps
        for separation, times in SCHEMAS:
            if separation >= steps or (own_steps and times > steps):
                continue
            schema = Participation("min-sep", separation=separation, times=times)
            found, seconds, megabytes = measured(Correlation(strategy, schema), steps)
            bounds = f"{found.lower:>12.6g}{found.upper:>12.6g}{found.upper / found.lower - 1:>11.1e}"
            print(f"{name:<16}{separation:>6}{times:>7}{bounds}{seconds:>8.2f}{megabytes:>7.0f}", flush=True)


if __name__ == "__main__":
    main()
