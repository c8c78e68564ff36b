"""Outside text as a terminal, a log, a command line and XML can take it."""

from pathlib import Path


def printable(text: str) -> str:
    """The text with "?" for every control character: terminals obey them, XML holds none.

    >>> printable("recipe\\x1b[31m.toml")
    'recipe?[31m.toml'
    """
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def as_argument(path: Path) -> str:
    """The path as a word of a command that is no option.

    >>> as_argument(Path("-s.toml"))
    './-s.toml'
    """
    return f"./{path}" if str(path).startswith("-") else str(path)
