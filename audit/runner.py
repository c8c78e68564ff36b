"""One audit, read from top to bottom: claim check, attacks, one combined bound, verdict."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import joblib
import numpy as np
from numpy.typing import NDArray

from dpaudit.audit.attacks import clipbkd, membership, releases
from dpaudit.audit.budget import split
from dpaudit.audit.inputs.bundles import Bundle
from dpaudit.audit.inputs.datasets import Dataset
from dpaudit.audit.inputs.errors import InputError
from dpaudit.audit.inputs.recipes import Recipe
from dpaudit.audit.power import SELECTION, default_trials, models_needed
from dpaudit.audit.trials.engine import Experiment, Trainer, Trials, run_trials
from dpaudit.audit.trials.store import TrialStore
from dpaudit.mechanisms.learning.spec import TrainingSpec
from dpaudit.mechanisms.learning.training import logits, resolve_device, train
from dpaudit.verify.bounds import (
    auc,
    best_possible_epsilon,
    choose_curve_threshold,
    choose_threshold,
    curve_violation,
    epsilon_from_counts,
    one_run_from_scores,
    roc,
    tpr_at_fpr,
    tradeoff_curve,
)
from dpaudit.verify.checking import check
from dpaudit.verify.results import AttackResult, AuditResult, AuditVerdict, Verdict

Stage = Callable[[str, int], Callable[[int], None]]  # (what, how many) -> called with the number just finished
Array = NDArray[np.float64]

ATTACKS = ("membership", "clipbkd")
PACKAGES = ("dpaudit", "numpy", "scipy", "torch", "statsmodels", "dp-accounting", "opacus", "scikit-learn")


@dataclass(frozen=True)
class Settings:
    """How an audit is run.

    Args:
        seed: Root seed of everything random in the audit.
        attacks: Which of ATTACKS.
        trials: Models per arm, threshold choice included; None for the power estimate's default.
        confidence: Level of all statistical bounds together.
        budget: Seconds after which no new trial is started; None for no limit.
        device: "auto", "cpu" or "cuda".
        workers: Training processes; None for one per core.
        store: File for the trial store; None keeps trials in memory.
        fresh: Forget stored trials.
        trainer: The training function that is retrained, the user's own loop where that is under audit.
        command: How to repeat this audit, for the report.
    """

    seed: int
    attacks: Sequence[str] = ATTACKS
    trials: int | None = None
    confidence: float = 0.95
    budget: float | None = None
    device: str = "auto"
    workers: int | None = None
    store: Path | None = None
    fresh: bool = False
    trainer: Trainer = train
    command: str = ""

    def __post_init__(self) -> None:
        unknown = [name for name in self.attacks if name not in ATTACKS]
        if unknown or not self.attacks:
            raise InputError(f"Expected attacks={','.join(self.attacks)!r} among {', '.join(ATTACKS)}.")
        if not 0.5 <= self.confidence < 1.0:
            raise InputError(f"Expected confidence={self.confidence} in [0.5, 1).")
        if self.trials is not None and self.trials < 10:
            raise InputError(f"Expected trials={self.trials} to be at least 10.")
        if self.budget is not None and not self.budget > 0:
            raise InputError(f"Expected budget={self.budget} seconds to be positive.")


@dataclass(frozen=True)
class Plan:
    """What an audit will do, known before it starts.

    Args:
        trials: Models per arm.
        needed: Models per arm that refute a half-noise twin, by test; None: more than 200,000.
        shares: Error probability of each test.
    """

    trials: int
    needed: dict[str, int | None]
    shares: dict[str, float]


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
    verdict = check(bundle.recipe.claim_object())
    advance(1)
    plan = plan_audit(
        verdict, settings, coins=bundle.coins is not None and bundle.recipe.claim.adjacency == "add-remove"
    )
    findings = Findings()
    if "membership" in settings.attacks:
        findings.attacks.append(_membership(bundle, dataset, plan, settings))
    if "clipbkd" in settings.attacks:
        _retraining(bundle, dataset, verdict, plan, settings, deadline, begin, findings)
    return _conclude(bundle, dataset, settings, verdict, plan, findings, time.monotonic() - began)


def plan_audit(verdict: Verdict, settings: Settings, *, coins: bool) -> Plan:
    """The plan that follows from a checked claim: all that `--dry-run` does.

    Args:
        verdict: The claim check.
        settings: How the audit is run.
        coins: Whether fair recorded coins drew the membership, and the claim is about adding or removing a record.
    """
    tests = []
    if "membership" in settings.attacks and coins:
        tests.append("membership:epsilon_lower")
    if "clipbkd" in settings.attacks:
        tests += ["clipbkd:epsilon_lower", "clipbkd:curve_violation"]
    shares = split(settings.confidence, tests) if tests else {}
    needed = models_needed(
        verdict.epsilon_claimed, verdict.delta_claimed, _delta_upper(verdict), share=min(shares.values(), default=0.05)
    )
    return Plan(settings.trials or default_trials(needed), needed, shares)


def _delta_upper(verdict: Verdict) -> Callable[[Array], Array]:
    return lambda epsilon: verdict.delta(epsilon)[1]


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
        "Drawing releases" if experiment.spec.algorithm == "output-perturbation" else "Training models", 2 * plan.trials
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
    if len(trials.without) < 10:
        findings.notes.append(f"ClipBKD was stopped after {len(trials.without)} models per arm: too few for a bound.")
        return
    findings.attacks.append(game_result(trials, verdict, plan, description, settings.confidence))


def build_experiment(recipe: Recipe, dataset: Dataset, settings: Settings) -> tuple[Experiment, dict[str, Any]]:
    """The two arms, under the claim's own adjacency, and how their models are trained and scored."""
    spec = replace(recipe.spec(dataset), init_seed=settings.seed)
    adjacency = recipe.claim.adjacency
    if spec.algorithm == "output-perturbation":
        arms = releases.make_arms(dataset.x, dataset.y, spec, adjacency=adjacency)
        score, distance = releases.release_score(arms, spec)
        description = {
            **arms.description,
            "minimiser_distance": distance,
            "sensitivity_share": distance / _sensitivity(spec, adjacency),
        }
    else:
        arms = clipbkd.make_arms(dataset.x, dataset.y, spec, adjacency=adjacency)
        score = partial(clipbkd.canary_score, canary=arms.canary, label=arms.label)
        description = arms.description
    members = np.stack([arms.without, arms.with_canary])
    device = resolve_device(settings.device)
    return Experiment(spec, arms.pool, members, score, settings.trainer, settings.seed, device), description


def _sensitivity(spec: TrainingSpec, adjacency: str) -> float:
    return spec.mechanism.clip * (2.0 if adjacency == "replace-one" else 1.0)


def game_result(
    trials: Trials, verdict: Verdict, plan: Plan, description: Mapping[str, Any], confidence: float
) -> AttackResult:
    """Bounds from the scores of two arms: thresholds from the first part, counts from the rest."""
    delta, total = verdict.delta_claimed, len(trials.without)
    chosen = max(2, int(SELECTION * total))
    selection, counted = (
        (trials.with_canary[part], trials.without[part]) for part in (slice(None, chosen), slice(chosen, None))
    )
    sizes = {"trials_in": total - chosen, "trials_out": total - chosen}
    headline, curve = (1.0 - plan.shares[f"clipbkd:{test}"] for test in ("epsilon_lower", "curve_violation"))
    threshold = choose_threshold(*selection, delta=delta, confidence=headline, **sizes)
    tp, fp = (int((scores > threshold).sum()) for scores in counted)
    bound = replace(
        epsilon_from_counts(
            tp=tp, fp=fp, tn=total - chosen - fp, fn=total - chosen - tp, delta=delta, confidence=headline
        ),
        threshold=threshold,
    )
    upper = _delta_upper(verdict)
    curve_threshold = choose_curve_threshold(*selection, delta_upper=upper, confidence=curve, **sizes)
    test = curve_violation(*counted, threshold=curve_threshold, delta_upper=upper, confidence=curve)
    best = best_possible_epsilon(total - chosen, total - chosen, delta=delta, confidence=headline)
    area = auc(trials.with_canary, trials.without)
    return AttackResult(
        name="clipbkd",
        epsilon_lower=bound.epsilon_lower,
        curve_violation=test if test.violated else None,
        arms=dict(description),
        confidence_spent=(1.0 - headline) + (1.0 - curve),
        auc=area,
        tpr_at_fpr={str(rate): tpr_at_fpr(trials.with_canary, trials.without, rate) for rate in (0.01, 0.001)},
        trials=total,
        best_possible_epsilon=best,
        bound=bound,
        curve_test=test,
        roc=roc(trials.with_canary, trials.without, confidence=confidence),
        details={
            "tailored_auc": membership.tailored_auc(area),
            "selection_trials": chosen,
            "counted_trials": total - chosen,
        },
    )


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
        tradeoff={"fpr": fpr, "tpr_max": tradeoff_curve(_delta_upper(verdict), fpr)},
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
