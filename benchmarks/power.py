"""How often an audit refutes a planted half-noise twin, and how often it wrongs the correct one.

Digits classes 0 and 1, logistic regression from zero weights, one full-batch step, noise multiplier 1/0.6, claim
epsilon 2.445 at delta 1e-5 under add-remove. Two budgets: 25,000 models per arm, where the headline is refuted
through `epsilon_lower`; and 1,000 per arm, where the mechanism's whole curve is.

    python benchmarks/power.py --seeds 20
"""

import argparse
import json
import time
from dataclasses import replace

from dpaudit.audit.attacks.base import Audit
from dpaudit.audit.attacks.clipbkd import CLIPBKD
from dpaudit.audit.inputs.bundles import Bundle
from dpaudit.audit.inputs.recipes import load_recipe
from dpaudit.audit.runner import plan_audit
from dpaudit.audit.settings import Settings
from dpaudit.mechanisms.defects import DEFECTS
from dpaudit.verify.checking import check


def main() -> None:
    """Print a row per budget and twin, and the counts as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--recipe", default="examples/digits-headline.toml")
    arguments = parser.parse_args()
    recipe = load_recipe(arguments.recipe)
    dataset = recipe.load_dataset()
    verdict = check(recipe.claim_object())
    spec, bundle = recipe.spec(dataset), Bundle("", "", {}, recipe)
    rows = []
    for trials in (25_000, 1_000):
        for twin, defect in (("half noise", DEFECTS["half-noise"]), ("correct", None)):
            began, headline, curve = time.perf_counter(), 0, 0
            for seed in range(arguments.seeds):
                settings = Settings(
                    seed=seed, attacks=("clipbkd",), trials=trials, control=False, device="cpu", workers=1
                )
                audit = Audit(bundle, replace(spec, defect=defect), dataset, verdict, settings)
                attack = CLIPBKD.run(audit, plan_audit(audit).shares)
                assert attack is not None
                headline += (attack.epsilon_lower or 0.0) > verdict.epsilon_claimed
                curve += attack.curve_violation is not None
            seconds = (time.perf_counter() - began) / arguments.seeds
            rows.append(
                {
                    "models_per_arm": trials,
                    "twin": twin,
                    "refuted_by_headline": headline,
                    "refuted_by_curve": curve,
                    "audits": arguments.seeds,
                    "seconds_per_audit": round(seconds, 2),
                }
            )
            print(
                f"{trials:>6} models per arm, {twin:<10}: headline {headline}/{arguments.seeds}, "
                f"curve {curve}/{arguments.seeds}, {seconds:.2f} s an audit",
                flush=True,
            )
    print(json.dumps({"claim_check": verdict.verdict, "rows": rows}))


if __name__ == "__main__":
    main()
