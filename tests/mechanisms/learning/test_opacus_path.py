"""The Opacus path: any module equals one plain loop of autograd, and what cannot be private is refused."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from reference import DEVICE, flat, train_one
from torch import Tensor, nn

from dpaudit.mechanisms import Gaussian
from dpaudit.mechanisms.defects import DEFECTS, Defect
from dpaudit.mechanisms.learning import convolution, opacus_path
from dpaudit.mechanisms.learning.architectures import cnn
from dpaudit.mechanisms.learning.spec import Architecture, DPSGDSpec, Pool

INPUTS, CLASSES = 20, 4
MEDIAN_NORM = {1: 52.0, 2: 5.7, 4: 2.45, math.inf: 1.7}  # so that about half the records are clipped
Build = Callable[..., nn.Module]


def tanh_network(inputs: int, classes: int, hidden: int = 7) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.LayerNorm(hidden), nn.Linear(hidden, classes))


def relu_network(inputs: int, classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, classes))


def records(count: int, seed: int) -> Pool:
    rng = np.random.default_rng(seed)
    return Pool(rng.normal(size=(count, INPUTS)).astype(np.float32), rng.integers(0, CLASSES, count))


def specification(build: Build = tanh_network, order: float = 2.0, noise: float = 0.1, **changes: object) -> DPSGDSpec:
    mechanism = Gaussian(noise / MEDIAN_NORM[order], clip=MEDIAN_NORM[order], clip_norm=order)
    architecture = Architecture("mine", INPUTS, CLASSES, build=build)
    spec = DPSGDSpec(
        architecture=architecture, mechanism=mechanism, steps=4, sampling_prob=0.5, expected_batch_size=10.0,
        learning_rate=0.5,
    )  # fmt: skip
    return replace(spec, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("sampling_prob", [0.5, 1.0])
@pytest.mark.parametrize("order", [1, 2, 4, math.inf])
@pytest.mark.parametrize("build", [tanh_network, relu_network])
def test_it_equals_the_plain_loop(build: Build, order: float, sampling_prob: float) -> None:
    spec, pool = specification(build, order, sampling_prob=sampling_prob, momentum=0.5), records(20, seed=1)
    members = np.random.default_rng(2).random((2, 20)) < 0.8
    models = opacus_path.train(spec, pool, members, [5, 6])
    for model, seed in enumerate((5, 6)):
        np.testing.assert_allclose(flat(models, model), train_one(spec, pool, members[model], seed), atol=5e-6)


def test_it_equals_the_convolution_path_on_the_same_network() -> None:
    rng = np.random.default_rng(3)
    pool = Pool(rng.random((16, 784), dtype=np.float32), rng.integers(0, 10, 16))
    spec = specification(architecture=Architecture("cnn", 784, 10))
    own = replace(spec, architecture=Architecture("mine", 784, 10, build=cnn))
    everyone = np.ones((1, 16), dtype=bool)
    ours, hooks = convolution.train(spec, pool, everyone, [1]), opacus_path.train(own, pool, everyone, [1])
    assert list(ours.parameters) == list(hooks.parameters)
    np.testing.assert_allclose(flat(ours, 0), flat(hooks, 0), atol=5e-6)


@pytest.mark.parametrize("defect", DEFECTS.values(), ids=DEFECTS.keys())
def test_a_planted_fault_does_what_it_says_and_changes_the_model(defect: Defect) -> None:
    spec, pool, everyone = specification(noise=2.0), records(20, seed=4), np.ones((1, 20), dtype=bool)
    faulty = flat(opacus_path.train(replace(spec, defect=defect), pool, everyone, [8]), 0)
    np.testing.assert_allclose(faulty, train_one(replace(spec, defect=defect), pool, everyone[0], 8), atol=5e-6)
    assert np.abs(faulty - flat(opacus_path.train(spec, pool, everyone, [8]), 0)).max() > 1e-3


def test_physical_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    spec, pool, everyone = specification(), records(20, seed=5), np.ones((1, 20), dtype=bool)
    whole = flat(opacus_path.train(spec, pool, everyone, [1]), 0)
    chunks: list[int] = []
    accumulate = opacus_path.MechanismOptimizer.clip_and_accumulate

    def counted(self: opacus_path.MechanismOptimizer) -> None:
        chunks.append(len(self.grad_samples[0]))
        accumulate(self)

    monkeypatch.setattr(opacus_path.MechanismOptimizer, "clip_and_accumulate", counted)
    monkeypatch.setattr(opacus_path, "GRADIENT_BYTES", 4 * len(whole) * 3)
    np.testing.assert_allclose(flat(opacus_path.train(spec, pool, everyone, [1]), 0), whole, atol=1e-6)
    assert max(chunks) == 3


def test_the_same_seed_gives_the_same_bits_even_with_dropout() -> None:
    def build(inputs: int, classes: int) -> nn.Module:
        return nn.Sequential(nn.Linear(inputs, 8), nn.Dropout(0.5), nn.Linear(8, classes))

    spec, pool, everyone = specification(build), records(20, seed=6), np.ones((3, 20), dtype=bool)
    before = torch.random.get_rng_state()
    together = opacus_path.train(spec, pool, everyone, [1, 2, 3])
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.rand(5)
    alone = opacus_path.train(spec, pool, everyone[:1], [2])
    assert np.array_equal(flat(together, 1), flat(alone, 0))
    assert not np.array_equal(flat(together, 0), flat(together, 2))


def test_an_empty_batch_is_released_with_noise_of_the_stated_size() -> None:
    def build(inputs: int, classes: int) -> nn.Module:
        return nn.Sequential(nn.Linear(inputs, 1000), nn.Linear(1000, classes))

    spec = specification(build, noise=1.5, steps=1, init="zeros")
    models = opacus_path.train(spec, records(6, seed=7), np.zeros((1, 6), dtype=bool), [1])
    assert models.ledger.batch_sizes == (0,)
    std = spec.learning_rate * 1.5 / spec.expected_batch_size
    # 25,004 draws: the observed standard deviation has relative error 1/sqrt(2n) = 0.45%; 5 of them: P < 1e-6
    assert flat(models, 0).std() == pytest.approx(std, rel=0.023)


def test_frozen_pretrained_parameters_stay_and_draw_no_noise() -> None:
    pretrained = relu_network(INPUTS, CLASSES)
    first = next(pretrained.children()).requires_grad_(False)
    weight, head = first.weight.clone(), pretrained.state_dict()["2.weight"].clone()
    spec, pool = specification(lambda inputs, classes: pretrained), records(20, seed=8)
    models = opacus_path.train(spec, pool, np.ones((2, 20), dtype=bool), [1, 2])
    assert list(models.parameters) == ["2.weight", "2.bias"]  # what is released
    assert torch.equal(first.weight, weight)
    assert torch.equal(pretrained.state_dict()["2.weight"], head)  # the user's own module is not touched
    # the same as a linear model on the features that the frozen layer computes
    features = Pool(torch.relu(first(torch.from_numpy(pool.x))).numpy(), pool.y)
    linear = replace(spec, architecture=Architecture("linear", 32, CLASSES))
    for model, seed in enumerate((1, 2)):
        trained = torch.cat([models.parameters[name][model].flatten() for name in ("2.weight", "2.bias")]).numpy()
        np.testing.assert_allclose(trained, train_one(linear, features, np.ones(20, dtype=bool), seed), atol=5e-6)


class Affine(nn.Module):
    """A layer Opacus has no rule for, with parameters of its own."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.linspace(0.5, 1.5, size))
        self.mixing = nn.Parameter(torch.eye(size))

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * (x @ self.mixing)


def test_layers_of_ones_own_are_trained_too() -> None:
    spec = specification(lambda inputs, classes: nn.Sequential(nn.Linear(inputs, 6), Affine(6), nn.Linear(6, classes)))
    pool, everyone = records(20, seed=13), np.ones((1, 20), dtype=bool)
    models = opacus_path.train(spec, pool, everyone, [1])
    np.testing.assert_allclose(flat(models, 0), train_one(spec, pool, everyone[0], 1), atol=5e-6)


def test_shared_memory_that_must_not_be_written_is_accepted() -> None:
    pool, spec = records(6, seed=12), specification()
    expected = flat(opacus_path.train(spec, pool, np.ones((1, 6), dtype=bool), [1]), 0)
    pool.x.setflags(write=False)
    pool.y.setflags(write=False)
    members = np.broadcast_to(np.ones(6, dtype=bool), (2, 6))
    assert np.array_equal(flat(opacus_path.train(spec, pool, members, [1, 2]), 0), expected)


def test_the_ledger_says_what_happened() -> None:
    spec, steps = specification(order=1), []
    ledger = opacus_path.train(spec, records(20, 9), np.ones((1, 20), dtype=bool), [1], progress=steps.append).ledger
    assert (ledger.noise_draws, len(ledger.batch_sizes), sum(steps)) == (4, 4, 4)
    assert (ledger.engine, ledger.device, ledger.divisor) == ("opacus", DEVICE.type, 10.0)
    assert (ledger.clip, ledger.clip_norm, ledger.sampling_prob) == (52.0, 1.0, 0.5)


class Centred(nn.Module):
    """A layer of one's own that subtracts the batch's mean: BatchNorm by another name."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(dim=0)


class Rooted(nn.Module):
    """A layer that has no number for half of its inputs."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sqrt()


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (Rooted, "with finite outputs at normal weights and records"),
        (lambda: nn.BatchNorm1d(8), r"1 \(BatchNorm1d\)"),
        (lambda: nn.BatchNorm1d(8, affine=False, track_running_stats=False), r"1 \(BatchNorm1d\)"),
        (lambda: nn.LSTM(8, 8), r"1 \(LSTM\)"),
        (Centred, "one record of a batch influences another"),
        (lambda: nn.Linear(8, 5), r"to map \(3, 20\) to \(3, 4\), not to \(3, 5\)"),
    ],
)
def test_what_has_no_gradient_per_record_is_refused_in_one_line(layer: Callable[[], nn.Module], reason: str) -> None:
    def build(inputs: int, classes: int) -> nn.Module:
        last = layer()
        head = [nn.Linear(8, classes)] if not isinstance(last, nn.Linear) else []
        return nn.Sequential(nn.Linear(inputs, 8), last, *head)

    with pytest.raises(ValueError, match=f"Expected architecture='mine' .*{reason}") as error:
        opacus_path.train(specification(build, init="zeros"), records(6, seed=10), np.ones((1, 6), dtype=bool), [1])
    assert "\n" not in str(error.value)


def test_nothing_to_train_is_refused() -> None:
    everyone = np.ones((1, 6), dtype=bool)
    with pytest.raises(ValueError, match="to have trainable parameters"):
        opacus_path.train(specification(lambda inputs, classes: nn.ReLU()), records(6, 11), everyone, [1])
