"""The audit bundle: what is written is read again, and what contradicts itself is refused."""

import hashlib
import json
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from dpaudit.audit import Settings, load_bundle, save_bundle
from dpaudit.audit.inputs.bundle_meta import _Coins, read_coins
from dpaudit.audit.inputs.bundles import Bundle
from dpaudit.audit.inputs.coins import Coins, draw_coins
from dpaudit.audit.inputs.datasets import Dataset, load
from dpaudit.audit.inputs.files import InputError
from dpaudit.audit.inputs.recipes import Recipe
from dpaudit.audit.runner import prepare
from dpaudit.mechanisms.learning.spec import Ledger

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits-headline.toml"
LEDGER = Ledger(
    noise_draws=1, sampling_prob=1.0, batch_sizes=(275,), divisor=280.0, clip=1.0, clip_norm=float("inf"), device="cpu",
    engine="ensemble",
)  # fmt: skip


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load("digits", classes=[0, 1])


@pytest.fixture(scope="module")
def recipe(digits: Dataset) -> Recipe:
    return Recipe.from_dict(tomllib.loads(EXAMPLE.read_text())).filled(digits, dimension=130, seed=4)


@pytest.fixture(scope="module")
def coins(recipe: Recipe) -> Coins:
    return draw_coins(recipe, 280, 4)


def weights() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {"weight": torch.randn(2, 64, generator=generator), "bias": torch.randn(2, generator=generator)}


def write(path: Path, digits: Dataset, recipe: Recipe, coins: Coins | None, **other: Any) -> Path:
    arguments: dict[str, Any] = {
        "state_dict": weights(), "architecture": recipe.spec(digits).architecture, "recipe": recipe,
        "claim": recipe.claim_object(), "coins": coins, "ledger": LEDGER, **other,
    }  # fmt: skip
    save_bundle(path, **arguments)
    return path


@pytest.fixture
def saved(tmp_path: Path, digits: Dataset, recipe: Recipe, coins: Coins) -> Path:
    return write(tmp_path / "model.pt", digits, recipe, coins)


def edit(path: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """Write the bundle again with another meta: the tensors stay as they are."""
    content = torch.load(path, weights_only=True)
    meta = json.loads(content["meta"])
    changed = change(meta)
    torch.save({**content, "meta": json.dumps(meta if changed is None else changed)}, path)
    return path


def test_what_is_written_is_read_again(saved: Path, digits: Dataset, recipe: Recipe, coins: Coins) -> None:
    bundle = load_bundle(saved)
    assert {name: tensor.tolist() for name, tensor in bundle.state_dict.items()} == {
        name: tensor.tolist() for name, tensor in weights().items()
    }
    assert bundle.recipe.to_dict() == recipe.to_dict()
    assert bundle.recipe.claim_object() == recipe.claim_object()
    assert bundle.coins is not None
    order = np.argsort(coins.records)
    assert np.array_equal(bundle.coins.records, coins.records[order])
    assert np.array_equal(bundle.coins.included, coins.included[order])
    assert bundle.coins.seed == 4
    assert bundle.ledger == LEDGER
    assert bundle.sha256 == hashlib.sha256(saved.read_bytes()).hexdigest()
    models = bundle.models(bundle.recipe.spec(digits))
    assert list(models.parameters) == ["weight", "bias"]
    assert models.parameters["weight"].shape == (1, 2, 64)
    assert bundle.describe() == {
        "path": str(saved), "sha256": bundle.sha256, "architecture": "linear", "parameters": 130,
    }  # fmt: skip


def test_the_file_is_what_the_contract_says(saved: Path) -> None:
    with zipfile.ZipFile(saved) as archive:
        assert {info.compress_type for info in archive.infolist()} == {zipfile.ZIP_STORED}
    content = torch.load(saved, weights_only=True)
    assert set(content) == {"state_dict", "meta"}
    meta = json.loads(content["meta"])
    assert meta["format"] == "dpaudit-bundle/1"
    assert {"architecture", "recipe", "claim", "coins"} <= set(meta)
    assert {"name", "kwargs"} <= set(meta["architecture"])
    assert {"algorithm", "mechanism", "sampling", "steps", "optimizer", "dataset", "seed"} <= set(meta["recipe"])
    assert meta["claim"]["mechanism"]["dimension"] == 130


def test_notes_on_the_training_are_kept(tmp_path: Path, digits: Dataset, recipe: Recipe) -> None:
    path = write(tmp_path / "model.pt", digits, recipe, None, notes=["Not covered: the moon."])
    assert load_bundle(path).notes == ("Not covered: the moon.",)
    edit(path, lambda meta: meta.update(notes=["x" * 2000]))
    with pytest.raises(InputError, match=r"meta\.notes"):
        load_bundle(path)


def test_a_tensor_that_looks_into_a_larger_one_is_stored_alone(tmp_path: Path, digits: Dataset, recipe: Recipe) -> None:
    large = torch.randn(2, 1000)
    path = write(tmp_path / "view.pt", digits, recipe, None, state_dict={"weight": large[:, :64], "bias": large[0, :2]})
    bundle = load_bundle(path)
    assert torch.equal(bundle.state_dict["weight"], large[:, :64])
    assert bundle.coins is None


def test_unknown_keys_of_a_later_version_are_ignored(saved: Path, recipe: Recipe) -> None:
    def change(meta: dict[str, Any]) -> None:
        meta["novelty"] = 1
        meta["recipe"]["novelty"] = {"a": 1}
        meta["recipe"]["optimizer"]["novelty"] = 1

    assert load_bundle(edit(saved, change)).recipe.to_dict() == recipe.to_dict()


REFUSED: list[tuple[str, Callable[[dict[str, Any]], Any], str]] = [
    ("format", lambda meta: meta.update(format="dpaudit-bundle/2"), r"meta\.format: Expected 'dpaudit-bundle/2'"),
    ("no recipe", lambda meta: meta.pop("recipe"), r"meta\.recipe: Expected this key"),
    ("a list", lambda meta: [meta], r"meta\."),
    ("noise", lambda meta: meta["recipe"]["mechanism"].update(noise_multiplier=-1.0),
     r"meta\.recipe: mechanism\.noise_multiplier: Expected noise_multiplier=-1\.0"),
    ("claim", lambda meta: meta["claim"].update(epsilon=1.0), r"meta\.claim\.epsilon"),
    ("claimed steps", lambda meta: meta["claim"].update(steps=2), r"meta\.claim\.steps"),
    ("name", lambda meta: meta["architecture"].update(name="fnn"), r"meta\.architecture"),
    ("inputs", lambda meta: meta["architecture"].update(inputs=63), r"'weight'\] of shape \(2, 64\) to have \(2, 63\)"),
    ("huge inputs", lambda meta: meta["architecture"].update(inputs=1 << 39), r"'weight'\] of shape"),
    ("no inputs", lambda meta: meta["architecture"].pop("inputs"),
     r"meta\.architecture\.inputs of .* to be a positive integer"),
    ("dimension", lambda meta: meta["recipe"]["mechanism"].update(dimension=131),
     r"mechanism\.dimension: Expected 131"),
    ("no hash", lambda meta: meta["recipe"]["dataset"].pop("sha256") and None,
     r"meta\.recipe\.dataset\.sha256: Expected this key"),
    ("coins", lambda meta: meta["coins"]["included"].pop(), r"meta\.coins"),
    ("coins twice", lambda meta: meta["coins"]["records"].__setitem__(0, meta["coins"]["records"][1]), r"meta\.coins"),
    ("coins as text", lambda meta: meta["coins"].update(included="in"), r"meta\.coins\.included"),
]  # fmt: skip


def test_the_order_in_which_coins_are_listed_says_nothing() -> None:
    """Members first: ties go to the first, and a model of all zeros was refuted by an epsilon of 2.2."""
    listed = _Coins(records=[4, 9, 1, 3], included=[True, True, False, False])
    found = read_coins(listed, "m.pt")
    assert found is not None
    assert found.records.tolist() == [1, 3, 4, 9]
    assert found.included.tolist() == [False, False, True, True]


@pytest.mark.parametrize(("change", "message"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_a_meta_that_contradicts_itself_is_refused(
    saved: Path, change: Callable[[dict[str, Any]], Any], message: str
) -> None:
    def applied(meta: dict[str, Any]) -> Any:
        result = change(meta)
        return result if isinstance(result, list) and isinstance(result[0], dict) else None

    with pytest.raises(InputError, match=message) as caught:
        load_bundle(edit(saved, applied))
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"state_dict": {"weight": torch.zeros(2, 64)}}, "parameters: it lacks bias."),
        ({"state_dict": {"weight": torch.zeros(2, 63), "bias": torch.zeros(2)}}, "of shape"),
        ({"state_dict": {"weight": torch.full((2, 64), torch.nan), "bias": torch.zeros(2)}}, "to be finite"),
        ({"state_dict": {"weight": torch.zeros(2, 64).double(), "bias": torch.zeros(2)}}, "to be float32"),
    ],
    ids=["missing", "shape", "nan", "dtype"],
)
def test_what_would_not_be_read_is_not_written(
    tmp_path: Path, digits: Dataset, recipe: Recipe, other: dict[str, Any], message: str
) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(b"before")
    with pytest.raises(InputError, match=message):
        write(path, digits, recipe, None, **other)
    assert path.read_bytes() == b"before"
    assert [item.name for item in tmp_path.iterdir()] == ["model.pt"]


def test_a_claim_other_than_the_recipes_is_not_written(tmp_path: Path, digits: Dataset, recipe: Recipe) -> None:
    claim = Recipe.from_dict({**recipe.to_dict(), "steps": 2}).claim_object()
    with pytest.raises(InputError, match="claim: Expected"):
        write(tmp_path / "model.pt", digits, recipe, None, claim=claim)


def test_a_recipe_that_does_not_pin_its_data_is_not_written(tmp_path: Path, digits: Dataset, recipe: Recipe) -> None:
    unpinned = Recipe.from_dict(tomllib.loads(EXAMPLE.read_text()))
    with pytest.raises(InputError, match=r"dataset\.sha256: Expected this key"):
        write(tmp_path / "model.pt", digits, unpinned, None)
    assert not list(tmp_path.iterdir())


def test_nothing_half_written_is_left(
    tmp_path: Path, digits: Dataset, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(b"before")

    def interrupted(content: Any, file: Any) -> None:
        file.write(b"half of it")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(path, digits, recipe, None)
    assert path.read_bytes() == b"before"
    assert [item.name for item in tmp_path.iterdir()] == ["model.pt"]


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path, digits: Dataset, recipe: Recipe) -> None:
    with pytest.raises(OSError, match="Expected to be able to write"):
        write(tmp_path / "absent" / "model.pt", digits, recipe, None)


def bare(path: Path, state: dict[str, torch.Tensor]) -> Path:
    if path.suffix == ".pt":
        torch.save(state, path)
    else:
        safetensors.torch.save_file(state, path)
    return path


@pytest.mark.parametrize("name", ["model.pt", "model.safetensors"])
def test_bare_weights_need_a_recipe(tmp_path: Path, digits: Dataset, recipe: Recipe, name: str) -> None:
    path = bare(tmp_path / name, weights())
    with pytest.raises(InputError, match="bare weights need a recipe"):
        load_bundle(path)
    bundle = load_bundle(path, recipe=Recipe.from_dict(tomllib.loads(EXAMPLE.read_text())))
    assert isinstance(bundle, Bundle)
    assert (bundle.coins, bundle.ledger, bundle.parameters) == (None, None, 130)
    assert bundle.recipe.mechanism.dimension == 130
    models = bundle.models(bundle.recipe.spec(digits))
    assert torch.equal(models.parameters["weight"][0], weights()["weight"])
    assert models.ledger.engine == "unrecorded"


def test_a_module_saved_as_torch_users_do(tmp_path: Path, digits: Dataset, recipe: Recipe) -> None:
    module = torch.nn.Linear(64, 2)
    torch.save(module.state_dict(), tmp_path / "module.pt")
    models = load_bundle(tmp_path / "module.pt", recipe=recipe).models(recipe.spec(digits))
    assert torch.equal(models.parameters["bias"][0], module.bias)


def test_bare_weights_of_another_size_are_refused_for_what_does_not_fit(
    tmp_path: Path, digits: Dataset, recipe: Recipe
) -> None:
    path = bare(tmp_path / "model.pt", {"weight": torch.zeros(3, 64), "bias": torch.zeros(3)})
    bundle = load_bundle(path, recipe=Recipe.from_dict(tomllib.loads(EXAMPLE.read_text())))
    with pytest.raises(InputError, match=r"'weight'\] of shape \(3, 64\) to have \(2, 64\), that of the architecture"):
        prepare(bundle, digits, Settings(seed=1))


@pytest.mark.parametrize("name", ["model.pt", "model.safetensors"])
def test_bare_weights_pass_the_same_checks(tmp_path: Path, digits: Dataset, recipe: Recipe, name: str) -> None:
    for state, message in (
        ({"weight": torch.zeros(2, 64), "bias": torch.tensor([0.0, torch.inf])}, "to be finite"),
        ({"weight": torch.zeros(2, 64), "bias": torch.zeros(2, dtype=torch.int64)}, "to be float32"),
    ):
        with pytest.raises(InputError, match=message):
            load_bundle(bare(tmp_path / name, state), recipe=recipe)


@pytest.mark.parametrize("record", ["m/constants.pkl", "m/archive_format"])
def test_a_program_is_refused_with_what_to_save(tmp_path: Path, recipe: Recipe, record: str) -> None:
    with zipfile.ZipFile(tmp_path / "model.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("m/data.pkl", "")
        archive.writestr(record, "pt2")
    with pytest.raises(InputError, match=r"not a program .*save model\.state_dict"):
        load_bundle(tmp_path / "model.pt", recipe=recipe)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"w": torch.zeros(2, 64), "b": torch.zeros(2)}, "it lacks weight, bias, and it has w, b."),
        ({f"module.{key}": value for key, value in weights().items()}, r"'module\.'; save model\.module\.state_dict"),
        ({f"layer{index}.weight": torch.zeros(2) for index in range(65)}, "layer4.weight and 60 more."),
        ({"weight": torch.zeros(2, 63), "bias": torch.zeros(2), "mean": torch.zeros(2)}, "it has mean; what is not tr"),
    ],
    ids=["renamed", "wrapped", "long", "more"],
)
def test_other_names_are_told_in_a_readable_line(
    tmp_path: Path, digits: Dataset, recipe: Recipe, state: dict[str, torch.Tensor], message: str
) -> None:
    named = load_bundle(bare(tmp_path / "model.pt", state), recipe=recipe)
    with pytest.raises(InputError, match=message):
        named.models(recipe.spec(digits))


def test_a_recipe_beside_a_bundle_must_agree(saved: Path, recipe: Recipe) -> None:
    given = Recipe.from_dict(tomllib.loads(EXAMPLE.read_text()), folder=saved.parent)
    bundle = load_bundle(saved, recipe=given)
    assert bundle.recipe.to_dict() == recipe.to_dict()
    other = Recipe.from_dict({**given.to_dict(), "steps": 2})
    with pytest.raises(InputError, match="steps: Expected the recipe given to say what"):
        load_bundle(saved, recipe=other)
    for more in (
        {"schedule": {"noise_multiplier": {"start": 9.0, "end": 9.0, "levels": 1}}},
        {"planted_defect": "half-noise"},
    ):
        claimed_anew = Recipe.from_dict({**given.to_dict(), **more})
        with pytest.raises(
            InputError, match=f"{next(iter(more))}: Expected the recipe given to say what .* says, nothing"
        ):
            load_bundle(saved, recipe=claimed_anew)
    stated = Recipe.from_dict({**given.to_dict(), "report": {"scope": "a test"}})
    assert load_bundle(saved, recipe=stated).recipe.report is not None


def test_code_named_by_a_bundle_runs_only_with_a_recipe(tmp_path: Path, digits: Dataset) -> None:
    (tmp_path / "net.py").write_text(
        "import pathlib, torch\n"
        "def build(inputs, classes):\n"
        f"    pathlib.Path({str(tmp_path / 'ran')!r}).touch()\n"
        "    return torch.nn.Linear(inputs, classes)\n"
    )
    data = tomllib.loads(EXAMPLE.read_text())
    given = Recipe.from_dict({**data, "architecture": {"name": "net.py:build"}}, folder=tmp_path)
    filled = given.filled(digits, dimension=130, seed=1)
    path = write(tmp_path / "model.pt", digits, filled, None)
    (tmp_path / "ran").unlink()
    bundle = load_bundle(path)
    with pytest.raises(InputError, match="is not run"):
        bundle.recipe.spec(digits)
    assert not (tmp_path / "ran").exists()
    allowed = load_bundle(path, recipe=given)
    assert allowed.models(allowed.recipe.spec(digits)).parameters["bias"].shape == (1, 2)
    assert (tmp_path / "ran").exists()
