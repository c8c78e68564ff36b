"""A divisor that a record's presence moves."""

import ast
import math
import re
from collections.abc import Iterator

from dpaudit.audit.lint.findings import Hit, Rule
from dpaudit.audit.lint.idioms import argument, records
from dpaudit.audit.lint.names import keyword, last_name
from dpaudit.audit.lint.rules.sigma_as_multiplier import DRAWS_NOISE
from dpaudit.audit.lint.script import Script

DRAWS_UNIFORM = ("rand", "random", "uniform", "random_sample")
GRADIENTS = re.compile(r"(^|_)(summed_)?grads?($|_)|gradient", re.IGNORECASE)


def _find(script: Script) -> Iterator[Hit]:
    for node in ast.walk(script.tree):
        above: ast.expr
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div):
            above, below = node.target, node.value
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            above, below = node.left, node.right
        else:
            continue
        if GRADIENTS.search(last_name(above)) and _is_batch_length(script, below):
            yield Hit(node, f"the gradient is divided by {ast.unparse(below)}, which counts who is in the batch")
        elif _has_noise(above) and any(_is_drawn_count(script, item) for item in script.names.definitions(below)):
            yield Hit(node, f"the noisy sum is divided by {ast.unparse(below)}, which counts who was drawn")
    yield from _opacus_divisor(script)


def _is_batch_length(script: Script, node: ast.AST) -> bool:
    """Whether an expression is the length of a batch: of what a loop runs over, or of what is so called."""
    if isinstance(node, ast.Call) and last_name(node.func) == "len" and len(node.args) == 1:
        return _is_batch(script, node.args[0])
    if isinstance(node, ast.Call) and last_name(node.func) == "size" and isinstance(node.func, ast.Attribute):
        return _is_batch(script, node.func.value)
    if isinstance(node, ast.Subscript) and last_name(node.value) == "shape" and isinstance(node.value, ast.Attribute):
        return _is_batch(script, node.value.value)
    return False


def _has_noise(node: ast.AST) -> bool:
    """Whether noise is drawn in an expression, or something is so called."""
    return any(
        (isinstance(part, ast.Call) and last_name(part.func) in DRAWS_NOISE) or "nois" in last_name(part).lower()
        for part in ast.walk(node)
    )


def _is_drawn_count(script: Script, node: ast.AST | None) -> bool:
    """Whether an expression is the sum of what `rand(n) < rate` draws: how many records are in a Poisson batch."""
    while isinstance(node, ast.Call) and last_name(node.func) in ("item", "float", "int"):
        node = node.func.value if isinstance(node.func, ast.Attribute) else next(iter(node.args), None)
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "sum"):
        return False
    known = script.names.definitions(node.args[0] if node.args else node.func.value)
    return bool(known) and all(
        isinstance(item, ast.Compare)
        and any(isinstance(part, ast.Call) and last_name(part.func) in DRAWS_UNIFORM for part in ast.walk(item))
        for item in known
    )


def _is_batch(script: Script, node: ast.AST) -> bool:
    name = last_name(node)
    if "batch" in name.lower():
        return True
    loops = (item for item in ast.walk(script.tree) if isinstance(item, (ast.For, ast.AsyncFor)))
    return bool(name) and any(
        isinstance(part, ast.Name) and part.id == name and "loader" in ast.unparse(loop.iter).lower()
        for loop in loops
        for part in ast.walk(loop.target)
    )


def _opacus_divisor(script: Script) -> Iterator[Hit]:
    """Opacus divides by int(n / ceil(n / batch)), which one record more or less can move."""
    count = records(script)
    loaders = list(script.calls("DataLoader"))
    for call in script.calls("make_private", "make_private_with_epsilon"):
        loader = keyword(call, "data_loader")
        if count is None or loader is None or script.names.value(keyword(call, "loss_reduction")) == "sum":
            continue
        bound = [item for item in loaders if item in script.names.definitions(loader)]
        batch = script.names.number(argument(bound[0], "batch_size")) if len(bound) == 1 else None
        if batch is None or not 1 <= batch < count or keyword(bound[0], "drop_last"):
            continue
        divisors = [int(n * (1 / math.ceil(n / batch))) for n in (count, count - 1)]
        if divisors[0] != divisors[1]:
            yield Hit(
                call,
                f"Opacus divides by {divisors[0]} with {count:,} records in batches of {batch:g}, and by {divisors[1]} "
                "with one record fewer",
            )


RULE = Rule(
    name="realised-divisor",
    level="warning",
    summary="Gradients divided by a number that depends on who is in the data",
    reason="The accountant is of a noisy sum: a divisor that moves with a record tells of it, more so the more "
    "parameters there are.",
    source="https://github.com/pytorch/opacus/issues/571, https://github.com/pytorch/opacus/issues/819",
    fix='Divide by a public constant, the expected batch size of a rounded number of records (loss_reduction="sum" and '
    "a division of your own).",
    in_script=_find,
)
