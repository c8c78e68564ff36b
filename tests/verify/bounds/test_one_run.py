"""One-run bounds: reference sums, a linear program over every mechanism, and simulated nulls."""

from fractions import Fraction
from functools import cache
from itertools import product
from math import comb
from operator import eq

import numpy as np
import pytest
from scipy.optimize import brentq, linprog
from scipy.special import expit, logit, ndtr, ndtri
from scipy.stats import binom, norm

from dpaudit.mechanisms.base import Array
from dpaudit.verify.bounds import (
    epsilon_one_run,
    gaussian_delta,
    gaussian_epsilon,
    one_run_from_scores,
    rate_lower,
    steinke_p_value,
)
from dpaudit.verify.bounds.one_run_gaussian import least_mass, mu_one_run


def published_formula(m: int, r: int, v: int, epsilon: float, delta: float) -> Fraction:
    """Theorem 5.2 in rational arithmetic, term by term."""
    q = Fraction(float(expit(epsilon)))
    pmf = [comb(r, w) * q**w * (1 - q) ** (r - w) for w in range(r + 1)]
    worst = max((sum(pmf[max(v - i, 0) : v]) / i for i in range(1, m + 1)), default=Fraction(0))
    return sum(pmf[v:], Fraction(0)) + 2 * m * Fraction(delta) * worst


@pytest.mark.parametrize(("m", "r", "v"), [(1, 1, 1), (10, 10, 7), (40, 12, 12), (60, 30, 18), (5, 5, 0)])
@pytest.mark.parametrize("epsilon", [0.0, 0.7, 3.0])
@pytest.mark.parametrize("delta", [0.0, 1e-5, 1e-2])
def test_p_value_is_theorem_5_2_above_the_mean(m: int, r: int, v: int, epsilon: float, delta: float) -> None:
    exact = min(1.0, float(published_formula(m, r, v, epsilon, delta)))
    if delta > 0 and v <= r * expit(epsilon):  # where the theorem is no bound
        assert exact >= 0.5
        exact = 1.0
    assert steinke_p_value(m, r, v, epsilon=epsilon, delta=delta) == pytest.approx(exact, rel=1e-10)


def rarely_all_wrong(coins: tuple[int, ...], less: float) -> dict[tuple[int, ...], float]:
    """Law of the guesses: even, but all wrong with probability 2^-m - less."""
    guesses, wrong = list(product((0, 1), repeat=len(coins))), tuple(1 - coin for coin in coins)
    share = 1.0 / len(guesses)
    return {g: share - less if g == wrong else share + less / (len(guesses) - 1) for g in guesses}


def distance(one: dict[tuple[int, ...], float], other: dict[tuple[int, ...], float]) -> float:
    """The least delta at epsilon 0."""
    return sum(max(mass - other[guess], 0.0) for guess, mass in one.items())


@pytest.mark.parametrize(("m", "less"), [(3, 0.1), (3, 0.01), (6, 0.012)])
def test_p_value_holds_in_the_lower_tail_where_theorem_5_2_does_not(m: int, less: float) -> None:
    """By enumeration of every coin, every guess and every neighbour."""
    laws = {coins: rarely_all_wrong(coins, less) for coins in product((0, 1), repeat=m)}
    flipped = [(s, tuple(c ^ (i == j) for i, c in enumerate(s))) for s in laws for j in range(m)]
    delta = max(distance(laws[one], laws[other]) for one, other in flipped)
    assert delta == pytest.approx(less * 2**m / (2**m - 1))
    right = {coins: [(sum(map(eq, g, coins)), mass) for g, mass in law.items()] for coins, law in laws.items()}
    tail = sum(mass for pairs in right.values() for count, mass in pairs if count >= 1) / 2**m
    published = float(published_formula(m, m, 1, 0.0, delta))
    assert published < tail - 0.01 * delta
    assert steinke_p_value(m, m, 1, epsilon=0.0, delta=delta) >= tail
    confidence = 1.0 - (published + tail) / 2.0  # {C >= 1} is too likely to be an alarm at this level
    bound = epsilon_one_run(canaries=m, guesses=m, correct=1, delta=delta, confidence=confidence)
    assert bound.epsilon_lower == 0.0


def test_what_the_lower_tail_costs_is_no_p_value_below_one_half() -> None:
    for r, epsilon in product((1, 2, 7, 40, 333), (0.0, 0.1, 1.0, 2.5, 6.0)):
        mean = int(r * expit(epsilon))
        if mean:
            assert steinke_p_value(r, r, mean, epsilon=epsilon, delta=0.0) >= 0.5


def largest_tail(m: int, r: int, v: int, epsilon: float, delta: float) -> float:
    """max P(C >= v) under the exchange inequality for every set I: a linear program."""
    # Variables p_0..p_r and the excesses e_1..e_r >= i p_i - e^epsilon (r - i + 1) p_{i-1}, whose sum is <= m delta.
    rows = np.zeros((r + 1, 2 * r + 1))
    for i in range(1, r + 1):
        rows[i - 1, [i, i - 1, r + i]] = i, -np.exp(epsilon) * (r - i + 1), -1
    rows[r, r + 1 :] = 1
    goal = np.r_[np.zeros(v), -np.ones(r + 1 - v), np.zeros(r)]
    one = np.r_[np.ones(r + 1), np.zeros(r)][None, :]
    return -linprog(goal, rows, np.r_[np.zeros(r), m * delta], one, [1.0]).fun


def test_p_value_is_valid_for_every_mechanism() -> None:
    # The program's maximum bounds P(C >= v) for whatever mechanism, by the proof in the module's docstring.
    rng, tried, slack = np.random.default_rng(8), 0, np.inf
    while tried < 120:
        r = int(rng.integers(1, 26))
        m, v, epsilon, delta = (
            r + int(rng.integers(0, 40)),
            int(rng.integers(1, r + 1)),
            rng.uniform(0, 3),
            10 ** rng.uniform(-5, -2),
        )
        pure = steinke_p_value(m, r, v, epsilon=epsilon, delta=0.0)
        published = steinke_p_value(m, r, v, epsilon=epsilon, delta=delta)
        if pure > 0.5 or published > 0.5 or pure < 1e-4:
            continue
        largest = largest_tail(m, r, v, epsilon, delta)
        assert largest <= published + 1e-9
        slack, tried = min(slack, (published - pure) / max(largest - pure, 1e-12)), tried + 1
    assert slack > 2.0  # the docstring's statement


def test_pure_case_is_clopper_pearson_on_the_accuracy() -> None:
    result = epsilon_one_run(canaries=200, guesses=150, correct=110, delta=0.0, confidence=0.95)
    assert result.epsilon_lower == pytest.approx(logit(float(rate_lower(110, 150, confidence=0.95))), abs=2e-6)


def test_a_confidence_that_is_0_in_floats_ends() -> None:
    """Doubled for ever: a p-value of 1 is refuted at a level of 1."""
    assert epsilon_one_run(canaries=100, guesses=50, correct=50, delta=0.0, confidence=1e-17).epsilon_lower > 0


def test_bound_is_the_largest_refuted_epsilon() -> None:
    result = epsilon_one_run(canaries=500, guesses=100, correct=90, delta=1e-4, confidence=0.95)
    assert steinke_p_value(500, 100, 90, epsilon=result.epsilon_lower, delta=1e-4) <= 0.05
    assert steinke_p_value(500, 100, 90, epsilon=result.epsilon_lower + 2e-6, delta=1e-4) > 0.05


@pytest.mark.parametrize("method", ["steinke", "f-dp"])
def test_more_correct_guesses_never_prove_less(method: str) -> None:
    bounds = [
        epsilon_one_run(canaries=80, guesses=40, correct=v, delta=1e-5, confidence=0.95, method=method).epsilon_lower
        for v in range(41)
    ]
    assert bounds[0] == bounds[20] == 0.0
    assert np.all(np.diff(bounds) >= 0)
    assert bounds[40] > 1.5


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 0.0), (2.0, 0.0), (1.0, 1e-3), (1.0, 0.02)])
def test_false_alarms_at_randomised_response_that_sometimes_reveals_everything(epsilon: float, delta: float) -> None:
    # With probability delta all coins are published, else each by randomised response: exactly (epsilon, delta).
    m = 60
    counts = np.arange(m + 1)
    wrong = np.array(
        [
            epsilon_one_run(canaries=m, guesses=m, correct=v, delta=delta, confidence=0.95).epsilon_lower > epsilon
            for v in counts
        ]
    )
    error = (1 - delta) * binom.pmf(counts, m, expit(epsilon)) @ wrong + delta * wrong[m]
    assert error <= 0.05
    if delta == 0.0:
        assert error > 0.01


def gdp_of_flagged_response(share: float, epsilon: float) -> float:
    """Smallest mu whose Gaussian curve covers: with probability `share` randomised response, else nothing."""
    grid = np.linspace(0, epsilon, 2001)[:-1]
    delta = share * (expit(epsilon) - np.exp(grid) * expit(-epsilon))
    return max(
        brentq(lambda mu, e=e, d=d: gaussian_delta(mu, e) - d, 1e-4, 20) for e, d in zip(grid, delta, strict=True)
    )


@cache
def mu_of_all_answers(m: int) -> Array:
    """mu_one_run by the number of correct guesses."""
    return np.array([mu_one_run(m, m, v, tail=0.05) for v in range(m + 1)])


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.03, 0.06, 0.3])
def test_f_dp_false_alarms_where_all_canaries_leak_together(share: float) -> None:
    # The hard null for a bound that reasons about tails: rare outputs, of chance near the level, that reveal much.
    epsilon, m = 1.5, 300
    mu = gdp_of_flagged_response(share, epsilon)
    counts = np.arange(m + 1)
    chance = share * binom.pmf(counts, m, expit(epsilon)) + (1 - share) * binom.pmf(counts, m, 0.5)
    error = chance @ (mu_of_all_answers(m) > mu)
    assert error <= 0.05
    if share == 0.03:
        assert error > 0.02  # nearly attained: the bound cannot be much better
    else:
        # Canaries treated as independent trials with the accuracy Phi(mu/2) of one would be wrong too often.
        assert chance @ (binom.sf(counts - 1, m, ndtr(mu / 2)) <= 0.05) > 0.05


@pytest.mark.parametrize(("v", "mu"), [(17, 0.6), (18, 0.8), (20, 1.2)])
def test_f_dp_recursion_is_the_optimum_over_tail_sets(v: int, mu: float) -> None:
    # Minimise total mass with P(C >= v) = tail under the tail inequalities; the Gaussian curve as many tangents.
    m, r, tail = 30, 20, 0.1
    points = norm.isf(np.linspace(1e-4, 1 - 1e-4, 1500))
    at = norm.sf(points)
    slope = np.exp(mu * points - mu**2 / 2)  # of g(y) = Phi(Phi^-1(y) + mu) at y = P(Z > point)
    cut = ndtr(ndtri(at) + mu) - slope * at
    rows, limits = [], []
    for i in range(1, v + 1):
        right = np.where(np.arange(r + 1) >= i, np.arange(r + 1), 0) / m
        wrong = np.where((np.arange(r + 1) >= i - 1) & (np.arange(r + 1) < r), r - np.arange(r + 1), 0) / m
        rows.append(right - slope[:, None] * wrong)
        limits.append(cut)
    in_tail = (np.arange(r + 1) >= v).astype(float)[None, :]
    found = linprog(np.ones(r + 1), np.vstack(rows), np.concatenate(limits), in_tail, [tail])
    assert found.success
    greedy = float(least_mass(np.array([mu]), m, r, v, tail)[0])
    assert greedy == pytest.approx(found.fun, rel=2e-3)
    assert 1.5 * tail < greedy < 1.0  # not trivial, not stopped early


@pytest.mark.parametrize("method", ["steinke", "f-dp"])
@pytest.mark.parametrize("mu", [0.5, 2.0])
def test_false_alarms_from_gaussian_scores(method: str, mu: float) -> None:
    # mu is no bound here on (epsilon, delta): at delta = 1e-2 the truth is small enough to be reached by chance.
    rng, delta, truth, audits = np.random.default_rng(6), 1e-2, gaussian_epsilon(mu, 1e-2), 60
    alarms = 0
    for _ in range(audits):
        coins = rng.random(200) < 0.5
        result = one_run_from_scores(rng.normal(mu * coins, 1), coins, delta=delta, confidence=0.95, method=method)
        alarms += result.epsilon_lower > truth
    assert alarms <= binom.isf(1e-6, audits, 0.05)


def test_no_leak_no_epsilon_whatever_fraction_is_tried() -> None:
    # Pure noise: a positive bound is a false alarm. Five fractions at once, 1000 audits at level 0.1.
    rng, audits = np.random.default_rng(12), 1000
    alarms = sum(
        one_run_from_scores(
            rng.normal(size=80), rng.random(80) < 0.5, delta=0.0, confidence=0.9, fractions=(0.1, 0.3, 0.5, 0.7, 1.0)
        ).epsilon_lower
        > 0
        for _ in range(audits)
    )
    assert 0 < alarms <= binom.isf(1e-6, audits, 0.1)


def test_guesses_are_the_extremes_and_the_family_is_recorded() -> None:
    scores = np.arange(10.0)
    coins = scores >= 4
    result = one_run_from_scores(scores, coins, delta=0.0, confidence=0.9, fractions=(0.4, 1.0))
    first, second = result.inputs["family"]
    assert (first["guesses"], first["correct"]) == (4, 4)
    assert (second["guesses"], second["correct"]) == (10, 9)
    assert result.inputs["confidence_each"] == pytest.approx(0.95)
    assert result.confidence == 0.9
    alone = epsilon_one_run(canaries=10, guesses=10, correct=9, delta=0.0, confidence=0.95)
    assert result.epsilon_lower == alone.epsilon_lower


def test_constant_scores_guess_each_canary_once() -> None:
    coins = np.array([True] * 5 + [False] * 5)
    result = one_run_from_scores(np.zeros(10), coins, delta=0.0, confidence=0.9, fractions=(1.0,))
    assert result.inputs["correct"] == 10  # the first half is guessed in, the second out
    odd = one_run_from_scores(np.r_[np.inf, 0.0, -np.inf], np.array([1, 0, 0], bool), delta=0.0, confidence=0.9)
    assert odd.inputs["guesses"] == 2


def test_f_dp_says_what_it_assumes() -> None:
    settings = {"canaries": 1000, "guesses": 200, "correct": 180, "delta": 1e-5, "confidence": 0.95}
    plain, gaussian = epsilon_one_run(**settings), epsilon_one_run(**settings, method="f-dp")
    assert (plain.assumes, gaussian.assumes) == ("", "gaussian-tradeoff")
    assert gaussian.epsilon_lower > 1.2 * plain.epsilon_lower


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"correct": 6}, "correct=6 <= guesses=5"),
        ({"guesses": 11}, "guesses=11 <= canaries=10"),
        ({"canaries": 0, "guesses": 0, "correct": 0}, "canaries=0"),
        ({"delta": -0.1}, "delta=-0.1"),
        ({"delta": 0.0, "method": "f-dp"}, "delta=0.0"),
        ({"method": "lucky"}, "method='lucky'"),
    ],
)
def test_bad_input_is_refused(change: dict[str, object], named: str) -> None:
    good = {"canaries": 10, "guesses": 5, "correct": 4, "delta": 1e-5, "confidence": 0.95}
    with pytest.raises(ValueError, match=named):
        epsilon_one_run(**{**good, **change})


def test_bad_scores_and_coins_are_refused() -> None:
    settings = {"delta": 0.0, "confidence": 0.95}
    with pytest.raises(ValueError, match="coins of shape"):
        one_run_from_scores([1.0, 2.0], [True], **settings)
    with pytest.raises(ValueError, match="bool"):
        one_run_from_scores([1.0, 2.0], [1, 0], **settings)
    with pytest.raises(ValueError, match="NaN"):
        one_run_from_scores([1.0, np.nan], [True, False], **settings)
    with pytest.raises(ValueError, match="fractions"):
        one_run_from_scores([1.0, 2.0], [True, False], **settings, fractions=(0.0,))
