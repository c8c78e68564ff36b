"""`calibrate`: the least noise with which a mechanism meets (epsilon, delta)."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from dpaudit.mechanisms.base import LaplaceCoordinates, Mechanism, usual_errors
from dpaudit.mechanisms.registry import MECHANISMS, from_dict, to_dict
from dpaudit.verify.accountants.base import Accountant
from dpaudit.verify.calibration.costs import AccountantCost, Cost, Target, ValidCost, met_by_rho, require_noise
from dpaudit.verify.calibration.first_guess import spread, wanted_spread
from dpaudit.verify.calibration.search import TOLERANCE, InfeasibleError, NoiseBracket, least_noise, shortest_between
from dpaudit.verify.checking import check
from dpaudit.verify.claims import Adjacency
from dpaudit.verify.float_range import LEAST_RATIO, beyond_floats, require_length
from dpaudit.verify.results import Verdict, to_json

CALIBRATION_FORMAT = "dpaudit-calibration/1"


@dataclass(frozen=True)
class Calibration:
    """The least noise that meets a target, and what it really costs.

    Args:
        mechanism: With the parameter found.
        free: Name of that parameter.
        value: Its value: enough by the accountant.
        too_little: Less noise by a factor of at most 1 + tolerance, which is not enough by the accountant.
        target: What is met.
        accountant: "valid" for the proven bound, else the accountant's name.
        theorem: What proves the bound at this noise; "" for an accountant.
        tolerance: Relative.
        evaluations: How many noise levels the search tried.
        verdict: The check of the target with this mechanism: `certified` whenever the accountant is the valid bound.
    """

    mechanism: Mechanism
    free: str
    value: float
    too_little: float
    target: Target
    accountant: str
    theorem: str
    tolerance: float
    evaluations: int
    verdict: Verdict

    def to_dict(self) -> dict[str, Any]:
        """The JSON object, `format` first."""
        return {
            "format": CALIBRATION_FORMAT,
            "mechanism": to_dict(self.mechanism),
            "free": self.free,
            "value": to_json(self.value),
            "too_little": to_json(self.too_little),
            "epsilon": to_json(self.target.epsilon),
            "delta": to_json(self.target.delta),
            "steps": int(self.target.steps),
            "sampling_prob": to_json(self.target.sampling_prob),
            "adjacency": self.target.adjacency,
            "accountant": self.accountant,
            "theorem": self.theorem,
            "tolerance": self.tolerance,
            "evaluations": self.evaluations,
            "verdict": self.verdict.to_dict(),
        }


@usual_errors()
def calibrate(
    mechanism: Mapping[str, Any],
    *,
    epsilon: float,
    delta: float,
    steps: int = 1,
    sampling_prob: float = 1.0,
    adjacency: Adjacency = "add-remove",
    free: str | None = None,
    accountant: Accountant | None = None,
    tolerance: float = 1e-3,
) -> Calibration:
    """The least noise with which `steps` releases meet (epsilon, delta), by a valid bound or a given accountant.

    The mechanism is the table of a recipe or claims file without one noise parameter, the free one. Its value has few
    decimal digits, is enough, and a factor of 1 + tolerance less noise is not.

    Args:
        mechanism: {"name", ...}, as `mechanisms.registry.from_dict` takes it, without the free parameter. Only
            parameters that range over all positive numbers can be free: not beta.
        epsilon: At least 0, finite.
        delta: In [0, 1).
        steps: Releases, at least 1.
        sampling_prob: Poisson rate in (0, 1]; 1.0 without sampling.
        adjacency: "add-remove" or "replace-one".
        free: Name of the free parameter, where one is to be left open by name; the missing one otherwise.
        accountant: Called as (mechanism, sampling_prob, steps, delta) -> epsilon, in place of the valid bound.
        tolerance: Relative, in (0, 1).

    Raises:
        TypeError, ValueError: A value outside its domain, an unknown key, no or several free parameters, or no theorem
            for the mechanism.
        InfeasibleError: No noise meets the target, or none is needed.

    >>> found = calibrate({"name": "laplace", "clip_norm": 1.0}, epsilon=0.5, delta=0.0)  # scale = clip/epsilon
    >>> found.value, found.verdict.verdict
    (2.0, 'certified')
    """
    free = _free_parameter(mechanism, free)
    TOLERANCE.validate("tolerance", tolerance)
    tolerance = float(tolerance)
    target = Target(epsilon, delta, steps, sampling_prob, adjacency)
    if accountant is not None and epsilon == 0:
        raise ValueError(f"Expected epsilon={epsilon!r} in (0, inf): an accountant is compared by ratios of epsilon.")
    cost: Cost = ValidCost() if accountant is None else AccountantCost(accountant)
    finer: Cost = ValidCost(by_rho=True) if accountant is None else cost

    def build(value: float) -> Mechanism:
        return from_dict({**mechanism, free: value})

    unit = build(1.0)
    require_length("clip", unit.clip)
    target.claim(unit)  # refuses epsilon, delta, steps and the like
    require_noise(target)
    power = 1.0 if spread(build(2.0)) > spread(unit) else -1.0  # theta and k may be inverse to the noise
    start = max(wanted_spread(unit, target), LEAST_RATIO * unit.clip) / spread(unit)

    def search(by: Cost, start: float) -> NoiseBracket:
        return least_noise(lambda noise: by.excess(build(noise**power), target), start, tolerance)

    bracket = search(cost, start)
    if accountant is None and bracket.short > 0 and met_by_rho(target, build(bracket.short**power)):
        cost, bracket = finer, search(finer, bracket.short)
    _refuse(bracket, finer, lambda noise: build(noise**power), target)
    verdict: Verdict | None = None
    for value in _roundings(bracket, power, tolerance):
        if accountant is None:
            verdict = check(target.claim(build(value), id=f"{unit.name}-calibrated"))
        if verdict.verdict == "certified" if verdict else cost.excess(build(value), target) <= 0:
            break
    assert accountant is not None or (verdict is not None and verdict.verdict == "certified")
    return Calibration(
        mechanism=build(value),
        free=free,
        value=value,
        too_little=bracket.short**power,
        target=target,
        accountant="valid" if accountant is None else getattr(accountant, "name", repr(accountant)),
        theorem=getattr(cost, "theorem", ""),
        tolerance=tolerance,
        evaluations=bracket.count,
        verdict=verdict or check(target.claim(build(value), id=f"{unit.name}-calibrated")),
    )


def _roundings(bracket: NoiseBracket, power: float, tolerance: float) -> Iterator[float]:
    """Values to try, the most welcome first; the last is known to be enough.

    A round number between too little and enough may be the exact answer; one above enough should be enough.
    """
    for low, high, most in (
        (bracket.short, bracket.enough, 2),
        (bracket.enough, bracket.short * (1 + tolerance), 16),
    ):
        ends = sorted((low**power, high**power))
        rounded = shortest_between(*ends, most=most) if ends[0] < ends[1] else None
        if rounded is not None:
            yield rounded
    yield bracket.enough**power


def free_parameters(name: str) -> list[str]:
    """The parameters of a mechanism that can be free: those that range over all positive numbers.

    >>> free_parameters("gamma-plrv"), free_parameters("generalized-gaussian")
    (['k', 'theta'], ['scale'])
    """
    domains = MECHANISMS[name].domains
    return [key for key, d in domains.items() if d.low == 0 and not d.closed_low and math.isinf(d.high)]


def _free_parameter(fields: Mapping[str, Any], free: str | None) -> str:
    """The one free parameter, its absence from the fields checked."""
    if not isinstance(fields, Mapping):
        raise TypeError(f'Expected mechanism={fields!r} to be a table such as {{"name": "gaussian", "clip": 1.0}}.')
    if fields.get("name") not in MECHANISMS:
        from_dict(fields)  # says what is wrong with the name
    name = str(fields["name"])
    able = free_parameters(name)
    if free is not None and free not in able:
        near = get_close_matches(free, able, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"one of {', '.join(able)}."
        raise ValueError(f"Expected free={free!r} to be a parameter of {name} to solve for: {hint}")
    from_dict({**dict.fromkeys(able, 1.0), **fields})  # says what is wrong with a key or a value
    missing = [key for key in able if key not in fields]
    if free is not None and free in fields:
        raise ValueError(f"Expected {name} without a value of {free}: it is the free parameter.")
    if free is None and len(missing) != 1:
        given = "all are given" if not missing else f"{' and '.join(missing)} are not given"
        raise ValueError(f"Expected {name} with exactly one of {', '.join(able)} left free: {given}.")
    return missing[0] if free is None else free


def _refuse(bracket: NoiseBracket, cost: Cost, at_noise: Callable[[float], Mechanism], target: Target) -> None:
    """Say which end was reached where the search found no change of sign."""
    where = f"epsilon={target.epsilon:g} at delta={target.delta:g}"
    if math.isinf(bracket.enough):
        most = at_noise(bracket.short)
        nearest, beyond = cost.epsilon(most, target), beyond_floats(target.claim(most).canonical())
        if beyond:
            raise InfeasibleError(f"Expected {where} to be within reach of floating point: {beyond}.", math.nan)
        raise InfeasibleError(
            f"Expected {where} to be within reach of {most.name}: with as much noise as {_noise_text(most)} the bound "
            f"is still epsilon={nearest:g}{_without_dimension(most) if math.isinf(nearest) else ''}.",
            nearest,
        )
    if bracket.short == 0:
        least = at_noise(bracket.enough)
        raise InfeasibleError(
            f"Expected {where} to need noise: with as little as {_noise_text(least)} it still holds.", bracket.enough
        )


def _without_dimension(mechanism: Mechanism) -> str:
    """What would bound Laplace noise, whose loss has a bound, but none in every dimension."""
    unknown = isinstance(mechanism.structure, LaplaceCoordinates) and mechanism.dimension is None
    return "; with clip_norm=1, or a dimension, it has one" if unknown else ""


def _noise_text(mechanism: Mechanism) -> str:
    return ", ".join(f"{key}={getattr(mechanism, key):.3g}" for key in mechanism.domains)
