"""Other people's accountants through our signature, against formulas that do not share their code."""

import math
import subprocess
import sys
import warnings

import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from dpaudit.mechanisms import Gaussian, GeneralizedGaussian, Laplace, Product
from dpaudit.verify.accountants import DPAccounting, HistoryAccountant, Opacus, PRVAccountant, Published
from dpaudit.verify.accountants import base as adapters
from dpaudit.verify.claims import Phase

EVERY = [Opacus("rdp"), Opacus("gdp"), Opacus("prv"), DPAccounting("rdp"), DPAccounting("pld"), PRVAccountant()]
# how far above the exact value an unsampled Gaussian may be accounted: grids, stated errors, moments
EXCESS = {"pld": 1e-3, "prv": 0.011, "rdp": 0.1}


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Balle and Wang (2018), Theorem 8, inverted."""

    def excess(epsilon: float) -> float:
        return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu) - delta)

    return float(brentq(excess, 0.0, mu * mu / 2 + 40 * mu, xtol=1e-13))


@pytest.mark.parametrize("accountant", EVERY, ids=str)
@pytest.mark.parametrize(("noise", "steps"), [(1.0, 1), (3.0, 10)])
def test_an_unsampled_gaussian_costs_its_exact_value_or_little_more(
    accountant: HistoryAccountant, noise: float, steps: int
) -> None:
    exact = gaussian_epsilon(math.sqrt(steps) / noise, 1e-5)
    value = accountant(Gaussian(noise), 1.0, steps, 1e-5)  # type: ignore[operator]
    if accountant == Opacus("gdp"):  # its limit takes e^(1/sigma^2) - 1 for 1/sigma^2, sampled or not
        exact = gaussian_epsilon(math.sqrt(steps * math.expm1(noise**-2)), 1e-5)
    kind = "prv" if isinstance(accountant, PRVAccountant) else accountant.kind  # type: ignore[attr-defined]
    assert exact * (1 - 1e-6) <= value <= exact + EXCESS.get(kind, 1e-6) * (1 + exact)


@pytest.mark.parametrize(
    ("accountant", "known"),
    [
        (Opacus("gdp"), 1.618),
        (Opacus("rdp"), 2.101),
        (DPAccounting("rdp"), 2.101),
        (DPAccounting("pld"), 1.828),
        (Opacus("prv"), 1.838),
        (PRVAccountant(eps_error=0.01), 1.838),
    ],
)
def test_dp_sgd_costs_what_the_packages_are_known_to_say(accountant: object, known: float) -> None:
    value = accountant(Gaussian(1.0), 0.01, 1000, 1e-5)  # type: ignore[operator]
    assert value == pytest.approx(known, abs=6e-4)


def test_the_central_limit_is_the_one_of_its_paper() -> None:
    mu = 0.02 * math.sqrt(500 * math.expm1(0.8**-2))
    assert Opacus("gdp")(Gaussian(0.8), 0.02, 500, 1e-6) == pytest.approx(gaussian_epsilon(mu, 1e-6), rel=1e-6)


def test_noise_is_measured_against_the_norm_that_the_package_assumes() -> None:
    accountant = DPAccounting("rdp")
    plain = accountant(Gaussian(2.0), 0.1, 20, 1e-5)
    assert accountant(Gaussian(2.0, clip=7.0, dimension=9), 0.1, 20, 1e-5) == pytest.approx(plain, rel=1e-12)
    assert accountant(GeneralizedGaussian(2.0, 2.0 * math.sqrt(2)), 0.1, 20, 1e-5) == pytest.approx(plain, rel=1e-9)
    # an l_inf ball of radius 1 in four dimensions reaches an l2 norm of 2
    reached = accountant(Gaussian(4.0, clip_norm=math.inf, dimension=4), 0.1, 20, 1e-5)
    assert reached == pytest.approx(plain, rel=1e-9)
    with pytest.raises(ValueError, match="dimension to be set"):
        accountant(Gaussian(4.0, clip_norm=math.inf), 0.1, 20, 1e-5)


@pytest.mark.parametrize("accountant", [DPAccounting("pld"), PRVAccountant(eps_error=0.01)], ids=str)
def test_one_laplace_release_costs_its_exact_value(accountant: DPAccounting | PRVAccountant) -> None:
    # delta(epsilon) = 1 - e^((epsilon - s)/2), s = 3 clip / scale for three coordinates clipped in l_inf
    exact = 3 * 0.5 / 1.25 + 2 * math.log1p(-1e-5)
    mechanism = Laplace(1.25, clip=0.5, clip_norm=math.inf, dimension=3)
    value = accountant(mechanism, 1.0, 1, 1e-5)
    assert exact - 1e-9 <= value <= exact + 0.011


def test_releases_told_one_by_one_are_added_up() -> None:
    phases = [Phase(Gaussian(1.0), 3, 0.1), Phase(Gaussian(2.0), 2, 0.5)]
    values = [accountant.history(phases, 1e-5) for accountant in (Opacus("rdp"), DPAccounting("rdp"))]
    assert values[0] == pytest.approx(values[1], rel=1e-3)  # their grids of orders differ
    exact = gaussian_epsilon(math.sqrt(3 / 4 + 5 / 9), 1e-5)
    unsampled = [Phase(Gaussian(2.0), 3), Phase(Gaussian(3.0), 5)]
    assert DPAccounting("pld").history(unsampled, 1e-5) == pytest.approx(exact, abs=1e-3)
    assert DPAccounting("pld").history(unsampled, 1e-5) >= exact


@pytest.mark.parametrize("accountant", EVERY, ids=str)
def test_noise_it_does_not_know_is_refused_without_a_warning(accountant: HistoryAccountant) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(NotImplementedError, match="Expected mechanism='product' to have normal noise"):
            accountant(Product(5.0, dimension=10), 1.0, 1, 1e-5)  # type: ignore[operator]
        assert accountant(Gaussian(5.0), 0.5, 2, 1e-5) > 0  # type: ignore[operator]


def test_sampled_laplace_noise_is_refused_where_there_is_no_variable_for_it() -> None:
    with pytest.raises(NotImplementedError, match="sampling_prob=1"):
        PRVAccountant()(Laplace(1.0, clip_norm=1.0), 0.5, 1, 1e-5)


@pytest.mark.parametrize("adapter", [lambda: Opacus("rdp"), lambda: DPAccounting("pld"), PRVAccountant])
def test_a_missing_package_is_named(adapter: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapters, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="to be installed: pip install"):
        adapter()  # type: ignore[operator]


def test_an_unknown_published_formula_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Expected accountant='lap3' to be one of .*lap2-theorem-iii\.7"):
        Published("lap3")


def test_the_adapters_load_no_package_before_they_are_asked() -> None:
    program = (
        "import sys, dpaudit.verify.accountants.table, dpaudit.verify.accountants as a; a.Opacus('gdp');"
        "print([m for m in ('torch', 'opacus', 'dp_accounting', 'prv_accountant') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
