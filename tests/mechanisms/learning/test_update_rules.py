"""Optimizers of torch's on the noisy averaged gradient: every training path equals a plain loop with a plain Adam."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from reference import flat, train_one

from dpaudit.mechanisms import Gaussian
from dpaudit.mechanisms.learning.architectures import cnn
from dpaudit.mechanisms.learning.spec import Architecture, DPFTRLSpec, DPSGDSpec, Pool
from dpaudit.mechanisms.learning.training import train
from dpaudit.mechanisms.learning.update_rules import ELEMENTWISE, REFUSED, UpdateRule

ADAM = UpdateRule("adam", {"betas": [0.8, 0.95], "eps": 1e-3})
MODELS, RECORDS = 3, 12
PATHS = [
    Architecture("linear", 9, 3),
    Architecture("fnn", 9, 3, {"hidden": 4}),
    Architecture("cnn", 196, 3),
    Architecture("mine", 196, 3, build=cnn),
]


def pool(inputs: int) -> Pool:
    rng = np.random.default_rng(1)
    return Pool(rng.random((RECORDS, inputs), dtype=np.float32), rng.integers(0, 3, RECORDS))


def spec(architecture: Architecture, rule: UpdateRule | None = ADAM) -> DPSGDSpec:
    return DPSGDSpec(
        architecture=architecture, mechanism=Gaussian(0.5, clip=1.5), steps=4, sampling_prob=0.5,
        expected_batch_size=6.0, learning_rate=0.05, update_rule=rule,
    )  # fmt: skip


def members() -> np.ndarray:
    return np.random.default_rng(2).random((MODELS, RECORDS)) < 0.8


@pytest.mark.parametrize("architecture", PATHS, ids=lambda architecture: architecture.name)
def test_adam_equals_a_plain_loop_with_a_plain_adam(architecture: Architecture) -> None:
    models = train(spec(architecture), pool(architecture.inputs), members(), [4, 5, 6])
    for model in (0, 2):
        expected = train_one(spec(architecture), pool(architecture.inputs), members()[model], 4 + model)
        np.testing.assert_allclose(flat(models, model), expected, atol=2e-5)


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_models_that_train_together_do_not_influence_each_other(name: str) -> None:
    rule = UpdateRule(name, {"momentum": 0.5} if name in ("sgd", "rmsprop") else {})
    together = train(spec(PATHS[1], rule), pool(9), members(), [4, 5, 6])
    alone = train(spec(PATHS[1], rule), pool(9), members()[1:2], [5])
    for both, one in zip(together.parameters.values(), alone.parameters.values(), strict=True):
        np.testing.assert_allclose(both[1], one[0], atol=1e-6)


def test_torchs_descent_with_momentum_is_the_plain_one() -> None:
    everyone = members()
    rule = UpdateRule("sgd", {"momentum": 0.5})
    for kind in (spec(PATHS[0], None), _dp_ftrl()):
        plain = train(replace(kind, momentum=0.5), pool(9), everyone, [4, 5, 6])
        through = train(replace(kind, update_rule=rule), pool(9), everyone, [4, 5, 6])
        for ours, theirs in zip(plain.parameters.values(), through.parameters.values(), strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-6)


def _dp_ftrl() -> DPFTRLSpec:
    return DPFTRLSpec(
        architecture=PATHS[0], mechanism=Gaussian(0.5, clip=1.5), steps=4, expected_batch_size=6.0, batches=2
    )


@pytest.mark.parametrize("name", [*REFUSED, "adma", "Adam"])
def test_an_optimizer_that_mixes_coordinates_or_does_not_exist_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"Expected name='{name}'.* among adadelta"):
        UpdateRule(name)


def test_every_optimizer_of_torch_is_known_or_refused() -> None:
    there = {
        name.lower() for name, kind in vars(torch.optim).items()
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
    }  # fmt: skip
    assert there <= ELEMENTWISE.keys() | REFUSED.keys()


def test_momentum_beside_an_update_rule_is_refused() -> None:
    with pytest.raises(ValueError, match=r"momentum=0\.5 to be 0 with an update rule"):
        train(replace(spec(PATHS[0]), momentum=0.5), pool(9), members(), [1, 2, 3])
