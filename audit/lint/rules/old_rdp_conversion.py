"""The first conversion from Rényi moments, which charges more than it must."""

import ast
from collections.abc import Iterator

from dpaudit.audit.lint.findings import Hit, Rule
from dpaudit.audit.lint.names import last_name
from dpaudit.audit.lint.script import Script

LOGS = ("log", "log1p", "log2")


def _find(script: Script) -> Iterator[Hit]:
    for node in ast.walk(script.tree):
        if not (isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub))):
            continue
        if isinstance(script.names.parents.get(node), ast.BinOp):
            continue  # the whole sum is looked at
        parts = list(ast.walk(node))
        logs = [part for part in parts if isinstance(part, ast.Call) and last_name(part.func) in LOGS]
        of_delta = [log for log in logs if any("delta" in last_name(part).lower() for part in ast.walk(log))]
        divided = any(isinstance(part, ast.BinOp) and _log_over_order(part, of_delta) for part in parts)
        if divided and len(logs) == len(of_delta):
            yield Hit(node, f"epsilon = {ast.unparse(node)} is valid, and larger than what is known to hold")


def _log_over_order(node: ast.BinOp, logs: list[ast.Call]) -> bool:
    """Whether a quotient is a logarithm of delta over an order less 1."""
    below = node.right
    less_one = (
        isinstance(below, ast.BinOp)
        and isinstance(below.op, ast.Sub)
        and isinstance(below.right, ast.Constant)
        and below.right.value == 1
    )
    return isinstance(node.op, ast.Div) and less_one and any(part in logs for part in ast.walk(node.left))


RULE = Rule(
    name="old-rdp-conversion",
    level="note",
    summary="The conversion of 2017 from Rényi differential privacy to epsilon",
    reason="epsilon = rdp + log(1/delta)/(order - 1) holds, and a tighter conversion of the same moments is known: the "
    "same training has a smaller epsilon.",
    source="Canonne, Kamath and Steinke (2020), Proposition 12, https://arxiv.org/abs/2004.00010",
    fix="Add log((order - 1)/order) - log(order)/(order - 1), or leave it to an accountant.",
    in_script=_find,
)
