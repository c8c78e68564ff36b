"""Powers of a distribution on the integers by FFT, after exponential tilting, with an explicit error bound.

A history of `count` independent draws from masses a_k has masses y = a * ... * a. The tilted masses
a_k e^(theta k) / M are convolved instead, so that the region of interest lies in the bulk and the float error is
relative to it: an error of 1e-9 on the tilted scale is 1e-9 of the Chernoff bound in the far tail.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from dpaudit.mechanisms.base import Array

Number = TypeVar("Number", np.float64, np.complex128)
UNIT = 2.0**-53
# Every path from an input to an output of a radix-2 FFT passes log2(size) butterflies, each of relative error at most
# u + gamma_4 (sqrt(2) + u) < 7 u with accurate twiddles (Higham 2002, Theorem 24.2 and its proof, read componentwise);
# doubled for the real and higher-radix passes of pocketfft.
BUTTERFLY = 16.0 * UNIT
LOG_VANISHING = -80.0  # log of powers of the spectrum that are taken for zero
SCAN = 2**17  # frequencies of the first look at a spectrum for sums over blocks
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
    depth = BUTTERFLY * math.log2(size) if block == 1 else 0.0
    alive = np.arange(size // 2 + 1 if block == 1 else 0)  # frequencies whose part in the spectrum does not vanish
    spectrum: NDArray[np.complex128] = np.ones(len(alive), dtype=np.complex128)
    log_scale, relative, total, vanished = 0.0, 0.0, 0, 0.0
    slope = np.zeros(len(alive))  # sum of count_i |F_i|^(count_i - 1) prod_others |F_j|^count_j
    for lattice, count in sorted(parts, key=lambda part: -part[1]):
        support = np.flatnonzero(lattice.masses > 0)
        places = lattice.first + support
        exponents = np.log(lattice.masses[support]) + theta * places
        top = float(exponents.max())
        log_m = top + math.log(float(np.exp(exponents - top).sum()))
        tilted = np.exp(exponents - log_m)
        # relative error of each tilted mass: its exponent is a sum of three rounded terms, then one exp
        relative += (
            count
            * 4.0
            * UNIT
            * (4.0 + float(np.abs(exponents).max()) + 2.0 * abs(theta) * float(np.abs(places).max()) + abs(log_m))
        )
        if block == 1:
            factor = fft.rfft(np.bincount(places % size, weights=tilted, minlength=size))
            if len(alive) < len(factor):
                factor = factor[alive]
        else:
            if not total:
                alive = _significant(tilted, places, size, LOG_VANISHING / count)
                spectrum, slope = np.ones(len(alive), dtype=np.complex128), np.zeros(len(alive))
                vanished += math.exp(LOG_VANISHING)
            factor = _frequencies(tilted, places, size, alive)
            depth = max(depth, (20.0 + 2.0 * math.log2(2 * len(places))) * UNIT)
        modulus = np.sqrt(factor.real**2 + factor.imag**2)
        if count > 1:
            floor = math.exp(LOG_VANISHING / count)
            kept = modulus > floor
            if not kept.all():
                alive, factor, modulus = alive[kept], factor[kept], modulus[kept]
                spectrum, slope = spectrum[kept], slope[kept]
            vanished += math.exp(count * math.log(floor + depth))
        largest = np.minimum(modulus + 2.0 * depth, 1.0)  # of what the true one is at most, and of the rounded one
        raised = _power(largest, count - 1)
        slope = slope * raised * largest + count * raised * np.abs(spectrum)
        spectrum = spectrum * _power(factor, count)
        log_scale += count * log_m
        total += count
    # |F^ - F| <= depth componentwise; the powers add 3 u each; then the inverse transform
    growth = math.exp(2.0 * total * depth)
    error = growth * ((depth + 3.0 * UNIT) * slope + 2.0 * depth * np.abs(spectrum))
    vanished *= growth
    weight = np.where((alive == 0) | (alive == size // 2), 1.0, 2.0)  # the half spectrum stands for both halves
    if block == 1:
        whole = np.zeros(size // 2 + 1, dtype=np.complex128)
        whole[alive] = spectrum
        values, most = np.roll(fft.irfft(whole, size), -(start % size)), 1.0
    else:
        values, most, rounding = _block_sums(spectrum * weight, alive, theta, start, size, block)
        error = most * (error + rounding * np.abs(spectrum))
        vanished *= most
    return Power(
        values=np.asarray(values),
        theta=theta,
        log_scale=log_scale,
        relative=relative + 4.0 * UNIT * abs(log_scale),
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


def _frequencies(
    masses: Array, places: NDArray[np.int64], size: int, alive: NDArray[np.int64]
) -> NDArray[np.complex128]:
    """Transform of the masses at some frequencies: angles reduced as integers, terms added in pairs.

    Angles below 2 pi are off by 2 units of it, a term by 16 roundings, and a level of the sum adds sqrt(2) of one.
    """
    width = 1 << (len(places) - 1).bit_length()
    rows = []
    for part in np.array_split(alive, 1 + len(alive) * width // 2**21):  # bound memory
        terms = np.zeros((len(part), width), dtype=np.complex128)
        terms[:, : len(places)] = masses * np.exp(-2j * math.pi / size * (np.outer(part, places) % size))
        while terms.shape[1] > 1:
            terms = terms[:, ::2] + terms[:, 1::2]
        rows.append(terms[:, 0])
    return np.concatenate(rows)


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
