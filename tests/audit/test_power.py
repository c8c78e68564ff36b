"""The plan and the power estimate against tests whose power is known in closed form."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import norm

from dpaudit.audit.attacks.pilot import PAIRS, run_pilot, separation
from dpaudit.audit.power import DRAWS, MODELS, REPEATS, models_needed, resampled

LIMIT = 0.4  # of a test that refutes where the means differ by more


def refutes(without: np.ndarray, with_canary: np.ndarray) -> bool:
    return bool(with_canary.mean() - without.mean() > LIMIT)


def true_power(apart: float, models: int) -> float:
    return float(norm.cdf((apart - LIMIT) * np.sqrt(models / 2.0)))


@pytest.mark.parametrize("apart", [0.6, 0.8, 1.2])
def test_a_plan_has_the_models_that_the_test_needs(apart: float) -> None:
    """All of 50 draws refute: with probability below 1% at a power below 0.91, above 95% at one above 0.999."""
    models, found = models_needed(refutes, apart, rng=np.random.default_rng(3))
    assert found == DRAWS
    assert true_power(apart, models) > 0.91
    fewer = [other for other in MODELS if other < models]
    assert all(true_power(apart, other) < 0.999 for other in fewer)


def test_a_plan_that_cannot_succeed_says_so() -> None:
    models, found = models_needed(refutes, 0.3, rng=np.random.default_rng(3))
    assert models == MODELS[-1]
    assert found <= 5
    assert models_needed(refutes, np.inf, (60,), rng=np.random.default_rng(3)) == (60, DRAWS)


def test_samples_of_the_scores_refute_as_often_as_new_models_would() -> None:
    """Averaged over controls of 400 models, within four standard errors of the predictive power."""
    rng, apart, models = np.random.default_rng(4), 0.5, 400
    shares = [
        resampled(refutes, rng.normal(size=models), rng.normal(size=models) + apart, (models, models), rng=rng)
        / REPEATS
        for _ in range(200)
    ]
    predictive = norm.cdf((apart - LIMIT) * np.sqrt(models / 4.0))  # the control's own mean varies as well
    assert np.mean(shares) == pytest.approx(predictive, abs=4 * np.std(shares) / np.sqrt(200))


def test_separation_is_found_per_score_and_nothing_is_none() -> None:
    rng = np.random.default_rng(5)
    noise = rng.normal(size=(2, 20_000, 2))
    apart = separation(noise[0], noise[1] * 2.0 + [3.0, 0.0])
    np.testing.assert_allclose(apart, [3.0 / np.sqrt(2.5), 0.0], atol=0.05)
    constant = np.ones((10, 1))
    assert separation(constant, constant).tolist() == [0.0]
    assert separation(constant, 2 * constant).tolist() == [np.inf]


def test_scores_without_a_distance_ask_for_the_most_models() -> None:
    """Means of infinite scores are infinite in both arms, and their difference is no number."""
    found = models_needed(lambda a, b: bool(b.mean() > a.mean() + 1), np.nan, (10, 20), rng=np.random.default_rng(1))
    assert found == (20, 0)


class _Told:
    """Trials whose scores are known beforehand."""

    def __init__(self, distance: float) -> None:
        self._distance = distance

    def run(self, setup: object, *lists: object, what: str) -> tuple[np.ndarray, np.ndarray]:
        spread = np.linspace(-1.5, 1.5, PAIRS)[:, None]
        return spread, spread + self._distance


@pytest.mark.parametrize(("distance", "turned"), [(-9.0, True), (-1.0, False), (9.0, False)])
def test_a_score_that_clearly_falls_with_the_canary_is_turned_round(distance: float, turned: bool) -> None:
    """As of a loop that ignores its seeds: the same noise in all models of an arm moves their score either way."""
    arms = SimpleNamespace(trials=lambda *_: [[], []], pool=None)
    candidate = SimpleNamespace(spec=None, arms=arms, scores={"a": np.negative}, all_scores=None, watch=None)
    audit = SimpleNamespace(trials=_Told(distance), settings=SimpleNamespace(seed=1))
    chosen = run_pilot(audit, [candidate], [(1.0, lambda *_: None)])  # type: ignore[arg-type, list-item, return-value]
    assert chosen is not None
    assert (chosen.separation > 3.0, chosen.score_name) == (abs(distance) == 9.0, "a, turned round" if turned else "a")
    assert chosen.score(np.ones(1)).tolist() == [1.0 if turned else -1.0]  # type: ignore[arg-type]


def test_a_loop_whose_pairs_share_no_noise_does_not_choose_by_luck() -> None:
    """What its few models show beyond two standard errors counts, and shared noise leaves next to none."""
    rng, chosen = np.random.default_rng(5), []

    class Trials:
        def run(self, setup: tuple[str, float], *lists: object, what: str) -> tuple[np.ndarray, np.ndarray]:
            way, apart = setup
            noise = rng.normal(size=(2, PAIRS, 1))
            return noise[0], (noise[0] if way == "shared" else noise[1]) + apart

    arms = SimpleNamespace(trials=lambda *_: [[], []], pool=None)
    audit = SimpleNamespace(trials=Trials(), settings=SimpleNamespace(seed=1))
    candidates = [
        SimpleNamespace(spec=apart, arms=arms, scores={"a": np.negative}, all_scores=None, watch=None)
        for apart in (0.9, 0.3, 0.3, 0.3)
    ]
    for way in ("shared", "unshared"):
        ways = [(1.0, lambda spec, *_: ("shared", spec)), (2.0, lambda spec, *_, way=way: (way, spec / 2))]
        found = [run_pilot(audit, candidates, ways) for _ in range(100)]  # type: ignore[arg-type]
        chosen.append(sum(pilot is not None and pilot.spec == 0.9 for pilot in found))  # type: ignore[comparison-overlap]
    assert chosen[0] == 100
    assert chosen[1] >= 90
