"""What pydantic found wrong, in one line that names the dotted key, the value and the rule."""

import difflib
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from dpaudit.mechanisms.quoting import shown

_LONGEST_INTEGER = 10_000
Models = Mapping[str, type[BaseModel]]


# what other tools call it: where it stands here
_RATE = "sampling_prob, the Poisson rate (batch size / records)"
_NOISE = "noise_multiplier in the mechanism's table"
_CLIP = "clip in the mechanism's table"
_STEPS = "steps, the number of batches, or sampling with batches and epochs"
FOREIGN_KEYS = {
    "sample_rate": _RATE, "sampling_rate": _RATE, "sampling_probability": _RATE, "q": _RATE, "batch_size": _RATE,
    "noise_multiplier": _NOISE, "sigma": _NOISE, "noise": _NOISE,
    "max_grad_norm": _CLIP, "l2_norm_clip": _CLIP, "clip": _CLIP, "clipping_norm": _CLIP, "clip_norm": _CLIP,
    "epochs": _STEPS, "num_epochs": _STEPS, "num_steps": _STEPS, "iterations": _STEPS,
    "target_epsilon": "epsilon", "eps": "epsilon", "target_delta": "delta",
}  # fmt: skip


def read_toml(text: str) -> dict[str, Any]:
    """The tables of a TOML text.

    Raises:
        ValueError: It is no TOML, or holds an integer too long for Python to write in decimal digits, or a number other
            than 0 that floats take for it.
    """
    tables = tomllib.loads(text, parse_float=float_of)
    left: list[Any] = [tables]
    while left:
        value = left.pop()
        if isinstance(value, int) and value.bit_length() > _LONGEST_INTEGER:
            raise ValueError(f"Expected integers of at most {_LONGEST_INTEGER} bits, not {value.bit_length()}.")
        left.extend(value.values() if isinstance(value, dict) else value if isinstance(value, list) else ())
    return tables


def one_line(error: ValidationError, model: type[BaseModel], algorithms: Models | None = None) -> str:
    """The first error as "dotted.key: Expected value to ..."; how many others there are follows.

    Args:
        error: What validation raised.
        model: The model that was validated, for suggestions of similar keys.
        algorithms: The models of all algorithms by name: `model` is one of them, or what they have in common.
    """
    algorithms = algorithms or {}
    foreign = {(key,) for other in algorithms.values() for key in other.model_fields if key not in model.model_fields}
    errors = [  # whose key it is cannot be said while the algorithm is unknown
        item for item in error.errors(include_url=False) if model in algorithms.values() or item["loc"] not in foreign
    ]
    # A missing key is often a misspelt one: the unknown key says more.
    first = min(errors, key=lambda item: item["type"] != "extra_forbidden" or item["loc"] in foreign)
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return _message(dict(first), model, algorithms) + more


def float_of(text: str) -> float:
    """The float nearest to a decimal.

    Raises:
        ValueError: The text is no number, or one other than 0 to which 0 is nearest: a delta of 1e-400 is a promise,
            and one of 0 another.
    """
    value = float(text)
    if value == 0.0 and re.search("[1-9]", re.split("[eE]", text)[0]):
        raise ValueError(f"Expected numbers to be 0, or at least 5e-324 in size as floats are, not {text[:80]}.")
    return value


def _message(item: dict[str, Any], model: type[BaseModel], algorithms: Models) -> str:
    if item["type"] == "json_invalid":
        return f"Expected it to be JSON: {item['ctx']['error']}."
    location = [str(part) for part in item["loc"]]
    key, value = ".".join(location), shown(item["input"])
    if item["type"] == "extra_forbidden":
        users = [repr(name) for name, other in algorithms.items() if key in other.model_fields]
        if users:
            return f"{key}: Expected it only with algorithm={' or '.join(users)}."
        near = difflib.get_close_matches(location[-1], _keys(model, location[:-1]), n=1)
        meant = FOREIGN_KEYS.get(location[-1]) or (near[0] if near else "")
        return f"{key}: Expected a known key" + (f": did you mean {meant}?" if meant else ".")
    rules = {repr([other.model_fields.get(part) for part in location[:1]]) for other in algorithms.values()}
    names = [name for name, other in algorithms.items() if other is model and len(rules) > 1]
    context = "".join(f" with algorithm={name!r}" for name in names)
    if item["type"] == "missing":
        return f"{key}: Expected this key{context or ': it is required'}."
    if item["type"] == "value_error":
        text = str(item["ctx"]["error"])
        named = re.match(r"Expected (?:(\w+)=|'(\w+)' to be a key)", text) if location == ["mechanism"] else None
        key = f"{key}.{named[1] or named[2]}" if named else key
        return f"{key}: {text}" if key else text
    rule = re.sub(r"dictionary or instance of \w+$", "table", item["msg"])
    if rule.startswith("Input should "):
        limit = context if item["type"] == "literal_error" else ""
        return f"{key}: Expected {value} to {rule.removeprefix('Input should ')}{limit}."
    return f"{key}: Expected {value} to be valid: {rule}."


def _keys(model: type[BaseModel], location: Sequence[str]) -> list[str]:
    """The keys that the table at `location` may have."""
    for part in location:
        field = model.model_fields.get(part)
        nested = field.annotation if field is not None else None
        if not (isinstance(nested, type) and issubclass(nested, BaseModel)):
            return []
        model = nested
    return list(model.model_fields)
