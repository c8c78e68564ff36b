"""Bounds from counts and scores: what an attack's outcome proves about epsilon, and at which level."""

from collections.abc import Callable

from dpaudit.mechanisms.numerics import gaussian_delta
from dpaudit.verify.bounds.counts import best_possible_epsilon, epsilon_from_counts
from dpaudit.verify.bounds.gdp import epsilon_gdp, gaussian_epsilon
from dpaudit.verify.bounds.joint_test import JointTest
from dpaudit.verify.bounds.one_run import correct_guesses, epsilon_one_run, one_run_from_scores, steinke_p_value
from dpaudit.verify.bounds.one_run_curve import epsilon_one_run_curve, one_run_p_value
from dpaudit.verify.bounds.operating import auc, auc_interval, roc, tpr_at_fpr
from dpaudit.verify.bounds.rank_thresholds import band_at, epsilon_from_ranks, roc_band
from dpaudit.verify.bounds.rates import clopper_pearson, rate_lower, rate_upper
from dpaudit.verify.bounds.thresholds import choose_threshold
from dpaudit.verify.bounds.tradeoff import Tradeoff, tradeoff_curve
from dpaudit.verify.bounds.two_sample import epsilon_paired
from dpaudit.verify.results import LowerBound

# from the counts tp, fp, tn, fn of one event in the two arms, delta and the confidence; a new bound is one more line
# here: conformance tests and the self-check follow
BOUNDS: dict[str, Callable[..., LowerBound]] = {
    "epsilon_from_counts": epsilon_from_counts,
}

__all__ = [
    "BOUNDS",
    "JointTest",
    "Tradeoff",
    "auc",
    "auc_interval",
    "band_at",
    "best_possible_epsilon",
    "choose_threshold",
    "clopper_pearson",
    "correct_guesses",
    "epsilon_from_counts",
    "epsilon_from_ranks",
    "epsilon_gdp",
    "epsilon_one_run",
    "epsilon_one_run_curve",
    "epsilon_paired",
    "gaussian_delta",
    "gaussian_epsilon",
    "one_run_from_scores",
    "one_run_p_value",
    "rate_lower",
    "rate_upper",
    "roc",
    "roc_band",
    "steinke_p_value",
    "tpr_at_fpr",
    "tradeoff_curve",
]
