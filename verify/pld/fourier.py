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
SPECTRUM_FLOOR = 1e-30  # powers of spectrum entries below this are set to zero
LOG_WRAP = -46.0  # log of the tilted mass that may lie outside a window, on each side


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
    at most 2 e^LOG_WRAP).
    """

    values: Array
    theta: float
    log_scale: float
    relative: float
    error_sup: float
    error_l2: float


def log_mgf(lattice: Lattice, thetas: Array) -> Array:
    """log sum_k a_k e^(theta k) for each theta."""
    support = np.flatnonzero(lattice.masses > 0)
    if len(support) > 4096:  # bound memory: the sum in blocks, in the log domain
        blocks = np.array_split(support, -(-len(support) // 4096))
        parts = [log_mgf(Lattice(lattice.masses[b[0] : b[-1] + 1], lattice.first + int(b[0])), thetas) for b in blocks]
        return np.asarray(np.logaddexp.reduce(np.stack(parts), axis=0))
    exponents = np.outer(thetas, lattice.first + support) + np.log(lattice.masses[support])
    top = exponents.max(axis=1)
    return np.asarray(top + np.log(np.exp(exponents - top[:, None]).sum(axis=1)))


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


def tilted_power(parts: Sequence[tuple[Lattice, int]], theta: float, start: int, size: int) -> Power:
    """Masses of the sum of `count` draws from each lattice, tilted by theta, on [start, start + size) with wrap-around.

    Args:
        parts: Lattices with the number of independent draws from each.
        theta: Tilt per integer.
        start: First integer of the window.
        size: Its length, a power of two.
    """
    depth = BUTTERFLY * math.log2(size)
    factors: list[NDArray[np.complex128]] = []
    log_scale, relative = 0.0, 0.0
    alive = np.ones(size // 2 + 1, dtype=np.bool_)
    for lattice, count in parts:
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
        factor = fft.rfft(np.bincount(places % size, weights=tilted, minlength=size))
        factors.append(factor)
        # a power below SPECTRUM_FLOOR, true and computed, is left out: of a long sum a few low frequencies stay
        least = max(SPECTRUM_FLOOR ** (1.0 / count) - 2.0 * depth, 0.0)
        alive &= factor.real**2 + factor.imag**2 >= least**2
        log_scale += count * log_m
    kept = np.flatnonzero(alive)
    spectrum, modulus, slope = np.ones(len(kept), dtype=np.complex128), np.ones(len(kept)), np.zeros(len(kept))
    for factor, (_, count) in zip(factors, parts, strict=True):
        values = factor[kept]
        spectrum = spectrum * _power(values, count)
        # |G^n - F^n| <= n max(|F|, |G|)^(n - 1) |G - F|, and no law's transform exceeds 1
        largest = np.minimum(np.sqrt(values.real**2 + values.imag**2) + 2.0 * depth, 1.0)
        raised = _power(largest, count - 1)
        slope = slope * raised * largest + count * raised * modulus
        modulus = modulus * raised * largest
    # |F^ - F| <= depth componentwise; the powers add 3 u each; then the inverse transform
    growth = math.exp(2.0 * sum(count for _, count in parts) * depth)
    error = growth * ((depth + 3.0 * UNIT) * slope + 2.0 * depth * modulus)
    left_out = growth * SPECTRUM_FLOOR * (size // 2 + 1 - len(kept))
    weight = np.full(size // 2 + 1, 2.0)  # the half spectrum stands for both halves, save the two real ends
    weight[0] = weight[-1] = 1.0
    whole = np.zeros(size // 2 + 1, dtype=np.complex128)
    whole[kept] = spectrum
    return Power(
        values=np.roll(fft.irfft(whole, size), -(start % size)),
        theta=theta,
        log_scale=log_scale,
        relative=relative + 4.0 * UNIT * abs(log_scale),
        error_sup=(float(weight[kept] @ error) + 2.0 * left_out) / size,
        error_l2=math.sqrt((float(weight[kept] @ error**2) + 2.0 * left_out * growth * SPECTRUM_FLOOR) / size),
    )


def decayed_sums(masses: Array, rate: float) -> Array:
    """sum_{k >= j} masses_k e^(-rate (k - j)) for every j, by blocks within which the weights stay in range.

    Args:
        masses: Nonnegative, shape (n,). Every sum has a relative error of at most n + 700 roundings.
        rate: Decay per integer; zero or less for no blocks.
    """
    length = len(masses)
    block = length if rate <= 0 else max(1, min(length, int(300.0 / rate)))
    result = np.empty(length)
    carry = 0.0
    for end in range(length, 0, -block):
        begin = max(0, end - block)
        weights = np.exp(-rate * np.arange(end - begin))
        sums = np.cumsum((masses[begin:end] * weights)[::-1])[::-1] / weights
        result[begin:end] = sums + carry * np.exp(-rate * np.arange(end - begin, 0, -1))
        carry = float(result[begin])
    return result
