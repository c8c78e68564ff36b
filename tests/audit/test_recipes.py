"""Recipes: what is refused and how it is said, round trips, and the training and claim that follow from them."""

import copy
import json
import math
import pickle
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import mpmath as mp
import numpy as np
import pytest

from dpaudit.audit.inputs.coins import draw_coins
from dpaudit.audit.inputs.datasets import Dataset, load
from dpaudit.audit.inputs.files import InputError
from dpaudit.audit.inputs.networks import parameter_shapes
from dpaudit.audit.inputs.recipes import Recipe, load_recipe
from dpaudit.mechanisms import Gaussian, Laplace
from dpaudit.mechanisms.defects import CORRECT
from dpaudit.mechanisms.learning.architectures import build_module, parameter_count
from dpaudit.mechanisms.learning.spec import DPSGDSpec
from dpaudit.mechanisms.learning.update_rules import UpdateRule
from dpaudit.verify.claim_files import claim_from_dict
from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.samplers import SAMPLERS, Shuffled, sampler_from_dict

EXAMPLES = Path(__file__).parents[2] / "examples"
NAN = float("nan")
SHUFFLED = {"kind": "shuffled", "batches": 4, "epochs": 2}


def example() -> dict[str, Any]:
    return tomllib.loads((EXAMPLES / "digits-headline.toml").read_text())


def changed(**changes: Any) -> dict[str, Any]:
    """The example with some dotted keys (written a__b) set, or removed where None."""
    data = copy.deepcopy(example())
    for dotted, value in changes.items():
        *tables, key = dotted.split("__")
        table = data
        for name in tables:
            table = table.setdefault(name, {})
        if value is None:
            del table[key]
        else:
            table[key] = value
    return data


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load("digits", classes=[0, 1])


REFUSED = [
    ({"mechanism__noise_multiplier": NAN}, r"mechanism\.noise_multiplier: Expected noise_multiplier=nan"),
    ({"mechanism__noise_multiplier": -1.0}, r"mechanism\.noise_multiplier: Expected noise_multiplier=-1\.0"),
    ({"mechanism__noise_multiplier": "1"}, r"mechanism\.noise_multiplier: Expected noise_multiplier='1'"),
    ({"mechanism__nois_multiplier": 1.0}, r"mechanism\.nois_multiplier: .*noise_multiplier"),
    ({"mechanism__name": "gausian"}, r"mechanism\.name: .*gaussian"),
    ({"mechanism__dimension": 0}, r"mechanism\.dimension: Expected dimension=0"),
    ({"mechanism": 3}, r"mechanism: Expected a table"),
    ({"mechanism": None}, r"mechanism: Expected this key: it is required"),
    ({"stps": 3}, r"stps: Expected a known key: did you mean steps\?"),
    ({"optimizer__learning_rat": 1.0}, r"optimizer\.learning_rat: .*did you mean learning_rate\?"),
    ({"optimizer__learning_rate": 0.0}, r"optimizer\.learning_rate: Expected 0\.0 to be greater than 0"),
    ({"optimizer__momentum": 1.0}, r"optimizer\.momentum: Expected 1\.0 to be less than 1"),
    ({"optimizer__name": "adma"}, r"optimizer: Expected name='adma' among adadelta, .*adam"),
    ({"optimizer__name": "lbfgs"}, r"optimizer: Expected name='lbfgs' \(it asks for the gradient again"),
    ({"optimizer__name": "adam", "optimizer__momentum": 0.5}, r"optimizer: Expected momentum=0\.5 only with"),
    ({"optimizer__kwargs": {"nesterov": "yes"}}, r"optimizer: Expected kwargs\.nesterov='yes' to be a number"),
    ({"claim__epsilon": 0.0}, r"claim\.epsilon: Expected 0\.0 to be greater than 0"),
    ({"claim__epsilon": math.inf}, r"claim\.epsilon: Expected inf to be a finite number"),
    ({"claim__delta": 1.0}, r"claim\.delta: Expected 1\.0 to be less than 1"),
    ({"claim__adjacency": "add"}, r"claim\.adjacency: Expected 'add'"),
    ({"claim": None}, r"claim: Expected this key"),
    ({"sampling__kind": "poisson"}, r"sampling: Expected prob in \(0, 1\]"),
    ({"sampling__kind": "poisson", "sampling__prob": 1.3}, r"sampling\.prob: Expected 1\.3"),
    ({"sampling__kind": "poisson", "sampling__prob": 0.0}, r"sampling\.prob: Expected 0\.0"),
    ({"sampling__prob": 0.5}, r"sampling: Expected prob=0\.5 to be absent"),
    ({"sampling__kind": "cyclic"}, r"sampling: Expected kind='cyclic' among 'poisson', 'none'"),
    ({"sampling__kind": "buffered-shuffle"}, r"sampling: expected sampling\.records to be given"),
    ({"sampling__batches": 4}, r"sampling: Expected only kind and prob with kind='none', not batches"),
    ({"sampling": {"kind": "shuffled", "batches": 4}}, r"sampling: expected sampling\.epochs to be given"),
    ({"sampling": SHUFFLED, "steps": 7}, r"sampling: Expected steps=7 to be left out, or 8"),
    ({"sampling": {**SHUFFLED, "batches": "four"}, "steps": 8}, r"sampling: Expected batches='four' to be"),
    ({"sampling": SHUFFLED, "steps": 8, "schedule": {"clip": [1.0] * 8}}, r"sampling\.kind: Expected 'shuffled' to be"),
    ({"claim__sampling": SHUFFLED}, r"claim\.sampling: Expected steps=\d+ to be left out, or 8"),
    ({"sampling": None}, r"sampling: Expected this key with algorithm='dp-sgd'"),
    ({"steps": None}, r"steps: Expected this key with algorithm='dp-sgd'"),
    ({"steps": 0}, r"steps: Expected 0 to be greater than or equal to 1"),
    ({"steps": 2.5}, r"steps: Expected 2\.5 to be a valid integer"),
    ({"steps": True}, r"steps: Expected True to be a valid integer"),
    ({"seed": -1}, r"seed: Expected -1"),
    ({"algorithm": "sgd"}, r"algorithm: Expected 'sgd'"),
    ({"regularization": 1.0}, r"regularization: Expected it only"),
    ({"audit_records": -1}, r"audit_records: Expected an integer of at least 0"),
    ({"audit_records": [1, 1]}, r"audit_records: .*different indices"),
    ({"dataset__records": 0}, r"dataset\.records: Expected an integer of at least 1"),
    ({"dataset__records": [0.5]}, r"dataset\.records: .*different indices"),
    ({"dataset__file": "mine.npz"}, r"dataset: Expected exactly one of name and file"),
    ({"dataset__name": None}, r"dataset: Expected exactly one of name and file"),
    ({"dataset__sha256": "abc"}, r"dataset\.sha256: Expected 'abc'"),
    ({"dataset__classes": ["a"]}, r"dataset\.classes\.0: Expected 'a' to be a valid integer"),
    ({"architecture__name": "lenet"}, r"architecture: Expected name='lenet' among linear"),
    ({"architecture__name": "logistic"}, r"architecture\.name: Expected 'logistic' only with"),
    ({"architecture__kwargs": {"hidden": 8}}, r"architecture: Expected kwargs\.hidden among those of linear: bias"),
    ({"architecture__kwargs": {"bias": 1}}, r"architecture: Expected kwargs\.bias=1 to be true or false"),
    (
        {"architecture__name": "m.py:f", "architecture__kwargs": {"a": NAN}},
        r"architecture: Expected kwargs to hold finite",
    ),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=[",".join(changes) for changes, _ in REFUSED])
def test_what_is_wrong_is_named_in_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        Recipe.from_dict(changed(**changes))
    assert str(caught.value).isprintable()


def test_the_example_with_nothing_changed_is_accepted() -> None:
    assert Recipe.from_dict(changed()).mechanism == Gaussian(noise_multiplier=1 / 0.6)


def test_an_optimizer_of_torch_is_trained_with_and_kept(digits: Dataset) -> None:
    recipe = Recipe.from_dict(changed(optimizer__name="adam", optimizer__kwargs={"betas": [0.5, 0.9]}))
    assert Recipe.from_dict(recipe.to_dict()) == recipe
    assert recipe.spec(digits).update_rule == UpdateRule("adam", {"betas": [0.5, 0.9]})
    nesterov = Recipe.from_dict(changed(optimizer__momentum=0.5, optimizer__kwargs={"nesterov": True})).spec(digits)
    assert (nesterov.momentum, nesterov.update_rule) == (0.0, UpdateRule("sgd", {"momentum": 0.5, "nesterov": True}))
    with pytest.raises(
        InputError, match=r"optimizer: Expected kwargs=\{'betas': \[2\.0, 0\.9\]\} to fit torch\.optim\.Adam"
    ):
        Recipe.from_dict(changed(optimizer__name="adam", optimizer__kwargs={"betas": [2.0, 0.9]})).spec(digits)


def test_every_error_is_counted_and_a_misspelt_key_comes_first() -> None:
    data = changed(claim__epsilon=None, claim__epsilom=1.0)
    with pytest.raises(InputError, match=r"claim\.epsilom: .*did you mean epsilon\? \(and 1 more\)"):
        Recipe.from_dict(data)


@pytest.mark.parametrize("text", [b"algorithm = ", b"\xff\xfe\x00", b"[a]\n[a]\n", b"a = " + b"[" * 5000])
def test_what_is_no_toml_is_refused(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "recipe.toml"
    path.write_bytes(text)
    with pytest.raises(InputError, match=r"recipe\.toml to hold TOML"):
        load_recipe(path)


def test_nan_in_a_toml_file_is_refused_by_its_key(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    text = (EXAMPLES / "digits-headline.toml").read_text()
    path.write_text(text.replace("noise_multiplier = 1.6666666666666667", "noise_multiplier = nan"))
    with pytest.raises(InputError, match=r"recipe\.toml: mechanism\.noise_multiplier: Expected noise_multiplier=nan"):
        load_recipe(path)


def test_a_recipe_survives_json() -> None:
    data = changed(mechanism={"name": "laplace", "scale": 2.0, "clip_norm": math.inf}, audit_records=[3, 1])
    recipe = Recipe.from_dict(data)
    again = Recipe.from_dict(json.loads(json.dumps(recipe.to_dict(), allow_nan=False)))
    assert again.to_dict() == recipe.to_dict()
    assert again.mechanism == Laplace(scale=2.0, clip_norm=math.inf)
    assert again.audit_records == [3, 1]


def test_reading_a_recipe_does_not_wait_for_torch() -> None:
    code = (
        "import sys; from dpaudit.audit.inputs.recipes import load_recipe\n"
        f"load_recipe({str(EXAMPLES / 'digits-headline.toml')!r}); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_training_it_describes(digits: Dataset) -> None:
    recipe = Recipe.from_dict(changed(sampling={"kind": "poisson", "prob": 0.25}, steps=7, audit_records=40))
    spec = recipe.spec(digits)
    assert spec.expected_batch_size == 0.25 * len(digits.y)  # all records, whatever the coins say
    assert (spec.steps, spec.sampling_prob, spec.learning_rate, spec.init) == (7, 0.25, 0.5, "zeros")
    assert (spec.architecture.inputs, spec.architecture.classes) == (64, 2)
    assert spec.mechanism.dimension == 64 * 2 + 2
    assert (spec.momentum, spec.schedule, spec.defect) == (0.0, (), CORRECT)


def test_the_claim_it_makes() -> None:
    recipe = Recipe.from_dict(changed(sampling={"kind": "poisson", "prob": 0.25}, steps=7))
    expected = Claim(2.445, 1e-5, (Phase(Gaussian(1 / 0.6, dimension=130), 7, 0.25, "poisson"),), "add-remove")
    assert recipe.with_dimension(130).claim_object() == expected


@pytest.mark.parametrize("kind", SAMPLERS)
def test_the_loop_and_the_accounting_have_one_sampler(kind: str, digits: Dataset) -> None:
    keys = SAMPLERS[kind].typical | ({"records": len(digits.y)} if "records" in SAMPLERS[kind].typical else {})
    recipe = Recipe.from_dict(changed(sampling={"kind": kind, **keys}, steps=None, claim__adjacency="zero-out"))
    [phase], spec = recipe.phases(), recipe.spec(digits)
    assert isinstance(spec, DPSGDSpec)
    assert spec.sampler is not None
    assert spec.sampler == phase.sampler == sampler_from_dict(kind, keys)
    assert spec.steps == recipe.steps == phase.steps == spec.sampler.steps
    assert spec.expected_batch_size == spec.sampler.rate * len(digits.y)
    assert Recipe.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe
    summary = claim_from_dict({"id": "a", **recipe.with_dimension(130).claim_summary()})
    assert summary.phases == recipe.with_dimension(130).phases()


def test_a_claim_may_account_for_other_batches_than_the_loop_draws(digits: Dataset) -> None:
    data = changed(sampling=SHUFFLED, steps=None, claim__sampling={"kind": "poisson", "prob": 0.25})
    recipe = Recipe.from_dict(data)
    spec = recipe.spec(digits)
    assert isinstance(spec, DPSGDSpec)
    assert spec.sampler == Shuffled(4, 2)
    assert [(phase.steps, phase.sampling_prob, phase.sampler) for phase in recipe.phases()] == [(8, 0.25, None)]
    assert recipe.claim_summary()["sampling"] == {"kind": "poisson", "prob": 0.25}
    with pytest.raises(InputError, match=r"claim\.sampling: Expected only with algorithm='dp-sgd'"):
        Recipe.from_dict(tomllib.loads((EXAMPLES / "digits-dp-ftrl.toml").read_text() + "sampling = {kind = 'none'}"))


def test_batches_of_other_data_are_refused(digits: Dataset) -> None:
    sampling = {"kind": "shuffled", "records": 300, "batch": 30, "epochs": 2}
    with pytest.raises(InputError, match=rf"sampling\.records: Expected 300 to be the data's {len(digits.y)} records"):
        Recipe.from_dict(changed(sampling=sampling, steps=None)).spec(digits)


def test_a_dimension_that_is_not_the_models_is_refused(digits: Dataset) -> None:
    recipe = Recipe.from_dict(changed(mechanism__dimension=131))
    with pytest.raises(InputError, match=r"mechanism\.dimension: Expected 131 to be the model's 130"):
        recipe.spec(digits)


def test_data_with_another_hash_are_refused(digits: Dataset) -> None:
    recipe = Recipe.from_dict(changed(dataset__sha256=digits.sha256))
    assert recipe.load_dataset().sha256 == digits.sha256
    other = Recipe.from_dict(changed(dataset__sha256=digits.sha256, dataset__classes=[1, 0]))
    with pytest.raises(InputError, match=rf"dataset\.sha256: Expected {digits.sha256}"):
        other.load_dataset()


def test_filling_in_keeps_what_was_said_and_adds_what_happened(digits: Dataset) -> None:
    recipe = Recipe.from_dict(example())
    data = recipe.filled(digits, dimension=130, seed=5).to_dict()
    assert (data["seed"], data["dataset"]["sha256"], data["mechanism"]["dimension"]) == (5, digits.sha256, 130)
    del data["seed"], data["dataset"]["sha256"], data["mechanism"]["dimension"]
    assert data == recipe.to_dict()


def test_coins_are_fair_and_of_the_audit_records_alone() -> None:
    recipe = Recipe.from_dict(changed(audit_records=1000))
    # Hoeffding: the mean of 200,000 fair coins is off by 0.0056 with probability at most 2 exp(-12.5) = 7e-6, one of
    # 1000 means of 200 by 0.2 with probability at most 2000 exp(-16) = 2.3e-4.
    tosses = np.array([draw_coins(recipe, 5000, seed).included for seed in range(200)])
    assert abs(tosses.mean() - 0.5) < 0.0056
    assert np.abs(tosses.mean(axis=0) - 0.5).max() < 0.2
    coins = draw_coins(recipe, 5000, 3)
    members = coins.members(5000)
    assert coins.seed == 3
    assert np.array_equal(members[coins.records], coins.included)
    assert np.delete(members, coins.records).all()
    assert len(set(coins.records.tolist())) == 1000


def test_coins_from_a_generator_and_bad_records() -> None:
    recipe = Recipe.from_dict(changed(audit_records=[4, 2]))
    coins = draw_coins(recipe, 5, np.random.default_rng(0))
    assert (coins.records.tolist(), coins.seed) == ([4, 2], None)
    with pytest.raises(InputError, match=r"audit_records: Expected indices in 0\.\.3, not 4"):
        draw_coins(recipe, 4, 0)
    with pytest.raises(InputError, match=r"audit_records: Expected 1000 in 0\.\.4"):
        draw_coins(Recipe.from_dict(changed(audit_records=1000)), 4, 0)


CODE = """
import torch

class Tanh(torch.nn.Sequential):
    pass

def build(inputs, classes, width):
    return Tanh(torch.nn.Linear(inputs, width), torch.nn.Tanh(), torch.nn.Linear(width, classes)).eval()

def broken(inputs, classes):
    return 1 / 0

def number(inputs, classes):
    return 3
"""


def custom(tmp_path: Path, function: str, **kwargs: Any) -> Recipe:
    (tmp_path / "my_model.py").write_text(CODE)
    architecture = {"name": f"my_model.py:{function}", "kwargs": kwargs}
    return Recipe.from_dict(changed(architecture=architecture), folder=tmp_path)


def test_a_users_own_network(tmp_path: Path, digits: Dataset) -> None:
    architecture = custom(tmp_path, "build", width=5).spec(digits).architecture
    assert parameter_shapes(architecture) == {"0.weight": (5, 64), "0.bias": (5,), "2.weight": (2, 5), "2.bias": (2,)}
    assert build_module(architecture).training  # Opacus takes gradients of records in no other mode
    assert parameter_count(pickle.loads(pickle.dumps(architecture))) == 337  # worker processes receive it pickled


@pytest.mark.parametrize(
    ("function", "message"),
    [("broken", "ZeroDivisionError"), ("number", r"return a torch\.nn\.Module, not int"), ("absent", "absent")],
)
def test_a_users_faults_are_told_in_one_line(tmp_path: Path, digits: Dataset, function: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        custom(tmp_path, function).spec(digits)


def test_code_runs_only_where_the_user_named_it(tmp_path: Path, digits: Dataset) -> None:
    data = custom(tmp_path, "build", width=5).to_dict()
    with pytest.raises(InputError, match="code that only a model file names is not run"):
        Recipe.from_dict(data).spec(digits)


def test_code_that_changes_during_an_audit_is_refused(tmp_path: Path, digits: Dataset) -> None:
    architecture = custom(tmp_path, "build", width=6).spec(digits).architecture
    (tmp_path / "my_model.py").write_text(CODE + "\n# another\n")
    fresh = pickle.loads(pickle.dumps(architecture))
    from dpaudit.audit.inputs.user_code import _function

    _function.cache_clear()
    with pytest.raises(InputError, match="not to change during an audit"):
        parameter_shapes(fresh)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_the_examples_are_valid(path: Path) -> None:
    recipe = load_recipe(path)
    assert Recipe.from_dict(recipe.to_dict()).to_dict() == recipe.to_dict()


def test_the_example_of_make_audit_claims_what_its_mechanism_gives() -> None:
    # delta(eps) = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu), mu = 1 / noise_multiplier (Balle and Wang 2018)
    recipe = load_recipe(EXAMPLES / "digits-headline.toml")
    mu, epsilon = 1 / mp.mpf(recipe.mechanism.noise_multiplier), mp.mpf(recipe.claim.epsilon)

    def delta(at: Any) -> Any:
        return mp.ncdf(mu / 2 - at / mu) - mp.exp(at) * mp.ncdf(-mu / 2 - at / mu)

    assert delta(epsilon) < recipe.claim.delta < delta(epsilon - mp.mpf("0.001"))


def test_the_product_example_has_the_noise_of_its_papers_theorem() -> None:
    # `product`, Theorem 8 and eq. (13), k = 5000; at M = 1e6, k = 1000 the paper prints 1.144e-6 (its section A.6)
    def t_squared(m: int, k: int) -> Any:
        return (
            2 * mp.mpf(k) ** (mp.mpf(4) / m) * (mp.mpf(m) / 4 + 1.5) ** (1 + mp.mpf(4) / m) / mp.exp(1 + mp.mpf(2) / m)
        )

    def delta(m: int, k: int, epsilon: Any) -> Any:
        shift = epsilon / mp.sqrt(t_squared(m, k))
        z = shift**2 / 2
        sums = mp.hyp1f1(mp.mpf(m) / 4 + 0.5, 0.5, z) + mp.sqrt(2) * shift * mp.hyp1f1(mp.mpf(m) / 4 + 1, 1.5, z)
        root = mp.sqrt(m - 1) / mp.sqrt(mp.mpf(m) / 2 - 1.5) / mp.sqrt(mp.mpf(m) / 2 + 0.75)
        return mp.exp(-z) / (k * mp.sqrt(mp.pi)) * sums * root

    assert float(delta(10**6, 1000, mp.mpf("0.1"))) == pytest.approx(1.144e-6, rel=1e-3)
    recipe = load_recipe(EXAMPLES / "fashion-product-release.toml")
    sensitivity = 2 / recipe.regularization
    assert recipe.mechanism.clip == pytest.approx(sensitivity / 2)
    expected = sensitivity / recipe.claim.epsilon * float(mp.sqrt(t_squared(784, 5000)))
    assert recipe.mechanism.sigma == pytest.approx(expected, rel=1e-7)
    assert float(delta(784, 5000, mp.mpf(recipe.claim.epsilon))) < recipe.claim.delta


def test_the_laplace_example_claims_no_less_than_gaussian_domination_gives() -> None:
    # Renyi bound of Poisson-sampled Gaussian noise of the same scale, by another's accountant
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.rdp import RdpAccountant

    recipe = load_recipe(EXAMPLES / "fashion-laplace.toml")
    accountant = RdpAccountant(orders=[2.0 + order for order in range(60)])
    event = GaussianDpEvent(recipe.mechanism.scale / recipe.mechanism.clip)
    accountant.compose(PoissonSampledDpEvent(recipe.sampling_prob, event), recipe.steps)
    assert 0.9 * recipe.claim.epsilon < accountant.get_epsilon(recipe.claim.delta) < recipe.claim.epsilon


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 2}, "steps: Expected 2 to be 1"),
        ({"regularization": None}, "regularization: Expected this key"),
        ({"architecture__name": "linear"}, r"architecture\.name: Expected 'linear' to be 'logistic'"),
    ],
)
def test_what_output_perturbation_needs(changes: dict[str, Any], message: str) -> None:
    data = tomllib.loads((EXAMPLES / "fashion-product-release.toml").read_text())
    for dotted, value in changes.items():
        *tables, key = dotted.split("__")
        table = data[tables[0]] if tables else data
        table.pop(key, None)
        if value is not None:
            table[key] = value
    with pytest.raises(InputError, match=message):
        Recipe.from_dict(data)


def test_output_perturbation_accounts_for_the_sensitivity_of_its_minimum() -> None:
    """Records of norm 1 move the minimum of a Lambda-strongly convex objective by up to 1 / Lambda."""
    data = tomllib.loads((EXAMPLES / "fashion-product-release.toml").read_text())
    assert Recipe.from_dict(data).regularization == 10.0
    with pytest.raises(InputError, match=r"mechanism\.clip: Expected 0\.1 to be at least 100, the sensitivity"):
        Recipe.from_dict({**data, "regularization": 0.01})
