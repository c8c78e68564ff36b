"""The convolutional path: equal to one plain loop of autograd, deterministic, private in every case that could slip."""

import gzip
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from reference import DEVICE, first_module, flat, train_one

from dpaudit.mechanisms import Gaussian
from dpaudit.mechanisms.defects import DEFECTS, Defect
from dpaudit.mechanisms.learning import convolution
from dpaudit.mechanisms.learning.architectures import CNNShape, cnn
from dpaudit.mechanisms.learning.convolution_workspace import MaxPool, Memory
from dpaudit.mechanisms.learning.norms import row_norms
from dpaudit.mechanisms.learning.spec import Architecture, DPFTRLSpec, DPSGDSpec, GradientSpec, Pool

MEDIAN_NORM = {1: 380.0, 1.5: 21.0, 2: 5.2, 4: 1.04, 50: 0.9, math.inf: 0.9}  # so about half the records are clipped

FASHION_MNIST = Path(os.environ.get("DPAUDIT_DATA") or "absent", "fashion_mnist")


def images(records: int, side: int, seed: int) -> Pool:
    """Images with large black and white areas, in which the candidates of the pooling tie."""
    rng = np.random.default_rng(seed)
    x = rng.random((records, side, side), dtype=np.float32)
    x[:, : side // 3] = 0
    x[:, -side // 3 :, : side // 2] = 1
    return Pool(x.reshape(records, -1), rng.integers(0, 10, records))


def specification(side: int = 28, order: float = 2.0, noise: float = 0.1, **changes: object) -> DPSGDSpec:
    mechanism = Gaussian(noise / MEDIAN_NORM[order], clip=MEDIAN_NORM[order], clip_norm=order)
    spec = DPSGDSpec(
        architecture=Architecture("cnn", side * side, 10), mechanism=mechanism, steps=3, sampling_prob=0.5,
        expected_batch_size=12.0, learning_rate=0.3,
    )  # fmt: skip
    return replace(spec, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("sampling_prob", [0.5, 1.0])
@pytest.mark.parametrize("order", [1, 2, math.inf])
def test_it_equals_the_plain_loop(order: float, sampling_prob: float) -> None:
    spec, pool = specification(order=order, sampling_prob=sampling_prob), images(24, 28, seed=1)
    members = np.random.default_rng(2).random((2, 24)) < 0.8
    models = convolution.train(spec, pool, members, [6, 7])
    for model, seed in enumerate((6, 7)):
        expected = train_one(spec, pool, members[model], seed)
        np.testing.assert_allclose(flat(models, model), expected, atol=5e-6)


@pytest.mark.parametrize(("side", "order", "momentum"), [(14, 1.5, 0.5), (15, 50, 0.9), (16, 4, 0.0), (17, 2, 0.5)])
def test_it_equals_the_plain_loop_at_other_sizes_and_norms(side: int, order: float, momentum: float) -> None:
    spec, pool = specification(side=side, order=order, momentum=momentum), images(24, side, seed=3)
    models = convolution.train(spec, pool, np.ones((1, 24), dtype=bool), [7])
    expected = train_one(spec, pool, np.ones(24, dtype=bool), 7)
    np.testing.assert_allclose(flat(models, 0), expected, atol=5e-6)


@pytest.mark.parametrize("defect", DEFECTS.values(), ids=DEFECTS.keys())
def test_a_planted_fault_does_what_it_says_and_changes_the_model(defect: Defect) -> None:
    spec, pool, everyone = specification(noise=2.0), images(24, 28, seed=4), np.ones((1, 24), dtype=bool)
    pool.y[:6] = 1  # of the class that one fault does not clip
    faulty = flat(convolution.train(replace(spec, defect=defect), pool, everyone, [8]), 0)
    np.testing.assert_allclose(faulty, train_one(replace(spec, defect=defect), pool, everyone[0], 8), atol=5e-6)
    correct = flat(convolution.train(spec, pool, everyone, [8]), 0)
    assert np.abs(faulty - correct).max() > 1e-3


@pytest.mark.parametrize("order", MEDIAN_NORM)
def test_one_record_moves_the_sum_by_exactly_its_clip_and_no_more(order: float) -> None:
    shape, pool = CNNShape.of(784, 10), images(40, 28, seed=5)
    x, y = torch.from_numpy(pool.x), torch.from_numpy(pool.y)
    weights = torch.nn.utils.parameters_to_vector(first_module(specification(), seed=5).parameters()).detach()
    clip = MEDIAN_NORM[order]
    clipped_sum = convolution.ClippedSum(shape, x, y, order, None)
    with torch.no_grad():
        sums = torch.stack([clipped_sum(weights, torch.tensor([row]), clip) for row in range(40)]).double().numpy()
    norms = np.linalg.norm(sums, ord=order, axis=1)
    assert norms.max() <= clip * (1 + 1e-5)
    assert 5 <= np.sum(norms >= clip * (1 - 1e-5)) <= 35


def test_pooling_breaks_ties_as_torch_does() -> None:
    torch.manual_seed(1)
    maps = torch.randint(-1, 3, (5, 9, 9, 4)).float()  # (record, column, row, channel), full of ties
    images = maps.permute(0, 3, 2, 1).clone().requires_grad_()
    expected = torch.nn.functional.max_pool2d(images, 2, stride=1).relu()
    gradient = torch.randn(5, 8, 8, 4)
    (back,) = torch.autograd.grad(expected, images, gradient.permute(0, 3, 2, 1))
    pool = MaxPool(maps, "1", "half", Memory(5, torch.device("cpu")))
    pool.forward()
    assert torch.equal(pool.pooled.relu().permute(0, 3, 2, 1), expected)
    pool.pooled.copy_(torch.where(pool.pooled > 0, gradient, 0))
    pool.backward()
    torch.testing.assert_close(pool.maps.permute(0, 3, 2, 1), back)


@pytest.mark.parametrize("order", [1, 1.5, 2, 4, 50, 300, math.inf])
@pytest.mark.parametrize("size", [1e-4, 1.0, 1e4])
def test_norms_neither_underflow_nor_overflow(order: float, size: float) -> None:
    values = np.random.default_rng(6).normal(scale=size, size=(5, 1000))
    values[4] = 0
    expected = np.linalg.norm(values / size, ord=order, axis=1) * size
    np.testing.assert_allclose(row_norms(torch.from_numpy(values).float(), order).numpy(), expected, rtol=2e-5)


def test_the_same_seed_gives_the_same_bits_in_any_company() -> None:
    spec, pool = specification(), images(24, 28, seed=7)
    members = np.random.default_rng(8).random((3, 24)) < 0.8
    together = convolution.train(spec, pool, members, [1, 2, 3])
    alone = convolution.train(spec, pool, members[1:2], [2])
    assert np.array_equal(flat(together, 1), flat(alone, 0))
    assert not np.array_equal(flat(together, 0), flat(convolution.train(spec, pool, members[:1], [4]), 0))


def test_the_callers_random_state_is_left_alone() -> None:
    before = torch.random.get_rng_state()
    convolution.train(specification(), images(6, 28, seed=9), np.ones((1, 6), dtype=bool), [1])
    assert torch.equal(torch.random.get_rng_state(), before)


def test_who_is_no_member_has_no_influence() -> None:
    spec, pool = specification(), images(24, 28, seed=10)
    members = np.ones((1, 24), dtype=bool)
    members[0, 5] = False
    x = pool.x.copy()
    x[5] = 1 - x[5]
    before, after = (convolution.train(spec, Pool(data, pool.y), members, [1]) for data in (pool.x, x))
    assert np.array_equal(flat(before, 0), flat(after, 0))
    everyone = [convolution.train(spec, Pool(data, pool.y), ~np.zeros_like(members), [1]) for data in (pool.x, x)]
    assert not np.array_equal(flat(everyone[0], 0), flat(everyone[1], 0))


def test_initial_weights_are_shared_where_the_recipe_says_so() -> None:
    spec, nobody = specification(noise=1e-30, init_seed=3), np.zeros((2, 6), dtype=bool)
    shared = convolution.train(spec, images(6, 28, seed=11), nobody, [1, 2])
    np.testing.assert_allclose(flat(shared, 0), flat(shared, 1), atol=1e-20)
    own = convolution.train(replace(spec, init_seed=None), images(6, 28, seed=11), nobody, [1, 2])
    assert np.abs(flat(own, 0) - flat(own, 1)).max() > 0.1


def test_an_empty_batch_is_released_with_noise_of_the_stated_size() -> None:
    spec = specification(noise=1.5, steps=1, init="zeros")
    models = convolution.train(spec, images(6, 28, seed=12), np.zeros((1, 6), dtype=bool), [1])
    assert models.ledger.batch_sizes == (0,)
    std = spec.learning_rate * 1.5 / spec.expected_batch_size
    # 26,010 draws: the observed standard deviation has relative error 1/sqrt(2n) = 0.44%; 5 of them: P < 1e-6
    assert flat(models, 0).std() == pytest.approx(std, rel=0.022)


def test_shared_memory_that_must_not_be_written_is_accepted() -> None:
    pool, spec = images(6, 28, seed=15), specification()
    expected = flat(convolution.train(spec, pool, np.ones((1, 6), dtype=bool), [1]), 0)
    pool.x.setflags(write=False)
    pool.y.setflags(write=False)
    members = np.broadcast_to(np.ones(6, dtype=bool), (2, 6))
    assert np.array_equal(flat(convolution.train(spec, pool, members, [1, 2]), 0), expected)


def test_the_ledger_says_what_happened() -> None:
    spec, steps = specification(steps=4, order=1), []
    ledger = convolution.train(
        spec, images(24, 28, 13), np.ones((1, 24), dtype=bool), [1], progress=steps.append
    ).ledger
    assert (ledger.noise_draws, len(ledger.batch_sizes), sum(steps)) == (4, 4, 4)
    assert (ledger.engine, ledger.device, ledger.divisor) == ("convolution", DEVICE.type, 12.0)
    assert (ledger.clip, ledger.clip_norm, ledger.sampling_prob) == (380.0, 1.0, 0.5)
    assert len(set(ledger.batch_sizes)) > 1  # Poisson, not fixed-size, batches


def test_the_state_dict_fits_the_module() -> None:
    models = convolution.train(specification(), images(6, 28, seed=14), np.ones((1, 6), dtype=bool), [1])
    module = cnn(784, 10)
    module.load_state_dict(models.state_dict(0))
    assert sum(parameter.numel() for parameter in module.parameters()) == 26_010


@pytest.mark.parametrize("inputs", [783, 64, 169])
def test_images_that_are_no_large_enough_square_are_refused(inputs: int) -> None:
    with pytest.raises(ValueError, match=f"Expected inputs={inputs} to be the square"):
        cnn(inputs, 10)


def fashion_mnist(records: int, part: str) -> Pool:
    with gzip.open(FASHION_MNIST / f"{part}-images-idx3-ubyte.gz") as file:
        x = np.frombuffer(file.read(16 + records * 784)[16:], dtype=np.uint8).reshape(records, 784)
    with gzip.open(FASHION_MNIST / f"{part}-labels-idx1-ubyte.gz") as file:
        y = np.frombuffer(file.read(8 + records)[8:], dtype=np.uint8)
    return Pool((x / 255).astype(np.float32), y.astype(np.int64))


@pytest.mark.slow
@pytest.mark.skipif(not FASHION_MNIST.is_dir(), reason="needs the folder fashion_mnist in the one DPAUDIT_DATA names")
@pytest.mark.parametrize("algorithm", ["dp-sgd", "dp-ftrl"])
def test_it_learns_fashion_mnist_with_noise(algorithm: str) -> None:
    pool, held_out = fashion_mnist(10_000, "train"), fashion_mnist(2000, "t10k")
    common: dict[str, Any] = {
        "architecture": Architecture("cnn", 784, 10), "mechanism": Gaussian(1.0, clip=1.0), "steps": 200,
        "expected_batch_size": 500.0, "learning_rate": 0.25, "momentum": 0.9,
    }  # fmt: skip
    spec: GradientSpec = DPSGDSpec(**common, sampling_prob=0.05)
    if algorithm == "dp-ftrl":  # ten passes of twenty batches of 500
        spec = DPFTRLSpec(**common, batches=20)
    models = convolution.train(spec, pool, np.ones((1, 10_000), dtype=bool), [1])
    module = cnn(784, 10)
    module.load_state_dict(models.state_dict(0))
    with torch.no_grad():
        predicted = module(torch.from_numpy(held_out.x)).argmax(dim=1).numpy()
    assert np.mean(predicted == held_out.y) > 0.70
