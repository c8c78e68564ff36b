"""Accountants as the papers' public code evaluates them, where that is not the formula in print."""

import math

import numpy as np
from scipy.special import logsumexp

from dpaudit.mechanisms.base import Array, Mechanism
from dpaudit.mechanisms.published.lap2 import laplace_law_of
from dpaudit.mechanisms.published.moments import (
    PublishedValue,
    epsilon_at_orders,
    log_binomial_weights,
    validate_release,
)

LAP2_ORDERS = 2084  # lambda_max of the released settings


def lap2_univariate(
    mechanism: Mechanism, *, sampling_prob: float, steps: int, delta: float, max_order: int = LAP2_ORDERS
) -> PublishedValue:
    """epsilon from alpha = T log sum over eta < lam of binom(lam, eta) (1-q)^(lam-eta) q^eta F(C/b, eta), lam >= 2.

    The loop of lap2's released accountant: one coordinate is moved by the whole clip; the weights are those of the
    moment lam - 1 and lack their last term, while the conversion divides by lam as if the moment were lam.

    Args:
        mechanism: Laplace noise; its dimension is not looked at.
        sampling_prob: q in (0, 1].
        steps: T, at least 1.
        delta: In [0, 1).
        max_order: Last lam tried, at least 2.

    Raises:
        TypeError, ValueError: Another mechanism, or a value outside its domain.

    >>> from dpaudit.mechanisms import Laplace
    >>> mechanism = Laplace(scale=15.0, clip=10.0)
    >>> round(lap2_univariate(mechanism, sampling_prob=0.02, steps=250, delta=1e-5).epsilon, 3)
    0.758
    """
    validate_release(sampling_prob, steps, delta)
    law = laplace_law_of(mechanism, within_l2=False)
    if delta == 0:  # the conversion gives no finite value at any order
        return PublishedValue(math.inf, {"max_order": float(max_order)}, 0.0)
    orders = np.arange(2.0, max_order + 1.0)
    log_weights = log_binomial_weights(orders - 1.0, sampling_prob)
    eta = np.arange(log_weights.shape[1], dtype=np.float64)
    log_weights[eta[None, :] >= orders[:, None]] = -np.inf  # the term that the loop leaves out
    alpha = steps * logsumexp(log_weights + _log_f(float(mechanism.clip) * law.mean, eta), axis=1)
    values = epsilon_at_orders(alpha, orders, delta)
    best = int(np.argmin(values))
    settings = {"order": float(orders[best]), "max_order": float(max_order)}
    return PublishedValue(max(float(values[best]), 0.0), settings, 0.0)


def _log_f(s: float, eta: Array) -> Array:
    """log F(s, eta), F = [eta e^((eta-1)s) + (eta-1) e^(-eta s)] / (2 eta - 1), for integers eta; 0 at eta = 0."""
    later = np.maximum(eta, 1.0)
    logs = (later - 1) * s + np.log((later + (later - 1) * np.exp(-(2 * later - 1) * s)) / (2 * later - 1))
    return np.where(eta > 0, logs, 0.0)
