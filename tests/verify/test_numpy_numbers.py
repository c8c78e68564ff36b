"""NumPy's scalars in claims: they are Python's numbers from then on, or proofs would be rounded to float32."""

import json
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from dpaudit.audit.score_deciders import joint_bound
from dpaudit.mechanisms import Gaussian, Laplace
from dpaudit.mechanisms.base import Domain
from dpaudit.mechanisms.defects import Defect
from dpaudit.mechanisms.registry import MECHANISMS, from_dict
from dpaudit.verify import Claim, check
from dpaudit.verify.accountants.audit import audit_accountant
from dpaudit.verify.accountants.base import number_and_rounding
from dpaudit.verify.bounds import (
    JointTest,
    Tradeoff,
    correct_guesses,
    epsilon_one_run,
    gaussian_delta,
    gaussian_epsilon,
)
from dpaudit.verify.bounds.rates import valid_scores
from dpaudit.verify.calibration.noise import calibrate
from dpaudit.verify.claim_columns import ClaimColumns
from dpaudit.verify.claim_files import claim_to_dict
from dpaudit.verify.claims import Phase
from dpaudit.verify.correlated.participation import Participation
from dpaudit.verify.guarantees import GaussianDP, PureDP, RenyiDP, ZeroConcentratedDP
from dpaudit.verify.samplers import SAMPLERS, Shuffled, sampler_from_dict
from dpaudit.verify.screening import screen
from dpaudit.verify.strategies import Setting


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


def test_integers_beyond_those_of_numpy_are_judged_as_the_floats_that_they_are() -> None:
    claim = Claim.single(Gaussian(1.0), epsilon=10**20, delta=1e-5, steps=1000, sampling_prob=0.01)
    assert check(claim).verdict == check(replace(claim, epsilon=1e20)).verdict == "certified"
    noise, rho = Gaussian(10**30, clip=1), ZeroConcentratedDP(10**25)
    assert check(Claim(1.0, 1e-5, [Phase(noise)])).verdict == "certified"
    assert check(Claim(1.0, 1e-5, [Phase(Gaussian(1.0))], guarantee=rho)).verdict == "certified"


@pytest.mark.parametrize(("rate", "steps", "noise", "epsilon"), [(1e-5, 10**6, 0.8, 0.075), (1e-4, 10**5, 0.7, 0.362)])
def test_rates_of_float32_are_judged_exactly(rate: float, steps: int, noise: float, epsilon: float) -> None:
    """The first was refuted, the second certified, each against the verdict of the same number as a float."""
    verdicts = [
        check(Claim.single(Gaussian(noise), epsilon=epsilon, delta=1e-6, steps=steps, sampling_prob=prob))
        for prob in (np.float32(rate), float(np.float32(rate)))
    ]
    assert verdicts[0].verdict == verdicts[1].verdict == ("certified" if rate == 1e-5 else "refuted")
    assert verdicts[0].epsilon_upper == verdicts[1].epsilon_upper


@dataclass(frozen=True)
class Own:
    """Normal noise of somebody else's class, which checks nothing."""

    name: ClassVar[str] = "own"
    domains: ClassVar[dict[str, Domain]] = {"sigma": Domain(0.0, np.inf, (0.1, 10.0), "")}
    sigma: float
    clip: float = 1.0
    clip_norm: float = 2.0
    dimension: int | None = 1

    @property
    def structure(self) -> Any:
        return replace(Gaussian(1.0, dimension=1).structure, sigma=self.sigma)


def test_an_own_mechanism_is_judged_by_what_its_numbers_are() -> None:
    """It was refuted, with the lower end of a bracket computed in float16."""
    verdicts = [
        check(Claim.single(Own(sigma), epsilon=0.0166, delta=1e-4, steps=100, adjacency="replace-one"))  # type: ignore[arg-type]
        for sigma in (np.float16(2292.0), 2292.0)
    ]
    assert verdicts[0].verdict == verdicts[1].verdict == "certified"
    assert verdicts[0].epsilon_lower == verdicts[1].epsilon_lower
    assert verdicts[0].epsilon_upper == verdicts[1].epsilon_upper


def test_columns_of_float32_are_screened_exactly() -> None:
    """Noise 2293, one step: certified at an epsilon of .00017589, which is false."""
    column = {
        name: np.array([value], np.float32)
        for name, value in (
            ("noise_multiplier", 2293), ("sampling_prob", 1), ("steps", 1), ("delta", 1e-4), ("epsilon", 0.0001758948),
        )
    }  # fmt: skip
    screened = screen(ClaimColumns(np.array(["a"]), **column))  # type: ignore[arg-type]
    claim = Claim.single(Gaussian(2293.0), epsilon=column["epsilon"][0], delta=column["delta"][0])
    assert check(claim).verdict == "refuted"
    assert screened.verdict[0] != "certified"
    short = {**column, "steps": np.array([100], np.int8)}
    assert screen(ClaimColumns(np.array(["a"]), **short)).verdict[0] == "refuted"  # type: ignore[arg-type]


def test_accountants_that_answer_in_float32_are_not_called_wrong_and_integers_do_not_wrap() -> None:
    def exact(mechanism: Any, rate: float, steps: int, delta: float) -> float:
        return check(Claim.single(mechanism, epsilon=1.0, delta=delta, steps=steps, sampling_prob=rate)).epsilon_upper

    asked: dict[str, Any] = {"seed": 1, "examples": 12, "law_examples": 0}
    assert not audit_accountant(lambda *question: np.float32(exact(*question)), **asked).refuted
    assert not audit_accountant(lambda *question: torch.tensor(exact(*question)), **asked).refuted
    assert audit_accountant(lambda *question: np.float32(exact(*question) * (1 - 1e-5)), **asked).refuted
    assert Setting(Gaussian(np.float32(1.0)), np.float32(0.5), np.int8(100), 1e-5).steps * 4 == 400
    grown = torch.ones((), requires_grad=True)
    with pytest.raises(TypeError, match="which is not a number"):
        number_and_rounding(grown)
    [violation] = audit_accountant(lambda *question: "1.0", seed=1, examples=1, law_examples=1).law_violations[:1]  # type: ignore[arg-type, return-value]
    assert "not a number" in violation.detail


@pytest.mark.parametrize("of", [np.float16, np.float32, np.longdouble])
def test_bounds_are_computed_in_double_precision(of: Any) -> None:
    """Each moved to the unsafe side, or raised SciPy's TypeError."""
    delta, mu, epsilon = of(1e-4), of(0.01), of(0.004)
    exact = float(delta), float(mu), float(epsilon)
    assert gaussian_epsilon(mu, delta) == gaussian_epsilon(exact[1], exact[0])
    assert gaussian_delta(mu, epsilon) == gaussian_delta(exact[1], exact[2])
    one_run: dict[str, Any] = {"canaries": 100, "guesses": 100, "correct": 75}
    bounds = [epsilon_one_run(**one_run, delta=value, confidence=0.95).epsilon_lower for value in (delta, exact[0])]
    assert bounds[0] == bounds[1]
    level = of(0.99)
    scores = np.arange(50.0)
    tests = [
        JointTest(scores + 20, scores, Tradeoff.of_points([1.0], [1e-5]), value, 1) for value in (level, float(level))
    ]
    assert joint_bound(tests[0], 1e-5, 1.0).epsilon_lower == joint_bound(tests[1], 1e-5, 1.0).epsilon_lower


def test_guesses_are_counted_for_scores_of_any_type() -> None:
    coins = np.array([1, 0, 1, 0])
    for scores in (np.array([3, 2, 1, 0], np.uint8), torch.tensor([3.0, 2.0, 1.0, 0.0])):
        for included in (coins, coins.astype(np.uint8), coins.astype(bool), torch.tensor(coins)):
            assert correct_guesses(scores, included, 1) == 2  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="array of real numbers"):
        valid_scores("scores", torch.ones(3, requires_grad=True))  # type: ignore[arg-type]


def test_a_caller_who_lets_underflow_raise_gets_the_same_verdict() -> None:
    claim = Claim.single(Gaussian(1.0), epsilon=3.0, delta=1e-5, steps=100, sampling_prob=0.01)
    with np.errstate(all="raise"):
        strict = check(claim)
    assert {**strict.to_dict(), "seconds": 0} == {**check(claim).to_dict(), "seconds": 0}


def test_longdouble_is_a_number_like_others() -> None:
    claim = Claim.single(Gaussian(np.longdouble(1.0)), epsilon=np.longdouble(1.0), delta=np.longdouble(0.2))
    assert check(claim).verdict == "certified"


def test_calibration_takes_them() -> None:
    wanted: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-6, "steps": 1000}
    found = [
        calibrate({"name": "gaussian"}, sampling_prob=prob, **wanted).value
        for prob in (np.float32(1e-4), float(np.float32(1e-4)))
    ]
    assert found[0] == found[1]
