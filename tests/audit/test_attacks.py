"""The attacks' scores and data sets against plain recomputations."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from dpaudit.audit.attacks.canary_game import Arms
from dpaudit.audit.attacks.clipbkd import canary_length, least_direction, make_arms, margin
from dpaudit.audit.attacks.lira import OWN_SPREAD, offline_scores, online_scores
from dpaudit.audit.attacks.membership import class_rates, negative_loss, within_class
from dpaudit.audit.attacks.reference import percentiles
from dpaudit.audit.attacks.rmia import gains, rmia_scores
from dpaudit.audit.attacks.shadow import random_halves
from dpaudit.mechanisms import Gaussian
from dpaudit.mechanisms.learning.spec import Architecture, DPSGDSpec
from dpaudit.verify.bounds import auc


def spec(steps: int = 1, learning_rate: float = 1.0) -> DPSGDSpec:
    return DPSGDSpec(
        architecture=Architecture("linear", 64, 2),
        mechanism=Gaussian(1.0, dimension=130),
        steps=steps,
        sampling_prob=1.0,
        expected_batch_size=360.0,
        learning_rate=learning_rate,
        init="zeros",
    )


def digits() -> tuple[np.ndarray, np.ndarray]:
    x, y = load_digits(return_X_y=True)
    keep = y < 2
    return (x[keep] / 16).astype(np.float32), y[keep].astype(np.int64)


def differing_records(arms: Arms) -> int:
    return int((arms.without != arms.with_canary).sum())


def test_add_remove_arms_differ_by_one_added_record() -> None:
    arms = make_arms(*digits(), spec(), adjacency="add-remove")
    assert differing_records(arms) == 1
    assert arms.with_canary.sum() == arms.without.sum() + 1


def test_replace_one_arms_have_equal_size_and_differ_in_one_record_each() -> None:
    x, y = digits()
    arms = make_arms(x, y, spec(), adjacency="replace-one")
    assert arms.with_canary.sum() == arms.without.sum() == len(x)
    assert (arms.with_canary & ~arms.without).sum() == (arms.without & ~arms.with_canary).sum() == 1


def test_the_canary_is_orthogonal_to_every_record_and_its_gradient_is_clipped() -> None:
    x, y = digits()
    arms = make_arms(x, y, spec(), adjacency="add-remove")
    assert np.abs(x @ arms.canary).max() == 0.0
    gradient = np.sqrt(0.5) * np.hypot(np.linalg.norm(arms.canary), 1.0)  # zero weights: p = 1/2
    assert gradient > spec().mechanism.clip


def test_least_direction_without_a_silent_feature_is_the_smallest_singular_vector() -> None:
    rng = np.random.default_rng(5)
    x = (rng.normal(size=(200, 6)) @ np.diag([5, 4, 3, 2, 1, 0.1]) @ np.linalg.qr(rng.normal(size=(6, 6)))[0]).astype(
        np.float32
    )
    smallest = np.linalg.svd(x.astype(float))[2][-1]
    assert abs(least_direction(x) @ smallest) == pytest.approx(1.0, abs=1e-6)


def test_a_canary_that_is_learned_fast_is_made_shorter() -> None:
    assert canary_length(spec(steps=1)) > canary_length(spec(steps=200, learning_rate=20.0))


def test_margin_is_the_log_odds() -> None:
    logits = np.array([[1.0, -2.0, 0.5], [0.0, 3.0, -1.0]], dtype=np.float32)
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(margin(logits, 1), np.log(p[:, 1] / (1 - p[:, 1])), rtol=1e-6)


def test_margin_does_not_saturate_where_probabilities_do() -> None:
    assert margin(np.array([[200.0, 0.0]], dtype=np.float32), 0)[0] == pytest.approx(200.0)


def test_negative_loss_is_log_likelihood() -> None:
    logits = np.array([[1.0, 2.0], [-4.0, 0.0]], dtype=np.float32)
    p = np.exp(logits.astype(float)) / np.exp(logits.astype(float)).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(negative_loss(logits, np.array([0, 1])), np.log(p[[0, 1], [0, 1]]), rtol=1e-6)


def test_offline_lira_is_a_standardised_distance_from_the_models_without_the_record() -> None:
    rng = np.random.default_rng(2)
    target, shadows, outside = rng.normal(size=7), rng.normal(size=(40, 7)), rng.random((40, 7)) < 0.5
    plain = [
        (target[i] - np.mean(shadows[outside[:, i], i])) / np.std(shadows[outside[:, i], i], ddof=1) for i in range(7)
    ]
    np.testing.assert_allclose(offline_scores(target, shadows, outside), plain, rtol=1e-12)


@pytest.mark.parametrize("models", [20, 4 * OWN_SPREAD])
def test_online_lira_is_the_log_ratio_of_two_fitted_normal_densities(models: int) -> None:
    rng = np.random.default_rng(3)
    target, shadows = rng.normal(size=5), rng.normal(size=(models, 5)) * np.arange(1.0, 6.0)
    inside = random_halves(models, 5, seed=2)
    sides = [[shadows[side[:, i], i] for i in range(5)] for side in (inside, ~inside)]
    ratio = np.zeros(5)
    for sign, side in zip((1.0, -1.0), sides, strict=True):
        variance = np.array([np.var(phi, ddof=1) for phi in side])
        variance = variance if models > 100 else np.full(5, variance.mean())
        mean = np.array([phi.mean() for phi in side])
        ratio += sign * (-np.log(variance) / 2 - (target - mean) ** 2 / (2 * variance))
    np.testing.assert_allclose(online_scores(target, shadows, inside), ratio, rtol=1e-9)


def test_rmia_counts_the_population_that_a_record_beats() -> None:
    rng = np.random.default_rng(4)
    target, shadows, outside = rng.normal(size=6), rng.normal(size=(30, 6)), random_halves(30, 6, seed=1)
    everyone = rng.normal(size=9), rng.normal(size=(30, 9))
    scores = rmia_scores(gains(target, shadows, outside), gains(*everyone, np.ones((30, 9), dtype=bool)))

    def gain(phi: float, without: np.ndarray) -> float:
        p = 1 / (1 + np.exp(-without))
        return float((1 / (1 + np.exp(-phi))) / (0.5 * (1.3 * p.mean() + 0.7)))

    for i in range(6):
        x = gain(target[i], shadows[outside[:, i], i])
        beaten = sum(x / gain(everyone[0][j], everyone[1][:, j]) >= 1 for j in range(9))
        assert scores[i] == pytest.approx(beaten / 9)


def test_the_reference_attack_counts_models_without_the_record_that_lose_more_on_it() -> None:
    rng = np.random.default_rng(5)
    target, shadows, outside = rng.normal(size=6), rng.normal(size=(40, 6)), random_halves(40, 6, seed=1)
    loss = [np.logaddexp(0.0, -phi) for phi in (target, shadows)]
    plain = [np.mean(loss[1][outside[:, i], i] > loss[0][i]) for i in range(6)]
    np.testing.assert_allclose(percentiles(target, shadows, outside), plain, rtol=1e-12)
    ranks = percentiles(rng.normal(size=4000), rng.normal(size=(20, 4000)), np.ones((20, 4000), dtype=bool))
    assert np.histogram(ranks, np.arange(22) / 20 - 0.025)[0] == pytest.approx(4000 / 21, rel=0.3)  # a p-value's law


def test_thresholds_within_classes_find_members_that_one_threshold_for_all_mixes_up() -> None:
    rng = np.random.default_rng(6)
    labels, members = np.repeat([0, 1], 200), np.tile([True, False], 200)
    scores = 50.0 * labels + members + 0.3 * rng.normal(size=400)
    rates = class_rates(scores, labels, members)
    assert rates["0"]["auc"] > 0.98
    assert rates["1"]["members"] == 100
    assert auc(scores[members], scores[~members]) < 0.8
    centred = within_class(scores, labels)
    assert auc(centred[members], centred[~members]) > 0.98


def test_more_shadow_models_begin_with_the_halves_of_fewer_and_leave_everyone_out_half_the_time() -> None:
    few, many = random_halves(10, 50, seed=4), random_halves(65, 50, seed=4)
    np.testing.assert_array_equal(many[:10], few)
    assert set((~many[:64]).sum(axis=0)) == {32}
    assert 0.4 < many[::2].mean() < 0.6
