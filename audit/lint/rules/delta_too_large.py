"""A delta that lets records be published whole."""

import ast
from collections.abc import Iterator

from dpaudit.audit.lint.findings import Hit, Rule
from dpaudit.audit.lint.idioms import SIZE_NAMES, SPELLINGS, records
from dpaudit.audit.lint.names import last_name
from dpaudit.audit.lint.recipe_files import RecipeFile
from dpaudit.audit.lint.rules.delta_from_loader import deltas, is_loader
from dpaudit.audit.lint.script import Script


def _find(script: Script) -> Iterator[Hit]:
    count = records(script)
    for delta in deltas(script):
        value = script.names.number(delta)
        if value is not None and count is not None and 1.0 / count <= value < 1:
            yield Hit(delta, f"delta = {value:g} is at least 1/n = {1 / count:.3g} of {count:,} records")
        elif value is None and _is_one_over_n(script, delta):
            yield Hit(delta, f"delta = {ast.unparse(delta)} is 1/n")


def _is_one_over_n(script: Script, node: ast.AST) -> bool:
    """Whether an expression is 1 divided by a number of records."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and script.names.number(node.left) == 1):
        return False
    below = node.right
    if isinstance(below, ast.Call) and last_name(below.func) == "len" and len(below.args) == 1:
        return not is_loader(script, below.args[0]) or last_name(below.args[0]) == "dataset"
    if isinstance(below, ast.Subscript) and last_name(below.value) == "shape":
        return script.names.number(below.slice) == 0
    return SIZE_NAMES.fullmatch(last_name(below)) is not None or last_name(below) in SPELLINGS["records"]


def _find_in_recipe(file: RecipeFile) -> Iterator[Hit]:
    delta, count = file.recipe.claim.delta, file.records
    if count is not None and delta >= 1.0 / count:
        message = f"delta = {delta:g} is at least 1/n = {1 / count:.3g} of {count:,} records"
        yield Hit(file.line("claim", "delta"), message)


RULE = Rule(
    name="delta-too-large",
    level="warning",
    summary="delta of 1/n or more",
    reason="Publishing one record at random, whole, is (0, 1/n)-differentially private.",
    source="Dwork and Roth (2014), The Algorithmic Foundations of Differential Privacy, section 2.3, "
    "https://doi.org/10.1561/0400000042",
    fix="Take delta well below 1/n, such as 1/(10 n) or n^-1.1.",
    in_script=_find,
    in_recipe=_find_in_recipe,
)
