"""The one training function: the right path, clear refusals, and outputs equal to the modules' own."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from dpaudit.mechanisms import Gaussian, Product
from dpaudit.mechanisms.defects import Defect
from dpaudit.mechanisms.learning import training
from dpaudit.mechanisms.learning.architectures import build_module, parameter_count
from dpaudit.mechanisms.learning.spec import Architecture, DPSGDSpec, OutputPerturbationSpec, Pool, TrainingSpec

RECORDS = 12


def tanh_network(inputs: int, classes: int, hidden: int = 5) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Dropout(0.5), nn.Linear(hidden, classes))


ARCHITECTURES = {
    "ensemble": Architecture("linear", 6, 3),
    "ensemble fnn": Architecture("fnn", 6, 3, {"hidden": 4}),
    "ensemble unbiased": Architecture("linear", 6, 3, {"bias": False}),
    "minimiser": Architecture("logistic", 6, 2),
    "convolution": Architecture("cnn", 196, 3),
    "opacus": Architecture("mine", 6, 3, {"hidden": 7}, tanh_network),
}


def pool_for(architecture: Architecture) -> Pool:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(RECORDS, architecture.inputs)).astype(np.float32)
    return Pool(x, np.arange(RECORDS) % architecture.classes)


def specification(architecture: Architecture = ARCHITECTURES["ensemble"], **changes: object) -> TrainingSpec:
    spec = DPSGDSpec(
        architecture=architecture, mechanism=Gaussian(1.0, clip=1.0), steps=2, sampling_prob=0.5,
        expected_batch_size=6.0,
    )  # fmt: skip
    return on_minimum(architecture) if architecture.name == "logistic" else replace(spec, **changes)  # type: ignore[arg-type]


def on_minimum(architecture: Architecture) -> OutputPerturbationSpec:
    return OutputPerturbationSpec(
        architecture=architecture, mechanism=Product(0.1), expected_batch_size=12.0, regularization=1.0
    )


@pytest.mark.parametrize("case", ARCHITECTURES)
def test_each_architecture_takes_its_path_and_answers_as_its_module(case: str) -> None:
    architecture = ARCHITECTURES[case]
    pool, members = pool_for(architecture), np.ones((3, RECORDS), dtype=bool)
    models = training.train(specification(architecture), pool, members, [4, 5, 6])
    assert models.ledger.engine == case.split()[0]
    assert sum(tensor[0].numel() for tensor in models.parameters.values()) == parameter_count(architecture)
    outputs = training.logits(models, pool.x)
    assert outputs.shape == (3, RECORDS, architecture.classes)
    assert outputs.dtype == torch.float32
    assert outputs[0].sub(outputs[1]).abs().max() > 1e-3
    module = build_module(architecture).eval()
    for model in range(3):
        module.load_state_dict(models.state_dict(model))
        with torch.no_grad():
            expected = module(torch.from_numpy(pool.x))
        if architecture.name == "logistic":
            expected = torch.cat([torch.zeros_like(expected), expected], dim=1)
        torch.testing.assert_close(outputs[model], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("case", [case for case in ARCHITECTURES if case != "minimiser"])
def test_first_weights_are_where_training_begins(case: str) -> None:
    """With nobody's records and no noise nothing moves."""
    rng = np.random.default_rng(3)
    fresh = build_module(ARCHITECTURES[case]).state_dict()
    given = {name: rng.normal(size=tuple(value.shape)).astype(np.float32) for name, value in fresh.items()}
    spec = specification(ARCHITECTURES[case], first_weights=given, defect=Defect(noise_factor=0.0))
    models = training.train(spec, pool_for(spec.architecture), np.zeros((2, RECORDS), dtype=bool), [1, 2])
    for name, value in given.items():
        np.testing.assert_array_equal(models.parameters[name].numpy(), np.stack([value, value]))


def test_many_models_are_queried_in_parts_that_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    architecture = ARCHITECTURES["ensemble fnn"]
    pool = pool_for(architecture)
    models = training.train(specification(architecture), pool, np.ones((7, RECORDS), dtype=bool), range(7))
    whole = training.logits(models, pool.x)
    monkeypatch.setattr(training, "QUERY_NUMBERS", 2 * 4 * RECORDS)
    torch.testing.assert_close(training.logits(models, torch.from_numpy(pool.x)), whole, atol=1e-6, rtol=0)


def test_the_callers_random_state_is_left_alone() -> None:
    before = torch.random.get_rng_state()
    for architecture in ARCHITECTURES.values():
        members = np.ones((1, RECORDS), dtype=bool)
        training.logits(
            training.train(specification(architecture), pool_for(architecture), members, [1]),
            pool_for(architecture).x,
        )
    assert torch.random.get_rng_state().equal(before)


IN_A_PROCESS_OF_ITS_OWN = """
import sys
import numpy as np, torch
torch.set_num_threads(1)
sys.path.insert(0, sys.argv[1])
import conftest, test_training as t

def bits(case):
    spec = t.specification(t.ARCHITECTURES[case])
    pool, members = t.pool_for(spec.architecture), np.ones((2, t.RECORDS), dtype=bool)
    models = t.training.train(spec, pool, members, [1, 2], device=conftest.DEVICE.type)
    return [tensor.numpy().tobytes() for tensor in models.parameters.values()]

full = {case: bits(case) for case in sys.argv[3:]}
if sys.argv[2] == "older":
    torch.set_float32_matmul_precision("medium")
    torch.backends.cudnn.allow_tf32 = True
else:
    exec("torch.backends." + sys.argv[2])

def allowed():
    b = torch.backends
    places = [b.cuda.matmul, b.cudnn.conv, b.cudnn.rnn, b.mkldnn.matmul, b.mkldnn.conv]
    return [getattr(place, "fp32_precision", None) for place in places], b.cudnn.benchmark, b.cudnn.deterministic

before = allowed()
print(full == {case: bits(case) for case in full}, before == allowed())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "allowed",
    ["older", "fp32_precision = 'tf32'", "fp32_precision = 'ieee'", "cuda.matmul.fp32_precision = 'tf32'"],
)
def test_the_callers_low_precision_is_neither_used_nor_lost(allowed: str) -> None:
    if "=" in allowed and not hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        pytest.skip("needs torch 2.9")
    command = [sys.executable, "-c", IN_A_PROCESS_OF_ITS_OWN, str(Path(__file__).parent), allowed]
    command += ["ensemble", "convolution", "opacus"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.stdout == "True True\n", result.stderr


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert (training.resolve_device("auto"), training.resolve_device("cpu")) == ("cpu", "cpu")
    with pytest.raises(ValueError, match="Expected device='cuda' to be there"):
        training.resolve_device("cuda")
    with pytest.raises(ValueError, match="Expected device='tpu' to be"):
        training.resolve_device("tpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert [training.resolve_device(name) for name in ("auto", "cuda", "cpu")] == ["cuda", "cuda", "cpu"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"steps": 0}, r"Expected steps=0 in .*\[1, inf\)"),
        ({"sampling_prob": 1.3}, r"Expected sampling_prob=1.3 in \(0, 1\]"),
        ({"expected_batch_size": 0.0}, "Expected expected_batch_size=0.0 in"),
        ({"learning_rate": float("nan")}, "Expected learning_rate=nan in"),
        ({"momentum": 1.0}, r"Expected momentum=1.0 in \[0, 1\)"),
        ({"init": "ones"}, "Expected init='ones' to be"),
        (
            {"architecture": Architecture("rnn", 6, 3)},
            "Expected architecture='rnn' to be one of bag-of-embeddings, cnn",
        ),
        ({"first_weights": {"weight": np.zeros((2, 6))}}, "Expected first_weights of shapes .* to have .*3, 6"),
        ({"architecture": Architecture("fnn", 6, 3, {"hidden": 0})}, "Expected hidden=0 >= 1"),
        ({"architecture": Architecture("linear", 6, 3, {"hidden": 2})}, "Expected kwargs of architecture='linear' to"),
        ({"architecture": Architecture("logistic", 6, 2)}, "Expected architecture='logistic' and algorithm='dp-sgd'"),
        ({"mechanism": Gaussian(1.0, dimension=20)}, "Expected dimension=20 to be 21, the number of parameters"),
    ],
)
def test_a_spec_that_makes_no_sense_is_refused(changes: dict[str, object], reason: str) -> None:
    pool = pool_for(ARCHITECTURES["ensemble"])
    with pytest.raises(ValueError, match=reason):
        training.train(replace(specification(), **changes), pool, np.ones((1, RECORDS), dtype=bool), [1])  # type: ignore[arg-type]


def test_a_network_has_no_minimum_to_release() -> None:
    architecture, everyone = ARCHITECTURES["ensemble"], np.ones((1, RECORDS), dtype=bool)
    with pytest.raises(ValueError, match="Expected architecture='linear' and algorithm='output-perturbation'"):
        training.train(on_minimum(architecture), pool_for(architecture), everyone, [1])


def test_data_that_do_not_fit_are_refused() -> None:
    spec, pool, members = specification(), pool_for(ARCHITECTURES["ensemble"]), np.ones((2, RECORDS), dtype=bool)
    infinite = pool.x.copy()
    infinite[0, 0] = np.inf
    for changed, who, seeds, reason in (
        (Pool(pool.x[:, :5], pool.y), members, [1, 2], r"Expected x of shape \(12, 5\) to be \(12, 6\)"),
        (Pool(infinite, pool.y), members, [1, 2], "Expected x to hold finite numbers"),
        (Pool(pool.x, pool.y + 1), members, [1, 2], r"Expected labels from 1 to 3 to be in 0\.\.2"),
        (pool, members.astype(float), [1, 2], "Expected members of float64"),
        (pool, members, [1], r"Expected members of bool \(2, 12\) to be bool \(1, 12\)"),
        (pool, members[:0], [], "Expected at least one seed"),
        (pool, members, [1, -1], "Expected seed=-1 >= 0"),
    ):
        with pytest.raises(ValueError, match=reason):
            training.train(spec, changed, who, seeds)  # type: ignore[arg-type]
