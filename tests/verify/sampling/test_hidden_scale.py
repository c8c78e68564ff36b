"""Counts under a hidden Gamma scale: the bound on their loss, the weights, and what they prove."""

import math

import mpmath
import numpy as np
import pytest
from scipy.stats import binom

from dpaudit.mechanisms import GammaPLRV
from dpaudit.mechanisms.base import Array
from dpaudit.verify.claims import Claim
from dpaudit.verify.sampling.hidden_scale import HiddenScaleStep, hidden_loss_lower
from dpaudit.verify.sampling.histories import PlainHistories, ShiftedPhase, shifted_phases
from dpaudit.verify.sampling.pilots import draw_level, weighing_pilot
from dpaudit.verify.sampling.proposals import proposal_at, tilted_steps
from dpaudit.verify.sampling.sums import subsampled


def exact_loss(noise: GammaPLRV, n: int, value: float, high: int, low: int, middle: int, rest: float) -> mpmath.mpf:
    """log of the ratio of the two integrals over the scale, at 25 digits."""
    k, theta = mpmath.mpf(noise.k), mpmath.mpf(noise.theta)

    def integral(count: int) -> mpmath.mpf:
        power, slope = k - 1 + n - middle, 1 / theta + rest + value * count

        def integrand(u: mpmath.mpf) -> mpmath.mpf:
            logs = power * mpmath.log(u) - slope * u + middle * mpmath.log(-mpmath.expm1(-u * value))
            return mpmath.exp(logs - scale)

        peak = (power + middle) / slope
        scale = power * mpmath.log(peak) - slope * peak + middle * mpmath.log(-mpmath.expm1(-peak * value))
        width = peak / mpmath.sqrt(power + middle)
        points = [mpmath.mpf(0)] + [peak + i * width for i in (-12, -6, -2, 0, 2, 6, 12, 30) if peak + i * width > 0]
        return mpmath.log(mpmath.quad(integrand, [*points, mpmath.inf])) + scale

    return integral(low) - integral(high)


@pytest.mark.parametrize(
    ("noise", "n", "m"),
    [(GammaPLRV(0.7, 0.5), 90, 70), (GammaPLRV(3.0, 0.1), 80, 80), (GammaPLRV(400.0, 6e-3), 300, 300)],
    ids=["few", "all", "many"],
)
def test_the_bound_on_the_loss_of_the_counts(noise: GammaPLRV, n: int, m: int) -> None:
    """Never above the loss by quadrature, and within half a percent of it where a coordinate costs little."""
    rng, value = np.random.default_rng(5), 1.0 / math.sqrt(m)
    with mpmath.workdps(25):
        for _ in range(3):
            u = rng.gamma(noise.k, noise.theta)
            middle = int(rng.binomial(m, -0.5 * math.expm1(-u * value)))
            high = int(rng.binomial(m - middle, rng.uniform(0.2, 0.8)))
            rest = float(rng.gamma(n - middle) / u)
            low = m - middle - high
            counts = [np.array([float(x)]) for x in (high, low, middle, rest)]
            bound = float(hidden_loss_lower(noise.structure, n, value, *counts)[0])
            exact = float(exact_loss(noise, n, value, high, low, middle, rest))
            assert exact - 5e-3 * abs(exact) - 1e-9 < bound < exact + 1e-9 * abs(exact) + 1e-12


def phase(noise: GammaPLRV, m: int, rate: float, steps: int = 1) -> tuple[ShiftedPhase, ...]:
    claim = Claim.single(noise, epsilon=1.0, delta=1e-3, steps=steps, sampling_prob=rate)
    return shifted_phases(claim, m, "remove")


def losses_of_whole_vectors(noise: GammaPLRV, m: int, rate: float, rng: np.random.Generator, size: int) -> Array:
    """The counts' loss, the counts taken from whole noise vectors of the mechanism's own sampler."""
    value = 1.0 / math.sqrt(m)
    outputs = noise.sample(rng, size)
    outputs[:, :m] += value * (rng.random(size) < rate)[:, None]
    moved = outputs[:, :m]
    high, low = (moved > value).sum(axis=1), (moved < 0.0).sum(axis=1)
    outside = np.where(moved > value, moved - value, np.where(moved < 0.0, -moved, 0.0)).sum(axis=1)
    rest = outside + np.abs(outputs[:, m:]).sum(axis=1)
    counts = high.astype(float), low.astype(float), (m - high - low).astype(float), rest
    return subsampled(hidden_loss_lower(noise.structure, noise.dimension or 0, value, *counts), rate)


@pytest.mark.parametrize(("m", "rate", "theta"), [(80, 1.0, 0.0), (80, 1.0, 0.7), (100, 0.2, 1.0), (70, 0.5, 1.0)])
def test_weighted_counts_have_the_law_of_counts_of_drawn_noise(m: int, rate: float, theta: float) -> None:
    """E_R dF/dR 1{L > t} = F(L > t) at a far and a near t, six standard errors."""
    noise = GammaPLRV(8.0, 0.12, dimension=100)
    steps = tilted_steps(phase(noise, m, rate), "remove")
    assert steps is not None
    assert isinstance(steps[0], HiddenScaleStep)
    loss, weight = proposal_at(steps, theta)(np.random.default_rng(6), 100_000)
    whole = losses_of_whole_vectors(noise, m, rate, np.random.default_rng(7), 30_000)
    for share in (0.5, 0.98):
        cut = float(np.quantile(whole[15_000:], share))
        shares = np.exp(weight) * (loss > cut), (whole[:15_000] > cut).astype(float)
        error = math.hypot(*(s.std() / math.sqrt(len(s)) for s in shares))
        assert abs(shares[0].mean() - shares[1].mean()) < 6 * error
        assert error < 0.1 * shares[1].mean()


NOISE, RATE, STEPS, EPSILON = GammaPLRV(8.0, 0.12, dimension=90), 0.3, 2, 1.0


def excess(draw: object, rng: np.random.Generator, size: int) -> tuple[float, float]:
    """Mean of the weighted excess over EPSILON, and its standard error."""
    found = draw_level(draw, rng, size).at(EPSILON)  # type: ignore[arg-type]
    mean = found.sum() / size
    return mean, math.sqrt(max((found**2).sum() / size - mean**2, 0.0) / size)


def test_what_the_counts_prove_is_a_little_less_than_the_whole_vectors_delta() -> None:
    """Plain draws keep the exact loss of the whole vector; the counts lose where between the centres it lies."""
    parts = phase(NOISE, 90, RATE, STEPS)
    steps = tilted_steps(parts, "remove")
    assert steps is not None
    whole, error = excess(PlainHistories(parts, "remove"), np.random.default_rng(8), 150_000)
    counts, noise = excess(proposal_at(steps, 1.0), np.random.default_rng(9), 150_000)
    slack = 6 * math.hypot(error, noise)
    assert slack < 0.2 * whole
    assert 0.97 * whole - slack < counts < whole + slack


@pytest.mark.slow
def test_a_true_claim_is_refuted_no_more_often_than_stated() -> None:
    """delta is what plain draws of the exact loss put it at, and the runs are those of the counts."""
    parts = phase(NOISE, 90, RATE, STEPS)
    whole, error = excess(PlainHistories(parts, "remove"), np.random.default_rng(10), 300_000)
    claim = Claim.single(NOISE, epsilon=EPSILON, delta=whole + 2 * error, steps=STEPS, sampling_prob=RATE)
    steps, rng, runs, wrong = tilted_steps(parts, "remove"), np.random.default_rng(11), 40, 0
    for _ in range(runs):
        _, outcome = weighing_pilot(parts, "remove", steps, claim, rng, pilot=200, final=800)
        found = outcome(rng, 0.05)
        wrong += found.delta(EPSILON) > claim.delta or found.epsilon(claim.delta) > EPSILON
    assert wrong <= int(binom.isf(1e-4, runs, 0.05))


def test_scales_too_large_to_tilt_take_their_weight_away() -> None:
    """u of some 300 tilted by 9: exponents beyond the floats. Losses stay finite, and nothing is proved wrongly."""
    noise = GammaPLRV(3.0, 1000.0, dimension=100)
    steps = tilted_steps(phase(noise, 80, 0.5), "remove")
    assert steps is not None
    loss, weight = proposal_at(steps, 8.0)(np.random.default_rng(12), 2000)
    assert np.isfinite(loss).all()
    assert not np.isnan(weight).any()
    assert (weight == -np.inf).any()
    drawn = draw_level(proposal_at(steps, 0.0), np.random.default_rng(13), 2000)
    assert drawn.at(5.0).sum() / 2000 == pytest.approx(0.5, abs=0.05)  # the record is in, and plainly seen
