"""Noisy argmaxes over votes: the bracket against quadrature, convolution, binomial sums, and simulated votes."""

import functools
import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import binom, norm

from dpaudit.mechanisms import Gaussian, GeneralizedGaussian, Laplace, Product
from dpaudit.mechanisms.base import IIDCoordinates
from dpaudit.mechanisms.learning.pate.teachers import Aggregator, aggregate
from dpaudit.mechanisms.published import gg
from dpaudit.verify.bounds import clopper_pearson
from dpaudit.verify.papers.votes import lower as certified_lower
from dpaudit.verify.papers.votes.history import VoteHistory
from dpaudit.verify.papers.votes.lower import votes_lower, win_probability
from dpaudit.verify.papers.votes.upper import votes_upper


@pytest.fixture
def few_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """An eighth of the cells: bounds are 1e-4 wider, where nothing near that is asked."""
    monkeypatch.setattr(certified_lower, "FINE", (1 << 15, 1 << 15))


def noise(beta: float, scale: float) -> GeneralizedGaussian:
    return GeneralizedGaussian(beta=beta, scale=scale)


def normal(sigma: float) -> GeneralizedGaussian:
    return noise(2.0, math.sqrt(2.0) * sigma)


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Balle and Wang (2018), Theorem 8, by scipy."""
    return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu))


def plain_win_probability(law: IIDCoordinates, counts: list[tuple[float, bool]]) -> float:
    """sum over winners j of int f(x - n_j) prod over the others of F(x - n_i), by adaptive quadrature."""

    def integrand(x: float, j: int) -> float:
        gaps = np.array([x - at for i, (at, _) in enumerate(counts) if i != j])
        return float(np.exp(law.logpdf(np.array([x - counts[j][0]])))[0] * np.prod(law.cdf(gaps)))

    places = sorted({at for at, _ in counts})
    reach = -float(law.ppf(np.array([1e-14]))[0])
    total = 0.0
    for j, (at, wins) in enumerate(counts):
        if wins:
            ends = [at - reach, *(p for p in places if abs(p - at) < reach), at + reach]
            total += sum(quad(integrand, a, b, (j,), limit=200)[0] for a, b in pairwise(ends))
    return total


@pytest.mark.parametrize("beta", [1.0, 1.5, 2.0, 4.0])
@pytest.mark.parametrize(
    "counts", [[(2.0, 1, True), (0.5, 2, False), (-1.0, 3, False)], [(0.0, 2, True), (1.0, 3, False)]]
)
def test_win_probability_against_quadrature(beta: float, counts: list[tuple[float, int, bool]]) -> None:
    law = noise(beta, 1.7).structure
    low, high = win_probability(law, counts, cells=1 << 16)
    plain = plain_win_probability(law, [(at, wins) for at, many, wins in counts for _ in range(many)])
    assert low - 1e-9 <= plain <= high + 1e-9
    assert high - low < 2e-4


def test_win_probability_where_it_is_known() -> None:
    for many, others in ((1, 9), (50, 50), (3, 997)):
        counts = [(4.0, many, True), (4.0, others, False)]
        low, high = win_probability(noise(1.3, 2.0).structure, counts, cells=1 << 16)
        assert low <= many / (many + others) <= high
        assert high - low < 1.2e-4
    for gap in (-3.0, 0.0, 1.0, 12.0):
        low, high = win_probability(normal(2.0).structure, [(gap, 1, True), (0.0, 1, False)], cells=1 << 16)
        assert low <= norm.cdf(gap / (2 * math.sqrt(2))) <= high


# --- Theorem 2 of gg -------------------------------------------------------------------------------------------------


def test_several_counts_moved_refute_theorem_2() -> None:
    """theory: five of ten counts moved by +1 to a tie; mu = 1, epsilon = 0.5: delta .2637 against .2384."""
    law, epsilon = normal(1.0).structure, 0.5
    with_record = win_probability(law, [(0.0, 5, True), (0.0, 5, False)])
    without = win_probability(law, [(-1.0, 5, True), (0.0, 5, False)])
    delta_lower = with_record[0] - math.exp(epsilon) * without[1]
    plain = [plain_win_probability(law, [(at, True)] * 5 + [(0.0, False)] * 5) for at in (0.0, -1.0)]
    assert delta_lower == pytest.approx(plain[0] - math.exp(epsilon) * plain[1], abs=3e-5)
    assert delta_lower == pytest.approx(0.2637, abs=5e-5)
    assert gaussian_delta(1.0, epsilon) == pytest.approx(0.2384, abs=5e-5)
    claimed = gg.theorem_2(normal(1.0), sampling_prob=1.0, steps=1, delta=0.2384)
    assert claimed.epsilon == pytest.approx(epsilon, abs=1e-3)
    assert delta_lower > 0.2384 + 0.025


@pytest.mark.parametrize(("counts", "start", "ratio"), [(100, -2.0, 2.2), (1000, -1.0, 13.0)])
def test_the_gap_grows_with_the_number_of_counts(counts: int, start: float, ratio: float) -> None:
    """Half of the counts moved by +1, epsilon = 2: 2.2 times the delta of one count at 100, 13.4 times at 1000."""
    law, half = normal(1.0).structure, counts // 2
    with_record = win_probability(law, [(start + 1.0, half, True), (0.0, half, False)])
    without = win_probability(law, [(start, half, True), (0.0, half, False)])
    measured = (with_record[0] - math.exp(2.0) * without[1]) / gaussian_delta(1.0, 2.0)
    assert measured >= ratio

    def above(x: float, at: float) -> float:
        """Density of the winners' maximum times the distribution function of the others', both in closed form."""
        return float(half * norm.pdf(x - at) * norm.cdf(x - at) ** (half - 1) * norm.cdf(x) ** half)

    plain = [quad(above, at - 8.0, at + 9.0, (at,), limit=400)[0] for at in (start + 1.0, start)]
    assert measured * gaussian_delta(1.0, 2.0) == pytest.approx(plain[0] - math.exp(2.0) * plain[1], abs=2e-4)


@pytest.mark.usefixtures("few_cells")
@pytest.mark.parametrize(("beta", "scale"), [(1.5, 3.0), (1.0, 4.0)])
def test_one_changed_vote_between_two_classes_refutes_theorem_2(beta: float, scale: float) -> None:
    """A PATE vote moves two counts: one answer, two classes, and the lower bound is above the claim."""
    history = VoteHistory(noise(beta, scale), answers=1, teachers=250, classes=2)
    claimed = gg.theorem_2(noise(beta, scale), sampling_prob=1.0, steps=1, delta=1e-3)
    lower = votes_lower(history, epsilon=claimed.epsilon, delta=1e-3)
    at = float(lower.epsilon(np.array([1e-3]))[0])
    assert at > 1.2 * (claimed.epsilon + claimed.error)
    assert float(lower.delta(np.array([claimed.epsilon]))[0]) > 1.5e-3
    assert lower.witness is not None
    assert (lower.witness.coordinates, lower.witness.direction) == (2, "swap")
    assert lower.witness.shift == [[1.0, 1.0], [-1.0, 1.0]]
    assert "every query with the votes [1" in lower.witness.event


# --- the upper bound -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("answers", "checks"), [(1, 0), (286, 0), (286, 640)])
def test_normal_noise_costs_the_analytic_gaussian(answers: int, checks: int) -> None:
    """mu^2 = 2 answers/sigma^2 + checks/sigma_1^2 (Dong, Roth and Su 2022, Corollary 3.3)."""
    check = normal(150.0) if checks else None
    history = VoteHistory(normal(40.0), answers, 250, 10, check, checks, 200.0)
    mu = math.sqrt(2 * answers / 40.0**2 + checks / 150.0**2)
    for law in (history, replace(history, noise=Gaussian(40.0), check=Gaussian(150.0) if checks else None)):
        values = votes_upper(law, epsilon=1.0, delta=1e-5).delta(np.array([0.1, 1.0]))
        assert values == pytest.approx([gaussian_delta(mu, e) for e in (0.1, 1.0)], rel=1e-6)


def test_one_answer_against_a_plain_sum_over_both_counts() -> None:
    """beta 1.5: delta of the vector moved by (1, -1), as a double sum over a grid of both outputs."""
    law = noise(1.5, 2.0).structure
    edges = np.linspace(-21.0, 21.0, 3001)
    p, q = np.diff(law.cdf(edges - 1.0)), np.diff(law.cdf(edges))
    p_other = np.diff(law.cdf(edges + 1.0))
    history = VoteHistory(noise(1.5, 2.0), answers=1, teachers=250, classes=4)
    curve = votes_upper(history, epsilon=0.5, delta=1e-5)
    for epsilon in (0.0, 0.5, 1.5):
        plain = float(np.maximum(np.outer(p, p_other) - math.exp(epsilon) * np.outer(q, q), 0.0).sum())
        value = float(curve.delta(np.array([epsilon]))[0])
        assert plain <= value * (1 + 1e-9)
        assert value == pytest.approx(plain, rel=2e-3)


def test_laplace_noise_is_pure() -> None:
    history = VoteHistory(Laplace(20.0), answers=5, teachers=250, classes=10, check=Laplace(30.0), checks=9)
    upper = float(votes_upper(history, epsilon=1.0, delta=0.0).epsilon(np.array([0.0]))[0])
    assert upper == pytest.approx(5 * 2 / 20 + 9 / 30, rel=1e-6)


def test_a_vote_that_comes_or_goes_costs_theorem_2() -> None:
    """One count moved by one and no other: the only case in which the claim is the bound."""
    history = VoteHistory(noise(3.0, 60.0), 100, 250, 10, adjacency="add-remove")
    upper = float(votes_upper(history, epsilon=1.0, delta=1e-5).epsilon(np.array([1e-5]))[0])
    claimed = gg.theorem_2(noise(3.0, 60.0), sampling_prob=1.0, steps=100, delta=1e-5)
    assert upper == pytest.approx(claimed.epsilon, rel=5e-3)
    changed = replace(history, adjacency="replace-one")
    assert float(votes_upper(changed, epsilon=1.0, delta=1e-5).epsilon(np.array([1e-5]))[0]) > 1.4 * upper


# --- the lower bound -------------------------------------------------------------------------------------------------


def test_one_answer_between_two_classes_meets_the_upper_bound() -> None:
    """The difference of two counts tells all, and votes are nearly continuous against sigma = 10: within 2%."""
    at = np.array([1e-5])
    history = VoteHistory(normal(10.0), answers=1, teachers=250, classes=2)
    low = float(votes_lower(history, epsilon=0.5, delta=1e-5).epsilon(at)[0])
    high = float(votes_upper(history, epsilon=0.5, delta=1e-5).epsilon(at)[0])
    assert 0.98 * high <= low <= high


@pytest.mark.parametrize("teachers", [250, 251])
def test_two_classes_are_a_binomial(teachers: int) -> None:
    """Ties everywhere, 400 answers: max over s of P(wins >= s) - e^eps Q(wins >= s), by scipy's binomial.

    2^18 cells leave 1.4e-5 on either side of each probability: 0.01 of the mean number of wins, 3% of delta.
    """
    answers, sigma = 400, 40.0
    history = VoteHistory(normal(sigma), answers, teachers, 2)
    curve = votes_lower(history, epsilon=1.0, delta=1e-5)
    wins = np.arange(answers + 1)
    best = 0.0
    for lead in range(-6 + teachers % 2, 8, 2):
        p, q = (norm.cdf(gap / (sigma * math.sqrt(2))) for gap in (lead, lead - 2))
        delta = binom.sf(wins - 1, answers, p) - math.exp(1.0) * binom.sf(wins - 1, answers, q)
        best = max(best, float(delta.max()))
    value = float(curve.delta(np.array([1.0]))[0])
    assert 0.95 * best <= value <= best * (1 + 1e-9)


def test_classes_without_a_vote_hide_neither_side() -> None:
    """Ten classes, of which noise often names one that nobody voted for: both sides of the tie are told from those.

    The wins of class a less those of class b, by convolution of exact masses. Theorem 2 of gg is refuted, which wins of
    class a alone do not show.
    """
    history, delta = VoteHistory(normal(20.0), answers=300, teachers=50, classes=10), 1e-5
    curve = votes_lower(history, epsilon=1.0, delta=delta)
    assert curve.witness is not None
    assert "the votes [25, 24, 1], against [24, 25, 1]" in curve.witness.event
    counts = [25.0, 24.0, 1.0, *[0.0] * 7]
    ours, theirs = (
        plain_win_probability(history.law, [(at, i == winner) for i, at in enumerate(counts)]) for winner in (0, 1)
    )
    assert 0.3 < 1.0 - ours - theirs < 0.6
    tails = []
    for masses in ([theirs, 1.0 - ours - theirs, ours], [ours, 1.0 - ours - theirs, theirs]):
        law = functools.reduce(np.convolve, [masses] * 300)
        tails.append(np.cumsum(law[::-1])[::-1])
    shown = tails[0] > 2 * delta
    best = float(np.max(np.log((tails[0][shown] - delta) / tails[1][shown])))
    value = float(curve.epsilon(np.array([delta]))[0])
    assert 0.99 * best <= value <= best * (1 + 1e-9)
    assert value > gg.theorem_2(history.noise, sampling_prob=1.0, steps=300, delta=delta).epsilon * 1.05


@pytest.mark.usefixtures("few_cells")
@pytest.mark.parametrize(
    ("classes", "checks", "adjacency"),
    [(2, 0, "replace-one"), (3, 40, "replace-one"), (2, 200, "add-remove")],
)
def test_bracket_is_one(classes: int, checks: int, adjacency: Any) -> None:
    """Few answers and many checks, so that the answers run out: the lower bound stays below the upper one."""
    check = noise(1.5, 90.0) if checks else None
    history = VoteHistory(noise(1.5, 25.0), 30, 100, classes, check, checks, 60.0, adjacency)
    at, epsilons = np.array([1e-5]), np.array([0.0, 0.3, 1.0, 2.0])
    lower, upper = (side(history, epsilon=1.0, delta=1e-5) for side in (votes_lower, votes_upper))
    assert 0.0 < float(lower.epsilon(at)[0]) < float(upper.epsilon(at)[0])
    assert (lower.delta(epsilons) <= upper.delta(epsilons)).all()


@pytest.mark.usefixtures("few_cells")
@pytest.mark.parametrize("checks", [0, 60])
def test_simulated_labels_lie_between_the_bounds(checks: int) -> None:
    """Small noise, so that the whole transcript can be simulated: the algorithm itself, on the witness's votes.

    The event: at least as many wins of class a as the better half of the runs has. Both rates at 1 - 1e-6.
    """
    votes, changed = np.array([11, 9, 0]), np.array([10, 10, 0])
    queries = checks or 20
    rule = Aggregator(normal(6.0), normal(8.0) if checks else None, 13.0)
    history = VoteHistory(normal(6.0), 20, 20, 3, rule.check, checks, 13.0)
    rng, runs = np.random.default_rng(11), 2000
    scores = []
    for side in (votes, changed):
        outs = [aggregate(np.tile(side, (queries, 1)), rule, answers=20, rng=rng) for _ in range(runs)]
        scores.append(np.array([int((o.labels == 0).sum()) - int((o.labels == 1).sum()) for o in outs]))
    threshold = int(np.median(scores[0]))
    true, false = (int((score >= threshold).sum()) for score in scores)
    (low, _), (_, high) = (clopper_pearson(hits, runs, confidence=1 - 1e-6) for hits in (true, false))
    point = np.array([0.3])
    observed = low - math.exp(0.3) * high
    assert observed <= float(votes_upper(history, epsilon=0.3, delta=1e-3).delta(point)[0])
    certified = votes_lower(history, epsilon=0.3, delta=1e-3)
    assert certified.witness is not None
    # the certified delta is attained by some event on these outputs: the simulated one must not lie far above it
    assert observed <= float(certified.delta(point)[0]) + 0.02


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"answers": 0}, "answers=0 in"),
        ({"teachers": 0}, "teachers=0 in"),
        ({"classes": 1}, "classes=1 in"),
        ({"noise": GeneralizedGaussian(2.0, 1.0, clip=2.0)}, r"noise\.clip=2\.0 to be 1"),
        ({"noise": Product(3.0, dimension=10)}, "noise='product' to have independent coordinates"),
        ({"check": normal(1.0)}, "checks=0 in"),
        ({"checks": 5}, "checks=5 to be 0 without a check"),
        ({"threshold": math.inf}, "finite threshold"),
        ({"adjacency": "swap"}, "adjacency='swap'"),
    ],
)
def test_histories_that_make_no_sense(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        VoteHistory(**{"noise": normal(40.0), "answers": 10, "teachers": 250, "classes": 10, **fields})
