"""Rows that several participations move: against every pattern, exact laws of the loss, and simulation."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dpaudit.mechanisms import GammaPLRVIID, GeneralizedGaussian, Laplace
from dpaudit.mechanisms.base import Mechanism, with_noise_factor
from dpaudit.verify import Claim, check
from dpaudit.verify.claims import Phase
from dpaudit.verify.correlated import (
    BLT,
    BandedToeplitz,
    Correlation,
    Matrix,
    Participation,
    SquareRootToeplitz,
    Tree,
)
from dpaudit.verify.correlated.correlation import Strategy, _rows, _rows_lower
from dpaudit.verify.correlated.rows import enlarged
from dpaudit.verify.guarantees import PureDP
from dpaudit.verify.implied import claim_stating
from dpaudit.verify.lower import certified_lower
from dpaudit.verify.upper import upper_curve

Floats = NDArray[np.float64]
STEPS = 8
EPSILONS = np.array([0.0, 0.3, 1.0, 2.0, 4.0])
SCHEMAS = [
    Participation("single"),
    *(Participation("fixed-order", separation=b) for b in (1, 2, 3, 5, 8, 99)),
    *(Participation("min-sep", separation=b, times=k) for b in (1, 2, 3, 4, 9) for k in (1, 2, 3, None)),
]
TWICE, ALL = Participation("min-sep", separation=2), Participation("min-sep", separation=1)


def plain(entries: Floats) -> Matrix:
    return Matrix("C.npy", str(hash(entries.tobytes())), entries)


def toeplitz(coefficients: Sequence[float]) -> Floats:
    return sum(
        (value * np.eye(STEPS, k=-order) for order, value in enumerate(coefficients[:STEPS])), np.zeros((STEPS, STEPS))
    )


def tree_rows(leaves: int, every: bool) -> Floats:
    """Every complete block of 2^l steps inside its tree, of prefix sums those of even number."""
    rows = list[list[float]]()
    for size, low in itertools.product((1, 2, 4, 8), range(STEPS)):
        start = low // leaves * leaves
        aligned = (low - start) % (size if every else 2 * size) == 0
        if aligned and low + size <= min(start + leaves, STEPS):
            rows.append([float(low <= step < low + size) for step in range(STEPS)])
    return np.array(rows)


SIGNED = np.random.default_rng(1).normal(size=(5, STEPS))
STRATEGIES: dict[str, tuple[Strategy, Floats]] = {
    "square root": (SquareRootToeplitz(), toeplitz([math.comb(2 * j, j) / 4**j for j in range(STEPS)])),
    "blt": (BLT((0.5,), (0.2,)), toeplitz([1.0, *(0.2 * 0.5**j for j in range(7))])),
    "blt of both signs": (BLT((0.9,), (-0.5,)), toeplitz([1.0, *(-0.5 * 0.9**j for j in range(7))])),
    "rising": (BandedToeplitz(diagonals=(0.2, -1.0, 0.1, 0.5)), toeplitz([0.2, -1.0, 0.1, 0.5])),
    "flat": (BandedToeplitz(diagonals=(1.0, 1.0, 1.0, 1.0)), toeplitz([1.0] * 4)),
    "tree": (Tree(), tree_rows(8, False)),
    "tree of 3": (Tree(3), tree_rows(3, False)),
    "all nodes": (Tree(nodes="all"), tree_rows(8, True)),
    "all nodes of 5": (Tree(5, "all"), tree_rows(5, True)),
    "plain": (plain(SIGNED), SIGNED),
    "one row": (plain(np.ones((1, STEPS))), np.ones((1, STEPS))),
}


@cache
def patterns(participation: Participation) -> list[tuple[int, ...]]:
    """Every largest set of steps that the schema allows, and of few times the smaller ones."""
    apart, times = participation.spacing(STEPS)
    if participation.kind == "fixed-order":
        return [tuple(range(start, STEPS, apart)) for start in range(min(apart, STEPS))]
    return [
        chosen
        for count in range(1, times + 1)
        for chosen in itertools.combinations(range(STEPS), count)
        if all(b - a >= apart for a, b in itertools.pairwise(chosen))
    ]


def falling(values: Floats) -> Floats:
    return -np.sort(-values)


@pytest.mark.parametrize("name", STRATEGIES)
def test_no_pattern_moves_the_rows_further(name: str) -> None:
    strategy, entries = STRATEGIES[name]
    for schema in SCHEMAS:
        rows, most = _rows(strategy, schema, STEPS), 0.0
        pad = np.zeros(len(entries) + STEPS)
        each, sums = (np.concatenate([falling(x), pad])[: len(entries)] for x in (rows.each, rows.together))
        for pattern in patterns(schema):
            moved = falling(np.abs(entries)[:, pattern].sum(axis=1))
            assert (moved <= each * (1 + 1e-15)).all(), (schema, pattern)
            assert (np.cumsum(moved) <= np.cumsum(sums) * (1 + 1e-14)).all(), (schema, pattern)
            most = max(most, float(moved.sum()))
        assert rows.total == pytest.approx(most, rel=1e-13)
        assert rows.total >= most * (1 - 1e-15)


@pytest.mark.parametrize("name", STRATEGIES)
def test_what_is_shown_from_below_is_what_some_pattern_moves(name: str) -> None:
    strategy, entries = STRATEGIES[name]
    for schema in SCHEMAS:
        least = falling(_rows_lower(strategy, schema, STEPS))
        least = np.concatenate([least, np.zeros(len(entries))])[: len(entries)]
        best, met = 0.0, False
        for pattern in patterns(schema):
            for signs in itertools.product((1.0, -1.0), repeat=len(pattern)):
                moved = falling(np.abs(entries[:, pattern] @ np.array(signs)))
                best, met = max(best, float(moved.sum())), met or bool((least <= moved + 1e-15).all())
        assert met, schema
        assert least.sum() >= np.abs(entries).sum(axis=0).max() * (1 - 1e-13)  # what one participation shows
        if (entries >= 0).all():
            assert least.sum() == pytest.approx(best, rel=1e-13)


def loss_masses(shifts: Floats, step: float, *, up: bool) -> tuple[Floats, Floats]:
    """(losses, probabilities) of Laplace releases moved by these scales, each loss rounded to a grid.

    With the record P(L <= l) is e^((l - s)/2)/2 from -s to s, where it jumps to 1: L = |z| - |z - s|, z around s.
    """
    masses, last = np.ones(1), 0
    for shift in shifts[shifts > 0]:
        reach = math.ceil(shift / step) + 1
        grid = step * np.arange(-reach, reach + 1)
        below = np.where(grid >= shift, 1.0, np.where(grid < -shift, 0.0, 0.5 * np.exp((grid - shift) / 2)))
        cells = np.diff(np.append(0.0, below))  # of what lies above the point before, up to this one
        masses, last = np.convolve(masses, cells if up else np.append(cells[1:], 0.0)), last + reach
    return step * (np.arange(len(masses)) - last), masses


def product_delta(shifts: Floats, step: float = 2e-3) -> tuple[Floats, Floats]:
    """Bounds on delta at EPSILONS of releases moved by so many scales each."""
    found = []
    for up in (False, True):
        losses, masses = loss_masses(np.asarray(shifts), step, up=up)
        found.append(np.array([masses @ np.maximum(-np.expm1(e - losses), 0.0) for e in EPSILONS]))
    return found[0], found[1]


def test_the_law_of_the_loss_is_that_of_one_release() -> None:
    low, high = product_delta(np.array([1.7]))
    truth = np.maximum(-np.expm1((EPSILONS - 1.7) / 2), 0.0)
    assert (low <= truth + 1e-12).all()
    assert (truth <= high + 1e-12).all()
    np.testing.assert_allclose(low, high, atol=2e-3)


def test_releases_cost_more_the_more_unequal_their_shifts_are() -> None:
    """Of two by the formula of the docstring; of several, numbers whose largest add up to less cost less."""
    for s, s_1 in ((2.0, 0.3), (2.0, 1.0), (5.0, 2.5), (3.0, 0.0)):
        low, high = product_delta(np.array([s_1, s - s_1]))
        inner = 1 + np.minimum(s_1 / 2, (s - EPSILONS) / 4)
        formula = np.where(s > EPSILONS, 1 - np.exp((EPSILONS - s) / 2) * inner, 0.0)
        assert (low - 1e-9 <= formula).all()
        assert (formula <= high + 1e-9).all()
    rng = np.random.default_rng(3)
    for _ in range(20):
        more = falling(rng.exponential(size=4))
        mixing = np.mean([np.eye(4)[rng.permutation(4)] for _ in range(3)], axis=0)  # doubly stochastic
        less = mixing @ more * rng.uniform(0.7, 1.0, size=4)
        assert (product_delta(less)[0] <= product_delta(more)[1]).all()


def moved_claim(strategy: Strategy, schema: Participation, noise: Mechanism, steps: int = STEPS, **kinds: Any) -> Claim:
    return Claim(1.0, 1e-5, [Phase(noise, steps, correlation=Correlation(strategy, schema))], id="a", **kinds)


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("schema", [TWICE, Participation("fixed-order", separation=3)], ids=str)
def test_brackets_hold_over_all_patterns(name: str, schema: Participation) -> None:
    """One coordinate of Laplace noise: the exact law of every pattern's loss, contributions of one sign."""
    strategy, entries = STRATEGIES[name]
    scale = 2.0
    of = moved_claim(strategy, schema, Laplace(scale, dimension=1))
    lower, upper = certified_lower(of).delta(EPSILONS), upper_curve(of)(EPSILONS)
    assert (lower <= upper).all()
    signed = {tuple(np.abs(entries[:, pattern].sum(axis=1)).round(12)) for pattern in patterns(schema)}
    for moved in signed:
        assert (product_delta(np.array(moved) / scale)[0] <= upper).all()
    if (entries >= 0).all():
        assert (lower <= np.max([product_delta(np.array(moved) / scale)[1] for moved in signed], axis=0)).all()
        fall = isinstance(strategy, SquareRootToeplitz | BLT) or name in ("flat", "one row")
        if fall:  # equal contributions to one pattern attain it
            np.testing.assert_allclose(lower, upper, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_pure_epsilon_is_the_loss_at_the_farthest_outputs(name: str) -> None:
    """The largest loss over patterns, signs and outputs, evaluated by the mechanism at outputs that are far away."""
    strategy, entries = STRATEGIES[name]
    noise = Laplace(0.8, clip=0.5, clip_norm=1.0, dimension=1)
    for schema in (TWICE, Participation("min-sep", separation=3, times=2)):
        truth = 0.0
        for pattern in patterns(schema):
            for signs in itertools.product((1.0, -1.0), repeat=len(pattern)):
                shifts = 0.5 * entries[:, pattern] @ np.array(signs)
                outputs = np.copysign(1e6, shifts)
                truth = max(truth, float(noise.privacy_loss(outputs, shifts)))
        found = check(replace(moved_claim(strategy, schema, noise), delta=0.0))
        assert found.epsilon_lower <= truth * (1 + 1e-9)
        assert found.epsilon_upper >= truth * (1 - 1e-9)
        if (entries >= 0).all():
            assert found.epsilon_lower == pytest.approx(truth, rel=1e-9)
            assert found.epsilon_upper == pytest.approx(truth, rel=1e-9)
        if name not in ("tree", "plain"):
            continue
        swapped = check(replace(moved_claim(strategy, schema, noise), delta=0.0, adjacency="replace-one"))
        assert swapped.epsilon_upper == pytest.approx(2 * found.epsilon_upper, rel=1e-9)
        assert swapped.epsilon_lower == pytest.approx(2 * found.epsilon_lower, rel=1e-9)


@pytest.mark.parametrize("delta", [0.0, 1e-7])
@pytest.mark.parametrize("schema", [Participation("single"), Participation("min-sep", separation=1, times=1)])
def test_the_heaviest_pattern_counts_where_participations_do_not_meet(schema: Participation, delta: float) -> None:
    """Of a matrix it was the i-th largest entry of any column, and from below the column of most squares: [3, 5]."""
    noise = Laplace(1.0, clip=1.0, clip_norm=1.0, dimension=1)
    tall = plain(np.array([[3.0, 0.0], [0.0, 2.0], [0.0, 2.0]]))
    found = check(Claim(4.0, delta, [Phase(noise, 2, correlation=Correlation(tall, schema))]))
    assert found.verdict == "certified"
    assert (found.epsilon_lower, found.epsilon_upper) == pytest.approx((4.0, 4.0), rel=1e-5)
    assert check(Claim(3.99, delta, [Phase(noise, 2, correlation=Correlation(tall, schema))])).verdict == "refuted"
    rng = np.random.default_rng(5)
    for _ in range(10):
        entries = np.exp(rng.normal(0.0, 1.5, (6, 6))) * rng.integers(0, 2, (6, 6))
        truth = entries.sum(axis=0).max()
        found = check(Claim(1.0, 0.0, [Phase(noise, 6, correlation=Correlation(plain(entries), schema))]))
        assert (found.epsilon_lower, found.epsilon_upper) == pytest.approx((truth, truth), rel=1e-9)


@pytest.mark.parametrize("length", [1, 2, 5])
def test_one_participation_is_one_however_it_is_said(length: int) -> None:
    entries = np.random.default_rng(length).normal(size=(5, 5))
    once = Correlation(plain(entries), Participation("min-sep", separation=length, times=1)).sensitivity(5)
    assert once == Correlation(plain(entries), Participation("single")).sensitivity(5)
    assert once.upper == pytest.approx(np.linalg.norm(entries, axis=0).max(), rel=1e-9)


@pytest.mark.parametrize(("clip", "scale"), [(1.0, 1.0), (0.1, 0.3), (3.0, 0.7)])
def test_a_claim_of_just_the_pure_epsilon_holds(clip: float, scale: float) -> None:
    """Of a tree whose heaviest pattern moves 12 clips: in decimals, not in floats."""
    noise = Laplace(scale, clip=clip, clip_norm=1.0, dimension=3)
    pure = 12 * clip / scale
    for stated, verdict in ((math.nextafter(pure, math.inf), "certified"), (pure * (1 - 1e-9), "refuted")):
        told = claim_stating(PureDP(stated), moved_claim(Tree(), TWICE, noise).phases)
        assert check(told).verdict == verdict
    if scale == 1:
        assert check(replace(moved_claim(Tree(), TWICE, noise), epsilon=12.0, delta=0.0)).verdict == "certified"


@pytest.mark.parametrize(("norm", "factor"), [(1.0, 1.0), (2.0, math.sqrt(3.0)), (math.inf, 3.0)])
def test_several_coordinates_add_their_l1_norm(norm: float, factor: float) -> None:
    noise = Laplace(10.0, clip_norm=norm, dimension=3)
    found = check(replace(moved_claim(SquareRootToeplitz(), TWICE, noise), delta=0.0))
    truth = factor / 10.0 * _rows(SquareRootToeplitz(), TWICE, STEPS).total
    assert found.epsilon_lower == pytest.approx(truth, rel=1e-9)
    assert found.epsilon_upper == pytest.approx(truth, rel=1e-9)


@pytest.mark.parametrize(
    "noise",
    [
        Laplace(8.0),
        Laplace(8.0, dimension=3),
        Laplace(8.0, clip_norm=math.inf, dimension=2),
        GammaPLRVIID(4.0, 0.02, dimension=2),
        GeneralizedGaussian(1.5, 8.0, dimension=1),
    ],
    ids=str,
)
@pytest.mark.parametrize("strategy", [Tree(), SquareRootToeplitz(), plain(SIGNED)], ids=["tree", "root", "plain"])
def test_brackets_of_other_noise_do_not_cross(noise: Mechanism, strategy: Strategy) -> None:
    """Above one row alone and one step alone, below every row moved as far as any pattern moves it."""
    of = moved_claim(strategy, TWICE, noise)
    lower, upper = certified_lower(of).delta(EPSILONS), upper_curve(of)(EPSILONS)
    assert (lower <= upper).all()
    assert (upper < 1).all()
    entries = {"tree": "tree", "square-root-toeplitz": "square root"}.get(strategy.name, "plain")
    sizes = np.abs(STRATEGIES[entries][1])
    heaviest = max((sizes[:, pattern].sum(axis=1) for pattern in patterns(TWICE)), key=lambda row: float(row.max()))
    row = with_noise_factor(noise, 1.0 / float(heaviest.max()))
    assert (certified_lower(Claim(1.0, 1e-5, [Phase(row)])).delta(EPSILONS) <= upper * (1 + 1e-9)).all()


@pytest.mark.parametrize("strategy", [SquareRootToeplitz(), Tree()], ids=["root", "tree"])
def test_contributions_that_follow_the_releases_cost_no_more(strategy: Strategy) -> None:
    """An adversary contributes more after what looked like no record; exact losses of its draws, three errors."""
    draws, scale, rng = 200_000, 2.0, np.random.default_rng(8)
    entries = STRATEGIES["tree" if isinstance(strategy, Tree) else "square root"][1]
    upper = upper_curve(moved_claim(strategy, TWICE, Laplace(scale, dimension=1)))(EPSILONS)
    last = [int(np.flatnonzero(row).max()) for row in entries]  # a row is seen after its last step
    moved, loss = np.zeros((draws, len(entries))), np.zeros(draws)
    for step in range(STEPS):
        if step % 2 == 0:
            turn = np.where(loss > 1.0, 0.3, 1.0) * np.where(loss < -1.0, -1.0, 1.0)
            moved += turn[:, None] * entries[:, step]
        for row in [i for i, end in enumerate(last) if end == step]:
            noise = rng.laplace(scale=scale, size=draws)
            loss += (np.abs(noise + moved[:, row]) - np.abs(noise)) / scale
    for high, epsilon in zip(upper, EPSILONS, strict=True):
        gains = np.maximum(-np.expm1(epsilon - loss), 0.0)
        assert gains.mean() <= high + 3 * gains.std() / math.sqrt(draws)


@pytest.mark.parametrize("seed", range(6))
def test_bounds_of_drawn_claims_do_not_cross(seed: int) -> None:
    rng = np.random.default_rng(seed)
    steps = int(rng.integers(2, 60))
    separation = int(rng.integers(1, steps + 1))
    schema = Participation("min-sep", separation=separation, times=int(rng.integers(1, 5)))
    strategies: list[Strategy] = [
        Tree(int(rng.integers(1, steps + 1)), "all" if seed % 2 else "prefix"),
        BLT((float(rng.uniform()),), (float(rng.normal()),)),
        BandedToeplitz(int(rng.integers(1, steps + 1))),
        plain(np.asarray(rng.normal(size=(steps, steps)))),
    ]
    for strategy in strategies:
        for schema_ in (schema, Participation("fixed-order", separation=separation)):
            found = check(moved_claim(strategy, schema_, Laplace(5.0, dimension=1), steps))
            assert "disagreement" not in found.methods
            assert found.epsilon_lower <= found.epsilon_upper < math.inf
            assert found.delta_lower <= found.delta_upper < 1.0


def test_one_row_is_one_release_of_all_its_participations() -> None:
    found = moved_claim(STRATEGIES["one row"][0], TWICE, Laplace(2.0, clip_norm=1.0))
    truth = np.maximum(-np.expm1((EPSILONS - 2.0) / 2.0), 0.0)  # four clips over the scale
    np.testing.assert_allclose(upper_curve(found)(EPSILONS), truth, rtol=1e-4, atol=1e-9)
    np.testing.assert_allclose(certified_lower(found).delta(EPSILONS), truth, rtol=1e-3, atol=1e-9)


def test_a_million_steps_of_a_tree_are_few_kinds_of_nodes() -> None:
    """Passes of a quarter: a record is under all nodes of its levels 0 to 17 alone, and under few of the others."""
    schema = Participation("fixed-order", separation=250_000)
    found = check(replace(moved_claim(Tree(), schema, Laplace(50.0, clip_norm=1.0), 1_000_000), delta=0.0))
    assert found.epsilon_lower == pytest.approx(found.epsilon_upper, rel=1e-9)


def test_noise_that_follows_the_clip_is_not_enlarged() -> None:
    @dataclass(frozen=True)
    class Following(Laplace):
        @property
        def structure(self) -> Any:
            return replace(Laplace(self.scale * self.clip).structure)

    assert enlarged(Following(1.0), 3.0) is None
    assert enlarged(Laplace(1.0, clip=1e300), 1e9) is None
    assert enlarged(Laplace(1.0, clip=0.1), 3.0) == Laplace(1.0, clip=0.3)


def test_what_is_assumed_is_told() -> None:
    found = check(moved_claim(Tree(), TWICE, Laplace(20.0, clip_norm=1.0)))
    assert "in which steps a record takes part is settled before the first release" in found.assumptions
    assert "tree: in 8 steps a record moves a release by at most 4 clips, and all together by 12" in found.assumptions
    assert found.verdict == "certified" if found.epsilon_upper <= 1 else found.verdict in ("refuted", "undecided")


def test_whole_numbers_of_a_file_add_up_without_rounding() -> None:
    """Rows 1 and 1 + 1: three clips in all, at which a claim is certified, and not a hair below."""
    noise, correlation = Laplace(1.0, clip_norm=1.0), Correlation(plain(np.array([[1.0, 0.0], [1.0, 1.0]])), ALL)
    for epsilon, verdict in ((3.0, "certified"), (3.0 - 1e-9, "refuted")):
        assert check(Claim(epsilon, 0.0, [Phase(noise, 2, correlation=correlation)])).verdict == verdict
