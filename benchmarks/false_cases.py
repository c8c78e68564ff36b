"""Random neighbours of the verdicts that were false once, each against a truth that shares no numerics with `check`.

- radial: one release of product noise; both tails of the loss by a double-exponential rule between the radii where the
  integrand is not analytic.
- power-moment, lomax-moment: E[(dP/dQ)^eta] of one coordinate of generalized Gaussian (beta 16 to 100) or
  Gamma-PLRV-iid (k from .01) noise, by certified integration of its analytic pieces (Johansson 2018, "Numerical
  integration in arbitrary-precision ball arithmetic").
- power-line, lomax-line: one release in one dimension, whose worst event is an interval: closed form in 40 digits. In
  one dimension noise with a scale per vector (Gamma-PLRV, k from .01) and per coordinate are the same.
- power-many: 10^8 to 10^9 coordinates under l_inf or l_40 clipping. The loss is nearly normal; the value of the limit
  is right to a few per mille, and is granted 2%.
- gaussian-little: normal noise from 1e-300 of the clip, against the closed form in 40 digits.

    python benchmarks/false_cases.py --neighbours 2000 --seed 1 --seconds 3600

Prints a line per case: how many were drawn, how many are on the wrong side, how wide the brackets are. Exit status: 3
with one on the wrong side.
"""

import argparse
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy is loaded

import mpmath
import numpy as np
from claim_draws import as_toml
from claim_laws import guarded
from flint import acb, arb
from rich.console import Console
from rich.progress import track
from scipy.special import betainc, expit

from dpaudit.mechanisms import GammaPLRV, GammaPLRVIID, Gaussian, GeneralizedGaussian, Product
from dpaudit.mechanisms.base import Array
from dpaudit.verify import Claim, check
from dpaudit.verify.pld.coordinate_moments import coordinate, log_moment
from dpaudit.verify.pld.radial_cells import loss_tails
from dpaudit.verify.pld.radial_tails import FINE
from dpaudit.verify.rigorous.balls import ball, float_above, float_below, precision, total

RADIAL = (
    (3, 0.3, 30.0), (3, 1.0, 30.0), (2, 10.0, 16.0), (2, 0.3, 18.0), (2, 1.0, 17.5), (2, 1000.0, 0.5), (3, 1.0, 2.0),
    (6, 10.0, 1.0),
)  # fmt: skip
RADIAL_ERROR = 1e-6  # of the truth, relative
CHECKED = 0.02  # share of the radial neighbours that `check` is asked about
STEP = 0.03
_PLACES = np.arange(-3.4, 3.4 + STEP / 2, STEP)
NODES = expit(math.pi * np.sinh(_PLACES))
WEIGHTS = 0.25 * math.pi * STEP * np.cosh(_PLACES) / np.cosh(0.5 * math.pi * np.sinh(_PLACES)) ** 2
BITS = 160  # of integrals whose value is 1 + 1e-12 and less
LIMIT_ERROR = 0.02


@dataclass(frozen=True)
class Neighbour:
    """A bracket and the truth's.

    Args:
        name: What was asked about.
        bracket: (lower, upper) to be judged.
        truth: (lower, upper) around the truth.
    """

    name: str
    bracket: tuple[float, float]
    truth: tuple[float, float]

    @property
    def wrong(self) -> bool:
        """Whether the truth is outside, or the bracket is none."""
        return not (self.bracket[0] <= self.truth[1] and self.bracket[1] >= self.truth[0])


def near(rng: np.random.Generator, value: float, factor: float = 1.3) -> float:
    """A number within this factor."""
    return float(f"{value * factor ** rng.uniform(-1, 1):.8g}")


def spread(rng: np.random.Generator, low: float, high: float) -> float:
    """A log-uniform number."""
    return float(f"{math.exp(rng.uniform(math.log(low), math.log(high))):.8g}")


def _delta(claim: Claim) -> tuple[float, float]:
    """The bracket of delta; none, which counts as wrong, after a crash."""
    verdict, refusal, crash = guarded(lambda: check(claim))
    if verdict is None:
        print(crash or refusal, flush=True)
        return math.nan, math.nan
    return verdict.delta_lower, verdict.delta_upper


@dataclass(frozen=True)
class _Tail:
    """A tail of the loss of product noise at shift 1, as an integral over the border of {L > l} or {L < -l}.

    With t = |log(rho/R)|, R and rho the distances to the two centres, the border has R^2 = 2 sigma^2 (l - (n-1) t) /
    |e^(2 t sign) - 1|; y are the log odds of t (n-1)/l, in which R falls. Between the radii where the border leaves the
    sphere of directions the integrand is analytic.

    Args:
        dimension: n >= 2.
        sigma: Scale of the radius.
        loss: l > 0.
        sign: 1 for P(L > l), -1 for P(L < -l).
    """

    dimension: int
    sigma: float
    loss: float
    sign: int

    def _border(self, y: Array) -> tuple[Array, Array, Array]:
        """(R, rho, t)."""
        t = self.loss / (self.dimension - 1) * expit(y)
        radius = self.sigma * np.sqrt(2 * self.loss * expit(-y) / np.abs(np.expm1(2 * self.sign * t)))
        return radius, radius * np.exp(self.sign * t), t

    def _share(self, y: Array) -> Array:
        """(1 + w)/2 for the cosine w at the border; outside [0, 1] where every or no direction is beyond it."""
        radius, other, _ = self._border(y)
        gap = np.abs(radius - 1)
        return np.asarray((other - gap) * (other + gap) / (4 * radius))

    def _density(self, y: Array) -> Array:
        radius, _, t = self._border(y)
        slope = expit(y) * (0.5 + self.loss / (self.dimension - 1) * expit(-y) / np.abs(np.expm1(-2 * self.sign * t)))
        law = math.sqrt(2 / math.pi) * radius / self.sigma * np.exp(-0.5 * (radius / self.sigma) ** 2)
        share, half = self._share(y), 0.5 * (self.dimension - 1)
        return np.asarray(slope * law * betainc(half, half, np.clip(1 - share if self.sign > 0 else share, 0, 1)))

    def value(self) -> float:
        """The tail, right to about 1e-7: a double-exponential rule on each piece (Takahasi and Mori 1974)."""
        low, high = -60.0, math.log(self.dimension) + 160.0
        centre = _root(lambda y: self._border(y)[0] - 1, low, high)
        offsets = np.geomspace(1e-15, high - low, 1500)
        y = np.unique(np.concatenate([centre - offsets, [centre], centre + offsets, np.arange(low, high, 0.25)]))
        y = y[(y >= low) & (y <= high)]
        cuts = [*np.arange(low, high, 2.0), high]
        for edge in (0.0, 1.0):
            inside = self._share(y) > edge
            for i in np.flatnonzero(inside[1:] != inside[:-1]):
                cuts.append(_root(lambda at, edge=edge: self._share(at) - edge, y[i], y[i + 1]))  # type: ignore[misc]
        cuts.sort()
        pieces = ((b - a) * float(WEIGHTS @ self._density(a + (b - a) * NODES)) for a, b in pairwise(cuts))
        rest = self._border(np.array(high))[0] if self.sign > 0 else 0.0  # smaller radii are all beyond
        return sum(pieces) + math.erf(rest / self.sigma / math.sqrt(2))


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a function changes its sign, by bisection."""
    first = function(low) > 0
    for _ in range(90):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if (function(middle) > 0) == first else (low, middle)
    return 0.5 * (low + high)


def radial_truth(dimension: int, sigma: float, epsilon: float) -> float:
    """delta of one release of product noise at clip 1."""
    first, second = (_Tail(dimension, sigma, epsilon, sign).value() for sign in (1, -1))
    return first - math.exp(epsilon) * second


def radial(case: tuple[int, float, float], rng: np.random.Generator) -> Neighbour:
    """Product noise near one of the cases: the tails that both bounds are made of, and sometimes the whole verdict."""
    dimension = max(2, case[0] + int(rng.integers(-1, 2))) if case[0] > 3 else case[0]
    sigma, epsilon = near(rng, case[1]), near(rng, case[2], 1.15)
    truth = radial_truth(dimension, sigma, epsilon)
    known = truth * (1 - RADIAL_ERROR), truth * (1 + RADIAL_ERROR)
    at = min(max(truth, 1e-300) * float(rng.choice([0.999, 1.0, 1.001])), 0.9)
    claim = Claim.single(Product(sigma, dimension=dimension), epsilon=epsilon, delta=at, id="radial")
    if rng.random() < CHECKED:
        return Neighbour(as_toml(claim), _delta(claim), known)
    tails = loss_tails(claim.phases[0].mechanism.structure, dimension, 1.0, np.array([epsilon]), FINE)  # type: ignore[arg-type]
    first, second, growth = tails.first[0], tails.second[0], math.exp(epsilon)
    low = first - tails.first_error[0] - growth * (second + tails.second_error[0])
    high = first + tails.first_error[0] - growth * (second - tails.second_error[0])
    return Neighbour(as_toml(claim), (low, high), known)


def _integral(logs: Callable[[acb, bool], acb], ends: list[arb]) -> arb:
    """The integral of the exponential of a function that is analytic inside every piece of the line."""
    pieces = (
        acb.integral(
            lambda z, analytic: logs(z, analytic).exp(), acb(a), acb(b), rel_tol=arb(2) ** -110, abs_tol=arb(2) ** -150
        ).real
        for a, b in pairwise(ends)
    )
    return total(list(pieces))


def _power(z: acb, b: arb, analytic: bool) -> acb:
    """z^b for b > 0, also on a ball about 0, where no more is known than its size."""
    if not z.contains(0):
        return z.pow(b, analytic)
    reach = abs(z).upper() ** b
    return acb("nan") if analytic else acb(arb(0, reach), arb(0, reach))


def power_moment(rng: np.random.Generator) -> Neighbour:
    """A moment of generalized Gaussian noise of scale 1; with shift beta order above 1.1 it is beyond all use."""
    beta, order = spread(rng, 16.0, 100.0), float(rng.integers(2, 40))
    shift = float(f"{spread(rng, 1e-5, 1.1) / beta / order:.8g}")
    with precision(BITS):
        b, s, n = ball(beta), ball(shift), ball(order)
        outer, middle = [arb(0), s, arb(1) / 2, arb(1), arb(2)], [arb(0), s / 2, s]
        left = _integral(lambda z, a: (n - 1) * _power(z, b, a) - n * _power(z + s, b, a), outer)  # x = -z
        inner = _integral(lambda z, a: (n - 1) * _power(z, b, a) - n * _power(s - z, b, a), middle)
        right = _integral(lambda z, a: (n - 1) * _power(z + s, b, a) - n * _power(z, b, a), outer)
        # from the end on the exponent is below -z^beta/3, by the choice of the shift
        rest = arb(0).union((-(arb(2) ** b) / 3).exp())
        truth = ((left + inner + right + rest) / (2 * (1 + 1 / b).gamma())).log()
        known = float_below(truth), float_above(truth)
    return _moment(GeneralizedGaussian(beta, 1.0), shift, order, known)


def lomax_moment(rng: np.random.Generator) -> Neighbour:
    """A moment of Gamma-PLRV-iid noise of theta 1: inside the shift by x, outside by y = log(1 + distance)."""
    k, order, shift = spread(rng, 0.01, 4.0), float(rng.integers(2, 40)), spread(rng, 1e-4, 30.0)
    with precision(BITS):
        p, s, n = ball(k) + 1, ball(shift), ball(order)
        end = 60 / ball(k)
        ends = [arb(0), arb(1), arb(4), *(arb(4**j) for j in range(2, 20) if 4**j < end), end]

        def further(y: acb, analytic: bool) -> acb:
            """log(e^y + s) - y."""
            return (1 + s * (-y).exp()).log(analytic)

        right = _integral(lambda y, a: p * ((n - 1) * further(y, a) - y) + y, ends)
        left = _integral(lambda y, a: -p * (n * further(y, a) + y) + y, ends)
        inner = _integral(lambda z, a: p * ((n - 1) * (1 + z).log(a) - n * (1 + s - z).log(a)), [arb(0), s / 2, s])
        # beyond the end the ratio of the densities is within a factor (1 + s e^-end)^(k+1) of 1
        rest = arb(0).union(2 * (-ball(k) * end).exp() / ball(k) * (p * n * s * (-end).exp()).exp())
        truth = ((right + left + inner + rest) * ball(k) / 2).log()
        known = float_below(truth), float_above(truth)
    return _moment(GammaPLRVIID(k, 1.0), shift, order, known)


def _moment(
    mechanism: GeneralizedGaussian | GammaPLRVIID, shift: float, order: float, truth: tuple[float, float]
) -> Neighbour:
    """The upper bound of the coordinate envelope, which has no lower one."""
    one = coordinate(mechanism.structure)
    assert one is not None
    found = float(log_moment(one, np.array([shift]), order)[0])
    return Neighbour(f"{mechanism}, shift {shift}, order {order:g}", (-math.inf, found), truth)


def power_line(rng: np.random.Generator) -> Neighbour:
    """Generalized Gaussian noise in one dimension: the loss grows with the output, and passes epsilon once."""
    beta, scale = spread(rng, 16.0, 100.0), spread(rng, 0.3, 30.0)
    with mpmath.workdps(40):
        b, s = mpmath.mpf(repr(beta)), 1 / mpmath.mpf(repr(scale))
        reach = mpmath.power(rng.uniform(0.5, 60.0), 1 / b)
        level = float(f"{float(reach**b - abs(reach - s) ** b):.8g}")
        if level <= 0:
            return power_line(rng)
        low, high = s / 2, reach + s + 3
        for _ in range(140):
            middle = (low + high) / 2
            low, high = (low, middle) if middle**b - abs(middle - s) ** b > level else (middle, high)

        def tail(x: mpmath.mpf) -> mpmath.mpf:
            above = mpmath.gammainc(1 / b, abs(x) ** b, regularized=True) / 2
            return above if x >= 0 else 1 - above

        truth = float(tail(low - s) - mpmath.exp(level) * tail(low))
    if not 1e-290 < truth < 0.9:
        return power_line(rng)
    at = float(truth * rng.choice([0.999, 1, 1.001]))
    claim = Claim.single(GeneralizedGaussian(beta, scale, dimension=1), epsilon=level, delta=at, id="power-line")
    return Neighbour(as_toml(claim), _delta(claim), (truth * (1 - 1e-14), truth * (1 + 1e-14)))


def lomax_line(rng: np.random.Generator) -> Neighbour:
    """Gamma-PLRV-iid noise in one dimension: the loss exceeds epsilon on one interval about the centre of P."""
    k, theta = spread(rng, 0.01, 0.3), spread(rng, 0.01, 1e4)
    with mpmath.workdps(40):
        p, t = mpmath.mpf(repr(k)) + 1, mpmath.mpf(repr(theta))  # the shift in units of 1/theta
        epsilon = float(f"{float(p * mpmath.log1p(t)) * rng.uniform(0.02, 0.98):.8g}")
        c = mpmath.exp(epsilon / p)
        start, end = (c * (1 + t) - 1) / (1 + c), (c * t + 1 - c) / (c - 1)

        def above(x: mpmath.mpf) -> mpmath.mpf:
            tail = (1 + abs(x)) ** -(p - 1) / 2
            return tail if x >= 0 else 1 - tail

        truth = above(start - t) - above(end - t) - mpmath.exp(epsilon) * (above(start) - above(end))
        truth = float(truth)
    if not 1e-290 < truth < 0.9:
        return lomax_line(rng)
    law = GammaPLRV if rng.random() < 0.5 else GammaPLRVIID
    at = float(truth * rng.choice([0.999, 1, 1.001]))
    claim = Claim.single(law(k, theta, dimension=1), epsilon=epsilon, delta=at, id="lomax-line")
    return Neighbour(as_toml(claim), _delta(claim), (truth * (1 - 1e-14), truth * (1 + 1e-14)))


def power_many(rng: np.random.Generator) -> Neighbour:
    """Generalized Gaussian noise of a billion coordinates, all moved equally far."""
    beta, dimension = spread(rng, 16.0, 100.0), int(spread(rng, 1e8, 1e9))
    norm = float(rng.choice([math.inf, 40.0]))
    with mpmath.workdps(30):
        b, mu = mpmath.mpf(repr(beta)), near(rng, 1.0, 2.0)
        fisher = b**2 * mpmath.gamma(2 - 1 / b) / mpmath.gamma(1 / b)
        # above p = 2 equal coordinates of clip n^(-1/p) have the largest sum of squares
        reach = mpmath.sqrt(dimension * fisher) * mpmath.mpf(dimension) ** (-1 / mpmath.mpf(norm))
        clip = float(f"{float(mu / reach):.8g}")
        mu = clip * reach
        epsilon = float(f"{float(mu**2 / 2 + mu * rng.uniform(0.5, 4.5)):.8g}")
        truth = float(mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu))
    claim = Claim.single(
        GeneralizedGaussian(beta, 1.0, clip, norm, dimension), epsilon=epsilon, delta=truth, id="power-many"
    )
    return Neighbour(as_toml(claim), _delta(claim), (truth * (1 - LIMIT_ERROR), truth * (1 + LIMIT_ERROR)))


def gaussian_little(rng: np.random.Generator) -> Neighbour:
    """Normal noise from next to none to the clip, at an epsilon up to twice its usual loss."""
    noise = spread(rng, 1e-300, 1.0) if rng.random() < 0.5 else spread(rng, 0.01, 1.0)
    usual = min(0.5 / noise / noise, 1e300)
    epsilon = float(f"{usual * rng.uniform(0.0, 2.0):.8g}")
    with mpmath.workdps(40):
        mu, e = 1 / mpmath.mpf(repr(noise)), mpmath.mpf(repr(epsilon))
        z = mu / 2 - e / mu
        far = abs(z) > 1000  # both terms are within e^-500000 of 0, or of 1 and 0
        truth = float(z > 0 if far else mpmath.ncdf(z) - mpmath.exp(e) * mpmath.ncdf(z - mu))
    at = min(max(truth, 1e-300) * float(rng.choice([0.999, 1, 1.001])), 0.999)
    claim = Claim.single(Gaussian(noise), epsilon=epsilon, delta=at, id="gaussian-little")
    return Neighbour(as_toml(claim), _delta(claim), (truth * (1 - 1e-14), truth * (1 + 1e-14)))


def cases() -> dict[str, Callable[[np.random.Generator], Neighbour]]:
    """What draws a neighbour, by name."""
    found: dict[str, Callable[[np.random.Generator], Neighbour]] = {
        f"radial n={case[0]} sigma={case[1]:g} epsilon={case[2]:g}": lambda rng, case=case: radial(case, rng)  # type: ignore[misc]
        for case in RADIAL
    }
    return found | {
        "power-moment": power_moment, "lomax-moment": lomax_moment, "power-line": power_line, "lomax-line": lomax_line,
        "power-many": power_many, "gaussian-little": gaussian_little,
    }  # fmt: skip


def drawn(count: int, seed: int, seconds: float, only: str) -> Iterator[tuple[str, Neighbour]]:
    """Neighbours of every case in turn, until the time is up."""
    deadline = time.monotonic() + seconds
    for index in range(count):
        for place, (name, draw) in enumerate(cases().items()):
            if only in name:
                if time.monotonic() > deadline:
                    return
                yield name, draw(np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(place, index))))


def main() -> int:
    """Print a line per case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--neighbours", type=int, default=2000, help="of each case")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--only", default="", help="cases whose name holds this text")
    arguments = parser.parse_args()
    found: dict[str, list[Neighbour]] = {name: [] for name in cases() if arguments.only in name}
    count = arguments.neighbours * len(found)
    warnings.simplefilter("error")
    work = drawn(arguments.neighbours, arguments.seed, arguments.seconds, arguments.only)
    try:
        for name, one in track(work, "Neighbours", total=count, console=Console(stderr=True)):
            found[name].append(one)
            if one.wrong:
                print(f"WRONG SIDE: {one.bracket} against {one.truth}\n{one.name}", flush=True)
    except KeyboardInterrupt:
        print("stopped")
    for name, ones in found.items():
        ratios = [one.bracket[1] / max(one.truth[0], 1e-320) for one in ones if one.bracket[1] > 0]
        wrong = sum(one.wrong for one in ones)
        widest, middle = (max(ratios), float(np.median(ratios))) if ratios else (math.nan, math.nan)
        ratio = f"upper bound over truth: median {middle:.8g}, largest {widest:.5g}"
        shares = sorted(one.bracket[0] / one.truth[1] for one in ones if one.truth[1] > 1e-300)
        if shares:  # bounds on a moment have no lower side
            ratio += f"; lower: median {shares[len(shares) // 2]:.8g}, smallest {shares[0]:.5g}"
        print(f"{name}: {len(ones)} drawn, {wrong} wrong; {ratio}")
    return 3 if any(one.wrong for ones in found.values() for one in ones) else 0


if __name__ == "__main__":
    sys.exit(main())
