"""Gradient canaries: what the loop adds and shows, the error rate and the power of the white-box audit.

Error rates are those of whole one-run audits by the built-in training, counted over independent models; the truth is
the mechanism's exact curve. A test at level 5% errs more than 22 times in 200 with probability 2e-4; seeds are fixed.
"""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from dpaudit.audit.attacks.white_box import log_likelihood_ratios
from dpaudit.mechanisms import Gaussian, Laplace
from dpaudit.mechanisms.defects import CORRECT, DEFECTS, Defect
from dpaudit.mechanisms.learning.spec import Architecture, DPSGDSpec, Pool
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


def test_networks_without_the_hook_refuse_canaries() -> None:
    cnn = replace(make_spec(40, noise=1.0), architecture=Architecture("cnn", 784, 10))
    pool = Pool(np.zeros((1, 784), dtype=np.float32), np.zeros(1, dtype=np.int64))
    with pytest.raises(ValueError, match="gradient_canaries with architecture='cnn'"):
        train(cnn, pool, np.ones((1, 1), dtype=bool), [1])
    with pytest.raises(ValueError, match=r"gradient_canaries=5000 in \[0, 50\]"):
        train(replace(make_spec(40, noise=1.0), gradient_canaries=5000), pool, np.ones((1, 1), dtype=bool), [1])


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
        (Gaussian(1 / 1.5, clip=0.5), 1, 1.0, 2),
        (Gaussian(0.7, clip=0.5), 2, 0.6, 2),
        (LAPLACE, 2, 0.6, 0),  # its certified curve is above the truth
    ],
)
def test_an_exactly_true_claim_is_refuted_in_at_most_one_audit_of_twenty(
    mechanism: Gaussian, steps: int, q: float, fewest: int
) -> None:
    """The certified curve of Gaussian noise is the truth, within 1e-5: 2 to 22 false alarms in 200 audits."""
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
@pytest.mark.parametrize("steps", [1, 100])
@pytest.mark.parametrize(("epsilon", "mu", "canaries", "least"), [(10, 2.000446, 1000, 8.5), (4, 0.924931, 5000, 3.0)])
def test_one_run_proves_most_of_a_true_epsilon(
    steps: int, epsilon: float, mu: float, canaries: int, least: float
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
