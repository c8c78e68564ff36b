"""Powers of a distribution on the integers by FFT, after exponential tilting, with an explicit error bound.

A history of `count` independent draws from masses a_k has masses y = a * ... * a. The tilted masses
a_k e^(theta k) / M are convolved instead, so that the region of interest lies in the bulk and the float error is
relative to it: an error of 1e-9 on the tilted scale is 1e-9 of the Chernoff bound in the far tail.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from dpaudit.mechanisms.base import Array
from dpaudit.mechanisms.numerics import UNIT

Number = TypeVar("Number", np.float64, np.complex128)
# Every path from an input to an output of a radix-2 FFT passes log2(size) butterflies, each of relative error at most
# u + gamma_4 (sqrt(2) + u) < 7 u with accurate twiddles (Higham 2002, Theorem 24.2 and its proof, read componentwise);
# doubled for the real and higher-radix passes of pocketfft.
BUTTERFLY = 16.0 * UNIT
LOG_VANISHING = -80.0  # log of powers of the spectrum that are taken for zero
SCAN = 2**17  # frequencies of the first look at a spectrum for sums over blocks
LONG, ROW = 2**12, 64  # places of a law that is summed in rows first, and those of a row
WHOLE = 2**22  # size up to which a transform is taken whole, where most of its frequencies would take longer
LOG_WRAP = -46.0  # log of the tilted mass that may lie outside a window, on each side
LOG_LEAST = -745.0  # e to it is the smallest float


@dataclass(frozen=True)
class Lattice:
    """Nonnegative masses on the integers first, first + 1, ...; they need not sum to one."""

    masses: Array
    first: int


@dataclass(frozen=True)
class Power:
    """Tilted masses of a sum on a window of integers, wrapped around, and how far each may be from the truth.

    The mass of integer s is exp(log_scale - theta s) times `values[s - start]`, up to the relative error
    `relative` of the inputs' tilting, the absolute errors below on the values, and wrapped mass (nonnegative, in all
    at most 2 e^LOG_WRAP). For blocks of integers, s is the first of its block, and wrapped mass at most `weight` times
    as much.
    """

    values: Array
    theta: float
    log_scale: float
    relative: float
    error_sup: float
    error_l2: float
    weight: float = 1.0


def log_mgf(lattice: Lattice, thetas: Array) -> Array:
    """log sum_k a_k e^(theta k) for each theta."""
    support = np.flatnonzero(lattice.masses > 0)
    if len(support) > 4096:
        return _long_log_mgf(
            Lattice(lattice.masses[support[0] : support[-1] + 1], lattice.first + int(support[0])), thetas
        )
    exponents = np.outer(thetas, lattice.first + support) + np.log(lattice.masses[support])
    top = exponents.max(axis=1)
    return np.asarray(top + np.log(np.exp(exponents - top[:, None]).sum(axis=1)))


def _long_log_mgf(lattice: Lattice, thetas: Array) -> Array:
    """The same in rows of a power of two, e^(theta (row + j)) = e^(theta row) e^(theta j): an exponential per row.

    Rows are so short that e^(theta j) stays within e^300, and are divided by their largest mass: what then vanishes is
    less than e^-400 of its row's sum.
    """
    found = np.empty(len(thetas))
    fitting = np.floor(np.log2(300.0 / np.maximum(np.abs(thetas), 300.0 / 64.0)))
    for power in np.unique(fitting):
        width, chosen = 1 << max(0, int(power)), fitting == power
        rows = np.pad(lattice.masses, (0, -len(lattice.masses) % width)).reshape(-1, width)
        tops = rows.max(axis=1)
        rows, places, tops = rows[tops > 0], width * np.flatnonzero(tops > 0), tops[tops > 0]
        sums = (rows / tops[:, None]) @ np.exp(np.outer(np.arange(width), thetas[chosen]))
        exponents = np.log(sums) + np.log(tops)[:, None] + np.outer(lattice.first + places, thetas[chosen])
        top = exponents.max(axis=0)
        found[chosen] = top + np.log(np.exp(exponents - top).sum(axis=0))
    return found


def chernoff_window(thetas: Array, log_mgfs: Array, index: int, log_outside: float = LOG_WRAP) -> tuple[float, float]:
    """An interval outside which the sum tilted by thetas[index] has mass at most e^log_outside on each side.

    Chernoff: the tilted mass above U is at most exp(K(t) - K(theta) - (t - theta) U) for every t > theta.

    Args:
        thetas: Increasing tilts.
        log_mgfs: log-moment generating function K of the whole sum at each of them.
        index: Which tilt.
        log_outside: Log of that mass.
    """
    gap, rise = thetas - thetas[index], log_mgfs - log_mgfs[index]
    above, below = gap > 0, gap < 0
    high = np.min((rise[above] - log_outside) / gap[above])
    low = np.max((rise[below] - log_outside) / gap[below])
    return float(low), float(high)


def _power(base: NDArray[Number], count: int) -> NDArray[Number]:
    """base^count by repeated squaring: count - 1 multiplications' worth of relative error sqrt(5) u each."""
    result: NDArray[Number] | None = None
    square = base
    while count:
        if count & 1:
            result = square if result is None else result * square
        count >>= 1
        if count:
            square = square * square
    return np.ones_like(base) if result is None else result


@dataclass(frozen=True)
class Tilted:
    """Masses of one draw, tilted and divided by their total.

    Args:
        places: Of the positive ones.
        masses: Theirs.
        log_total: What they were divided by.
        relative: Error of each of them.
    """

    places: NDArray[np.int64]
    masses: Array
    log_total: float
    relative: float

    @classmethod
    def of(cls, lattice: Lattice, theta: float) -> Self:
        """Of a lattice and a tilt per integer."""
        support = np.flatnonzero(lattice.masses > 0)
        places = lattice.first + support
        exponents = np.log(lattice.masses[support]) + theta * places
        top = float(exponents.max())
        log_m = top + math.log(float(np.exp(exponents - top).sum()))
        # relative error of each tilted mass: its exponent is a sum of three rounded terms, then one exp
        largest, farthest = float(np.abs(exponents).max()), float(np.abs(places).max())
        relative = 4.0 * UNIT * (4.0 + largest + 2.0 * abs(theta) * farthest + abs(log_m))
        return cls(places, np.exp(exponents - log_m), log_m, relative)

    def transform(self, size: int) -> NDArray[np.complex128]:
        """At the frequencies 0, ..., size/2."""
        return np.asarray(fft.rfft(np.bincount(self.places % size, weights=self.masses, minlength=size)))


class _Product:
    """A product of powers of transforms, at the frequencies where it does not vanish, with its error.

    Args:
        alive: Frequencies.
        depth: Bound on the componentwise error of every transform.
        vanished: Error that is there before.
    """

    def __init__(self, alive: NDArray[np.int64], depth: float, vanished: float = 0.0) -> None:
        self.alive, self._depth, self._vanished = alive, depth, vanished
        self._deepest, self._growth, self._empty = depth, 0.0, True
        self.values: NDArray[np.complex128] = np.ones(len(alive), dtype=np.complex128)
        # sum of (depth_i + 3 u) count_i |F_i|^(count_i - 1) prod_others |F_j|^count_j, a factor after the other
        self._error = np.zeros(len(alive))

    def times(self, factor: NDArray[np.complex128], count: int, depth: float = 0.0) -> None:
        """Multiply by a transform, at the frequencies that are alive, to the power `count`.

        Args:
            factor: The transform.
            count: Draws.
            depth: Its error, if that is larger than that of every transform.
        """
        depth = max(self._depth, depth)
        self._deepest, self._growth = max(self._deepest, depth), self._growth + 2.0 * count * depth
        modulus = np.sqrt(factor.real**2 + factor.imag**2)
        if count > 1:
            floor = math.exp(LOG_VANISHING / count)
            kept = modulus > floor
            if not kept.all():
                self.alive, factor, modulus = self.alive[kept], factor[kept], modulus[kept]
                self.values, self._error = self.values[kept], self._error[kept]
            self._vanished += math.exp(count * math.log(floor + depth))
        largest = np.minimum(modulus + 2.0 * depth, 1.0)  # of what the true one is at most, and of the rounded one
        raised = _power(largest, count - 1)
        power = _power(factor, count)
        own = (depth + 3.0 * UNIT) * count * raised
        if not self._empty:
            self._error = self._error * raised * largest + own * np.abs(self.values)
            self.values = self.values * power
        else:
            self._error, self.values, self._empty = own, power, False

    def error(self) -> tuple[Array, float]:
        """Of each value, |F^_i - F_i| <= depth_i and 3 u more for the powers; and of each that is taken for zero."""
        growth = math.exp(self._growth)
        error = growth * (self._error + 2.0 * self._deepest * np.abs(self.values))
        return error, growth * self._vanished


def tilted_power(parts: Sequence[tuple[Lattice, int]], theta: float, start: int, size: int, block: int = 1) -> Power:
    """Masses of the sum of `count` draws from each lattice, tilted by theta, on [start, start + size) with wrap-around.

    Args:
        parts: Lattices with the number of independent draws from each.
        theta: Tilt per integer.
        start: First integer of the window.
        size: Its length, a power of two.
        block: Integers that are counted together, a power of two. Sums over blocks come from the spectrum itself, of
            which a long sum has a few frequencies, by a transform of size/block places: for many draws.
    """
    ordered = [(Tilted.of(lattice, theta), count) for lattice, count in sorted(parts, key=lambda part: -part[1])]
    log_scale = sum(count * one.log_total for one, count in ordered)
    relative = sum(count * one.relative for one, count in ordered) + 4.0 * UNIT * abs(log_scale)
    if block == 1:
        product = _Product(np.arange(size // 2 + 1), BUTTERFLY * math.log2(size))
        for one, count in ordered:
            product.times(one.transform(size)[product.alive], count)
    else:
        first, count = ordered[0]
        frequencies = _significant(first.masses, first.places, size, LOG_VANISHING / count)
        product = _Product(frequencies, 0.0, math.exp(LOG_VANISHING))
        for one, count in ordered:
            transform, depth = _frequencies(one, size, product.alive)
            product.times(transform, count, depth)
    error, vanished = product.error()
    if block == 1:
        return inverse(product.alive, product.values, error, vanished, start, size, (theta, log_scale, relative))
    weight = _both_halves(product.alive, size)
    values, most, rounding = _block_sums(product.values * weight, product.alive, theta, start, size, block)
    error = most * (error + rounding * np.abs(product.values))
    return _power_of(values, weight, error, most * vanished, size, (theta, log_scale, relative), most)


def mixed_power(
    ones: Sequence[tuple[Tilted, NDArray[np.complex128]]],
    parts: Sequence[tuple[float, Sequence[int]]],
    size: int,
) -> Power:
    """Masses of a mixture of sums of draws on [0, size) with wrap-around, by one inverse transform.

    Args:
        ones: Masses of one draw, not tilted, and their transforms of this size.
        parts: Positive weights, each with the number of independent draws from each.
        size: Length of the window, a power of two.
    """
    spectrum, error, vanished = np.zeros(size // 2 + 1, dtype=np.complex128), np.zeros(size // 2 + 1), 0.0
    logs = [sum(n * one.log_total for n, (one, _) in zip(counts, ones, strict=True)) for _, counts in parts]
    log_scale = max(logs, default=0.0)
    relative = 0.0
    for (weight, counts), log in zip(parts, logs, strict=True):
        drawn = sorted(((n, i) for i, n in enumerate(counts) if n), reverse=True)
        product = _Product(np.arange(size // 2 + 1), BUTTERFLY * math.log2(size))
        for n, i in drawn:
            transform = ones[i][1]
            product.times(transform if len(product.alive) == len(transform) else transform[product.alive], n)
        share = weight * math.exp(log - log_scale)
        own, lost = product.error()
        spectrum[product.alive] += share * product.values
        # the sum over parts is rounded once for each, and the share a few times
        error[product.alive] += share * (own + (len(parts) + 8.0 + 4.0 * abs(log)) * UNIT * np.abs(product.values))
        vanished += share * lost
        relative = max(relative, sum(n * ones[i][0].relative for n, i in drawn) + 4.0 * UNIT * abs(log))
    every = np.arange(size // 2 + 1)
    return inverse(every, spectrum, error * (1.0 + len(parts) * UNIT), vanished, 0, size, (0.0, log_scale, relative))


def _both_halves(alive: NDArray[np.int64], size: int) -> Array:
    """How often each frequency of the half spectrum counts, which stands for both halves."""
    return np.where((alive == 0) | (alive == size // 2), 1.0, 2.0)


def inverse(
    alive: NDArray[np.int64],
    spectrum: NDArray[np.complex128],
    error: Array,
    vanished: float,
    start: int,
    size: int,
    scales: tuple[float, float, float],
) -> Power:
    """What has a spectrum, whose part that is not alive is 0.

    Args:
        alive: Frequencies.
        spectrum: At them.
        error: How far each value may be off.
        vanished: How far those may that are taken for 0.
        start: First integer of the window.
        size: Its length.
        scales: Tilt, log of what the values were divided by, and their relative error.
    """
    if len(alive) < size // 2 + 1:
        whole = np.zeros(size // 2 + 1, dtype=np.complex128)
        whole[alive] = spectrum
        spectrum = whole
    values = fft.irfft(spectrum, size)
    if start % size:
        values = np.roll(values, -(start % size))
    return _power_of(values, _both_halves(alive, size), error, vanished, size, scales)


def _power_of(
    values: Array,
    weight: Array,
    error: Array,
    vanished: float,
    size: int,
    scales: tuple[float, float, float],
    most: float = 1.0,
) -> Power:
    """Values of an inverse transform, from errors of the spectrum; `scales` are theta, log_scale and relative."""
    theta, log_scale, relative = scales
    return Power(
        values=np.asarray(values),
        theta=theta,
        log_scale=log_scale,
        relative=relative,
        error_sup=float((weight * error).sum()) / size + vanished,
        error_l2=math.sqrt(float((weight * error**2).sum()) / size) + vanished,
        weight=most,
    )


def _significant(masses: Array, places: NDArray[np.int64], size: int, log_limit: float) -> NDArray[np.int64]:
    """Frequencies k <= size/2, among them all at which the transform F of the masses may exceed e^log_limit in size.

    G = |F|^2 is the mean of cos(w D), D the difference of two independent places, so |G''| <= E D^2 <= 2 E (place-c)^2
    for every c, and within d of the grid's point w_j it is at most G(w_j) + d |G'(w_j)| + d^2 E (place - c)^2.
    """
    away = places - np.rint(masses @ places / masses.sum()).astype(np.int64)
    half = math.pi / SCAN
    plain, moment = (
        fft.rfft(np.bincount(away % SCAN, weights=masses * weight, minlength=SCAN)) for weight in (1.0, away)
    )
    square = float(masses @ np.square(away.astype(np.float64)))
    most = np.square(np.abs(plain)) + half * np.abs(2.0 * (moment * plain.conj()).imag) + half**2 * square
    error = 8.0 * BUTTERFLY * math.log2(SCAN) * (1.0 + half * math.sqrt(square))
    at = np.flatnonzero(most * (1.0 + 1e-12) + error >= math.exp(2.0 * log_limit))
    ratio = size / SCAN
    first = np.maximum(np.floor((at - 0.5) * ratio), 0.0).astype(np.int64)
    last = np.minimum(np.ceil((at + 0.5) * ratio), size // 2).astype(np.int64)
    found = [np.arange(low, high + 1) for low, high in zip(first, last, strict=True)]
    return np.unique(np.concatenate([np.zeros(1, dtype=np.int64), *found]))


def _frequencies(one: Tilted, size: int, alive: NDArray[np.int64]) -> tuple[NDArray[np.complex128], float]:
    """Transform of the masses at some frequencies: angles reduced as integers, terms added in pairs.

    Angles below 2 pi are off by 2 units of it, a term by 16 roundings, and a level of the sum adds sqrt(2) of one.
    Long laws are summed in rows first, by a matrix product that is off by a rounding for each place of a row.

    Args:
        one: The masses.
        size: Of the whole transform.
        alive: The frequencies.

    Returns:
        The transform, and how far each value may be off.
    """
    first, span = int(one.places[0]), int(one.places[-1] - one.places[0]) + 1
    width = ROW if len(one.places) > LONG and span < 4 * len(one.places) else 1
    sums = -(-span // width) if width > 1 else len(one.places)
    if size <= WHOLE and sums * len(alive) > size * math.log2(size):
        return one.transform(size)[alive], BUTTERFLY * math.log2(size)
    starts, masses = one.places, one.masses[:, None]
    if width > 1:
        starts = first + width * np.arange(sums)
        rows = np.bincount(one.places - first, one.masses, width * len(starts))
        masses = np.asarray(rows, dtype=np.float64).reshape(-1, width)
    pairs = 1 << (len(starts) - 1).bit_length()
    found = []
    for part in np.array_split(alive, 1 + len(alive) * pairs // 2**21):  # bound memory
        row, turned = _rotations(np.arange(width), part, size), _rotations(starts, part, size)
        terms = np.zeros((pairs, len(part)), dtype=np.complex128)
        terms[: len(starts)] = turned * (masses @ row.real + 1j * (masses @ row.imag))
        while len(terms) > 1:
            terms = terms[::2] + terms[1::2]
        found.append(terms[0])
    inner = 0.0 if width == 1 else width + 20.0
    return np.concatenate(found), (20.0 + inner + 2.0 * math.log2(2 * len(one.places))) * UNIT


def _rotations(steps: NDArray[np.int64], frequencies: NDArray[np.int64], size: int) -> NDArray[np.complex128]:
    """e^(-2 pi i steps frequencies/size), shape (steps, frequencies)."""
    angle = 2.0 * math.pi / size * (np.outer(steps, frequencies) % size)
    turned = np.empty(angle.shape, dtype=np.complex128)
    turned.real, turned.imag = np.cos(angle), -np.sin(angle)
    return turned


def _block_sums(
    spectrum: NDArray[np.complex128], alive: NDArray[np.int64], theta: float, start: int, size: int, block: int
) -> tuple[Array, float, float]:
    """sum over b < block of e^(-theta b) y(start + j block + b) for every j, from some frequencies of y.

    With z = e^(-theta + 2 pi i k/size) the sum over b of z^b is the product of 1 + z^(2^i), i < log2(block): a factor
    for each frequency k, and frequencies apart by size/block then coincide. No cosine has a larger argument than 2 pi,
    as k times an integer is reduced modulo size first.

    Returns:
        The sums; the factor at k = 0, which no other exceeds in size, and no weight e^(-theta b) either; and the
        rounding of a factor and of all that follows, in units of it.
    """
    turn = 2.0 * math.pi / size
    levels = [1 << i for i in range(block.bit_length() - 1)]
    factor = spectrum * np.exp(1j * turn * (alive * (start % size) % size))
    for level in levels:
        factor *= 1.0 + math.exp(-theta * level) * np.exp(1j * turn * (alive * level % size))
    places = size // block
    merged = np.zeros(places, dtype=np.complex128)
    np.add.at(merged, alive % places, factor)
    most = math.prod(1.0 + math.exp(-theta * level) for level in levels)
    # an angle below 2 pi is off by 4 units of 2 pi, and every factor by a few; up to block/2 + 1 terms coincide
    rounding = (64.0 * (len(levels) + 1) + block) * UNIT + 2.0 * BUTTERFLY * math.log2(places)
    return fft.ifft(merged).real / block, most, rounding


def decayed_sums(masses: Array, rate: float) -> Array:
    """sum_{k >= j} masses_k e^(-rate (k - j)) for every j, by blocks within which the weights stay in range.

    Args:
        masses: Nonnegative, shape (n,). Every sum has a relative error of at most n + 700 roundings.
        rate: Decay per integer; zero or less for no blocks.
    """
    length = len(masses)
    block = length if rate <= 0 else max(1, min(length, int(300.0 / rate)))
    rows = np.pad(masses, (-length % block, 0)).reshape(-1, block)
    weights = np.exp(-rate * np.arange(block))
    sums = np.cumsum((rows * weights)[:, ::-1], axis=1)[:, ::-1] / weights
    if len(rows) > 1:  # what follows a row, c_i = sums_(i+1, 0) + c_(i+1) e^(-rate block), as far as floats go
        first, following, decay = np.append(sums[1:, 0], 0.0), np.zeros(len(rows)), math.exp(-rate * block)
        for _ in range(math.ceil(-LOG_LEAST / (rate * block)) + 1):
            following = first + decay * np.append(following[1:], 0.0)
        sums += following[:, None] * np.exp(-rate * np.arange(block, 0, -1))
    return np.asarray(sums.reshape(-1)[-length:])
