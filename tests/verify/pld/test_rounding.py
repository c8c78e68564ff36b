"""Charges for rounding, at extremes and at random, against ball arithmetic."""

import math
from functools import partial

import numpy as np
import pytest

from dpaudit.mechanisms import GammaPLRVIID, Gaussian, GeneralizedGaussian, Laplace
from dpaudit.mechanisms.base import IIDCoordinates
from dpaudit.verify.curves import SMALLEST_DELTA
from dpaudit.verify.pld.cells import SMALLEST_MASS, interval_masses, tail_error
from dpaudit.verify.pld.dominating_pairs import DominatingPair, gaussian_pair, laplace_pair, logconcave_pair
from dpaudit.verify.pld.equal_beta import equal_beta
from dpaudit.verify.pld.radial_tails import BETA_ERROR, BETA_ERROR_PER_DIMENSION
from dpaudit.verify.upper.gaussian_pld import analytic_delta

flint = pytest.importorskip("flint")
arb = flint.arb
Ball = flint.arb


@pytest.fixture(autouse=True)
def _precision() -> None:
    flint.ctx.prec = 1200  # one minus a tail of 1e-300


def log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(math.log(low), math.log(high))))


def normal(x: Ball) -> Ball:
    """P(N(0, 1) < x)."""
    return (-x / arb(2).sqrt()).erfc() / 2


def power_tail(x: Ball, beta: float, scale: float) -> Ball:
    """P(X > x) of exp(-|x/scale|^beta) noise, of either sign of x."""
    if x < 0:
        return 1 - power_tail(-x, beta, scale)
    return ((x / arb(scale)) ** arb(beta)).gamma_upper(1 / arb(beta), regularized=True) / 2


def random_law(rng: np.random.Generator) -> tuple[IIDCoordinates, "object"]:
    """A law, and its tail at x > 0 in balls."""
    kind = rng.integers(4)
    scale = log_uniform(rng, 1e-3, 1e3)
    if kind == 0:
        return Gaussian(scale).structure, lambda x: normal(-x / arb(scale))
    if kind == 1:
        return Laplace(scale).structure, lambda x: (-x / arb(scale)).exp() / 2
    if kind == 2:
        beta = log_uniform(rng, 1.001, 1000.0)
        return GeneralizedGaussian(beta, scale).structure, lambda x: power_tail(x, beta, scale)
    k = log_uniform(rng, 0.01, 1e6)
    return GammaPLRVIID(k, scale).structure, lambda x: (-arb(k) * (1 + arb(scale) * x).log()).exp() / 2


def test_distribution_functions_are_as_accurate_as_they_are_taken_to_be() -> None:
    rng = np.random.default_rng(11)
    checked = 0
    while checked < 1500:
        law, tail = random_law(rng)
        t = 10.0 ** -log_uniform(rng, 0.31, 295.0)
        x = abs(float(law.ppf(np.array(t)))) * (1.0 if rng.random() < 0.7 else log_uniform(rng, 1e-9, 1.0))
        found = law.cdf(np.array(-x))
        if not (0 < x < math.inf and found > SMALLEST_MASS):
            continue
        truth = tail(arb(x))  # type: ignore[operator]
        assert abs(arb(float(found)) - truth) <= arb(float(tail_error(law, found)))
        checked += 1


def test_cells_hold_their_masses_however_far_the_centres_are_apart() -> None:
    """Centres up to 1e5 scales away, edges where either law has its mass or between them."""
    rng = np.random.default_rng(12)
    for _ in range(120):
        law, tail = random_law(rng)
        unit = abs(float(law.ppf(np.array(0.05))))
        centres = np.array([0.0, unit * log_uniform(rng, 1e-9, 1e5)])
        t = law.ppf(10.0 ** -np.exp(rng.uniform(math.log(0.31), math.log(60.0), 3)))
        edges = np.unique(np.concatenate([c + sign * t for c in centres for sign in (1.0, -1.0)]))
        edges = edges[np.isfinite(edges)]
        cells = interval_masses(law, edges, centres)
        for row, c in enumerate(centres):
            above = []
            for e in edges:
                z = arb(float(e)) - arb(float(c))
                above.append(tail(z) if z > 0 else 1 - tail(-z))  # type: ignore[operator]
            above = [arb(1), *above, arb(0)]
            for j in range(len(edges) + 1):
                mass = above[j] - above[j + 1]
                # a mass of nothing is a ball about 0
                assert not arb(float(cells.lower[row, j])) > mass
                assert not arb(float(cells.upper[row, j])) < mass


def assert_tails(pair: DominatingPair, loss: float, exact: "object") -> None:
    """The tails at a loss lie between the exact ones at both ends of the slack, but for their stated errors.

    Args:
        pair: Of which.
        loss: Where.
        exact: Loss (a ball) -> P(L > l), Q(L > l).
    """
    tails = pair.tails(np.array([loss]))
    slack = arb(pair.slack) * (1 + abs(arb(loss)))
    (p_low, q_low), (p_high, q_high) = (exact(arb(loss) + sign * slack) for sign in (1, -1))  # type: ignore[operator]
    for low, high, cdf, sf, error in (
        (p_low, p_high, tails.p_cdf, tails.p_sf, tails.p_error),
        (q_low, q_high, tails.q_cdf, tails.q_sf, tails.q_error),
    ):
        small, bounds = (sf, (low, high)) if sf[0] <= cdf[0] else (cdf, (1 - high, 1 - low))
        charge = arb(float(error[0])) * arb(float(small[0])) + arb(SMALLEST_MASS)
        assert arb(float(small[0])) + charge >= bounds[0]
        assert arb(float(small[0])) - charge <= bounds[1]
        assert error[0] < 1e-7 or small[0] < SMALLEST_MASS


def test_gaussian_tails_at_shifts_up_to_1e5_and_losses_up_to_5e9() -> None:
    rng = np.random.default_rng(13)
    for _ in range(1000):
        mu = log_uniform(rng, 1e-6, 1e5)
        loss = float(mu * rng.normal(0.0, 12.0) + rng.choice([-0.5, 0.0, 0.5]) * mu * mu)
        m = arb(mu)
        assert_tails(gaussian_pair(mu), loss, lambda at, m=m: (normal(m / 2 - at / m), normal(-m / 2 - at / m)))


def test_laplace_tails_at_shifts_up_to_1e4() -> None:
    rng = np.random.default_rng(14)
    for _ in range(300):
        shift = log_uniform(rng, 1e-6, 1e4)
        loss, s = float(shift * rng.uniform(-0.999, 0.999)), arb(shift)
        assert_tails(
            laplace_pair(shift), loss, lambda at, s=s: (1 - ((at - s) / 2).exp() / 2, (-(at + s) / 2).exp() / 2)
        )


def power_pair(beta: float, scale: float, shift: float, loss: Ball) -> tuple[Ball, Ball]:
    """P(L > loss), Q(L > loss): by bisection for the distance d from shift/2 at which the loss is |loss|."""
    b, s, v = arb(beta), arb(scale), arb(shift)
    low, high = arb(0), arb(4e3 * scale + 4.0 * shift)
    for _ in range(120):
        d = ((low + high) / 2).mid()
        rise = (abs(d + v / 2) / s) ** b - (abs(d - v / 2) / s) ** b
        low, high = (low, d) if rise > abs(loss) else (d, high)
    x = v / 2 + (low if loss >= 0 else -low)
    return power_tail(x - v, beta, scale), power_tail(x, beta, scale)


@pytest.mark.slow
def test_power_law_tails_at_powers_up_to_100_and_losses_up_to_1e5() -> None:
    rng = np.random.default_rng(15)
    for _ in range(100):
        beta, scale = log_uniform(rng, 1.01, 100.0), log_uniform(rng, 0.1, 10.0)
        law = GeneralizedGaussian(beta, scale).structure
        shift = scale * log_uniform(rng, 1e-6, 30.0 ** min(1.0, 4.0 / beta))
        z = float(law.ppf(np.array(10.0 ** -log_uniform(rng, 0.31, 200.0)))) * rng.choice([-1.0, 1.0])
        loss = float(law.logpdf(np.array(z)) - law.logpdf(np.array(z + shift)))  # of the output z + shift under P
        if not abs(loss) < 1e5:
            continue
        assert_tails(logconcave_pair(law, shift), loss, partial(power_pair, beta, scale, shift))


def test_the_gaussian_curve_is_rounded_up_at_shifts_up_to_1e5() -> None:
    rng = np.random.default_rng(16)
    for _ in range(600):
        mu = log_uniform(rng, 1e-5, 1e5)
        epsilon = max(float(mu * mu / 2 + mu * rng.uniform(-8.0, 30.0)), 0.0)
        m, e = arb(mu), arb(epsilon)
        flint.ctx.prec = 300 + int(3.0 * min(epsilon, 2000.0)) + 20 * int(math.log2(1.0 + epsilon))
        truth = normal(m / 2 - e / m) - (e + normal(-m / 2 - e / m).log()).exp()
        found = float(analytic_delta(mu, np.array([epsilon]))[0])
        assert arb(found) >= truth
        a = epsilon / mu - mu / 2
        # cancellation costs a factor R(a)/(R(a) - R(b)), about (|a| + 1)/mu
        room = 4e-16 * (a * a + 8.0 + epsilon) * (abs(a) + 2.0) * (1.0 + 1.0 / mu) + 1e-12
        assert arb(found) <= truth * (1 + 4.0 * room) + 4.0 * room * (a < -5.0) + SMALLEST_DELTA


def beta_tail(half: float, z: float) -> Ball:
    """I_z(half, half): by the hypergeometric function about 1/2 in Pfaff's form, or about 0 where that is too long."""
    if z > 0.5:
        return 1 - beta_tail(half, 0) if z >= 1 else 1 - _lower_beta(half, 1 - arb(z))
    return _lower_beta(half, arb(z))


def _lower_beta(half: float, z: Ball) -> Ball:
    a, w, rest = arb(half), 1 - 2 * z, 4 * z * (1 - z)
    if w * w * a < 60:
        scale = w * ((a + arb(1) / 2).lgamma() - a.lgamma()).exp() / arb.pi().sqrt()
        return arb(1) / 2 - scale * rest ** (a - 1) * (-w * w / rest).hypgeom_2f1(1, 1 - a, arb(3) / 2)
    lead = (a * (z * (1 - z)).log() + (2 * a).lgamma() - 2 * a.lgamma() - a.log()).exp()
    return lead * z.hypgeom_2f1(1, 2 * a, a + 1)


@pytest.mark.slow
def test_the_incomplete_beta_function_of_equal_parameters_is_within_its_charge() -> None:
    """Dimensions 2 to 1e9, tails from 1 down to e^-690, both sides of 1/2 and next to the ends."""
    rng = np.random.default_rng(17)
    flint.ctx.prec, checked = 160, 0
    while checked < 1200:
        dimension = 2 if rng.random() < 0.03 else int(log_uniform(rng, 2.0, 1e9))
        half = 0.5 * (dimension - 1)
        fall = log_uniform(rng, 1e-6, 690.0) / max(half, 0.5)  # of log 4 z (1-z)
        root = math.sqrt(-math.expm1(-fall))
        z = 0.5 * math.exp(-fall) / (1.0 + root) if rng.random() < 0.7 else 0.5 * (1.0 + root)
        if not 0 < z < 1:
            continue
        truth = beta_tail(half, z)
        if not truth.is_finite() or truth.rad() > 1e-18 * truth.mid():
            continue  # the series is too long for the ball
        charge = BETA_ERROR + BETA_ERROR_PER_DIMENSION * dimension
        assert abs(arb(float(equal_beta(dimension, np.array(z)))) - truth) <= arb(charge) * truth
        checked += 1
