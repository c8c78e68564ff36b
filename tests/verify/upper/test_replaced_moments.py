"""Moments of sampled records that are replaced and of batches of fixed size, against integrals of their laws."""

import itertools
import math
from functools import partial

import numpy as np
import pytest
from scipy.stats import norm

from dpaudit.mechanisms import GammaPLRV, GammaPLRVIID, Gaussian, GeneralizedGaussian, Laplace, Product
from dpaudit.mechanisms.base import Array, IIDCoordinates, Mechanism
from dpaudit.verify import Claim, check
from dpaudit.verify.claims import Adjacency, Phase
from dpaudit.verify.inversion import epsilon_at
from dpaudit.verify.lower import certified_lower
from dpaudit.verify.rdp import Moments, between_versions, gaussian_moments
from dpaudit.verify.samplers import TruncatedPoisson, WithoutReplacement
from dpaudit.verify.upper import mixed, replaced_moments, upper_curve, upper_curves
from dpaudit.verify.upper.replaced_moments import THEOREM

OUTPUTS = np.linspace(-60.0, 60.0, 60_001)
ORDERS = np.array([0.05, 0.3, 1.0, 2.5, 7.0])


def integral(first: Array, second: Array, weight: float) -> Array:
    """log E_Q[(P/Q)^a] by a sum, a = order + 1, with densities given by their logarithms."""
    powers = np.multiply.outer(ORDERS + 1.0, first) - np.multiply.outer(ORDERS, second)
    return np.asarray(np.logaddexp.reduce(powers, axis=1) + math.log(weight))


def mixed_with(around: Array, version: Array, q: float) -> Array:
    return np.asarray(np.logaddexp(math.log1p(-q) + around, math.log(q) + version))


@pytest.mark.parametrize("q", [1e-3, 0.02, 0.3, 0.9])
@pytest.mark.parametrize("mu", [0.05, 0.5, 1.5])
def test_no_two_versions_are_further_from_each_other(mu: float, q: float) -> None:
    """Normal noise, versions anywhere within the shifts that were given."""
    width = float(OUTPUTS[1] - OUTPUTS[0])
    for most in ((mu, mu), (2 * mu, mu), (mu, 2 * mu)):
        known = [partial(gaussian_moments, one, q) for one in most]
        found = between_versions(known[0], known[1], q)(ORDERS)
        for v, w in itertools.product((-1.0, -0.5, 1.0), (0.0, 0.6, 1.0)):
            laws = [mixed_with(norm.logpdf(OUTPUTS), norm.logpdf(OUTPUTS, at), q) for at in (v * most[0], w * most[1])]
            assert (found >= integral(laws[0], laws[1], width) - 1e-12).all()


@pytest.mark.parametrize(
    ("mu", "q", "order", "most"), [(0.05, 0.02, 2.5, 1.01), (0.3, 1e-3, 7.0, 1.05), (1.0, 0.02, 7.0, 1.6)]
)
def test_opposite_versions_are_nearly_as_far(mu: float, q: float, order: float, most: float) -> None:
    law = partial(gaussian_moments, mu, q)
    densities = [mixed_with(norm.logpdf(OUTPUTS), norm.logpdf(OUTPUTS, at), q) for at in (mu, -mu)]
    exact = integral(*densities, float(OUTPUTS[1] - OUTPUTS[0]))[list(ORDERS).index(order)]
    assert exact < between_versions(law, law, q)(np.array([order]))[0] < most * exact


def log_masses(noise: Mechanism, places: list[tuple[float, float]]) -> dict[tuple[float, float], Array]:
    """Of cells of two coordinates around each place; cells that hold next to nothing of one law are left out of all."""
    structure = noise.structure
    assert isinstance(structure, IIDCoordinates)
    axis = np.linspace(-14.0, 14.0, 281)
    masses = {place: np.multiply.outer(*(np.diff(structure.cdf(axis - x)) for x in place)).ravel() for place in places}
    kept = np.all([law > 1e-12 for law in masses.values()], axis=0)
    return {place: np.log(law[kept]) for place, law in masses.items()}


@pytest.mark.parametrize(
    "noise",
    [
        Laplace(0.8, dimension=2),
        GeneralizedGaussian(1.5, 1.0, dimension=2),
        GeneralizedGaussian(3.0, 2.0, dimension=2),
        GammaPLRVIID(6.0, 0.25, dimension=2),
    ],
    ids=["laplace", "power-1.5", "power-3", "gamma-plrv-iid"],
)
@pytest.mark.parametrize("rate", [0.01, 0.4])
def test_no_release_in_two_coordinates_has_larger_moments(noise: Mechanism, rate: float) -> None:
    """Records and others anywhere on the circle, or a ghost, under every relation."""
    root = math.sqrt(0.5)
    ends = [(1.0, 0.0), (-1.0, 0.0), (root, root), (-root, -root)]
    laws = log_masses(noise, [(0.0, 0.0), *ends])

    def moments_at(adjacency: str, q: float) -> Moments:
        found = mixed.moments_of(Claim(0.0, 0.0, [Phase(noise, 1)], adjacency), Phase(noise, 1), q)  # type: ignore[arg-type]
        assert found is not None
        return found

    def bound(adjacency: str, phase: Phase) -> Array:
        return replaced_moments.carried(Claim(1.0, 1e-5, [phase], adjacency), phase, moments_at)(ORDERS)  # type: ignore[arg-type]

    fixed = Phase(noise, sampler=WithoutReplacement(rate, 1))
    poisson, drawn, ghost = (
        bound("replace-one", Phase(noise, 1, rate)),
        bound("replace-one", fixed),
        bound("add-remove", fixed),
    )
    assert (poisson <= drawn * (1 + 1e-9)).all()
    assert (ghost <= drawn * (1 + 1e-9)).all()
    nothing = (0.0, 0.0)
    for v, w, y in itertools.product(ends, ends, [nothing, *ends]):
        p, q = (mixed_with(laws[y], laws[at], rate) for at in (v, w))
        if y == nothing:
            assert (poisson >= integral(p, q, 1.0)).all()
        assert (drawn >= integral(p, q, 1.0)).all()
    for v, y in itertools.product(ends, ends):
        p, q = (mixed_with(laws[y], laws[at], rate) for at in (v, nothing))
        assert (ghost >= np.maximum(integral(p, q, 1.0), integral(q, p, 1.0))).all()


CASES = {
    "laplace": (Laplace(1.0, dimension=1000), 2.0),
    "hidden-scale": (GammaPLRV(4.0, 0.2, dimension=100), 2.5),
    "gamma-plrv-iid": (GammaPLRVIID(4.0, 0.2, dimension=100), 2.7),
    "power": (GeneralizedGaussian(3.0, 2.0, dimension=50), 1.5),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_record_that_is_replaced_costs_little_more_than_one_that_is_added(name: str) -> None:
    """Who is drawn revealed, it would cost some hundred times as much; in batches of fixed size three times."""
    noise, most = CASES[name]

    def least(adjacency: Adjacency, phase: Phase) -> float:
        return epsilon_at(upper_curve(Claim(1.0, 1e-5, [phase], adjacency)), np.array([1e-5]))[0]

    poisson = Phase(noise, 1000, 0.01)
    lower = certified_lower(Claim(1.0, 1e-5, [poisson], "replace-one")).epsilon(np.array([1e-5]))[0]
    assert lower <= least("replace-one", poisson) <= most * least("add-remove", poisson)
    fixed = Phase(noise, sampler=WithoutReplacement(0.001, 50))
    ghost, replaced = least("zero-out", fixed), least("replace-one", fixed)
    assert ghost <= replaced < 0.35 * least("replace-one", Phase(noise, 50))


def test_histories_of_several_noises_and_batches_that_are_cut() -> None:
    laplace, normal = Laplace(4.0, dimension=40), Gaussian(4.0, dimension=40)
    several = Claim(1.0, 1e-5, [Phase(laplace, 20, 0.1), Phase(normal, 20, 0.1), Phase(laplace, 1)], "replace-one")
    assert replaced_moments.applies(several)
    verdict = check(several)
    assert verdict.epsilon_lower <= verdict.epsilon_upper < 2.5 * verdict.epsilon_lower
    often = Phase(laplace, sampler=TruncatedPoisson(0.1, 40, 1000, 100))
    fixed = Phase(laplace, sampler=WithoutReplacement(0.04, 100))
    cut, drawn = (check(Claim(1.0, 1e-5, [phase], "replace-one")).epsilon_upper for phase in (often, fixed))
    assert cut == pytest.approx(drawn, rel=0.03)


def test_batches_of_fixed_size_are_never_read_as_the_record_s_own_coin() -> None:
    """Between opposite versions the others of a Poisson batch are silent; here they may be opposed as well."""
    noise = GeneralizedGaussian(1.5, 2.0, dimension=30)
    fixed = Claim(1.0, 1e-5, [Phase(noise, sampler=WithoutReplacement(0.05, 30))], "replace-one")
    poisson = Claim(1.0, 1e-5, [Phase(noise, 30, 0.05)], "replace-one")
    found = [
        [float(curve.epsilon(np.array([1e-5]))[0]) for curve in upper_curves(claim) if THEOREM in curve.theorem]
        for claim in (fixed, poisson)
    ]
    assert len(found[0]) == len(found[1]) == 1
    assert found[0][0] > 1.5 * found[1][0]


def test_what_has_a_pair_or_no_moments_is_left_to_other_theorems() -> None:
    for phase in (
        Phase(Gaussian(1.0, dimension=3), 3, 0.1),
        Phase(Product(1.0, dimension=3), 3, 0.1),
        Phase(Laplace(1.0, dimension=1), 3, 0.1),
        Phase(Laplace(1.0, clip_norm=1.0, dimension=9), 3, 0.1),
        Phase(Laplace(1.0, dimension=9), 3),
        Phase(Laplace(1.0, dimension=9), 1, 0.1),
    ):
        claim = Claim(1.0, 1e-5, [phase], "replace-one")
        assert not replaced_moments.applies(claim)
        with pytest.raises(ValueError, match="noise that has moments"):
            replaced_moments.bound(claim)
    assert not replaced_moments.applies(Claim(1.0, 1e-5, [Phase(Laplace(1.0, dimension=9), 3, 0.1)]))
