"""How often an audit with all defaults finds half of the noise in a user's own Opacus loop, and wrongs the honest loop.

The loop is `examples/opacus_digits.py` (Adam, Poisson loader, two hidden layers). Half the noise is given to its
optimizer, and the accountant is told of all of it. Each audit is whole: the first training is watched, a pilot chooses
canary, score and the number of models, then the models are trained. The audits of the honest loop have their positive
control; those of half the noise go without, as a control only ever adds models.

    python benchmarks/opacus_power.py --loop half-noise --seeds 20
    python benchmarks/opacus_power.py --loop honest --seeds 20

Prints a line for every audit and the counts.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from opacus.optimizers import DPOptimizer

from dpaudit.audit import audit_opacus

sys.path.append(str(Path(__file__).parents[1] / "examples"))
import opacus_digits


def half_noise(dataset: Any, seed: int, noise_factor: float = 1.0) -> Any:
    """The example's training with half of the noise that its accountant is told of."""
    honest = DPOptimizer.add_noise

    def add_noise(self: Any) -> None:
        self.noise_multiplier *= 0.5
        honest(self)
        self.noise_multiplier /= 0.5

    DPOptimizer.add_noise = add_noise
    try:
        return opacus_digits.train(dataset, seed, noise_factor)
    finally:
        DPOptimizer.add_noise = honest


LOOPS = {"half-noise": half_noise, "honest": opacus_digits.train}


def main() -> None:
    """Audit seed after seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loop", choices=LOOPS, default="half-noise")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument(
        "--control", action="store_true", help="half the noise with its positive control too, as by default"
    )
    arguments = parser.parse_args()
    verdicts = []
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        began = time.process_time()
        result = audit_opacus(
            LOOPS[arguments.loop], opacus_digits.digits(), delta=opacus_digits.DELTA, seed=seed, workers=1,
            control=arguments.control or arguments.loop == "honest",
        )  # fmt: skip
        (attack,), control = result.attacks, result.control
        verdicts.append(result.verdict)
        power = "" if control is None else f", control {control.power:.2f}"
        p_value = 1.0 if attack.curve_test is None else attack.curve_test.p_value
        seconds = time.process_time() - began
        print(f"seed {seed}: {result.verdict}, {attack.arms['score']}, {attack.trials} models per arm, AUC "
              f"{attack.auc:.3f}, p {p_value:.1e}{power}, {seconds:.1f} CPU s", flush=True)  # fmt: skip
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in sorted(set(verdicts)))
    print(f"{arguments.loop}, {len(verdicts)} audits: {counts}")


if __name__ == "__main__":
    main()
