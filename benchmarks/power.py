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

from dpaudit.audit.game import build_experiment, game_result
from dpaudit.audit.inputs.recipes import load_recipe
from dpaudit.audit.plan import Settings, plan_audit
from dpaudit.audit.trials.engine import run_trials
from dpaudit.audit.trials.store import TrialStore
from dpaudit.mechanisms.broken import DEFECTS
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
    rows = []
    for trials in (25_000, 1_000):
        for twin, defect in (("half noise", DEFECTS["half-noise"]), ("correct", None)):
            began, headline, curve = time.perf_counter(), 0, 0
            for seed in range(arguments.seeds):
                settings = Settings(seed=seed, attacks=("clipbkd",), trials=trials, device="cpu", workers=1)
                plan = plan_audit(verdict, settings, coins=False)
                experiment, description = build_experiment(recipe, dataset, settings)
                experiment = replace(experiment, spec=replace(experiment.spec, defect=defect))
                done = run_trials(experiment, trials, TrialStore(None), workers=1)
                attack = game_result(done, verdict, plan, description, settings.confidence)
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
