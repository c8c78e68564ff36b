"""Laws of sums of integer scores, in whole numbers: masses are multiples of 2^-bits, rounded down.

A score below -W counts as -W, and a sum that exceeds W is left out, as is what rounding takes. Both are done after
every addition, in one fixed order, so that the sum is a function of the output, the same for every law of the output:
what is left out belongs to the event {sum >= t} whatever t is. So the masses at t and above bound its probability
below, and 1 less the masses under t bounds it above; products of whole numbers are exact, and no error has a size.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from flint import arb, fmpz, fmpz_poly

GROWTH = 350.0
FAR = 10**6  # no mass has as many bits


@dataclass(frozen=True)
class ScoreWindow:
    """Scores of -size..size, and the resolution of their masses.

    Args:
        size: W, at least 1.
        bits: Masses are multiples of 2^-bits.

    >>> window = ScoreWindow(size=3, bits=64)
    >>> coin = window.law([arb(1) / 2, arb(1) / 2], [-1, 1])
    >>> [mass * 4 == 2**64 for mass in window.masses(window.repeated(coin, 2))][1::2]
    [True, False, True]
    """

    size: int
    bits: int

    def floor(self, mass: arb) -> fmpz:
        """The mass in units of 2^-bits, rounded down; 0 where nothing is known."""
        least = mass.lower()
        if not (mass.is_finite() and least > 0):
            return fmpz(0)
        digits, exponent = least.man_exp()
        shift = int(exponent) + self.bits
        return digits << shift if shift > 0 else digits >> min(-shift, FAR)

    def law(self, masses: Sequence[arb], scores: Sequence[int]) -> fmpz_poly:
        """The law of one score; coefficient i is the mass of score i - size.

        Args:
            masses: Of the cells.
            scores: Of the cells, clamped to the window.
        """
        return self.gathered([self.floor(mass) for mass in masses], scores)

    def gathered(self, masses: Sequence[fmpz], scores: Sequence[int]) -> fmpz_poly:
        """The law of one score from masses in units of 2^-bits, as `law`."""
        found = [fmpz(0)] * (2 * self.size + 1)
        for mass, score in zip(masses, scores, strict=True):
            found[max(-self.size, min(self.size, score)) + self.size] += mass
        return fmpz_poly(found)

    def share(self, probability: arb, law: fmpz_poly) -> fmpz_poly:
        """The part of a mixture that has this probability."""
        return self.floor(probability) * law // (1 << self.bits)

    def added(self, one: fmpz_poly, other: fmpz_poly) -> fmpz_poly:
        """Law of the sum of two independent scores."""
        product = one.mul_low(other, 3 * self.size + 1)
        low = fmpz_poly([product.truncate(self.size)(1)])
        return (product.right_shift(self.size) + low) // (1 << self.bits)

    def repeated(self, law: fmpz_poly, count: int) -> fmpz_poly:
        """Law of the sum of `count` independent scores, by squaring from the leading bit on."""
        total = law
        for bit in f"{count:b}"[1:]:
            total = self.added(total, total)
            if bit == "1":
                total = self.added(total, law)
        return total

    def masses(self, law: fmpz_poly) -> list[fmpz]:
        """Of -size..size, in units of 2^-bits."""
        found = law.coeffs()
        return found + [fmpz(0)] * (2 * self.size + 1 - len(found))

    def ball(self, mass: fmpz) -> arb:
        """A mass, or a sum of masses, as a probability."""
        return arb(mass) / (1 << self.bits)


def resolution(delta: float, growth: float = 0.0) -> int:
    """Bits that a bound on a small delta takes: 80 beyond it, of which steps and scores take at most some 45.

    Args:
        delta: In [0, 1); below 1e-60 it counts as that.
        growth: Nats by which an error is multiplied; GROWTH at most are made up for.
    """
    return 80 + fmpz(int(1 / max(delta, 1e-60))).bit_length() + int(1.45 * min(growth, GROWTH))
