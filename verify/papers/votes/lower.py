"""Certified lower bound for noisy argmaxes over votes: two tied classes, and one teacher that changes sides.

Per query the output is summarised as "not answered", "class a", "class b" or "another class" (post-processing); queries
with the same votes are independent, and their masses are composed as those of any other release. The probability that
the winner lies in a set W of counts, the others being R, is a Stieltjes integral of two distribution functions,

    P(max_W > max_R) = int G_R dG_W,   G_S(x) = prod_{i in S} F(x - n_i),

which lies between its sums with G_R at the left and at the right end of each cell, as G_R and G_W do not fall.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpaudit.mechanisms.base import Array, IIDCoordinates
from dpaudit.verify.binomial_tails import binomial_tail
from dpaudit.verify.curves import Curve
from dpaudit.verify.lower.strongest import event
from dpaudit.verify.papers.votes.history import VoteHistory
from dpaudit.verify.pld.cells import CDF_ERROR, SMALLEST_MASS
from dpaudit.verify.pld.operating_points import (
    Points,
    grid_step,
    loss_variance,
    merge,
    on_grid,
    operating_points,
    single_points,
)
from dpaudit.verify.results import Witness

COARSE = 1 << 9  # cells for the choice of the votes
FINE = (1 << 18, 1 << 20)  # for the bound, fewest and most
CELLS_PER_QUERY = 1000  # the bounds of one query are 6/cells apart, and those distances add up
KNOTS = 1 << 10  # quantiles that are inverted: they only place the cells
LEADS = 8  # leads tried on each side of a tie, and then between the neighbours of the best
# Absolute error of each sum. G's relative error is a sum of (count of i) CDF_ERROR (1 + |log t|) t over tails t of a
# size that keeps G itself from 0: at most CDF_ERROR (3 + log count) in all. In the sum it is multiplied by the total
# variation of G_R and of G_W, 1 each; numpy's pairwise summation adds log2(cells) roundings.
SLACK = 100.0 * CDF_ERROR
STOPPED = 1e-9  # share of delta that may be lost to answers that run out
THEOREM = (
    "definition of delta: P(S) - e^epsilon Q(S) of one event S on the labels for one changed vote, with both "
    "probabilities bounded from exact masses of the noisy argmax"
)


def win_probability(
    law: IIDCoordinates, counts: Sequence[tuple[float, int, bool]], *, cells: int = FINE[0]
) -> tuple[float, float]:
    """(lower, upper) bounds on the probability that a winner has the largest noisy count.

    Args:
        law: Law of the noise of each count.
        counts: (count, how many such, whether they are winners), the numbers at least 1.
        cells: Of the sums: the bounds are about 3/cells apart.

    Returns:
        Two numbers in [0, 1].

    >>> from dpaudit.mechanisms import Laplace
    >>> low, high = win_probability(Laplace(1.0).structure, [(0.0, 1, True), (0.0, 3, False)])
    >>> low <= 0.25 <= high <= low + 1e-5
    True
    """
    at, many, wins = zip(*counts, strict=True)
    return _won(_log_cdfs(law, at, many, cells), np.array(wins), max(many))


def _log_cdfs(law: IIDCoordinates, at: Sequence[float], many: Sequence[int], cells: int) -> Array:
    """Log distribution functions of the largest of so many noisy counts, shape (counts, ends of cells)."""
    places = zip(at, many, strict=True)
    x = np.unique(np.concatenate([_grid(law, few, cells // len(at)) + count for count, few in places]))
    return np.array([few * _log_cdf(law, x - count) for count, few in zip(at, many, strict=True)])


def _won(log_cdfs: Array, wins: NDArray[np.bool_], many: int) -> tuple[float, float]:
    """Bounds on the probability that the largest count is a winner's, at most `many` counts being the same."""
    ours, theirs = (
        np.concatenate([[0.0], np.exp(log_cdfs[wins == side].sum(axis=0)), [1.0]]) for side in (True, False)
    )
    rise = np.diff(ours)
    slack = SLACK * (3.0 + math.log(many))
    low, high = float((rise * theirs[:-1]).sum()) - slack, float((rise * theirs[1:]).sum()) + slack
    return max(low, 0.0), min(high, 1.0)


def _grid(law: IIDCoordinates, many: int, size: int) -> Array:
    """Places where F^many rises in nearly equal steps: quantiles, taken from the upper tail, and lines between."""
    known = np.linspace(0.0, 1.0, min(size, KNOTS) + 2)[1:-1]
    quantiles = -law.ppf(-np.expm1(np.log(known) / many))
    return np.asarray(np.interp(np.linspace(known[0], known[-1], size), known, quantiles))


def _log_cdf(law: IIDCoordinates, x: Array) -> Array:
    tail = law.cdf(-np.abs(x))
    with np.errstate(divide="ignore"):
        return np.asarray(np.where(x < 0, np.log(np.maximum(tail, SMALLEST_MASS)), np.log1p(-tail)))


def votes_lower(history: VoteHistory, *, epsilon: float, delta: float) -> Curve:
    """Lower bound on delta(epsilon) of all labels together, with the votes that attain it.

    Args:
        history: The queries allowed.
        epsilon: Where the witness is described.
        delta: At which epsilon is to be large; the bound holds everywhere.

    Returns:
        A curve of side "lower".

    >>> from dpaudit.mechanisms import GeneralizedGaussian
    >>> noise = GeneralizedGaussian(beta=2.0, scale=40.0 * 2**0.5)  # standard deviation 40
    >>> history = VoteHistory(noise, answers=100, teachers=250, classes=2)
    >>> curve = votes_lower(history, epsilon=1.0, delta=1e-5)
    >>> float(curve.epsilon(np.array([1e-5]))[0]).__round__(3)  # by votes_upper, 1.356 is enough
    1.045
    """
    at = np.array([delta])
    by_gap = {gap: _points(history, gap, delta) for gap in sorted(_promising(history, delta))}
    gap = max(by_gap, key=lambda lead: float(by_gap[lead].epsilon(at)[0]))
    points = merge(list(by_gap.values()))
    witness = _witness(history, gap, by_gap[gap], epsilon)
    return Curve("lower", "witness", THEOREM, points.delta, points.epsilon, (), witness)


def _promising(history: VoteHistory, delta: float) -> set[int]:
    """Leads worth certifying: the most information over all queries, and the clearest of unanimous labels."""
    reach = min(float(history.teachers), float(-2.0 * history.law.ppf(np.array([1e-8]))[0]))
    chosen = set()
    for score in (_information, _clearest):
        tried: dict[int, float] = {}
        ladder = np.linspace(-reach, reach, 2 * LEADS + 1)
        while True:
            for gap in _leads(history, ladder):
                if gap not in tried:
                    tried[gap] = score(*_estimates(history, gap), _queries(history, gap, delta)[0], delta)
            best = max(tried, key=lambda gap: tried[gap])
            spacing = float(ladder[1] - ladder[0])
            if spacing <= 2.0:  # what votes of one parity can do
                break
            ladder = np.linspace(best - spacing, best + spacing, LEADS + 1)
        chosen.add(best)
    return chosen


def _information(first: Array, second: Array, count: int, delta: float) -> float:
    """Mean loss over all queries."""
    return count * float(np.sum(first * (np.log(first) - np.log(second))))


def _clearest(first: Array, second: Array, count: int, delta: float) -> float:
    """epsilon at delta from the event that class a wins every time."""
    room = float(first[1]) ** count - delta
    return math.log(room) - count * math.log(second[1]) if room > 0 else -math.inf


def _leads(history: VoteHistory, wanted: Array) -> list[int]:
    """Leads of class a over class b that votes can have, next to the wanted ones."""
    votes = history.teachers
    # without a third class to take it, no vote may be left over; with one, an odd lead leaves the largest count alone
    parity = votes % 2 if history.classes == 2 else 1
    leads = {parity + 2 * round((lead - parity) / 2) for lead in wanted.tolist()}
    return sorted(lead for lead in leads if 2 - votes <= lead <= votes)


def _estimates(history: VoteHistory, gap: int) -> tuple[Array, Array]:
    """The masses with the vote and with it changed, from few cells: a guide, never a bound."""
    parts = []
    for votes in _votes(history, gap):
        lower, upper = _masses(history, votes, COARSE)
        middle = np.maximum(0.5 * (lower + upper), SMALLEST_MASS)
        parts.append(middle / middle.sum())
    return parts[0], parts[1]


def _votes(history: VoteHistory, gap: int) -> tuple[list[int], list[int]]:
    """Counts of class a, class b and the third class, with the vote on a and with it changed."""
    rest = (history.teachers - gap) % 2  # one vote too many goes to a third class
    first = (history.teachers - rest + gap) // 2
    with_vote = [first, first - gap, rest]
    changed = [first - 1, first - gap + (history.moved == 2), rest]
    return with_vote, changed


def _answer_probability(history: VoteHistory, votes: Sequence[int]) -> tuple[float, float]:
    """Bounds on the probability that the check passes."""
    if history.check is None:
        return 1.0, 1.0
    law = history.check.structure
    assert isinstance(law, IIDCoordinates)
    passed = float(law.cdf(np.array([max(votes) - history.threshold]))[0])
    return max(passed - SLACK, 0.0), min(passed + SLACK, 1.0)


def _masses(history: VoteHistory, votes: Sequence[int], cells: int) -> tuple[Array, Array]:
    """Bounds on the masses of "not answered", "class a", "class b", "another class" for one query."""
    at, many = [float(count) for count in votes[: history.classes]], [1] * min(history.classes, 3)
    if history.classes > 3:
        at, many = [*at, 0.0], [*many, history.classes - 3]
    log_cdfs, place = _log_cdfs(history.law, at, many, cells), np.arange(len(at))
    (low, high), (low_b, high_b) = (_won(log_cdfs, place == winner, max(many)) for winner in (0, 1))
    others = (1.0 - high - high_b, 1.0 - low - low_b) if history.classes > 2 else (0.0, 0.0)
    lower, upper = np.array([low, low_b, others[0]]), np.array([high, high_b, others[1]])
    pass_low, pass_high = _answer_probability(history, votes)
    silent = (0.0, 0.0) if history.check is None else (1.0 - pass_high, 1.0 - pass_low)
    lower = np.append(silent[0], pass_low * np.maximum(lower, 0.0))
    upper = np.append(silent[1], pass_high * np.maximum(upper, 0.0))
    return lower * (1.0 - 1e-15), np.maximum(upper * (1.0 + 1e-15), SMALLEST_MASS)


def _queries(history: VoteHistory, gap: int, delta: float) -> tuple[int, float]:
    """How many queries the event looks at, and a bound on the probability that the answers run out before."""
    if history.check is None:
        return int(history.answers), 0.0
    likeliest = max(_answer_probability(history, votes)[1] for votes in _votes(history, gap))
    allowed = STOPPED * max(delta, 1e-12)
    low, high = 1, int(history.checks)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _runs_out(history, middle, likeliest) <= allowed else (low, middle - 1)
    return low, _runs_out(history, low, likeliest)


def _runs_out(history: VoteHistory, queries: int, answered: float) -> float:
    """Bound on the probability that all answers allowed are given within some queries."""
    if queries <= history.answers:
        return 0.0  # the last answer, if it is, is the last thing looked at
    return binomial_tail(int(history.answers), queries, answered)[1]


def _points(history: VoteHistory, gap: int, delta: float) -> Points:
    """Operating points of all queries with these votes, for the vote on class a against it on class b."""
    count, lost = _queries(history, gap, delta)
    cells = min(max(FINE[0], CELLS_PER_QUERY * count), FINE[1])
    first, second = (_masses(history, votes, cells)[side] for side, votes in enumerate(_votes(history, gap)))
    if count == 1:
        return single_points(first, second)
    step, deviation = grid_step([(loss_variance(first, second), count)])
    points = operating_points([on_grid(first, second, step, count)], step, deviation).all()
    # until the answers run out the two histories agree: their transcripts differ with probability at most `lost`
    log_second = np.logaddexp(points.log_second_upper, math.log(lost)) + 1e-15 if lost else points.log_second_upper
    return Points(np.maximum(points.first_lower - lost, 0.0), log_second, points.threshold)


def _witness(history: VoteHistory, gap: int, points: Points, epsilon: float) -> Witness:
    with_vote, changed = (votes[: history.classes] for votes in _votes(history, gap))
    what = (
        f"every query with the votes {with_vote}, against {changed} (all other classes 0): privacy loss of the labels"
    )
    order = float(history.noise.clip_norm)
    norm = 1.0 if math.isinf(order) else history.moved ** (1.0 / order)
    shift = [[1.0, 1.0], [-1.0, 1.0]][: history.moved]
    way = "swap" if history.moved == 2 else "remove"
    return Witness("one vote", history.moved, norm, shift, way, event(points, epsilon, what))  # type: ignore[arg-type]
