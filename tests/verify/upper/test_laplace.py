"""Laplace noise: the domination lemma, the l1 pair, and the values of the paper that uses l2 clipping."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpaudit.mechanisms import Gaussian, Laplace
from dpaudit.verify.checking import check
from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.pld.dominating_pairs import laplace_pair
from dpaudit.verify.rdp import gaussian_moments, rdp_curve, sampled_moments
from dpaudit.verify.upper import gaussian_pld, laplace_gaussian_domination, laplace_pure, upper_curves

ROWS = [
    (16.462, 0.13, 0.0659),
    (2.771, 0.88, 0.4733),
    (1.521, 1.68, 1.0013),
    (1.0477, 2.53, 1.7975),
    (0.7993, 3.42, 3.3439),
]


def log_f(s: float, eta: float) -> float:
    """log of one coordinate's moment, from its closed form."""
    with mpmath.workdps(40):
        s_, e = mpmath.mpf(s), mpmath.mpf(eta)
        return float(mpmath.log((e * mpmath.exp((e - 1) * s_) + (e - 1) * mpmath.exp(-e * s_)) / (2 * e - 1)))


@given(s=st.floats(1e-4, 20.0), eta=st.floats(1.0, 60.0))
def test_the_domination_lemma(s: float, eta: float) -> None:
    assert log_f(s, eta) <= eta * (eta - 1) * s * s / 2 * (1 + 1e-12) + 1e-30


@pytest.mark.parametrize("a", [1.5, 2.0, 3.7, 12.0])
@pytest.mark.parametrize("q", [0.01, 0.3])
def test_sampled_domination_at_real_orders(a: float, q: float) -> None:
    """E_Q[(1-q+q W)^a] over a few coordinates of random sizes, by nested quadrature, against the Gaussian's."""
    rng = np.random.default_rng(5)
    x, w = np.polynomial.legendre.leggauss(60)
    for n in (1, 2, 3):
        shifts = rng.dirichlet(np.ones(n)) ** 0.5 * 1.4
        # the loss of a coordinate: atoms at its ends, and in between density e^-(l+s)/2 / 4 under Q
        supports = []
        for s in shifts:
            inner = np.exp(-(x * s + s) / 2) / 4 * w * s
            supports.append((np.concatenate([[-s, s], x * s]), np.concatenate([[0.5, 0.5 * math.exp(-s)], inner])))
        total = 0.0
        for combination in itertools.product(*(range(62),) * n) if n < 3 else ():
            loss = sum(supports[i][0][k] for i, k in enumerate(combination))
            total += math.prod(supports[i][1][k] for i, k in enumerate(combination)) * (1 - q + q * math.exp(loss)) ** a
        if n == 3:
            losses = supports[0][0][:, None, None] + supports[1][0][None, :, None] + supports[2][0][None, None, :]
            weight = supports[0][1][:, None, None] * supports[1][1][None, :, None] * supports[2][1][None, None, :]
            total = float((weight * (1 - q + q * np.exp(losses)) ** a).sum())
        mu = float(np.linalg.norm(shifts))
        assert math.log(total) <= float(gaussian_moments(mu, q, np.array([a - 1]))[0])


@pytest.mark.parametrize(("scale", "claimed", "expected"), ROWS)
def test_lap2_rows_hold_with_room(scale: float, claimed: float, expected: float) -> None:
    claim = Claim.single(
        Laplace(scale, 1.0, 2.0, 26_000), epsilon=claimed, delta=1e-5, steps=5860, sampling_prob=0.0043
    )
    point = np.array([1e-5])
    moments = laplace_gaussian_domination.moments(claim, claim.phases[0])
    assert moments is not None
    curve = rdp_curve(claim, [(moments, 5860)], sampled=False, method="rdp", theorem="moments")
    assert float(curve.epsilon(point)[0]) == pytest.approx(expected, rel=1e-3)
    # the smoothed Gaussian curve is tighter, and still above the Gaussian's, which a spread shift attains
    found = float(laplace_gaussian_domination.bound(claim).epsilon(point)[0])
    limit = Claim.single(Gaussian(scale), epsilon=claimed, delta=1e-5, steps=5860, sampling_prob=0.0043)
    assert float(gaussian_pld.bound(limit).epsilon(point)[0]) < found < 0.95 * expected < claimed


def test_whole_orders_alone_would_not_do_for_the_last_row() -> None:
    claim = Claim.single(Laplace(0.7993), epsilon=3.42, delta=1e-5)
    eta = np.arange(2000.0)
    table = eta * (eta - 1) / (2 * 0.7993**2)

    def whole(lam: np.ndarray) -> np.ndarray:
        return np.where(lam == np.rint(lam), sampled_moments(table, 0.0043, np.ceil(lam)), 1e9)

    curve = rdp_curve(claim, [(whole, 5860)], sampled=True, method="rdp", theorem="whole orders")
    assert float(curve.epsilon(np.array([1e-5]))[0]) == pytest.approx(3.4215, abs=5e-4)


def test_l1_pair_against_dp_accounting() -> None:
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    for scale, steps, q in [(10.0, 1000, 1.0), (2.0, 50, 0.1), (1.0, 1, 0.3)]:
        claim = Claim.single(Laplace(scale, 1.0, 1.0, 50), epsilon=1.0, delta=1e-5, steps=steps, sampling_prob=q)
        found = float(laplace_pure.bound(claim).epsilon(np.array([1e-5]))[0])
        law = pld.from_laplace_mechanism(scale, sampling_prob=q, value_discretization_interval=1e-4)
        assert found == pytest.approx(law.self_compose(steps).get_epsilon_for_delta(1e-5), rel=2e-3)


def test_two_coordinates_are_dominated_by_one_that_moves_by_their_sum() -> None:
    """delta of the pair (s1, s2), summed over a fine grid of both losses, against the profile of s1 + s2."""
    x, w = np.polynomial.legendre.leggauss(200)

    def support(s: float) -> tuple[np.ndarray, np.ndarray]:
        return np.concatenate([[-s, s], x * s]), np.concatenate(
            [[0.5 * math.exp(-s), 0.5], np.exp((x * s - s) / 2) / 4 * w * s]
        )

    for s1, s2 in [(0.2, 0.2), (0.1, 1.4), (1.0, 2.5)]:
        (l1, p1), (l2, p2) = support(s1), support(s2)
        assert p1.sum() == pytest.approx(1.0, abs=1e-10)
        loss, mass = (l1[:, None] + l2[None, :]).ravel(), np.outer(p1, p2).ravel()
        for epsilon in np.linspace(0.0, s1 + s2, 9):
            both = float(mass @ np.maximum(-np.expm1(epsilon - loss), 0.0))
            assert both <= -math.expm1((epsilon - s1 - s2) / 2) + 2e-5
    profile = laplace_pair(1.5).tails(np.array([0.4]))
    assert float(profile.p_sf[0] - math.exp(0.4) * profile.q_sf[0]) == pytest.approx(-math.expm1((0.4 - 1.5) / 2))


def test_a_claim_of_exactly_the_pure_epsilon_holds() -> None:
    """A hundred times a tenth is ten, whatever binary makes of a tenth; one ulp less is not claimed."""
    claim = Claim.single(Laplace(1.0, 0.1, 1.0), epsilon=10.0, delta=0.0, steps=100)
    curve = laplace_pure.bound(claim)
    assert float(curve.delta(np.array([10.0]))[0]) == 0.0
    assert float(curve.delta(np.array([math.nextafter(10.0, 0.0)]))[0]) > 0.0


def test_pure_privacy() -> None:
    claim = Claim(1.0, 0.0, [Phase(Laplace(2.0, 1.0, 1.0), 3), Phase(Laplace(1.0, 1.0, 1.0), 2, 0.1)])
    curve = laplace_pure.bound(claim)
    pure = 3 * 0.5 + 2 * math.log1p(0.1 * math.expm1(1.0))
    assert float(curve.epsilon(np.array([0.0]))[0]) == pytest.approx(pure, rel=1e-9)
    assert float(curve.delta(np.array([pure * (1 + 1e-9)]))[0]) == 0.0
    assert float(curve.delta(np.array([pure * 0.99]))[0]) > 0.0
    assert float(curve.epsilon(np.array([1e-5]))[0]) < pure


def test_radii_decide_where_the_theorems_apply() -> None:
    def names(mechanism: Laplace) -> set[str]:
        return {curve.method for curve in upper_curves(Claim.single(mechanism, epsilon=1.0, delta=1e-5))}

    assert names(Laplace(5.0, 1.0, 2.0)) == {"pld"}
    assert names(Laplace(5.0, 1.0, 1.0)) == {"pure", "pld"}
    assert names(Laplace(5.0, 1.0, 4.0)) == set()
    wide = Claim.single(Laplace(5.0, 1.0, math.inf, 4), epsilon=1.0, delta=1e-5)
    assert laplace_gaussian_domination.gaussian_shift(wide, wide.phases[0]) == pytest.approx(2.0 / 5.0)
    assert laplace_pure.shift_over_scale(wide, wide.phases[0]) == pytest.approx(4.0 / 5.0)
    double = Claim.single(Laplace(5.0), epsilon=1.0, delta=1e-5, adjacency="replace-one")
    assert laplace_gaussian_domination.gaussian_shift(double, double.phases[0]) == pytest.approx(2.0 / 5.0)


def test_one_release_has_its_exact_curve() -> None:
    """delta = 1 - e^((epsilon - s)/2), against dp-accounting's grid."""
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    claim = Claim.single(Laplace(0.8, 1.0, 1.0, 50), epsilon=1.0, delta=1e-5)
    curve = laplace_pure.bound(claim)
    assert curve.method == "exact-integral"
    epsilon = np.array([0.0, 0.3, 1.0, 1.2])
    found = curve.delta(epsilon)
    np.testing.assert_allclose(found, -np.expm1((epsilon - 1.25) / 2), rtol=1e-13)
    law = pld.from_laplace_mechanism(0.8, value_discretization_interval=1e-4)
    np.testing.assert_allclose(found, law.get_delta_for_epsilon(epsilon), rtol=2e-3)


@pytest.mark.parametrize("s", [1000.0, 400.0, 200.0])
@pytest.mark.parametrize(("coordinates", "steps"), [(2, 1), (1, 2), (3, 2)])
def test_unsampled_shifts_add_up_where_no_grid_reaches(s: float, coordinates: int, steps: int) -> None:
    """The history costs at most one release of all shifts, delta = 1 - e^((epsilon - sum)/2)."""
    epsilon = coordinates * steps * s - 0.1
    claim = Claim.single(Laplace(1.0 / s, 1.0, math.inf, coordinates), epsilon=epsilon, delta=0.05, steps=steps)
    found = min(float(curve.delta(np.array([epsilon]))[0]) for curve in upper_curves(claim))
    assert 0.0 < found <= -math.expm1(-0.05) * (1.0 + 1e-9)


def test_a_sampled_release_that_a_sum_of_floats_swallows_costs_something() -> None:
    """A history of 1 and of log(1 + 1e-17 (e - 1)) is not (1, 0)-private."""
    phases = [Phase(Laplace(1.0, 1.0, 1.0)), Phase(Laplace(1.0, 1.0, 1.0), 1, 1e-17)]
    assert laplace_pure.pure_epsilon(Claim(1.0, 0.0, phases)) == math.nextafter(1.0, 2.0)
    assert check(Claim(1.0, 0.0, phases)).verdict != "certified"


def test_long_shifts_leave_the_pure_bound() -> None:
    claim = Claim.single(Laplace(1.0, 1.0, 2.0, 10_000), epsilon=1.0, delta=0.0, steps=3, sampling_prob=0.01)
    curve = laplace_pure.bound(claim)
    pure = 3 * math.log1p(0.01 * math.expm1(100.0))
    assert float(curve.epsilon(np.array([0.0]))[0]) == pytest.approx(pure, rel=1e-9)
    assert curve.delta(np.array([1.0, pure + 1e-6])).tolist() == [1.0, 0.0]


def test_an_epsilon_of_more_cells_than_integers_hold() -> None:
    """Noise of 1e25 clips: the grid is finer than 1e-25, and the search for epsilon goes up to 1e9."""
    claim = Claim.single(Laplace(1e25, dimension=1), epsilon=1e-3, delta=1e-5, steps=2)
    verdict = check(claim)
    assert (verdict.verdict, verdict.epsilon_upper) == ("certified", 0.0)
    assert float(verdict.delta(1e9)[1]) == 0.0


def test_one_release_costs_nothing_at_epsilons_beyond_the_exponential() -> None:
    claim = Claim.single(Laplace(0.4, clip_norm=1.0, dimension=1), epsilon=0.1, delta=1e-5)
    assert float(laplace_pure.bound(claim).delta(np.array([1e5]))[0]) == 0.0
    assert float(laplace_pure.bound(claim).epsilon(np.array([1e-9]))[0]) == pytest.approx(2.5, abs=1e-8)


def test_every_norm_of_one_coordinate_is_its_size() -> None:
    """Without the rounding of a power of the dimension: a pure epsilon of exactly 1 is kept."""
    for norm in (1.0, 2.0, math.inf):
        claim = Claim.single(Laplace(1.0, clip_norm=norm, dimension=1), epsilon=1.0, delta=0.0)
        assert check(claim).verdict == "certified"
