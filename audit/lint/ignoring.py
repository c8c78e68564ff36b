"""Comments that switch rules off: `# dpaudit: ignore[batch-norm]`."""

import io
import re
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

_COMMENT = re.compile(r"#\s*dpaudit:\s*ignore\[([\w\s,-]*)\]")


@dataclass(frozen=True)
class Ignored:
    """The rules that comments of a file switch off.

    Args:
        lines: Their names, by the line that they are switched off on: the comment's own or, where it stands alone on
            its line, the one below.
    """

    lines: Mapping[int, set[str]]

    @classmethod
    def by(cls, comments: Iterable[tuple[int, bool, str]]) -> "Ignored":
        """From the line of every comment, counted from 1, whether it stands alone there, and its text."""
        found: dict[int, set[str]] = {}
        for line, alone, text in comments:
            if match := _COMMENT.search(text):
                found.setdefault(line + alone, set()).update(name.strip() for name in match[1].split(","))
        return cls(found)

    def on(self, line: int) -> set[str]:
        """The rules that are switched off on a line."""
        return self.lines.get(line, set())

    @property
    def names(self) -> set[str]:
        """Every name that stands in an ignoring comment."""
        return set().union(*self.lines.values())


def toml_comments(text: str) -> Iterator[tuple[int, bool, str]]:
    """Every line of a TOML file: a mark in a string counts, too."""
    for number, line in enumerate(text.splitlines(), start=1):
        yield number, line.lstrip().startswith("#"), line


def python_comments(source: str) -> Iterator[tuple[int, bool, str]]:
    """The comments of a Python source, as far as it can be read.

    >>> Ignored.by(python_comments("x = 1  # dpaudit: ignore[batch-norm]")).on(1)
    {'batch-norm'}
    """
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], not token.line[: token.start[1]].strip(), token.string
    except (tokenize.TokenError, SyntaxError):  # the tree was read all the same
        pass
