"""The privacy loss of one generalized Gaussian coordinate on a grid, and its composition with the theorem's error."""

import itertools
import math
from dataclasses import dataclass

import numpy as np
from scipy.integrate import quad

from dpaudit.mechanisms.base import Array
from dpaudit.mechanisms.generalized_gaussian import GeneralizedGaussian
from dpaudit.mechanisms.numerics import UNIT, log_sum_exp

_ORDERS = np.geomspace(1 / 64, 256, 57)  # exponents tried in Chernoff's bound
_TABLE = 3_000  # nodes in each of four parts of the output's range
_LARGEST_GRID = 2**20
_NEGLIGIBLE_EXPONENT = 700.0  # outputs of density e^-700 and less are left out of tables


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
        """Grid points j h, shape (2n,)."""
        n = len(self.masses) // 2
        return np.asarray(np.arange(-n, n) * self.mesh, dtype=np.float64)


@dataclass(frozen=True)
class ComposedLoss:
    """A composed privacy loss on its grid, and how far its curve may be from that of the true composition.

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
    relative = UNIT * (steps + 1) * (7 * math.log2(2 * n) + 5)
    transform = relative * math.sqrt(2 * n) * float(np.linalg.norm(step.masses))
    present = step.masses > 0
    points, logs = step.points[present], np.log(step.masses[present])
    limit = (n - 1) * step.mesh
    wrapped = chernoff(points, logs, steps, limit) + chernoff(-points, logs, steps, limit)
    shift = step.spread * math.sqrt(0.5 * steps * math.log(2 / slack)) if step.spread else 0.0
    return ComposedLoss(
        step.points + steps * step.offset,
        np.maximum(masses, 0.0),
        shift + steps * step.offset_error,
        slack + steps * step.step_error + wrapped + transform,
    )


def chernoff(values: Array, log_masses: Array, steps: int, limit: float) -> float:
    """Chernoff's bound, min over s > 0 of e^(-s limit) (E e^(sY))^T, on P(sum of T losses Y > limit).

    Args:
        values: Shape (m,).
        log_masses: Shape (m,).
        steps: T.
        limit: What the sum should stay below.
    """
    return _least_power(_log_powers(values, log_masses), steps, limit)


def _log_powers(values: Array, log_masses: Array) -> Array:
    """log E e^(sY) at every s that is tried."""
    return log_sum_exp(np.outer(_ORDERS, values) + log_masses)


def _least_power(logs: Array, steps: int, limit: float) -> float:
    return math.exp(min(float(np.min(steps * logs - _ORDERS * limit)), 0.0))


@dataclass(frozen=True)
class OneCoordinate:
    """One coordinate of generalized Gaussian noise, moved by `move` with probability `prob`.

    Args:
        noise: The noise; its dimension is 1.
        move: c > 0.
        prob: q in (0, 1].
    """

    noise: GeneralizedGaussian
    move: float
    prob: float

    def loss(self, output: Array) -> Array:
        """log(1 - q + q e^L), L(o) = (|o|^beta - |o - c|^beta) / sigma^beta; it rises with o.

        Args:
            output: Shape (n,).
        """
        full = self.noise.privacy_loss(np.asarray(output)[:, None], np.array([self.move]))
        if self.prob == 1:
            return full
        near = np.log1p(self.prob * np.expm1(np.minimum(full, 1.0)))
        far = np.logaddexp(math.log1p(-self.prob), math.log(self.prob) + full)
        return np.asarray(np.where(full < 1, near, far))

    def sample(self, rng: np.random.Generator, size: int) -> Array:
        """Outputs of the mixture, shape (size,)."""
        return np.asarray(self.noise.sample(rng, size)[:, 0] + self.move * (rng.random(size) < self.prob))

    def masses(self, edges: Array) -> Array:
        """The mixture's mass between successive outputs, each taken from the nearer tail; shape (len(edges) - 1,)."""
        return np.asarray((1 - self.prob) * self._cells(edges) + self.prob * self._cells(edges - self.move))

    def table(self) -> Array:
        """Outputs from one end of the law to the other, dense at 0 and at c, symmetric around c/2."""
        reach = float(self.noise.scale) * _NEGLIGIBLE_EXPONENT ** (1 / float(self.noise.beta))
        away = np.geomspace(1e-9 * self.move, reach, _TABLE)
        right = np.concatenate([np.linspace(0.5 * self.move, self.move, _TABLE), self.move + away])
        return np.concatenate([self.move - right[:0:-1], right])

    def mean_loss(self, limit: float) -> tuple[float, float]:
        """E of the loss clamped to [-limit, limit], and the quadrature's estimate of its error."""
        logpdf = self.noise.structure.logpdf

        def integrand(output: float) -> float:
            point = np.array([output])
            density = (1 - self.prob) * np.exp(logpdf(point)) + self.prob * np.exp(logpdf(point - self.move))
            return float((np.clip(self.loss(point), -limit, limit) * density)[0])

        table, spread = self.table(), float(self.noise.scale)
        losses = self.loss(table)
        kinks = [0.0, self.move, *np.interp([-limit, limit], losses, table)]
        reach = [sign * width * spread for width in (0.1, 1.0, 3.0, 10.0) for sign in (-1, 1)]
        cuts = np.unique(np.clip([*kinks, *reach, table[0], table[-1]], table[0], table[-1]))
        parts = [
            quad(integrand, low, high, limit=200, epsabs=1e-13, epsrel=1e-11) for low, high in itertools.pairwise(cuts)
        ]
        return sum(part[0] for part in parts), sum(part[1] for part in parts)

    def outside(self, limit: float) -> float:
        """Upper bound on the probability of a loss outside [-limit, limit]."""
        losses, masses = self._tabulated()
        return float(masses[(losses[1:] > limit) | (losses[:-1] < -limit)].sum())

    def _tabulated(self) -> tuple[Array, Array]:
        """The losses at the table's outputs, and the masses between them, the tails in the first and the last."""
        table = self.table()
        return self.loss(table), self.masses(np.concatenate([[-np.inf], table[1:-1], [np.inf]]))

    def limit(self, steps: int, slack: float) -> float:
        """An L that the sum of `steps` losses leaves with probability at most `slack`, and one loss `slack / steps`."""
        losses, masses = self._tabulated()
        with np.errstate(divide="ignore"):
            logs = np.log(masses)
        sides = _log_powers(losses[1:], logs), _log_powers(-losses[:-1], logs)

        def outside(limit: float) -> float:
            return float(masses[(losses[1:] > limit) | (losses[:-1] < -limit)].sum())

        result = 0.1
        while sum(_least_power(side, steps, result) for side in sides) > slack or outside(result) * steps > slack:
            result *= 1.25
        return result

    def rounded(self, *, steps: int, accuracy: float, slack: float) -> GridLoss:
        """One step from its distribution function, on a grid fit for `steps` of them (gg, Algorithm 6, exact masses).

        Args:
            steps: T.
            accuracy: What the rounding may add up to, in epsilon; more where that would take over 2^20 points.
            slack: Probability that each stage of `composed_loss` may spend.
        """
        limit = self.limit(steps, slack)
        wanted = limit * math.sqrt(0.5 * steps * math.log(2 / slack)) / accuracy
        n = min(2 ** math.ceil(math.log2(max(wanted, 512))), _LARGEST_GRID // 2)
        mesh = limit / (n - 2)
        edges, off = self._edges((np.arange(2 - n, n) - 0.5) * mesh)
        # the point -n h only completes the circle; the end points take the tails
        masses = np.concatenate([[0.0], self.masses(np.concatenate([[-np.inf], edges, [np.inf]]))])
        mean, error = self.mean_loss((n - 0.5) * mesh)
        points = np.arange(-n, n) * mesh
        return GridLoss(
            masses, mesh, mean - float(points @ masses), mesh + 2 * off, error + 1e-15 * limit,
            self.outside((n - 0.5) * mesh) + 2.0**-52 * len(masses),
        )  # fmt: skip

    def _edges(self, losses: Array) -> tuple[Array, float]:
        """Outputs of the given losses, infinite where there are none, and by how much they miss at most."""
        table = self.table()
        losses_at = self.loss(table)
        inside = (losses > losses_at[0]) & (losses < losses_at[-1])
        target = losses[inside]
        above = np.searchsorted(losses_at, target)
        low, high = table[above - 1], table[above]
        guess = low + (high - low) * (target - losses_at[above - 1]) / (losses_at[above] - losses_at[above - 1])
        step = 0.01 * (high - low)
        for _ in range(2):
            value = self.loss(guess)
            with np.errstate(divide="ignore", invalid="ignore"):
                slope = (self.loss(guess + step) - value) / step
                moved = guess + (target - value) / slope
            guess = np.where((moved >= low) & (moved <= high), moved, guess)
        edges = np.where(losses <= losses_at[0], -np.inf, np.inf)
        edges[inside] = guess
        return edges, float(np.abs(self.loss(guess) - target).max(initial=0.0))

    def _cells(self, edges: Array) -> Array:
        cdf = self.noise.structure.cdf
        below, above = cdf(edges), cdf(-edges)
        return np.where(edges[:-1] > 0, above[:-1] - above[1:], below[1:] - below[:-1])
