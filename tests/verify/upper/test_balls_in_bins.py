"""Balls in bins, random allocation, and orders revealed: upper bounds against exact integrals and printed values."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from dpaudit.mechanisms import Gaussian, GeneralizedGaussian, Laplace
from dpaudit.mechanisms.numerics import gaussian_delta
from dpaudit.verify import Claim, PureDP, check, claim_stating
from dpaudit.verify.claims import Adjacency, Phase
from dpaudit.verify.curves import least_delta
from dpaudit.verify.samplers import BallsInBins, RandomAllocation, Sampler, Shuffled
from dpaudit.verify.upper import met_twice, shuffled_batches, through_a_ghost, upper_curve, upper_curves
from dpaudit.verify.upper.balls_in_bins import Pass, geometric_delta, pass_law

DELTA = 1e-5


def claim(sigma: float, sampler: Sampler, adjacency: Adjacency = "add-remove") -> Claim:
    return Claim(1.0, DELTA, [Phase(Gaussian(sigma, dimension=3), sampler=sampler)], adjacency)


def two_bins(sigma: float, epsilon: float) -> tuple[float, float]:
    """delta in both directions for T = 2: for given w_1 the loss is monotone in w_2."""
    mu, a = 1.0 / sigma, math.exp(epsilon)

    def beyond(w: float, level: float) -> tuple[float, float]:
        """P(r > level) and E r 1(r > level) of the other release."""
        if level <= 0:
            return 1.0, 1.0
        at = (math.log(level) + mu * mu / 2) / mu
        return float(norm.sf(at)), float(norm.sf(at - mu))

    def remove(w: float) -> float:
        r = math.exp(mu * w - mu * mu / 2)
        mass, mean = beyond(w, 2 * a - r)
        return float(norm.pdf(w)) * ((r / 2 - a) * mass + mean / 2)

    def add(w: float) -> float:
        r = math.exp(mu * w - mu * mu / 2)
        level = 2 / a - r
        if level <= 0:
            return 0.0
        mass, mean = beyond(w, level)
        return float(norm.pdf(w)) * ((1 - a * r / 2) * (1 - mass) - a * (1 - mean) / 2)

    kinks = [(math.log(x) + mu * mu / 2) / mu for x in (2 * a, 2 / a)]
    integrals = (quad(f, -12, 12 + mu, points=kinks, limit=400, epsabs=1e-13)[0] for f in (remove, add))
    first, second = integrals
    return first, second


@pytest.mark.parametrize("sigma", [0.8, 2.0])
def test_two_bins_are_above_the_integral_and_hardly(sigma: float) -> None:
    curve = upper_curve(claim(sigma, BallsInBins(2, 1)))
    for epsilon in (0.1, 0.5, 1.5):
        truth, bound = max(two_bins(sigma, epsilon)), float(curve(np.array([epsilon]))[0])
        assert truth < bound < truth * (1 + 1e-3) + 1e-9


@pytest.mark.parametrize(
    ("sigma", "epsilon", "apart"),
    [(0.7, 1.0, 1e-3), (0.7, 5.0, 1e-3), (0.6, 6.0, 1e-2), (0.5, 5.0, 1e-3), (0.4, 7.0, 2e-2), (0.3, 16.0, 2e-1)],
)
def test_two_bins_of_short_noise_are_not_a_known_order(sigma: float, epsilon: float, apart: float) -> None:
    """Of X on a lattice that holds its tail much is 0, and was an infinite loss without the record first."""
    truth = two_bins(sigma, epsilon)
    bound = float(upper_curve(claim(sigma, BallsInBins(2, 1)))(np.array([epsilon]))[0])
    assert max(truth) < bound < max(truth) * (1.0 + apart)
    law = pass_law(Pass(2, 1.0 / sigma, 1), 1e-9, 8.0)
    without = float(np.maximum(law.second * -np.expm1(np.minimum(epsilon + law.loss, 0.0)), 0.0).sum())
    assert truth[1] < without + law.infinite[1]
    assert truth[1] < geometric_delta([Pass(2, 1.0 / sigma, 1)], np.array([epsilon]))[0]


def test_a_ratio_that_ends_costs_next_to_nothing_without_the_record_first() -> None:
    for sigma in (0.7, 0.5, 0.4):
        law = pass_law(Pass(2, 1.0 / sigma, 1), 1e-9, 8.0)
        for epsilon in (0.1, 1.0, 3.0):
            without = float((law.second * -np.expm1(np.minimum(epsilon + law.loss, 0.0))).sum()) + law.infinite[1]
            truth = two_bins(sigma, epsilon)[1]
            assert truth < without < truth * (1 + 1e-4)


@pytest.mark.parametrize("counts", [(1, 1), (3, 1), (1, 2)])
def test_the_geometric_mean_of_ratios_is_a_normal_one(counts: tuple[int, int]) -> None:
    """E (1 - e^(epsilon + g))_+ by quadrature, g the log of the product of geometric means."""
    parts = [Pass(2, 1.5, counts[0]), Pass(5, 2.5, counts[1])]
    mean = sum(-part.count * part.shift**2 / 2 for part in parts)
    deviation = math.sqrt(sum(part.count * part.shift**2 / part.releases for part in parts))
    epsilons = np.array([0.0, 1.0, -mean, 8.0, 20.0])
    found = geometric_delta(parts, epsilons)
    for epsilon, bound in zip(epsilons, found, strict=True):
        top = (-epsilon - mean) / deviation
        low = min(top, 0.0) - 30.0
        exact, _ = quad(
            lambda z: norm.pdf(z) * -math.expm1(min(epsilon + mean + deviation * z, 0.0)),  # noqa: B023
            low,
            top,
            points=[max(min(top, 0.0) - 3.0, low)],
            limit=400,
            epsabs=1e-16,
        )
        assert bound == pytest.approx(exact, rel=1e-7, abs=1e-15)
    assert geometric_delta([Pass(2, 1e200, 1)], np.array([1.0]))[0] == 1.0


def test_passes_of_short_noise_do_not_cost_what_known_orders_do() -> None:
    """Known orders cost 46.2 and 9.997; of 10 passes the geometric mean alone shows 22.4."""
    assert check(claim(0.5, BallsInBins(100, 10), "zero-out")).epsilon_upper < 13.66
    assert check(claim(0.5, BallsInBins(100, 1, "once"), "zero-out")).epsilon_upper < 5.4


def test_one_bin_is_the_gaussian_mechanism() -> None:
    curve = upper_curve(claim(1.5, BallsInBins(1, 1)))
    for epsilon in (0.2, 1.0, 3.0):
        truth = gaussian_delta(1 / 1.5, epsilon)
        assert truth <= float(curve(np.array([epsilon]))[0]) < truth * (1 + 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sigma", "sampler", "low", "high"),
    [
        (1.0, BallsInBins(100, 1), 0.620937, 0.620990),
        (0.7, BallsInBins(234, 1), 1.464535, 1.464744),
        (1.0, RandomAllocation(1000, 10), 1.6886, 1.7016),
    ],
)
def test_brackets_are_as_narrow_as_known_ones(sigma: float, sampler: Sampler, low: float, high: float) -> None:
    verdict = check(claim(sigma, sampler))
    assert verdict.epsilon_lower < high
    assert low < verdict.epsilon_upper < high
    assert verdict.epsilon_lower > low * (1 - 1e-4)
    if isinstance(sampler, BallsInBins):
        assert verdict.epsilon_upper < verdict.epsilon_lower * (1 + 2e-4)


@pytest.mark.parametrize(
    ("mu", "bins"),
    [(1e-4, 3), (1e-4, 200), (1e-4, 1000), (1e-3, 1000), (0.01, 10**6), (0.1, 10**5), (0.1, 10**9 - 1), (1.0, 10**7)],
)
def test_short_shifts_in_many_bins_cost_what_the_mean_of_so_many_ratios_does(mu: float, bins: int) -> None:
    """Asymptotically normal, so Gaussian of mu/sqrt(T) but for the skewness of the ratios; 10^7 had no bound at all."""
    law = pass_law(Pass(bins, mu, 1), 1e-9 * mu / math.sqrt(bins))
    delta = float(np.maximum(law.first - law.second, 0.0).sum()) + law.infinite[0]
    variance = math.expm1(mu * mu) / bins
    assert delta == pytest.approx(math.sqrt(variance / (2 * math.pi)), rel=0.07 if bins < 10**8 else 0.5)


@pytest.mark.parametrize("sampler", [BallsInBins(10**6, 3), RandomAllocation(10**8, 2), RandomAllocation(200, 1)])
def test_hardly_any_loss_is_no_crash(sampler: Sampler) -> None:
    """Fewer lattice points than bins."""
    for sigma in (1e3, 1e20):
        assert check(claim(sigma, sampler)).verdict == "certified"


def test_masses_of_a_pass_are_a_pair_of_laws() -> None:
    """Both sum to one, and their ratio is the mean of the likelihood ratios, by the law of the spread variable."""
    law = pass_law(Pass(20, 1.0, 1), 1e-9)
    assert 1.0 <= law.first.sum() + law.infinite[0] < 1.0 + 1e-5
    assert 1.0 <= law.second.sum() + law.infinite[1] < 1.0 + 1e-5
    seen = law.second > 1e-9
    assert np.log(law.first[seen] / law.second[seen]) == pytest.approx(law.loss[seen], abs=2e-5)


@pytest.mark.parametrize(
    ("sampler", "adjacency", "mu"),
    [
        (Shuffled(30, 9), "zero-out", 3 / 2),
        (Shuffled(30, 9, reshuffle="once"), "zero-out", 3 / 2),
        (Shuffled(30, 9), "replace-one", 3.0),
        (Shuffled.of(100, 30, 4, last_batch="straddling"), "zero-out", math.sqrt(6) / 2),  # pass 3 ends with a batch
        (Shuffled.of(101, 30, 4, last_batch="straddling"), "zero-out", math.sqrt(8) / 2),
        (Shuffled.of(101, 30, 4, last_batch="straddling", reshuffle="once"), "zero-out", 1.0),
        (Shuffled.of(90, 30, 4, last_batch="straddling"), "zero-out", 1.0),
        (Shuffled.of(100, 30, 1, last_batch="straddling"), "zero-out", 1 / 2),
        (Shuffled.of(100, 30, 3, last_batch="straddling"), "zero-out", math.sqrt(5) / 2),
        (BallsInBins(30, 9), "replace-one", 3.0),
    ],
)
def test_an_order_revealed_costs_the_releases_that_a_record_meets(
    sampler: Sampler, adjacency: Adjacency, mu: float
) -> None:
    # those of a ghost and of many batches know less of the order, and that of met twice how likely the worst one is
    others = (through_a_ghost.THEOREM, met_twice.THEOREM, shuffled_batches.THEOREM)
    curves = [one for one in upper_curves(claim(2.0, sampler, adjacency)) if not one.theorem.startswith(others)]
    for epsilon in (1.0, 4.0):
        found = float(least_delta(curves, np.array([epsilon]))[0])
        assert found == pytest.approx(gaussian_delta(mu, epsilon), rel=1e-9)


def test_of_other_noise_a_batch_with_a_record_twice_is_one_of_half_the_noise() -> None:
    phase = Phase(GeneralizedGaussian(1.5, 4.0, dimension=1), sampler=Shuffled(30, 3))
    assert check(Claim(3.0, 1e-5, [phase], "zero-out")).verdict == "certified"
    straddling = Shuffled.of(100, 30, 3, last_batch="straddling")
    verdict = check(Claim(3.0, 1e-5, [Phase(phase.mechanism, sampler=straddling)], "zero-out"))
    ways = [[Phase(GeneralizedGaussian(1.5, s, dimension=1)) for s in scales] for scales in ((2.0, 4.0), (4.0,) * 3)]
    twice, apart = (check(Claim(3.0, 1e-5, way, "zero-out")).epsilon_upper for way in ways)
    assert verdict.verdict == "certified"
    assert apart < verdict.epsilon_upper < twice
    for sampler in (Shuffled.of(90, 30, 3, last_batch="straddling"), replace(straddling, reshuffle="once")):
        once = Claim(3.0, 1e-5, [Phase(phase.mechanism, sampler=sampler)], "zero-out")
        assert check(once).verdict == "certified"


def test_pure_epsilons_add_up_where_a_record_is_twice_in_a_batch() -> None:
    phase = Phase(Laplace(2.0, clip_norm=1.0, dimension=4), sampler=Shuffled(30, 3))
    assert check(Claim(1.5, 0.0, [phase], "zero-out")).verdict == "certified"  # 3 releases of 1/2
    straddling = Shuffled.of(100, 30, 3, last_batch="straddling")
    history = [Phase(phase.mechanism, sampler=straddling)]
    verdict = check(Claim(1.5 + 1e-9, 0.0, history, "zero-out"))  # 1 and 1/2 cost as much
    assert verdict.verdict == "certified"
    assert verdict.epsilon_upper == pytest.approx(1.5)
    assert check(claim_stating(PureDP(1.5), history, "zero-out")).verdict == "certified"
    # responses of 1 and of 1/2: both are as likely with the record as e^1.5 times without it, or one alone
    one, half = (1.0 / (1.0 + math.exp(-epsilon)) for epsilon in (1.0, 0.5))
    exact = one * half - math.e * (1.0 - one) * (1.0 - half)
    [pure] = [one for one in upper_curves(Claim(1.5, 0.0, history, "zero-out")) if "of bounded ratio" in one.theorem]
    assert exact <= pure.delta(np.array([1.0]))[0] <= 1.001 * exact
    assert verdict.delta(1.0)[1] < exact
    for sampler in (Shuffled.of(90, 30, 3, last_batch="straddling"), replace(straddling, reshuffle="once")):
        once = Claim(1.5, 0.0, [Phase(phase.mechanism, sampler=sampler)], "zero-out")
        assert check(once).verdict == "certified"
