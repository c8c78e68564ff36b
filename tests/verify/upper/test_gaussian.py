"""Gaussian noise: the closed form against long arithmetic, histories against two accountants nobody here wrote."""

import math

import mpmath
import numpy as np
import pytest

from dpaudit.mechanisms import Gaussian, GeneralizedGaussian
from dpaudit.verify import check
from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.curves import SMALLEST_DELTA
from dpaudit.verify.guarantees import PrivacyCurve
from dpaudit.verify.implied import claim_stating
from dpaudit.verify.lower import certified_lower
from dpaudit.verify.pld import composition
from dpaudit.verify.pld.composition import Composed
from dpaudit.verify.pld.dominating_pairs import gaussian_pair
from dpaudit.verify.pld.pair_curve import PairPhase, compose_pairs
from dpaudit.verify.upper import gaussian_pld, mixed, upper_curves
from dpaudit.verify.upper.gaussian_pld import analytic_delta


def exact_delta(mu: float, epsilon: float) -> mpmath.mpf:
    """Balle and Wang (2018), Theorem 8, in 400 digits."""
    with mpmath.workdps(400):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        return mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)


def curve(mechanism: Gaussian, steps: int, sampling_prob: float, **kwargs: object) -> object:
    claim = Claim.single(mechanism, epsilon=1.0, delta=1e-5, steps=steps, sampling_prob=sampling_prob, **kwargs)  # type: ignore[arg-type]
    return gaussian_pld.bound(claim)


@pytest.mark.parametrize("mu", [1e-3, 0.05, 0.6, 1.0, 4.0, 12.0])
def test_closed_form_is_rounded_up_and_no_more(mu: float) -> None:
    for z in [-3.0, 0.0, 1.0, 4.0, 8.0, 20.0]:
        epsilon = max(mu * mu / 2 + z * mu, 0.0)
        exact = exact_delta(mu, epsilon)
        value = float(analytic_delta(mu, np.array([epsilon]))[0])
        assert value >= exact
        # cancellation costs a factor R(a)/(R(a) - R(b)), about (|a| + 1)/mu
        assert value <= exact * (1 + 1e-12 * (abs(z) + 3) ** 3 / min(mu, 1.0)) + 2e-15, (mu, z)


def test_an_underflow_is_no_proof() -> None:
    assert float(analytic_delta(0.01, np.array([1e4]))[0]) > 0
    assert math.isinf(curve(Gaussian(1.0), 1, 1.0).epsilon(np.array([0.0]))[0])  # type: ignore[attr-defined]


@pytest.mark.parametrize("mu", [1e-30, 1e-6, 1.0])
def test_the_closed_form_falls_to_its_floor_and_stays_there(mu: float) -> None:
    found = analytic_delta(mu, np.linspace(0.0, 100.0, 5001) * mu)
    assert (np.diff(found) <= 0).all()
    assert analytic_delta(mu, np.array([1e3, 1e5])).tolist() == [SMALLEST_DELTA] * 2


@pytest.mark.parametrize(("noise_multiplier", "steps"), [(1.0, 2), (50.0, 1000), (10.0, 20_000), (300.0, 20_000)])
def test_composed_pairs_stay_above_the_truth_at_every_delta(noise_multiplier: float, steps: int) -> None:
    """A history without sampling, composed by FFT instead of the closed form, down to delta = 1e-29."""
    composed = compose_pairs([PairPhase(gaussian_pair(1 / noise_multiplier), 1.0, steps)], ("remove",), 1e-10)[0]
    mu = math.sqrt(steps) / noise_multiplier
    for z in [0.5, 2.0, 4.0, 6.0, 8.0, 10.0, 11.0]:
        epsilon = mu * mu / 2 + z * mu
        value = float(composed.delta(np.array([epsilon]))[0])
        assert float(exact_delta(mu, epsilon)) < value < 1.5 * float(exact_delta(mu, 0.999 * epsilon)), (z, value)
        # tight: 0.1% in epsilon, with half of delta more at 1e-29, beyond every tilt
        assert z == 11.0 or value < float(exact_delta(mu, 0.999 * epsilon))


@pytest.mark.parametrize("delta", [1e-45, 1e-100, 1e-200, 1e-290])
def test_histories_are_resolved_as_far_as_the_claim_looks(delta: float) -> None:
    """Beyond 1e-32 all releases' losses counted as infinite, and no epsilon was enough."""
    noise_multiplier, steps = 5.0, 100
    composed = compose_pairs([PairPhase(gaussian_pair(1 / noise_multiplier), 1.0, steps)], ("remove",), delta)[0]
    mu = math.sqrt(steps) / noise_multiplier
    z = math.sqrt(2 * math.log(1 / delta))
    epsilon = mu * mu / 2 + (z - 0.5) * mu
    truth = float(exact_delta(mu, epsilon))
    assert delta / 1e3 < truth < float(composed.delta(np.array([epsilon]))[0]) < float(exact_delta(mu, 0.999 * epsilon))
    found = check(Claim(1.0, delta, [Phase(Gaussian(noise_multiplier), steps, 0.5)]))
    assert found.epsilon_lower < found.epsilon_upper < 1.003 * found.epsilon_lower
    both = PrivacyCurve(((10.0, 1e-5), (1.003 * found.epsilon_upper, delta)))
    assert check(claim_stating(both, [Phase(Gaussian(noise_multiplier), steps, 0.5)])).verdict == "certified"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise_multiplier", "sampling_prob", "steps"),
    [
        (1.0, 0.01, 1000),
        (4.0, 0.2, 200),
        (0.5, 1e-3, 1),
        # rare losses of ten thousand deviations: a tilt fit for a normal law sees nothing else
        (1.0, 1e-3, 2),
    ],
)
def test_between_dp_accountings_optimistic_and_pessimistic_values(
    noise_multiplier: float, sampling_prob: float, steps: int
) -> None:
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    found = curve(Gaussian(noise_multiplier), steps, sampling_prob).epsilon(np.array([1e-5]))[0]  # type: ignore[attr-defined]
    brackets = []
    for pessimistic in (False, True):
        law = pld.from_gaussian_mechanism(
            noise_multiplier,
            sampling_prob=sampling_prob,
            value_discretization_interval=1e-4,
            pessimistic_estimate=pessimistic,
        )
        brackets.append(law.self_compose(steps).get_epsilon_for_delta(1e-5))
    assert brackets[0] <= found <= brackets[1] * 1.002


def test_within_prv_accountants_interval() -> None:
    prv = pytest.importorskip("prv_accountant")
    accountant = prv.PRVAccountant(
        prvs=[prv.PoissonSubsampledGaussianMechanism(noise_multiplier=1.0, sampling_probability=0.01)],
        max_self_compositions=[1000],
        eps_error=0.02,
        delta_error=1e-10,
    )
    low, _, high = accountant.compute_epsilon(delta=1e-5, num_self_compositions=[1000])
    found = curve(Gaussian(1.0), 1000, 0.01).epsilon(np.array([1e-5]))[0]  # type: ignore[attr-defined]
    assert low <= found <= high
    assert found == pytest.approx(1.82824, rel=3e-3)


def test_low_noise_long_history_against_a_saddlepoint_value() -> None:
    """sigma 0.5, q 0.2, T 20000: 3838.020 by a tilted Edgeworth expansion of the exact step law."""
    found = curve(Gaussian(0.5), 20_000, 0.2).epsilon(np.array([1e-5]))[0]  # type: ignore[attr-defined]
    x = np.linspace(-14.0, 20.0, 200_001)
    width = x[1] - x[0]
    loss = np.log1p(0.2 * np.expm1(2.0 * x - 2.0))
    base = (0.2 * np.exp(-((x - 2) ** 2) / 2) + 0.8 * np.exp(-(x**2) / 2)) / math.sqrt(2 * math.pi) * width

    def point(theta: float) -> tuple[float, float]:
        """(epsilon, log delta) at the tilt theta."""
        weight = base * np.exp(theta * loss)
        mass = weight.sum()
        mean = (weight * loss).sum() / mass
        central = [(weight * (loss - mean) ** n).sum() / mass for n in (2, 3)]
        sd = math.sqrt(20_000 * central[0])
        skew = 20_000 * central[1] / sd**3
        y = np.linspace(0.0, 12 * sd, 100_001)
        z = y / sd
        density = np.exp(-z * z / 2) / sd / math.sqrt(2 * math.pi) * (1 + skew / 6 * (z**3 - 3 * z))
        integral = (density * np.exp(-theta * y) * -np.expm1(-y)).sum() * (y[1] - y[0])
        return 20_000 * mean, 20_000 * (math.log(mass) - theta * mean) + math.log(integral)

    low, high = 0.02, 0.06
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if point(middle)[1] > math.log(1e-5) else (low, middle)
    reference = point(low)[0]
    assert reference == pytest.approx(3838.02, abs=0.05)
    assert reference <= found <= reference * 1.0005


@pytest.mark.parametrize(("noise", "rate", "steps"), [(300.0, 0.5, 5), (1e3, 0.9, 3), (1e3, 0.01, 1000)])
def test_losses_far_below_one_are_bounded_tightly_at_the_smallest_deltas(noise: float, rate: float, steps: int) -> None:
    """The loss of a record that is not sampled ends at log(1 - rate), thousands of cells below all others."""
    claim = Claim.single(Gaussian(noise), epsilon=1e-3, delta=1e-20, steps=steps, sampling_prob=rate)
    deltas = np.array([1e-9, 1e-20, 1e-30])
    lower, upper = certified_lower(claim).epsilon(deltas), gaussian_pld.bound(claim).epsilon(deltas)
    assert (lower <= upper).all()
    assert (upper <= 1.001 * lower).all()


def test_unsampled_phases_merge_and_sampled_ones_compose() -> None:
    """Two unsampled phases and a sampled one against dp-accounting's composition of the three."""
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    claim = Claim(1.0, 1e-6, [Phase(Gaussian(4.0), 3), Phase(Gaussian(1.5), 40, 0.05), Phase(Gaussian(6.0), 2)])
    found = gaussian_pld.bound(claim).epsilon(np.array([1e-6]))[0]
    laws = [
        pld.from_gaussian_mechanism(s, sampling_prob=q).self_compose(n)
        for s, n, q in ((4, 3, 1), (1.5, 40, 0.05), (6, 2, 1))
    ]
    reference = laws[0].compose(laws[1]).compose(laws[2]).get_epsilon_for_delta(1e-6)
    assert found == pytest.approx(reference, rel=2e-3)
    assert not mixed.applies(claim)


def test_replace_one_unsampled_is_twice_the_shift() -> None:
    epsilon = np.array([0.5, 1.0, 3.0])
    whole = curve(Gaussian(2.0), 3, 1.0, adjacency="replace-one").delta(epsilon)  # type: ignore[attr-defined]
    np.testing.assert_allclose(whole, [float(exact_delta(math.sqrt(3.0), float(e))) for e in epsilon], rtol=1e-9)


def test_structure_and_clip_norm_decide_not_the_class() -> None:
    """exp(-x^2/s^2) noise is normal with sigma = s/sqrt(2); l_4 clipping in n dimensions has l2 radius n^(1/4) clip."""
    epsilon = np.array([0.3, 2.0])
    normal = curve(Gaussian(1.5), 1, 1.0).delta(epsilon)  # type: ignore[attr-defined]
    twin = GeneralizedGaussian(beta=2.0, scale=1.5 * math.sqrt(2.0))
    [found] = upper_curves(Claim.single(twin, epsilon=1.0, delta=1e-5))
    np.testing.assert_allclose(found.delta(epsilon), normal, rtol=1e-10)
    wide = curve(Gaussian(1.5, 1.0, 4.0, 81), 1, 1.0).delta(epsilon)  # type: ignore[attr-defined]
    np.testing.assert_allclose(wide, [float(exact_delta(3.0 / 1.5, float(e))) for e in epsilon], rtol=1e-9)
    assert not gaussian_pld.applies(Claim.single(Gaussian(1.5, 1.0, 4.0), epsilon=1.0, delta=1e-5))
    narrow = curve(Gaussian(1.5, 1.0, 1.0), 1, 1.0).delta(epsilon)  # type: ignore[attr-defined]
    np.testing.assert_allclose(narrow, normal, rtol=1e-12)


def test_sampling_without_a_theorem_is_refused() -> None:
    claim = Claim(1.0, 1e-5, [Phase(Gaussian(1.0), 2, 0.1, "shuffled")])
    assert upper_curves(claim) == []
    with pytest.raises(ValueError, match="known l2 radius"):
        gaussian_pld.bound(claim)


def test_a_short_window_keeps_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut a window to a few cells: the tail above it is then added by Chernoff, never lost."""
    part = compose_pairs([PairPhase(gaussian_pair(0.2), 1.0, 200)], ("remove",), 1e-10)[0]
    copy = Composed(part.parts, part.step, part.infinite, part.slack)
    monkeypatch.setattr(composition, "MAX_SIZE", 256)
    mu = 0.2 * math.sqrt(200)
    for epsilon in (0.5, 3.0, 12.0):
        assert float(copy.delta(np.array([epsilon]))[0]) >= float(exact_delta(mu, epsilon))
