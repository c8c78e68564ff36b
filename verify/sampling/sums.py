"""The loss S of a shift of m equal coordinates, drawn from its exponentially tilted laws, with the exact normaliser.

S is the sum over the shifted coordinates of l(o) = log p(o - s) - log p(o). With Q the noise around 0, the law tilted
by a real order j has density e^(jS)/W_j to Q, W_j = E_Q e^(jS). Order 0 is Q itself and order 1 is P, the noise around
the shift. Where e^(jl) has no closed form a step function above it takes its place: `draw` then also returns a bound
B with j B >= j S, the law drawn from is e^(jB)/W_j, and W_j = E_Q e^(jB).
"""

import math
from dataclasses import dataclass, field
from typing import cast

import numpy as np
from numpy.typing import NDArray
from scipy.special import exprel, gammaln, logsumexp

from dpaudit.mechanisms.base import (
    Array,
    IIDCoordinates,
    LaplaceCoordinates,
    Mechanism,
    NormalCoordinates,
    with_dimension,
)
from dpaudit.verify.sampling.labels import LabelSum, label_sum

POINTS = 4096  # cell edges per tail, per centre and per gap between the centres
OUTERMOST = 1e-40  # probability of each tail, under either centre, that no cell covers
SPACING = 1e-4  # least relative difference of the tails at the ends of a cell
TINY = 1e-290  # tail probabilities below this are no longer accurate to every digit


@dataclass(frozen=True)
class GaussianSum:
    """Normal coordinates: S is N(-mu^2/2, mu^2) under Q, and tilting moves the mean of S by j mu^2; exact.

    Args:
        mechanism: The mechanism in one dimension: normal noise looks the same along every line.
        sigma: Its standard deviation.
        length: l2 norm of the shift, mu = length/sigma.
    """

    mechanism: Mechanism
    sigma: float
    length: float
    floats: float = 1.0
    rounding: float = 1e-11

    def log_moments(self, orders: Array) -> Array:
        """log W_j = j (j - 1) mu^2 / 2."""
        return np.asarray(0.5 * orders * (orders - 1.0) * (self.length / self.sigma) ** 2)

    def draw(self, rng: np.random.Generator, orders: Array) -> tuple[Array, Array]:
        """The noise is centred at j times the shift."""
        outputs = self.mechanism.sample(rng, len(orders)) + (orders * self.length)[:, None]
        loss = self.mechanism.privacy_loss(outputs, np.array([self.length]))
        return loss, loss


@dataclass(frozen=True)
class LaplaceSum:
    """Laplace coordinates through their counts: only those that land between the two centres are drawn; exact.

    Under Q tilted by j a coordinate lies below 0, where l = -a, with weight e^(-ja)/2, a = s/scale; above s, where
    l = a, with weight e^((j-1)a)/2; and between them at x scale with density e^(-ja + (2j-1)x)/2, where l = 2x - a.

    Args:
        ratio: a.
        coordinates: m.
    """

    ratio: float
    coordinates: int

    @property
    def rounding(self) -> float:
        """Of m times a logarithm."""
        return 1e-11 + 1e-15 * self.coordinates

    @property
    def floats(self) -> float:
        """The coordinates between the centres, under Q or P; tilting keeps their number about the same."""
        return 4.0 + 2.0 * self.coordinates * -0.5 * math.expm1(-self.ratio)

    def log_moments(self, orders: Array) -> Array:
        """m log of the three weights' sum."""
        return np.asarray(self.coordinates * logsumexp(laplace_weights(np.asarray(orders), self.ratio), axis=0))

    def draw(self, rng: np.random.Generator, orders: Array) -> tuple[Array, Array]:
        """Counts of the two ends, then the middle ones."""
        ratios = np.full(len(orders), self.ratio)
        ends, middle, _, _ = laplace_counts(rng, orders, ratios, self.coordinates)
        return (loss := ratios * ends + middle), loss


def laplace_weights(orders: Array, ratios: Array | float) -> Array:
    """Logs of the tilted masses (below, above, between) of one Laplace coordinate, stacked first."""
    half, bend = math.log(0.5), (2.0 * orders - 1.0) * ratios
    between = half - orders * ratios + np.log(ratios) + _log_exprel(bend)
    return np.stack([half - orders * ratios, half + (orders - 1.0) * ratios, between])


def laplace_counts(
    rng: np.random.Generator, orders: Array, ratios: Array, coordinates: int
) -> tuple[Array, Array, Array, Array]:
    """The sufficient counts of m Laplace coordinates, for every row of tilt and ratio a.

    Returns:
        (number above minus number below, sum of l over the middle ones, number of middle ones, number above).
    """
    logs = laplace_weights(orders, ratios)
    below, above, between = np.exp(logs - logsumexp(logs, axis=0))
    middle = rng.binomial(coordinates, np.clip(between, 0.0, 1.0))
    high = rng.binomial(coordinates - middle, np.clip(above / (above + below), 0.0, 1.0)).astype(np.float64)
    row = np.repeat(np.arange(len(orders)), middle)
    bend = ((2.0 * orders - 1.0) * ratios)[row]
    place = _truncated_exponential(rng.random(len(row)), bend) * ratios[row]
    total = np.bincount(row, weights=2.0 * place - ratios[row], minlength=len(orders))
    ends = 2.0 * high - (coordinates - middle)
    return np.asarray(ends), np.asarray(total), middle.astype(np.float64), high


def _log_exprel(y: Array) -> Array:
    """log((e^y - 1)/y) without overflow."""
    large = y > 30.0  # there e^y - 1 is e^y to the last bit
    return np.asarray(np.where(large, y - np.log(np.where(large, y, 1.0)), np.log(exprel(np.where(large, 0.0, y)))))


def _truncated_exponential(uniform: Array, bend: Array) -> Array:
    """The quantile of the law with density ~ e^(bend x) on [0, 1]."""
    flat, steep = np.abs(bend) < 1e-12, bend > 30.0
    safe = np.where(flat | steep, 1.0, bend)
    value = np.log1p(uniform * np.expm1(safe)) / safe
    far = 1.0 + np.log(uniform + (1.0 - uniform) * np.exp(-np.where(steep, bend, 31.0))) / np.where(steep, bend, 31.0)
    return np.asarray(np.clip(np.where(flat, uniform, np.where(steep, far, value)), 0.0, 1.0))


@dataclass(frozen=True)
class CellSum:
    """Any iid coordinates: a tilt that is constant on narrow cells, whose masses the distribution function gives.

    On each cell e^(jl) is replaced by its largest value there, which is at one of the cell's ends: l is monotone on
    (-inf, 0), (0, s) and (s, inf) where the log-density is concave or convex on (0, inf), and 0 and s are ends of
    cells. Within a cell the coordinate follows Q. Outside the outermost cells nothing is drawn.

    Args:
        mechanism: The mechanism in m dimensions.
        value: s, the shift of every coordinate.
        coordinates: m.
        edges: Ends of the cells, increasing.
        tails: Probability of the nearer tail beyond each end, under Q.
        low: Smallest value on each cell of l, or for one coordinate of another monotone function of l.
        high: Its largest value.
    """

    mechanism: Mechanism
    value: float
    coordinates: int
    edges: Array
    tails: Array
    low: Array
    high: Array
    tables: dict[float, Array] = field(default_factory=dict, repr=False, compare=False)

    @property
    def rounding(self) -> float:
        """Tails are right to 1e-13 of themselves, so masses to 1e-9."""
        return 1e-9 * self.coordinates

    @property
    def floats(self) -> float:
        """Every coordinate is drawn."""
        return 4.0 * self.coordinates

    def _log_weights(self, order: float) -> Array:
        """log of mass times e^(jB) on each cell."""
        with np.errstate(divide="ignore"):
            return np.log(np.abs(np.diff(self.tails))) + order * (self.high if order >= 0 else self.low)

    def log_moments(self, orders: Array) -> Array:
        """m log of the sum over cells of mass times e^(jB)."""
        return self.coordinates * np.array([float(logsumexp(self._log_weights(float(j)))) for j in orders])

    def draw(self, rng: np.random.Generator, orders: Array) -> tuple[Array, Array]:
        """Cells by their tilted masses, then places within them by Q."""
        cells = np.empty((len(orders), self.coordinates), dtype=np.int64)
        for order in np.unique(orders):
            rows = np.flatnonzero(orders == order)
            table = self._table(float(order))
            draws = np.searchsorted(table, rng.random(len(rows) * self.coordinates) * table[-1], side="right")
            cells[rows] = np.minimum(draws, len(table) - 1).reshape(len(rows), -1)
        outputs = self._place(rng, cells.ravel()).reshape(cells.shape)
        loss = self.mechanism.privacy_loss(outputs, np.full(self.coordinates, self.value))
        bound = np.where(orders[:, None] >= 0, self.high[cells], self.low[cells]).sum(axis=1)
        return loss, bound

    def _table(self, order: float) -> Array:
        if order not in self.tables:
            logs = self._log_weights(order)
            self.tables[order] = np.cumsum(np.exp(logs - logs.max()))
        return self.tables[order]

    def _place(self, rng: np.random.Generator, cells: NDArray[np.int64]) -> Array:
        """Draws of Q within each cell, by rejection: the density is largest at the end nearer to 0."""
        law = cast(IIDCoordinates, self.mechanism.structure)
        density = np.asarray(law.logpdf(self.edges))
        top = np.maximum(density[:-1], density[1:])
        places, todo = np.empty(len(cells)), np.arange(len(cells))
        while len(todo):
            cell = cells[todo]
            left, right = self.edges[cell], self.edges[cell + 1]
            tried = left + (right - left) * rng.random(len(todo))
            kept = rng.standard_exponential(len(todo)) >= top[cell] - np.asarray(law.logpdf(tried))
            places[todo[kept]] = tried[kept]
            todo = todo[~kept]
        return places


# draws of S under every tilt: `floats` one draw holds in memory, and `rounding`, the relative error of its density
TiltedSum = GaussianSum | LaplaceSum | CellSum | LabelSum

WHOLE_SUMS = 64  # coordinates up to which each is drawn
WHOLE_MIDDLE = 16.0  # floats up to which every Laplace coordinate between the centres is


def binomial_tilts(theta: float, rate: float) -> tuple[Array, Array]:
    """The tilts j that make up (1 - q + q e^S)^(theta+1), and the logs of their coefficients; theta + 1 alone at q = 1.

    Args:
        theta: At least 0; an integer below q = 1.
        rate: q.
    """
    if rate == 1.0:
        return np.array([theta + 1.0]), np.zeros(1)
    top = round(theta) + 1
    j = np.arange(top + 1.0)
    binomial = gammaln(top + 1.0) - gammaln(j + 1.0) - gammaln(top - j + 1.0)
    return j, np.asarray(binomial + (top - j) * math.log1p(-rate) + j * math.log(rate))


def tilted_sum(mechanism: Mechanism, coordinates: int, value: float, *, rate: float = 1.0) -> TiltedSum | None:
    """The tilted laws of S for iid noise: of the exact loss where it is quickly drawn, else of the labels' loss.

    None where l is not monotone between the centres and beyond, or where the two laws hardly meet.

    Args:
        mechanism: Its structure must be IIDCoordinates.
        coordinates: m.
        value: s > 0.
        rate: Below 1, for one coordinate: the tilt follows -log(1 - rate + rate e^l) instead of l.
    """
    law = mechanism.structure
    assert isinstance(law, IIDCoordinates)
    if isinstance(law, NormalCoordinates):
        mechanism, coordinates, value = with_dimension(mechanism, 1), 1, value * math.sqrt(coordinates)
        if rate == 1.0:
            return GaussianSum(mechanism, law.sigma, value)
    elif isinstance(law, LaplaceCoordinates) and rate == 1.0:
        whole = LaplaceSum(value / law.scale, coordinates)
        return whole if whole.floats <= WHOLE_MIDDLE else label_sum(law, value, coordinates)
    elif coordinates > WHOLE_SUMS:
        return label_sum(law, value, coordinates)
    edges = _edges(law, value)
    loss = with_dimension(mechanism, 1).privacy_loss(edges[:, None], np.array([value]))
    if not all(_monotone(loss[part]) for part in (edges <= 0, (edges >= 0) & (edges <= value), edges >= value)):
        return None
    statistic = loss if rate == 1.0 else -subsampled(loss, rate)
    ends = statistic[:-1], statistic[1:]
    cells = CellSum(
        with_dimension(mechanism, coordinates), value, coordinates, edges, np.asarray(law.cdf(-np.abs(edges))),
        np.minimum(*ends), np.maximum(*ends),
    )  # fmt: skip
    return cells if rate < 1.0 or cells.log_moments(np.ones(1))[0] > -1.0 else None


def _edges(law: IIDCoordinates, value: float) -> Array:
    """Cells that are narrow wherever Q or P puts probability, as far as Q's distribution function can tell."""
    tails = np.concatenate([np.geomspace(OUTERMOST, 1e-3, POINTS), np.linspace(1e-3, 0.5, POINTS)])
    half = -np.asarray(law.ppf(tails))
    edges = np.concatenate([half, -half, value + half, value - half, np.linspace(0.0, value, POINTS)])
    edges = np.unique(edges[np.isfinite(edges)])
    edges = edges[np.asarray(law.cdf(-np.abs(edges))) > TINY]
    below, above = _thinned(law, edges[edges <= 0][::-1]), _thinned(law, edges[edges >= value])
    between = _thinned(law, edges[(edges >= 0) & (edges < value)])[:-1]  # the last may be too near to the shift
    return np.unique(np.concatenate([below, between, above]))


def _thinned(law: IIDCoordinates, places: Array) -> Array:
    """The first place, and every further one whose tail differs by a factor of 1 + SPACING from that of the last kept.

    The mass of a cell is a difference of two tails, and keeps their digits only as far as they differ.
    """
    depths, kept = np.log(np.asarray(law.cdf(-np.abs(places)))), [0]
    for i in range(1, len(places)):
        if abs(depths[i] - depths[kept[-1]]) >= SPACING:
            kept.append(i)
    return places[kept] if len(places) else places


def subsampled(loss: Array, rate: float) -> Array:
    """log(1 - q + q e^loss): the loss of one step in which the record takes part with probability q."""
    return np.asarray(loss) if rate == 1.0 else np.logaddexp(math.log1p(-rate), math.log(rate) + loss)


def _monotone(values: Array) -> bool:
    """Whether the values rise or fall throughout, up to rounding."""
    steps, slack = np.diff(values), 1e-11 * (1.0 + np.abs(values).max(initial=0.0))
    return bool((steps >= -slack).all() or (steps <= slack).all())
