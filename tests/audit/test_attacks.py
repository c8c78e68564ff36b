"""The attacks' scores and data sets against plain recomputations."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from dpaudit.audit.attacks.arms import Arms, Candidate
from dpaudit.audit.attacks.base import Audit
from dpaudit.audit.attacks.canary_game import ideal_separation, learns_little
from dpaudit.audit.attacks.clipbkd import CLIPBKD, arms_in_order, least_direction, make_arms, margin, spread_direction
from dpaudit.audit.attacks.lira import OWN_SPREAD, offline_scores, online_scores
from dpaudit.audit.attacks.membership import class_rates, negative_loss, within_class
from dpaudit.audit.attacks.reference import percentiles
from dpaudit.audit.attacks.rmia import gains, rmia_scores
from dpaudit.audit.attacks.shadow import random_halves
from dpaudit.audit.attacks.starts import with_first_weights
from dpaudit.audit.inputs.bundles import Bundle
from dpaudit.audit.inputs.recipes import Recipe, load_recipe
from dpaudit.audit.runner import plan_audit
from dpaudit.audit.settings import Settings
from dpaudit.audit.trials.engine import TrialRunner
from dpaudit.mechanisms.defects import Defect
from dpaudit.mechanisms.learning.spec import DPSGDSpec
from dpaudit.mechanisms.learning.training import logits, train
from dpaudit.verify.bounds import auc
from dpaudit.verify.checking import check

ROOT = Path(__file__).parents[2]
DIGITS = {"name": "digits"}


def recipe(**changes: Any) -> Recipe:
    return Recipe.from_dict({**load_recipe(ROOT / "examples" / "digits-headline.toml").to_dict(), **changes})


def audit_of(recipe: Recipe, seed: int = 1, **settings: Any) -> Audit:
    dataset = recipe.load_dataset()
    return Audit(
        Bundle("", "", {}, recipe),
        recipe.spec(dataset),
        dataset,
        check(recipe.claim_object()),
        Settings(seed=seed, device="cpu", workers=1, **settings),
    )


def candidates(audit: Audit) -> list[Candidate]:
    assert isinstance(audit.spec, DPSGDSpec)
    return list(CLIPBKD.build(replace(audit.spec, init_seed=audit.settings.seed), audit))


def digits() -> tuple[np.ndarray, np.ndarray]:
    x, y = load_digits(return_X_y=True)
    keep = y < 2
    return (x[keep] / 16).astype(np.float32), y[keep].astype(np.int64)


CANARY = np.eye(64, dtype=np.float32)[0] * 3.0  # the first pixel is empty in every digit


def differing_records(arms: Arms) -> int:
    return int((arms.without != arms.with_canary).sum())


def test_add_remove_arms_differ_by_one_added_record() -> None:
    arms = make_arms(*digits(), CANARY, 1, 0, adjacency="add-remove")
    assert differing_records(arms) == 1
    assert arms.with_canary.sum() == arms.without.sum() + 1


def test_replace_one_arms_have_equal_size_and_differ_in_one_record_each() -> None:
    x, y = digits()
    arms = make_arms(x, y, CANARY, 1, 0, adjacency="replace-one")
    assert arms.with_canary.sum() == arms.without.sum() == len(x)
    assert (arms.with_canary & ~arms.without).sum() == (arms.without & ~arms.with_canary).sum() == 1


@pytest.mark.parametrize("records", [96, 97, 103])
@pytest.mark.parametrize("adjacency", ["add-remove", "zero-out", "replace-one"])
def test_a_canary_among_batches_of_a_fixed_order_is_in_the_first_and_moves_nobody(adjacency: Any, records: int) -> None:
    """A loop may count the places of the pool, as the built-in one does, or those of the records that it trains."""
    x, y = (values[:records] for values in digits())
    arms = arms_in_order(x, y, CANARY, 1, 0, adjacency=adjacency, batches=8)
    [place] = np.flatnonzero(arms.with_canary & ~arms.without)
    others = np.flatnonzero(arms.with_canary & arms.without)
    trained = slice(None) if adjacency == "add-remove" else slice(1, None)
    for pool, given in ((arms.pool.x, x[trained]), (arms.pool.y, y[trained])):
        np.testing.assert_array_equal(pool[others], np.concatenate([given, given[: -len(given) % 8]]))
    np.testing.assert_array_equal(others, np.arange(len(others)))
    replacing = np.flatnonzero(arms.without & ~arms.with_canary)
    assert len(replacing) == (adjacency == "replace-one")
    for where, label in [(place, 1), *((int(other), 0) for other in replacing)]:
        np.testing.assert_array_equal(arms.pool.x[where], CANARY)
        assert (where % 8, arms.pool.y[where]) == (0, label)
    # of those that train it is the first of a round as well
    assert place == len(others)
    assert len(others) % 8 == 0


def test_a_class_that_is_not_clipped_has_a_canary() -> None:
    """The least likely label was another in most networks, and such a canary sees nothing of it."""
    fnn = recipe(architecture={"name": "fnn"}, optimizer={"learning_rate": 0.5, "init": "glorot"}, dataset=DIGITS)
    made = Recipe.from_dict({**fnn.to_dict(), "planted_defect": "one-class-unclipped"})
    labels = [[candidate.arms.label for candidate in candidates(audit_of(made, seed))] for seed in range(4)]
    assert all(1 in tried for tried in labels)
    assert any(1 not in tried[:-1] for tried in labels)


@pytest.mark.parametrize("seed", range(6))
def test_a_canary_is_unlikely_under_the_known_weights_before_and_after_training(seed: int) -> None:
    """A label chosen from the data alone is learned already in a third of random networks, and has no gradient."""
    fnn = recipe(architecture={"name": "fnn"}, optimizer={"learning_rate": 0.5, "init": "glorot"}, dataset=DIGITS)
    for candidate in candidates(audit_of(fnn, seed)):
        start, arms = candidate.spec, candidate.arms
        spread = arms.description["direction"] == "all features of one size"
        assert spread != (not np.abs(arms.pool.x[:-1] @ arms.canary).max())
        quiet = replace(start, defect=Defect(noise_factor=0.0))  # type: ignore[type-var]
        for members in (np.zeros_like(arms.without), arms.without):
            outputs = logits(train(quiet, arms.pool, members[None], [0]), arms.canary[None])[0, 0].numpy()
            p = np.exp(outputs.astype(float)) / np.exp(outputs.astype(float)).sum()
            assert p[arms.label] < 1 / 10


def test_fitted_weights_leave_the_records_small_gradients_and_own_loops_get_none() -> None:
    audit = audit_of(recipe(dataset=DIGITS))
    assert isinstance(audit.spec, DPSGDSpec)
    own = replace(audit.spec, init_seed=1)
    fitted = with_first_weights(audit, own)
    assert fitted.first_weights is not None
    outputs = audit.dataset.x @ fitted.first_weights["weight"].T + fitted.first_weights["bias"]
    assert (outputs.argmax(axis=1) == audit.dataset.y).mean() > 0.9
    loop = replace(audit, settings=replace(audit.settings, trainer=lambda *arguments, **options: None))  # type: ignore[arg-type, return-value]
    assert with_first_weights(loop, own) == own


def test_no_loop_is_told_to_show_little_that_shows_all_that_the_claim_allows() -> None:
    """A pilot whose noise was the same in all models lay 1e14 deviations apart, and refuted loops "learned little"."""
    audit = audit_of(recipe())
    loop = replace(audit, settings=replace(audit.settings, trainer=lambda *arguments, **options: None))  # type: ignore[arg-type, return-value]
    scores, refutes = np.random.default_rng(1).normal(size=200), CLIPBKD.refuter(loop, plan_audit(loop).shares)
    assert learns_little(loop, 1e14, refutes, scores, scores + ideal_separation(loop)) is None
    told = learns_little(loop, 1e14, refutes, scores, scores + ideal_separation(loop) / 5)
    assert told is not None
    assert f"expect about {ideal_separation(loop):.2g}, and" in told
    assert learns_little(loop, 1e14, lambda *_: False, scores, scores) is None  # too few models for any loop
    # what is expected is half of what is given, and a loop that shows so much is like the others
    assert learns_little(loop, 1.0, refutes, scores, scores + 0.5) is None
    # where half of the noise is found by a hair, what shows nothing is told apart and what shows a little less is not
    hair = 0.4
    assert learns_little(loop, hair, refutes, scores, scores) is None
    assert learns_little(loop, hair, refutes, scores, scores, control_found=True) is not None


def test_first_weights_that_fit_no_better_are_not_taken() -> None:
    audit = audit_of(recipe(dataset=DIGITS, optimizer={"learning_rate": 1e-9, "init": "zeros"}))
    assert isinstance(audit.spec, DPSGDSpec)
    assert with_first_weights(audit, replace(audit.spec, init_seed=1)).first_weights is None  # glorot, hardly moved


def test_the_weights_of_one_step_reveal_its_noisy_sum() -> None:
    """The likelihood ratio of two normal laws mu apart: normal, means mu^2 apart, standard deviation mu."""
    audit = audit_of(recipe())
    candidate = next(c for c in candidates(audit) if c.arms.description["canary_length"] == 64.0)
    lists = candidate.arms.trials(3000, 1)
    setup = audit.trial_setup(candidate.spec, candidate.arms.pool, candidate.scores["likelihood ratio, from weights"])
    without, with_canary = TrialRunner().run(setup, *lists)
    assert with_canary.mean() - without.mean() == pytest.approx(0.36, abs=4 * 0.6 * np.sqrt(2 / 3000))
    assert without.std() == pytest.approx(0.6, rel=4 / np.sqrt(2 * 3000))


def test_least_direction_without_a_silent_feature_is_the_smallest_singular_vector() -> None:
    rng = np.random.default_rng(5)
    x = (rng.normal(size=(200, 6)) @ np.diag([5, 4, 3, 2, 1, 0.1]) @ np.linalg.qr(rng.normal(size=(6, 6)))[0]).astype(
        np.float32
    )
    smallest = np.linalg.svd(x.astype(float))[2][-1]
    assert abs(least_direction(x) @ smallest) == pytest.approx(1.0, abs=1e-6)


def test_spread_direction_has_equal_sizes_and_nearly_the_least_second_moment_of_all_signs() -> None:
    rng = np.random.default_rng(5)
    x = (rng.normal(size=(200, 10)) @ rng.normal(size=(10, 10))).astype(np.float32)
    spread = spread_direction(x, least_direction(x))
    assert np.abs(spread) == pytest.approx(np.full(10, 10**-0.5), rel=1e-12)
    every = np.array(list(itertools.product([-1.0, 1.0], repeat=10))) / 10**0.5
    moments = np.square(x @ every.T).sum(axis=0)
    assert np.square(x @ spread).sum() < np.quantile(moments, 0.1)
    turned = spread * np.where(np.eye(10, dtype=bool), -1.0, 1.0)
    assert (np.square(x @ turned.T).sum(axis=0) >= np.square(x @ spread).sum() * (1 - 1e-6)).all()


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
