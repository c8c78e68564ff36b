"""A training recipe as lint reads it: checked, and with the lines that its keys stand in."""

import re
import tomllib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from dpaudit.audit.inputs.files import InputError, read_regular
from dpaudit.audit.lint.idioms import TRAINING_RECORDS
from dpaudit.audit.lint.ignoring import Ignored, toml_comments

if TYPE_CHECKING:
    from dpaudit.audit.inputs.recipes import Recipe

LARGEST = 1 << 20  # bytes, as of recipes


@dataclass(frozen=True)
class RecipeFile:
    """A recipe with its text.

    Args:
        path: The file.
        text: As it was read.
        recipe: What it says; code that it names is not run.
    """

    path: str
    text: str
    recipe: "Recipe"

    @property
    def records(self) -> int | None:
        """How many records are trained on at most; None where the file does not tell."""
        table = self.recipe.dataset
        if table.records is not None:
            return table.records if isinstance(table.records, int) else len(table.records)
        return None if table.classes else TRAINING_RECORDS.get(str(table.name).lower())

    @cached_property
    def ignored(self) -> Ignored:
        """The rules that its comments switch off."""
        return Ignored.by(toml_comments(self.text))

    def line(self, table: str, key: str) -> int:
        """The line, counted from 1, of a key in [table]; of the table, or 1, where it is not found."""
        found = 1
        inside = False
        for number, text in enumerate(self.text.splitlines(), start=1):
            if text.strip().startswith("["):
                inside = re.match(rf"\s*\[\s*{table}\s*\]", text) is not None
                found = number if inside else found
            elif inside and re.match(rf"\s*{key}\s*=", text):
                return number
        return found


def is_recipe(path: Path) -> bool:
    """Whether a TOML file is meant as a recipe, with an algorithm; what the system does not let be read may be one."""
    try:
        data = tomllib.loads(read_regular(path, limit=LARGEST).decode("utf-8-sig"))
    except InputError as error:
        return isinstance(error.__cause__, OSError)
    except (ValueError, RecursionError):
        return False
    return "algorithm" in data


def read_recipe(path: Path) -> RecipeFile:
    """Read a recipe.

    Raises:
        InputError: It is no recipe; says so where it is a claims file.
    """
    from dpaudit.audit.inputs.recipes import load_recipe

    text = read_regular(path, limit=LARGEST).decode("utf-8", errors="replace")
    if re.search(r"^\s*\[\[\s*claim\s*\]\]", text, re.MULTILINE):
        raise InputError(f"Expected {path} to be a recipe: it is a claims file, for dpaudit verify.")
    return RecipeFile(str(path), text, load_recipe(path))
