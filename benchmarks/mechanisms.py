"""Seconds to train 500 + 500 canary models with each mechanism: Fashion-MNIST classes 0 and 1, logistic regression.

Two settings: 1000 records, full batch, 24 steps; and 6000 records, Poisson rate 1/24, 576 steps. Needs the data set
(DPAUDIT_DATA or the network).

    python benchmarks/mechanisms.py --setting short
"""

import argparse
import json
import time
from typing import Any

import joblib

from dpaudit.audit.game import build_experiment
from dpaudit.audit.inputs.recipes import Recipe
from dpaudit.audit.plan import Settings
from dpaudit.audit.trials.engine import run_trials
from dpaudit.audit.trials.store import TrialStore

MECHANISMS: list[dict[str, Any]] = [
    {"name": "gaussian", "noise_multiplier": 4.0},
    {"name": "laplace", "scale": 4.0},
    {"name": "gamma-plrv", "k": 414.0, "theta": 2e-3},
    {"name": "gamma-plrv-iid", "k": 414.0, "theta": 2e-3},
    {"name": "product", "sigma": 40.0},
    {"name": "generalized-gaussian", "beta": 1.5, "scale": 4.0},
]
SETTINGS: dict[str, dict[str, Any]] = {
    "short": {"records": 1000, "steps": 24, "sampling": {"kind": "none"}},
    "long": {"records": 6000, "steps": 576, "sampling": {"kind": "poisson", "prob": 1 / 24}},
}


def recipe(mechanism: dict[str, Any], setting: dict[str, Any]) -> Recipe:
    """The recipe of one row."""
    return Recipe.from_dict(
        {
            "algorithm": "dp-sgd",
            "steps": setting["steps"],
            "sampling": setting["sampling"],
            "mechanism": mechanism,
            "dataset": {"name": "fashion-mnist", "classes": [0, 1], "records": setting["records"]},
            "architecture": {"name": "linear"},
            "optimizer": {"learning_rate": 0.15, "init": "zeros"},
            "claim": {"epsilon": 1.0, "delta": 1e-5},
        }
    )


def main() -> None:
    """Print a row per mechanism, then all as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--setting", choices=list(SETTINGS), default="short")
    parser.add_argument("--trials", type=int, default=500)
    arguments = parser.parse_args()
    rows = []
    for mechanism in MECHANISMS:
        parsed = recipe(mechanism, SETTINGS[arguments.setting])
        dataset = parsed.load_dataset()
        began = time.perf_counter()
        experiment, _ = build_experiment(parsed, dataset, Settings(seed=1, device="cpu"))
        trials = run_trials(experiment, arguments.trials, TrialStore(None), workers=joblib.cpu_count())
        seconds = time.perf_counter() - began
        rows.append({"mechanism": mechanism["name"], "seconds": round(seconds, 1), "models": 2 * len(trials.without)})
        print(f"{mechanism['name']:<22} {seconds:7.1f} s for {2 * len(trials.without)} models", flush=True)
    total = sum(row["seconds"] for row in rows)
    print(json.dumps({"setting": arguments.setting, "cores": joblib.cpu_count(), "total_seconds": total, "rows": rows}))


if __name__ == "__main__":
    main()
