"""The regularized incomplete beta function of two equal parameters: one coordinate of a uniform direction.

In n dimensions the coordinate W has density c (1 - w^2)^(a-1), a = (n-1)/2, and P(W > w) = I_a((1-w)/2). With
1 - w^2 = e^-(u^2/b), b = a - 1/4, the upper tail for w >= 0 is

    P(W > w) = C int over v >= u of e^-(v^2) s(v^4/(4 b^2)) dv,  s(y) = (sinh x/x)^(-1/2), x^2 = y,

and half of that from u = 0 on is 1/2. As sinh x/x is the product of 1 + y/(k pi)^2 over k >= 1, s is a product of
completely monotone functions of y, hence one itself: its Taylor polynomials lie above and below it by turns, at all
y >= 0. The ratio of the integrals of v^(2j) and v^(2j-2) is at most u^2 + j, so the terms up to y^K leave a relative
error of at most TERMS[K+1] ((u^2 + 2K + 2)/(2b))^(2K+2).
"""

import math

import numpy as np
from scipy.special import betainc, erfc

from dpaudit.mechanisms.base import Array

# of (sinh x/x)^(-1/2) in powers of -x^2
TERMS = (1.0, 1 / 12, 1 / 160, 61 / 120960, 1261 / 29030400, 79 / 20275200)
FAR = 800.0  # u^2 from which on a tail is no float
LEFT_OUT = 5e-14  # relative error of the series, in the tail and at 0
LEAST = 5000  # n from which on the series has it; coordinates beyond 1/2 then have tails below 1e-300


def equal_beta(dimension: int, z: Array) -> Array:
    """I_a(z), a = (n-1)/2; what it is off is told in `radial_tails.BETA_ERROR`, besides 1e-300.

    Args:
        dimension: n >= 2.
        z: In [0, 1].
    """
    if dimension < LEAST:
        return np.asarray(betainc(0.5 * (dimension - 1), 0.5 * (dimension - 1), z))
    b = 0.25 * (2 * dimension - 3)
    wanted = (k for k in range(5) if TERMS[k + 1] * ((FAR + 2 * k + 2) / (2 * b)) ** (2 * k + 2) <= LEFT_OUT)
    most = next(wanted)
    w = 1.0 - 2.0 * np.minimum(z, 1.0 - z)  # exact where it is at most 1/2
    with np.errstate(divide="ignore", under="ignore"):
        square = np.minimum(-b * np.log1p(-w * w), FAR)
        tail = 0.5 * _series(np.sqrt(square), np.exp(-square), b, most) / _series(0.0, 1.0, b, most)
    return np.asarray(np.where(z <= 0.5, tail, 1.0 - tail))


def _series(u: Array | float, power: Array | float, b: float, most: int) -> Array:
    """The integral over v >= u, with e^-(u^2), by the recurrence of the integrals of even powers."""
    square, power = u * u, 0.5 * u * power
    part: Array = 0.5 * math.sqrt(math.pi) * erfc(u)
    total = part
    for k in range(1, most + 1):
        for j in (2 * k - 1, 2 * k):
            part, power = power + (j - 0.5) * part, power * square
        total = total + TERMS[k] * (-0.25 / b**2) ** k * part
    return np.asarray(total)
