"""The privacy loss of one generalized Gaussian coordinate: its law, and the law rounded to a grid."""

import itertools
import math
from dataclasses import dataclass

import numpy as np
from scipy.integrate import quad

from dpaudit.mechanisms.base import Array
from dpaudit.mechanisms.generalized_gaussian import GeneralizedGaussian
from dpaudit.mechanisms.published.prv import GridLoss, chernoff

_TABLE = 3_000  # nodes in each of four parts of the output's range
_LARGEST_GRID = 2**20
_NEGLIGIBLE = 700.0  # outputs of density e^-700 and less are left out of tables


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
        reach = float(self.noise.scale) * _NEGLIGIBLE ** (1 / float(self.noise.beta))
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
        table = self.table()
        losses = self.loss(table)
        masses = self.masses(np.concatenate([[-np.inf], table[1:-1], [np.inf]]))
        return float(masses[(losses[1:] > limit) | (losses[:-1] < -limit)].sum())

    def limit(self, steps: int, slack: float) -> float:
        """An L that the sum of `steps` losses leaves with probability at most `slack`, and one loss `slack / steps`."""
        table = self.table()
        losses = self.loss(table)
        with np.errstate(divide="ignore"):
            logs = np.log(self.masses(np.concatenate([[-np.inf], table[1:-1], [np.inf]])))
        result = 0.1
        while (
            chernoff(losses[1:], logs, steps, result) + chernoff(-losses[:-1], logs, steps, result) > slack
            or self.outside(result) * steps > slack
        ):
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
        known = self.loss(table)
        inside = (losses > known[0]) & (losses < known[-1])
        target = losses[inside]
        above = np.searchsorted(known, target)
        low, high = table[above - 1], table[above]
        guess = low + (high - low) * (target - known[above - 1]) / (known[above] - known[above - 1])
        step = 0.01 * (high - low)
        for _ in range(2):
            value = self.loss(guess)
            with np.errstate(divide="ignore", invalid="ignore"):
                slope = (self.loss(guess + step) - value) / step
                moved = guess + (target - value) / slope
            guess = np.where((moved >= low) & (moved <= high), moved, guess)
        edges = np.where(losses <= known[0], -np.inf, np.inf)
        edges[inside] = guess
        return edges, float(np.abs(self.loss(guess) - target).max(initial=0.0))

    def _cells(self, edges: Array) -> Array:
        cdf = self.noise.structure.cdf
        below, above = cdf(edges), cdf(-edges)
        return np.where(edges[:-1] > 0, above[:-1] - above[1:], below[1:] - below[:-1])
