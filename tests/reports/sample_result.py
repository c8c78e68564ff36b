"""Audit results as the runner would hand them out, built in code: the Gaussian mechanism, exactly, with drawn scores.

One full-batch step with noise multiplier 1/0.6 is mu = 0.6 Gaussian-DP: epsilon 2.445 at delta 1e-5. An attack on a
correct training sees normal scores 0.6 apart; on a training with half the noise, 1.2 apart.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.stats import beta, norm

from dpaudit.mechanisms.base import Array
from dpaudit.verify.results import AttackResult, AuditResult, Control, CurveTest, LowerBound, Verdict, Witness

CLAIMED, DELTA, MU, CONFIDENCE = 2.445, 1e-5, 0.6, 0.95
SHARES = {"membership:epsilon_lower": 1 / 60, "clipbkd:joint": 2 / 60}
KINDS = ("not_refuted", "inconclusive", "refuted", "curve_only", "claim_check", "gave_up")


def gaussian_delta(epsilon: Array, mu: float = MU) -> Array:
    """delta(epsilon) of mu-GDP (Balle and Wang 2018, Theorem 8)."""
    return norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)


def clopper_pearson(hits: Array, trials: int, alpha: float) -> tuple[Array, Array]:
    """One-sided bounds at alpha / 2 each."""
    lower = np.where(hits > 0, beta.ppf(alpha / 2, np.maximum(hits, 0.5), trials - hits + 1), 0.0)
    upper = np.where(hits < trials, beta.ppf(1 - alpha / 2, hits + 1, np.maximum(trials - hits, 0.5)), 1.0)
    return lower, upper


def roc(inside: Array, outside: Array) -> dict[str, Any]:
    thresholds = np.quantile(outside, 1 - np.geomspace(1 / len(outside), 1.0, 120))
    fpr, tpr = ((scores[None, :] >= thresholds[:, None]).mean(axis=1) for scores in (outside, inside))
    lower, upper = clopper_pearson(np.round(tpr * len(inside)), len(inside), 1 - CONFIDENCE)
    return {"fpr": fpr, "tpr": tpr, "tpr_lower": lower, "tpr_upper": upper, "confidence": CONFIDENCE}


def make_verdict(**changes: Any) -> Verdict:
    """The claim check of the correct Gaussian claim."""
    verdict = Verdict(
        id="digits-gaussian",
        verdict="certified",
        reason="the PLD upper bound 2.44497 is at most the claim 2.445",
        epsilon_claimed=CLAIMED,
        delta_claimed=DELTA,
        epsilon_lower=2.4449,
        epsilon_upper=2.44497,
        delta_lower=9.993e-6,
        delta_upper=9.996e-6,
        confidence=1.0,
        sensitivity_ratio=1.0,
        witness=None,
        published_epsilon=None,
        methods=["pld", "exact-integral"],
        assumptions=[
            "Noise is added to the sum of clipped gradients; the sum is divided by the public expected batch size.",
            "Neighbours differ in one record, added or removed; the adversary sees the final model only.",
            "Dominating pair of the Gaussian mechanism (Balle and Wang 2018, Theorem 8); l2 clipping at 1.",
        ],
        seconds=0.41,
    )
    return replace(verdict, **changes)


def make_membership(seed: int = 3) -> AttackResult:
    """Loss membership inference on one model whose audit records were drawn by coins."""
    rng = np.random.default_rng(seed)
    inside, outside = rng.normal(0.05, 1.0, 148), rng.normal(0.0, 1.0, 152)
    bound = LowerBound(
        0.0,
        DELTA,
        1 - SHARES["membership:epsilon_lower"],
        "steinke",
        {"canaries": 300, "guesses": 30, "correct": 17},
        "Steinke et al. (2023), Theorem 5.2",
        threshold=None,
        assumes="membership drawn by independent fair coins",
    )
    return AttackResult(
        name="membership",
        epsilon_lower=0.0,
        curve_violation=None,
        arms={"pair": "audit records that fair coins put in, and those they left out", "coins": 300},
        confidence_spent=SHARES["membership:epsilon_lower"],
        auc=float((inside[:, None] > outside).mean()),
        tpr_at_fpr={"0.01": 0.014, "0.001": 0.007},
        trials=148,
        best_possible_epsilon=3.6,
        bound=bound,
        roc=roc(inside, outside),
        details={"tailored_auc": 0.516, "members": 148, "non_members": 152},
    )


def make_canary_attack(mu: float = MU, models: int = 25_000, seed: int = 5) -> AttackResult:
    """A canary game whose scores lie mu apart: normal draws, thresholds fixed beforehand."""
    rng = np.random.default_rng(seed)
    inside, outside = rng.normal(mu, 1.0, models), rng.normal(0.0, 1.0, models)
    counted, alpha = int(0.8 * models), SHARES["clipbkd:joint"] / 2
    threshold, curve_threshold = 2.9, 0.6

    def count(cut: float) -> tuple[dict[str, int], float, float]:
        tp, fp = (int((scores[-counted:] > cut).sum()) for scores in (inside, outside))
        (tpr_lower, _), (_, fpr_upper) = (clopper_pearson(np.array(hits), counted, alpha) for hits in (tp, fp))
        return {"tp": tp, "fp": fp, "tn": counted - fp, "fn": counted - tp}, float(tpr_lower), float(fpr_upper)

    counts, tpr_lower, fpr_upper = count(threshold)
    lower = math.log(max((tpr_lower - DELTA) / fpr_upper, 1.0))
    best = float(-np.log(clopper_pearson(np.array(0), counted, alpha)[1]))
    curve_counts, _, _ = count(curve_threshold)
    tpr, fpr = curve_counts["tp"] / counted, curve_counts["fp"] / counted
    allowed = float(norm.sf(norm.isf(fpr) - MU))
    p_value = float(norm.sf((tpr - allowed) * math.sqrt(counted)))
    test = CurveTest(p_value < 2 * alpha, p_value, 1 - 2 * alpha, curve_threshold, fpr, tpr, allowed, curve_counts)
    return AttackResult(
        name="clipbkd",
        epsilon_lower=lower,
        curve_violation=test if test.violated else None,
        arms={
            "adjacency": "add-remove",
            "records": 1437,
            "pair": "the training records, with and without one canary",
            "canary_length": 32.0,
            "canary_label": 3,
            "direction": "a feature that is zero in every record",
        },
        confidence_spent=2 * alpha,
        auc=float(norm.cdf(mu / math.sqrt(2))),
        auc_interval=[0.755778, 0.841285],
        tpr_at_fpr={str(fpr): float(norm.cdf(norm.ppf(fpr) + mu)) for fpr in (0.01, 0.001)},
        trials=models,
        best_possible_epsilon=best,
        bound=LowerBound(
            lower,
            DELTA,
            1 - alpha,
            "clopper-pearson",
            counts,
            "Jagielski et al. (2020), section 4",
            threshold=threshold,
        ),
        family_bound=LowerBound(
            2.1,
            DELTA,
            1 - 2 * alpha,
            "joint-test",
            {"noise_factor_upper": 1.2},
            "a made-up source",
            assumes="noise of the claimed family (gaussian) and sampling as claimed; only its scale is in question",
        ),
        curve_test=test,
        roc=roc(inside, outside),
        details={"selection_trials": models - counted, "counted_trials": counted},
    )


def make_control(found: bool = True) -> Control:
    """The positive control of `make_canary_attack`, or of one with too few models."""
    return Control(
        attack="clipbkd",
        training="the built-in training",
        noise_factor=0.5,
        models=25_000 if found else 100,
        trials=25_000 if found else 100,
        resamples=20,
        power=1.0 if found else 0.35,
        found=found,
        no_noise_trials=50,
        no_noise_found=True,
        seed=812_379,
        seconds=31.0,
    )


def make_result(kind: str = "not_refuted", **changes: Any) -> AuditResult:
    """A result of one of KINDS.

    Args:
        kind: "refuted": half the noise, by headline and curve. "curve_only": the same with few models.
            "claim_check": product noise at its paper's calibration, refuted by calculation.
        changes: Fields to replace.
    """
    epsilon, fpr = np.linspace(0.0, 5.0, 101), np.concatenate([[0.0], np.geomspace(1e-5, 1.0, 121)])
    upper = gaussian_delta(epsilon)
    path = {"refuted": "half-noise.pt", "curve_only": "half-noise.pt", "claim_check": "product.pt"}.get(
        kind, "digits.pt"
    )
    attack = make_canary_attack(
        **{
            "refuted": {"mu": 2 * MU, "models": 25_000},
            "curve_only": {"mu": 2 * MU, "models": 1000},
        }.get(kind, {})
    )
    result = AuditResult(
        model={
            "path": path,
            "sha256": "9f2c" * 16,
            "architecture": "logistic-regression",
            "parameters": 650,
        },
        claim={
            "epsilon": CLAIMED,
            "delta": DELTA,
            "adjacency": "add-remove",
            "mechanism": {"name": "gaussian", "noise_multiplier": 1.6667, "clip": 1.0, "clip_norm": 2.0},
            "sampling": {"kind": "none", "prob": 1.0},
            "steps": 1,
        },
        verdict="not_refuted",
        refuted_by=[],
        epsilon_lower=attack.epsilon_lower,
        confidence=CONFIDENCE,
        epsilon_claimed=CLAIMED,
        claim_check=make_verdict(),
        attacks=[make_membership(), attack],
        seed=20240117,
        versions={"dpaudit": "0.1.0", "numpy": "2.4.6", "scipy": "1.17.1", "torch": "2.13.0"},
        seconds=94.3,
        certified_curve={"epsilon": epsilon, "delta_lower": upper * 0.998, "delta_upper": upper},
        tradeoff={"fpr": fpr, "tpr_max": norm.cdf(norm.ppf(fpr) + MU)},
        budget=dict(SHARES),
        reproduce={
            "command": f"dpaudit run {path} --seed 20240117 --trials 25000",
            "recipe": {"algorithm": "dp-sgd", "dataset": {"name": "digits", "classes": [0, 1]}, "steps": 1},
            "data_sha256": "41d7" * 16,
            "trials": 25_000,
            "date": "2026-03-01T17:05:42+00:00",
            "machine": "Linux, x86_64, 2 cores, Python 3.11",
        },
        notes=[],
        control=make_control(),
    )
    if kind in ("refuted", "curve_only"):
        found = ["clipbkd:epsilon_lower"] * (kind == "refuted") + ["clipbkd:curve_violation"]
        result = replace(result, verdict="refuted", refuted_by=found)
    elif kind == "inconclusive":
        result = replace(result, verdict="inconclusive", control=make_control(found=False))
    elif kind == "claim_check":
        result = _product(result)
    elif kind == "as_run":
        bracket = {"epsilon_lower": 11.381, "epsilon_upper": 12.803, "delta_lower": 0.41, "delta_upper": 0.66}
        drawn = make_verdict(verdict="refuted", **bracket)
        table = {**result.reproduce["recipe"], "sampling": {"kind": "shuffled", "batches": 10, "epochs": 6}}
        reproduce = {**result.reproduce, "recipe": table}
        result = replace(result, verdict="refuted", refuted_by=["as-run"], check_as_run=drawn, reproduce=reproduce)
    elif kind == "gave_up":
        result = replace(
            result,
            verdict="gave_up",
            epsilon_lower=0.0,
            attacks=result.attacks[:1],
            claim_check=make_verdict(
                verdict="undecided",
                reason="an exact PLD of this mechanism would decide it",
                epsilon_lower=1.9,
                epsilon_upper=3.1,
                delta_upper=4e-5,
            ),
            reproduce={**result.reproduce, "stopped": "budget of 10m used up"},
            control=None,
            notes=["ClipBKD was stopped after 7 models per arm: too few for a bound."],
        )
    return replace(result, **changes)


def _product(result: AuditResult) -> AuditResult:
    """Output perturbation with product noise: the claim is 0.1, the truth about 5,100 (M = 784)."""
    check = make_verdict(
        id="fashion-product",
        verdict="refuted",
        reason="the exact integral at shift 2C gives delta 0.2044 at epsilon 0.1",
        epsilon_claimed=0.1,
        epsilon_lower=5098.4,
        epsilon_upper=math.inf,
        delta_lower=0.2043,
        delta_upper=1.0,
        witness=Witness("single direction", 1, 2.0, [[2.0, 1]], "swap", "loss > 0.1"),
        published_epsilon=0.1,
        methods=["exact-integral"],
    )
    epsilon = np.linspace(0.0, 1.0, 101)
    lower = 0.25 * np.exp(-1.9 * epsilon)
    attack = replace(make_canary_attack(mu=0.9, models=20_000), curve_violation=None, curve_test=None)
    return replace(
        result,
        verdict="refuted",
        refuted_by=["claim-check", "clipbkd:epsilon_lower"],
        epsilon_claimed=0.1,
        claim={
            **result.claim,
            "epsilon": 0.1,
            "adjacency": "replace-one",
            "mechanism": {"name": "product", "sigma": 4289.0, "clip": 0.1, "clip_norm": 2.0},
        },
        claim_check=check,
        attacks=[attack],
        epsilon_lower=attack.epsilon_lower,
        tradeoff=None,
        certified_curve={"epsilon": epsilon, "delta_lower": lower, "delta_upper": np.ones_like(epsilon)},
    )
