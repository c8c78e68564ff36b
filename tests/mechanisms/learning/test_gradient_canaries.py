"""Gradient canaries in every network: what they add and what is seen of them, by a plain loop of autograd."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from reference import DEVICE, clipped, first_module, noise_vector, poisson_batch, record_gradient
from torch import nn

from dpaudit.mechanisms import Gaussian
from dpaudit.mechanisms.learning.architectures import parameter_shapes
from dpaudit.mechanisms.learning.noise import Streams
from dpaudit.mechanisms.learning.spec import Architecture, DPSGDSpec, Pool
from dpaudit.mechanisms.learning.training import train

RECORDS, CANARIES = 6, 90


def own(inputs: int, classes: int) -> nn.Module:
    """Convolutions, gains and biases, of which a part is frozen: weights lie between parameters that are none."""
    first = nn.Conv2d(1, 4, 5, stride=2)
    assert first.bias is not None
    nn.init.zeros_(first.bias).requires_grad_(False)
    parts = (nn.Unflatten(1, (1, 14, 14)), first, nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(100, classes))
    return nn.Sequential(*parts)


NETWORKS = {
    "fnn": Architecture("fnn", 196, 3, {"hidden": [5, 4]}),
    "cnn": Architecture("cnn", 196, 3),
    "bag-of-embeddings": Architecture("bag-of-embeddings", 196, 3, {"vocabulary": 20}),
    "own": Architecture("own", 196, 3, build=own),
}


def specification(architecture: Architecture, sampling_prob: float) -> DPSGDSpec:
    return DPSGDSpec(
        architecture=architecture, mechanism=Gaussian(0.3, clip=0.5), steps=3, sampling_prob=sampling_prob,
        expected_batch_size=4.0, learning_rate=0.2, momentum=0.5, gradient_canaries=CANARIES,
    )  # fmt: skip


def records(architecture: Architecture, seed: int) -> Pool:
    rng = np.random.default_rng(seed)
    rows = RECORDS + CANARIES
    features = rng.integers(0, 30, (rows, 196)) if "bag" in architecture.name else rng.random((rows, 196))
    return Pool(features.astype(np.float32), rng.integers(0, 3, rows))


def released(
    spec: DPSGDSpec, pool: Pool, members: NDArray[np.bool_], seed: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The final weights, and noisy sums less the records' own at the canaries' places, shape (steps, canaries)."""
    streams, module = Streams(seed, DEVICE), first_module(spec, seed).double()
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    flags = np.concatenate([np.full(parameter.numel(), parameter.dim() > 1) for parameter in parameters])
    places = np.flatnonzero(flags)[np.arange(CANARIES) * flags.sum() // CANARIES]
    weights = nn.utils.parameters_to_vector(parameters).detach().numpy().copy()
    velocity, seen = np.zeros_like(weights), []
    for _ in range(spec.steps):
        batch = members.copy()
        if spec.sampling_prob < 1:
            drawn = np.zeros(RECORDS, dtype=bool)
            drawn[poisson_batch(streams, RECORDS, spec.sampling_prob)] = True
            coins = torch.rand(CANARIES, generator=streams.sampling, device=DEVICE).cpu().numpy() < spec.sampling_prob
            batch &= np.concatenate([drawn, coins])
        known = np.zeros_like(weights)
        for i in np.flatnonzero(batch[:RECORDS]):
            x, y = torch.from_numpy(pool.x[i]).double(), torch.tensor(pool.y[i])
            known += clipped(record_gradient(module, x, y), 0.5, 2.0)
        total = known.copy()
        for canary in np.flatnonzero(batch[RECORDS:]):
            total[places[canary]] += 0.5
        total += noise_vector(spec.mechanism, streams, len(weights))
        seen.append((total - known)[places])
        velocity = spec.momentum * velocity + total / spec.expected_batch_size
        weights -= spec.learning_rate * velocity
        with torch.no_grad():
            nn.utils.vector_to_parameters(torch.from_numpy(weights), parameters)
    return weights, np.array(seen)


@pytest.mark.parametrize("sampling_prob", [0.6, 1.0])
@pytest.mark.parametrize("name", NETWORKS)
def test_canaries_and_what_is_seen_equal_the_plain_loop(name: str, sampling_prob: float) -> None:
    spec, pool = specification(NETWORKS[name], sampling_prob), records(NETWORKS[name], seed=1)
    members = np.random.default_rng(2).random((2, RECORDS + CANARIES)) < 0.6
    models = train(spec, pool, members, [6, 7])
    assert models.observed is not None
    for model, seed in enumerate((6, 7)):
        weights, seen = released(spec, pool, members[model], seed)
        trained = [models.parameters[key][model].flatten() for key in parameter_shapes(spec.architecture)]
        np.testing.assert_allclose(torch.cat(trained).numpy(), weights, atol=5e-6)
        np.testing.assert_allclose(models.observed[model].numpy(), seen, atol=5e-6)


@pytest.mark.parametrize("name", ["cnn", "own"])
def test_what_is_seen_is_the_same_bits_in_any_company_and_in_an_empty_batch(name: str) -> None:
    spec, pool = specification(NETWORKS[name], 0.3), records(NETWORKS[name], seed=3)
    members = np.random.default_rng(4).random((3, RECORDS + CANARIES)) < 0.5
    members[1, :RECORDS] = False
    together, alone = train(spec, pool, members, [1, 2, 3]).observed, train(spec, pool, members[1:2], [2]).observed
    assert together is not None
    assert alone is not None
    assert torch.equal(together[1], alone[0])
    assert not torch.equal(together[1], together[0])


@pytest.mark.parametrize(("name", "weights"), [("fnn", 1012), ("own", 400)])
def test_more_canaries_than_weights_are_refused(name: str, weights: int) -> None:
    changed: dict[str, Any] = {**vars(specification(NETWORKS[name], 1.0)), "gradient_canaries": 5000}
    with pytest.raises(ValueError, match=rf"gradient_canaries=5000 in \[0, {weights}\]"):
        train(DPSGDSpec(**changed), records(NETWORKS[name], seed=5), np.ones((1, 96), dtype=bool), [1])
