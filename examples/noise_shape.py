"""Does the noise's shape matter? Accuracy of private training against the TRUE epsilon, for five shapes of noise.

Every shape gets the same noise budget twice: calibrated so that the valid bound meets epsilon, and so that the
paper's own accountant does. Each cell is then tuned alike (the same grid of clips and learning rates, on seeds of its
own) and its accuracy measured on fresh seeds. The results go to a JSON file, the table for the page to stdout.

    python examples/noise_shape.py --task digits-linear --out out/digits-linear.json
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import joblib
import numpy as np
from rich.console import Console
from rich.progress import track
from scipy import stats

from dpaudit.audit.inputs.datasets import Dataset, load
from dpaudit.mechanisms.base import Mechanism, at_clip
from dpaudit.mechanisms.learning.architectures import parameter_count
from dpaudit.mechanisms.learning.spec import Architecture, DPSGDSpec, Pool
from dpaudit.mechanisms.learning.training import logits, train
from dpaudit.mechanisms.registry import to_dict
from dpaudit.verify import Claim, calibrate, check
from dpaudit.verify.accountants import Published

DELTA = 1e-5
EPSILONS = (0.5, 2.0, 8.0)
CONFIDENCE = 0.95
WINDOW = (0.2, 200.0)  # epsilons that are drawn
CHANCE = 0.1
SHAPES: dict[str, tuple[dict[str, Any], str | None]] = {
    "gaussian": ({"name": "gaussian"}, None),
    "laplace": ({"name": "laplace"}, "lap2-theorem-iii.7"),
    "gamma-plrv-iid": ({"name": "gamma-plrv-iid", "k": 20.0}, "plrvo-theorem-4.9"),
    "product": ({"name": "product"}, "product-theorem-8"),
    "generalized-gaussian": ({"name": "generalized-gaussian", "beta": 1.5, "clip_norm": 1.5}, "gg-b.2"),
}


@dataclass(frozen=True)
class Task:
    """What is trained, and what tuning may try.

    Args:
        dataset: Its name.
        network: "linear", "fnn" or "cnn".
        sampling_prob: Poisson rate.
        steps: T.
        clips: Tried.
        learning_rates: Tried.
        tuning_seeds: Models a try is judged by.
        seeds: Fresh models the accuracy is measured on.
    """

    dataset: str
    network: str
    sampling_prob: float
    steps: int
    clips: tuple[float, ...] = (0.1, 1.0)
    learning_rates: tuple[float, ...] = (0.1, 0.5, 2.0, 8.0)
    tuning_seeds: int = 3
    seeds: int = 10


TASKS = {
    "digits-linear": Task("digits", "linear", 0.2, 50),
    "fashion-linear": Task("fashion-mnist", "linear", 1 / 120, 240),
    "fashion-fnn": Task("fashion-mnist", "fnn", 1 / 120, 240),
    "fashion-cnn": Task("fashion-mnist", "cnn", 1 / 240, 240, (1.0,), (0.1, 0.5, 2.0), 1),
}


@dataclass(frozen=True)
class Cell:
    """One curve's point: a shape with its noise, and who calibrated it.

    Args:
        shape: Name of the mechanism.
        target: epsilon that was asked for.
        by: "valid" or "published".
        mechanism: For clip 1.
        epsilon_lower, epsilon_upper: Bracket of the true epsilon.
        claimed: What the paper's accountant says; None for the Gaussian.
    """

    shape: str
    target: float
    by: str
    mechanism: Mechanism
    epsilon_lower: float
    epsilon_upper: float
    claimed: float | None


def cells(task: Task, dimension: int, shape: str) -> list[Cell]:
    """The calibrated points of one shape; those that no noise reaches are left out, with a word on stderr."""
    table, name = SHAPES[shape]
    table = {"clip_norm": 2.0, **table, "dimension": dimension}
    published = Published(name) if name else None
    found = []
    for target in EPSILONS:
        for by, accountant in (("valid", None), ("published", published)):
            if by == "published" and published is None:
                continue
            try:
                mechanism = calibrate(
                    table, epsilon=target, delta=DELTA, steps=task.steps, sampling_prob=task.sampling_prob,
                    accountant=accountant, tolerance=0.01,
                ).mechanism  # fmt: skip
            except ValueError as error:
                print(f"{shape}, {by} epsilon {target:g}: {error}", file=sys.stderr)
                continue
            found.append(_cell(task, shape, target, by, mechanism, published))
    return found


def _cell(task: Task, shape: str, target: float, by: str, mechanism: Mechanism, published: Published | None) -> Cell:
    claim = Claim.single(
        mechanism, epsilon=target, delta=DELTA, steps=task.steps, sampling_prob=task.sampling_prob, id=shape
    )
    bracket = check(claim)
    claimed = published(mechanism, task.sampling_prob, task.steps, DELTA) if published else None
    return Cell(shape, target, by, mechanism, bracket.epsilon_lower, bracket.epsilon_upper, claimed)


def accuracies(
    task: Task, data: Dataset, mechanism: Mechanism, clip: float, learning_rate: float, seeds: Sequence[int]
) -> list[float]:
    """Test accuracy of one model per seed."""
    architecture = Architecture(task.network, data.x.shape[1], data.classes)
    spec = DPSGDSpec(
        architecture=architecture,
        mechanism=replace(at_clip(mechanism, clip), dimension=parameter_count(architecture)),  # type: ignore[type-var]
        steps=task.steps,
        sampling_prob=task.sampling_prob,
        expected_batch_size=task.sampling_prob * len(data.y),
        learning_rate=learning_rate,
        momentum=0.9 if task.network == "cnn" else 0.0,
        init="zeros" if task.network == "linear" else "glorot",
    )
    members = np.ones((len(seeds), len(data.y)), dtype=np.bool_)
    models = train(spec, Pool(data.x, data.y), members, list(seeds))
    guesses = logits(models, data.x_test).argmax(dim=2).numpy()
    return [float(value) for value in (guesses == data.y_test[None, :]).mean(axis=1)]


def measure(task: Task, data: Dataset, cell: Cell, number: int) -> dict[str, Any]:
    """Tune a cell, then measure it on fresh seeds: mean and Student interval of the accuracy."""
    first = 1000 * number
    tuning = range(first, first + task.tuning_seeds)
    tries = [(clip, rate) for clip in task.clips for rate in task.learning_rates]
    scores = [float(np.mean(accuracies(task, data, cell.mechanism, *choice, tuning))) for choice in tries]
    clip, rate = tries[int(np.argmax(scores))]
    found = accuracies(task, data, cell.mechanism, clip, rate, range(first + 500, first + 500 + task.seeds))
    mean, spread = float(np.mean(found)), float(np.std(found, ddof=1)) / math.sqrt(len(found))
    reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(found) - 1)) * spread
    return {
        "shape": cell.shape, "by": cell.by, "target": cell.target, "epsilon_lower": cell.epsilon_lower,
        "epsilon_upper": cell.epsilon_upper, "claimed": cell.claimed, "clip": clip, "learning_rate": rate,
        "accuracy": mean, "accuracy_low": mean - reach, "accuracy_high": mean + reach, "accuracies": found,
        "mechanism": to_dict(cell.mechanism), "first_seed": first,
    }  # fmt: skip


def row_text(row: Mapping[str, Any]) -> str:
    """One row of the page's table."""
    claimed = "" if row["claimed"] is None else f"{row['claimed']:.3g}"
    bracket = f"{row['epsilon_lower']:.3g} to {row['epsilon_upper']:.3g}"
    accuracy = f"{row['accuracy']:.3f} [{row['accuracy_low']:.3f}, {row['accuracy_high']:.3f}]"
    return f"| {row['shape']} | {row['by']} | {row['target']:g} | {bracket} | {claimed} | {accuracy} |"


def draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Accuracy against the true epsilon (its certified bracket), and against the one that is claimed.

    The Gaussian has one accountant, so that its claim is its true epsilon. Every calibration counts in both pictures;
    what lies outside the window is counted below it.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.6), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    hidden: dict[str, list[str]] = {"true": [], "claimed": []}
    for color, shape in enumerate(SHAPES):
        mine = [row for row in rows if row["shape"] == shape]
        for axes, kind in zip(panels, hidden, strict=True):
            shown = []
            for row in mine:
                low, high = row["epsilon_lower"], row["epsilon_upper"]
                if kind == "claimed":
                    low = high = high if row["claimed"] is None else row["claimed"]
                centre = math.sqrt(low * high)
                if WINDOW[0] < centre < WINDOW[1] and row["accuracy"] > 2 * CHANCE:
                    shown.append((centre, low, high, row["accuracy"], row["accuracy_low"], row["accuracy_high"]))
                else:
                    hidden[kind].append(shape)
            if shown:
                x, low, high, y, bottom, top = np.array(sorted(shown)).T
                bars = {"xerr": [x - low, high - x], "yerr": [y - bottom, top - y]}
                axes.errorbar(x, y, **bars, fmt="o-", color=f"C{color}", label=shape, capsize=2, markersize=4)
    for axes, (kind, names) in zip(panels, hidden.items(), strict=True):
        outside = "".join(f"; {names.count(name)} points of {name} outside" for name in dict.fromkeys(names))
        axes.set_xlabel(f"{kind} epsilon at delta = {DELTA:g}{outside}")
        axes.set(xscale="log", xlim=WINDOW)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("test accuracy, 95% interval")
    panels[1].legend(loc="lower right")
    figure.savefig(path, dpi=110)


def main() -> None:
    """Calibrate, tune, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=list(TASKS), default="digits-linear")
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--out", type=Path, required=True, help="JSON file; a picture goes beside it")
    arguments = parser.parse_args()
    task, data = TASKS[arguments.task], load(TASKS[arguments.task].dataset)
    dimension = parameter_count(Architecture(task.network, data.x.shape[1], data.classes))
    started = time.perf_counter()
    with (
        joblib.parallel_config("loky", n_jobs=joblib.cpu_count(), inner_max_num_threads=1),
        joblib.Parallel(return_as="generator") as pool,
    ):
        found = list(pool(joblib.delayed(cells)(task, dimension, shape) for shape in arguments.shapes))
        points = [cell for group in found for cell in group]
        print(f"{len(points)} points calibrated in {time.perf_counter() - started:.0f} s", file=sys.stderr)
        work = pool(joblib.delayed(measure)(task, data, cell, i) for i, cell in enumerate(points, 1))
        rows = list(track(work, "Training", total=len(points), console=Console(stderr=True)))
    seconds = time.perf_counter() - started
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps({"task": arguments.task, "delta": DELTA, "seconds": seconds, "rows": rows}))
    draw(rows, arguments.out.with_suffix(".png"))
    print("| noise | calibrated by | to epsilon | true epsilon | claimed | test accuracy (95%) |")
    print("|---|---|---|---|---|---|")
    for row in sorted(rows, key=lambda row: (row["target"], row["by"] != "valid", row["shape"])):
        print(row_text(row))


if __name__ == "__main__":
    main()
