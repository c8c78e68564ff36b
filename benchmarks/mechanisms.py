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

from dpaudit.audit.attacks.base import Audit
from dpaudit.audit.attacks.clipbkd import CLIPBKD
from dpaudit.audit.inputs.bundles import Bundle
from dpaudit.audit.inputs.recipes import Recipe
from dpaudit.audit.runner import plan_audit
from dpaudit.audit.settings import Settings
from dpaudit.audit.trials.engine import TrialRunner
from dpaudit.verify.checking import check

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
        dataset, verdict = parsed.load_dataset(), check(parsed.claim_object())
        settings = Settings(seed=1, device="cpu")
        began = time.perf_counter()
        audit = Audit(Bundle("", "", {}, parsed), parsed.spec(dataset), dataset, verdict, settings)
        design = CLIPBKD.design(audit, plan_audit(audit).shares)
        assert design is not None
        setup = audit.trial_setup(design.pilot.spec, design.pilot.arms.pool, design.pilot.score)
        trials = design.pilot.arms.trials(arguments.trials, settings.seed)
        done = TrialRunner(workers=joblib.cpu_count()).run(setup, *trials)
        seconds, models = time.perf_counter() - began, sum(map(len, done))
        rows.append({"mechanism": mechanism["name"], "seconds": round(seconds, 1), "models": models})
        print(f"{mechanism['name']:<22} {seconds:7.1f} s for {models} models", flush=True)
    total = sum(row["seconds"] for row in rows)
    print(json.dumps({"setting": arguments.setting, "cores": joblib.cpu_count(), "total_seconds": total, "rows": rows}))


if __name__ == "__main__":
    main()
