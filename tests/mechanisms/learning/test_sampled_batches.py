"""Training on the batches of a sampler: every engine does what a plain loop does with the sampler's own batches."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from reference import DEVICE, clipped, first_module, noise_vector, record_gradient, train_one
from torch import nn

from dpaudit.mechanisms import Gaussian
from dpaudit.mechanisms.learning.noise import Streams
from dpaudit.mechanisms.learning.spec import Architecture, DPSGDSpec, Pool
from dpaudit.mechanisms.learning.training import train
from dpaudit.verify.samplers import SAMPLERS, RandomAllocation, Sampler, Shuffled, sampler_from_dict

RECORDS = 23  # that of the samplers' typical keys
LINEAR, FNN = Architecture("linear", 6, 3), Architecture("fnn", 6, 3, {"hidden": 4})


def tanh_network(inputs: int, classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 4), nn.Tanh(), nn.Linear(4, classes))


def specification(sampler: Sampler, architecture: Architecture = LINEAR, **changes: Any) -> DPSGDSpec:
    return DPSGDSpec(
        architecture=architecture, mechanism=Gaussian(0.5), steps=sampler.steps, sampling_prob=sampler.rate,
        sampler=sampler, expected_batch_size=sampler.rate * RECORDS, **changes,
    )  # fmt: skip


def pool_for(architecture: Architecture) -> Pool:
    rng = np.random.default_rng(1)
    return Pool(rng.normal(size=(RECORDS, architecture.inputs)).astype(np.float32), rng.integers(0, 3, RECORDS))


def equals_the_plain_loop(spec: DPSGDSpec, *, everyone: bool) -> None:
    pool, rng = pool_for(spec.architecture), np.random.default_rng(2)
    members = (rng.random((2, RECORDS)) < 0.8) | everyone
    models = train(spec, pool, members, [5, 6])
    for model, row in enumerate(members):
        flat = nn.utils.parameters_to_vector(models.state_dict(model).values()).numpy()
        np.testing.assert_allclose(flat, train_one(spec, pool, row, 5 + model), atol=2e-5)


@pytest.mark.parametrize("everyone", [False, True])
@pytest.mark.parametrize("kind", SAMPLERS)
def test_networks_of_linear_layers_train_on_them(kind: str, everyone: bool) -> None:
    equals_the_plain_loop(specification(sampler_from_dict(kind, SAMPLERS[kind].typical), FNN), everyone=everyone)


@pytest.mark.parametrize(
    "sampler", [Shuffled.of(RECORDS, 17, 4, last_batch="straddling"), RandomAllocation(releases=4, times=3)]
)
def test_so_they_do_where_most_records_are_in_a_batch(sampler: Sampler) -> None:
    """Records then pass with a factor, and are not copied out; straddling batches hold some of them twice."""
    equals_the_plain_loop(specification(sampler), everyone=True)


@pytest.mark.parametrize("engine", [Architecture("cnn", 196, 3), Architecture("mine", 6, 3, {}, tanh_network)])
def test_networks_trained_one_by_one_train_on_them(engine: Architecture) -> None:
    equals_the_plain_loop(specification(Shuffled.of(RECORDS, 9, 2, last_batch="straddling"), engine), everyone=False)


def test_every_record_is_trained_on_once_a_pass_whoever_else_is_a_member() -> None:
    sampler, pool = Shuffled(5, 3), pool_for(LINEAR)
    members = np.ones((1, RECORDS), dtype=bool)
    sizes = train(specification(sampler), pool, members, [5]).ledger.batch_sizes
    assert [sum(sizes[5 * i : 5 * i + 5]) for i in range(3)] == [RECORDS] * 3
    members[0, 7] = False  # a ghost keeps its place: no other record moves
    less = np.array(sizes) - train(specification(sampler), pool, members, [5]).ledger.batch_sizes
    assert sorted(less) == [0] * 12 + [1] * 3


def test_a_watched_direction_shows_the_noisy_sums() -> None:
    """Against the same sums, taken record by record at the first weights, which no step moves."""
    sampler, pool = Shuffled(5, 2), pool_for(FNN)
    direction = np.random.default_rng(3).normal(size=43).astype(np.float32)
    spec = specification(sampler, FNN, watched=direction, learning_rate=1e-30)
    seen = train(spec, pool, np.ones((2, RECORDS), dtype=bool), [5, 6]).observed
    assert seen is not None
    assert seen.shape == (2, 10, 1)
    for model, seed in enumerate((5, 6)):
        streams, module = Streams(seed, DEVICE), first_module(spec, seed)
        for step, batch in enumerate(sampler.draw(streams.batches, RECORDS)):
            total = noise_vector(spec.mechanism, streams, 43)
            for i in batch:
                gradient = record_gradient(module, torch.from_numpy(pool.x[i]), torch.tensor(pool.y[i]))
                total = total + clipped(gradient, 1.0, 2.0)
            assert float(seen[model, step, 0]) == pytest.approx(float(total @ direction), abs=1e-4)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"steps": 7}, "steps=7 to be the 10 batches of the sampler"),
    ({"schedule": (Gaussian(1.0),) * 10}, "a schedule without a sampler"),
    ({"gradient_canaries": 3}, "gradient_canaries with Poisson batches"),
    ({"watched": np.zeros(5, np.float32)}, r"watched of shape \(5,\) to be \(21,\)"),
    ({"architecture": Architecture("cnn", 196, 3), "watched": np.zeros(5, np.float32)}, "watched with architecture"),
]


@pytest.mark.parametrize(("changes", "words"), REFUSED, ids=[next(iter(changes)) for changes, _ in REFUSED])
def test_what_does_not_go_with_a_sampler_is_refused(changes: dict[str, Any], words: str) -> None:
    spec = replace(specification(Shuffled(5, 2)), **changes)
    pool = pool_for(spec.architecture)
    with pytest.raises(ValueError, match=words):
        train(spec, pool, np.ones((1, RECORDS), dtype=bool), [1])
