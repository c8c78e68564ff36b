"""Moments of the privacy loss of one shifted coordinate, in balls: the oracle of `verify/pld/coordinate_moments.py`."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from flint import acb, arb

from dpaudit.verify.rigorous.balls import PRECISION, precision, total

EVALUATIONS = 30_000  # of the integrand on one panel
Complex = Callable[[acb, bool], acb]


@dataclass(frozen=True)
class Density:
    """A symmetric density on the line.

    Args:
        minus_log: z -> -log of the density up to a constant, at a complex z right of 0, as (z, analytic) -> ball.
        norm: The density is e^(-minus_log(|x|))/norm.
        length: A typical size, for the first panels.
        tail: x >= 0 -> P(X > x).
        power: beta of exp(-|x|^beta), None where the density falls like |x|^-(k+1).
    """

    minus_log: Complex
    norm: arb
    length: arb
    tail: Callable[[arb], arb]
    power: arb | None


def power_density(beta: arb, scale: arb) -> Density:
    """exp(-(|x|/scale)^beta), beta >= 1."""

    def minus_log(z: acb, analytic: bool) -> acb:
        ratio = z / acb(scale)
        if beta.is_integer():
            return ratio ** int(float(beta))
        if ratio.contains(0) and not analytic:  # |z^beta| <= |z|^beta
            size = arb(0, ratio.abs_upper() ** beta)
            return acb(size, size)
        return (acb(beta) * ratio.log(analytic=analytic)).exp()

    def tail(x: arb) -> arb:
        return ((x / scale) ** beta).gamma_upper(1 / beta, 1) / 2

    return Density(minus_log, 2 * scale * (1 + 1 / beta).gamma(), scale, tail, beta)


def lomax_density(k: arb, theta: arb) -> Density:
    """(1 + theta |x|)^-(k+1)."""
    return Density(
        lambda z, analytic: (acb(k) + 1) * (1 + acb(theta) * z).log(analytic=analytic),
        2 / (k * theta),
        1 / theta / (k + 1),
        lambda x: (1 + theta * x) ** -k / 2,
        None,
    )


def coordinate_moment(law: Density, shift: arb, eta: arb, digits: int = 12) -> arb:
    """Ball around E_Q[(dP/dQ)^eta], Q centred at 0 and P at the shift, eta >= 1.

    The line is cut at the kinks 0 and shift, at doublings and halvings of the law's lengths around them and of 1/beta
    (so that no panel sees two scales), and integrated by acb.integral, whose error is proved. Beyond the last panel:

    - Left of 0 the ratio is at most 1 and rises to 1 or falls from its value at the end.
    - exp(-(x/a)^beta) laws, right: where eta (1 - shift/x)^(beta-1) >= eta - 1/2, from some x on, the exponent's slope
      is at most -beta x^(beta-1)/(2 a^beta), which falls.
    - gamma-plrv-iid, right: the ratio falls to 1 from its value at the end.

    Args:
        law: Of the noise.
        shift: s > 0.
        eta: Order, at least 1.
        digits: Relative accuracy that is aimed at.
    """
    with precision(PRECISION):
        panels, left, inside, right = _panels(law, shift, eta), *_integrands(law, shift, eta)

        def value(x: arb) -> acb:
            return (left if x < 0 else inside if x < shift else right)(acb(x), False)

        panels, height = _around_peak(panels, value)
        tolerance = arb(10) ** -digits
        parts = []
        for a, b in pairwise(panels):
            middle = (a + b) / 2
            function = left if middle < 0 else inside if middle < shift else right
            found = acb.integral(
                function,
                acb(a),
                acb(b),
                rel_tol=tolerance,
                abs_tol=tolerance * height,
                eval_limit=EVALUATIONS,
            )
            parts.append(found.real)
        return total(parts) / law.norm + _beyond(law, shift, eta, -panels[0], panels[-1])


def _integrands(law: Density, shift: arb, eta: arb) -> tuple[Complex, Complex, Complex]:
    """exp(-eta V(|x - shift|) + (eta-1) V(|x|)) left of 0, between, and right of the shift."""
    v, s, order = law.minus_log, acb(shift), acb(eta)

    def left(z: acb, flag: bool) -> acb:
        return (-order * v(s - z, flag) + (order - 1) * v(-z, flag)).exp()

    def inside(z: acb, flag: bool) -> acb:
        return (-order * v(s - z, flag) + (order - 1) * v(z, flag)).exp()

    def right(z: acb, flag: bool) -> acb:
        return (-order * v(z - s, flag) + (order - 1) * v(z, flag)).exp()

    return left, inside, right


def _panels(law: Density, shift: arb, eta: arb) -> list[arb]:
    """Ascending ends of panels, 0 and the shift among them."""
    length, s = float(law.length), float(shift)
    if law.power is not None:
        beta = float(law.power)
        left = length * 200.0 ** (1.0 / beta)
        steep = s / (1.0 - (1.0 - 0.4 / float(eta)) ** (1.0 / (beta - 1.0))) if beta > 1 else s
        right = max(steep * 1.01, s + left, float(eta) * s + left if beta <= 2 else 0.0)
        offsets = {x * 2.0**j for x in (length, length / beta, s) for j in range(-8, 9)}
    else:
        left = length * 2.0**60
        right = s + left
        offsets = {length * 2.0**j for j in range(-8, 61, 2)} | {s * 2.0**j for j in range(-4, 5)}
    ends = {-x for x in offsets} | {s + x for x in offsets} | {s * j / 8 for j in range(1, 8)}
    inner = [x for x in ends if -left < x < right and x not in (0.0, s)]
    return sorted([*map(arb, inner), arb(0), shift, arb(-left), arb(right)], key=float)


def _around_peak(panels: list[arb], value: Callable[[arb], acb]) -> tuple[list[arb], arb]:
    """The panels, halved about the largest value towards its width, and a guess at the integral."""
    for _ in range(60):
        heights = [value(x).real.mid() for x in panels]
        best = max(range(len(panels)), key=lambda i: heights[i])
        near = [i for i in (best - 1, best) if 0 <= i < len(panels) - 1]
        wide = [i for i in near if min(heights[i], heights[i + 1]) < heights[best] * 0.3]
        if not wide:
            break
        panels = sorted([*panels, *(((panels[i] + panels[i + 1]) / 2).mid() for i in wide)], key=float)
    widths = [abs(panels[i + 1] - panels[i]) for i in near]
    return panels, heights[best] * min(widths, key=float)


def _beyond(law: Density, shift: arb, eta: arb, left: arb, right: arb) -> arb:
    """Ball around what lies left of -left and right of `right`."""

    def height(x: arb) -> arb:
        return law.minus_log(acb(x), False).real

    least = (eta * (height(left) - height(left + shift))).exp()
    found = law.tail(left) * least.union(arb(1))
    if law.power is None:
        ratio = ((eta - 1) * (height(right) - height(right - shift))).exp()
        return found + law.tail(right - shift) * ratio.union(arb(1))
    beta = law.power
    steep = eta * (1 - shift / right) ** (beta - 1) >= eta - arb(1) / 2
    top = ((eta - 1) * height(right) - eta * height(right - shift)).exp()
    slope = beta * (right / law.length) ** (beta - 1) / law.length / 2
    return found + arb(0).union(top / slope / law.norm) if steep else arb("nan")
