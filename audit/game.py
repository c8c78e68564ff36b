"""The canary game: two neighbouring data sets, many models of each, and what their scores prove."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.audit.attacks import clipbkd, membership, releases
from dpaudit.audit.inputs.datasets import Dataset
from dpaudit.audit.inputs.recipes import Recipe
from dpaudit.audit.plan import Plan, Settings, delta_upper
from dpaudit.audit.power import SELECTION
from dpaudit.audit.trials.engine import Experiment, Trials
from dpaudit.mechanisms.learning.approximate_minima import implied_noise
from dpaudit.mechanisms.learning.spec import TrainedModels, TrainingSpec
from dpaudit.mechanisms.learning.training import resolve_device
from dpaudit.verify.bounds import (
    auc,
    best_possible_epsilon,
    choose_curve_threshold,
    choose_threshold,
    curve_violation,
    epsilon_from_counts,
    roc,
    tpr_at_fpr,
)
from dpaudit.verify.results import AttackResult, Verdict


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
    elif spec.algorithm == "approximate-minima":
        arms = releases.make_arms(dataset.x, dataset.y, spec, adjacency=adjacency)
        score = partial(
            noise_score, spec=spec, x=arms.pool.x, y=arms.pool.y, without=arms.without, with_canary=arms.with_canary
        )
        description = arms.description
    else:
        # a record's visits decide how long the canary is: one per pass where the order is fixed
        visits = replace(spec, steps=-(-spec.steps // spec.batches))
        arms = clipbkd.make_arms(dataset.x, dataset.y, visits, adjacency=adjacency)
        score = partial(clipbkd.canary_score, canary=arms.canary, label=arms.label)
        description = arms.description
    members = np.stack([arms.without, arms.with_canary])
    device = resolve_device(settings.device)
    return Experiment(spec, arms.pool, members, score, settings.trainer, settings.seed, device), description


def noise_score(
    models: TrainedModels,
    spec: TrainingSpec,
    x: NDArray[np.float32],
    y: NDArray[np.int64],
    without: NDArray[np.bool_],
    with_canary: NDArray[np.bool_],
) -> NDArray[np.float64]:
    """log f(b_with) / f(b_without) of each model: f the density of the noise in the objective, b(w) what w implies.

    The output noise, and the Hessians' determinants, are left out: any score is valid, and they are small.
    """
    weights = next(iter(models.parameters.values())).numpy()[:, 0].astype(np.float64)
    pairs = zip(*(implied_noise(weights, x[part], y[part], spec) for part in (without, with_canary)), strict=True)
    return np.array([float(spec.mechanism.privacy_loss(b, b - moved)) for b, moved in pairs])


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
    upper = delta_upper(verdict)
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
