"""Gradient canaries: what the loop adds and shows, the error rate and the power of the white-box audit.

Error rates are those of whole one-run audits by the built-in training, counted over independent models; the truth is
the mechanism's exact curve. A test at level 5% errs more than 22 times in 200 with probability 2e-4; seeds are fixed.
"""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dpaudit.audit import Settings
from dpaudit.audit.attacks.base import Audit
from dpaudit.audit.attacks.white_box import WHITE_BOX, log_likelihood_ratios
from dpaudit.audit.inputs.bundles import Bundle
from dpaudit.audit.inputs.datasets import Dataset
from dpaudit.audit.inputs.files import InputError
from dpaudit.audit.inputs.recipes import Recipe
from dpaudit.audit.runner import check_recipe
from dpaudit.mechanisms import Gaussian, Laplace
from dpaudit.mechanisms.defects import CORRECT, DEFECTS, Defect
from dpaudit.mechanisms.learning.architectures import parameter_count
from dpaudit.mechanisms.learning.spec import Architecture, DPSGDSpec, Ledger, Pool
from dpaudit.mechanisms.learning.training import train
from dpaudit.verify.bounds import JointTest, Tradeoff, gaussian_delta, gaussian_epsilon, one_run_from_scores
from dpaudit.verify.checking import check
from dpaudit.verify.claims import Claim

RECORDS, AUDITS, DELTA = 6, 200, 1e-5


def make_spec(canaries: int, *, noise: float, steps: int = 1, q: float = 1.0, defect: Defect = CORRECT) -> DPSGDSpec:
    return DPSGDSpec(
        architecture=Architecture("fnn", 20, 5, {"hidden": -(-canaries // 25)}),
        mechanism=Gaussian(noise, clip=0.5),
        steps=steps,
        sampling_prob=q,
        expected_batch_size=RECORDS * q,
        gradient_canaries=canaries,
        momentum=0.9,
        defect=defect,
    )


def observe(spec: DPSGDSpec, models: int, *, seed: int, controls: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Scores and coins of many one-run audits, both of shape (models, canaries); the last ones never enter."""
    rng = np.random.default_rng(seed)
    canaries = spec.gradient_canaries
    x = np.append(rng.normal(size=(RECORDS, 20)), np.zeros((canaries, 20)), axis=0).astype(np.float32)
    pool = Pool(x, np.append(rng.integers(0, 5, RECORDS), np.zeros(canaries, dtype=np.int64)))
    coins = (rng.random((models, canaries)) < 0.5) & (np.arange(canaries) < canaries - controls)
    members = np.append(np.ones((models, RECORDS), dtype=bool), coins, axis=1)
    seeds = [int(number) for number in rng.integers(0, 2**60, models)]
    return log_likelihood_ratios(train(spec, pool, members, seeds), spec), coins


def test_a_canary_in_the_batch_moves_its_own_weight_by_the_clip_and_nothing_else() -> None:
    spec = replace(make_spec(40, noise=1.0), momentum=0.0, architecture=Architecture("fnn", 20, 5, {"hidden": 4}))
    rng = np.random.default_rng(1)
    pool = Pool(rng.normal(size=(RECORDS + 40, 20)).astype(np.float32), rng.integers(0, 5, RECORDS + 40))
    members = np.ones((2, RECORDS + 40), dtype=bool)
    coins = rng.random(40) < 0.5
    members[:, RECORDS:] = [coins, np.zeros(40, dtype=bool)]
    models = train(spec, pool, members, [7, 7])
    moved = torch.cat([p.flatten(1) for p in models.parameters.values()], dim=1)
    moved = ((moved[1] - moved[0]) * RECORDS / spec.learning_rate).numpy().round(4)
    assert np.count_nonzero(moved) == coins.sum()
    np.testing.assert_allclose(moved[moved != 0], 0.5, atol=1e-3)
    assert models.observed is not None
    seen = models.observed.numpy()[:, 0]
    np.testing.assert_allclose(seen[0] - seen[1], 0.5 * coins, atol=1e-5)
    # what is seen beside the canary is the very noise that moved the weights
    alone = train(
        replace(spec, gradient_canaries=0), Pool(pool.x[:RECORDS], pool.y[:RECORDS]), members[1:, :RECORDS], [7]
    )
    for name, tensor in alone.parameters.items():
        assert torch.equal(tensor[0], models.parameters[name][1])


def test_a_canary_is_in_a_poisson_batch_as_often_as_a_record() -> None:
    silent = make_spec(50, noise=1.0, steps=400, q=0.2, defect=Defect(noise_factor=0.0))
    rng = np.random.default_rng(2)
    pool = Pool(rng.normal(size=(RECORDS + 50, 20)).astype(np.float32), rng.integers(0, 5, RECORDS + 50))
    members = np.ones((1, RECORDS + 50), dtype=bool)
    members[0, -25:] = False
    seen = train(silent, pool, members, [3]).observed
    assert seen is not None
    share = (seen[0] > 0.25).double().mean(dim=0).numpy()
    assert share[:25].mean() == pytest.approx(0.2, abs=4 * 0.4 / np.sqrt(25 * 400))
    assert share[25:].max() == 0.0


def gaussian_curve(mu: float) -> Tradeoff:
    return Tradeoff.of(lambda epsilons: np.array([gaussian_delta(mu, float(epsilon)) for epsilon in epsilons]))


def refuted(scores: np.ndarray, coins: np.ndarray, curve: Tradeoff) -> int:
    """In how many audits the scores contradict a curve, at 95%."""
    tests = [
        JointTest(s[b], s[~b], curve, confidence=0.95, seed=audit)
        for audit, (s, b) in enumerate(zip(scores, coins, strict=True))
    ]
    return sum(test.rejects(curve) for test in tests)


LAPLACE = Laplace(scale=0.5, clip=0.5, clip_norm=1.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mechanism", "steps", "q", "fewest"),
    [
        (Gaussian(1 / 1.5, clip=0.5), 1, 1.0, 1),
        (Gaussian(0.7, clip=0.5), 2, 0.6, 1),
        (LAPLACE, 2, 0.6, 0),  # its certified curve is above the truth
    ],
)
def test_an_exactly_true_claim_is_refuted_in_at_most_one_audit_of_twenty(
    mechanism: Gaussian, steps: int, q: float, fewest: int
) -> None:
    """The certified curve of Gaussian noise is the truth, within 1e-5: 1 to 22 false alarms in 200 audits."""
    spec = replace(make_spec(100, noise=1.0, steps=steps, q=q), mechanism=mechanism)
    verdict = check(Claim.single(mechanism, epsilon=9.0, delta=DELTA, steps=steps, sampling_prob=q))
    scores, coins = observe(spec, AUDITS, seed=10 + steps, controls=30)
    assert fewest <= refuted(scores, coins, Tradeoff.of(lambda epsilons: verdict.delta(epsilons)[1])) <= 22


@pytest.mark.parametrize("mechanism", [Gaussian(0.7, clip=0.5), LAPLACE])
def test_the_score_attains_what_the_claim_is_certified_to_cost(mechanism: Gaussian) -> None:
    """Guessing by the sign of the score is as good as the certified lower bound on delta(0) says; 5 standard errors."""
    spec = replace(make_spec(100, noise=1.0, steps=2, q=0.6), mechanism=mechanism)
    scores, coins = observe(spec, AUDITS, seed=20)
    verdict = check(Claim.single(mechanism, epsilon=9.0, delta=DELTA, steps=2, sampling_prob=0.6))
    lower, upper = (float(side[0]) for side in verdict.delta(np.zeros(1)))
    attained = float(2.0 * ((scores > 0) == coins).mean() - 1.0)
    assert lower - 0.035 < attained < upper + 0.035


@pytest.mark.parametrize("defect", ["half-noise", "noise-for-the-mean-on-the-sum"])
@pytest.mark.parametrize("q", [1.0, 0.9])
def test_too_little_noise_is_found_in_every_run(defect: str, q: float) -> None:
    planted = make_spec(250, noise=2.0, steps=4, q=q, defect=DEFECTS[defect])
    scores, coins = observe(planted, 20, seed=30)
    verdict = check(Claim.single(planted.mechanism, epsilon=5.0, delta=DELTA, steps=4, sampling_prob=q))
    assert refuted(scores, coins, Tradeoff.of(lambda epsilons: verdict.delta(epsilons)[1])) == 20


@pytest.mark.slow
@pytest.mark.parametrize(
    ("epsilon", "mu", "canaries", "least", "steps"), [(10, 2.000446, 1000, 8.5, 100), (4, 0.924931, 5000, 3.0, 1)]
)
def test_one_run_proves_most_of_a_true_epsilon(
    epsilon: float, mu: float, canaries: int, least: float, steps: int
) -> None:
    """In 5 runs of 5; Steinke's bound on the same scores proves less than half."""
    assert gaussian_epsilon(mu, DELTA) == pytest.approx(epsilon, abs=1e-4)
    controls = 5000
    spec = make_spec(canaries + controls, noise=np.sqrt(steps) / mu, steps=steps)
    scores, coins = observe(spec, 5, seed=40 + steps, controls=controls)
    scaled = cache(lambda factor: gaussian_curve(mu / factor))
    bounds = []
    for s, b in zip(scores, coins, strict=True):
        test = JointTest(s[b], s[~b], scaled(1.0), confidence=0.95, seed=1)
        bounds.append(gaussian_epsilon(mu / test.factor_upper(scaled), DELTA))
    assert min(bounds) >= least
    assert sum(bound > epsilon for bound in bounds) <= 2  # at 5% each, more in one suite of 900
    fair = slice(canaries)
    steinke = one_run_from_scores(scores[0][fair], coins[0][fair], delta=DELTA, confidence=0.95)
    assert 0.0 < steinke.epsilon_lower < epsilon / 2


def own_network(inputs: int, classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 14, 14)), nn.Conv2d(1, 8, 5), nn.Tanh(), nn.Flatten(), nn.Linear(800, classes)
    )


CONVOLUTIONS = {"cnn": Architecture("cnn", 196, 10), "own": Architecture("own", 196, 10, build=own_network)}


def convolutional(name: str, defect: Defect = CORRECT, **options: Any) -> Audit:
    """An audit of four full steps whose epsilon is exactly 10, with 1,000 canaries."""
    rng = np.random.default_rng(50)
    x, y = rng.random((20, 196)).astype(np.float32), rng.integers(0, 10, 20)
    dataset = Dataset("random", x, y, 10, "", x[:0], y[:0])
    table: dict[str, Any] = {
        "algorithm": "dp-sgd",
        "architecture": {"name": "cnn"},
        "mechanism": {"name": "gaussian", "noise_multiplier": 2.0 / 2.000446, "clip": 1.0},
        "sampling": {"kind": "none"},
        "steps": 4,
        "dataset": {"name": "digits"},
        "claim": {"epsilon": 10.0 + 1e-3, "delta": DELTA},
    }
    recipe = Recipe.from_dict(table)
    spec = replace(recipe.spec(dataset), architecture=CONVOLUTIONS[name], defect=defect)
    count = parameter_count(spec.architecture)
    spec = replace(spec, mechanism=replace(spec.mechanism, dimension=count))  # type: ignore[type-var]
    recipe = recipe.with_dimension(count)
    bundle = Bundle("", "", {}, recipe, None, Ledger.unrecorded(spec))
    settings = Settings(seed=1, trials=500, device="cpu", **{"workers": 1, "control": False, **options})
    return Audit(bundle, spec, dataset, check_recipe(recipe), settings)


@pytest.mark.parametrize("name", ["cnn", pytest.param("own", marks=pytest.mark.slow)])
def test_an_audit_of_a_network_with_convolutions_proves_most_of_a_true_epsilon_and_finds_half_the_noise(
    name: str,
) -> None:
    true, half = convolutional(name), convolutional(name, DEFECTS["half-noise"])
    (test,) = WHITE_BOX.tests(true)
    proved, found = (WHITE_BOX.run(audit, {test: 0.05}) for audit in (true, half))
    assert proved is not None
    assert proved.curve_violation is None
    assert proved.bound is not None
    assert proved.family_bound is not None
    assert 3.0 <= proved.bound.epsilon_lower == proved.epsilon_lower
    assert 8.5 <= proved.family_bound.epsilon_lower <= 10.0
    assert proved.bound.assumes in proved.family_bound.assumes
    assert found is not None
    assert found.curve_violation is not None
    assert found.family_bound is not None
    assert found.family_bound.epsilon_lower > 20.0


@pytest.mark.slow
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_an_audit_of_convolutions_is_the_same_with_two_workers(name: str) -> None:
    """Control included: two trainings besides, each in a process of its own."""
    results = []
    for workers in (1, 2):
        audit = convolutional(name, workers=workers, control=True)
        audit.trials.workers = workers
        result = WHITE_BOX.run(audit, {"white-box:joint": 0.05})
        assert result is not None
        (control,) = audit.controls
        results.append((result.to_dict(), replace(control, seconds=0.0)))
    assert results[0] == results[1]


def test_networks_of_next_to_no_weights_have_too_few_canaries_and_say_so() -> None:
    """Gains alone are no weights, and four weights are no sample."""
    audit = convolutional("cnn")
    for build in (lambda inputs, classes: nn.LayerNorm(classes), lambda inputs, classes: nn.Linear(2, 2)):
        spec = replace(audit.spec, architecture=Architecture("few", 10, 10, build=build))
        with pytest.raises(InputError, match=r"Expected white-box to have 10 canaries or more in the training and as"):
            WHITE_BOX.tests(replace(audit, spec=spec))
