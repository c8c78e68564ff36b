"""Mechanisms in files: what is read, what is refused and with which words."""

import json
import math
import subprocess
import sys
from dataclasses import fields
from typing import Any

import pytest

from dpaudit.mechanisms import GammaPLRV, Gaussian, Laplace, Product, from_dict, to_dict
from dpaudit.mechanisms.registry import MECHANISMS, describe


def test_the_six_mechanisms_of_the_contract_and_what_released_code_draws() -> None:
    plrv = ["gamma-plrv", "gamma-plrv-iid"]
    six = ["gaussian", "laplace", *plrv, "product", "generalized-gaussian"]
    assert list(MECHANISMS) == [*six, "gamma-scale-laplace"]


def test_a_claims_file_table_is_read_as_written() -> None:
    data = {"name": "gamma-plrv", "k": 40000.0, "theta": 6e-5, "clip": 0.5, "clip_norm": 2.0, "dimension": 26000}
    assert from_dict(data) == GammaPLRV(40000.0, 6e-5, 0.5, 2.0, 26000)
    assert to_dict(from_dict(data)) == data


def test_an_infinite_clip_norm_survives_json() -> None:
    mechanism = Laplace(2.0, clip_norm=math.inf)
    text = json.dumps(to_dict(mechanism), allow_nan=False)
    assert from_dict(json.loads(text)) == mechanism
    assert from_dict({"name": "laplace", "scale": 2.0, "clip_norm": math.inf}) == mechanism


def test_integers_and_floats_write_the_same_bytes() -> None:
    assert json.dumps(to_dict(Gaussian(1, clip=2, dimension=3))) == json.dumps(
        to_dict(Gaussian(1.0, clip=2.0, dimension=3))
    )  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        ({}, ValueError, "to have a name"),
        (
            {"name": "gausian", "noise_multiplier": 1.0},
            ValueError,
            "'gausian' to be a mechanism: did you mean 'gaussian'?",
        ),
        ({"name": "zzz"}, ValueError, "one of gaussian, laplace, gamma-plrv"),
        ({"name": ["gaussian"]}, ValueError, "to be a mechanism"),
        ({"name": "gaussian", "noise_multiplyer": 1.0}, ValueError, "did you mean 'noise_multiplier'?"),
        ({"name": "gaussian", 3: 1.0}, ValueError, "Expected 3 to be a key of gaussian"),
        ({"name": "gaussian"}, ValueError, "gaussian to have noise_multiplier, in (0, inf)"),
        ({"name": "gamma-plrv", "k": 3.0}, ValueError, "gamma-plrv to have theta"),
        ({"name": "gamma-plrv", "k": 3.0, "theta": math.inf}, ValueError, "theta=inf in (0, inf)"),
        ({"name": "generalized-gaussian", "beta": 0.9, "scale": 1.0}, ValueError, "beta=0.9 in [1, 1e+06]"),
        ({"name": "gaussian", "noise_multiplier": "1.0"}, TypeError, "noise_multiplier='1.0' to be a number"),
        ({"name": "gaussian", "noise_multiplier": True}, TypeError, "noise_multiplier=True to be a number"),
        ({"name": "gaussian", "noise_multiplier": None}, TypeError, "noise_multiplier=None to be a number"),
        ({"name": "gaussian", "noise_multiplier": "inf"}, TypeError, "noise_multiplier='inf' to be a number"),
        ({"name": "gaussian", "noise_multiplier": 1.0, "clip_norm": 0.5}, ValueError, "clip_norm=0.5 in [1, inf]"),
        ({"name": "gaussian", "noise_multiplier": 1.0, "dimension": 0}, ValueError, "dimension=0"),
        ({"name": "gaussian", "noise_multiplier": 1.0, "dimension": 2.5}, ValueError, "dimension=2.5"),
        ({"name": "gaussian", "noise_multiplier": 10**400}, ValueError, "range of floats"),
        ({"name": "product", "sigma": 1.0, "dimension": 1}, ValueError, "dimension=1 in [2, inf)"),
        (["gaussian"], TypeError, "table of name and parameters"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(data: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error) as caught:
        from_dict(data)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("pair", [(1e-200, 1e-200), (1e200, 1e200)])
def test_a_sigma_beyond_the_floats_is_refused(pair: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match=r"noise_multiplier=.* times clip="):
        Gaussian(noise_multiplier=pair[0], clip=pair[1])


def test_product_noise_needs_two_dimensions_only_once_they_are_set() -> None:
    assert Product(1.0).dimension is None
    assert Product(1.0, dimension=2).dimension == 2


def test_the_listing_names_every_field_with_domain_unit_and_range() -> None:
    rows = {row["name"]: row for row in describe()}
    assert list(rows) == list(MECHANISMS)
    for name, row in rows.items():
        assert row["summary"] == MECHANISMS[name].summary
        assert [p["name"] for p in row["parameters"]] == [field.name for field in fields(MECHANISMS[name])]
        assert all(p["domain"] and p["unit"] and p["typical"] for p in row["parameters"])
    assert rows["generalized-gaussian"]["parameters"][0]["domain"] == "[1, 1e+06]"


def test_importing_the_room_stays_light() -> None:
    code = "import sys, dpaudit.mechanisms; print([m for m in ('scipy.stats', 'torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
