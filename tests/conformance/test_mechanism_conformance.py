"""Every registered mechanism, at parameters drawn from its declared typical ranges, obeys the interface.

Everything here goes through the structure, never the class, so a new line in the registry is tested as it stands.

Statistical checks: level ALPHA = 1e-6 each, by the Dvoretzky-Kiefer-Wolfowitz inequality with Massart's constant for
distribution functions and by Hoeffding's for bounded means, at draws and seeds that are the same in every run: over
all mechanisms, draws and checks together a false alarm had a probability below 1e-3, once.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpaudit.mechanisms.base import CLIP, IIDCoordinates, PowerCoordinates, Radial, ScaleMixture
from dpaudit.mechanisms.registry import MECHANISMS

ALPHA = 1e-6
SIZE = 40_000
NODES, WEIGHTS = np.polynomial.legendre.leggauss(120)
Law = tuple[Callable[[Any], Any], Callable[[Any], Any], Callable[[Any], Any]]  # logpdf, cdf, ppf


def log_uniform(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(math.log(low), math.log(high)).map(lambda x: min(max(math.exp(x), low), high))


def drawn(name: str) -> st.SearchStrategy[Any]:
    kind = MECHANISMS[name]
    return st.builds(
        kind,
        **{parameter: log_uniform(*domain.typical) for parameter, domain in kind.domains.items()},
        clip=log_uniform(*CLIP.typical),
        clip_norm=st.sampled_from([1.0, 2.0, 3.3, math.inf]),
        dimension=st.integers(2, 6),
    )


def conformance(examples: int) -> Callable[[Callable[..., None]], Any]:
    """Run a test of one mechanism on `examples` draws of each registered one."""

    def decorate(test: Callable[..., None]) -> Any:
        @pytest.mark.parametrize("name", list(MECHANISMS))
        def over_all(name: str) -> None:
            settings(max_examples=examples, derandomize=True, deadline=None, database=None)(given(drawn(name))(
                lambda mechanism: test(mechanism)
            ))()  # fmt: skip

        over_all.__doc__ = test.__doc__
        return over_all

    return decorate


def laws(mechanism: Any) -> list[Law]:
    """The one-dimensional laws that a structure is made of."""
    structure = mechanism.structure
    if isinstance(structure, IIDCoordinates):
        return [(structure.logpdf, structure.cdf, structure.ppf)]
    if isinstance(structure, Radial):
        return [(structure.radius_logpdf, structure.radius_cdf, structure.radius_ppf)]
    assert isinstance(structure, ScaleMixture)
    given_median = structure.given(float(structure.scale_ppf(np.array(0.5))))
    return [
        (structure.scale_logpdf, structure.scale_cdf, structure.scale_ppf),
        (given_median.logpdf, given_median.cdf, given_median.ppf),
    ]


def scale_nodes(structure: ScaleMixture) -> tuple[Any, Any]:
    """Points u and weights of an integral over the law of the hidden scale, all but 1e-13 of it."""
    low, high = float(structure.scale_ppf(np.array(1e-13))), float(structure.scale_isf(np.array(1e-13)))
    u = low + (high - low) * (NODES + 1) / 2
    return u, WEIGHTS * (high - low) / 2 * np.exp(structure.scale_logpdf(u))


def statistic(mechanism: Any, noise: np.ndarray) -> tuple[np.ndarray, Callable[[np.ndarray], Any]]:
    """Independent positive numbers that grow with the noise, and their distribution function."""
    structure = mechanism.structure
    if isinstance(structure, Radial):
        return np.linalg.norm(noise, axis=1), structure.radius_cdf
    if isinstance(structure, IIDCoordinates):
        return np.abs(noise[:, 0]), lambda x: 1.0 - 2.0 * structure.cdf(-x)
    u, weights = scale_nodes(structure)

    def cdf(x: np.ndarray) -> np.ndarray:
        return 1.0 - 2.0 * np.sum([w * structure.given(s).cdf(-x) for s, w in zip(u, weights, strict=True)], axis=0)

    return np.abs(noise[:, 0]), cdf


def distance(values: np.ndarray, cdf: Callable[[np.ndarray], Any]) -> float:
    """Kolmogorov-Smirnov distance seen at 400 order statistics: at most the whole one."""
    ordered = np.sort(values)
    ranks = np.linspace(0, len(ordered) - 1, 400).astype(int)
    at = cdf(ordered[ranks])
    return float(max(np.max((ranks + 1) / len(ordered) - at), np.max(at - ranks / len(ordered))))


def typical_shift(mechanism: Any, noise: np.ndarray) -> np.ndarray:
    """A shift in a skew direction, as long as a coordinate of the noise usually is."""
    direction = np.arange(1.0, noise.shape[1] + 1) * np.where(np.arange(noise.shape[1]) % 2, -1, 1)
    return float(np.median(np.abs(noise))) * direction / np.linalg.norm(direction)


def hoeffding(size: int) -> float:
    return math.sqrt(math.log(2 / ALPHA) / (2 * size))


# --- densities --------------------------------------------------------------------------------------------------------


@conformance(30)
def test_densities_integrate_to_their_distribution_functions_and_to_one(mechanism: Any) -> None:
    for logpdf, cdf, ppf in laws(mechanism):
        levels = np.array([1e-10, 1e-6, 1e-3, 0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98, 1 - 1e-3, 1 - 1e-6])
        ends = np.asarray(ppf(levels))
        np.testing.assert_allclose(cdf(ends), levels, rtol=1e-9)
        half = np.diff(ends)[:, None] / 2
        x = ends[:-1, None] + half * (NODES + 1)
        masses = (half * WEIGHTS * np.exp(logpdf(x))).sum(axis=1)
        np.testing.assert_allclose(masses, np.diff(levels), rtol=1e-6, atol=1e-12)
        assert masses.sum() == pytest.approx(1 - 1e-6 - 1e-10, abs=1e-8)


@conformance(30)
def test_coordinate_laws_are_symmetric_and_unimodal(mechanism: Any) -> None:
    structure = mechanism.structure
    if isinstance(structure, Radial):  # a radial density r^-(n-1) f(r) that falls with r
        r = structure.radius_ppf(np.linspace(0.001, 0.999, 400))
        assert (np.diff(structure.radius_logpdf(r) - (mechanism.dimension - 1) * np.log(r)) < 0).all()
        return
    law = structure if isinstance(structure, IIDCoordinates) else structure.given(0.7)
    x = np.asarray(law.ppf(np.linspace(0.5, 1 - 1e-9, 400)))
    np.testing.assert_array_equal(law.logpdf(-x), law.logpdf(x))
    np.testing.assert_allclose(law.cdf(x) + law.cdf(-x), 1.0, atol=1e-15)
    assert x[0] == 0.0
    assert (np.diff(law.logpdf(x)) <= 0).all()
    assert law.ppf(np.array([0.0, 1.0])).tolist() == [-math.inf, math.inf]


@conformance(30)
def test_no_slope_of_the_log_density_exceeds_the_declared_constant(mechanism: Any) -> None:
    """Nor is the constant more than a few times the steepest slope, which would make every bound worthless."""
    structure = mechanism.structure
    if isinstance(structure, Radial):
        return
    law = structure if isinstance(structure, IIDCoordinates) else structure.given(0.7)
    x = float(law.ppf(np.array(0.75))) * np.concatenate([[0.0], np.geomspace(1e-6, 1e3, 600)])
    slopes = np.abs(np.diff(law.logpdf(x))) / np.diff(x)
    rounding = 1e-14 * (1 + np.abs(law.logpdf(x[1:]))) / np.diff(x)
    if law.lipschitz is None:
        assert isinstance(law, PowerCoordinates)
        assert law.beta > 1
    else:
        assert (slopes <= law.lipschitz * (1 + 1e-12) + rounding).all()
        assert slopes.max() > 0.3 * law.lipschitz


@conformance(30)
def test_scale_survival_and_distribution_functions_agree(mechanism: Any) -> None:
    structure = mechanism.structure
    if not isinstance(structure, ScaleMixture):
        return
    levels = np.array([1e-12, 1e-5, 0.1, 0.5, 0.9])
    upper = structure.scale_isf(levels)
    np.testing.assert_allclose(structure.scale_sf(upper), levels, rtol=1e-8)
    np.testing.assert_allclose(structure.scale_cdf(upper) + structure.scale_sf(upper), 1.0, atol=1e-14)
    np.testing.assert_allclose(upper[2:], structure.scale_ppf(1 - levels[2:]), rtol=1e-12)


# --- privacy loss -----------------------------------------------------------------------------------------------------


def log_density(mechanism: Any, z: np.ndarray) -> np.ndarray:
    """log-density of the noise vector, up to a constant, from the structure alone."""
    structure = mechanism.structure
    if isinstance(structure, IIDCoordinates):
        return np.asarray(structure.logpdf(z).sum(axis=-1))
    if isinstance(structure, Radial):
        r = np.linalg.norm(z, axis=-1)
        return np.asarray(structure.radius_logpdf(r) - (z.shape[-1] - 1) * np.log(r))
    u, weights = scale_nodes(structure)
    logs = np.array([structure.given(s).logpdf(z).sum(axis=-1) for s in u])
    top = logs.max(axis=0)
    return np.asarray(top + np.log((weights[:, None] * np.exp(logs - top)).sum(axis=0)))


@conformance(30)
def test_loss_is_the_one_that_the_structure_implies(mechanism: Any) -> None:
    noise = mechanism.sample(np.random.default_rng(21), 100)
    noise = noise[
        np.abs(noise).sum(axis=1) < 20 * np.median(np.abs(noise).sum(axis=1))
    ]  # where the quadrature is exact
    shift = typical_shift(mechanism, noise)
    expected = log_density(mechanism, noise - shift) - log_density(mechanism, noise)
    np.testing.assert_allclose(mechanism.privacy_loss(noise, shift), expected, rtol=1e-6, atol=1e-8)


@conformance(30)
def test_loss_is_antisymmetric_between_the_centres(mechanism: Any) -> None:
    noise = mechanism.sample(np.random.default_rng(22), 200)
    shift = typical_shift(mechanism, noise)
    loss = mechanism.privacy_loss(noise, shift)
    np.testing.assert_allclose(mechanism.privacy_loss(shift - noise, shift), -loss, rtol=1e-7, atol=1e-9)
    np.testing.assert_array_equal(mechanism.privacy_loss(noise, np.zeros_like(shift)), 0.0)
    assert mechanism.privacy_loss(noise.reshape(2, 100, -1), shift).shape == (2, 100)
    assert mechanism.privacy_loss(noise[0], shift).shape == ()
    assert mechanism.privacy_loss(noise[0], shift) == pytest.approx(loss[0], rel=1e-12)


def reweighting_gaps(mechanism: Any, falsify: float = 1.0) -> tuple[float, float]:
    """How far E_P[e^-L; |L| <= 1] is from Q(|L| <= 1), and E_P min(e^-L, e^2) above 1, in units of their limits.

    Both sides by SIZE draws of the sampler; the first is a change of measure, the second a Markov bound with both
    sums bounded, so Hoeffding's inequality holds for any law.
    """
    noise = mechanism.sample(np.random.default_rng(23), SIZE)
    shift = typical_shift(mechanism, noise)
    under_q = falsify * mechanism.privacy_loss(noise, shift)
    under_p = falsify * mechanism.privacy_loss(shift + mechanism.sample(np.random.default_rng(24), SIZE), shift)
    reweighted = np.where(np.abs(under_p) <= 1, np.exp(-np.clip(under_p, -1, 1)), 0.0).mean()
    gap = abs(reweighted - (np.abs(under_q) <= 1).mean()) / ((math.e + 1) * hoeffding(SIZE))
    excess = (np.exp(-np.maximum(under_p, -2)).mean() - 1) / (math.e**2 * hoeffding(SIZE))
    return float(gap), float(excess)


@conformance(10)
def test_loss_and_sampler_belong_to_the_same_law(mechanism: Any) -> None:
    gap, excess = reweighting_gaps(mechanism)
    assert gap <= 1
    assert excess <= 1


@pytest.mark.parametrize("name", list(MECHANISMS))
def test_a_false_loss_does_not_belong_to_the_sampler(name: str) -> None:
    """The check above has teeth: twice the loss, or minus the loss, fails it."""
    kind = MECHANISMS[name]
    middle = {parameter: math.sqrt(math.prod(domain.typical)) for parameter, domain in kind.domains.items()}
    mechanism = kind(**middle, dimension=3)
    assert max(reweighting_gaps(mechanism)) <= 1
    assert max(reweighting_gaps(mechanism, falsify=2.0)) > 1
    assert max(reweighting_gaps(mechanism, falsify=-1.0)) > 1


# --- sampler ----------------------------------------------------------------------------------------------------------


@conformance(10)
def test_sampler_follows_the_law_and_no_scale_near_it(mechanism: Any) -> None:
    """Accepted as it is, rejected when 15% too large or too small."""
    noise = mechanism.sample(np.random.default_rng(25), SIZE)
    values, cdf = statistic(mechanism, noise)
    assert distance(values, cdf) <= hoeffding(SIZE)
    assert distance(values * 1.15, cdf) > hoeffding(SIZE)
    assert distance(values / 1.15, cdf) > hoeffding(SIZE)


@conformance(10)
def test_every_coordinate_has_the_same_size_and_a_fair_sign(mechanism: Any) -> None:
    noise = mechanism.sample(np.random.default_rng(26), SIZE)
    assert np.abs((noise > 0).mean(axis=0) - 0.5).max() <= hoeffding(SIZE)
    assert np.abs((noise[:, :1] * noise[:, 1:] > 0).mean(axis=0) - 0.5).max() <= hoeffding(SIZE)
    sizes = np.abs(noise)
    assert np.abs((sizes > np.median(sizes)).mean(axis=0) - 0.5).max() <= 2 * hoeffding(SIZE)


@conformance(5)
def test_samples_are_fresh_repeatable_and_well_formed(mechanism: Any) -> None:
    rng = np.random.default_rng(27)
    first, second = mechanism.sample(rng, 3), mechanism.sample(rng, 3)
    assert first.shape == (3, mechanism.dimension)
    assert first.dtype == np.float64
    assert (first != second).all()
    assert (first == mechanism.sample(np.random.default_rng(27), 3)).all()
    assert len(np.unique(first)) == first.size
    assert mechanism.sample(rng, 0).shape == (0, mechanism.dimension)
