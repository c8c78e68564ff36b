"""Balls: numbers with a proved error, from parameters read as the decimals they are written as."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from math import floor, inf, log10, nextafter
from typing import TypeVar

from flint import arb, ctx, fmpq

T = TypeVar("T")
PRECISION = 128
DIGITS = 15
SMALLEST_EXPONENT = -900  # of a decimal in a certificate


@dataclass(frozen=True)
class Unavailable:
    """Why the rigorous engine has no bound, in one sentence.

    Args:
        reason: What is missing.
    """

    reason: str


def all_known(parts: Sequence[T | Unavailable]) -> list[T] | Unavailable:
    """The parts, or why the first that is missing is."""
    missing = [part for part in parts if isinstance(part, Unavailable)]
    return missing[0] if missing else [part for part in parts if not isinstance(part, Unavailable)]


@contextmanager
def precision(bits: int = PRECISION) -> Iterator[None]:
    """Ball arithmetic at a precision, restored afterwards."""
    before = ctx.prec
    ctx.prec = bits
    try:
        yield
    finally:
        ctx.prec = before


def ball(value: float | int | Fraction | str) -> arb:
    """The number that is written, as a ball; a float is the decimal that prints it.

    >>> ball(0.1).overlaps(arb(1) / 10)
    True
    """
    exact = value if isinstance(value, (int, Fraction)) else Fraction(str(value))
    return arb(fmpq(exact.numerator, exact.denominator))


def total(terms: Iterator[arb] | list[arb]) -> arb:
    """Sum of balls; 0 of none."""
    return sum(terms, arb(0))


def float_below(value: arb) -> float:
    """A float that is at most everything in the ball."""
    return _directed(value, -1)


def float_above(value: arb) -> float:
    """A float that is at least everything in the ball; inf where the ball is not finite."""
    return _directed(value, 1)


def _directed(value: arb, sign: int) -> float:
    if not value.is_finite():
        return sign * inf
    found = float(value.upper() if sign > 0 else value.lower())
    while not (arb(found) >= value if sign > 0 else arb(found) <= value):
        found = nextafter(found, sign * inf)
    return found


def decimal_below(value: arb) -> str:
    """A decimal of DIGITS digits that is at most everything in the ball, for certificates."""
    return _decimal(value, -1)


def decimal_above(value: arb) -> str:
    """A decimal of DIGITS digits that is at least everything in the ball."""
    return _decimal(value, 1)


def _decimal(value: arb, sign: int) -> str:
    end = value.upper() if sign > 0 else value.lower()
    if end == 0:
        return "0"
    mantissa, exponent = end.man_exp()
    exact = Fraction(int(mantissa)) * Fraction(2) ** int(exponent)
    size = abs(exact)
    # numerators and denominators may exceed floats
    order = floor((size.numerator.bit_length() - size.denominator.bit_length()) * log10(2)) - DIGITS
    if order < SMALLEST_EXPONENT:
        return (
            f"1e{SMALLEST_EXPONENT}"
            if end > 0 and sign > 0
            else "0"
            if end > 0 or sign > 0
            else f"-1e{SMALLEST_EXPONENT}"
        )
    scaled = exact / Fraction(10) ** order
    rounded = -((-scaled.numerator) // scaled.denominator) if sign > 0 else scaled.numerator // scaled.denominator
    return f"{rounded}e{order}"
