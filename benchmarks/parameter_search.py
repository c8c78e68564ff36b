"""What plrvo's parameter search takes, what its optima cost, and how far its predictor of theta is off.

    python benchmarks/parameter_search.py search      # seconds by number of coordinates and accountant
    python benchmarks/parameter_search.py table       # both optima in the settings of Table 13
    python benchmarks/parameter_search.py predictor   # error on held-out configurations; some minutes

Prints a line per row, then all as JSON. docs/parameter-search.md has the figures.
"""

import argparse
import json
import math
import time
from collections.abc import Iterator
from typing import Any

import joblib
import numpy as np
from rich.console import Console
from rich.progress import track

from dpaudit.mechanisms import GammaPLRV
from dpaudit.mechanisms.published import plrvo as formulas
from dpaudit.verify.accountants.published_adapter import Published
from dpaudit.verify.calibration.costs import AccountantCost, Target
from dpaudit.verify.calibration.first_guess import spread, wanted_spread
from dpaudit.verify.calibration.search import least_noise
from dpaudit.verify.papers.searches.plrvo import Space, optimum
from dpaudit.verify.papers.searches.plrvo_prediction import Predictor, Solved, fit, solve_configurations

PUBLISHED = Published("plrvo-theorem-4.9", {"max_order": 80})
TABLE_13 = (
    (0.065, 0.1, 1e-5, 60_000), (0.171, 0.1, 5e-5, 30_000), (0.284, 0.3, 8e-5, 10_000), (0.596, 0.3, 8e-4, 20_000),
    (0.757, 0.3, 5e-4, 40_000), (0.921, 0.3, 6e-4, 40_000), (0.962, 0.5, 3e-4, 50_000), (1.172, 0.5, 3e-5, 60_000),
    (1.606, 0.5, 6e-5, 40_000),
)  # fmt: skip  # epsilon, clip, theta, k as printed
DIMENSION, DELTA = 26_000, 1e-5
TABLE_ORDER = 300  # the first row needs order 182
BATCH = 5  # configurations a process solves at a time


def search() -> Iterator[dict[str, Any]]:
    """CPU seconds of one search, the verdict on its optimum included."""
    target = Target(1.0, DELTA, 1000, 0.01)
    optimum(target, Space(100, 0.3, 0.6, k_max=100.0), accountant=PUBLISHED)  # imports and caches
    for name in ("gamma-plrv", "gamma-plrv-iid"):
        for dimension in (26_000, 10**6, 10**8):
            space = Space(dimension, 0.3, 0.6, name=name)  # type: ignore[arg-type]
            row: dict[str, Any] = {"mechanism": name, "dimension": dimension}
            for label, accountant in (("published", PUBLISHED), ("valid", None)):
                started = time.process_time()
                found = optimum(target, space, accountant=accountant)
                row[f"{label}_seconds"] = time.process_time() - started
                row[f"{label}_evaluations"] = found.evaluations
            yield row


def table() -> Iterator[dict[str, Any]]:
    """Both optima for every row of Table 13: its epsilon, its clip to twice that, its k at most."""
    for epsilon, clip, theta, k in TABLE_13:
        space = Space(DIMENSION, clip, 2 * clip, k_max=float(k), max_order=TABLE_ORDER)
        target = Target(epsilon, DELTA, 300, 0.01)
        accountants = Published("plrvo-theorem-4.9", {"max_order": TABLE_ORDER}), None
        published, valid = (optimum(target, space, accountant=accountant) for accountant in accountants)
        truth = published.verdict
        yield {
            "epsilon": epsilon, "printed_objective": formulas.objective(GammaPLRV(k=k, theta=theta, clip=clip)),
            "published_objective": published.objective,
            "true_epsilon": [truth.epsilon_lower, truth.epsilon_upper],
            "verdict": truth.verdict, "valid_objective": valid.objective,
            "ratio": valid.objective / published.objective,
        }  # fmt: skip


def solve_many(count: int, seed: int) -> Solved:
    """Solved configurations, a few at a time in every process."""
    seeds = np.random.SeedSequence(seed).spawn(math.ceil(count / BATCH))
    with joblib.parallel_config("loky", n_jobs=joblib.cpu_count(), inner_max_num_threads=1):
        work = joblib.Parallel(return_as="generator")(
            joblib.delayed(solve_configurations)(
                BATCH, dimension=DIMENSION, delta=DELTA, rng=np.random.default_rng(one), accountant=PUBLISHED
            )
            for one in seeds
        )
        parts = list(track(work, "Solving", total=len(seeds), console=Console(stderr=True)))
    inputs, theta = np.concatenate([part.inputs for part in parts]), np.concatenate([part.theta for part in parts])
    return Solved(inputs, theta, sum(part.refused for part in parts))


def judged(predictor: Predictor) -> dict[str, Any]:
    """The error on what was held out, and what a prediction is worth as the start of a search."""
    cost = AccountantCost(PUBLISHED)
    beyond, starts, evaluations = [], [], []
    for row, ratio in zip(predictor.held_out.inputs, predictor.held_out_ratios, strict=True):
        k, epsilon, clip, steps, sampling_prob = (float(value) for value in row)
        target = Target(epsilon, DELTA, int(steps), sampling_prob)

        def noise(theta: float, k: float = k, clip: float = clip) -> GammaPLRV:
            return GammaPLRV(k=k, theta=theta, clip=clip, dimension=DIMENSION)

        theta = predictor.theta(k=k, epsilon=epsilon, clip=clip, steps=steps, sampling_prob=sampling_prob)
        beyond.append(cost.epsilon(noise(theta), target) > epsilon)
        plain = spread(noise(1.0)) / wanted_spread(noise(1.0), target)
        starts.append(abs(plain / (theta / ratio) - 1))
        evaluations.append([
            least_noise(lambda x: cost.excess(noise(1 / x), target), 1 / start, 1e-3).count for start in (theta, plain)  # noqa: B023
        ])  # fmt: skip
    mean = np.mean(evaluations, axis=0)
    return {
        "held_out": len(beyond), "median_error": predictor.held_out_error(),
        "error_90": predictor.held_out_error(0.9), "share_beyond_epsilon": float(np.mean(beyond)),
        "importance": predictor.importance, "gaussian_guess_median_error": float(np.median(starts)),
        "gaussian_guess_error_90": float(np.quantile(starts, 0.9)), "evaluations_from_prediction": float(mean[0]),
        "evaluations_from_gaussian_guess": float(mean[1]),
    }  # fmt: skip


def predictor(count: int, seed: int, splits: int) -> Iterator[dict[str, Any]]:
    """Solve configurations once, fit on several random three quarters of them."""
    solved = solve_many(count, seed)
    print(f"{len(solved.theta)} configurations solved, {solved.refused} that no theta meets", flush=True)
    for split in range(splits):
        from_constant = fit(solved, rng=np.random.default_rng([seed, split]), line=False)
        yield {
            "split": split, **judged(fit(solved, rng=np.random.default_rng([seed, split]))),
            "constant_start_median_error": from_constant.held_out_error(),
            "constant_start_error_90": from_constant.held_out_error(0.9),
        }  # fmt: skip


def _text(value: object) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def main() -> None:
    """Run one part and print its rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("search", "table", "predictor"))
    parser.add_argument("--count", type=int, default=200, help="configurations for the predictor")
    parser.add_argument("--splits", type=int, default=10, help="random choices of what is held out")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    parts = {
        "search": search,
        "table": table,
        "predictor": lambda: predictor(arguments.count, arguments.seed, arguments.splits),
    }
    rows = []
    for row in parts[arguments.part]():
        rows.append(row)
        print(", ".join(f"{key} {_text(value)}" for key, value in row.items()), flush=True)
    print(json.dumps({"part": arguments.part, "rows": rows}))


if __name__ == "__main__":
    main()
