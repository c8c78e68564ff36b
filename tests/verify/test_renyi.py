"""Renyi divergences from below: near order 1, and of many coordinates."""

import math
from collections import Counter
from itertools import product

import mpmath
import numpy as np
import pytest

from dpaudit.mechanisms import GammaPLRVIID, Gaussian, GeneralizedGaussian, Laplace
from dpaudit.mechanisms.base import IIDCoordinates, Mechanism
from dpaudit.verify import guarantee_check
from dpaudit.verify.checking import check
from dpaudit.verify.claims import Adjacency, Claim, Phase
from dpaudit.verify.guarantees import RenyiDP, ZeroConcentratedDP
from dpaudit.verify.implied import claim_stating
from dpaudit.verify.lower.divergences import _counts, _kullback_leibler, divergence_lower
from dpaudit.verify.renyi import divergence_upper, replaced_rho, rho_upper
from dpaudit.verify.samplers import BufferedShuffle, Shuffled

CLOSE = 1.0 + 1e-12  # an order


def lower(phase: Phase, adjacency: Adjacency, *orders: float) -> list[float]:
    claim = Claim(0.0, 0.0, [phase], adjacency).canonical("lower")
    return [float(x) for x in divergence_lower(claim, np.array(orders))]


def laplace_divergence(order: float, moved: float) -> float:
    """In closed form, of one coordinate moved by so many scales; at order 1 the Kullback-Leibler divergence."""
    with mpmath.workdps(50):
        a, t = mpmath.mpf(order), mpmath.mpf(moved)
        if order == 1.0:
            return float(t + mpmath.expm1(-t))
        total = (a * mpmath.exp((a - 1) * t) + (a - 1) * mpmath.exp(-a * t)) / (2 * a - 1)
        return float(mpmath.log(total) / (a - 1))


@pytest.mark.parametrize("scale", [0.01, 1.0, 300.0])
@pytest.mark.parametrize(("adjacency", "clips"), [("add-remove", 1), ("replace-one", 2)])
def test_close_to_order_1_laplace_noise_has_its_kullback_leibler_divergence(
    scale: float, adjacency: Adjacency, clips: int
) -> None:
    truth, phase = laplace_divergence(1.0, clips / scale), Phase(Laplace(scale, clip_norm=1.0))
    [found] = lower(phase, adjacency, CLOSE)
    assert truth * (1 - 1e-5) <= found <= truth
    stated = check(claim_stating(RenyiDP(CLOSE, truth * 0.999), [phase], adjacency))
    assert stated.verdict == "refuted"
    assert check(claim_stating(ZeroConcentratedDP(truth * 0.9999), [phase], adjacency)).verdict == "refuted"


@pytest.mark.parametrize("rate", [1.0, 0.3, 0.001])
@pytest.mark.parametrize("noise", [Laplace(0.8), GammaPLRVIID(2.5, 0.7), GeneralizedGaussian(1.5, 0.9)])
def test_sampled_noise_has_that_of_its_mixture_by_quadrature(noise: Mechanism, rate: float) -> None:
    law = noise.structure
    assert isinstance(law, IIDCoordinates)
    nodes, weights = np.polynomial.legendre.leggauss(24)
    ends = np.concatenate([-np.geomspace(1e9, 1e-3, 160), [0.0], np.geomspace(1e-3, 0.999, 60)])
    ends = np.unique(np.concatenate([ends, 1.0 - ends]))
    halves = np.diff(ends) / 2.0
    x = (ends[:-1] + halves)[:, None] + halves[:, None] * nodes
    out, moved = np.exp(law.logpdf(x)), np.exp(law.logpdf(x - 1.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        excess = rate * np.where(out > 0, (moved - out) / out, 0.0)
        terms = out * ((1.0 + excess) * np.log1p(excess) - excess), out * (excess - np.log1p(excess))
    truth = max(float((halves[:, None] * weights * np.nan_to_num(term, posinf=0.0)).sum()) for term in terms)
    [found] = lower(Phase(noise, 3, rate), "add-remove", CLOSE)
    assert 3 * truth * (1 - 1e-3) <= found <= 3 * truth * (1 + 1e-7)


def power_divergence(beta: float, moved: float, order: float) -> float:
    """Of density exp(-|x|^beta) moved by so much, by quadrature in long arithmetic about the only peak."""
    with mpmath.workdps(40):
        b, v, a = (mpmath.mpf(number) for number in (beta, moved, order))
        peak = v / (1 - ((a - 1) / a) ** (1 / (b - 1)))
        width = ((peak - v) / (b * (b - 1) * (a - 1) * peak ** (b - 2) * v)) ** mpmath.mpf("0.5")

        def exponent(x: mpmath.mpf) -> mpmath.mpf:
            return (a - 1) * abs(x) ** b - a * abs(x - v) ** b

        cuts = [-mpmath.inf, *sorted({mpmath.mpf(0), v, *(peak + j * width for j in range(-40, 41, 4))}), mpmath.inf]
        mass = mpmath.quad(lambda x: mpmath.exp(exponent(x) - exponent(peak)), cuts)
        return float((mpmath.log(mass * b / 2 / mpmath.gamma(1 / b)) + exponent(peak)) / (a - 1))


@pytest.mark.parametrize("rate", [1.0, 0.3])
def test_many_coordinates_show_what_the_envelope_allows(rate: float) -> None:
    """Each of a million is moved by a 2,000th of its scale: a hundred of them show a twentieth of it."""
    noise = GeneralizedGaussian(3.0, 20.0, clip_norm=3.0, dimension=10**6)
    orders = np.array([2.0, 8.0])
    high = divergence_upper(Claim(0.0, 0.0, [Phase(noise, 1, rate)]).canonical("upper"), orders)
    low = np.array(lower(Phase(noise, 1, rate), "add-remove", *orders))
    assert (0.99 * high <= low).all()
    assert (low <= high).all()


@pytest.mark.parametrize("rate", [0.05, 0.6])
def test_coordinates_that_are_sampled_together_have_the_moment_of_their_product(rate: float) -> None:
    """Two coordinates by quadrature in the plane, under p = infinity."""
    noise = GeneralizedGaussian(3.0, 4.0, clip_norm=math.inf, dimension=2)
    x = np.linspace(-14.0, 26.0, 2001)
    law = noise.structure
    assert isinstance(law, IIDCoordinates)
    out, ratio = np.exp(law.logpdf(x)), np.exp(law.logpdf(x - 1.0) - law.logpdf(x))
    both = 1.0 - rate + rate * np.multiply.outer(ratio, ratio)
    plane = np.multiply.outer(out, out) * (x[1] - x[0]) ** 2
    truth = [math.log(float((plane * both**a).sum())) / (a - 1.0) for a in (2.0, 5.0)]
    low = np.array(lower(Phase(noise, 1, rate), "add-remove", 2.0, 5.0))
    assert low == pytest.approx(truth, rel=3e-3)
    assert (low <= np.array(truth) * (1 + 1e-9)).all()


def test_next_to_order_1_a_claim_holds_by_a_larger_order() -> None:
    """Its own bound has 1/(order - 1) of what no float tells apart, and the divergence grows with the order."""
    noise = GeneralizedGaussian(8.0, 1.0, dimension=1)
    stated = check(claim_stating(RenyiDP(1.0 + 1e-8, 60.0), [Phase(noise)], "add-remove"))
    assert stated.verdict == "certified", stated.reason
    assert "larger order" in stated.reason
    assert check(claim_stating(RenyiDP(1.001, 58.2), [Phase(noise)], "add-remove")).verdict == "certified"


@pytest.mark.parametrize("noise", [
    Laplace(2.0, clip=17.0, clip_norm=8.0, dimension=273), Laplace(84.0, clip=11.0, clip_norm=math.inf, dimension=3000),
    GeneralizedGaussian(8.0, 0.8, clip=0.2, clip_norm=1.5, dimension=10**6),
])  # fmt: skip
@pytest.mark.parametrize("rate", [0.9999, 0.1])
def test_no_sampled_release_costs_more_than_one_that_is_not(noise: Mechanism, rate: float) -> None:
    orders = np.array([1.001, 1.4, 2.0, 7.0, 55.0])
    drawn, whole = (
        divergence_upper(Claim(0.0, 0.0, [Phase(noise, 1, q)]).canonical("upper"), orders) for q in (rate, 1.0)
    )
    moments = (orders - 1.0) * whole
    with np.errstate(over="ignore"):
        mixed = np.where(moments > 600.0, moments + math.log(rate), np.log1p(rate * np.expm1(moments)))
    # a rho, which bounds the whole release as well, is no moment
    assert (drawn <= mixed / (orders - 1.0) * (1 + 1e-3)).all()


@pytest.mark.parametrize("rate", [1.0, 0.9, 0.3])
def test_a_sampled_claim_below_order_2_holds_where_one_without_sampling_does(rate: float) -> None:
    noise = GeneralizedGaussian(4.0, 2.0, dimension=5, clip_norm=2.0)
    assert check(claim_stating(RenyiDP(1.1, 7.0), [Phase(noise, 10, rate)], "add-remove")).verdict == "certified"


@pytest.mark.parametrize("beta", [1.1, 1.5, 2.5, 4.0])
def test_divergences_of_power_laws_are_nearly_exact_at_every_order(beta: float) -> None:
    """Beyond 2,000 nats the upper bound is not refined."""
    orders = np.array([1.01, 1.5, 2.0, 2.5, 7.0, 64.0])
    for moved in (0.1, 1.0):
        claim = Claim.single(GeneralizedGaussian(beta, 1.0, clip=moved, dimension=1), steps=1, epsilon=1.0, delta=0.0)
        exact = np.array([power_divergence(beta, moved, order) for order in orders])
        low, high = divergence_lower(claim, orders), divergence_upper(claim, orders)
        np.testing.assert_array_less(low, exact * (1 + 1e-12))
        np.testing.assert_allclose(low, exact, rtol=2e-3)
        np.testing.assert_array_less(exact, high * (1 + 1e-12))
        small = (orders * exact < 1500.0) & (orders < 30.0)
        np.testing.assert_allclose(high[small], exact[small], rtol=2e-2)


def test_divergences_far_beyond_floats_are_shown() -> None:
    """A record that is sampled has it, too, and one that is replaced moves the noise by as much where it is sampled."""
    exact, rate = power_divergence(8.0, 1.0, 8.0), 0.01
    noise = GeneralizedGaussian(8.0, 1.0, clip=1.0, dimension=1)
    adjacencies: list[Adjacency] = ["add-remove", "replace-one"]
    for adjacency in adjacencies:
        (found,) = lower(Phase(noise, 1, rate), adjacency, 8.0)
        assert exact * (1 - 1e-9) < found < exact
    (found,) = lower(Phase(GeneralizedGaussian(40.0, 1.0, clip=1.0, dimension=1), 1), "add-remove", 2.0)
    assert math.isfinite(found)
    assert found > 1e60


def test_a_sum_over_cells_is_below_that_of_any_masses_between_the_bounds() -> None:
    rng = np.random.default_rng(5)
    for spread in (1e-6, 1e-2, 1.0, 30.0, 100.0):
        p = rng.dirichlet(np.ones(50))
        q = p * np.exp(spread * rng.uniform(-3.0, 3.0, size=50))
        q /= q.sum()
        with mpmath.workdps(50):
            pairs = [(mpmath.mpf(float(a)), mpmath.mpf(float(b))) for a, b in zip(p, q, strict=True)]
            truth = float(sum(a * mpmath.log(a / b) - a + b for a, b in pairs))
        near = _kullback_leibler((p * (1 - 1e-15), p * (1 + 1e-15)), q * (1 - 1e-15), q * (1 + 1e-15))
        wide = _kullback_leibler((p * 0.9, p * 1.1), q * 0.9, q * 1.1)
        assert truth * (1 - 1e-6) <= near <= truth
        assert wide <= near
    masses = np.array([0.5, 0.5, 0.0])
    assert _kullback_leibler((masses, masses), masses, masses) == 0.0
    assert math.isfinite(_kullback_leibler((np.array([1.0]), np.array([1.0])), np.array([0.0]), np.array([0.0])))


@pytest.mark.parametrize("clip_norm", [1.0, 1.3, 1.7, 2.0, 3.0, math.inf])
@pytest.mark.parametrize("scale", [0.05, 1.0, 40.0])
def test_no_number_of_equal_coordinates_is_better_than_those_looked_at(scale: float, clip_norm: float) -> None:
    noise = Laplace(scale, clip_norm=clip_norm, dimension=60)
    looked = _counts(noise, noise.structure)

    def cost(order: float, count: int) -> float:
        return count * laplace_divergence(order, count ** (-1.0 / clip_norm) / scale)

    for order in (1.0, 1.01, 2.0, 7.0, 100.0):
        best = max(cost(order, count) for count in range(1, 61))
        # between p = 1 and 2 the best number lies inside, of which a ladder comes near
        slack = 0.02 if 1 < clip_norm < 2 else 1e-9
        assert max(cost(order, count) for count in looked) >= best * (1 - slack)
    assert len(looked) <= (14 if 1 < clip_norm < 2 else 1)


@pytest.mark.parametrize(
    ("noise", "coordinates", "moved"),
    [
        (Laplace(1.0, clip_norm=math.inf, dimension=3000), 3000, 1.0),
        (Laplace(1.0, clip_norm=2.0, dimension=8000), 8000, 8000**-0.5),
        (Laplace(1.0, clip_norm=1.0, dimension=8000), 1, 1.0),
    ],
)
def test_as_many_coordinates_are_moved_as_tell_most(noise: Laplace, coordinates: int, moved: float) -> None:
    orders = (CLOSE, 2.0, 6.0)
    for order, found in zip(orders, lower(Phase(noise, 2), "add-remove", *orders), strict=True):
        truth = 2 * coordinates * laplace_divergence(1.0 if order == CLOSE else order, moved)
        assert truth * (1 - 1e-4) <= found <= truth * (1 + 1e-12)


def test_what_is_refuted_by_a_pair_is_not_integrated_for_a_seventh_digit(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> float:
        raise AssertionError

    monkeypatch.setattr(guarantee_check, "divergence_at_most", never)
    found = check(claim_stating(RenyiDP(8.0, 0.5), [Phase(Laplace(1.0, clip_norm=1.0))]))
    assert found.verdict == "refuted"
    assert found.guarantee is not None
    assert found.guarantee["upper"] == pytest.approx(laplace_divergence(8.0, 1.0), rel=1e-6)


@pytest.mark.parametrize("order", [1.01, 2.0, 30.0])
@pytest.mark.parametrize(("adjacency", "clips"), [("zero-out", 1), ("replace-one", 2)])
def test_batches_that_straddle_have_the_mean_moment_over_all_places(
    order: float, adjacency: Adjacency, clips: int
) -> None:
    records, batch, epochs, sigma = 4, 3, 6, 3.0
    moment = mpmath.mpf(0)
    for at in product(range(records), repeat=epochs):
        times = Counter((i * records + place) // batch for i, place in enumerate(at))
        squares = sum(count**2 for count in times.values()) * clips**2 / sigma**2
        moment += mpmath.exp(order * (order - 1.0) / 2.0 * squares)
    truth = float(mpmath.log(moment / records**epochs) / (order - 1.0))
    sampler = Shuffled.of(records, batch, epochs, last_batch="straddling")
    claim = Claim(0.0, 0.0, [Phase(Gaussian(sigma), sampler=sampler)], adjacency).canonical("upper")
    found = divergence_upper(claim, np.array([order]))[0]
    assert truth * (1.0 - 1e-12) <= found <= truth * (1.0 + 1e-9)
    worst = order / 2.0 * (epochs + 2 * 2) * clips**2 / sigma**2
    assert found < worst * 0.999


def test_a_record_of_a_short_buffer_is_hardly_ever_twice_in_one_batch() -> None:
    for sampler in (BufferedShuffle(60_000, 256, 10_000, 60, "straddling"), Shuffled.of(60_000, 256, 60)):
        claim = Claim(0.0, 0.0, [Phase(Gaussian(8.0), sampler=sampler)]).canonical("upper")
        assert divergence_upper(claim, np.array([8.0]))[0] == pytest.approx(8.0 / 2.0 * 60.0 / 64.0, rel=1e-3)


def replaced_divergence(mu: float, q: float, order: float) -> float:
    """Of (1-q) N(0, 1) + q N(mu, 1) against (1-q) N(0, 1) + q N(-mu, 1)."""
    with mpmath.workdps(30):
        m, rate, a = mpmath.mpf(mu), mpmath.mpf(q), mpmath.mpf(order)

        def integrand(x: mpmath.mpf) -> mpmath.mpf:
            first, second = (1 - rate + rate * mpmath.exp(way * m * x - m * m / 2) for way in (1, -1))
            return first**a * second ** (1 - a) * mpmath.npdf(x)

        ends = [-14 - m, -m, 0, m, a * m, a * m + 14]
        return float(mpmath.log(mpmath.quad(integrand, sorted(set(ends)))) / (a - 1))


@pytest.mark.parametrize(
    ("q", "mu", "truth"), [(0.01, 1.0, 0.5), (0.1, 0.5, 0.125), (0.01, 4.0, 8.0), (0.9, 1.0, 1.4329), (0.5, 1.0, 0.5)]
)
def test_the_rho_of_a_replaced_record_is_near_what_its_mixtures_have(q: float, mu: float, truth: float) -> None:
    """Far out the record was drawn in one version, and nobody in the other: mu^2/2 is approached from below."""
    found = replaced_rho(mu, q)
    orders = [1.0001, 1.01, 1.3, 2.0, 3.7, 9.0, 40.0, 150.0]
    assert max(mu * mu / 2, *(replaced_divergence(mu, q, order) / order for order in orders)) <= found
    assert truth <= found * 1.0002
    assert found <= truth * 1.004
    history = Phase(Gaussian(1 / mu), 10, q)
    assert rho_upper(Claim(0.0, 0.0, [history], "replace-one")) == pytest.approx(10 * found)
    assert rho_upper(Claim(0.0, 0.0, [history], "add-remove")) == pytest.approx(5 * mu * mu)
    assert check(claim_stating(ZeroConcentratedDP(10.1 * found), [history], "replace-one")).verdict == "certified"
    assert check(claim_stating(ZeroConcentratedDP(9.9 * truth), [history], "replace-one")).verdict == "refuted"
