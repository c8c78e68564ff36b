"""Laws of sums of integer scores as polynomials with ball coefficients, folded into a window.

A score outside -W..W counts as the nearest end. Folding after every addition, in one fixed order, keeps the total a
function of the output: the same for every law of the output, so that probabilities of {total >= t} under two laws are
those of one event (post-processing). For upper bounds on delta what is too high is left out and counts as infinite.
"""

from collections.abc import Sequence

from flint import arb, arb_poly


def score_law(masses: Sequence[arb], scores: Sequence[int], window: int) -> arb_poly:
    """The law of one score; coefficient i is the mass of score i - window.

    Args:
        masses: Of the cells.
        scores: Of the cells, clamped to the window.
        window: W >= 1.
    """
    total = [arb(0)] * (2 * window + 1)
    for mass, score in zip(masses, scores, strict=True):
        total[max(-window, min(window, score)) + window] += mass
    return arb_poly(total)


def added(one: arb_poly, other: arb_poly, window: int, *, keep: bool = True) -> arb_poly:
    """Law of the folded sum of two independent scores.

    Args:
        one, other: Laws on the same window.
        window: W.
        keep: Whether what exceeds W counts as W; else it is left out.
    """
    product = one * other
    middle = product.right_shift(window).truncate(2 * window + 1) + arb_poly([product.truncate(window)(1)])
    if keep:
        middle += arb_poly([product.right_shift(3 * window + 1)(1)]).left_shift(2 * window)
    return middle


def repeated(law: arb_poly, count: int, window: int, *, keep: bool = True) -> arb_poly:
    """Law of the sum of `count` independent scores, by squaring from the leading bit on."""
    total = law
    for bit in f"{count:b}"[1:]:
        total = added(total, total, window, keep=keep)
        if bit == "1":
            total = added(total, law, window, keep=keep)
    return total


def coefficients(law: arb_poly, window: int) -> list[arb]:
    """Masses of -W..W."""
    found = law.coeffs()
    return found + [arb(0)] * (2 * window + 1 - len(found))
