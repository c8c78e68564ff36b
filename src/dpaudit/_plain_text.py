"""Outside text as a terminal, a log and XML can take it."""


def printable(text: str) -> str:
    """The text with "?" for every control character: terminals obey them, XML holds none.

    >>> printable("recipe\\x1b[31m.toml")
    'recipe?[31m.toml'
    """
    return "".join(letter if letter.isprintable() else "?" for letter in text)
