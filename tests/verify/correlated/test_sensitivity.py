"""Sensitivities against every pattern with every sign at 8 steps, and against published values."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

from dpaudit.verify.correlated import (
    BLT,
    BandedToeplitz,
    Correlation,
    Identity,
    Matrix,
    Participation,
    SquareRootToeplitz,
    Tree,
)
from dpaudit.verify.correlated import patterns as patterns_module
from dpaudit.verify.correlated.correlation import LEVELS, Strategy
from dpaudit.verify.correlated.patterns import heaviest, row_weights
from dpaudit.verify.correlated.tree import Nodes

Floats = NDArray[np.float64]
STEPS = 8
EVERY_SIGN = np.array(list(itertools.product((-1, 0, 1), repeat=STEPS)))[1:]  # all contributions in {-1, 0, 1}


def min_sep(separation: int, times: int | None = None) -> Participation:
    return Participation("min-sep", separation=separation, times=times)


def plain(entries: Floats) -> Matrix:
    return Matrix("C.npy", str(hash(entries.tobytes())), entries)


def tree_rows(steps: int, leaves: int, every: bool) -> Floats:
    """The nodes of the trees, found by walking prefixes (or by halving), one row each."""
    nodes: set[tuple[int, int]] = set()
    for start in range(0, steps, leaves):
        for end in range(start + 1, min(start + leaves, steps) + 1):
            rest, place = end - start, start
            while rest:  # the largest blocks that make up the prefix
                width = 1 << (rest.bit_length() - 1)
                nodes.add((place, place + width))
                rest, place = rest - width, place + width
    queue = list(nodes) if every else []
    while queue:
        low, high = queue.pop()
        if high - low > 1:
            middle = (low + high) // 2
            queue += [(low, middle), (middle, high)]
            nodes |= {(low, middle), (middle, high)}
    return np.array([[float(low <= step < high) for step in range(steps)] for low, high in sorted(nodes)])


def toeplitz(coefficients: Floats, steps: int = STEPS) -> Floats:
    return sum(
        (value * np.eye(steps, k=-order) for order, value in enumerate(coefficients[:steps])),
        np.zeros((steps, steps)),
    )


def largest(entries: Floats, participation: Participation) -> float:
    """The largest |C u| over all patterns of the schema and all signs."""
    apart, times = participation.spacing(STEPS)
    inside = EVERY_SIGN != 0
    if participation.kind == "fixed-order":
        allowed = np.zeros(len(EVERY_SIGN), dtype=bool)
        for start in range(min(apart, STEPS)):
            allowed |= ~inside[:, [step for step in range(STEPS) if step % apart != start]].any(1)
    else:
        near = [inside[:, i] & inside[:, j] for i in range(STEPS) for j in range(i + 1, min(i + apart, STEPS))]
        allowed = (inside.sum(1) <= times) & ~np.any([np.zeros(len(inside), dtype=bool), *near], axis=0)
    return float(np.sqrt(((EVERY_SIGN[allowed] @ entries.T) ** 2).sum(1)).max())


SIGNED = np.tril(np.random.default_rng(1).normal(size=(STEPS, STEPS)))
BANDED = np.where(np.subtract.outer(np.arange(STEPS), np.arange(STEPS)) < 3, SIGNED, 0.0)
SCHEMAS = [
    Participation("single"),
    *(Participation("fixed-order", separation=b) for b in (1, 2, 3, 5, 8, 10**9 - 1)),
    *(min_sep(b, k) for b in (1, 2, 3, 4, 7, STEPS + 1) for k in range(1, -(-STEPS // b) + 1)),
]
ROOT = np.ones(1)
while len(ROOT) < STEPS:  # the power series whose square is 1 + x + x^2 + ...
    ROOT = np.append(ROOT, (1.0 - ROOT[1:] @ ROOT[:0:-1]) / 2.0)
BUFFERED = np.append(1.0, 0.3 * 0.9 ** np.arange(7) + 0.5 * 0.4 ** np.arange(7))
# strategy, its matrix, and whether the bounds must meet under every schema
STRATEGIES: dict[str, tuple[Strategy, Floats, bool]] = {
    "identity": (Identity(), np.eye(STEPS), True),
    "square root": (SquareRootToeplitz(), toeplitz(ROOT), True),
    "3 bands": (BandedToeplitz(3), toeplitz(ROOT[:3]), True),
    "blt": (BLT((0.9, 0.4), (0.3, 0.5)), toeplitz(BUFFERED), True),
    "blt of both signs": (BLT((0.9,), (-0.5,)), toeplitz(np.append(1.0, -0.5 * 0.9 ** np.arange(7))), False),
    "both signs": (BandedToeplitz(diagonals=(1.0, -0.5, 0.7)), toeplitz(np.array([1.0, -0.5, 0.7])), False),
    "a gap between": (BandedToeplitz(diagonals=(1.0, 0.1, 1.0)), toeplitz(np.array([1.0, 0.1, 1.0])), False),
    "rising diagonals": (BandedToeplitz(diagonals=(0.2, 1.0)), toeplitz(np.array([0.2, 1.0])), False),
    "tree": (Tree(), tree_rows(STEPS, STEPS, False), False),
    "tree of 4": (Tree(4), tree_rows(STEPS, 4, False), False),
    "tree of 3": (Tree(3), tree_rows(STEPS, 3, False), False),
    "all nodes": (Tree(nodes="all"), tree_rows(STEPS, STEPS, True), False),
    "all nodes of 5": (Tree(5, "all"), tree_rows(STEPS, 5, True), False),
    "plain": (plain(SIGNED), SIGNED, False),
    "plain, 3 bands": (plain(BANDED), BANDED, False),
    "plain, square root": (plain(np.tril(np.ones((STEPS, STEPS)))), np.tril(np.ones((STEPS, STEPS))), False),
}  # fmt: skip


@pytest.mark.parametrize("name", STRATEGIES)
def test_bounds_hold_over_all_patterns_and_signs(name: str) -> None:
    strategy, entries, exact = STRATEGIES[name]
    met = 0
    for schema in SCHEMAS:
        truth, found = largest(entries, schema), Correlation(strategy, schema).sensitivity(STEPS)
        assert found.lower <= truth * (1 + 1e-14), schema
        assert found.upper >= truth * (1 - 1e-14), schema
        tree, few = isinstance(strategy, Tree), isinstance(strategy, Matrix) and schema.spacing(STEPS)[1] <= 2
        single = schema.kind == "single"
        if exact or tree or few or single or (name.endswith("3 bands") and schema.spacing(STEPS)[0] >= 3):
            assert found.exact, schema
        met += found.exact
    assert met > len(SCHEMAS) / 4


@pytest.mark.parametrize(
    ("times", "separation", "steps", "square"),
    # TF Privacy, tree_aggregation_accountant_test.py (@125f827), whose separation counts the steps between two; the
    # last four: federated-compute, accounting_test.py, 2 rho at noise 1
    [
        *((1, 8, 8, 4), (3, 4, 9, 11), (3, 3, 7, 9), (8, 3, 24, 88), (200, 1, 8, 120), (2, 1, 19, 18), (2, 1, 11, 14)),
        *((9, 2, 4, 8), (9, 2, 5, 9), (9, 2, 7, 11), (9, 3, 7, 9)),
    ],
)
def test_published_trees_with_all_nodes(times: int, separation: int, steps: int, square: float) -> None:
    found = Correlation(Tree(nodes="all"), min_sep(separation, times)).sensitivity(steps)
    assert found.exact
    assert found.upper**2 == pytest.approx(square)


def test_matrices_of_one_name_are_told_apart_by_their_entries_and_stay_as_they_are() -> None:
    entries = np.eye(3)
    one, other = (Matrix("C.npy", "", factor * entries) for factor in (1.0, 5.0))
    assert one != other
    assert one == Matrix("C.npy", "", entries)
    found = [Correlation(strategy, Participation("single")).sensitivity(3).upper for strategy in (one, other)]
    assert found == pytest.approx([1.0, 5.0])
    kept = Matrix("C.npy", "", entries)
    entries[0, 0] = 7.0
    assert Correlation(kept, Participation("single")).sensitivity(3).upper == pytest.approx(1.0)


def test_published_plain_matrices() -> None:
    """jax_privacy, sensitivity_test.py."""
    entries = np.array([[1.0, 0, 0, 0], [2, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, -6]])
    for separation in (2, 3):
        assert Correlation(plain(entries), min_sep(separation)).sensitivity(4).upper == pytest.approx(math.sqrt(41))
    dense = entries + np.array([[0] * 4, [0] * 4, [0.5, 0, 0, 0], [0.4, 0, 0, 0]])
    bound = math.sqrt(np.abs(dense.T @ dense).sum())
    assert Correlation(plain(dense), min_sep(1)).sensitivity(4).upper == pytest.approx(bound)
    assert Correlation(plain(np.diag([0.0, 3, 0, 1, 2])), min_sep(2)).sensitivity(5).lower == pytest.approx(
        math.sqrt(13)
    )
    for times in (1, 4, 11):  # toeplitz_test.py
        ones = BandedToeplitz(diagonals=(1.0,) * 11)
        rows = np.tri(11)[:, :times].sum(1)
        assert Correlation(ones, min_sep(1, times)).sensitivity(11).lower ** 2 == pytest.approx(float(rows @ rows))


def test_square_root_against_exact_fractions() -> None:
    """One participation: the column's length, whose square is a Landau constant (Watson 1930)."""
    steps = 400
    exact = sum((Fraction(math.comb(2 * j, j), 4**j) ** 2 for j in range(steps)), Fraction(0))
    found = Correlation(SquareRootToeplitz(), Participation("single")).sensitivity(steps)
    assert Fraction(found.lower) ** 2 <= exact <= Fraction(found.upper) ** 2
    assert found.upper / found.lower - 1 < 1e-12
    assert float(exact) == pytest.approx((math.log(steps - 0.25) + np.euler_gamma + math.log(16)) / math.pi, rel=1e-6)


@pytest.mark.parametrize("batches", range(1, 20))
def test_a_tree_a_pass_is_the_sum_of_its_depths(batches: int) -> None:
    for steps in (batches, 3 * batches, 3 * batches + batches // 2):
        passes, rest = divmod(steps, batches)
        correlation = Correlation(Tree(batches), Participation("fixed-order", separation=batches))
        found = correlation.sensitivity(steps)
        assert found.exact
        assert round(found.lower**2) == passes * batches.bit_length() + rest.bit_length()
        assert correlation.entered(steps, "upper") == ((1.0, round(found.lower**2)),)


@pytest.mark.parametrize("seed", range(5))
def test_entries_in_few_groups_are_at_least_and_at_most_those_of_a_column(seed: int) -> None:
    rng = np.random.default_rng(seed)
    entries = np.tril(rng.normal(size=(60, 60)) * np.exp(rng.normal(0, 2, size=(60, 60))))
    strategy = Matrix("file.npy", str(seed), entries)
    falling = [-np.sort(-np.abs(column)) for column in entries.T]
    upper, lower = (Correlation(strategy, Participation("single")).entered(60, side) for side in ("upper", "lower"))
    assert upper is not None
    assert lower is not None
    high, low = (np.concatenate([np.full(n, size) for size, n in parts]) for parts in (upper, lower))
    assert all((high >= column[: len(high)]).all() and not column[len(high) :].any() for column in falling)
    assert any((low <= column[: len(low)]).all() for column in falling)
    assert len(upper) == len(lower) == LEVELS
    assert np.square(high).sum() < 1.1 * np.square(np.max(falling, axis=0)).sum()
    assert np.square(low).sum() > 0.9 * max(np.square(column).sum() for column in falling)


def test_a_pattern_of_a_matrix_whose_columns_do_not_meet() -> None:
    blocks = np.kron(np.eye(3), np.array([[1.0, 0.0], [0.5, 2.0]]))
    apart = Correlation(Matrix("file.npy", "", blocks), Participation("fixed-order", separation=2))
    assert apart.entered(6, "upper") == ((2.0, 3), (0.5, 3))
    assert apart.entered(6, "lower") == ((2.0, 3),)
    assert (
        Correlation(Matrix("file.npy", "", blocks), Participation("min-sep", separation=1)).entered(6, "upper") is None
    )


def test_patterns_against_recursion() -> None:
    rng = np.random.default_rng(3)

    def best(weights: Floats, last: int, left: int, apart: int) -> float:
        options = (weights[j] + best(weights, j + apart, left - 1, apart) for j in range(last, len(weights)))
        return max(options, default=0.0) if left else 0.0

    for apart, times in itertools.product((1, 2, 3, 7), (1, 2, 4)):
        weights = rng.random(7)
        total, pattern = heaviest(weights, apart, times)
        assert total == pytest.approx(best(weights, 0, times, apart))
        assert weights[pattern].sum() == pytest.approx(total)
        assert len(pattern) <= times
        assert (np.diff(pattern) >= apart).all()
        gram = np.abs(rng.normal(size=(7, 7)))
        far = np.where(np.abs(np.subtract.outer(np.arange(7), np.arange(7))) >= apart, gram, 0.0)
        expected = [gram[i, i] + best(far[i], 0, times - 1, apart) for i in range(7)]
        np.testing.assert_allclose(row_weights(gram, apart, times), expected)


@pytest.mark.parametrize("apart", [1, 3, 7])
def test_patterns_of_any_number_of_steps_are_those_of_many(apart: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(4)
    for weights in (rng.random(1000), rng.integers(0, 3, 1000).astype(float), np.zeros(1000)):
        at_once, pattern = heaviest(weights, apart, 1000)
        with monkeypatch.context() as patched:
            patched.setattr(patterns_module, "PASSES", 1000)
            by_number, others = heaviest(weights, apart, 1000)
        assert at_once == pytest.approx(by_number, rel=1e-13)
        assert weights[pattern].sum() == pytest.approx(weights[others].sum(), rel=1e-13)
        assert (np.diff(pattern) >= apart).all()


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [Tree(), Tree(nodes="all"), SquareRootToeplitz(), BandedToeplitz(100)])
def test_bounds_meet_at_ten_thousand_steps(strategy: Strategy) -> None:
    for separation, times in ((1000, 10), (500, 3), (1, 10_000)):
        found = Correlation(strategy, min_sep(separation, times)).sensitivity(10_000)
        assert found.exact
        assert (np.diff(found.pattern) >= separation).all()
    found = Correlation(strategy, min_sep(2, 4000)).sensitivity(10_000)  # beyond what is exact for trees
    assert found.upper / found.lower - 1 < 0.01


@pytest.mark.parametrize("nodes", ["prefix", "all"])
@pytest.mark.parametrize("restart", [None, 5])
def test_trees_against_recursion_over_patterns(nodes: Nodes, restart: int | None) -> None:
    """13 steps: every pattern, without signs, since no entry is negative."""
    rows = tree_rows(13, restart or 13, nodes == "all")

    def best(placed: Floats, last: int, left: int, apart: int) -> float:
        further = (best(placed + rows[:, j], j + apart, left - 1, apart) for j in range(last, 13 if left else last))
        return max([float(placed @ placed), *further])

    for apart, times in itertools.product((2, 3, 4, 6), (2, 3, 7)):
        found = Correlation(Tree(restart, nodes), min_sep(apart, times)).sensitivity(13)
        assert found.square == best(np.zeros(len(rows)), 0, times, apart)
        assert found.exact


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"kind": "often"}, r"participation\.kind='often' among 'single', 'fixed-order', 'min-sep', 'cyclic-poisson'"),
        ({"kind": "min-sep"}, r"participation\.separation to be given with kind 'min-sep'"),
        ({"kind": "single", "times": 2}, r"unknown key 'participation\.times': kind 'single'"),
        ({"kind": "fixed-order", "separation": 0}, r"participation\.separation=0 in"),
        ({"kind": "cyclic-poisson", "groups": 2, "prob": 1.5}, r"participation\.prob=1\.5 in"),
    ],
)
def test_schemas_that_are_none_are_refused(keys: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Participation(**keys)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: Tree(0), r"restart=0 in"),
        (lambda: Tree(nodes="left"), r"nodes='left' to be 'prefix' or 'all'"),
        (lambda: BandedToeplitz(), "exactly one of bands and diagonals"),
        (lambda: BandedToeplitz(diagonals=(0.0, 1.0)), "to be at least 1e-09 in size"),
        (lambda: BLT((0.5,), (0.1, 0.2)), r"as many decays \(1\) as scales \(2\)"),
        (lambda: BLT((1.5,), (0.1,)), r"decays=1\.5 in"),
        (lambda: plain(np.full((2, 2), 1e-200)), r"an entry of C\.npy of at least 1e-09 in size"),
        (lambda: plain(np.full((2, 2), np.nan)), r"the entries of C\.npy in \[-1e\+09, 1e\+09\]"),
        (lambda: plain(np.ones(3)), r"shape \(3,\) to hold a matrix"),
    ],
)
def test_strategies_that_are_none_are_refused(build: object, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        build()  # type: ignore[operator]
