"""What pydantic found wrong, in one line that names the dotted key, the value and the rule."""

import difflib
import re
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

_LONGEST_VALUE = 80


def one_line(error: ValidationError, model: type[BaseModel]) -> str:
    """The first error as "dotted.key: Expected value to ..."; how many others there are follows.

    Args:
        error: What validation raised.
        model: The model that was validated, for suggestions of similar keys.
    """
    errors = error.errors(include_url=False)
    # A missing key is often a misspelt one: the unknown key says more.
    first = min(errors, key=lambda item: item["type"] != "extra_forbidden")
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return _message(dict(first), model) + more


def _message(item: dict[str, Any], model: type[BaseModel]) -> str:
    location = [str(part) for part in item["loc"]]
    key, value = ".".join(location), repr(item["input"])
    value = value if len(value) <= _LONGEST_VALUE else value[:_LONGEST_VALUE] + "..."
    if item["type"] == "extra_forbidden":
        near = difflib.get_close_matches(location[-1], _keys(model, location[:-1]), n=1)
        return f"{key}: Expected a known key" + (f": did you mean {near[0]}?" if near else ".")
    if item["type"] == "missing":
        return f"{key}: Expected this key: it is required."
    if item["type"] == "value_error":
        text = str(item["ctx"]["error"])
        named = re.match(r"Expected (?:(\w+)=|'(\w+)' to be a key)", text) if location == ["mechanism"] else None
        key = f"{key}.{named[1] or named[2]}" if named else key
        return f"{key}: {text}" if key else text
    rule = item["msg"]
    if rule.startswith("Input should "):
        return f"{key}: Expected {value} to {rule.removeprefix('Input should ')}."
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
