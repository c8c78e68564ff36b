"""Composition of privacy-loss random variables on a grid, with the error that the published theorem allows for."""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

from dpaudit.mechanisms.base import Array

_ORDERS = np.geomspace(1 / 64, 256, 57)  # exponents tried in Chernoff's bound
_UNIT = 2.0**-53


@dataclass(frozen=True)
class GridLoss:
    """A privacy loss Y of one step, rounded: masses at j h for j = -n, ..., n - 1, and its mean residue.

    Args:
        masses: Shape (2n,), summing to 1.
        mesh: h > 0.
        offset: Mean of Y minus its rounded value, added to every step.
        spread: Bound on max - min of Y minus its rounded value: h, and the width left by an inexact cell edge.
        offset_error: Bound on the error of `offset`.
        step_error: Bound on the total variation distance between the rounded Y and `masses`, truncation included.
    """

    masses: Array
    mesh: float
    offset: float
    spread: float
    offset_error: float
    step_error: float

    @property
    def points(self) -> Array:
        """j h, shape (2n,)."""
        n = len(self.masses) // 2
        return np.asarray(np.arange(-n, n) * self.mesh, dtype=np.float64)


@dataclass(frozen=True)
class ComposedLoss:
    """The composed loss on its grid, and how far its curve may be from that of the true composition.

    For the true curve, delta~(eps + epsilon_error) - delta_error <= delta(eps) <= delta~(eps - epsilon_error)
    + delta_error, delta~ being `delta` (Gopi et al. 2021, Lemma 5.2).

    Args:
        losses: Rising, shape (n,).
        masses: At least 0, shape (n,).
        epsilon_error: Bound on the shift.
        delta_error: Bound on the failure probability of the coupling.
    """

    losses: Array
    masses: Array
    epsilon_error: float
    delta_error: float

    def delta(self, epsilon: float) -> float:
        """sum over losses l > epsilon of mass (1 - e^(epsilon - l))."""
        above = self.losses > epsilon
        return float(-(self.masses[above] * np.expm1(epsilon - self.losses[above])).sum())

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon >= 0 with delta(epsilon) <= delta, exactly: the curve is A - B e^epsilon in each cell.

        Infinite for a delta below 0; for delta = 0 the largest loss with any mass.
        """
        if delta < 0:
            return math.inf
        if self.delta(0.0) <= delta:
            return 0.0
        keep = (self.losses > 0) & (self.masses > 0)
        losses, masses = self.losses[keep], self.masses[keep]
        tail = np.cumsum(masses[::-1])[::-1]
        discounted = np.cumsum((masses * np.exp(-losses))[::-1])[::-1]
        at_points = tail - np.exp(losses) * discounted
        index = int(np.argmax(at_points <= delta))  # the last one is 0
        return max(float(np.log((tail[index] - delta) / discounted[index])), 0.0)

    def epsilon_with_error(self, delta: float) -> tuple[float, float]:
        """epsilon(delta), and a bound on its distance from the true composition's."""
        value = self.epsilon(delta)
        upper = self.epsilon(delta - self.delta_error) + self.epsilon_error
        lower = self.epsilon(min(delta + self.delta_error, 1.0)) - self.epsilon_error
        return value, max(upper - value, value - max(lower, 0.0))


def composed_loss(step: GridLoss, *, steps: int, slack: float) -> ComposedLoss:
    """The loss of T independent steps by the fast Fourier transform modulo 2L, with its error.

    The published proof (gg, Theorem 6, by its Lemmas 7 to 14, after Gopi et al. 2021) couples in four stages, and so
    does this, with constants of our own, the text available not printing the theorem's:

    1. sum of Y_i against sum of (rounded Y_i + E residue): the T residues are independent, of mean 0, and each lies in
       an interval of length `spread`, so by Hoeffding they add up to at most spread sqrt(T log(2/slack)/2) except with
       probability `slack`; the residue's mean is known to `offset_error`, T times.
    2. rounded Y_i against `masses`: T step_error in total variation.
    3. plain against circular addition: the probability that the sum leaves [-L, L), by Chernoff's bound over the
       masses. (gg, Lemma 10.)
    4. the transform: its relative error in l2 is at most 7 u log2(2n), u = 2^-53, each way (Higham 2002, Theorem
       24.2); raising to the power T multiplies the first by T and adds 5 u T, as no coefficient exceeds 1; sqrt(2n)
       takes l2 to l1.

    Args:
        step: One step.
        steps: T, at least 1.
        slack: Probability spent on stage 1, in (0, 1).
    """
    n = len(step.masses) // 2
    spectrum = np.fft.rfft(np.fft.ifftshift(step.masses))
    masses = np.fft.fftshift(np.fft.irfft(spectrum**steps, 2 * n))
    relative = _UNIT * (steps + 1) * (7 * math.log2(2 * n) + 5)
    transform = relative * math.sqrt(2 * n) * float(np.linalg.norm(step.masses))
    shift = step.spread * math.sqrt(0.5 * steps * math.log(2 / slack)) if step.spread else 0.0
    return ComposedLoss(
        step.points + steps * step.offset,
        np.maximum(masses, 0.0),
        shift + steps * step.offset_error,
        slack + steps * step.step_error + wrap_probability(step, steps) + transform,
    )


def wrap_probability(step: GridLoss, steps: int) -> float:
    """Bound on the probability that the sum of T rounded losses leaves [-L, L), L = n h: Chernoff, both sides."""
    present = step.masses > 0
    points, logs = step.points[present], np.log(step.masses[present])
    limit = (len(step.masses) // 2 - 1) * step.mesh
    return chernoff(points, logs, steps, limit) + chernoff(-points, logs, steps, limit)


def chernoff(values: Array, log_masses: Array, steps: int, limit: float) -> float:
    """min over s > 0 of e^(-s limit) (E e^(sY))^T, at most 1, for Y with the given values and masses.

    Args:
        values: Shape (m,).
        log_masses: Shape (m,).
        steps: T.
        limit: What the sum should stay below.
    """
    exponents = [steps * float(logsumexp(s * values + log_masses)) - s * limit for s in _ORDERS]
    return math.exp(min(min(exponents), 0.0))
