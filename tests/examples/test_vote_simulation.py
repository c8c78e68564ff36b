"""The simulated votes of examples/vote_simulation.py: their construction, scales and utility against exact values."""

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from dpaudit.mechanisms import GeneralizedGaussian
from dpaudit.mechanisms.published.gaussian_baselines import analytic_gaussian_sigma
from dpaudit.verify.papers.votes.lower import win_probability

SCRIPT = Path(__file__).parents[2] / "examples" / "vote_simulation.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("vote_simulation", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("classes", [2, 16, 25])
def test_histograms_have_their_voters_and_their_lead(script: ModuleType, classes: int) -> None:
    rng = np.random.default_rng(1)
    for lead in range(26):
        for _ in range(20):
            counts = script.histogram(classes, lead, rng)
            assert counts.shape == (classes,)
            assert counts.sum() == script.VOTERS
            assert counts.min() >= 0
            assert counts[0] - np.sort(counts[1:])[-1] == (lead if classes > 2 else lead - lead % 2)


def test_too_few_classes_are_refused(script: ModuleType) -> None:
    with pytest.raises(ValueError, match="Expected classes=5 to be 2, or more: a small class may get 125 votes"):
        script.histogram(5, 0, np.random.default_rng(1))


def test_scales_for_the_gaussian_are_the_analytic_ones(script: ModuleType) -> None:
    """One count: sigma of a shift of 1. The vote vector: of a shift of sqrt(2), and of sqrt(200) for 100 answers."""
    sigma = analytic_gaussian_sigma(1.0, epsilon=1.0, delta=script.DELTA)
    assert script.claimed_scale(2.0, 1.0, 1) == pytest.approx(math.sqrt(2) * sigma, rel=5e-3)
    assert script.valid_scale(2.0, 1.0, 1) == pytest.approx(2 * sigma, rel=5e-3)
    hundred = analytic_gaussian_sigma(math.sqrt(200), epsilon=5.0, delta=script.DELTA)
    assert script.valid_scale(2.0, 5.0, 100) == pytest.approx(math.sqrt(2) * hundred, rel=5e-3)


@pytest.mark.slow
def test_the_claimed_scale_costs_more_than_is_claimed_and_the_certified_one_does_not(script: ModuleType) -> None:
    claimed, valid = script.claimed_scale(1.5, 1.0, 1), script.valid_scale(1.5, 1.0, 1)
    low, high = script.bracket(GeneralizedGaussian(beta=1.5, scale=claimed), 1, 1.0)
    assert 1.6 < low < high < 1.02 * low
    low, high = script.bracket(GeneralizedGaussian(beta=1.5, scale=valid), 1, 1.0)
    assert 0.98 < low < high <= 1.0


@pytest.mark.parametrize(("beta", "scale"), [(1.0, 9.0), (2.0, 13.0), (4.0, 19.0)])
def test_utility_of_two_classes_is_the_area_under_exact_probabilities(
    script: ModuleType, beta: float, scale: float
) -> None:
    """Within six standard errors of 4 x 500 x 50 votes: a false alarm has probability below 1e-8."""
    noise = GeneralizedGaussian(beta=beta, scale=scale)
    leads = np.rint(np.linspace(0, 25, script.HISTOGRAMS)).astype(int)
    exact = {
        lead: win_probability(noise.structure, [(125 + lead // 2, 1, True), (125 - lead // 2, 1, False)], cells=4096)[0]
        for lead in sorted(set(leads.tolist()))
    }
    area = float(np.trapezoid([exact[lead] for lead in leads.tolist()], dx=1 / (script.HISTOGRAMS - 1)))
    values = [script.utility(2, noise, seed) for seed in range(4)]
    error = 0.5 / math.sqrt(4 * script.HISTOGRAMS * script.TRIALS)
    assert abs(np.mean(values) - area) < 6 * error + 3 / 4096
    assert len(set(values)) == 4
    assert script.utility(2, noise, 0) == values[0]


def test_intervals_cover_the_mean_as_often_as_they_say(script: ModuleType) -> None:
    """2,000 intervals at 95% of 5 normal values: within 4 standard errors, P(false alarm) < 1e-4."""
    rng = np.random.default_rng(2)
    hits = 0
    for _ in range(2000):
        interval = script.Interval.of(rng.normal(3.0, 0.5, 5).tolist())
        hits += abs(interval.mean - 3.0) <= interval.half_width
    assert abs(hits / 2000 - 0.95) < 4 * math.sqrt(0.95 * 0.05 / 2000)


@pytest.mark.slow
def test_the_script_prints_the_rows_of_the_page(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--setting", "1", "1", "--betas", "2"])
    script.main()
    header, _, row = capsys.readouterr().out.splitlines()
    page = (SCRIPT.parents[1] / "docs" / "pate.md").read_text().splitlines()
    assert header in page
    assert row in page


def test_one_seed_is_refused(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--seeds", "1"])
    with pytest.raises(SystemExit) as refused:
        script.main()
    assert refused.value.code == 2
    assert "Expected seeds=1 to be at least 2" in capsys.readouterr().err
