"""`dpaudit calibrate`: a mechanism without its noise in, the least noise out."""

import json
import math
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from dpaudit.audit.inputs.errors import InputError
from dpaudit.audit.inputs.files import atomic_write
from dpaudit.mechanisms.registry import to_dict
from dpaudit.verify.calibration.noise import Calibration, calibrate
from dpaudit.verify.claims import Adjacency

WIDTH = 100


@dataclass(frozen=True)
class CalibrateSettings:
    """What is to be met, and where the answer goes.

    Args:
        epsilon: At least 0.
        delta: In [0, 1).
        steps: Releases.
        sampling_prob: Poisson rate, 1.0 without sampling.
        adjacency: "add-remove" or "replace-one".
        free: The free parameter by name, None for the one that is missing.
        json: File for the JSON; "-" for stdout and nothing else there.
    """

    epsilon: float
    delta: float
    steps: int
    sampling_prob: float
    adjacency: str
    free: str | None
    json: str | None


def run_calibrate(mechanism: Mapping[str, Any], settings: CalibrateSettings, *, show: Callable[[str], None]) -> None:
    """Find the least noise and print it as a claims file, the bracket and the assumptions in comments.

    Args:
        mechanism: Its table; parameters that are None count as missing.
        settings: What is to be met.
        show: Prints the result.

    Raises:
        InputError: A value outside its domain, an unknown name, no theorem, or a target out of reach.
    """
    given = {key: value for key, value in mechanism.items() if value is not None}
    try:
        found = calibrate(
            given, epsilon=settings.epsilon, delta=settings.delta, steps=settings.steps,
            sampling_prob=settings.sampling_prob, adjacency=cast("Adjacency", settings.adjacency), free=settings.free,
        )  # fmt: skip
    except (TypeError, ValueError) as error:
        raise InputError(str(error)) from error
    document = json.dumps(found.to_dict(), indent=2)
    if settings.json == "-":
        show(document)
        return
    if settings.json is not None:
        with atomic_write(settings.json) as file:
            file.write(document.encode() + b"\n")
    show(calibration_text(found))


def calibration_text(found: Calibration) -> str:
    """The claim as TOML that `dpaudit verify` reads; what is proved, and on what assumptions, in comments."""
    verdict, target = found.verdict, found.target
    lines = [
        f"least noise to {found.tolerance:g}: {found.free}={found.value:.6g} is enough, {found.too_little:.6g} is not",
        f"{verdict.verdict}: epsilon in [{verdict.epsilon_lower:.5g}, {verdict.epsilon_upper:.5g}] "
        f"at delta {target.delta:g}",
        f"by {found.theorem}",
        *(f"assumes: {text}" for text in verdict.assumptions),
        "in a recipe the last table is called [mechanism]",
    ]
    comments = [
        row for line in lines for row in textwrap.wrap(line, WIDTH, initial_indent="# ", subsequent_indent="#   ")
    ]
    claim = {
        "id": verdict.id, "epsilon": float(target.epsilon), "delta": float(target.delta),
        "adjacency": target.adjacency, "steps": int(target.steps), "sampling_prob": float(target.sampling_prob),
    }  # fmt: skip
    tables = [*comments, "[[claim]]", *_rows(claim), "[claim.mechanism]", *_rows(to_dict(found.mechanism))]
    return "\n".join(tables)


def _rows(table: Mapping[str, Any]) -> list[str]:
    return [f"{key} = {_value(value)}" for key, value in table.items()]


def _value(value: Any) -> str:
    """A TOML value; shortest digits that read back the same."""
    if isinstance(value, str):
        return json.dumps(value)
    assert not isinstance(value, float) or math.isfinite(value)
    return repr(value)
