"""`dpaudit calibrate`: a mechanism without its noise in, the least noise out."""

import json
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dpaudit._files import write_whole
from dpaudit.audit.inputs.files import InputError
from dpaudit.mechanisms.registry import to_dict
from dpaudit.verify.calibration.noise import Calibration, calibrate
from dpaudit.verify.results import down, up

WIDTH = 100


def run_calibrate(
    mechanism: Mapping[str, Any], fixed: Sequence[str], *, json_file: str | None, show: Callable[[str], None],
    **target: Any,
) -> None:  # fmt: skip
    """Find the least noise and print it as a claims file, the bracket and the assumptions in comments.

    Args:
        mechanism: Its name and clipping.
        fixed: The noise parameters that are not free, as "name=value".
        json_file: File for the JSON; "-" for stdout and nothing else there.
        show: Prints the result.
        target: What is to be met, and which parameter is free: the keywords of `verify.calibrate`.

    Raises:
        InputError: A value outside its domain, an unknown name, no theorem, or a target out of reach.
    """
    try:
        calibration = calibrate(with_parameters(mechanism, fixed), **target)
    except (TypeError, ValueError) as error:
        raise InputError(str(error)) from error
    document = json.dumps(calibration.to_dict(), indent=2)
    if json_file == "-":
        show(document)
        return
    if json_file is not None:
        write_whole({json_file: document.encode() + b"\n"})
    show(calibration_text(calibration))


def with_parameters(mechanism: Mapping[str, Any], texts: Sequence[str]) -> dict[str, Any]:
    """A mechanism's table with parameters from the command line.

    Args:
        mechanism: The table.
        texts: Such as "nu=3".

    Raises:
        ValueError: A text is not of that form, or a parameter is given twice.

    >>> with_parameters({"name": "gamma-plrv"}, ["k=3"])
    {'name': 'gamma-plrv', 'k': 3}
    """
    table = dict(mechanism)
    for text in texts:
        name, _, value = text.partition("=")
        if name in table:
            raise ValueError(f"Expected {name} once: {text!r} gives it again.")
        try:
            table[name] = int(value) if value.strip().lstrip("+-").isdigit() else float(value)
        except ValueError:
            raise ValueError(f"Expected set={text!r} to be a parameter and a number, such as scale=2.") from None
    return table


def calibration_text(calibration: Calibration) -> str:
    """The claim as TOML that `dpaudit verify` reads; what is proved, and on what assumptions, in comments."""
    verdict, target = calibration.verdict, calibration.target
    lines = [
        f"least noise to {calibration.tolerance:g}: {calibration.free}={calibration.value:.6g} is enough, "
        f"{calibration.too_little:.6g} is not proven to be",
        f"{verdict.verdict}: epsilon in [{down(verdict.epsilon_lower)}, {up(verdict.epsilon_upper)}] "
        f"at delta {verdict.delta_claimed:g}",
        f"by {calibration.theorem}",
        *(f"assumes: {text}" for text in verdict.assumptions),
        "in a recipe the last table is called [mechanism]",
    ]
    comments = [
        row for line in lines for row in textwrap.wrap(line, WIDTH, initial_indent="# ", subsequent_indent="#   ")
    ]
    claim = {
        "id": verdict.id, "epsilon": float(target.epsilon), "delta": float(verdict.delta_claimed),
        "adjacency": target.adjacency, "steps": int(target.steps), "sampling_prob": float(target.sampling_prob),
    }  # fmt: skip
    tables = [*comments, "[[claim]]", *_rows(claim), "[claim.mechanism]", *_rows(to_dict(calibration.mechanism))]
    return "\n".join(tables)


def _rows(table: Mapping[str, Any]) -> list[str]:
    """Rows of TOML; numbers with the shortest digits that read back the same."""
    assert all(math.isfinite(value) for value in table.values() if isinstance(value, float))
    return [f"{key} = {json.dumps(value) if isinstance(value, str) else repr(value)}" for key, value in table.items()]
