"""NumPy's scalars in claims: they are Python's numbers from then on, or proofs would be rounded to float32."""

import json
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from dpaudit.mechanisms import Gaussian, Laplace
from dpaudit.mechanisms.defects import Defect
from dpaudit.mechanisms.registry import MECHANISMS, from_dict
from dpaudit.verify import Claim, check
from dpaudit.verify.calibration.noise import calibrate
from dpaudit.verify.claim_files import claim_to_dict
from dpaudit.verify.claims import Phase
from dpaudit.verify.correlated.participation import Participation
from dpaudit.verify.guarantees import GaussianDP, PureDP, RenyiDP, ZeroConcentratedDP
from dpaudit.verify.samplers import SAMPLERS, Shuffled, sampler_from_dict


def in_numpy(value: Any) -> Any:
    """The same number as NumPy's scalar of a small size."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return np.int32(value) if isinstance(value, int) else np.float32(value)


def numbers(owner: Any) -> list[Any]:
    values = [getattr(owner, field.name) for field in fields(owner)]
    return [value for value in values if isinstance(value, int | float | np.generic)]


def assert_python(owner: Any) -> None:
    assert {type(value) for value in numbers(owner)} <= {int, float, bool}, owner


@pytest.mark.parametrize("name", MECHANISMS)
def test_mechanisms_keep_python_numbers(name: str) -> None:
    kind = MECHANISMS[name]
    noise = {key: in_numpy(float(sum(domain.typical) / 2)) for key, domain in kind.domains.items()}
    made = from_dict({"name": name, "clip": np.float16(0.5), "dimension": np.int8(3), **noise})
    assert_python(made)
    assert {key: getattr(made, key) for key in noise} == {key: float(value) for key, value in noise.items()}


@pytest.mark.parametrize("kind", SAMPLERS)
def test_samplers_keep_python_numbers(kind: str) -> None:
    plain = sampler_from_dict(kind, SAMPLERS[kind].typical)
    made = SAMPLERS[kind](**{field.name: in_numpy(getattr(plain, field.name)) for field in fields(plain)})
    assert_python(made)
    assert json.loads(json.dumps(claim_to_dict(Claim(1.0, 1e-5, [Phase(Gaussian(2.0), sampler=made)], id="a"))))


def test_sizes_do_not_wrap_around() -> None:
    many = np.int32(60_000)
    made = Shuffled.of(many, np.int32(256), many, last_batch="straddling")
    assert made.steps == 60_000 * 60_000 // 256
    phase = Phase(Laplace(300.0, clip_norm=np.inf, dimension=np.int16(1000)), np.int16(1000))
    assert phase.steps * (phase.mechanism.dimension or 0) == 10**6


def test_guarantees_and_the_rest_keep_python_numbers() -> None:
    one = np.float32(0.1)
    for made in (PureDP(one), GaussianDP(one), ZeroConcentratedDP(one), RenyiDP(np.float32(2.5), one), Defect(one)):
        assert_python(made)
    for guarantee in (GaussianDP(one), ZeroConcentratedDP(np.int64(1))):
        assert json.dumps(claim_to_dict(Claim(1.0, 1e-5, [Phase(Gaussian(2.0))], id="a", guarantee=guarantee)))
    assert_python(Participation("min-sep", separation=np.int64(8), times=np.int16(3)))
    claim = Claim(np.float32(1.1), np.float16(1e-3), [Phase(Gaussian(2.0), np.uint8(200), np.float32(0.3))])
    assert_python(claim)
    assert_python(claim.phases[0])
    assert (claim.epsilon, claim.phases[0].steps) == (float(np.float32(1.1)), 200)


@pytest.mark.parametrize(("rate", "steps", "noise", "epsilon"), [(1e-5, 10**6, 0.8, 0.075), (1e-4, 10**5, 0.7, 0.362)])
def test_rates_of_float32_are_judged_exactly(rate: float, steps: int, noise: float, epsilon: float) -> None:
    """The first was refuted, the second certified, each against the verdict of the same number as a float."""
    verdicts = [
        check(Claim.single(Gaussian(noise), epsilon=epsilon, delta=1e-6, steps=steps, sampling_prob=prob))
        for prob in (np.float32(rate), float(np.float32(rate)))
    ]
    assert verdicts[0].verdict == verdicts[1].verdict == ("certified" if rate == 1e-5 else "refuted")
    assert verdicts[0].epsilon_upper == verdicts[1].epsilon_upper


def test_longdouble_is_a_number_like_others() -> None:
    claim = Claim.single(Gaussian(np.longdouble(1.0)), epsilon=np.longdouble(1.0), delta=np.longdouble(0.2))
    assert check(claim).verdict == "certified"


def test_calibration_takes_them() -> None:
    wanted: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-6, "steps": 10**5}
    found = [
        calibrate({"name": "gaussian"}, sampling_prob=prob, **wanted).value
        for prob in (np.float32(1e-4), float(np.float32(1e-4)))
    ]
    assert found[0] == found[1]
