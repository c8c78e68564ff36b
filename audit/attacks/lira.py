"""LiRA: is a record's confidence like that of models that saw it, or like that of models that did not?

Carlini, Chien, Nasr, Song, Terzis and Tramer (2022), "Membership Inference Attacks From First Principles", Sections
IV-B and V-C and Appendix A. For each record the confidences of the shadow models trained with it and those of the
models trained without it are each fitted by a Gaussian. The offline form does with the second alone.
"""

import numpy as np
from numpy.typing import NDArray

from dpaudit.audit.attacks.base import Array
from dpaudit.audit.attacks.shadow import Comparison, ShadowAttack

_LEAST_SPREAD = 1e-9  # of confidences that no record moves
OWN_SPREAD = 64  # models on a side from which on each record has a spread of its own (Section V-C of the paper)


def offline_scores(target: Array, shadows: Array, outside: NDArray[np.bool_]) -> Array:
    """Score of each record: z = (phi - mu) / sigma, mu and sigma over shadow models trained without it.

    The paper's score is the normal distribution function at z, which orders records alike and rounds to 1 earlier.

    Args:
        target: phi of the model under attack, shape (records,).
        shadows: phi of the shadow models, shape (models, records).
        outside: Which of them were trained without which record, the same shape, at least two for each record.

    >>> offline_scores(np.array([3.0]), np.array([[0.0], [9.0], [2.0]]), np.array([[True], [False], [True]])).round(3)
    array([1.414])
    """
    mean, spread = _fit(shadows, outside)
    return np.asarray((target - mean) / spread)


def online_scores(target: Array, shadows: Array, inside: NDArray[np.bool_]) -> Array:
    """Score of each record: log N(phi; mu_in, sigma_in) - log N(phi; mu_out, sigma_out).

    With fewer than `OWN_SPREAD` models on either side all records share one sigma_in and one sigma_out, the root of
    the mean variance: of so few models a record's own spread is noise.

    Args:
        target: phi of the model under attack, shape (records,).
        shadows: phi of the shadow models, shape (models, records).
        inside: Which of them were trained with which record, the same shape, at least two with and two without each.

    >>> shadows = np.array([[0.0], [2.0], [4.0], [6.0]])
    >>> online_scores(np.array([3.0]), shadows, np.array([[False], [False], [True], [True]])).round(3)
    array([0.])
    """
    shared = min(int(inside.sum(axis=0).min()), int((~inside).sum(axis=0).min())) < OWN_SPREAD
    score = np.zeros(len(target))
    for sign, side in ((1.0, inside), (-1.0, ~inside)):
        mean, spread = _fit(shadows, side)
        sigma = np.sqrt(np.mean(spread**2)) if shared else spread
        score -= sign * (((target - mean) / sigma) ** 2 / 2.0 + np.log(sigma))
    return score


def _fit(shadows: Array, side: NDArray[np.bool_]) -> tuple[Array, Array]:
    """Mean and standard deviation of each record's confidences over the models of one side."""
    phi = np.where(side, shadows, np.nan)
    return np.nanmean(phi, axis=0), np.maximum(np.nanstd(phi, axis=0, ddof=1), _LEAST_SPREAD)


def _offline(comparison: Comparison) -> Array:
    return offline_scores(comparison.target, comparison.shadows, ~comparison.trained)


def _online(comparison: Comparison) -> Array:
    return online_scores(comparison.target, comparison.shadows, comparison.trained)


LIRA = ShadowAttack("lira", _offline, title="LiRA")
ONLINE_LIRA = ShadowAttack("lira-online", _online, title="Online LiRA")
