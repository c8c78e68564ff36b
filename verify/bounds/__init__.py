"""Bounds from counts and scores: what an attack's outcome proves about epsilon, and at which level."""

from dpaudit.verify.bounds.counts import best_possible_epsilon, epsilon_from_counts
from dpaudit.verify.bounds.curve_test import curve_violation
from dpaudit.verify.bounds.gdp import epsilon_gdp, gaussian_delta, gaussian_epsilon
from dpaudit.verify.bounds.one_run import epsilon_one_run, one_run_from_scores, steinke_p_value
from dpaudit.verify.bounds.operating import auc, roc, tpr_at_fpr, tradeoff_curve
from dpaudit.verify.bounds.rates import clopper_pearson, rate_lower, rate_upper
from dpaudit.verify.bounds.thresholds import choose_curve_threshold, choose_threshold

__all__ = [
    "auc",
    "best_possible_epsilon",
    "choose_curve_threshold",
    "choose_threshold",
    "clopper_pearson",
    "curve_violation",
    "epsilon_from_counts",
    "epsilon_gdp",
    "epsilon_one_run",
    "gaussian_delta",
    "gaussian_epsilon",
    "one_run_from_scores",
    "rate_lower",
    "rate_upper",
    "roc",
    "steinke_p_value",
    "tpr_at_fpr",
    "tradeoff_curve",
]
