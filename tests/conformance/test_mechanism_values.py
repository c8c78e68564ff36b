"""Every registered mechanism as a value: its declared domains, its fields, and the way to a file and back."""

import json
import math
import pickle
from dataclasses import FrozenInstanceError, fields, replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from dpaudit.mechanisms import from_dict, to_dict
from dpaudit.mechanisms.base import Mechanism, with_noise_factor
from dpaudit.mechanisms.registry import MECHANISMS

NAMES = list(MECHANISMS)
PARAMETERS = [(name, key) for name in NAMES for key in (*MECHANISMS[name].domains, "clip", "clip_norm", "dimension")]
OUTSIDE: list[Any] = [math.nan, -math.inf, -1.0, 0.0, -0.0, True, "2.0", None, 1j]


def corners(name: str) -> list[Any]:
    """At every combination of the ends and the middle of the typical ranges, with and without a dimension."""
    kind = MECHANISMS[name]
    ranges = [(low, math.sqrt(low * high), high) for low, high in (domain.typical for domain in kind.domains.values())]
    common = [{}, {"clip": 0.1, "clip_norm": math.inf, "dimension": 7}]
    return [kind(*values, **rest) for values in product(*ranges) for rest in common]


@pytest.mark.parametrize("name", NAMES)
def test_tables_and_pickles_give_the_mechanism_back(name: str) -> None:
    for mechanism in corners(name):
        assert isinstance(mechanism, Mechanism)
        data = to_dict(mechanism)
        assert from_dict(json.loads(json.dumps(data, allow_nan=False))) == mechanism
        assert to_dict(from_dict(data)) == data
        assert hash(from_dict(data)) == hash(mechanism)
        assert pickle.loads(pickle.dumps(mechanism)) == mechanism
        assert type(pickle.loads(pickle.dumps(mechanism.structure))) is type(mechanism.structure)


@pytest.mark.parametrize("name", NAMES)
def test_fields_are_frozen_and_in_the_common_order(name: str) -> None:
    mechanism = corners(name)[0]
    assert [field.name for field in fields(mechanism)] == [*mechanism.domains, "clip", "clip_norm", "dimension"]
    for field in fields(mechanism):
        with pytest.raises(FrozenInstanceError):
            setattr(mechanism, field.name, 1.0)


@pytest.mark.parametrize("name", NAMES)
def test_a_dimension_must_be_known_where_it_matters(name: str) -> None:
    unset = replace(corners(name)[0], dimension=None)
    with pytest.raises(ValueError, match="dimension to be set"):
        unset.sample(np.random.default_rng(1), 1)


@pytest.mark.parametrize("name", NAMES)
def test_a_noise_factor_multiplies_every_draw_and_leaves_the_clip(name: str) -> None:
    for mechanism in corners(name):
        whole = replace(mechanism, dimension=5)
        half = with_noise_factor(whole, 0.5)
        draws = [m.sample(np.random.default_rng(3), 4) for m in (whole, half)]
        assert draws[1] == pytest.approx(0.5 * draws[0], rel=1e-9)
        assert (half.clip, half.clip_norm, half.dimension) == (whole.clip, whole.clip_norm, 5)


@pytest.mark.parametrize(("name", "parameter"), PARAMETERS)
def test_values_outside_a_domain_are_refused_by_name(name: str, parameter: str) -> None:
    kind = MECHANISMS[name]
    values = {key: domain.typical[1] for key, domain in kind.domains.items()}
    infinite = [] if parameter == "clip_norm" else [math.inf]
    half = [2.5] if parameter == "dimension" else []
    for bad in [x for x in OUTSIDE if not (parameter == "dimension" and x is None)] + infinite + half:
        with pytest.raises((ValueError, TypeError), match=f"{parameter}="):
            kind(**{**values, parameter: bad})
    assert kind(**{**values, "clip_norm": math.inf}).clip_norm == math.inf


@pytest.mark.parametrize("name", NAMES)
def test_typical_ranges_lie_inside_the_domains(name: str) -> None:
    for parameter, domain in MECHANISMS[name].domains.items():
        for value in domain.typical:
            domain.validate(parameter, value)
        assert domain.typical[0] < domain.typical[1]
        assert domain.unit
