"""The attacks' scores and data sets against plain recomputations."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from dpaudit.audit.attacks.canary_game import Arms
from dpaudit.audit.attacks.clipbkd import canary_length, least_direction, make_arms, margin
from dpaudit.audit.attacks.lira import offline_scores, random_halves
from dpaudit.audit.attacks.membership import negative_loss
from dpaudit.mechanisms import Gaussian
from dpaudit.mechanisms.learning.spec import Architecture, DPSGDSpec


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


def test_more_shadow_models_begin_with_the_halves_of_fewer_and_leave_everyone_out_half_the_time() -> None:
    few, many = random_halves(10, 50, seed=4), random_halves(65, 50, seed=4)
    np.testing.assert_array_equal(many[:10], few)
    assert set((~many[:64]).sum(axis=0)) == {32}
    assert 0.4 < many[::2].mean() < 0.6
