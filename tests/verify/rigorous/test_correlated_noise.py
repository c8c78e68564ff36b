"""Correlated noise in balls: sensitivities against all patterns with all signs, against the first engine, in claims."""

import itertools
import math
from typing import get_args

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("flint")

from flint import arb

from dpaudit.mechanisms import GammaPLRVIID, Gaussian, Laplace
from dpaudit.mechanisms.base import Mechanism
from dpaudit.verify import Claim, Phase, check
from dpaudit.verify.correlated import (
    BLT,
    BandedToeplitz,
    Correlation,
    Identity,
    Matrix,
    Participation,
    Side,
    SquareRootToeplitz,
    Tree,
)
from dpaudit.verify.correlated.correlation import Strategy
from dpaudit.verify.guarantees import GaussianDP, Guarantee, PrivacyCurve, PureDP, RenyiDP, ZeroConcentratedDP
from dpaudit.verify.implied import claim_stating
from dpaudit.verify.rigorous import bracket
from dpaudit.verify.rigorous.agreement import alone, confirmed
from dpaudit.verify.rigorous.balls import Unavailable, precision
from dpaudit.verify.rigorous.bracket import RigorousBracket, rigorous_bracket, upper_proof
from dpaudit.verify.rigorous.correlated_noise import independent_claim, sensitivity_square
from dpaudit.verify.rigorous.correlated_rows import moved_parts
from dpaudit.verify.rigorous.correlated_strategies import LEVELS

STEPS = 7
SIGNS = np.array(list(itertools.product((-1, 0, 1), repeat=STEPS)))[1:]
RNG = np.random.default_rng(8)
SINGLE, ORDERED = Participation("single"), Participation("fixed-order", separation=3)
SEPARATED, TWICE = Participation("min-sep", separation=2), Participation("min-sep", separation=2, times=2)
THRICE = Participation("min-sep", separation=1, times=3)


def plain(entries: NDArray[np.float64]) -> Matrix:
    return Matrix("C.npy", str(hash(entries.tobytes())), entries)


STRATEGIES = {
    "identity": Identity(),
    "square root": SquareRootToeplitz(),
    "bands": BandedToeplitz(bands=3),
    "diagonals": BandedToeplitz(diagonals=(1.0, -0.7, 0.4, 0.1)),
    "blt": BLT((0.9, 0.3), (0.2, 0.5)),
    "blt of both signs": BLT((0.9, 0.3), (-0.4, 0.7)),
    "tree": Tree(),
    "trees": Tree(restart=3),
    "all nodes": Tree(nodes="all"),
    "all nodes of trees": Tree(restart=5, nodes="all"),
    "plain": plain(RNG.random((STEPS + 3, STEPS))),
    "of both signs": plain(RNG.normal(size=(4, STEPS))),
}


def dense(name: str) -> NDArray[np.float64]:
    """C, column by column, by the definitions."""
    match STRATEGIES[name]:
        case Matrix() as matrix:
            return matrix.entries
        case Tree() as tree:
            rows, leaves = [], min(tree.restart or STEPS, STEPS)
            for low, high in itertools.combinations(range(STEPS + 1), 2):
                size, place = high - low, low % leaves
                inside = place + size <= min(leaves, STEPS - (low - place))
                block = size & (size - 1) == 0 and place % size == 0 and inside
                if block and (tree.nodes == "all" or place // size % 2 == 0):
                    rows.append([float(low <= step < high) for step in range(STEPS)])
            return np.array(rows)
        case Identity():
            return np.eye(STEPS)
        case BLT(decays=decays, scales=scales):
            later = [sum(s * d**j for s, d in zip(scales, decays, strict=True)) for j in range(STEPS - 1)]
            diagonals = [1.0, *later]
        case BandedToeplitz(diagonals=tuple() as given):
            diagonals = list(given)
        case strategy:
            count = STEPS if isinstance(strategy, SquareRootToeplitz) else int(strategy.bands or 0)
            diagonals = [math.comb(2 * j, j) / 4**j for j in range(count)]
    return sum((value * np.eye(STEPS, k=-j) for j, value in enumerate(diagonals)), np.zeros((STEPS, STEPS)))


def largest(entries: NDArray[np.float64], participation: Participation) -> float:
    """The largest |C u|^2 over all patterns of the schema and all signs."""
    apart, times = participation.spacing(STEPS)
    kept = []
    for signs in SIGNS:
        steps = np.flatnonzero(signs)
        regular = len(set(steps % apart)) == 1 if participation.kind == "fixed-order" else len(steps) <= times
        if regular and (np.diff(steps) >= apart).all():
            kept.append(signs)
    return float(np.square(np.array(kept) @ entries.T).sum(axis=1).max())


@pytest.mark.parametrize("participation", [SINGLE, ORDERED, SEPARATED, TWICE, THRICE], ids=str)
@pytest.mark.parametrize("name", STRATEGIES)
def test_the_longest_sum_of_columns_lies_between(name: str, participation: Participation) -> None:
    with precision():
        low, high = sensitivity_square(Correlation(STRATEGIES[name], participation), STEPS)
        assert not isinstance(high, Unavailable)
        truth = largest(dense(name), participation)
        assert float(arb(low).lower()) <= truth * (1 + 1e-14)
        assert float(arb(high).upper()) >= truth * (1 - 1e-14)
        if "both signs" not in name and name != "diagonals" and participation not in (SEPARATED, THRICE):
            assert float(arb(low).lower()) == pytest.approx(float(arb(high).upper()), rel=1e-9)


@pytest.mark.parametrize("name", [name for name in STRATEGIES if not isinstance(STRATEGIES[name], Matrix)])
@pytest.mark.parametrize("steps", [1, 50, 333])
def test_both_engines_meet(name: str, steps: int) -> None:
    for participation in (SINGLE, ORDERED, SEPARATED, THRICE, Participation("min-sep", separation=20, times=5)):
        correlation = Correlation(STRATEGIES[name], participation)
        first = correlation.sensitivity(steps)
        with precision():
            low, high = (float(arb(side)) ** 0.5 for side in sensitivity_square(correlation, steps))
        assert low <= first.upper * (1 + 1e-12)
        assert first.lower <= high * (1 + 1e-12)


NOISE = Gaussian(4.0)
GUARANTEES: list[Guarantee] = [
    GaussianDP(1.0), ZeroConcentratedDP(0.5), RenyiDP(4.0, 1.0), PureDP(3.0), PrivacyCurve(((1.0, 1e-5), (2.0, 0.4))),
]  # fmt: skip


@pytest.mark.parametrize("guarantee", [None, *GUARANTEES], ids=str)
@pytest.mark.parametrize(
    ("strategy", "participation"),
    [
        (Tree(restart=16, nodes="all"), Participation("fixed-order", separation=16)),
        (SquareRootToeplitz(), Participation("min-sep", separation=10)),
        (BandedToeplitz(bands=4), Participation("cyclic-poisson", groups=4, prob=0.2)),
    ],
    ids=str,
)
def test_claims_are_judged_alike(guarantee: Guarantee | None, strategy: Tree, participation: Participation) -> None:
    phases = [Phase(NOISE, 64, correlation=Correlation(strategy, participation)), Phase(NOISE, 3)]
    claim = Claim(2.0, 1e-6, phases) if guarantee is None else claim_stating(guarantee, phases)
    verdict = check(claim)
    found = confirmed(claim, verdict)
    assert found.methods[-1] == "rigorous"
    assert found.verdict == verdict.verdict
    sampled_mu = isinstance(guarantee, GaussianDP) and participation.sampled
    if not (isinstance(guarantee, PureDP) or sampled_mu):
        assert alone(claim, verdict)[0] == verdict.verdict != "undecided"


def test_rounds_are_told_apart_by_their_lengths() -> None:
    entries = np.tril(np.random.default_rng(3).random((40, 40)) + 0.1)
    entries[np.subtract.outer(np.arange(40), np.arange(40)) >= 2] = 0  # two diagonals
    groups = [np.square(entries[:, g::2]).sum(axis=0) for g in range(2)]
    phase = Phase(
        NOISE, 40, correlation=Correlation(plain(entries), Participation("cyclic-poisson", groups=2, prob=0.3))
    )
    for side in ("lower", "upper"):
        with precision():
            found = independent_claim(Claim(1.0, 1e-5, [phase]), side)
        assert isinstance(found, Claim)
        assert sum(part.steps for part in found.phases) == 20
        assert len(found.phases) <= LEVELS
        assert {part.sampling_prob for part in found.phases} == {0.3}
        squares = np.sort(np.concatenate([np.full(p.steps, (4.0 / p.mechanism.sigma) ** 2) for p in found.phases]))
        if side == "upper":
            assert all((squares >= np.sort(group) * (1 - 1e-12)).all() for group in groups)
        else:
            assert any((squares <= np.sort(group) * (1 + 1e-12)).all() for group in groups)


@pytest.mark.parametrize(
    ("noise", "strategy", "participation", "sides"),
    [
        (Laplace(20.0, clip_norm=1.0), Tree(restart=8), Participation("fixed-order", separation=8), 2),
        (Laplace(20.0, clip_norm=1.0), Identity(), Participation("cyclic-poisson", groups=8, prob=0.2), 2),
        (Laplace(20.0, clip_norm=1.0), BandedToeplitz(2), SINGLE, 2),
        (Laplace(20.0, clip_norm=1.0), Tree(), Participation("min-sep", separation=8), 2),
        (Laplace(20.0, clip_norm=1.0), BandedToeplitz(2), Participation("cyclic-poisson", groups=8, prob=0.2), 0),
        (NOISE, Tree(), Participation("min-sep", separation=8), 1),  # of too many steps
    ],
    ids=str,
)
def test_what_has_no_theorem_is_left_out_from_below(
    noise: Mechanism, strategy: Tree, participation: Participation, sides: int
) -> None:
    steps = 64 if sides != 1 else 3000
    phases = [Phase(noise, steps, correlation=Correlation(strategy, participation))]
    missing: list[Side] = [side for side in ("lower", "upper") if isinstance(_independent(phases, side), Unavailable)]
    assert len(missing) == 2 - sides
    found = rigorous_bracket(Claim(1.0, 1e-5, phases))
    beside = rigorous_bracket(Claim(1.0, 1e-5, [*phases, Phase(NOISE, 40)]))
    assert isinstance(beside, RigorousBracket)
    assert beside.delta_lower > 0
    assert math.isfinite(beside.epsilon_upper) == (sides == 2)
    assert isinstance(found, Unavailable) == (sides == 0)


def _independent(phases: list[Phase], side: Side) -> Claim | Unavailable:
    with precision():
        return independent_claim(Claim(1.0, 1e-5, phases), side)


def test_a_square_that_can_be_one_is_no_one() -> None:
    phases = [Phase(NOISE, 2, correlation=Correlation(BandedToeplitz(diagonals=(1.0, 1e-20)), SINGLE))]
    claim = claim_stating(GaussianDP(0.25), phases)  # the least mu is .25 sqrt(1 + 1e-40)
    assert confirmed(claim, check(claim)).verdict == alone(claim, check(claim))[0] == "undecided"


def test_columns_next_to_nothing_are_left_out_from_below() -> None:
    matrix = plain(np.diag([1.0, 1e-20]))
    phases = [Phase(NOISE, 2, correlation=Correlation(matrix, Participation("cyclic-poisson", groups=1, prob=0.5)))]
    low, high = (_independent(phases, side) for side in ("lower", "upper"))
    assert isinstance(low, Claim)
    assert isinstance(high, Claim)
    assert [phase.steps for phase in low.phases] == [1]
    assert sum(phase.steps for phase in high.phases) == 2
    found = rigorous_bracket(Claim(0.05, 1e-5, phases))
    assert isinstance(found, RigorousBracket)
    assert 0.03 < found.delta_lower <= found.delta_upper < 0.05


def test_a_wide_matrix_of_single_participations_is_a_longest_column() -> None:
    entries = np.random.default_rng(5).normal(size=(900, 2048))
    with precision():
        low, high = sensitivity_square(Correlation(plain(entries), SINGLE), 2048)
        assert float(arb(low)) == pytest.approx(float(np.square(entries).sum(axis=0).max()), rel=1e-12)
        assert high >= low


def test_equal_sides_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Claim] = []
    monkeypatch.setattr(bracket, "upper_proof", lambda claim: asked.append(claim) or upper_proof(claim))
    assert isinstance(
        rigorous_bracket(Claim(1.0, 1e-5, [Phase(NOISE, 9, correlation=Correlation(Tree(), SINGLE))])), RigorousBracket
    )
    assert len(asked) == 1


@pytest.mark.parametrize("name", [name for name in STRATEGIES if name != "identity"])
@pytest.mark.parametrize("participation", [SINGLE, ORDERED, SEPARATED, TWICE, THRICE], ids=str)
def test_rows_are_moved_as_far_as_some_pattern_moves_them(name: str, participation: Participation) -> None:
    """Laplace noise by sums of the largest, other noise row by row, from below by some pattern and its signs."""
    strategy, entries = STRATEGIES[name], dense(name)
    apart, times = participation.spacing(STEPS)
    found = dict[tuple[str, Side], NDArray[np.float64]]()
    for noise in (Laplace(2.0, clip_norm=1.0), GammaPLRVIID(4.0, 0.1, dimension=2)):
        for side in get_args(Side):
            with precision():
                parts = moved_parts(Correlation(strategy, participation), noise, STEPS, side)
            assert not isinstance(parts, Unavailable)
            known = sorted((float(arb(size)) for size, count in parts for _ in range(count)), reverse=True)
            found[noise.name, side] = np.array([*known, *[0.0] * (len(entries) + STEPS)])[: len(entries)]
    sums, shown, total = False, False, 0.0
    for signs in SIGNS:
        steps = np.flatnonzero(signs)
        regular = len(set(steps % apart)) == 1 if participation.kind == "fixed-order" else len(steps) <= times
        if not regular or (np.diff(steps) < apart).any():
            continue
        far = -np.sort(-np.abs(entries[:, steps]).sum(axis=1))
        moved = -np.sort(-np.abs(entries @ signs))
        assert (far <= found["gamma-plrv-iid", "upper"] * (1 + 1e-9)).all()
        assert (np.cumsum(far) <= np.cumsum(found["laplace", "upper"]) * (1 + 1e-9)).all()
        shown = shown or bool((found["gamma-plrv-iid", "lower"] <= moved + 1e-9).all())
        sums = sums or bool((np.cumsum(found["laplace", "lower"]) <= np.cumsum(moved) + 1e-9).all())
        total = max(total, far.sum())
    assert shown
    assert sums
    assert found["laplace", "upper"].sum() == pytest.approx(total, rel=1e-9)


@pytest.mark.parametrize(("stated", "verdict"), [(12.0, "certified"), (12.0 * (1 - 1e-6), "refuted")])
def test_a_claim_of_just_the_pure_epsilon_is_confirmed(stated: float, verdict: str) -> None:
    """Of a tree whose heaviest pattern moves 12 clips."""
    phase = Phase(Laplace(0.1, clip=0.1, clip_norm=1.0), 8, correlation=Correlation(Tree(), SEPARATED))
    told = Claim(stated, 0.0, [phase])
    assert check(told).verdict == confirmed(told, check(told)).verdict == verdict


@pytest.mark.parametrize("strategy", [Tree(), SquareRootToeplitz(), BLT((0.5,), (0.2,))], ids=lambda one: one.name)
def test_both_engines_agree_on_rows_that_meet(strategy: Strategy) -> None:
    phase = Phase(Laplace(4.0, clip_norm=1.0), 8, correlation=Correlation(strategy, SEPARATED))
    of = Claim(1.0, 1e-5, [phase])
    first, second = check(of), rigorous_bracket(of)
    assert isinstance(second, RigorousBracket)
    assert second.delta_lower <= first.delta_upper
    assert first.delta_lower <= second.delta_upper
    assert second.delta_upper == pytest.approx(first.delta_upper, rel=1e-2)
    assert second.delta_lower == pytest.approx(first.delta_lower, rel=0.1)
