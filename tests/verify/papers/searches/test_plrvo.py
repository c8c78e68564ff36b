"""plrvo's parameter search: printed values, plain oracles, what its optima really cost, and every refusal."""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from scipy.optimize import brentq

from dpaudit.mechanisms import GammaPLRV, GammaPLRVIID
from dpaudit.mechanisms.published import plrvo as formulas
from dpaudit.verify import check
from dpaudit.verify.accountants.published_adapter import Published
from dpaudit.verify.calibration.costs import Target, ValidCost
from dpaudit.verify.calibration.search import InfeasibleError
from dpaudit.verify.papers.searches import plrvo

TABLE_13 = Target(1.606, 1e-5, 300, 0.01)
SPACE = plrvo.Space(dimension=26_000, clip_min=0.5, clip_max=1.0, k_max=40_000.0)
THEIRS = Published("plrvo-theorem-4.9", {"max_order": 80})
LITTLE = Target(30.0, 1e-5, 300, 0.01)


@pytest.fixture(scope="module")
def table_13_optimum() -> plrvo.Optimum:
    return plrvo.optimum(TABLE_13, SPACE, accountant=THEIRS)


@pytest.fixture(scope="module")
def valid_optimum() -> plrvo.Optimum:
    """With the settings of the page."""
    return plrvo.optimum(TABLE_13, replace(SPACE, max_order=300))


def test_the_objective_of_its_own_table_is_found(table_13_optimum: plrvo.Optimum) -> None:
    printed = formulas.objective(GammaPLRV(k=40_000.0, theta=6e-5, clip=0.5, dimension=26_000))  # Table 13, last row
    assert table_13_optimum.objective == pytest.approx(printed, rel=1e-3)
    assert min(table_13_optimum.slacks.values()) >= -1e-12
    assert 1.606 * (1 - 1e-3) <= table_13_optimum.epsilon <= 1.606


def test_the_published_optimum_is_not_what_it_seems(table_13_optimum: plrvo.Optimum) -> None:
    assert table_13_optimum.verdict.verdict == "refuted"
    assert table_13_optimum.verdict.epsilon_lower > 1.7


def test_a_plain_scan_finds_nothing_better(table_13_optimum: plrvo.Optimum) -> None:
    def excess(log_x: float, k: float) -> float:
        noise = GammaPLRV(k=k, theta=math.exp(log_x), clip=1.0, dimension=26_000)
        value = formulas.theorem_4_9(noise, sampling_prob=0.01, steps=300, delta=1e-5, max_order=80).epsilon
        return math.log(min(value, 1e6) / 1.606)

    found = []
    for k in np.geomspace(2.0, SPACE.k_max, 6):
        x = math.exp(brentq(excess, math.log(0.2 / k), math.log(2.0 / k), args=(float(k),), xtol=1e-5))
        found.append((k - 1) * min(x, 1 / 80))
    assert max(found) == pytest.approx(table_13_optimum.objective, rel=3e-4)
    assert found == sorted(found)  # J rises with k: nothing is missed where small k are not looked at


def test_the_solvers_agree(table_13_optimum: plrvo.Optimum) -> None:
    other = solved(solver="trust-constr")
    assert other.objective == pytest.approx(table_13_optimum.objective, rel=3e-4)
    assert other.solver == "trust-constr"
    assert min(other.iterations, table_13_optimum.iterations) > 1


def test_the_moments_constraint_binds_in_low_privacy() -> None:
    # at epsilon = 30 and k <= 100 the frontier lies beyond theta lam_max C = 1
    space = plrvo.Space(dimension=1000, clip_min=0.5, clip_max=1.0, k_max=100.0)
    found = solved(LITTLE, space)
    assert found.slacks["mgf"] == pytest.approx(0.0, abs=1e-4)
    assert found.objective == pytest.approx(99 / 80, rel=1e-4)
    assert found.epsilon < 29


@pytest.mark.parametrize("name", ["gamma-plrv", "gamma-plrv-iid"])
def test_larger_k_is_more_private_by_the_valid_bound_at_equal_mean(name: str) -> None:
    # what the order of the search rests on: at the same k x the largest k costs least
    space = replace(SPACE, name=name)
    cost, found = ValidCost(), []
    for k in (20.0, 200.0, 2000.0, 20_000.0):
        found.append(cost.excess(space.mechanism(k, 1.2 / k, 1.0), TABLE_13))
    assert found == sorted(found, reverse=True)
    assert found[0] > found[-1] + 0.01


def assert_certified(found: plrvo.Optimum, epsilon: float, k_max: float) -> None:
    """A valid optimum that uses all of the target, and of k, after few evaluations."""
    assert found.evaluations <= 30
    assert found.verdict.verdict == "certified"
    assert 0.999 * epsilon <= found.epsilon <= epsilon
    assert min(found.slacks.values()) >= -1e-12
    assert isinstance(found.mechanism, (GammaPLRV, GammaPLRVIID))
    assert found.mechanism.k == k_max


@pytest.mark.slow
def test_the_search_in_a_hundred_million_coordinates() -> None:
    space = plrvo.Space(dimension=10**8, clip_min=0.3, clip_max=1.0, name="gamma-plrv-iid")
    assert_certified(plrvo.optimum(Target(0.2, 1e-5, 1000, 0.01), space), 0.2, space.k_max)


@pytest.mark.slow
def test_both_optima_at_a_hundred_million_coordinates(valid_optimum: plrvo.Optimum) -> None:
    """The valid bound goes by the clip alone: its optimum is that of 26,000 coordinates, and holds here as well."""
    assert_certified(valid_optimum, TABLE_13.epsilon, SPACE.k_max)
    moved = check(TABLE_13.claim(replace(valid_optimum.mechanism, dimension=10**8)))  # type: ignore[type-var]
    assert moved.verdict == "certified"
    assert moved.epsilon_upper == pytest.approx(valid_optimum.verdict.epsilon_upper, rel=1e-6)
    # the norm of the majorization vector grows with n, and with it what the published accountant charges
    published = plrvo.optimum(TABLE_13, replace(SPACE, dimension=10**8), accountant=THEIRS)
    assert published.verdict.epsilon_upper < 1.606
    assert published.objective < 0.98 * valid_optimum.objective


@pytest.mark.parametrize(
    ("epsilon", "clip", "theta", "k"),
    [(0.596, 0.3, 8e-4, 2e4), (0.757, 0.3, 5e-4, 4e4), (0.921, 0.3, 6e-4, 4e4), (0.962, 0.5, 3e-4, 5e4)],
)
def test_four_rows_of_its_table_follow_from_a_tenth_of_their_theta(
    epsilon: float, clip: float, theta: float, k: float
) -> None:
    # Table 13; with theta as printed Theorem 4.9 gives 12.1 to 48.4 (docs/parameter-search.md)
    noise = GammaPLRV(k=k, theta=theta / 10, clip=clip, dimension=26_000)
    assert THEIRS(noise, 0.01, 300, 1e-5) == pytest.approx(epsilon, abs=7e-4)
    as_printed = replace(noise, theta=theta)
    assert THEIRS(as_printed, 0.01, 300, 1e-5) > 12


PAGE = Path(__file__).parents[4] / "docs" / "parameter-search.md"


@pytest.mark.slow
def test_the_page_shows_both_optima(valid_optimum: plrvo.Optimum) -> None:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith(("| 0.", "| 1."))]
    epsilon, _, published, low, high, verdict, valid = (
        cell.strip(" []") for cell in re.split(r"[|,]", lines[-1])[1:-1]
    )
    assert float(epsilon) == TABLE_13.epsilon
    theirs = Published("plrvo-theorem-4.9", {"max_order": 300})
    published_optimum = plrvo.optimum(TABLE_13, replace(SPACE, max_order=300), accountant=theirs)
    truth = published_optimum.verdict
    assert truth.verdict == verdict
    for printed, value in (
        (published, published_optimum.objective), (low, truth.epsilon_lower), (high, truth.epsilon_upper),
        (valid, valid_optimum.objective),
    ):  # fmt: skip
        assert float(printed) == pytest.approx(value, rel=2e-3)


def refusal(call: Callable[[], object], match: str) -> float:
    """The nearest value that a refusal names."""
    with pytest.raises(InfeasibleError, match=match) as caught:
        call()
    return caught.value.nearest


def solved(target: Target = TABLE_13, space: plrvo.Space = SPACE, solver: plrvo.Solver = "SLSQP") -> plrvo.Optimum:
    """An optimum by the paper's accountant that meets everything; what it really costs is left to other tests."""
    with mock.patch.object(plrvo, "check"):
        found = plrvo.optimum(target, space, solver=solver, accountant=THEIRS)
    assert min(found.slacks.values()) >= -1e-11
    assert found.epsilon <= target.epsilon
    return found


def test_c0_names_the_least_clip_max() -> None:
    nearest = refusal(lambda: replace(SPACE, clip_max=0.1), r"c0: clip_max=0\.1 to be at least clip_min=0\.5")
    assert solved(space=replace(SPACE, clip_max=nearest)).mechanism.clip == 0.5
    refusal(lambda: replace(SPACE, clip_max=nearest * (1 - 1e-9)), "c0")


def test_c1_and_c4_name_the_largest_clip_min() -> None:
    wide = replace(SPACE, clip_min=20.0, clip_max=40.0)
    nearest = refusal(lambda: solved(space=wide), r"c1: .* within reach: clip_min=20")
    found = solved(space=replace(wide, clip_min=nearest))
    assert found.mechanism.clip == pytest.approx(nearest, rel=1e-9)
    assert -1e-12 <= found.slacks["c1"] < 1e-4
    refusal(lambda: solved(space=replace(wide, clip_min=nearest * (1 + 3e-4))), "c1")
    # more than half of the scales may be above 10: now c4 is the one that binds
    likely = replace(wide, cdf_at_tenth=0.6)
    nearest = refusal(lambda: solved(space=likely), r"c4: .* within reach: clip_min=20")
    assert solved(space=replace(likely, clip_min=nearest)).slacks["c4"] == pytest.approx(0.0, abs=1e-9)
    refusal(lambda: solved(space=replace(likely, clip_min=nearest * (1 + 3e-4))), "c4")


def test_a_clip_that_the_moments_rule_out_is_named_as_well() -> None:
    # theta lam_max C < 1 allows x = 1/80, and with k <= 3 c1 then asks for a tiny clip
    small = plrvo.Space(dimension=50, clip_min=0.5, clip_max=1.0, k_max=3.0)
    nearest = refusal(lambda: solved(LITTLE, small), "c1")
    found = solved(LITTLE, replace(small, clip_min=nearest))
    assert found.slacks["mgf"] == pytest.approx(0.0, abs=1e-5)
    refusal(lambda: solved(LITTLE, replace(small, clip_min=nearest * (1 + 1e-6))), "c1")


def test_c2_names_the_least_epsilon_that_the_other_constraints_leave() -> None:
    # no noise at all is private enough for less than the conversion costs
    lam = np.arange(1.0, 81.0)
    floor = float(np.min(np.log(lam / (lam + 1)) - (math.log(1e-5) + np.log(lam + 1)) / lam))
    low, few = replace(TABLE_13, epsilon=0.5 * floor), replace(SPACE, dimension=500)
    nearest = refusal(lambda: solved(low, few), "c2: epsilon=")
    assert nearest > floor
    found = solved(replace(low, epsilon=nearest), few)
    assert found.epsilon == pytest.approx(nearest, rel=1e-6)
    assert -1e-12 <= found.slacks["c1"] < 1e-4
    refusal(lambda: solved(replace(low, epsilon=nearest * (1 - 1e-3)), few), "c[12]")


def test_a_target_that_needs_no_noise_is_refused() -> None:
    with pytest.raises(InfeasibleError, match="no noise is needed"):
        plrvo.optimum(Target(1.0, 1e-2, 1000, 1e-6), plrvo.Space(1000, 0.1, 0.2))


def test_c3_names_the_least_k() -> None:
    nearest = refusal(lambda: replace(SPACE, k_max=1.0), "c3: k > 1")
    tiny = plrvo.Space(dimension=50, clip_min=1e-7, clip_max=1.0, k_max=nearest)
    found = solved(LITTLE, tiny)
    assert isinstance(found.mechanism, GammaPLRV)
    assert found.mechanism.k == nearest
    refusal(lambda: replace(SPACE, k_max=nearest - 1e-9), "c3")


def test_a_search_space_around_a_gaussian() -> None:
    # b = C sigma sqrt(2/pi) at most and lower moments than the Gaussian: only little noise leaves room for both
    space = plrvo.Space(500, 0.5, 1.0, gaussian_baseline=0.5)
    found = solved(LITTLE, space)
    inside = formulas.search_space_slacks(found.mechanism, noise_multiplier=0.5, max_order=80)
    assert min(inside.values()) >= 0
    other = solved(LITTLE, space, solver="trust-constr")
    assert other.objective == pytest.approx(found.objective, rel=3e-4)
    # the moments bind: without the baseline more signal is private enough
    assert found.objective < solved(LITTLE, replace(space, gaussian_baseline=None)).objective


@pytest.mark.parametrize(("baseline", "side"), [(2.0, 1.0), (0.05, -1.0)])
def test_theorem_d1_names_the_nearest_baseline(baseline: float, side: float) -> None:
    space = plrvo.Space(500, 0.5, 1.0, gaussian_baseline=baseline)
    nearest = refusal(lambda: solved(LITTLE, space), rf"Theorem D\.1.* gaussian_baseline={baseline:g}, .* nearest")
    found = solved(LITTLE, replace(space, gaussian_baseline=nearest))
    inside = formulas.search_space_slacks(found.mechanism, noise_multiplier=nearest, max_order=80)
    assert min(inside.values()) >= -1e-9
    assert (baseline - nearest) * side > 0
    refusal(lambda: solved(LITTLE, replace(space, gaussian_baseline=nearest * (1 + 1e-4 * side))), r"Theorem D\.1")


def test_theorem_d1_leaves_nothing_where_privacy_is_wanted() -> None:
    # a Gaussian small enough for the moments has a distortion that epsilon = 1 does not afford
    target, around = replace(TABLE_13, epsilon=1.0), replace(SPACE, gaussian_baseline=0.7)
    assert math.isnan(refusal(lambda: solved(target, around), r"Theorem D\.1.*none leaves room"))
    top = solved(target).objective
    for baseline in np.geomspace(0.01, 20.0, 60):  # a plain scan over J at k_max finds none either
        least = math.sqrt(math.pi / 2) / baseline
        for signal in np.geomspace(least, max(least, top), 20):
            noise = GammaPLRV(k=SPACE.k_max, theta=signal / (SPACE.k_max - 1), clip=1.0, dimension=26_000)
            inside = formulas.search_space_slacks(noise, noise_multiplier=float(baseline), max_order=80)
            assert signal > top * (1 + 1e-3) or min(inside.values()) < 0


def test_corollary_d2_admits_no_shape_as_printed() -> None:
    for theta in np.geomspace(1e-7, 2 / 81, 12):
        low, high = formulas.shape_bounds(np.arange(2.0, 82.0), clip=0.5, theta=float(theta))
        assert not low.max() <= high.min()  # NaN where any is not real


def test_configurations_its_theorem_says_nothing_about() -> None:
    plrvo.require_feasible(GammaPLRV(k=3.0, theta=0.01, clip=1.0), max_order=80)
    theta = refusal(
        lambda: plrvo.require_feasible(GammaPLRV(k=3.0, theta=0.02, clip=1.0), max_order=80), "theta lam_max C < 1"
    )
    plrvo.require_feasible(GammaPLRV(k=3.0, theta=theta, clip=1.0), max_order=80)
    assert theta == pytest.approx(1 / 80)
    refusal(lambda: plrvo.require_feasible(GammaPLRV(k=3.0, theta=1 / 80, clip=1.0), max_order=80), "theta")
    k = refusal(lambda: plrvo.require_feasible(GammaPLRV(k=0.5, theta=0.01, clip=1.0), max_order=80), "c3: k > 1")
    plrvo.require_feasible(GammaPLRV(k=k, theta=0.01, clip=1.0), max_order=80)
    refusal(lambda: plrvo.require_feasible(GammaPLRV(k=1.0, theta=0.01, clip=1.0), max_order=80), "c3")


@pytest.mark.parametrize("change", [{"k_max": math.nan}, {"max_order": 0}, {"gaussian_baseline": -1.0}])
def test_a_bad_space_is_refused(change: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        plrvo.Space(**{"dimension": 10, "clip_min": 0.5, "clip_max": 1.0, **change})  # type: ignore[arg-type]
