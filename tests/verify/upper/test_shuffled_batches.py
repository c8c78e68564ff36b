"""Many shuffled batches: worst terms by quadrature, means by a double sum, whole passes by their likelihood ratio."""

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from buffers import orders
from one_pass import mean_excess, pass_delta
from scipy.stats import norm

from dpaudit.mechanisms import Gaussian, Laplace
from dpaudit.mechanisms.base import Array
from dpaudit.mechanisms.numerics import gaussian_delta
from dpaudit.verify import Claim
from dpaudit.verify.claims import Adjacency, Phase
from dpaudit.verify.lower import certified_lower
from dpaudit.verify.pld.shuffled_pass import ShuffledPass, excess
from dpaudit.verify.pld.term_sums import term_sums
from dpaudit.verify.results import Direction
from dpaudit.verify.samplers import BufferedShuffle, Sampler, Shuffled
from dpaudit.verify.samplers.shuffled import LastBatch
from dpaudit.verify.upper import shuffled_batches, upper_curves
from dpaudit.verify.upper.known_releases import known_releases
from dpaudit.verify.upper.weight_layers import PassCost, Weights, _layers, _rising, large_weights, pass_cost

DELTA = np.array([1e-5])
FARTHEST: dict[Direction, tuple[float, float, float]] = {  # |a - b|, |a|, |b|
    "remove": (1.0, 2.0, 1.0),
    "add": (1.0, 1.0, 2.0),
    "swap": (2.0, 2.0, 2.0),
}


def claim(sigma: float, sampler: Sampler, adjacency: Adjacency = "zero-out") -> Claim:
    return Claim(1.0, 1e-5, [Phase(Gaussian(sigma, dimension=3), sampler=sampler)], adjacency).canonical("upper")


def epsilon_upper(history: Claim) -> float:
    return float(shuffled_batches.bound(history).epsilon(DELTA)[0])


def plane_excess(first: Array, second: Array, growth: float, level: float) -> float:
    """E (R(first) - growth R(second) - level)_+ of two shifts in the plane, by a plain sum."""
    grid = np.linspace(-8.0, 8.0, 241)
    x, y = np.meshgrid(grid, grid)
    weights = norm.pdf(x) * norm.pdf(y) * (grid[1] - grid[0]) ** 2
    ratios = [np.exp(v[0] * x + v[1] * y - v @ v / 2) for v in (first, second)]
    return float((np.maximum(ratios[0] - growth * ratios[1] - level, 0.0) * weights).sum())


@pytest.mark.parametrize("direction", FARTHEST)
def test_no_shifts_have_more_excess_than_the_worst_and_some_have_as_much(direction: Direction) -> None:
    rng, (between, first, second) = np.random.default_rng(1), FARTHEST[direction]
    mu, growth = 0.6, 1.3
    levels = np.array([-1.5, -0.3, 0.0, 0.4, 2.0])
    worst, error = excess(levels, growth, mu, direction)
    assert (error < 1e-13).all()
    ends = [-2.0, -1.0, 0.0, 1.0, 2.0]
    tried = [np.array([[a, 0.0], [b, 0.0]]) for a in ends for b in ends]
    tried += [rng.normal(size=(2, 2)) for _ in range(15)]
    feasible = [
        pair
        for pair in tried
        if all(
            np.linalg.norm(v) <= most for v, most in ((pair[0] - pair[1], between), (pair[0], first), (pair[1], second))
        )
    ]
    assert len(feasible) > 8
    found = np.array([[plane_excess(mu * p[0], mu * p[1], growth, k) for k in levels] for p in feasible])
    assert (found <= worst + 1e-3).all()
    np.testing.assert_allclose(found.max(axis=0), worst, atol=1e-3)


@pytest.mark.parametrize("direction", FARTHEST)
def test_the_mean_of_two_terms_is_a_double_sum(direction: Direction) -> None:
    """E ((Y + Y')/2)_+ = E s(-Y)/2, s the excess; the law of Y by differences of s on a fine grid."""
    part, growth = ShuffledPass(10.0, 0.4, 1), 1.1
    grid = np.linspace(-30.0, 60.0, 90_001)
    below = np.concatenate(
        [[0.0], 1.0 + np.diff(excess(grid, growth, part.shift, direction)[0]) / np.diff(grid), [1.0]]
    )
    truth = float(np.diff(below) @ excess(-grid, growth, part.shift, direction)[0]) / 2.0
    found = mean_excess(part, growth, 2, direction)
    assert truth < found + 1e-9
    assert found < truth * (1.0 + 2e-3)
    alone = float(excess(np.zeros(1), growth, part.shift, direction)[0][0])
    assert alone <= mean_excess(part, growth, 1, direction) < alone * (1.0 + 2e-3)


def permuted_ratio(outputs: Array, contributions: Array, sigma: float) -> Array:
    """Density of T releases of batches of one in a random order, over that of noise alone."""
    orders = np.array(list(itertools.permutations(contributions)))
    return np.asarray(np.exp((outputs @ orders.T - (orders**2).sum(axis=1) / 2) / sigma**2).mean(axis=1))


@pytest.mark.parametrize(("value", "absent"), [(1.0, 0.0), (1.0, -1.0)])
def test_no_pass_that_is_simulated_costs_more(value: float, absent: float) -> None:
    """T = 5 batches of one, exact likelihood ratios, 20,000 outputs; 5 deviations of the estimate."""
    sigma, rng = 3.0, np.random.default_rng(2)
    part = ShuffledPass(5.0, 1.0 / sigma, 1)
    for others in ([-1.0] * 4, [0.0] * 4, [-1.0, 0.0, 1.0, 1.0]):
        inside, outside = np.array([value, *others]), np.array([absent, *others])
        for direction, law, rest in (("remove", inside, outside), ("add", outside, inside)):
            way: Direction = "swap" if absent else "remove" if direction == "remove" else "add"
            # the density of the law against which the ratio is taken is sampled: E_Q (P/Q - a)_+
            outputs = rng.permuted(np.tile(rest, (20_000, 1)), axis=1) + sigma * rng.normal(size=(20_000, 5))
            ratio = permuted_ratio(outputs, law, sigma) / permuted_ratio(outputs, rest, sigma)
            for epsilon in (0.0, 0.1, 0.3):
                gains = np.maximum(ratio - math.exp(epsilon), 0.0)
                seen = float(gains.mean()) - 5.0 * float(gains.std()) / math.sqrt(len(gains))
                assert seen < pass_delta(part, way, epsilon)


@pytest.mark.parametrize("sigma", [0.7, 1.5])
def test_no_pass_of_little_noise_that_is_simulated_costs_more(sigma: float) -> None:
    """Eight batches of one, where large weights are most of the price: exact ratios, 4,000 outputs, 5 deviations."""
    rng, part = np.random.default_rng(6), ShuffledPass(8.0, 1.0 / sigma, 1)
    orders = np.array(list(itertools.permutations(range(8))))
    patterns = [[-1.0] * 7, [-1.0] * 6 + [1.0], [-1.0] * 4 + [1.0] * 3, [-1.0, -0.5, 0.0, 0.0, 0.5, 1.0, 1.0]]
    ways: tuple[Direction, Direction] = ("remove", "add")
    bounds = {way: [pass_delta(part, way, e) for e in (0.0, 0.5, 1.5)] for way in ways}
    for others in patterns:
        laws = [np.array([own, *others])[orders] for own in (1.0, 0.0)]
        for way, (law, rest) in zip(ways, (laws, laws[::-1]), strict=True):
            outputs = rest[rng.integers(len(rest), size=4000)] + sigma * rng.normal(size=(4000, 8))
            different = [np.unique(m, axis=0) for m in (law, rest)]  # all equally often
            logs = [(outputs @ m.T - (m**2).sum(axis=1) / 2) / sigma**2 for m in different]
            ratio = np.exp(logs[0]).mean(axis=1) / np.exp(logs[1]).mean(axis=1)
            for epsilon, bound in zip((0.0, 0.5, 1.5), bounds[way], strict=True):
                gains = np.maximum(ratio - math.exp(epsilon), 0.0)
                assert gains.mean() - 5.0 * gains.std() / math.sqrt(len(gains)) < bound


def test_no_contributions_of_the_displaced_have_larger_weights() -> None:
    """E_M sum_J (w_J - tau)_+ of random contributions in one to three dimensions, and of the worst ones, simulated."""
    rng, mu, batches = np.random.default_rng(7), 0.9, 60
    levels = 1.0 + np.geomspace(1e-3, batches, 40)
    bound = large_weights(ShuffledPass(batches + 1.0, mu, 1), levels)
    largest = 0.0
    for rare in (0, 1, 2, 4, 8, 15):
        shifts = [np.where(np.arange(batches) < rare, mu, -mu)[:, None]]
        for dimension in (1, 2, 3):
            drawn = rng.normal(size=(batches, dimension))
            shifts.append(mu * drawn / np.maximum(np.linalg.norm(drawn, axis=1, keepdims=True), rng.uniform(0.0, 1.5)))
        for u in shifts:
            u = u / np.maximum(np.linalg.norm(u, axis=1, keepdims=True) / mu, 1.0)
            h = u[rng.integers(batches, size=20_000)] + rng.normal(size=(20_000, u.shape[1]))
            weights = np.exp(h @ u.T - (u**2).sum(axis=1) / 2)
            weights /= weights.mean(axis=1, keepdims=True)  # w_J/q
            for level, most in zip(levels[::3], bound[::3], strict=True):
                excess = np.maximum(weights - level, 0.0).mean(axis=1)
                seen = excess.mean() - 5.0 * excess.std() / math.sqrt(len(excess))
                assert seen <= most
                largest = max(largest, excess.mean() / most if 2 < level < 10 else 0.0)
    assert largest > 0.15  # not for want of a bound that says anything


def test_layers_cost_no_less_than_the_weights_that_they_are_cut_from() -> None:
    """E (sum of the weights above a level times terms)_+ of a random one of four laws of six weights, term by term."""
    rng = np.random.default_rng(10)
    closest = math.inf
    for trial in range(60):
        growth = (1.0, 1.3)[trial % 2]
        values, chances = rng.normal(size=3) ** 3, rng.dirichlet(np.ones(3))
        values += 1.0 - growth - chances @ values
        drawn = np.array(list(itertools.product(range(3), repeat=6)))
        terms, masses = values[drawn], chances[drawn].prod(axis=1)
        totals = np.array([masses @ np.maximum(terms[:, :n].sum(axis=1), 0.0) for n in (1, 2, 4, 6)])
        rising = _rising(np.array([1.0, 2.0, 4.0, 6.0]), totals, 7.0, growth - 1.0)
        shares = 6.0 / 7.0 * rng.dirichlet(np.full(6, rng.uniform(0.2, 3.0)), size=4)
        levels = np.concatenate([[0.0], np.geomspace(1.0, 6.0, 7)])
        above = [np.maximum(shares - level / 7.0, 0.0) for level in levels]
        excess = np.array([7.0 / 6.0 * part.sum(axis=1).mean() for part in above])
        found = _layers(Weights(levels, excess, np.ones(1)), 7.0, rising)
        for part, bound in zip(above, found, strict=True):
            truth = float((np.maximum(part @ terms.T, 0.0) @ masses).mean())
            assert truth <= bound * (1.0 + 1e-12)
            closest = min(closest, bound / truth if truth > 1e-3 else math.inf)
    assert closest < 1.1


@pytest.mark.parametrize("growth", [1.0, 1.2])
def test_no_sum_is_above_the_concave_function(growth: float) -> None:
    """Sums of every number of terms, of which a ladder is looked at; and those of centred terms."""
    part, every = ShuffledPass(41.0, 0.5, 1), np.arange(1, 41)
    sums = term_sums(part, growth, every, "remove", 4.0)  # type: ignore[arg-type]
    ladder = np.array([1, 2, 3, 4, 5, 6, 8, 10, 13, 17, 22, 29, 40])
    for more, drift in ((0.0, growth - 1.0), (growth - 1.0, 0.0)):
        totals = np.array([one.excess(n * more) for one, n in zip(sums, every, strict=True)])
        x, y = _rising(ladder.astype(np.float64), totals[ladder - 1], 40.0, drift)
        assert (totals <= np.interp(every, x, y) * (1.0 + 1e-12)).all()
        assert (np.diff(y) >= 0.0).all()
        assert (np.diff(np.diff(y) / np.diff(x)) <= 1e-12).all()
        assert (np.interp(every, x, y) < 1.3 * np.maximum.accumulate(totals)).all()


def test_sums_and_what_is_added_to_them_are_drawn() -> None:
    """E (more + sum of five terms)_+ by a grid of terms that are convolved directly."""
    part, growth = ShuffledPass(10.0, 0.3, 1), 1.05
    unit = 0.01
    grid = np.arange(-600, 1500) * unit
    below = np.concatenate([[0.0], 1.0 + np.diff(excess(grid, growth, part.shift, "remove")[0]) / np.diff(grid), [1.0]])
    law = np.diff(below)
    total = law
    for _ in range(4):
        total = np.convolve(total, law)
    at = (np.arange(len(total)) - 3000) * unit
    (found,) = term_sums(part, growth, [5], "remove")
    (short,) = term_sums(part, growth, [5], "remove", least=1e-4)
    for more in (0.0, 0.4, 2.0):
        truth = float(total @ np.maximum(at + more, 0.0))
        assert truth * (1.0 - 1e-5) < found.excess(more) < truth * (1.0 + 3e-3)
        assert found.excess(more) - 1e-9 < short.excess(more) < found.excess(more) + 5e-4 + 1e-9


def test_the_cost_of_a_pass_bounds_it_at_larger_epsilons_too() -> None:
    part = ShuffledPass(234.0, 0.4, 1)
    cost, shift = pass_cost(part, "remove", 0.1, 1.0), 0.4
    for epsilon in (0.1, 0.3, 0.6):
        beyond = cost.hidden + cost.revealed * gaussian_delta(shift, epsilon)
        assert pass_delta(part, "remove", epsilon) < beyond < gaussian_delta(shift, epsilon)


def test_weights_are_mixtures_of_small_ones_and_rare_others() -> None:
    """The chance that is left over is at most r/(1 - k tau), at every tau, found by plain bisection."""
    rng = np.random.default_rng(9)
    for _ in range(300):
        weights = rng.dirichlet(np.full(12, rng.uniform(0.05, 2.0)))
        for k in (2, 3, 7):
            low, high = 0.0, 1.0  # largest share that goes to weights of at most 1/k
            for _ in range(60):
                share = (low + high) / 2
                low, high = (share, high) if np.minimum(weights, share / k).sum() >= share else (low, share)
            for tau in np.linspace(0.01, 0.99, 7) / k:
                assert 1.0 - low <= np.maximum(weights - tau, 0.0).sum() / (1.0 - k * tau) + 1e-12


@pytest.mark.parametrize("record", [0, 2, 4])
def test_no_pass_through_a_buffer_that_is_simulated_costs_more(record: int) -> None:
    """Five records in batches of one through a buffer of four, all 96 orders; 5 deviations of the estimate."""
    sigma, rng, known = 8.0, np.random.default_rng(3), list(orders(5, 4))
    chances, part = np.array([float(chance) for chance, _ in known]), ShuffledPass(4.0, 1.0 / sigma, 1)
    for others in ([-1.0] * 5, [0.0] * 5, [-1.0, 1.0, -1.0, 1.0, -1.0]):
        present, absent = (np.array([*others[:record], value, *others[record + 1 :]]) for value in (1.0, 0.0))
        laws = [np.array([values[list(order)] for _, order in known]) for values in (present, absent)]
        for way, (law, rest) in (("remove", laws), ("add", laws[::-1])):
            outputs = rest[rng.choice(len(known), size=20_000, p=chances)] + sigma * rng.normal(size=(20_000, 5))
            densities = [np.exp((outputs @ m.T - (m**2).sum(axis=1) / 2) / sigma**2) @ chances for m in (law, rest)]
            for epsilon in (0.0, 0.03, 0.1):
                gains = np.maximum(densities[0] / densities[1] - math.exp(epsilon), 0.0)
                seen = float(gains.mean()) - 5.0 * float(gains.std()) / math.sqrt(len(gains))
                direction: Direction = "remove" if way == "remove" else "add"
                assert seen < pass_delta(part, direction, epsilon)


@pytest.mark.parametrize(
    ("last_batch", "batches"), [("kept", Shuffled(60, 3)), ("dropped", Shuffled.of(597, 10, 3, last_batch="dropped"))]
)
def test_a_pass_through_a_buffer_is_one_of_the_batches_that_it_holds(last_batch: LastBatch, batches: Shuffled) -> None:
    """Of 10,007 records seven are dropped, as of 597."""
    buffered = claim(8.0, BufferedShuffle(10_007, 10, 600 if last_batch == "kept" else 597, 3, last_batch))
    assert epsilon_upper(buffered) == pytest.approx(epsilon_upper(claim(8.0, batches)), rel=1e-12)
    assert float(certified_lower(buffered).epsilon(DELTA)[0]) < epsilon_upper(buffered)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sigma", "sampler", "adjacency", "most", "revealed"),
    [
        (5.0, Shuffled(10_000, 1), "zero-out", 0.012, 0.7255),
        (5.0, Shuffled(1000, 20), "zero-out", 0.16, 3.848),
        (10.0, Shuffled(12, 71), "zero-out", 1.17, 3.594),
        (10.0, Shuffled(100, 10), "replace-one", 0.282, 2.594),
        (3.0, Shuffled(234, 60), "zero-out", 1.7, 13.76),
        (2.0, Shuffled(1000, 60), "zero-out", 2.72, 23.35),
        (1.1, Shuffled(234, 60), "zero-out", 28.8, 54.046),
        (1.0, Shuffled(100, 60), "zero-out", 46.0, 62.24),  # hidden by layers alone
    ],
)
def test_many_batches_cost_far_less_than_a_known_order(
    sigma: float, sampler: Shuffled, adjacency: Adjacency, most: float, revealed: float
) -> None:
    history = claim(sigma, sampler, adjacency)
    found = epsilon_upper(history)
    assert 0.9 * most < found < most
    shift = math.sqrt(sampler.epochs) / sigma * (2.0 if adjacency == "replace-one" else 1.0)
    assert gaussian_delta(shift, revealed) == pytest.approx(1e-5, rel=2e-2)
    if sampler.batches <= 1000:
        assert float(certified_lower(history).epsilon(DELTA)[0]) < found


@pytest.mark.parametrize("delta", [1e-14, 5e-324])
def test_a_tiny_delta_is_no_crash(delta: float) -> None:
    """The forecast asked for a quantile that is no number."""
    history = Claim(1.0, delta, [Phase(Gaussian(5.0), sampler=Shuffled(100, 1))], "zero-out").canonical("upper")
    if shuffled_batches.applies(history):
        assert shuffled_batches.bound(history).delta(np.array([40.0]))[0] < 1.0


def test_a_forecast_of_many_passes_takes_no_more_numbers() -> None:
    """One for each pass took 6.5 GiB."""
    history = Claim(1.0, 1e-6, [Phase(Gaussian(0.5), sampler=Shuffled(100, 900_000_000))], "zero-out")
    assert not shuffled_batches.applies(history.canonical("upper"))


def test_batches_with_a_smaller_last_one_count_as_the_records_over_the_batch() -> None:
    kept, whole = claim(8.0, Shuffled.of(905, 10, 3)), claim(8.0, Shuffled(91, 3))
    dropped = claim(8.0, Shuffled.of(905, 10, 3, last_batch="dropped"))
    assert epsilon_upper(whole) <= epsilon_upper(kept) <= epsilon_upper(dropped) < 1.05 * epsilon_upper(whole)


def test_batches_that_divide_the_records_do_not_straddle() -> None:
    divided = claim(8.0, Shuffled.of(910, 10, 3, last_batch="straddling"))
    assert epsilon_upper(divided) == epsilon_upper(claim(8.0, Shuffled(91, 3)))
    one_pass = claim(8.0, Shuffled.of(905, 10, 1, last_batch="straddling"))
    assert epsilon_upper(one_pass) == epsilon_upper(claim(8.0, Shuffled.of(905, 10, 1, last_batch="dropped")))


def test_batches_that_straddle_are_known_releases_beside_whole_ones() -> None:
    """Of 905 places in three passes 20 are in one, and then a whole release tells of the record."""
    straddling = claim(8.0, Shuffled.of(905, 10, 3, last_batch="straddling"))
    dropped = epsilon_upper(claim(8.0, Shuffled.of(905, 10, 3, last_batch="dropped")))
    assert dropped < epsilon_upper(straddling) < 0.3
    assert gaussian_delta(1.0 / 8.0, 0.4) > 1e-5
    assert gaussian_delta(math.sqrt(3.0) / 8.0, 0.75) > 1e-5
    assert float(certified_lower(straddling).epsilon(DELTA)[0]) < epsilon_upper(straddling)


def places_in_a_pass(sampler: Shuffled | BufferedShuffle, record: int) -> Array:
    """Law of the draw of a pass that takes the record, draw by draw."""
    records, found = sampler.records or 0, np.zeros(sampler.records or 0)
    held = sampler.buffer if isinstance(sampler, BufferedShuffle) else records
    here = 1.0
    for draw in range(max(record - held + 1, 0), records):
        found[draw] = here / min(held, records - draw)
        here -= found[draw]
    return found


def means_of_passes(sampler: Shuffled | BufferedShuffle, record: int, own: float, others: float) -> tuple[Array, Array]:
    """Of two straddling passes with one record of `own` and others alike: all that occur, and their probabilities."""
    records, batch, once = sampler.records or 0, sampler.batch or 1, places_in_a_pass(sampler, record)
    found = np.full((records**2, sampler.steps + 1), batch * others)
    for row, places in zip(found, itertools.product(range(records), repeat=2), strict=True):
        for epoch, place in enumerate(places):
            row[min((epoch * records + place) // batch, sampler.steps)] += own - others  # the last is no batch
    return found[:, :-1], np.outer(once, once).ravel()


def means_of_stream(sampler: BufferedShuffle, own: float, others: float) -> tuple[Array, Array]:
    """As `means_of_passes` of a stream of two copies, of which one is held and one comes in before a batch."""
    here, coming = {(1, ()): 1.0}, sampler.records // sampler.batch
    for batch in range(sampler.steps):
        after: dict[tuple[int, tuple[int, ...]], float] = {}
        for (held, left), mass in here.items():
            held += batch == coming
            for gone, chance in enumerate(leaving(held, sampler.buffer, sampler.batch)):
                state = held - gone, (*left, *[batch] * gone)
                after[state] = after.get(state, 0.0) + mass * chance
        here = after
    found = np.full((len(here), sampler.steps), sampler.batch * others)
    for row, (_, left) in zip(found, here, strict=True):
        np.add.at(row, list(left), own - others)
    return found, np.array(list(here.values()))


def leaving(held: int, buffer: int, draws: int) -> list[float]:
    """How many of so many copies leave a buffer in so many draws."""
    law = [1.0, *[0.0] * held]
    for _ in range(draws):
        for gone in reversed(range(held + 1)):
            law[gone] *= 1.0 - (held - gone) / buffer
            law[gone] += law[gone - 1] * (held - gone + 1) / buffer if gone else 0.0
    return law


SIMULATED: list[tuple[Shuffled | BufferedShuffle, int, float]] = [
    (Shuffled.of(61, 4, 2, last_batch="straddling"), 0, 0.4),
    (BufferedShuffle(61, 4, 48, 2, "straddling"), 0, 0.4),
    (BufferedShuffle(61, 4, 48, 2, "straddling"), 60, 0.4),
    (BufferedShuffle(600, 8, 200, releases=150), 199, 0.15),
]


@pytest.mark.parametrize(("sampler", "record", "part"), SIMULATED)
@pytest.mark.parametrize("others", [-1.0, 0.0])
@pytest.mark.parametrize(("adjacency", "absent"), [("zero-out", 0.0), ("replace-one", -1.0)])
def test_no_simulated_passes_cost_more_and_some_nearly_as_much(
    sampler: Shuffled | BufferedShuffle, record: int, part: float, others: float, adjacency: Adjacency, absent: float
) -> None:
    """Two places or copies of a record among others alike, exact likelihood ratios; 5 deviations of the estimate."""
    sigma, epsilons, rng = 6.0, np.array([0.0, 0.03, 0.1, 0.2]), np.random.default_rng(4)
    history = Claim(1.0, 1e-2, [Phase(Gaussian(sigma), sampler=sampler)], adjacency).canonical("upper")
    bound = shuffled_batches.bound(history).delta(epsilons)
    revealed = math.sqrt(2.0) / sigma * (2.0 if absent else 1.0)
    assert (bound < [0.7 * gaussian_delta(revealed, epsilon) for epsilon in epsilons]).all()
    batch = sampler.batch or 1
    if isinstance(sampler, BufferedShuffle) and sampler.passes is None:
        laws = [means_of_stream(sampler, own, others) for own in (1.0, absent)]
    else:
        laws = [means_of_passes(sampler, record, own, others) for own in (1.0, absent)]
    for (law, weights), (rest, chances) in (laws, laws[::-1]):
        outputs = rest[rng.choice(len(rest), size=4000, p=chances / chances.sum())] - batch * others
        outputs += sigma * rng.normal(size=outputs.shape)
        moved = [mean - batch * others for mean in (law, rest)]
        exponents = [(outputs @ mean.T - (mean**2).sum(axis=1) / 2) / sigma**2 for mean in moved]
        ratio = (np.exp(exponents[0]) @ weights) / (np.exp(exponents[1]) @ chances)
        gains = np.maximum(ratio - np.exp(epsilons)[:, None], 0.0)
        seen = gains.mean(axis=1) - 5.0 * gains.std(axis=1) / math.sqrt(gains.shape[1])
        assert (seen < bound).all()
        assert seen[0] > part * bound[0]


def test_releases_that_are_not_sampled_add_their_shifts() -> None:
    """Passes that cost next to nothing beside, and two phases of known releases as one."""
    passes, known = (
        Phase(Gaussian(50.0), sampler=Shuffled(10_000, 1)),
        [Phase(Gaussian(2.0), 2), Phase(Gaussian(3.0), 9)],
    )
    alone = math.sqrt(2.0 / 4.0 + 1.0)
    for adjacency, factor in (("zero-out", 1.0), ("replace-one", 2.0)):
        history = Claim(1.0, 1e-5, [passes, *known], adjacency).canonical("upper")  # type: ignore[arg-type]
        found = shuffled_batches.bound(history).delta(epsilons := np.array([1.0, 3.0, 6.0]))
        truth = np.array([gaussian_delta(factor * alone, epsilon) for epsilon in epsilons])
        assert (truth < found).all()
        assert (found < truth * 1.03).all()


def test_known_releases_that_dwarf_the_passes_need_no_finer_grid() -> None:
    """On the grid of a pass that costs 1e-8 the known releases were 10^9 cells: 9 GB."""
    history = claim(1e4, Shuffled(10**6, 1)).canonical("upper")
    history = replace(history, phases=[*history.phases, Phase(Gaussian(2.0), 2)])
    found = shuffled_batches.bound(history).delta(epsilons := np.array([0.5, 1.0, 3.0]))
    truth = np.array([gaussian_delta(math.sqrt(0.5), epsilon) for epsilon in epsilons])
    assert (truth < found).all()
    assert (found < truth * 1.01).all()


def test_passes_that_cost_next_to_nothing_are_looked_at_no_farther(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond what their losses are, up to thousands of deviations, it took minutes."""
    seen = list[float]()

    def counted(*args: object) -> PassCost:
        seen.append(args[2])  # type: ignore[arg-type]
        return pass_cost(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(shuffled_batches, "pass_cost", counted)
    history = Claim(1.0, 1e-300, [Phase(Gaussian(1e4), sampler=Shuffled(10_000, 1000))], "zero-out")
    shuffled_batches.bound(history.canonical("upper"))
    assert 0 < max(seen) < 500.0 * math.sqrt(1.0 / 10_000.0) / 1e4  # deviations of a pass whose terms are all hidden


def test_parts_that_share_passes_look_at_them_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 17 parts, by how many batches hold a record twice, went through the same passes again: minutes."""
    seen = list[tuple[object, ...]]()

    def counted(*args: object) -> PassCost:
        seen.append(args[:3])
        return pass_cost(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(shuffled_batches, "pass_cost", counted)
    straddling = Phase(Gaussian(8.0), sampler=Shuffled.of(1000, 300, 40, last_batch="straddling"))
    passes = Phase(Gaussian(5.0), sampler=Shuffled(10_001, 5))
    upper_curves(Claim(1.0, 1e-5, [passes, straddling], "zero-out"))
    assert seen
    assert len(seen) < 2 * len(set(seen))


def test_several_phases_that_straddle_are_looked_at_together() -> None:
    sampler = Shuffled.of(6005, 10, 3, last_batch="straddling")
    history = Claim(1.0, 1e-5, [Phase(Gaussian(sigma), sampler=sampler) for sigma in (8.0, 9.0)], "zero-out")
    both = epsilon_upper(history.canonical("upper"))
    apart = [epsilon_upper(claim(sigma, sampler)) for sigma in (8.0, 9.0)]
    assert max(apart) < both
    assert gaussian_delta(math.sqrt(3.0 / 64.0 + 3.0 / 81.0), both) > 1e-5
    assert float(certified_lower(history.canonical("lower")).epsilon(DELTA)[0]) < both


def test_squares_of_many_phases_that_straddle_are_not_rounded_down() -> None:
    """1 and forty times half a unit in its last place are 1 in floats, one sum after another."""
    once, unit = np.array([0.0, 1.0, 0.0]), 2.0**-53  # one release for sure
    found = known_releases(0.0, [(1.0, once), *[(unit, once)] * 40], 1e-10)
    assert Fraction(float(found.shifts[-1])) ** 2 >= 1 + 40 * Fraction(unit)


@pytest.mark.parametrize(
    ("noise", "sampler"),
    [
        (Gaussian(0.3), Shuffled(234, 60)),  # too few batches for so little noise
        (Gaussian(8.0), Shuffled(1000, 3, reshuffle="once")),
        (Gaussian(8.0), Shuffled.of(905, 500, 3, last_batch="straddling")),  # passes without a whole batch
        (Laplace(8.0, clip_norm=1.0), Shuffled(1000, 3)),
        (Gaussian(8.0), BufferedShuffle(905, 10, 40, releases=270)),  # buffers of too few batches
        (Gaussian(8.0), BufferedShuffle(905, 10, 40, 3, "straddling")),
    ],
)
def test_what_is_not_covered_has_no_bound(noise: Gaussian | Laplace, sampler: Sampler) -> None:
    history = Claim(1.0, 1e-5, [Phase(noise, sampler=sampler)], "zero-out").canonical("upper")
    assert not shuffled_batches.applies(history)
    with pytest.raises(ValueError, match="many shuffled batches"):
        shuffled_batches.bound(history)
