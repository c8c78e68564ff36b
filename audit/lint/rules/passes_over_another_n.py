"""Steps counted on one number of records, the sampling rate on another."""

import ast
from collections.abc import Callable, Iterator

from dpaudit.audit.lint.findings import Hit, Rule
from dpaudit.audit.lint.idioms import SPELLINGS, argument
from dpaudit.audit.lint.names import Number, last_name
from dpaudit.audit.lint.script import Script

SMALLEST = 100  # what is less is no number of records


def _find(script: Script) -> Iterator[Hit]:
    rates = dict(_uses(script, "sampling_prob", _rate_records))
    for node, count in _uses(script, "steps", _steps_records):
        others = set(rates.values()) - {count}
        if others and count not in rates.values():
            other = max(others)
            yield Hit(node, f"steps are counted for {count:,g} records, the sampling rate for {other:,g}")


def _uses(
    script: Script, quantity: str, read: Callable[[Script, ast.expr], Number | None]
) -> Iterator[tuple[ast.expr, Number]]:
    """What is used as a quantity, with the number of records in it."""
    for node in ast.walk(script.tree):
        given: list[ast.expr | None] = []
        if isinstance(node, ast.Call):
            given = [argument(node, quantity)]
        elif isinstance(node, ast.Assign) and any(last_name(item) in SPELLINGS[quantity] for item in node.targets):
            given = [node.value]
        for item in filter(None, given):
            for definition in script.names.definitions(item):
                count = None if definition is None else read(script, definition)
                if count is not None:
                    yield item, count


def _rate_records(script: Script, node: ast.expr) -> Number | None:
    """N of batch / N."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return _large(script.names.number(node.right))
    return None


def _steps_records(script: Script, node: ast.expr) -> Number | None:
    """N of epochs * N / batch, however it is bracketed and rounded."""
    while (
        isinstance(node, ast.Call) and len(node.args) == 1 and last_name(node.func) in ("int", "ceil", "floor", "round")
    ):
        node = node.args[0]
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Div, ast.FloorDiv))):
        return None
    factors = [*_factors(node)]
    if not any("epoch" in last_name(factor).lower() for factor in factors):
        return None
    counts = [_large(script.names.number(factor)) for factor in factors if "epoch" not in last_name(factor).lower()]
    return next((count for count in counts if count is not None), None)


def _factors(node: ast.expr) -> Iterator[ast.expr]:
    """The factors above the line of a product or quotient."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        yield from _factors(node.left)
        yield from _factors(node.right)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Div, ast.FloorDiv)):
        yield from _factors(node.left)
    else:
        yield node


def _large(value: Number | None) -> Number | None:
    return value if value is not None and value >= SMALLEST else None


RULE = Rule(
    name="passes-over-another-n",
    level="warning",
    summary="Epochs of one number of records, sampling rate of another",
    reason="The accountant needs the releases that were made and the rate at which a record entered them: an epoch of "
    "another data set counts too few or too many.",
    source="Abadi et al. (2016), Deep Learning with Differential Privacy, Algorithm 1, https://arxiv.org/abs/1607.00133",
    fix="Count the steps in the loop, and take the rate from the records that the batches are drawn from.",
    in_script=_find,
)
