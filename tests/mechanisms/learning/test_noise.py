"""Noise: the right law at the right size, one independent stream per seed and purpose."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from reference import DEVICE, noise_vector
from scipy import special, stats

from dpaudit.mechanisms import (
    GammaPLRV,
    GammaPLRVIID,
    GammaScaleLaplace,
    Gaussian,
    GeneralizedGaussian,
    Laplace,
    Product,
)
from dpaudit.mechanisms.base import Domain, Mechanism
from dpaudit.mechanisms.learning.noise import SAMPLERS, Streams, draw
from dpaudit.mechanisms.registry import MECHANISMS

SIZE = 40_000
ALPHA = 1e-6  # error probability of each test below; the seeds are fixed

# the law of |one coordinate| written down here from the definitions; iid coordinates
IID = {
    "gaussian": (Gaussian(1.7, clip=0.5), stats.norm(scale=0.85).cdf),
    "laplace": (Laplace(3.0), stats.laplace(scale=3.0).cdf),
    "generalized-gaussian 1": (GeneralizedGaussian(1.0, 0.3), stats.gennorm(1.0, scale=0.3).cdf),
    "generalized-gaussian 2.33": (GeneralizedGaussian(2.33, 5.0), stats.gennorm(2.33, scale=5.0).cdf),
    "generalized-gaussian 40": (GeneralizedGaussian(40.0, 5.0), stats.gennorm(40.0, scale=5.0).cdf),
    "gamma-plrv-iid": (GammaPLRVIID(4.0, 0.02), lambda x: pareto_cdf(x, 4.0, 0.02)),
    "gamma-plrv-iid heavy": (GammaPLRVIID(0.5, 2.0), lambda x: pareto_cdf(x, 0.5, 2.0)),
    "gamma-scale-laplace": (GammaScaleLaplace(2.5, 0.3), lambda x: bessel_cdf(x, 2.5, 0.3)),
    "gamma-scale-laplace narrow": (GammaScaleLaplace(80.0, 0.02), lambda x: bessel_cdf(x, 80.0, 0.02)),
}


def pareto_cdf(x: NDArray[np.float64], k: float, theta: float) -> NDArray[np.float64]:
    """The integral of (k theta / 2)(1 + theta |x|)^-(k+1)."""
    tail = 0.5 * (1 + theta * np.abs(x)) ** -k
    return np.where(x > 0, 1 - tail, tail)


def bessel_cdf(x: NDArray[np.float64], k: float, theta: float) -> NDArray[np.float64]:
    """The integral of exp(-|x|/b)/(2b) over b ~ Gamma(k, theta) and x."""
    y = np.abs(x) / theta
    tail = np.exp(k / 2 * np.log(y) + np.log(special.kve(k, 2 * np.sqrt(y))) - 2 * np.sqrt(y) - math.lgamma(k))
    return np.where(x > 0, 1 - tail, tail)


def noise_of(mechanism: Mechanism, size: int, seed: int = 1) -> NDArray[np.float64]:
    return noise_vector(mechanism, Streams(seed, DEVICE), size)


def many(mechanism: Mechanism, dimension: int, count: int) -> NDArray[np.float64]:
    streams = Streams(2, DEVICE)
    return np.stack([noise_vector(mechanism, streams, dimension) for _ in range(count)])


@pytest.mark.parametrize("case", IID)
def test_coordinates_have_the_law_and_no_other_scale(case: str) -> None:
    mechanism, cdf = IID[case]
    noise = noise_of(mechanism, SIZE)
    assert stats.kstest(noise, cdf).pvalue > ALPHA
    wrong = 1.3 if "heavy" in case else 1.1  # a tail like |x|^-1/2 hardly shows its scale
    assert stats.kstest(noise * wrong, cdf).pvalue < ALPHA
    assert stats.kstest(noise / wrong, cdf).pvalue < ALPHA


@pytest.mark.parametrize("case", IID)
def test_coordinates_are_independent_and_signs_fair(case: str) -> None:
    noise = noise_of(IID[case][0], SIZE)
    signs, sizes = np.sign(noise), stats.rankdata(np.abs(noise)) / SIZE - 0.5
    # each product has mean 0 and at most unit variance: 5 standard errors, P < 6e-7 each
    for lag in (1, 2, 8, 16):
        assert abs(np.mean(signs[lag:] * signs[:-lag])) < 5 / math.sqrt(SIZE - lag)
        assert abs(np.mean(sizes[lag:] * sizes[:-lag]) * 12) < 5 / math.sqrt(SIZE - lag)
    assert abs(signs.mean()) < 5 / math.sqrt(SIZE)
    assert abs(np.mean(signs * sizes) * math.sqrt(12)) < 5 / math.sqrt(SIZE)


@pytest.mark.parametrize(("k", "theta"), [(5.0, 0.1), (0.7, 2.0)])
def test_gamma_plrv_has_one_scale_per_vector(k: float, theta: float) -> None:
    n, count = 500, 3000
    vectors = many(GammaPLRV(k, theta), n, count)
    # |z|_1 u is Gamma(n) given u, so theta |z|_1 is a ratio of Gamma(n) and Gamma(k): a beta prime law
    law = stats.betaprime(n, k)
    sizes = theta * np.abs(vectors).sum(axis=1)
    assert stats.kstest(sizes, law.cdf).pvalue > ALPHA
    assert stats.kstest(sizes * 1.5, law.cdf).pvalue < ALPHA
    assert stats.kstest(theta * np.abs(many(GammaPLRVIID(k, theta), n, count)).sum(axis=1), law.cdf).pvalue < ALPHA
    # given |z|_1 the vector is uniform on the l_1 sphere: |z_1| / |z|_1 is Beta(1, n-1), independent of the size
    parts = np.abs(vectors[:, 0]) / np.abs(vectors).sum(axis=1)
    assert stats.kstest(parts, stats.beta(1, n - 1).cdf).pvalue > ALPHA
    assert stats.spearmanr(parts, sizes).pvalue > ALPHA


def test_product_has_a_half_normal_radius_and_a_uniform_direction() -> None:
    n, count = 50, 4000
    vectors = many(Product(0.3), n, count)
    radii = np.linalg.norm(vectors, axis=1)
    law = stats.halfnorm(scale=0.3)
    assert stats.kstest(radii, law.cdf).pvalue > ALPHA
    assert stats.kstest(radii * 1.2, law.cdf).pvalue < ALPHA
    # a coordinate of a uniform direction has (h_1 + 1) / 2 ~ Beta((n-1)/2, (n-1)/2)
    directions = vectors / radii[:, None]
    for coordinate in (0, 17, n - 1):
        values = (directions[:, coordinate] + 1) / 2
        assert stats.kstest(values, stats.beta((n - 1) / 2, (n - 1) / 2).cdf).pvalue > ALPHA
    assert stats.spearmanr(np.abs(directions[:, 0]), radii).pvalue > ALPHA


def test_every_registered_mechanism_has_a_fast_sampler() -> None:
    assert set(SAMPLERS) == set(MECHANISMS)


@dataclass(frozen=True)
class Triangular:
    """A mechanism that torch has never heard of."""

    name: ClassVar[str] = "triangular"
    summary: ClassVar[str] = ""
    domains: ClassVar[dict[str, Domain]] = {}
    width: float = 2.0
    clip: float = 1.0
    clip_norm: float = 2.0
    dimension: int | None = None

    def sample(self, rng: np.random.Generator, size: int) -> NDArray[np.float64]:
        return rng.triangular(-self.width, 0.0, self.width, (size, self.dimension or 0))


def test_an_unknown_mechanism_is_drawn_by_its_own_sampler() -> None:
    noise = noise_of(Triangular(), SIZE)  # type: ignore[arg-type]
    assert stats.kstest(noise, stats.triang(0.5, loc=-2, scale=4).cdf).pvalue > ALPHA
    assert np.array_equal(noise, noise_of(Triangular(), SIZE))  # type: ignore[arg-type]
    assert not np.array_equal(noise, noise_of(Triangular(), SIZE, seed=2))  # type: ignore[arg-type]
    generator = Streams(3, DEVICE).noise
    assert not draw(Triangular(), generator, 5, DEVICE).equal(draw(Triangular(), generator, 5, DEVICE))  # type: ignore[arg-type]


@pytest.mark.parametrize("mechanism", [case[0] for case in IID.values()] + [GammaPLRV(0.01, 1.0), Product(1.0)])
def test_no_draw_is_nan_and_a_given_tensor_is_filled(mechanism: Mechanism) -> None:
    out = torch.full((1001,), math.nan, device=DEVICE)
    for seed in range(20):
        assert draw(mechanism, Streams(seed, DEVICE).noise, 1001, DEVICE, out=out) is out
        assert not out.isnan().any()
    assert out.dtype == torch.float32
    assert np.array_equal(out.double().cpu().numpy(), noise_of(mechanism, 1001, seed=19))


def test_another_dimension_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Expected gaussian.dimension=7 to be the 8 numbers released"):
        draw(Gaussian(1.0, dimension=7), Streams(0, DEVICE).noise, 8, DEVICE)


def test_streams_differ_between_seeds_and_purposes_and_repeat() -> None:
    def first(seed: int) -> list[bytes]:
        streams = Streams(seed, DEVICE)
        return [
            torch.rand(8, generator=g, device=DEVICE).cpu().numpy().tobytes()
            for g in (streams.init, streams.sampling, streams.noise)
        ]

    # the last three seeds are 7 in their low 32 bits, which is all that torch's own seeding looks at; the first of
    # them and a stream number are also what SeedSequence([7, 1, 0]) would make of seed 7 and another stream
    seeds = [*range(300), 2**32 + 7, 2**33 + 7, 2**63 + 7]
    drawn = [value for seed in seeds for value in first(seed)]
    assert len(set(drawn)) == 3 * len(seeds)
    assert first(5) == first(5)
    assert len({Streams(seed, DEVICE).init.initial_seed() for seed in seeds}) == len(seeds)


def test_streams_of_neighbouring_seeds_are_uncorrelated() -> None:
    first = [torch.rand(500, generator=Streams(seed, DEVICE).noise, device=DEVICE) for seed in range(200)]
    values = torch.stack(first).double().cpu().numpy()
    assert stats.kstest(values.ravel(), "uniform").pvalue > ALPHA
    centred = (values - 0.5) * math.sqrt(12)
    # 199 correlations of neighbours, each of standard error 1/sqrt(500): a union bound at 5.5 of them, P < 1e-5
    assert np.abs(np.mean(centred[1:] * centred[:-1], axis=1)).max() < 5.5 / math.sqrt(500)
    # the same number at the same place of every stream: 500 means of 200 numbers
    assert np.abs(centred.mean(axis=0)).max() < 5.5 / math.sqrt(200)
