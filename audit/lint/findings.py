"""Rules and what they find."""

import ast
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from dpaudit.audit.lint.recipe_files import RecipeFile
    from dpaudit.audit.lint.script import Script

Level = Literal["note", "warning", "error"]


class Hit(NamedTuple):
    """A place that breaks a rule.

    Args:
        place: The syntax node, or the line of a recipe, counted from 1.
        message: What stands there, in one sentence with the script's own names and numbers.
        refuted: Whether it states an epsilon that a certified lower bound contradicts.
    """

    place: ast.AST | int
    message: str
    refuted: bool = False


@dataclass(frozen=True)
class Rule:
    """A practice that breaks or blurs a privacy guarantee, and how to find it.

    Args:
        name: In lower case with hyphens: what `# dpaudit: ignore[name]` takes.
        level: "warning", or "note" for what holds of most scripts and is right for experiments.
        summary: The practice, in one line.
        reason: Why the guarantee does not follow.
        source: Paper or address.
        fix: What to do instead.
        in_script: Finds it in Python.
        in_recipe: Finds it in a recipe; None where recipes cannot have it.
    """

    name: str
    level: Level
    summary: str
    reason: str
    source: str
    fix: str
    in_script: "Callable[[Script], Iterator[Hit]] | None" = None
    in_recipe: "Callable[[RecipeFile], Iterator[Hit]] | None" = None


@dataclass(frozen=True, order=True)
class Finding:
    """A hit with its rule and its place in a file; orders by place.

    Args:
        path: The file.
        line, column: From 1; of a notebook, the line of the .ipynb file itself.
        cell: Of a notebook, which code cell and which line in it, such as "cell 3, line 2"; else "".
        rule, level, message, reason, source, fix: As in `Rule` and `Hit`; "error" where a claim is refuted.
    """

    path: str
    line: int
    column: int
    cell: str
    rule: str
    level: Level
    message: str
    reason: str
    source: str
    fix: str

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of this finding."""
        return asdict(self)
