"""Values of others in messages of ours."""

from collections.abc import Iterator
from typing import Any

_LONGEST_VALUE = 80
_BRACKETS: dict[type, str] = {dict: "{}", list: "[]", tuple: "()"}


def shown(value: Any) -> str:
    """The value as Python writes it, cut; what is cut is not written, for aliases in YAML make it 10^9 letters.

    >>> shown("red"), len(shown("a" * 130_000))
    ("'red'", 83)
    """
    found = ""
    for piece in _pieces(value):
        found += piece
        if len(found) > _LONGEST_VALUE:
            return found[:_LONGEST_VALUE] + "..."
    return found


def _pieces(value: Any) -> Iterator[str]:
    brackets = _BRACKETS.get(type(value))
    if brackets is None:
        yield repr(value)
        return
    yield brackets[0]
    for number, item in enumerate(value):
        yield ", " if number else ""
        if isinstance(value, dict):
            yield f"{item!r}: "
        yield from _pieces(value[item] if isinstance(value, dict) else item)
    yield brackets[1]
