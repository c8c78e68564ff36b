"""Crafted canaries: their scores against plain recomputation, error rate and power over simulated one-run audits."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import softmax

from dpaudit.audit.attacks.arms import Arms
from dpaudit.audit.attacks.base import Audit
from dpaudit.audit.attacks.canary_game import CanaryGame
from dpaudit.audit.attacks.membership import one_run_findings, within_class
from dpaudit.audit.attacks.one_run_canaries import BLANK, along_gradients
from dpaudit.audit.attacks.shadow import log_odds
from dpaudit.audit.inputs.bundles import Bundle
from dpaudit.audit.inputs.datasets import Dataset
from dpaudit.audit.inputs.recipes import Recipe
from dpaudit.audit.runner import check_recipe
from dpaudit.audit.settings import Settings
from dpaudit.mechanisms import Gaussian
from dpaudit.mechanisms.defects import Defect
from dpaudit.mechanisms.learning.spec import Architecture, DPSGDSpec, Ledger, Pool, TrainedModels
from dpaudit.mechanisms.learning.training import train
from dpaudit.verify.bounds import JointTest, Tradeoff, auc, gaussian_epsilon, one_run_from_scores

CANARIES, RECORDS, AUDITS, STEPS, DELTA = 150, 30, 200, 4, 1e-5
SPEC = DPSGDSpec(
    architecture=Architecture("linear", CANARIES, 2),
    mechanism=Gaussian(4.0),
    steps=STEPS,
    sampling_prob=1.0,
    expected_batch_size=RECORDS,
    learning_rate=1.0,
    init="zeros",
)


def audits(spec: DPSGDSpec, *, score: str) -> tuple[np.ndarray, np.ndarray]:
    """Scores and coins of many one-run audits with blank canaries, both of shape (audits, canaries)."""
    rng = np.random.default_rng(5)
    records = Pool(rng.normal(size=(RECORDS, CANARIES)).astype(np.float32) / 12, rng.integers(0, 2, RECORDS))
    canaries = Pool(3.0 * np.eye(CANARIES, dtype=np.float32), rng.integers(0, 2, CANARIES))
    pool = Pool(np.vstack([records.x, canaries.x]), np.append(records.y, canaries.y))
    coins = rng.random((AUDITS, CANARIES)) < 0.5
    coins_and_references = np.vstack([coins, np.zeros((8, CANARIES), dtype=bool)])
    members = np.hstack([np.ones((AUDITS + 8, RECORDS), dtype=bool), coins_and_references])
    models = train(spec, pool, members, [int(seed) for seed in rng.integers(0, 2**60, len(members))])
    if score == "loss":
        values = log_odds(models, canaries.x, canaries.y)
    else:
        values = along_gradients(models, np.zeros(2 * CANARIES + 2), canaries.x, canaries.y, noise=16.0)
    values = values - values[AUDITS:].mean(axis=0)
    return np.array([within_class(row, canaries.y) for row in values[:AUDITS]]), coins


def test_movement_is_the_least_squares_share_of_the_gradients_of_softmax_regression() -> None:
    """Ridge regression of the movement on the canaries' directions, solved as least squares with one more row each."""
    rng = np.random.default_rng(1)
    first, final = rng.normal(size=(2, 3, 5)), rng.normal(size=(2, 3, 5))  # weights of 4 inputs, then the bias
    x, y = rng.normal(size=(6, 4)).astype(np.float32), rng.integers(0, 3, 6)
    tensors = {"weight": torch.tensor(final[..., :4]).float(), "bias": torch.tensor(final[..., 4]).float()}
    names = list(
        train(
            replace(SPEC, architecture=Architecture("linear", 4, 3)), Pool(x, y), np.ones((1, 6), bool), [1]
        ).parameters
    )
    models = TrainedModels(
        dict(zip(names, tensors.values(), strict=True)),
        Architecture("linear", 4, 3),
        Ledger(1, 1.0, (), 1.0, 1.0, 2.0, "cpu", "test"),
    )
    flat = np.append(first[0][:, :4].flatten(), first[0][:, 4])
    with_bias = np.append(x, np.ones((6, 1)), axis=1)
    directions = []
    for record, label in zip(with_bias, y, strict=True):
        gradient = np.outer(softmax(first[0] @ record) - np.eye(3)[label], record)
        gradient = np.append(gradient[:, :4].flatten(), gradient[:, 4])
        directions.append(-gradient / np.linalg.norm(gradient))
    moved = [np.append(w[:, :4].flatten(), w[:, 4]) - flat for w in final]
    system = np.vstack([np.array(directions).T, np.sqrt(0.3) * np.eye(6)])
    expected = [np.linalg.lstsq(system, np.append(movement, np.zeros(6)))[0] for movement in moved]
    np.testing.assert_allclose(along_gradients(models, flat, x, y, noise=0.3), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", ["steinke", "f-dp"])
def test_a_true_claim_is_refuted_in_at_most_one_audit_of_twenty(method: str) -> None:
    """Over 200 audits at the exact truth; more than 19 errors at 5% have probability 0.002."""
    scores, coins = audits(SPEC, score="loss")
    truth = gaussian_epsilon(np.sqrt(STEPS) / 4.0, DELTA)
    errors = [
        one_run_from_scores(s, b, delta=DELTA, confidence=0.95, method=method).epsilon_lower > truth  # type: ignore[arg-type]
        for s, b in zip(scores, coins, strict=True)
    ]
    assert sum(errors) <= 19


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("score", ["loss", "movement"])
def test_a_tenth_of_the_noise_is_found_with_and_without_momentum(score: str, momentum: float) -> None:
    """Bounds from one run pay for every dependence between canaries: half the noise is below what 150 can show."""
    scores, coins = audits(replace(SPEC, momentum=momentum, defect=Defect(noise_factor=0.1)), score=score)
    claimed = gaussian_epsilon(np.sqrt(STEPS) / 4.0, DELTA)
    found = [
        one_run_from_scores(s, b, delta=DELTA, confidence=0.95, method="f-dp").epsilon_lower > claimed
        for s, b in zip(scores[:40], coins[:40], strict=True)
    ]
    assert np.mean(found) >= 0.95
    assert auc(scores[0][coins[0]], scores[0][~coins[0]]) > 0.95


def test_its_control_finds_missing_noise_with_canaries_and_coins_of_the_audit() -> None:
    """Without noise every coin is read off the model; with half of it a bound from one run sees nothing so small."""
    rng = np.random.default_rng(7)
    x = rng.normal(size=(40, 120)).astype(np.float32) / 11
    dataset = Dataset("random", x, rng.integers(0, 2, 40), 2, "", x[:0], np.zeros(0, np.int64))
    recipe = Recipe.from_dict(
        {
            "algorithm": "dp-sgd", "steps": 30, "dataset": {"name": "digits"}, "architecture": {"name": "linear"},
            "mechanism": {"name": "gaussian", "noise_multiplier": 14.0}, "sampling": {"kind": "none"},
            "optimizer": {"learning_rate": 3.0, "init": "zeros"}, "claim": {"epsilon": 1.65, "delta": DELTA},
        }
    )  # fmt: skip
    spec = recipe.spec(dataset)
    recipe = recipe.with_dimension(spec.mechanism.dimension or 0)
    settings = Settings(seed=1, trials=50, device="cpu", workers=1)
    audit = Audit(Bundle("", "", {}, recipe), spec, dataset, check_recipe(recipe), settings)
    assert audit.claim_check.verdict == "certified"
    result = BLANK.run(audit, {"one-run-blank:epsilon_lower": 0.05})
    assert result is not None
    assert (result.epsilon_lower or 0.0) <= 1.65
    assert audit.trials.trained == 9 * 3
    [control] = audit.controls
    assert (control.attack, control.noise_factor) == ("one-run-blank", 0.5)
    assert control.no_noise_found
    assert control.power < 0.95
    assert not control.found


def small_audit(epsilon: float, noise: float, sampling: dict[str, object], **settings: object) -> Audit:
    """Of a softmax regression on 40 random records, 30 steps."""
    rng = np.random.default_rng(7)
    x = rng.normal(size=(40, 120)).astype(np.float32) / 11
    dataset = Dataset("random", x, rng.integers(0, 2, 40), 2, "", x[:0], np.zeros(0, np.int64))
    recipe = Recipe.from_dict(
        {
            "algorithm": "dp-sgd", "steps": 30, "dataset": {"name": "digits"}, "architecture": {"name": "linear"},
            "mechanism": {"name": "gaussian", "noise_multiplier": noise}, "sampling": sampling,
            "optimizer": {"learning_rate": 3.0, "init": "zeros"}, "claim": {"epsilon": epsilon, "delta": DELTA},
        }
    )  # fmt: skip
    spec = recipe.spec(dataset)
    recipe = recipe.with_dimension(spec.mechanism.dimension or 0)
    chosen = Settings(seed=1, device="cpu", workers=1, **settings)  # type: ignore[arg-type]
    return Audit(Bundle("", "", {}, recipe), spec, dataset, check_recipe(recipe), chosen)


def test_guesses_of_coins_are_held_against_the_curve_and_no_more_often_wrong_than_stated() -> None:
    """At normal scores of the claimed mu, or of twice that, as ideal canaries with half of the noise have."""
    steps, noise = 30, 12.0
    mu, rng = math.sqrt(steps) / noise, np.random.default_rng(3)
    audit = small_audit(gaussian_epsilon(mu, DELTA) + 1e-6, noise, {"kind": "none"})
    assert audit.claim_check.verdict == "certified"
    violated, bounded = {1.0: 0, 2.0: 0}, {1.0: 0, 2.0: 0}
    for factor in violated:
        for _ in range(60):
            coins = rng.random(1500) < 0.5
            scores = rng.normal(size=1500) + factor * mu * coins
            bound, test = one_run_findings(audit, scores, coins, 0.05)
            violated[factor] += test.violated
            bounded[factor] += bound.epsilon_lower > audit.claim_check.epsilon_claimed
            assert test.violated == (test.p_value is not None and test.p_value <= 0.05)
    assert violated[1.0] <= 8  # binomial(60, 0.05) exceeds it with probability 0.2%
    assert violated[2.0] >= 45
    assert bounded[2.0] <= violated[2.0]


def claiming(audit: Audit, epsilon: float) -> Audit:
    return replace(audit, claim_check=replace(audit.claim_check, epsilon_claimed=epsilon))


def test_guesses_that_reject_a_claim_prove_more_than_it() -> None:
    """Within the tolerance of the bound's inversion, too."""
    audit, rng = small_audit(1.65, 14.0, {"kind": "poisson", "prob": 0.5}), np.random.default_rng(3)
    coins = rng.random(200) < 0.5
    scores = rng.normal(size=200) + 2.5 * coins
    found = one_run_findings(audit, scores, coins, 0.05)[0]
    assert found.method == "one-run-steinke"
    for above, proved in ((1e-8, True), (1e-7, True), (1e-3, False)):
        claimed = found.epsilon_lower + above
        bound = one_run_findings(claiming(audit, claimed), scores, coins, 0.05)[0]
        assert (bound.epsilon_lower > claimed) == proved


def test_a_canary_game_that_rejects_a_claim_proves_more_than_it() -> None:
    """By the tests that its control is counted by."""
    audit, rng = small_audit(1.65, 14.0, {"kind": "none"}), np.random.default_rng(7)
    game = CanaryGame("game", (audit.spec.algorithm,), lambda *_: (), "game", "models", "")
    without, with_canary = rng.normal(size=30), rng.normal(2.5, 1.0, 30)
    shares, arms = (
        {"game:joint": 0.05},
        Arms(Pool(audit.dataset.x, audit.dataset.y), *np.eye(2, 40, dtype=bool), audit.dataset.x[0], 0, {}),
    )
    found = game.judge(audit, shares, arms, without, with_canary).epsilon_lower or 0.0
    for above in (1e-8, 1e-7, 1e-5, 1.0):
        claimed = claiming(audit, found + above)
        result = game.judge(claimed, shares, arms, without, with_canary)
        rejected = game.refuter(claimed, shares)(without, with_canary)
        assert rejected == ((result.epsilon_lower or 0.0) > found + above or result.curve_violation is not None)
        if above < 1.0:
            point = Tradeoff.of_points([found + above], [DELTA])
            test = JointTest(with_canary, without, claimed.tradeoff, 0.95, claimed.settings.seed)
            assert ((result.epsilon_lower or 0.0) > found + above) == test.rejects(point)


def test_growing_numbers_of_canaries_are_looks_at_the_same_training() -> None:
    levels = []
    audit = small_audit(1.65, 14.0, {"kind": "none"}, control=False, trials=20)
    for trials in (20, 30, 20):
        again = replace(audit, settings=replace(audit.settings, trials=trials))
        result = BLANK.run(again, {"one-run-blank:epsilon_lower": 0.05})
        assert result is not None
        assert result.bound is not None
        levels.append((result.details["look"], 1.0 - result.bound.confidence, result.confidence_spent))
    first = 0.05 * 6.0 / math.pi**2
    assert [level[0] for level in levels] == [1, 2, 1]
    np.testing.assert_allclose([level[1] for level in levels], [first, first / 4.0, first])
    assert {level[2] for level in levels} == {0.05}


def test_coins_that_all_fell_alike_tell_nobody_apart() -> None:
    audit = small_audit(1.65, 14.0, {"kind": "none"}, control=False)
    data = replace(audit.dataset, x=audit.dataset.x[:, :2])
    few = replace(audit, dataset=data, spec=replace(audit.spec, architecture=Architecture("linear", 2, 2)))
    few = replace(few, settings=replace(few.settings, seed=4))  # both of the two canaries are in
    assert BLANK.run(few, {"one-run-blank:epsilon_lower": 0.05}) is None
    assert "too few" in few.notes[-1]


def test_a_violation_of_the_curve_is_told_where_it_is_seen() -> None:
    """Whoever tells those left out alone has a point above the curve at the lowest scores, and none at the highest."""
    steps, noise, rng = 30, 12.0, np.random.default_rng(3)
    audit = small_audit(gaussian_epsilon(math.sqrt(steps) / noise, DELTA) + 1e-6, noise, {"kind": "none"})
    coins = rng.random(1500) < 0.5
    scores = rng.normal(size=1500) - 10.0 * (~coins & (rng.random(1500) < 0.6))
    _, test = one_run_findings(audit, scores, coins, 0.05)
    assert test.violated
    assert test.tpr > test.tpr_allowed
    above = scores >= test.threshold
    assert (test.fpr, test.tpr) == (above[~coins].mean(), above[coins].mean())
