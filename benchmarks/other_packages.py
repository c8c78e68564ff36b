"""The same scores through jax_privacy, PrivacyGuard and here: which numbers agree, and by how much others differ.

    python benchmarks/other_packages.py

Takes whichever of jax_privacy (`pip install jax_privacy`) and PrivacyGuard (`pip install privacyguard-platform`) there
is. 120 members' scores N(1.5, 1) and 100 others' N(0, 1), delta 1e-5, 95%.
"""

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np

from dpaudit.audit import Explicit, Scores
from dpaudit.verify.bounds import epsilon_one_run

DELTA, CONFIDENCE, THRESHOLD = 1e-5, 0.95, 1.5
Row = tuple[str, float, float]


def sample() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Scores of members and of others."""
    rng = np.random.default_rng(0)
    return rng.normal(1.5, 1.0, 120), rng.normal(size=100)


def jax_privacy_rows() -> Iterator[Row]:
    """CanaryScoreAuditor beside Scores."""
    from jax_privacy import auditing

    inside, outside = sample()
    there = auditing.CanaryScoreAuditor(inside, outside)
    here, one_run = Scores(inside, outside), Scores(inside, outside, "one-run")
    level: dict[str, Any] = {"significance": 1.0 - CONFIDENCE, "delta": DELTA}
    ours: dict[str, Any] = {"delta": DELTA, "confidence": CONFIDENCE}
    fixed = auditing.Explicit(THRESHOLD)
    two = there.epsilon_clopper_pearson(**level, one_sided=False, threshold_strategy=fixed)
    yield "epsilon_clopper_pearson, Explicit", two, _at_threshold(here, ours)
    best = there.epsilon_clopper_pearson(**level, one_sided=False)
    yield "epsilon_clopper_pearson, Bonferroni", best, here.epsilon_from_counts(**ours).epsilon_lower
    yield "epsilon_from_gdp", there.epsilon_from_gdp(**level), here.epsilon_gdp(**ours).epsilon_lower
    correct = int((inside >= THRESHOLD).sum())
    counts = {"canaries": 220, "guesses": correct + int((outside >= THRESHOLD).sum()), "correct": correct}
    for method, name in (("steinke", "epsilon_one_run"), ("f-dp", "epsilon_one_run_fdp")):
        audit: Any = getattr(there, name)
        same = epsilon_one_run(**counts, **ours, method=method)  # type: ignore[arg-type]
        yield f"{name}, Explicit", audit(**level, threshold_strategy=fixed), same.epsilon_lower
        halves = one_run.epsilon_one_run(**ours, method=method)  # type: ignore[arg-type]
        yield f"{name}, Bonferroni", audit(**level), halves.epsilon_lower
    yield "attack_auroc", there.attack_auroc(), here.auc()
    yield "tpr_at_given_fpr(0.01)", float(there.tpr_at_given_fpr(0.01)), here.tpr_at_fpr(0.01)


def _at_threshold(scores: Scores, settings: dict[str, Any]) -> float:
    return scores.epsilon_from_counts(**settings, threshold=Explicit(THRESHOLD)).epsilon_lower


def privacy_guard_rows() -> Iterator[Row]:
    """FDPAnalysisNode and MIAResults."""
    import torch
    from privacy_guard.analysis.mia.fdp_analysis_node import FDPAnalysisNode
    from privacy_guard.analysis.mia.mia_results import MIAResults

    for canaries, guesses, correct in ((1000, 500, 420), (220, 110, 92)):
        there = FDPAnalysisNode(m=canaries, c=correct, c_cap=guesses, delta=DELTA).run_analysis().eps
        here = epsilon_one_run(
            canaries=canaries, guesses=guesses, correct=correct, delta=DELTA, confidence=CONFIDENCE, method="f-dp"
        )
        yield f"FDPAnalysisNode(m={canaries}, c={correct}, c_cap={guesses})", there, here.epsilon_lower
    inside, outside = sample()
    best = MIAResults(torch.tensor(inside), torch.tensor(outside)).compute_acc_auc_ci_epsilon(DELTA)[2]
    bound = Scores(inside, outside).epsilon_from_counts(delta=DELTA, confidence=CONFIDENCE)
    yield "compute_acc_auc_ci_epsilon: every threshold at 95%", float(best), bound.epsilon_lower


def main() -> None:
    for package, rows in (("jax_privacy", jax_privacy_rows), ("privacy_guard", privacy_guard_rows)):
        if find_spec(package) is None:
            print(f"{package} is not installed")
            continue
        for name, there, here in rows():
            print(f"{package}: {name}: {float(there):.6f} there, {here:.6f} here")


if __name__ == "__main__":
    main()
