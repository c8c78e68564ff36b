"""DP-FTRL against plain prefix sums with every tree node drawn apart; and what a record enters, by brute force."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from reference import DEVICE, clipped, first_module, flat, noise_vector, record_gradient
from torch import nn

from dpaudit.mechanisms import GammaPLRV, Gaussian, Laplace
from dpaudit.mechanisms.base import Mechanism
from dpaudit.mechanisms.learning.dp_ftrl import TreeNoise, releases_per_record
from dpaudit.mechanisms.learning.noise import Streams
from dpaudit.mechanisms.learning.spec import Architecture, DPFTRLSpec, Pool
from dpaudit.mechanisms.learning.training import train

INPUTS, CLASSES, RECORDS = 12, 3, 23
LINEAR, FNN = Architecture("linear", INPUTS, CLASSES), Architecture("fnn", INPUTS, CLASSES, {"hidden": 5})


def own(inputs: int, classes: int) -> nn.Module:
    return nn.Linear(inputs, classes)


def nodes_of(leaves: int) -> list[tuple[int, int]]:
    """[start, end) of the tree nodes that prefix `leaves` is made of: greedily the largest aligned blocks."""
    nodes, start = [], 0
    while start < leaves:
        width = 2 ** int(math.log2(leaves - start))
        nodes.append((start, start + width))
        start += width
    return nodes


def specification(architecture: Architecture = LINEAR, **changes: object) -> DPFTRLSpec:
    spec = DPFTRLSpec(
        architecture=architecture, mechanism=Gaussian(0.7, clip=0.5), steps=7, batches=7,
        expected_batch_size=RECORDS / 7, learning_rate=0.8,
    )  # fmt: skip
    return replace(spec, **changes)  # type: ignore[arg-type]


def pool(seed: int = 1) -> Pool:
    rng = np.random.default_rng(seed)
    return Pool(rng.normal(size=(RECORDS, INPUTS)).astype(np.float32), rng.integers(0, CLASSES, RECORDS))


def prefix_sums(spec: DPFTRLSpec, data: Pool, members: NDArray[np.bool_], seed: int) -> NDArray[np.float64]:
    """w_t = w_(start of pass) - rate/batch (sum of clipped gradients + sum of node noise), one record at a time."""
    module, streams = first_module(spec, seed).double(), Streams(seed, DEVICE)
    parameters = list(module.parameters())
    x, y = torch.from_numpy(data.x).double(), torch.from_numpy(data.y)
    weights = nn.utils.parameters_to_vector(parameters).detach().numpy().copy()
    step = 0
    while step < spec.steps:
        start, total, noise = weights.copy(), np.zeros_like(weights), dict[tuple[int, int], NDArray[np.float64]]()
        for leaf in range(min(spec.batches, spec.steps - step)):
            for i in range(len(members)):
                if members[i] and i % spec.batches == leaf:
                    total += clipped(record_gradient(module, x[i], y[i]), spec.mechanism.clip, 2.0)
            for node in nodes_of(leaf + 1):
                if node not in noise:
                    noise[node] = noise_vector(spec.mechanism, streams, len(weights))
            noisy = total + sum(noise[node] for node in nodes_of(leaf + 1))
            weights = start - spec.learning_rate / spec.expected_batch_size * noisy
            with torch.no_grad():
                nn.utils.vector_to_parameters(torch.from_numpy(weights), parameters)
        step += spec.batches
    return weights


@pytest.mark.parametrize("architecture", [LINEAR, FNN], ids=["linear", "fnn"])
@pytest.mark.parametrize("mechanism", [Gaussian(0.7, clip=0.5), GammaPLRV(4.0, 0.5, clip=0.5)], ids=lambda m: m.name)
@pytest.mark.parametrize(("steps", "batches"), [(7, 7), (8, 8), (13, 5), (3, 1)])
def test_training_is_the_plain_prefix_sum(
    architecture: Architecture, mechanism: Mechanism, steps: int, batches: int
) -> None:
    spec = specification(
        architecture, mechanism=mechanism, steps=steps, batches=batches, expected_batch_size=RECORDS / batches
    )
    members = np.random.default_rng(2).random((3, RECORDS)) < 0.8
    models = train(spec, pool(), members, [4, 5, 6])
    for model, seed in enumerate((4, 5, 6)):
        got = flat(models, model)
        np.testing.assert_allclose(got, prefix_sums(spec, pool(), members[model], seed), atol=2e-4, rtol=2e-4)
    assert models.ledger.noise_draws == steps
    assert models.ledger.releases == (releases_per_record(steps, batches),)


@pytest.mark.parametrize("batches", range(1, 34))
def test_no_record_enters_more_nodes_than_claimed_and_one_enters_as_many(batches: int) -> None:
    for steps in {batches, 2 * batches, 2 * batches + batches // 2 + 1}:
        entered = np.zeros(batches, dtype=int)
        for start in range(0, steps, batches):
            used = {node for leaf in range(min(batches, steps - start)) for node in nodes_of(leaf + 1)}
            for low, high in used:
                entered[low:high] += 1
        assert entered.max() == releases_per_record(steps, batches)
        tree = TreeNoise(batches)
        for _ in range(steps):
            tree.increment(torch.zeros(1, 1))
        np.testing.assert_array_equal(tree.entered, entered)


def test_the_noise_of_a_prefix_has_a_nodes_variance_for_every_binary_one() -> None:
    tree, generator, total = TreeNoise(16), torch.Generator().manual_seed(3), torch.zeros(200, 100)
    for leaf in range(1, 17):
        total += tree.increment(torch.randn(200, 100, generator=generator))
        # 20,000 draws: four standard deviations of a sample variance
        assert float(total.var()) == pytest.approx(leaf.bit_count(), rel=4 * math.sqrt(2 / 20_000))


def test_a_missing_record_moves_no_other_and_changes_every_later_step_only() -> None:
    spec = specification(steps=4, learning_rate=1e-3)
    everyone = np.ones((1, RECORDS), dtype=bool)
    without = everyone.copy()
    without[0, 2] = False  # in batch 2 of 7
    sizes = [train(spec, pool(), who, [1]).ledger.batch_sizes for who in (everyone, without)]
    assert [a - b for a, b in zip(*sizes, strict=True)] == [0, 0, 1, 0]
    early = replace(spec, steps=2)
    assert all(
        a.equal(b)
        for a, b in zip(
            train(early, pool(), everyone, [1]).parameters.values(),
            train(early, pool(), without, [1]).parameters.values(),
            strict=True,
        )
    )


def test_the_seed_alone_decides_the_bits() -> None:
    members, spec = np.ones((4, RECORDS), dtype=bool), specification(mechanism=Laplace(0.5, clip=0.5))
    one, again = (train(spec, pool(), members, [1, 2, 3, 4]) for _ in range(2))
    for name, tensor in one.parameters.items():
        assert tensor.equal(again.parameters[name])
        assert not tensor[0].equal(tensor[1])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"batches": 0}, r"Expected batches=0 in .*\[1, inf\)"),
        (
            {"architecture": Architecture("own", 12, 3, build=own)},
            "Expected architecture='own' to be one of linear, fnn, cnn for DP-FTRL",
        ),
    ],
)
def test_what_dp_ftrl_is_not_for_is_refused(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        train(specification(**changes), pool(), np.ones((1, RECORDS), dtype=bool), [1])  # type: ignore[arg-type]


@pytest.mark.parametrize(("steps", "batches"), [(7, 7), (5, 3), (2, 1)])
def test_the_convolutional_network_is_trained_by_the_same_prefix_sums(steps: int, batches: int) -> None:
    rng = np.random.default_rng(5)
    data = Pool(rng.normal(size=(RECORDS, 196)).astype(np.float32), rng.integers(0, CLASSES, RECORDS))
    spec = specification(Architecture("cnn", 196, CLASSES), steps=steps, batches=batches)
    members = np.ones((2, RECORDS), dtype=bool)
    members[1, ::3] = False
    models = train(spec, data, members, [8, 9])
    assert models.ledger.releases == (releases_per_record(steps, batches),)
    for model, seed in enumerate((8, 9)):
        got = flat(models, model)
        np.testing.assert_allclose(got, prefix_sums(spec, data, members[model], seed), atol=2e-4, rtol=2e-4)
