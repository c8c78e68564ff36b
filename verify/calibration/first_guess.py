"""Where a calibration starts to look. Nothing rests on it but the time the search takes."""

import math

import numpy as np

from dpaudit.mechanisms.base import Mechanism, Radial, ScaleMixture
from dpaudit.mechanisms.published.gaussian_baselines import analytic_gaussian_sigma
from dpaudit.verify.calibration.costs import Target
from dpaudit.verify.upper.gaussian_pld import analytic_delta

_LARGEST_EPSILON = 300.0  # e^epsilon stays a float


def spread(mechanism: Mechanism) -> float:
    """Upper quartile of one coordinate's noise (at the median of a hidden scale), or the median radius."""
    structure = mechanism.structure
    if isinstance(structure, Radial):
        return float(structure.radius_ppf(np.array([0.5]))[0])
    if isinstance(structure, ScaleMixture):
        structure = structure.given(float(structure.scale_ppf(np.array([0.5]))[0]))
    return float(structure.ppf(np.array([0.75]))[0])


def wanted_spread(mechanism: Mechanism, target: Target) -> float:
    """About the spread that meets the target."""
    clip = float(mechanism.clip) * (2.0 if target.adjacency == "replace-one" else 1.0)
    if isinstance(mechanism.structure, Radial):
        return clip * _radial_radius(mechanism, target)
    return clip * 0.6745 * _gaussian_multiplier(target)


def _gaussian_multiplier(target: Target) -> float:
    """sigma with mu^2 = q^2 T (e^(1/sigma^2) - 1) (Bu et al. 2020, Section 3.2), mu that of the exact Gaussian."""
    epsilon = min(target.epsilon, _LARGEST_EPSILON)
    if target.delta == 0 and target.epsilon > 0:  # as of Laplace noise in l1
        return target.steps * target.sampling_prob / target.epsilon
    mu = 1 / analytic_gaussian_sigma(1.0, epsilon=epsilon, delta=max(target.delta, 1e-12))
    if target.sampling_prob == 1:
        return math.sqrt(target.steps) / mu
    return 1 / math.sqrt(math.log1p((mu / target.sampling_prob) ** 2 / target.steps))


def _radial_radius(mechanism: Mechanism, target: Target) -> float:
    """Median radius, in units of clip.

    In many dimensions the loss given the radius r is N(mu^2/2, mu^2), mu = clip sqrt(n)/r, and only small r matter, on
    which the radius has a constant density f(0). Then delta = clip sqrt(n) f(0) I, I = int delta_mu(epsilon) dmu/mu^2,
    and rare large losses of T sampled steps add up: T q delta(log(1 + (e^epsilon - 1)/q)).
    """
    q = target.sampling_prob
    epsilon = min(target.epsilon, _LARGEST_EPSILON)
    inner = np.array([epsilon + math.log1p((1 - q) / q * -math.expm1(-epsilon))])
    log_mu = np.linspace(-7.0, 7.0, 281)
    step = log_mu[1] - log_mu[0]
    integral = float(sum(float(analytic_delta(mu, inner)[0]) / mu for mu in np.exp(log_mu)) * step)
    structure = mechanism.structure
    assert isinstance(structure, Radial)
    median = float(structure.radius_ppf(np.array([0.5]))[0])
    density = float(np.exp(structure.radius_logpdf(np.array([1e-6 * median]))[0])) * median
    return math.sqrt(mechanism.dimension or 2) * density * integral * target.steps * q / max(target.delta, 1e-12)
