"""How often an audit with all defaults finds a planted defect, and how often it wrongs the correct training.

Each audit is whole: a pilot chooses the canary and the number of models, the positive control is trained, then the
models under audit. Claims are exactly true: full batches of Gaussian noise, mu = 0.92, delta 1e-5.

    python benchmarks/power.py --recipe linear-glorot --seeds 20
    python benchmarks/power.py --recipe fnn --twin correct --seeds 20

Prints a line for every audit and the counts. MNIST recipes need DPAUDIT_DATA.
"""

import argparse
import time
from typing import Any

import numpy as np

from dpaudit.audit import Settings
from dpaudit.audit.inputs.bundles import Bundle
from dpaudit.audit.inputs.recipes import Recipe
from dpaudit.audit.runner import run
from dpaudit.mechanisms.defects import DEFECTS
from dpaudit.mechanisms.learning.spec import Pool
from dpaudit.mechanisms.learning.training import train
from dpaudit.verify.bounds import gaussian_epsilon

MU, DELTA = 0.92, 1e-5
DIGITS: dict[str, Any] = {"name": "digits"}
RECIPES: dict[str, dict[str, Any]] = {
    "linear-zeros": {"network": "linear", "steps": 20, "rate": 2.0, "init": "zeros", "dataset": DIGITS},
    "linear-glorot": {"network": "linear", "steps": 20, "rate": 2.0, "init": "glorot", "dataset": DIGITS},
    "fnn": {"network": "fnn", "steps": 20, "rate": 2.0, "init": "glorot", "dataset": DIGITS},
    "mnist-fnn": {
        "network": "fnn", "steps": 20, "rate": 2.0, "init": "glorot", "dataset": {"name": "mnist", "records": 1000},
    },
    "cnn": {
        "network": "cnn", "steps": 10, "rate": 1.0, "init": "glorot", "dataset": {"name": "mnist", "records": 200},
    },
}  # fmt: skip


def recipe(name: str, defect: str | None) -> Recipe:
    """A recipe whose claim is exactly true, or its twin with a planted defect."""
    made = RECIPES[name]
    kwargs = {"hidden": 32} if made["network"] == "fnn" else {}
    table = {
        "algorithm": "dp-sgd",
        "architecture": {"name": made["network"], "kwargs": kwargs},
        "mechanism": {"name": "gaussian", "noise_multiplier": float(np.sqrt(made["steps"]) / MU), "clip": 1.0},
        "sampling": {"kind": "none"},
        "steps": made["steps"],
        "optimizer": {"learning_rate": made["rate"], "init": made["init"]},
        "dataset": made["dataset"],
        "claim": {"epsilon": gaussian_epsilon(MU, DELTA) * (1 + 1e-9), "delta": DELTA},
    }
    return Recipe.from_dict(table | ({} if defect is None else {"planted_defect": defect}))


def main() -> None:
    """Audit twin after twin."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", choices=RECIPES, default="linear-glorot")
    parser.add_argument("--twin", choices=("correct", *DEFECTS), default="half-noise")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    arguments = parser.parse_args()
    made = recipe(arguments.recipe, None if arguments.twin == "correct" else arguments.twin)
    data = made.load_dataset()
    spec = made.spec(data)
    made = made.with_dimension(spec.mechanism.dimension or 0)
    models = train(spec, Pool(data.x, data.y), np.ones((1, len(data.y)), dtype=bool), [1])
    bundle = Bundle("", "", models.state_dict(0), made, None, models.ledger)
    refuted = 0
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        began = time.process_time()
        result = run(bundle, data, Settings(seed=seed, attacks=("clipbkd",), device=arguments.device, workers=1))
        refuted += result.verdict == "refuted"
        (attack,) = result.attacks
        control = result.control or {}
        print(f"seed {seed}: {result.verdict}, {attack.trials} models per arm, AUC {attack.auc:.3f}, "
              f"control {control}, {time.process_time() - began:.1f} CPU s", flush=True)  # fmt: skip
    print(f"{arguments.recipe}, {arguments.twin}: {refuted} of {arguments.seeds} refuted")


if __name__ == "__main__":
    main()
