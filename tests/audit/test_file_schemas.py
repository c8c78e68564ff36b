"""The schemas of claims files and recipes: every file of ours follows them, and they refuse what the readers refuse."""

import copy
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from dpaudit.audit.inputs.file_schemas import FOLDER, file_schemas
from dpaudit.audit.inputs.recipes import RECIPES, Recipe
from dpaudit.reports.rendering import schema
from dpaudit.verify.claim_files import parse_claims

ROOT = Path(__file__).parents[2]
CLAIMS_FILES = [path for path in sorted((ROOT / "reports/claims").rglob("*.toml")) if path.parent.name != "sources"]
EXAMPLES = sorted((ROOT / "examples").glob("*.toml"))

# every form that a claim has
CLAIMS = """
format = "dpaudit-claims/2"
[[claim]]
id = "plain"
epsilon = 1
delta = 1e-5
adjacency = "zero-out"
steps = 300
sampling_prob = 0.01
accountant = "plrvo-theorem-4.9"
source = "Table 13"
mechanism = {name = "gamma-plrv", k = 40000.0, theta = 6e-5, clip = 0.5, clip_norm = 2.0, dimension = 26000}
[[claim]]
id = "guarantee"
unit = "user"
guarantee = {kind = "zcdp", rho = 0.81}
mechanism = {name = "laplace", scale = 2.0, clip_norm = "inf"}
[[claim]]
id = "curve"
guarantee = {kind = "curve", points = [[1.0, 1e-5], [2, 1e-6]]}
sampling = {kind = "none"}
mechanism = {name = "gaussian", noise_multiplier = 1.0}
[[claim]]
id = "batches"
epsilon = 1.0
delta = 1e-5
sampling = {kind = "shuffled", batches = 36, epochs = 20}
mechanism = {name = "gaussian", noise_multiplier = 1.0}
[[claim]]
id = "bare"
epsilon = 1.0
delta = 1e-5
steps = 10
sampling = {kind = "buffered-shuffle", prob = 0.1}
mechanism = {name = "gaussian", noise_multiplier = 1.0}
[[claim]]
id = "passes of a buffer"
epsilon = 1.0
delta = 1e-5
sampling = {kind = "buffered-shuffle", records = 300, batch = 50, buffer = 100, epochs = 3, last_batch = "dropped"}
mechanism = {name = "gaussian", noise_multiplier = 1.0}
[[claim]]
id = "a stream"
epsilon = 1.0
delta = 1e-5
steps = 10
sampling = {kind = "buffered-shuffle", records = 300, batch = 50, buffer = 100}
mechanism = {name = "gaussian", noise_multiplier = 1.0}
[[claim]]
id = "steps beside"
epsilon = 1.0
delta = 1e-5
steps = 10
sampling = {kind = "truncated-poisson", prob = 0.1, max_batch = 50, records = 300}
mechanism = {name = "gaussian", noise_multiplier = 1.0}
[[claim]]
id = "tree"
epsilon = 1.0
delta = 1e-5
steps = 80
correlation = {strategy = "tree", restart = 8, participation = {kind = "fixed-order", separation = 8}}
mechanism = {name = "gaussian", noise_multiplier = 1.0}
[[claim]]
id = "blt"
epsilon = 1.0
delta = 1e-5
steps = 8
mechanism = {name = "gaussian", noise_multiplier = 1.0}
[claim.correlation]
strategy = "blt"
decays = [0.9, 0.5]
scales = [0.1, 0.1]
participation = {kind = "min-sep", separation = 4, times = 2}
[[claim]]
id = "phases"
epsilon = 1.0
delta = 1e-5
[[claim.phase]]
steps = 10
sampling = {kind = "poisson", prob = 0.1}
mechanism = {name = "gaussian", noise_multiplier = 1.0}
[[claim.phase]]
mechanism = {name = "product", sigma = 5.0, clip_norm = 2.0, dimension = 10}
"""
FULL_RECIPE = """
algorithm = "dp-sgd"
steps = 20
seed = 1
audit_records = [1, 2]
planted_defect = "half-noise"
dataset = {name = "digits", classes = [0, 1], records = 100}
architecture = {name = "fnn", kwargs = {hidden = [8, 4]}}
mechanism = {name = "gaussian", noise_multiplier = 1.0, clip = 1.0}
schedule = {noise_multiplier = {start = 1.0, end = 2.0, levels = 2}}
sampling = {kind = "poisson", prob = 0.1}
optimizer = {name = "sgd", learning_rate = 0.5, momentum = 0.0, init = "zeros"}
claim = {epsilon = 5.0, delta = 1e-5, adjacency = "zero-out", unit = "user", sampling = {kind = "none"}}
report = {scope = "a test", tuning = "none"}
"""
CLAIMS_VALIDATOR, RECIPE_VALIDATOR = (Draft202012Validator(schema(name)) for name in ("claims", "recipe"))


def read_recipe(data: dict[str, Any]) -> Recipe:
    return Recipe.from_dict(data, folder=ROOT / "examples")


def mutants(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Callable[[Any], None]]]:
    """Changes of structure, each with its place: a key that is not known, a key less, a value of another type."""
    if isinstance(data, dict):
        yield (*path, "+"), lambda table: table.update(surprise=1)
        for key in data:
            yield (*path, key, "-"), lambda table, key=key: table.pop(key)
    if not isinstance(data, (dict, list)) or not data:
        return
    for key, value in data.items() if isinstance(data, dict) else enumerate(data):
        wrong = [{"a": 1}, True] if isinstance(value, str) else ["text", [["text"]]]
        for other in wrong:
            yield (*path, key, other), lambda parent, key=key, other=other: parent.__setitem__(key, other)
        for place, change in mutants(value, (*path, key)):
            yield place, lambda parent, key=key, change=change: change(parent[key])


def check_mutants(data: dict[str, Any], read: Callable[[dict[str, Any]], Any], validator: Draft202012Validator) -> int:
    """The schema refuses exactly the mutants that the reader refuses; how many these are.

    Of an architecture's kwargs it knows the names, and leaves the values to the reader.
    """
    read(data)
    refused, differing = 0, []
    for place, change in mutants(data):
        changed = copy.deepcopy(data)
        change(changed)
        try:
            read(changed)
            accepted = True
        except ValueError:
            accepted = False
            refused += 1
        if validator.is_valid(changed) != accepted and place[:2] != ("architecture", "kwargs"):
            differing.append((accepted, place))
    assert differing == []
    return refused


def test_the_files_in_the_package_are_what_the_readers_say() -> None:
    for name, text in file_schemas().items():
        assert (FOLDER / name).read_text() == text, "python -m dpaudit.audit.inputs.file_schemas writes it again"
        Draft202012Validator.check_schema(schema(name.partition(".")[0]))


@pytest.mark.parametrize(
    ("files", "validator", "least"),
    [(CLAIMS_FILES, CLAIMS_VALIDATOR, 35), (EXAMPLES, RECIPE_VALIDATOR, 10)],
    ids=["claims", "recipes"],
)
def test_every_file_of_ours_follows_its_schema(files: list[Path], validator: Draft202012Validator, least: int) -> None:
    assert len(files) >= least
    for path in files:
        validator.validate(tomllib.loads(path.read_text()))


def test_the_schema_of_claims_refuses_the_structures_that_the_reader_refuses() -> None:
    data = tomllib.loads(CLAIMS)
    alone = [
        {**data, "claim": [claim]} for claim in data["claim"]
    ]  # a whole file for every change takes ten times as long
    assert (
        sum(check_mutants(file, lambda file: parse_claims(file, source="x"), CLAIMS_VALIDATOR) for file in alone) > 200
    )


def test_the_schema_of_recipes_refuses_the_structures_that_the_reader_refuses() -> None:
    assert check_mutants(tomllib.loads(FULL_RECIPE), read_recipe, RECIPE_VALIDATOR) > 80
    unknown = FULL_RECIPE.replace("{hidden = [8, 4]}", "{heads = 2}")
    assert not RECIPE_VALIDATOR.is_valid(tomllib.loads(unknown))
    seen = set()
    for path in EXAMPLES:  # one of every algorithm besides
        data = tomllib.loads(path.read_text())
        if data["algorithm"] not in seen:
            seen.add(data["algorithm"])
            check_mutants(data, read_recipe, RECIPE_VALIDATOR)
    assert seen == set(RECIPES)


@pytest.mark.parametrize(
    "change",
    [{"epsilon": -1}, {"delta": 1}, {"steps": 0}, {"sampling": {"kind": "deterministic", "batches": 0, "epochs": 1}}],
)
def test_the_schema_of_claims_knows_the_ranges_of_single_numbers(change: dict[str, Any]) -> None:
    claim = {"id": "a", "epsilon": 1, "delta": 1e-5, "mechanism": {"name": "gaussian", "noise_multiplier": 1.0}}
    assert CLAIMS_VALIDATOR.is_valid({"claim": [claim]})
    assert not CLAIMS_VALIDATOR.is_valid({"claim": [claim | change]})
