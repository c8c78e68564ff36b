"""Laws of a sum V of integers, one for each independent part of an output: for the releases of a pass, for coordinates.

The integer is a function of the cell that the part lies in, so that V is one of the output and its laws under both
neighbours make a valid witness. They are convolution powers of exact cell masses, whose float error is included, modulo
a power of two.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpaudit.mechanisms.base import Array
from dpaudit.verify.pld.cells import MassBounds
from dpaudit.verify.pld.fourier import Lattice, Power, Tilted, mixed_power
from dpaudit.verify.samplers.base import Slots

# integers to a deviation of V without the record per root of their number, of several passes and of one, within these
FINENESS, ALONE, LEAST, MOST = 16.0, 64.0, 200.0, 2048.0
REACH, LARGEST = 1000.0, 2**20  # deviations of V that are told apart, and how many integers at most
# blocks of integers that are told apart no more: so many to a deviation below NEAR deviations above the mean of V, then
# longer by so much each, as the loss grows with log V at most; the transform's error is that of their number
BLOCKS, BELOW, NEAR, GROWTH = 50.0, 15.0, 25.0, 1.03
FARTHEST = 700.0  # log of a total of masses from above, at most: e^709 is infinite


@dataclass(frozen=True)
class Statistic:
    """An integer for each cell of a part, to be summed over all parts.

    Args:
        name: In words.
        labels: At least 0, below size/2, shape (cells,).
        fineness: Integers to a deviation of their sum V without the record.
        size: V is told modulo this power of two.
    """

    name: str
    labels: NDArray[np.int64]
    fineness: float
    size: int


def scale(parts: int, *, alone: bool) -> tuple[float, int]:
    """Integers to a deviation of the sum of so many parts, and the size modulo which it is told.

    Args:
        parts: How many are summed.
        alone: Whether the sum is all there is, so that the bound may be as sharp.
    """
    fineness = min(max((ALONE if alone else FINENESS) * math.sqrt(parts), LEAST), MOST)
    return fineness, min(1 << math.ceil(math.log2(REACH * fineness)), LARGEST)


def rounded_scores(values: Array, weight: Array, parts: int, fineness: float, largest: int) -> NDArray[np.int64]:
    """Values as integers from 0 to `largest`: `fineness` of them to a deviation of their sum; huge ones count alike.

    Args:
        values: Of the cells of one part.
        weight: Masses of these cells in the usual law.
        parts: How many are summed.
        fineness, largest: As above.
    """
    weight = weight / weight.sum()
    order = np.argsort(values)
    beyond = 1.0 - np.cumsum(weight[order])
    usual = values <= values[order[int(np.searchsorted(-beyond, -0.03 / parts))]]
    share = weight * usual / (weight @ usual)
    mean = float(share @ np.where(usual, values, 0.0))
    deviation = math.sqrt(parts * float(share @ np.where(usual, (values - mean) ** 2, 0.0)))
    unit = max(deviation, 1e-300) / fineness
    least = max(float(values.min()), mean - 0.5 * largest * unit)  # far below it is far above the other way about
    scaled = np.clip((values - least) / unit, 0.0, largest)
    return np.asarray(np.rint(scaled), dtype=np.int64)


def mass_bounds(
    masses: MassBounds, statistic: Statistic, laws: Sequence[Slots], usual: int
) -> list[tuple[Array, Array]]:
    """Masses of blocks of V from below and from above under each law: how many parts are around each centre.

    Args:
        masses: Of the cells of one part, around each centre.
        statistic: What is summed.
        laws: Mixtures of (weight, number of parts around each centre).
        usual: The law, by its place, about whose likeliest V the blocks are.
    """
    powers = {up: _laws(side, statistic, laws, upper=up) for up, side in ((False, masses.lower), (True, masses.upper))}
    most = int(np.argmax(powers[False][usual][0].values))
    start, blocks = most - int(BELOW * statistic.fineness), blocks_of(statistic)
    sides = [[_block_masses(*law, start, blocks, upper=up) for law in found] for up, found in powers.items()]
    return list(zip(*sides, strict=True))


def blocks_of(statistic: Statistic) -> NDArray[np.int64]:
    """Beginnings of the blocks of V, counted from BELOW deviations below its mean on."""
    short, near = max(1, int(statistic.fineness / BLOCKS)), int((BELOW + NEAR) * statistic.fineness)
    count = math.ceil(math.log(statistic.size / near) / math.log(GROWTH))
    far = np.rint(near * GROWTH ** np.arange(count)).astype(np.int64)
    return np.unique(np.concatenate([np.arange(0, near, short), far[far < statistic.size]]))


def label_laws(labels: NDArray[np.int64], masses: Array, *, upper: bool) -> list[Lattice]:
    """Laws of a part's integer, from bounds on the masses of its cells: their sums round, on the safe side.

    Args:
        labels: Integers of the cells, shape (cells,).
        masses: Around each centre, shape (centres, cells).
        upper: Whether they are bounds from above.
    """
    base = min(int(labels.min()), 0)
    drift = 2.0**-52 * float(np.bincount(labels - base).max()) * (1.0 if upper else -1.0)
    counted = [np.asarray(np.bincount(labels - base, weights=row), np.float64) for row in masses]
    return [Lattice(row * (1.0 + drift), base) for row in counted]


def _laws(masses: Array, statistic: Statistic, laws: Sequence[Slots], *, upper: bool) -> list[tuple[Power, float]]:
    """Every law of V modulo its size, from bounds on a part's cells around each centre, and its weight that is unknown.

    Nothing is known of a part of a mixture beyond the range of floats but that its mass is at most its weight.
    """
    ones = [Tilted.of(law, 0.0) for law in label_laws(statistic.labels, masses, upper=upper)]
    transformed = [(one, one.transform(statistic.size)) for one in ones]
    found = []
    for slots in laws:
        far = [sum(n * one.log_total for n, one in zip(counts, ones, strict=True)) > FARTHEST for _, counts in slots]
        known = [part for part, beyond in zip(slots, far, strict=True) if not beyond]
        unknown = sum(weight for (weight, _), beyond in zip(slots, far, strict=True) if beyond)
        found.append((mixed_power(transformed, known, statistic.size), unknown))
    return found


def _block_masses(power: Power, unknown: float, start: int, blocks: NDArray[np.int64], *, upper: bool) -> Array:
    """Bounds on the masses of blocks of V, counted from `start` on.

    The errors of a transform add up to at most sqrt(b) times their l2 norm over b integers (Cauchy-Schwarz).
    """
    sign, sizes = (1.0 if upper else -1.0), np.diff(blocks, append=len(power.values))
    error = np.minimum(sizes * power.error_sup, np.sqrt(sizes) * power.error_l2) * (1.0 + 1e-12)
    sums = np.add.reduceat(np.roll(power.values, -start), blocks)
    scale = math.exp(power.log_scale) * (1.0 + sign * (power.relative + 1e-15))
    total = np.maximum(sums + sign * error, 0.0) * scale + (unknown if upper else 0.0)
    # sums of at most LARGEST terms, and of a few parts
    return np.asarray(total * (1.0 + sign * 1e-9) + (1e-300 if upper else 0.0))
