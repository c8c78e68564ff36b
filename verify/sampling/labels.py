"""Many equal coordinates, each reduced to the label of a cell: what is drawn is how many fall into each cell.

The labels are a function of the output, the same for both neighbours, so that whatever they prove holds for the output
(post-processing). Coordinates being independent, the counts are multinomial, whatever the tilt, and the loss of the
labels is the sum over cells of count times log of the ratio of the cell's two masses. A handful of cells keeps nearly
all of what a short shift tells: for Laplace noise the signs alone do.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

from dpaudit.mechanisms.base import Array, IIDCoordinates
from dpaudit.verify.pld.cells import interval_masses, scan_points

MOST_CELLS = 64
LOST = 5e-3  # share of the chi-square distance that the cells may lose, if fewer than MOST_CELLS do
OUTERMOST = 1e-12  # probability beyond which a tail is one cell
FAINT = 1e-200  # a cell edge beyond which one of the laws has less probability is left out


@dataclass(frozen=True)
class LabelSum:
    """The loss S of the labels of m equal coordinates, and its tilted laws with their normaliser.

    With certified bounds q- <= q <= q+ and p- <= p on the masses of a cell without and with the shift, the loss of its
    label is taken to be log p-/q+, and its mass without the shift q-. So S is a lower bound on the labels' true loss,
    and the law tilted by j, drawn with probabilities ~ q- e^(j log p-/q+), has a density to the true one of at most
    e^(jS)/W_j, W_j = (sum of q- e^(j log p-/q+))^m.

    Args:
        log_masses: log q-, one for each cell.
        losses: log p-/q+.
        coordinates: m.
    """

    log_masses: Array
    losses: Array
    coordinates: int

    @property
    def rounding(self) -> float:
        """Of m times a logarithm."""
        return 1e-11 + 4e-15 * self.coordinates

    @property
    def floats(self) -> float:
        """The counts of all cells, which take a few times longer to draw than to hold."""
        return 3.0 * len(self.losses)

    def log_moments(self, orders: Array) -> Array:
        """log W_j."""
        exponents = self.log_masses + np.asarray(orders)[..., None] * self.losses
        return np.asarray(self.coordinates * logsumexp(exponents, axis=-1))

    def draw(self, rng: np.random.Generator, orders: Array) -> tuple[Array, Array]:
        """Multinomial counts, order by order."""
        loss = np.empty(len(orders))
        for order in np.unique(orders):
            rows = orders == order
            exponents = self.log_masses + order * self.losses
            chances = np.exp(exponents - logsumexp(exponents))
            counts = rng.multinomial(self.coordinates, chances / chances.sum(), size=int(rows.sum()))
            loss[rows] = counts.astype(np.float64) @ self.losses
        return loss, loss


def label_sum(law: IIDCoordinates, value: float, coordinates: int) -> LabelSum | None:
    """The labels of m coordinates, in as few cells as keep nearly all of the chi-square distance.

    None where the two laws are so far apart that nowhere do both have a probability to speak of.

    Args:
        law: Of one coordinate.
        value: What each is shifted by, > 0.
        coordinates: m.
    """
    centres = np.array([0.0, value])
    fine = scan_points(law, centres, OUTERMOST)
    fine = fine[(law.cdf(-np.abs(fine)) > FAINT) & (law.cdf(-np.abs(fine - value)) > FAINT)]
    if len(fine) <= MOST_CELLS:
        return None
    whole, cells = _information(law, fine, centres), 2
    while True:
        cells *= 2
        edges = _without_empty(law, _edges(law, fine, centres, cells), centres)
        if cells >= MOST_CELLS or _information(law, edges, centres) >= (1.0 - LOST) * whole:
            break
    masses = interval_masses(law, edges, centres)
    return LabelSum(np.log(masses.lower[0]), np.log(masses.lower[1] / masses.upper[0]), coordinates)


def _edges(law: IIDCoordinates, fine: Array, centres: Array, cells: int) -> Array:
    """Edges where the loss changes, in proportion to the cube root of its density there: the least distortion.

    Panter and Dite (1951), "Quantization distortion in pulse-count modulation with nonuniform spacing of levels".
    """
    loss = np.asarray(law.logpdf(fine - centres[1])) - np.asarray(law.logpdf(fine))
    mass = interval_masses(law, fine, centres).upper.mean(axis=0)[1:-1]
    rise = np.cumsum(mass ** (1 / 3) * np.abs(np.diff(loss)) ** (2 / 3))
    return np.unique(fine[1 + np.searchsorted(rise, rise[-1] * np.arange(1, cells) / cells)])


def _without_empty(law: IIDCoordinates, edges: Array, centres: Array) -> Array:
    """The edges less those beside a cell whose lower bound of a mass is 0."""
    while (
        len(edges) and (empty := np.flatnonzero((interval_masses(law, edges, centres).lower <= 0.0).any(axis=0))).size
    ):
        edges = np.delete(edges, min(int(empty[0]), len(edges) - 1))
    return edges


def _information(law: IIDCoordinates, edges: Array, centres: Array) -> float:
    """The chi-square distance of the labels; a guide."""
    still, moved = interval_masses(law, edges, centres).upper
    return float(np.sum(np.square(moved - still) / still))
