"""What is drawn has the law that the weights assume: against whole noise vectors, quadrature and closed forms.

Each comparison of samples fails by chance with probability at most 1e-6.
"""

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import logsumexp
from scipy.stats import ks_2samp

from dpaudit.mechanisms import GammaPLRV, GammaPLRVIID, Gaussian, GeneralizedGaussian, Laplace, Product
from dpaudit.mechanisms.base import Array, IIDCoordinates
from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.lower.families import equal
from dpaudit.verify.sampling.histories import Direction, PlainHistories, ShiftedPhase, raw_losses, shifted_phases
from dpaudit.verify.sampling.proposals import proposal_at, tilted_steps
from dpaudit.verify.sampling.sums import CellSum, tilted_sum


def generator(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def whole_losses(part: ShiftedPhase, rng: np.random.Generator, inside: Any) -> Array:
    """The plain way: whole noise vectors, a few at a time."""
    shift = np.zeros(part.mechanism.dimension or 1)
    shift[: part.shift.coordinates] = part.value
    blocks = []
    for block in np.array_split(inside, max(1, len(inside) * len(shift) // 10**6)):
        outputs = part.mechanism.sample(rng, len(block)) + block[:, None] * shift
        blocks.append(part.mechanism.privacy_loss(outputs, shift))
    return np.concatenate(blocks)


@pytest.mark.parametrize(
    ("mechanism", "coordinates"),
    [
        (Gaussian(0.8, clip_norm=math.inf, dimension=9), 9),
        (Laplace(0.3, dimension=300), 80),
        (Laplace(0.05, dimension=300), 300),
        (GammaPLRV(3.0, 0.1, dimension=500), 1),
        (GammaPLRV(3.0, 0.1, dimension=500), 50),
        (GammaPLRV(40_000.0, 6e-5, clip=0.5, dimension=500), 500),
        (GammaPLRV(3.0, 5.0, clip=5.0, dimension=200), 200),
        (Product(3.0, dimension=300), 1),
    ],
)
def test_what_is_drawn_instead_of_whole_vectors_has_the_same_law(mechanism: Any, coordinates: int) -> None:
    """Two-sample Kolmogorov-Smirnov, with and without the record; 1e-6 each. Losses that are equal but for rounding
    must be equal: hence the nine digits."""
    rng, size = generator(4), 8000
    part = ShiftedPhase(mechanism, equal(mechanism, coordinates), 1.0, 1)
    for inside in (np.ones(size, dtype=bool), np.zeros(size, dtype=bool)):
        short, whole = raw_losses(part, rng, inside), whole_losses(part, rng, inside)
        assert ks_2samp(short.round(9), whole.round(9)).pvalue > 1e-6
        assert ks_2samp(1.5 * short.round(9), whole.round(9)).pvalue < 1e-6


def test_a_histories_losses_are_those_of_its_steps() -> None:
    """Three Poisson-sampled steps and one of another phase, against steps added up by hand."""
    claim = Claim(1.0, 1e-5, [Phase(Laplace(1.0), 3, 0.3), Phase(Gaussian(1.0), 1)])
    rng = generator(5)
    for direction, sign in (("remove", 1.0), ("add", -1.0)):
        way: Direction = "remove" if direction == "remove" else "add"
        drawn = PlainHistories(shifted_phases(claim, 1, way), way)(rng, 8000)
        total = np.zeros(8000)
        for mechanism, rate, steps in ((Laplace(1.0, dimension=1), 0.3, 3), (Gaussian(1.0, dimension=1), 1.0, 1)):
            for _ in range(steps):
                inside = (rng.random(8000) < rate) & (way == "remove")
                outputs = mechanism.sample(rng, 8000) + inside[:, None]
                total += sign * np.log1p(rate * np.expm1(mechanism.privacy_loss(outputs, np.ones(1))))
        assert ks_2samp(drawn.round(9), total.round(9)).pvalue > 1e-6


def one_coordinate_moment(law: IIDCoordinates, shift: float, order: float) -> float:
    """E_Q e^(order l) by quadrature."""

    def integrand(x: float) -> float:
        moved, still = (float(law.logpdf(np.array(x - c))) for c in (shift, 0.0))
        return math.exp(order * moved + (1.0 - order) * still)

    points = [-60.0, -5.0, 0.0, shift, shift + 5.0, 60.0]
    return float(sum(quad(integrand, a, b, limit=200, epsabs=1e-14)[0] for a, b in pairwise(points)))


@pytest.mark.parametrize(
    ("mechanism", "shift", "slack"),
    [
        (Gaussian(1.3), 0.9, 0.0),
        (Laplace(0.8), 0.9, 0.0),
        (GeneralizedGaussian(1.5, 1.2), 0.9, 2e-3),
        (GeneralizedGaussian(3.0, 1.2), 0.3, 1e-2),
        (GammaPLRVIID(9.0, 0.2), 0.9, 2e-3),
    ],
)
@pytest.mark.parametrize("order", [-2.5, 0.0, 0.3, 1.0, 2.0, 4.5])
def test_the_normaliser_of_a_tilt(mechanism: Any, shift: float, slack: float, order: float) -> None:
    """Exact for normal and Laplace noise, slightly above by construction elsewhere."""
    law = tilted_sum(replace(mechanism, dimension=1), 1, shift)
    assert law is not None
    value = math.exp(law.log_moments(np.array([order]))[0])
    truth = one_coordinate_moment(mechanism.structure, shift, order)
    assert truth * (1 - 1e-9) <= value <= truth * (1 + slack + 1e-9)


@pytest.mark.parametrize("order", [-1.5, 0.0, 1.0, 3.0])
def test_tilted_draws_have_the_tilted_mean(order: float) -> None:
    """E S under the tilt is the derivative of log W_j (for the sums that are exact); five standard errors."""
    for mechanism, m in ((Gaussian(1.0, dimension=1), 1), (Laplace(2.0, dimension=200), 200)):
        law = tilted_sum(mechanism, m, 1.0 / math.sqrt(m))
        assert law is not None
        loss, bound = law.draw(generator(6), np.full(40_000, order))
        rise = np.diff(law.log_moments(np.array([order - 1e-4, order + 1e-4])))[0] / 2e-4
        assert abs(loss.mean() - rise) < 5 * loss.std() / 200 + 1e-6
        assert (loss == bound).all()


@pytest.mark.slow
@pytest.mark.parametrize(("beta", "scale"), [(1.5, 1.2), (3.0, 10.5), (7.0, 2.0)])
def test_masses_of_cells_are_as_accurate_as_the_weights_assume(beta: float, scale: float) -> None:
    """Against mpmath's incomplete gamma function, in cells all the way to the outermost."""
    law = tilted_sum(GeneralizedGaussian(beta, scale, dimension=1), 1, 0.4)
    assert isinstance(law, CellSum)
    masses = np.abs(np.diff(law.tails))
    with mpmath.workdps(90):
        for i in generator(11).integers(len(masses), size=200):
            ends = [mpmath.power(abs(mpmath.mpf(x)) / scale, beta) for x in law.edges[i : i + 2]]
            exact = mpmath.gammainc(1 / mpmath.mpf(beta), *sorted(ends), regularized=True) / 2
            assert abs(masses[i] / exact - 1) < law.rounding


CELL_LAWS = [GeneralizedGaussian(1.5, 1.2, dimension=4), GammaPLRVIID(9.0, 0.2, dimension=4)]


@pytest.mark.parametrize("mechanism", CELL_LAWS, ids=lambda m: m.name)
def test_cells_draw_the_noise_itself_at_orders_zero_and_one(mechanism: Any) -> None:
    law = tilted_sum(mechanism, 4, 0.5)
    assert law is not None
    part = ShiftedPhase(mechanism, equal(mechanism, 4), 1.0, 1)
    for order in (0.0, 1.0):
        loss, _ = law.draw(generator(7), np.full(8000, order))
        plain = whole_losses(part, generator(8), np.full(8000, order == 1.0))
        assert ks_2samp(loss, plain).pvalue > 1e-6


@pytest.mark.parametrize(
    ("mechanism", "rate", "direction"),
    [
        (Gaussian(2.0), 1.0, "remove"),
        (Gaussian(0.7), 0.1, "remove"),
        (Gaussian(0.7), 0.1, "add"),
        (Laplace(2.0, dimension=90), 0.1, "remove"),
        (GeneralizedGaussian(3.0, 4.0, dimension=20), 0.1, "remove"),
        (GeneralizedGaussian(3.0, 4.0, dimension=20), 1.0, "remove"),
        (GammaPLRVIID(9.0, 0.1), 0.3, "add"),
    ],
)
def test_weights_stay_below_the_ceiling_that_makes_them_valid(
    mechanism: Any, rate: float, direction: Direction
) -> None:
    """log dF/dR <= log_z - theta L in every draw, and E_R dF/dR 1{L > t} = F(L > t), six standard errors."""
    claim = Claim.single(mechanism, epsilon=1.0, delta=1e-5, steps=3, sampling_prob=rate)
    parts = shifted_phases(claim, mechanism.dimension or 1, direction)
    steps = tilted_steps(parts, direction)
    assert steps is not None
    proposal = proposal_at(steps, 3.0)
    loss, weight = proposal(generator(9), 20_000)
    assert (weight + 3.0 * loss <= proposal.log_z + 1e-9).all()
    plain = PlainHistories(parts, direction)(generator(10), 20_000)
    cut = float(np.quantile(plain[10_000:], 0.8))
    shares = np.exp(weight) * (loss > cut), (plain[:10_000] > cut).astype(float)
    error = math.hypot(*(s.std() / math.sqrt(len(s)) for s in shares))
    assert abs(shares[0].mean() - shares[1].mean()) < 6 * error


def test_no_tilt_is_offered_where_none_is_known() -> None:
    product = Claim.single(Product(1.0, dimension=3), epsilon=1.0, delta=1e-5)
    hidden = Claim.single(GammaPLRV(3.0, 0.1, dimension=3), epsilon=1.0, delta=1e-5)
    added = Claim.single(Laplace(1.0, dimension=3), epsilon=1.0, delta=1e-5, sampling_prob=0.5)
    assert tilted_steps(shifted_phases(product, 1, "remove"), "remove") is None
    assert tilted_steps(shifted_phases(hidden, 1, "remove"), "remove") is None
    assert tilted_steps(shifted_phases(added, 3, "add"), "add") is None
    assert tilted_steps(shifted_phases(added, 3, "remove"), "remove") is not None


def test_the_mixture_of_a_sampled_tilt_sums_to_its_normaliser() -> None:
    """log Z of a sampled Gaussian step at an integer tilt is Renyi accounting's binomial sum."""
    claim = Claim.single(Gaussian(1.0), epsilon=1.0, delta=1e-5, sampling_prob=0.1)
    steps = tilted_steps(shifted_phases(claim, 1, "remove"), "remove")
    assert steps is not None
    terms = [
        math.log(math.comb(6, k)) + (6 - k) * math.log(0.9) + k * math.log(0.1) + k * (k - 1) / 2 for k in range(7)
    ]
    assert steps[0].log_z(5.0) == pytest.approx(float(logsumexp(terms)), rel=1e-12)
