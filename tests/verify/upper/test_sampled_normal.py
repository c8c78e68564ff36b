"""Sampled Gaussian noise: worst pairs against the plane, closed forms, and simulated likelihood ratios."""

import math

import numpy as np
import pytest

from dpaudit.mechanisms import Gaussian, Laplace
from dpaudit.mechanisms.numerics import gaussian_delta
from dpaudit.verify import Claim, check
from dpaudit.verify.claims import Adjacency, Phase
from dpaudit.verify.pld.half_lines import NormalMixtures
from dpaudit.verify.samplers import RandomAllocation, Sampler, TruncatedPoisson, WithoutReplacement
from dpaudit.verify.upper import upper_curve
from dpaudit.verify.upper.sampled_normal import halves

DELTA = 1e-5


def claim(sigma: float, sampler: Sampler, adjacency: Adjacency) -> Claim:
    return Claim(1.0, DELTA, [Phase(Gaussian(sigma, dimension=3), sampler=sampler)], adjacency)


def poisson(sigma: float, g: float, steps: int) -> Claim:
    return Claim.single(
        Gaussian(sigma, dimension=3), epsilon=1.0, delta=DELTA, steps=steps, sampling_prob=g, adjacency="replace-one"
    )


@pytest.mark.parametrize(("sigma", "g", "steps"), [(1.0, 0.01, 1000), (4.0, 0.05, 400), (2.0, 0.01, 1000)])
def test_a_poisson_history_under_replace_one_is_known_exactly(sigma: float, g: float, steps: int) -> None:
    verdict = check(poisson(sigma, g, steps))
    assert verdict.epsilon_lower < verdict.epsilon_upper < verdict.epsilon_lower * (1 + 5e-4)


@pytest.mark.parametrize(
    ("sigma", "g", "steps", "low", "high"),
    [(1.0, 0.01, 1000, 13.356, 14.819), (4.0, 0.05, 400, 2.244, 2.539), (2.0, 0.01, 1000, 1.823, 2.196)],
)
def test_fixed_sizes_under_replace_one_have_the_computed_values(
    sigma: float, g: float, steps: int, low: float, high: float
) -> None:
    verdict = check(claim(sigma, WithoutReplacement(g, steps), "replace-one"))
    assert verdict.epsilon_lower == pytest.approx(low, rel=3e-3)
    assert verdict.epsilon_upper == pytest.approx(high, rel=2e-3)


@pytest.mark.parametrize("g", [0.03, 0.4, 1.0])
def test_one_release_of_fixed_size_is_below_what_joint_convexity_gives(g: float) -> None:
    """e^e' = 1 + g (e^e - 1), b = e^(e' - e): g ((1 - b) delta_2(e) + b delta_1(e)) with the record, g delta_1 without.

    Balle, Barthe and Gaboardi (2018), Theorem 2; delta_k is the curve of a shift by k clips. Under replace-one it is
    attained.
    """
    zero_out = upper_curve(claim(1.3, WithoutReplacement(g, 1), "zero-out"))
    swapped = upper_curve(claim(1.3, WithoutReplacement(g, 1), "replace-one"))
    for inner in (0.3, 1.0, 2.5):
        outer = math.log1p(g * math.expm1(inner))
        b = math.exp(outer - inner)
        two, one = gaussian_delta(2 / 1.3, inner), gaussian_delta(1 / 1.3, inner)
        bound = float(zero_out(np.array([outer]))[0])
        assert g * one * (1 - 1e-9) < bound < max(g * ((1 - b) * two + b * one), g * one) * (1 + 1e-3)
        assert float(swapped(np.array([outer]))[0]) == pytest.approx(g * two, rel=1e-3)


def hockey_stick(y: np.ndarray, v: np.ndarray, w: np.ndarray, g: float, a: float) -> float:
    """sum (P - a Q)_+ of mixtures of normal laws in the plane, on a grid of 0.05."""
    axis = np.arange(-8.0, 8.0, 0.05)
    grid = np.stack(np.meshgrid(axis, axis), axis=-1)
    densities = [np.exp(-((grid - centre) ** 2).sum(axis=-1) / 2) / (2 * np.pi) for centre in (y, v, w)]
    p, q = (1 - g) * densities[0] + g * densities[1], (1 - g) * densities[0] + g * densities[2]
    return float(np.maximum(p - a * q, 0.0).sum() * 0.05**2)


@pytest.mark.parametrize(("kind", "ghost"), [("poisson", False), ("fixed", False), ("fixed", True)])
def test_no_pair_of_the_plane_is_worse(kind: str, ghost: bool) -> None:
    """Contributions drawn in the unit disc, many of them on its border, sigma 1; and the worst one is attained."""
    g, rng, most = 0.3, np.random.default_rng(5), 0.0
    sampler = WithoutReplacement(g, 1) if kind == "fixed" else None
    single = Phase(Gaussian(1.0, dimension=2), sampler=sampler) if sampler else Phase(Gaussian(1.0, dimension=2), 1, g)
    bound = upper_curve(Claim(1.0, DELTA, [single], "zero-out" if ghost else "replace-one"))
    epsilon = 0.4
    worst = float(bound(np.array([epsilon]))[0])
    for trial in range(40):
        angles, lengths = rng.uniform(0, 2 * np.pi, 3), np.where(rng.random(3) < 0.7, 1.0, rng.random(3))
        y, v, w = lengths[:, None] * np.stack([np.cos(angles), np.sin(angles)], axis=1)
        if trial == 0:
            v = np.array([1.0, 0.0])
            y = w = -v
        found = hockey_stick(y * (kind == "fixed"), v, w * (not ghost), g, math.exp(epsilon))
        assert found < worst * (1 + 1e-4)  # the grid has an error of half that where the two densities cross
        most = max(most, found)
    assert most > worst * (1 - 1e-3)


@pytest.mark.parametrize(("adjacency", "sampler"), [("replace-one", None), ("zero-out", WithoutReplacement(0.1, 60))])
def test_the_curve_is_that_of_simulated_likelihood_ratios(adjacency: Adjacency, sampler: Sampler | None) -> None:
    """60 releases, 40,000 histories: E (1 - e^(epsilon - L))_+ within five deviations, tightly for Poisson."""
    g, mu, rng = 0.1, 0.8, np.random.default_rng(8)
    phase = Phase(Gaussian(1 / mu), sampler=sampler) if sampler else Phase(Gaussian(1 / mu), 60, g)
    curve = upper_curve(Claim(1.0, DELTA, [phase], adjacency))
    shown = halves(phase, "replace-one" if sampler is None else "add-remove")
    assert shown is not None
    pair, total = shown.above, np.zeros(40_000)
    for _ in range(60):
        centre = rng.choice(pair.centres, size=len(total), p=pair.first)
        total += pair.loss(centre + rng.standard_normal(len(total)))
    for epsilon in (0.3, 1.0, 2.0):
        gains = np.maximum(-np.expm1(epsilon - total), 0.0)
        mean, deviation = float(gains.mean()), float(gains.std()) / 200
        bound = float(curve(np.array([epsilon]))[0])
        assert mean - 5 * deviation < bound
        if sampler is None:
            assert bound < mean + 5 * deviation + 1e-3 * mean


@pytest.mark.parametrize("distance", [1e-3, 0.3, 2.0, 40.0])
@pytest.mark.parametrize("g", [1e-6, 0.2, 1.0])
def test_half_lines_begin_where_the_loss_is_reached(distance: float, g: float) -> None:
    """And the stated slack covers what rounding does, which is more where losses are large."""
    weights = [
        ((0.0, 1 - g, g), (g, 1 - g, 0.0)),
        ((1 - g, 0.0, g), (1 - g, g, 0.0)),
        ((0.0, 0.0, 1.0), (0.0, g, 1 - g)),
    ]
    for first, second in weights:
        pair = NormalMixtures(distance, first, second)
        targets = np.linspace(0.0, min(pair.largest * (1 - 1e-9), 50.0), 400)
        start, slack = pair.beginning(targets)
        assert (np.diff(start) > 0).all()
        here = np.abs(start) < 30 + distance
        assert np.abs(pair.loss(start) - targets)[here].max(initial=0.0) < slack
        assert slack < 1e-9


def test_phases_of_several_kinds_compose() -> None:
    """Fixed sizes with Poisson batches and plain releases; a truncated batch, and orders revealed beside them."""
    noise = Gaussian(3.0)
    fixed, plain = Phase(noise, sampler=WithoutReplacement(0.05, 100)), Phase(noise, 2)
    both: list[Adjacency] = ["replace-one", "zero-out"]
    for adjacency in both:
        alone = upper_curve(Claim(1.0, DELTA, [fixed], adjacency))
        together = upper_curve(Claim(1.0, DELTA, [fixed, plain, Phase(noise, 10, 0.1)], adjacency))
        revealed = upper_curve(Claim(1.0, DELTA, [fixed, Phase(noise, sampler=RandomAllocation(9, 2))], adjacency))
        at = np.array([0.5, 1.0, 2.0])
        assert (alone(at) < revealed(at)).all()
        assert (revealed(at) < together(at)).all()
        assert together(at)[0] < 1
    cut = upper_curve(claim(3.0, TruncatedPoisson(0.05, 90, 1000, 100), "replace-one"))
    whole = upper_curve(poisson(3.0, 0.05, 100))
    assert float(whole(at)[1]) < float(cut(at)[1]) < float(whole(at)[1]) + 1e-3


def test_other_noise_keeps_its_own_theorem() -> None:
    laplace = Phase(Laplace(2.0, clip_norm=1.0), sampler=WithoutReplacement(0.1, 5))
    found = upper_curve(Claim(1.0, DELTA, [laplace, Phase(Gaussian(9.0), sampler=WithoutReplacement(0.1, 5))]))
    assert float(found(np.array([2.0]))[0]) < 1e-2


@pytest.mark.parametrize("rate", [1e-300, 1e-17, 1e-12])
@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_rates_of_which_one_less_is_no_float_are_decided(rate: float, adjacency: Adjacency) -> None:
    claim = Claim(1.0, 1e-5, [Phase(Gaussian(1.0), sampler=WithoutReplacement(rate, 2))], adjacency)
    assert check(claim).verdict == "certified"
    assert upper_curve(claim)(np.array([0.0]))[0] >= rate * 0.3
