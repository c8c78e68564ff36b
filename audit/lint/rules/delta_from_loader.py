"""A delta that counts batches instead of records."""

import ast
from collections.abc import Iterator

from dpaudit.audit.lint.findings import Hit, Rule
from dpaudit.audit.lint.idioms import argument
from dpaudit.audit.lint.names import last_name
from dpaudit.audit.lint.script import Script


def is_loader(script: Script, node: ast.AST) -> bool:
    """Whether an expression is a data loader, by its name or by what it was bound to."""
    if "loader" in last_name(node).lower():
        return True
    return any(
        isinstance(item, ast.Call) and last_name(item.func) in ("DataLoader", "DPDataLoader")
        for item in script.names.definitions(node)
    )


def deltas(script: Script) -> Iterator[ast.expr]:
    """Expressions that are used as delta: assigned to such a name, or given under one."""
    for node in ast.walk(script.tree):
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
        value = node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
        if value is not None and any("delta" in last_name(target).lower() for target in targets):
            yield value
    for call in script.all_calls:
        given = argument(call, "delta")
        if given is not None:
            yield given


def lengths(node: ast.AST) -> Iterator[ast.expr]:
    """What len() is taken of in an expression."""
    for part in ast.walk(node):
        if isinstance(part, ast.Call) and last_name(part.func) == "len" and len(part.args) == 1:
            yield part.args[0]


def _find(script: Script) -> Iterator[Hit]:
    for delta in deltas(script):
        loader = next((item for item in lengths(delta) if is_loader(script, item)), None)
        if loader is not None:
            yield Hit(delta, f"delta = {ast.unparse(delta)} counts batches: it is about a batch size times 1/n")


RULE = Rule(
    name="delta-from-loader",
    level="warning",
    summary="delta from the length of a data loader",
    reason="len() of a loader counts batches, so delta is the batch size times 1/n, and allows whole records to leak.",
    source="Dwork and Roth (2014), The Algorithmic Foundations of Differential Privacy, section 2.3, "
    "https://doi.org/10.1561/0400000042",
    fix="Take it from the records, and below 1/n: 1 / (10 * len(loader.dataset)).",
    in_script=_find,
)
