"""One coordinate's law in balls: its tails, and masses of cells."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from flint import arb

from dpaudit.mechanisms.base import Mechanism
from dpaudit.mechanisms.registry import to_dict
from dpaudit.verify.rigorous.balls import Unavailable, ball


@dataclass(frozen=True)
class CoordinateLaw:
    """A symmetric law on the line.

    Args:
        tail: x >= 0 -> P(X > x).
        power: beta of exp(-|x|^beta) laws, else None.
    """

    tail: Callable[[arb], arb]
    power: arb | None = None


def coordinate_law(mechanism: Mechanism) -> CoordinateLaw | Unavailable:
    """The law of one coordinate of iid noise.

    gaussian: erfc; laplace: exp; generalized-gaussian: Gamma(1/beta, x^beta); gamma-plrv-iid: (1 + theta x)^-k/2;
    gamma-scale-laplace: y^(k/2) K_k(2 sqrt y)/Gamma(k) with y = x/theta (Gradshteyn and Ryzhik (2007), 3.471.9).

    Args:
        mechanism: The noise; its parameters are read as the decimals they print as.
    """
    data = to_dict(mechanism)
    name = data["name"]
    if name == "gaussian":
        return power_law(arb(2), ball(data["noise_multiplier"]) * ball(data["clip"]) * arb(2).sqrt())
    if name == "laplace":
        return power_law(arb(1), ball(data["scale"]))
    if name == "generalized-gaussian":
        return power_law(ball(data["beta"]), ball(data["scale"]))
    if name == "gamma-plrv-iid":
        k, theta = ball(data["k"]), ball(data["theta"])
        return CoordinateLaw(lambda x: (1 + theta * x) ** -k / 2)
    if name == "gamma-scale-laplace":
        k, theta = ball(data["k"]), ball(data["theta"])

        def tail(x: arb) -> arb:
            y = x / theta
            return y ** (k / 2) * (2 * y.sqrt()).bessel_k(k) / k.gamma() if y > 0 else arb(1) / 2

        return CoordinateLaw(tail)
    return Unavailable(f"{name} has no independent coordinates")


def power_law(beta: arb, scale: arb) -> CoordinateLaw:
    """exp(-(|x|/scale)^beta), beta >= 1: Laplace at 1, normal at 2."""

    def tail(x: arb) -> arb:
        if beta == 1:
            return (-x / scale).exp() / 2
        if beta == 2:
            return (x / scale).erfc() / 2
        return ((x / scale) ** beta).gamma_upper(1 / beta, 1) / 2

    return CoordinateLaw(tail, beta)


def cell_masses(law: CoordinateLaw, edges: Sequence[arb], centre: arb) -> list[arb]:
    """Masses of the cells that ascending edges cut the line into, for noise about the centre.

    Every mass is a difference of tails on one side of the centre, so that small ones keep their digits.
    """
    left = [bool(edge < centre) for edge in edges]
    tails = [law.tail(abs(edge - centre)) for edge in edges]
    cells = [tails[0] if left[0] else 1 - tails[0]]
    for i, j in pairwise(range(len(edges))):
        if left[j]:
            cells.append(tails[j] - tails[i])
        else:
            cells.append(1 - tails[i] - tails[j] if left[i] else tails[i] - tails[j])
    return [*cells, 1 - tails[-1] if left[-1] else tails[-1]]
