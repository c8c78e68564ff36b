"""The likelihood ratio of a canary from every step of a loop: against densities, and in loops that are watched."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from torch import nn

from dpaudit.audit.attacks.clipbkd import make_arms
from dpaudit.audit.attacks.released_steps import StepWatch, WatchedLoop, can_watch, clipped_gradients, released_ratio
from dpaudit.audit.inputs.user_code import UserFunction, UserTrainer, dataset_trainer
from dpaudit.mechanisms import Gaussian, Laplace
from dpaudit.mechanisms.learning.architectures import build_module
from dpaudit.mechanisms.learning.spec import Architecture, DPSGDSpec, Pool
from dpaudit.mechanisms.learning.training import train

CLIP, NOISE, RATE, STEPS, MODELS = 0.5, 0.8, 0.3, 4, 100
SPEC = DPSGDSpec(
    architecture=Architecture("fnn", 3, 2, {"hidden": 2}), mechanism=Gaussian(NOISE, CLIP), steps=STEPS,
    sampling_prob=RATE, expected_batch_size=RATE * 10,
)  # fmt: skip


def records(rng: np.random.Generator) -> Pool:
    return Pool(rng.normal(size=(10, 3)).astype(np.float32), rng.integers(0, 2, 10))


def watch_of(pool: Pool, *, replaced: bool = False, noise_factor: float = 1.0) -> StepWatch:
    """The first record is the canary; where one is replaced, the last stands in the other arm."""
    everyone = np.ones(10, dtype=bool)
    without, with_canary = everyone.copy(), everyone.copy()
    without[0], with_canary[-1] = False, not replaced
    return StepWatch.of(pool, without, with_canary, noise_factor)


def test_gradients_are_those_of_single_records_clipped() -> None:
    rng = np.random.default_rng(1)
    pool, network = records(rng), build_module(SPEC.architecture)
    for weight, row in zip(
        clipped_gradients(network, [*network.parameters()], pool.x, pool.y, CLIP), range(10), strict=True
    ):
        loss = nn.functional.cross_entropy(network(torch.tensor(pool.x[[row]])), torch.tensor(pool.y[[row]]))
        flat = torch.cat([g.flatten() for g in torch.autograd.grad(loss, [*network.parameters()])])
        np.testing.assert_allclose(weight, flat * min(1.0, CLIP / float(flat.norm())), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("prob", [RATE, 1.0])
def test_the_ratio_of_a_step_is_that_of_normal_densities(replaced: bool, prob: float) -> None:
    rng = np.random.default_rng(2)
    pool, network = records(rng), build_module(SPEC.architecture)
    watch = watch_of(pool, replaced=replaced, noise_factor=0.5)
    gradients = clipped_gradients(network, [*network.parameters()], watch.x, watch.y, CLIP)
    canaries, others = np.split(gradients.double().numpy(), [1 + replaced])
    assert len(others) == 9 - replaced
    mean, noise = prob * others.sum(0), (NOISE * CLIP / 2) ** 2
    covariance = noise * np.eye(len(mean)) + prob * (1 - prob) * others.T @ others
    for total in rng.multivariate_normal(mean, covariance, size=5):
        found = watch.log_ratio(gradients, torch.tensor(total, dtype=torch.float32), SPEC.mechanism, prob)
        law = [multivariate_normal(mean + canary, covariance).pdf(total) for canary in canaries]
        neither = multivariate_normal(mean, covariance).pdf(total)
        mixed = [(1 - prob) * neither + prob * density for density in law] + [neither]
        assert found == pytest.approx(np.log(mixed[0] / mixed[1]), abs=2e-3)


def test_a_few_records_stand_for_many() -> None:
    rng = np.random.default_rng(3)
    pool = Pool(rng.normal(size=(1000, 3)).astype(np.float32), rng.integers(0, 2, 1000))
    watch = StepWatch.of(pool, np.arange(1000) > 0, np.ones(1000, dtype=bool), 1.0)
    assert (watch.canaries, watch.records, len(watch.x)) == (1, 999, 33)
    np.testing.assert_array_equal(watch.x[0], pool.x[0])
    np.testing.assert_array_equal(watch.x[[1, -1]], pool.x[[1, 999]])


def loop(dataset: Any, seed: int, noise_factor: float = 1.0) -> nn.Module:
    """DP-SGD written out, by Adam, with what Opacus's wrapper looks like in between and another optimizer beside it."""
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 2))
    other = nn.Linear(3, 3)
    optimizers = [torch.optim.Adam(part.parameters(), lr=0.01) for part in (module, other)]
    x, y = dataset.tensors
    for _ in range(STEPS):
        batch = torch.rand(len(y)) < RATE
        rows = clipped_gradients(module, [*module.parameters()], x[batch].numpy(), y[batch].numpy(), CLIP)
        total = rows.sum(0) + torch.randn(rows.shape[1]) * NOISE * CLIP * noise_factor
        for weight, part in zip(
            module.parameters(), total.split([w.numel() for w in module.parameters()]), strict=True
        ):
            weight.grad = part.view_as(weight) / (RATE * 10)
        other(x).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
    return module


def models_of(pool: Pool, watch: StepWatch, count: int) -> list[Any]:
    """Watched models without the canary and with it, of the same seeds."""
    members = np.ones((count, 10), dtype=bool)
    without = members.copy()
    without[:, 0] = False
    trainer = WatchedLoop(dataset_trainer(loop), watch)
    return [trainer(SPEC, pool, rows, list(range(count)), device="cpu") for rows in (without, members)]


@pytest.mark.slow
def test_a_loop_is_watched_and_trains_as_if_it_were_not() -> None:
    rng = np.random.default_rng(4)
    pool = records(rng)
    pool = Pool(np.where(np.arange(10)[:, None] == 0, 9.0, pool.x).astype(np.float32), pool.y)
    watch = watch_of(pool)
    without, with_canary = models_of(pool, watch, MODELS)
    (plain,) = dataset_trainer(loop)(SPEC, pool, np.ones((1, 10), dtype=bool), [0], device="cpu")
    for name, weight in plain.items():
        torch.testing.assert_close(with_canary.parameters[name][0], weight, rtol=0, atol=0)
    low, high = released_ratio(without), released_ratio(with_canary)
    assert low.shape == (MODELS,)
    # E[e^-L] over models with the canary, E[e^L] over those without: 1 for a likelihood ratio, however many steps
    for ratios in (np.exp(low), np.exp(-high)):
        assert abs(ratios.mean() - 1.0) < 4.0 * ratios.std() / np.sqrt(MODELS)
    assert high.mean() - low.mean() > 2.5 * np.sqrt((low.var() + high.var()) / MODELS)


def test_whose_steps_can_be_watched(tmp_path: Path) -> None:
    (tmp_path / "loops.py").write_text(
        "def one(dataset, seed): pass\ndef many(spec, pool, members, seeds, device): pass\n"
    )
    own = [UserTrainer(UserFunction.named(f"loops.py:{name}", "--trainer", tmp_path)) for name in ("one", "many")]
    assert [can_watch(trainer, SPEC) for trainer in (*own, dataset_trainer(loop), loop, train)] == [
        True, False, True, False, False,
    ]  # fmt: skip
    assert not can_watch(own[0], replace(SPEC, mechanism=Laplace(1.0)))


def test_neighbours_of_an_own_loop_have_its_size() -> None:
    x, y = np.eye(4, dtype=np.float32), np.array([0, 1, 0, 1])
    canary = np.full(4, 2.0, np.float32)
    arms = make_arms(x, y, canary, 1, 0, adjacency="add-remove", same_size=True)
    assert (arms.without.sum(), arms.with_canary.sum()) == (3, 4)
    np.testing.assert_array_equal(arms.pool.x, [canary, *x[1:]])
    assert arms.description["pair"] == "the training records but record 0, with and without one canary"


def double_loop(dataset: Any, seed: int, noise_factor: float = 1.0) -> nn.Module:
    """One step in float64."""
    network = build_module(SPEC.architecture).double()
    for weight in network.parameters():
        weight.grad = torch.full_like(weight, 0.1 * seed)
    torch.optim.SGD(network.parameters(), lr=0.1).step()
    return network


def test_steps_of_loops_in_another_precision_are_seen() -> None:
    pool = records(np.random.default_rng(4))
    trainer = WatchedLoop(dataset_trainer(double_loop), watch_of(pool))
    models = trainer(SPEC, pool, np.ones((2, 10), dtype=bool), [1, 2], device="cpu")
    assert isinstance(models.observed, torch.Tensor)  # type: ignore[union-attr]
    assert np.isfinite(released_ratio(models)).all()  # type: ignore[arg-type]
