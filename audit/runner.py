"""One audit, read from top to bottom: claim check, attacks, one combined bound, verdict."""

import time
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version

import joblib
import numpy as np

from dpaudit.audit.attacks import membership
from dpaudit.audit.claim_check import check_recipe
from dpaudit.audit.game import build_experiment, game_result
from dpaudit.audit.inputs.bundles import Bundle
from dpaudit.audit.inputs.datasets import Dataset
from dpaudit.audit.inputs.sources import Stage
from dpaudit.audit.plan import Plan, Settings, delta_upper, plan_audit
from dpaudit.audit.trials.engine import run_trials
from dpaudit.audit.trials.store import TrialStore
from dpaudit.mechanisms.learning.training import ON_MINIMA, logits
from dpaudit.verify.bounds import auc, one_run_from_scores, roc, tpr_at_fpr, tradeoff_curve
from dpaudit.verify.results import AttackResult, AuditResult, AuditVerdict, Verdict

PACKAGES = ("dpaudit", "numpy", "scipy", "torch", "statsmodels", "dp-accounting", "opacus", "scikit-learn")


@dataclass
class Findings:
    """What the attacks brought, and why they ended."""

    attacks: list[AttackResult] = field(default_factory=list)
    stopped: str = ""
    notes: list[str] = field(default_factory=list)


def run(bundle: Bundle, dataset: Dataset, settings: Settings, *, stage: Stage | None = None) -> AuditResult:
    """Audit a trained model: check its claim, attack it, and combine what the evidence proves.

    Args:
        bundle: The model with its recipe, claim and coins, from `load_bundle`.
        dataset: The data of its recipe, from `inputs.datasets.load`.
        settings: How.
        stage: Told what begins and how long it is; returns the function told of progress.

    Returns:
        Everything found; `verdict` is "refuted" if the claim check or any attack refutes the claim.
    """
    began = time.monotonic()
    deadline = None if settings.budget is None else began + settings.budget
    begin = stage or (lambda what, total: lambda done: None)
    advance = begin("Checking the claim", 1)
    verdict = check_recipe(bundle.recipe)
    advance(1)
    plan = plan_audit(verdict, settings, coins=bundle.one_run)
    findings = Findings()
    if bundle.recipe.planted_defect is not None:
        findings.notes.append(f"The recipe plants the defect {bundle.recipe.planted_defect!r}: a positive control.")
    if "membership" in settings.attacks:
        findings.attacks.append(_membership(bundle, dataset, plan, settings))
    if "clipbkd" in settings.attacks:
        _retraining(bundle, dataset, verdict, plan, settings, deadline, begin, findings)
    return _conclude(bundle, dataset, settings, verdict, plan, findings, time.monotonic() - began)


def _membership(bundle: Bundle, dataset: Dataset, plan: Plan, settings: Settings) -> AttackResult:
    """Loss-based membership inference on the model as given."""
    spec = bundle.recipe.spec(dataset)
    models = bundle.models(spec)
    scores = membership.negative_loss(logits(models, dataset.x)[0].numpy(), dataset.y)
    bound = best = None
    share = 0.0
    if bundle.coins is not None:
        drawn, included = bundle.coins.records, bundle.coins.included
        inside, outside = scores[drawn[included]], scores[drawn[~included]]
        arms = {"pair": "audit records that fair coins put in, and those they left out", "coins": len(drawn)}
        if "membership:epsilon_lower" in plan.shares:
            share = plan.shares["membership:epsilon_lower"]
            one_run = partial(one_run_from_scores, delta=bundle.recipe.claim.delta, confidence=1.0 - share)
            bound = one_run(scores[drawn], included)
            best = one_run(included.astype(np.float64), included).epsilon_lower
    else:
        inside = scores
        outside = membership.negative_loss(logits(models, dataset.x_test)[0].numpy(), dataset.y_test)
        arms = {"pair": "training records, and test records the model never saw", "coins": 0}
    area = auc(inside, outside)
    return AttackResult(
        name="membership",
        epsilon_lower=None if bound is None else bound.epsilon_lower,
        curve_violation=None,
        arms=arms,
        confidence_spent=share,
        auc=area,
        tpr_at_fpr={str(rate): tpr_at_fpr(inside, outside, rate) for rate in (0.01, 0.001)},
        trials=min(len(inside), len(outside)),
        best_possible_epsilon=best,
        bound=bound,
        roc=roc(inside, outside, confidence=settings.confidence),
        details={"tailored_auc": membership.tailored_auc(area), "members": len(inside), "non_members": len(outside)},
    )


def _retraining(
    bundle: Bundle,
    dataset: Dataset,
    verdict: Verdict,
    plan: Plan,
    settings: Settings,
    deadline: float | None,
    begin: Stage,
    findings: Findings,
) -> None:
    """The canary game on freshly trained models, or freshly drawn releases."""
    experiment, description = build_experiment(bundle.recipe, dataset, settings)
    advance = begin(
        "Drawing releases" if experiment.spec.algorithm in ON_MINIMA else "Training models", 2 * plan.trials
    )
    with TrialStore(settings.store, fresh=settings.fresh) as store:
        trials = run_trials(
            experiment,
            plan.trials,
            store,
            workers=settings.workers or joblib.cpu_count(),
            deadline=deadline,
            progress=advance,
        )
    findings.stopped = trials.stopped
    findings.notes.append(
        "ClipBKD trains new models from the recipe: it judges the training procedure, on data sets of its own making."
    )
    if len(trials.without) < 10:
        findings.notes.append(f"ClipBKD was stopped after {len(trials.without)} models per arm: too few for a bound.")
        return
    findings.attacks.append(game_result(trials, verdict, plan, description, settings.confidence))


def _conclude(
    bundle: Bundle,
    dataset: Dataset,
    settings: Settings,
    verdict: Verdict,
    plan: Plan,
    findings: Findings,
    seconds: float,
) -> AuditResult:
    """One combined bound and the verdict."""
    claimed = verdict.epsilon_claimed
    refuted_by = ["claim-check"] if verdict.verdict == "refuted" else []
    for attack in findings.attacks:
        if attack.epsilon_lower is not None and attack.epsilon_lower > claimed:
            refuted_by.append(f"{attack.name}:epsilon_lower")
        if attack.curve_violation is not None:
            refuted_by.append(f"{attack.name}:curve_violation")
    lowers = [attack.epsilon_lower for attack in findings.attacks if attack.epsilon_lower is not None]
    outcome: AuditVerdict = "refuted" if refuted_by else "gave_up" if findings.stopped else "not_refuted"
    epsilons = np.unique(np.concatenate([np.linspace(0.0, max(2.0 * claimed, 1.0), 101), [claimed]]))
    lower, upper = verdict.delta(epsilons)
    fpr = np.concatenate([[0.0], np.geomspace(1e-5, 1.0, 121)])
    return AuditResult(
        model=bundle.describe(),
        claim=bundle.recipe.claim_summary(),
        verdict=outcome,
        refuted_by=refuted_by,
        epsilon_lower=max(lowers, default=None),
        confidence=settings.confidence,
        epsilon_claimed=claimed,
        claim_check=verdict,
        attacks=findings.attacks,
        seed=settings.seed,
        versions={name: version(name) for name in PACKAGES},
        seconds=seconds,
        certified_curve={"epsilon": epsilons, "delta_lower": lower, "delta_upper": upper},
        tradeoff={"fpr": fpr, "tpr_max": tradeoff_curve(delta_upper(verdict), fpr)},
        budget=plan.shares,
        reproduce={
            "command": settings.command,
            "data_sha256": dataset.sha256,
            "recipe": bundle.recipe.to_dict(),
            "trials": plan.trials,
            "stopped": findings.stopped,
        },
        notes=findings.notes,
    )
