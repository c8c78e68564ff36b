"""The further training algorithms, from recipe to bundle, claim and audit: what they reach on real data, and refuse."""

import math
import os
import tomllib
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpaudit.audit.attacks import pilot
from dpaudit.audit.attacks.clipbkd import CLIPBKD
from dpaudit.audit.inputs.bundles import load_bundle
from dpaudit.audit.inputs.datasets import Dataset, load
from dpaudit.audit.inputs.files import InputError
from dpaudit.audit.inputs.recipes import Recipe, load_recipe
from dpaudit.audit.runner import check_recipe, run
from dpaudit.audit.settings import Settings
from dpaudit.audit.training_run import train_bundle
from dpaudit.audit.trials import blocks, local_engine
from dpaudit.audit.trials.engine import TrialRunner, TrialSetup
from dpaudit.mechanisms.learning.spec import Pool
from dpaudit.mechanisms.learning.training import logits, train
from dpaudit.verify import Claim, check
from dpaudit.verify.claims import Phase

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = ["digits-dp-ftrl", "digits-dp-ftrl-gamma-plrv", "digits-laplace-schedule", "digits-approximate-minima"]
FASHION = Path(os.environ.get("DPAUDIT_DATA", "/nowhere"), "fashion_mnist")
needs_fashion = pytest.mark.skipif(not FASHION.is_dir(), reason="needs the folder fashion_mnist under DPAUDIT_DATA")


def quiet(what: str, total: int) -> object:
    return lambda done: None


def changed(name: str, **changes: Any) -> dict[str, Any]:
    """The data of an example with values replaced, keys like table__key; None removes one."""
    data = load_recipe(EXAMPLES / f"{name}.toml").to_dict()
    for path, value in changes.items():
        table, _, key = path.rpartition("__")
        target = data[table] if table else data
        if value is None:
            target.pop(key)
        else:
            target[key] = value
    return data


def accuracy(recipe: Recipe, dataset: Dataset, models: int = 3) -> float:
    """Mean test accuracy of some models."""
    members = np.ones((models, len(dataset.y)), dtype=bool)
    trained = train(recipe.spec(dataset), Pool(dataset.x, dataset.y), members, range(models))
    predicted = logits(trained, dataset.x_test).argmax(dim=-1).numpy()
    return float((predicted == dataset.y_test).mean())


LITTLE_MORE_TOO_MUCH: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "dp-ftrl": ("digits-dp-ftrl", [{"mechanism__noise_multiplier": value} for value in (1.0, 15.0, 300.0)]),
    "dp-ftrl-gamma-plrv": ("digits-dp-ftrl-gamma-plrv", [{"mechanism__theta": value} for value in (4e-5, 1e-6, 1e-7)]),
    "schedule": (
        "digits-laplace-schedule",
        [
            {"schedule": {"scale": {"start": 3 * f, "end": f, "levels": 5}, "clip": [1.0] * 100}}
            for f in (0.1, 20, 400)
        ],
    ),
    "approximate-minima": (
        "digits-approximate-minima",
        [{"mechanism__noise_multiplier": value} for value in (1.0, 60.0, 1000.0)],
    ),
    "output-perturbation": (
        "fashion-product-release",
        [
            {
                "dataset": {"name": "digits", "classes": [3, 8]},
                "mechanism": {"name": "product", "sigma": sigma, "clip": 0.1},
            }
            for sigma in (0.1, 10.0, 1000.0)
        ],
    ),
}  # fmt: skip
# DP-SGD: every mechanism by the field that is its noise, at a clip of 1 (5 where the norm is l_1.5)
for table, field, values in (
    ({"name": "gaussian"}, "noise_multiplier", (0.5, 60.0, 1000.0)),
    ({"name": "laplace"}, "scale", (0.5, 40.0, 700.0)),
    ({"name": "gamma-plrv", "k": 20.0}, "theta", (0.1, 1.2e-3, 7e-5)),
    ({"name": "gamma-plrv-iid", "k": 20.0}, "theta", (0.1, 1.2e-3, 7e-5)),
    ({"name": "product"}, "sigma", (10.0, 1500.0, 30_000.0)),
    ({"name": "generalized-gaussian", "beta": 1.5, "clip_norm": 1.5, "clip": 5.0}, "scale", (1.0, 200.0, 5000.0)),
    ({"name": "gamma-scale-laplace", "k": 20.0}, "theta", (0.025, 2.0, 35.0)),
):
    LITTLE_MORE_TOO_MUCH[f"dp-sgd-{table['name']}"] = (
        "digits-gaussian",
        [{"mechanism": {"clip": 1.0, **table, field: value}, "optimizer__learning_rate": 4.0} for value in values],
    )


@pytest.mark.parametrize("case", LITTLE_MORE_TOO_MUCH)
def test_digits_are_learned_with_little_noise_and_less_with_more(case: str) -> None:
    name, variants = LITTLE_MORE_TOO_MUCH[case]
    recipes = [Recipe.from_dict(changed(name, **changes)) for changes in variants]
    reached = [accuracy(recipe, recipe.load_dataset(), 6) for recipe in recipes]
    assert reached[0] >= 0.9
    assert reached[0] > reached[1] + 0.02 > reached[2] + 0.04


def test_a_huber_svm_learns_too_and_product_noise_as_well() -> None:
    for changes in (
        {"loss": "huber"},
        {
            "mechanism": {"name": "product", "sigma": 5.0},
            "output_mechanism": {"name": "product", "sigma": 1e-4, "clip": 2e-6},
        },
    ):
        recipe = Recipe.from_dict(changed("digits-approximate-minima", **changes))
        assert accuracy(recipe, recipe.load_dataset()) >= 0.9


@cache
def two_classes() -> Dataset:
    recipe = changed("digits-gaussian", dataset={"name": "fashion-mnist", "classes": [0, 1]}, audit_records=0)
    return Recipe.from_dict(recipe).load_dataset()


@needs_fashion
@pytest.mark.parametrize("case", LITTLE_MORE_TOO_MUCH)
def test_two_classes_of_fashion_mnist_are_learned_with_little_noise(case: str) -> None:
    name, variants = LITTLE_MORE_TOO_MUCH[case]
    changes = {**variants[0], "dataset": {"name": "fashion-mnist", "classes": [0, 1]}, "audit_records": 0}
    if name.endswith("minima"):
        changes |= {"regularization": 1.0, "output_mechanism__clip": 2e-5}
    elif name == "fashion-product-release":
        changes |= {"regularization": 1.0, "mechanism": {**changes["mechanism"], "clip": 1.0}}
    else:
        changes["optimizer__learning_rate"] = 4.0
    assert accuracy(Recipe.from_dict(changed(name, **changes)), two_classes(), 1) >= 0.97


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_trained_saved_and_certified(name: str, tmp_path: Path) -> None:
    recipe, path = load_recipe(EXAMPLES / f"{name}.toml"), tmp_path / "model.pt"
    train_bundle(recipe, path, seed=1, device="cpu", stage=quiet)  # type: ignore[arg-type]
    bundle = load_bundle(path)
    assert bundle.recipe.claim_object().phases == bundle.recipe.phases()
    assert bundle.ledger is not None
    assert bundle.ledger.noise_draws >= recipe.steps
    verdict = check_recipe(bundle.recipe)
    assert (verdict.verdict, verdict.epsilon_upper <= recipe.claim.epsilon) == ("certified", True)
    assert verdict.epsilon_upper > 0.9 * recipe.claim.epsilon


def test_the_histories_that_are_claimed() -> None:
    entered = {name: load_recipe(EXAMPLES / f"{name}.toml").record_releases() for name in NAMES}
    assert entered == {
        "digits-dp-ftrl": (40,),
        "digits-dp-ftrl-gamma-plrv": (40,),
        "digits-laplace-schedule": (20,) * 5,
        "digits-approximate-minima": (1, 1),
    }
    summary = load_recipe(EXAMPLES / "digits-laplace-schedule.toml").claim_summary()
    assert [row["mechanism"]["clip"] for row in summary["phase"]] == pytest.approx(np.geomspace(1, 0.5, 5))
    assert summary["steps"] == 100


@pytest.mark.parametrize("name", NAMES[:2])
def test_tree_noise_costs_what_the_nodes_above_a_record_cost(name: str) -> None:
    recipe = load_recipe(EXAMPLES / f"{name}.toml").with_dimension(650)
    (phase,) = recipe.phases()
    assert (phase.steps, phase.sampling_kind, recipe.claim_summary()["steps"]) == (80, "fixed-order", 40)
    nodes = check(Claim(recipe.claim.epsilon, recipe.claim.delta, [Phase(recipe.mechanism, 40, 1.0, "none")]))
    found = check_recipe(recipe)
    assert (found.epsilon_lower, found.epsilon_upper) == pytest.approx(
        (nodes.epsilon_lower, nodes.epsilon_upper), 1e-12
    )
    user = Recipe.from_dict(changed(name, claim__unit="user"))
    assert user.claim_summary()["unit"] == "user"
    assert "neighbours differ by the presence of one user" in check_recipe(user).assumptions


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bits_on_any_number_of_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the trials that count are handed to workers, which take seconds to start; else so few never are."""
    monkeypatch.setattr(blocks, "BLOCK_SECONDS", 0.05)
    plain, sizes = TrialRunner.run, []

    def handed_out(self: TrialRunner, setup: TrialSetup, *lists: Any, what: str = "") -> Any:
        counted = what == CLIPBKD.making
        sizes.extend([setup.block] * counted)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(local_engine, "SERIAL_SECONDS", -1.0 if counted else math.inf)
            return plain(self, setup, *lists, what=what)

    monkeypatch.setattr(TrialRunner, "run", handed_out)
    recipe = Recipe.from_dict(changed("digits-dp-ftrl", steps=8, audit_records=0))
    path = tmp_path / "model.pt"
    train_bundle(recipe, path, seed=1, device="cpu", stage=quiet)  # type: ignore[arg-type]
    bundle = load_bundle(path)
    dataset = bundle.recipe.load_dataset()
    results = []
    for workers in (1, 2):
        settings = Settings(seed=3, attacks=("clipbkd",), trials=150, control=False, device="cpu", workers=workers)
        attack = run(bundle, dataset, settings).attacks[0]
        results.append((attack.auc, attack.bound, attack.roc))
    assert results[0] == results[1]
    assert sizes == [32, 32]  # five blocks an arm


@pytest.mark.slow
def test_half_the_noise_of_dp_ftrl_is_refuted_and_all_of_it_is_not(tmp_path: Path) -> None:
    """One pass of one batch: the only node is the sum of everything, and ClipBKD sees it."""
    common = {"steps": 1, "batches": 1, "audit_records": 0, "mechanism__noise_multiplier": 5 / 3}
    common |= {
        "dataset": {"name": "digits", "classes": [0, 1]},
        "claim__epsilon": 2.445,
        "optimizer__learning_rate": 0.5,
    }
    for defect, verdict in ((None, "not_refuted"), ("half-noise", "refuted")):
        data = changed("digits-dp-ftrl", **common)
        recipe = Recipe.from_dict(data if defect is None else {**data, "planted_defect": defect})
        path = tmp_path / "model.pt"
        train_bundle(recipe, path, seed=1, device="cpu", stage=quiet)  # type: ignore[arg-type]
        bundle = load_bundle(path)
        silent = defect is None  # what refutes needs no control
        settings = Settings(seed=1, attacks=("clipbkd",), trials=200, control=silent, device="cpu", workers=1)
        result = run(bundle, bundle.recipe.load_dataset(), settings)
        assert (result.verdict, result.claim_check and result.claim_check.verdict) == (verdict, "certified")


@pytest.mark.slow
def test_the_papers_calibration_of_approximate_minima_is_refuted_by_attack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dpaudit.mechanisms.published.product import calibrated_sigma, theorem_8_delta

    monkeypatch.setattr(pilot, "PAIRS", 4)
    recipe, path = load_recipe(EXAMPLES / "digits-product-minima.toml"), tmp_path / "model.pt"
    error = float(recipe.gradient_norm or 0) / float(recipe.regularization or 1)
    spent = 0.0
    releases = ((recipe.mechanism.sigma, 2.0, 0.025), (recipe.output_mechanism.sigma, error, 0.05))
    for sigma, sensitivity, epsilon in releases:
        assert sigma == pytest.approx(calibrated_sigma(sensitivity, epsilon=epsilon, dimension=64, k=50_000.0))
        spent += theorem_8_delta(dimension=64, shift=sensitivity / sigma, k=50_000.0)
    assert spent <= recipe.claim.delta
    train_bundle(recipe, path, seed=1, device="cpu", stage=quiet)  # type: ignore[arg-type]
    bundle = load_bundle(path)
    settings = Settings(seed=1, attacks=("approximate-minima",), trials=500, control=False, device="cpu", workers=1)
    result = run(bundle, bundle.recipe.load_dataset(), settings)
    assert result.verdict == "refuted"
    assert "approximate-minima:epsilon_lower" in result.refuted_by
    assert (result.epsilon_lower or 0) > 5 * recipe.claim.epsilon


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("digits-dp-ftrl", {"batches": None}, "batches: Expected this key with algorithm='dp-ftrl'"),
        ("digits-dp-ftrl", {"batches": 0}, "batches: Expected 0 to be greater than or equal to 1"),
        ("digits-dp-ftrl", {"loss": "huber"}, "loss: Expected it only with algorithm='approximate-minima'"),
        ("digits-dp-ftrl", {"sampling": {"kind": "poisson", "prob": 0.1}}, r"sampling\.kind: Expected 'poisson' to be"),
        (
            "digits-dp-ftrl",
            {"architecture__name": "own.py:build"},
            "to be 'linear', 'fnn' or 'cnn' with algorithm='dp-ftrl'",
        ),
        ("digits-laplace-schedule", {"batches": 4}, "batches: Expected it only with algorithm='dp-ftrl'"),
        (
            "digits-laplace-schedule",
            {"schedule__clip": [1.0]},
            r"schedule\.clip of 1 numbers to have one for each of 100",
        ),
        ("digits-laplace-schedule", {"schedule__sigma": [1.0] * 100}, r"schedule\.sigma to be one of scale, clip"),
        ("digits-laplace-schedule", {"schedule__clip": {"start": 1.0, "end": 1.0}}, r"schedule\.clip.*levels"),
        ("digits-laplace-schedule", {"architecture__name": "own.py:build"}, "to be one of linear, fnn, cnn with a sch"),
        ("digits-approximate-minima", {"gradient_norm": None}, "gradient_norm: Expected this key"),
        ("digits-approximate-minima", {"output_mechanism": None}, "output_mechanism: Expected this key"),
        ("digits-approximate-minima", {"loss": "hinge"}, "loss: Expected 'hinge'"),
        ("digits-approximate-minima", {"mechanism__clip": 0.5}, r"mechanism\.clip: Expected 0\.5 to be at least 1"),
        ("digits-approximate-minima", {"output_mechanism__clip": 1e-6}, r"output_mechanism\.clip: .* at least 2e-06"),
        ("digits-approximate-minima", {"mechanism__clip_norm": 1.0}, r"mechanism\.clip_norm: Expected 1\.0 to be"),
        ("digits-approximate-minima", {"steps": 2}, "steps: Expected 2 to be 1"),
        ("digits-approximate-minima", {"architecture__name": "linear"}, r"architecture\.name: Expected 'linear' to be"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        Recipe.from_dict(changed(name, **changes))
    assert str(caught.value).isprintable()


def test_replace_one_needs_half_the_output_clip() -> None:
    changes = {"output_mechanism__clip": 1e-6, "claim__adjacency": "replace-one"}
    assert Recipe.from_dict(changed("digits-approximate-minima", **changes)).output_mechanism.clip == 1e-6


def test_a_dimension_is_filled_into_every_mechanism() -> None:
    dataset = load("digits", classes=[3, 8])
    spec = load_recipe(EXAMPLES / "digits-approximate-minima.toml").spec(dataset)
    assert spec.output_mechanism is not None
    assert spec.mechanism.dimension == spec.output_mechanism.dimension == 64
    wrong = Recipe.from_dict(changed("digits-approximate-minima", output_mechanism__dimension=65))
    with pytest.raises(InputError, match=r"output_mechanism\.dimension: Expected 65 to be the model's 64 parameters"):
        wrong.spec(dataset)


FROZEN = """
import torch
from torch import nn

def build(inputs, classes):
    first = nn.Linear(inputs, 8).requires_grad_(False)
    with torch.no_grad():
        first.weight.copy_(torch.arange(8.0 * inputs).reshape(8, inputs).sin())
    first.bias.data.zero_()
    return nn.Sequential(first, nn.Tanh(), nn.Linear(8, classes))
"""


def test_a_network_that_is_frozen_in_part_is_trained_and_queried_without_that_part(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(FROZEN)
    data = tomllib.loads((Path(__file__).parents[2] / "examples" / "digits-headline.toml").read_text())
    recipe = Recipe.from_dict({**data, "architecture": {"name": "net.py:build"}}, folder=tmp_path)
    train_bundle(recipe, tmp_path / "m.pt", seed=1, device="cpu", stage=lambda what, total: lambda done: None)
    bundle, dataset = load_bundle(tmp_path / "m.pt", recipe=recipe), recipe.load_dataset()
    assert list(bundle.state_dict) == ["2.weight", "2.bias"]
    weights = np.sin(np.arange(8.0 * dataset.x.shape[1])).reshape(8, -1)
    outputs = (
        np.tanh(dataset.x @ weights.T) @ bundle.state_dict["2.weight"].numpy().T + bundle.state_dict["2.bias"].numpy()
    )
    spec = recipe.spec(dataset)
    np.testing.assert_allclose(logits(bundle.models(spec), dataset.x)[0], outputs, atol=1e-3)
    first = {name: 0.5 * tensor.numpy() for name, tensor in bundle.state_dict.items()}
    started = replace(spec, first_weights=first, learning_rate=1e-30)
    models = train(started, Pool(dataset.x, dataset.y), np.ones((1, len(dataset.y)), dtype=bool), [1])
    np.testing.assert_allclose(models.parameters["2.weight"][0], first["2.weight"], atol=1e-12)
    [found] = run(bundle, dataset, Settings(seed=1, attacks=("one-run-movement",), trials=10, device="cpu")).attacks
    assert found.trials > 0
    (tmp_path / "net.py").write_text(FROZEN.replace("torch.arange(8.0 * inputs)", "torch.rand(8 * inputs)"))
    with pytest.raises(InputError, match=r"the same numbers whenever it is built, but for those trained: 0\.weight"):
        train_bundle(recipe, tmp_path / "m.pt", seed=1, device="cpu", stage=lambda what, total: lambda done: None)
