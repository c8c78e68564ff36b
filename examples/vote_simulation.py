"""Which exponent keeps the true winner of a vote? gg's simulation (Appendix D.1), at equal claim and at equal truth.

Histograms of votes with a known lead of the winner; GGNMax (argmax of counts with generalized Gaussian noise) names a
class; the hardmax utility is how often that is the winner without noise. Every exponent gets its noise twice: the scale
at which the paper's Theorem 2 claims epsilon, and the scale at which the whole noisy vote vector really costs no more.

The text we had of the paper lacks its formulas, so the numbers that it fixes there are ours: 250 voters; with two
classes the counts are half of the voters plus and minus half of the lead; with 25 classes the winner has 50 votes, the
runner-up that less the lead, the third half of the runner-up's, the next 21 are uniform on the integers from 0 to twice
their fair share of the rest, and the last has the remainder, redrawn where it is negative or above the runner-up.

    python examples/vote_simulation.py                      # the table of docs/pate.md, two minutes on one core
    python examples/vote_simulation.py --setting 1 1 --betas 1 2 --seeds 3
"""

import argparse
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress
from scipy import stats

from dpaudit.mechanisms import GeneralizedGaussian
from dpaudit.mechanisms.learning.pate.teachers import noisy_argmax
from dpaudit.verify import calibrate
from dpaudit.verify.accountants import Published
from dpaudit.verify.papers.votes.history import VoteHistory
from dpaudit.verify.papers.votes.lower import votes_lower
from dpaudit.verify.papers.votes.upper import votes_upper

Votes = NDArray[np.int64]

VOTERS, LARGEST_LEAD = 250, 0.10
HISTOGRAMS, TRIALS = 500, 50  # as the paper has them
DELTA, CONFIDENCE = 1e-5, 0.95
SETTINGS = ((1.0, 1), (5.0, 100))  # epsilon of so many answers
BETAS = (1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0)
CLASSES = (2, 25)


@dataclass(frozen=True)
class Interval:
    """A mean over seeds with Student's interval for it."""

    mean: float
    half_width: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Interval":
        """From one value per seed, at least two."""
        spread = float(np.std(values, ddof=1)) / math.sqrt(len(values))
        return cls(float(np.mean(values)), float(stats.t.ppf(0.5 + 0.5 * CONFIDENCE, len(values) - 1)) * spread)

    def __str__(self) -> str:
        return f"{self.mean:.4f} ± {self.half_width:.4f}"


def histogram(classes: int, lead: int, rng: np.random.Generator) -> Votes:
    """Counts of all classes, the winner first, `lead` votes before the next; they add up to the voters.

    Args:
        classes: 2, or so many that none of the small classes can overtake the runner-up.
        lead: From 0 to a tenth of the voters; with two classes an odd one is an even one less.
        rng: Draws the small classes.

    Raises:
        ValueError: Too few classes for their votes to stay below the runner-up's.
    """
    if classes == 2:
        return np.array([VOTERS // 2 + lead // 2, VOTERS // 2 - lead // 2])
    first = VOTERS // 5
    second = first - lead
    third = second // 2
    rest = VOTERS - first - second - third
    most = 2 * rest // max(classes - 3, 1)
    if most > second:
        raise ValueError(
            f"Expected classes={classes} to be 2, or more: a small class may get {most} votes, the runner-up {second}."
        )
    while True:
        others = rng.integers(0, most, classes - 4, endpoint=True)
        last = rest - int(others.sum())
        if 0 <= last <= second:
            return np.array([first, second, third, *others, last])


def utility(classes: int, noise: GeneralizedGaussian, seed: int) -> float:
    """Area under the hardmax utility over leads from 0 to a tenth of the voters, 1 at most.

    Args:
        classes: Counts per histogram.
        noise: On every count.
        seed: Of histograms and noise.
    """
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(classes,)))
    leads = np.rint(np.linspace(0, LARGEST_LEAD * VOTERS, HISTOGRAMS)).astype(int)
    votes = np.repeat(np.stack([histogram(classes, int(lead), rng) for lead in leads]), TRIALS, axis=0)
    hits = (noisy_argmax(votes, noise, rng=rng) == 0).reshape(HISTOGRAMS, TRIALS).mean(axis=1)
    return float(np.trapezoid(hits, dx=1 / (HISTOGRAMS - 1)))


def claimed_scale(beta: float, epsilon: float, answers: int) -> float:
    """The least scale by Theorem 2: an answer costs one count moved by 1, however many there are."""
    published = Published("gg-theorem-2")
    return calibrate(_table(beta), epsilon=epsilon, delta=DELTA, steps=answers, accountant=published).value


def valid_scale(beta: float, epsilon: float, answers: int) -> float:
    """The least scale by the bound on the vote vector: a changed vote is two releases of one count moved by 1."""
    return calibrate(_table(beta), epsilon=epsilon, delta=DELTA, steps=2 * answers).value


def bracket(noise: GeneralizedGaussian, answers: int, epsilon: float) -> tuple[float, float]:
    """Certified lower and upper bound on epsilon of some answers between two classes, for one changed vote."""
    history, at = VoteHistory(noise, answers, VOTERS, 2), np.array([DELTA])
    curves = (find(history, epsilon=epsilon, delta=DELTA) for find in (votes_lower, votes_upper))
    low, high = (float(curve.epsilon(at)[0]) for curve in curves)
    return low, high


def _table(beta: float) -> dict[str, object]:
    return {"name": "generalized-gaussian", "beta": beta, "clip_norm": beta, "dimension": 1}


def rows(
    settings: Sequence[tuple[float, int]], betas: Sequence[float], seeds: int, progress: Callable[[int], object]
) -> Iterator[str]:
    """Rows of the table: both scales, what the claimed one costs, and the utility at both."""
    for epsilon, answers in settings:
        for beta in betas:
            scales = claimed_scale(beta, epsilon, answers), valid_scale(beta, epsilon, answers)
            noises = [GeneralizedGaussian(beta=beta, scale=scale) for scale in scales]
            low, high = bracket(noises[0], answers, epsilon)
            cells = [f"{answers}", f"{epsilon:g}", f"{beta:g}"]
            cells += [f"{scales[0]:.3f}", f"{low:.3f} to {high:.3f}", f"{scales[1]:.3f}"]
            for classes in CLASSES:
                for noise in noises:
                    cells.append(str(Interval.of([utility(classes, noise, seed) for seed in range(seeds)])))
                    progress(1)
            yield "| " + " | ".join(cells) + " |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--setting", nargs=2, action="append", metavar=("EPSILON", "ANSWERS"))
    parser.add_argument("--betas", type=float, nargs="+", default=BETAS)
    parser.add_argument("--seeds", type=int, default=10, help="whole simulations per cell, at least 2")
    arguments = parser.parse_args()
    if arguments.seeds < 2:
        parser.error(f"Expected seeds={arguments.seeds} to be at least 2: the intervals need a spread.")
    settings = [(float(epsilon), int(answers)) for epsilon, answers in arguments.setting or SETTINGS]
    print(
        "| answers | epsilon | beta | scale claimed | its epsilon, truly | scale certified | 2 classes, claimed "
        "| certified | 25 classes, claimed | certified |"
    )
    print("|---" * 10 + "|")
    with Progress(console=Console(stderr=True), redirect_stdout=sys.stdout.isatty()) as bar:
        task = bar.add_task("Simulating", total=4 * len(settings) * len(arguments.betas))
        for line in rows(settings, arguments.betas, arguments.seeds, lambda cells: bar.advance(task, cells)):
            print(line, flush=True)


if __name__ == "__main__":
    try:
        main()
    except ValueError as error:  # of an argument or a file
        raise SystemExit(f"error: {error}") from None
