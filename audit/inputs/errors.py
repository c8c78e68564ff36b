"""The one error that the loaders raise."""

_LONGEST = 600


class InputError(ValueError):
    """Something from outside cannot be used; the message is one printable line that names it and the rule.

    >>> print(InputError("Expected\\n\\x1b[31mrecipe.toml to hold TOML."))
    Expected ?[31mrecipe.toml to hold TOML.
    """

    def __init__(self, message: str) -> None:
        line = "".join(letter if letter.isprintable() else "?" for letter in " ".join(message.split()))
        super().__init__(line if len(line) <= _LONGEST else line[: _LONGEST - 3] + "...")
