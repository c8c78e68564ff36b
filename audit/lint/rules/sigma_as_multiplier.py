"""A standard deviation where a noise multiplier belongs, or the other way round."""

import ast
from collections.abc import Iterator

from dpaudit.audit.lint.findings import Hit, Rule
from dpaudit.audit.lint.idioms import SIGNATURES, argument, is_clip
from dpaudit.audit.lint.names import keyword, last_name
from dpaudit.audit.lint.script import Script

TAKES_MULTIPLIER = (*SIGNATURES, "make_private", "PrivacyEngine", "PRVAccountant", "Accountant", "DPOptimizer", "step")
DRAWS_NOISE = ("normal", "normal_", "randn", "randn_like", "_generate_noise")
MULTIPLIERS = {"noise_multiplier", "noise_mult", "noise_multi"}


def _find(script: Script) -> Iterator[Hit]:
    for call in script.calls(*TAKES_MULTIPLIER):
        given = argument(call, "noise_multiplier")
        for definition in [] if given is None else script.names.definitions(given):
            if definition is not None and _times_clip(definition):
                text = ast.unparse(definition)
                yield Hit(given or call, f"{last_name(call.func)} takes a noise multiplier, and gets {text}")
    for call in script.calls(*DRAWS_NOISE):
        spread = _spread(call) or _factor(script, call)
        if spread is not None and last_name(spread) in MULTIPLIERS and not _multiplied(script, call):
            clip = _clip(script)
            if clip not in (None, 1):
                message = f"noise of standard deviation {ast.unparse(spread)}, where the clipping norm is {clip:g}"
                yield Hit(call, message)


def _times_clip(node: ast.expr) -> bool:
    """Whether a product has a clipping norm among its factors, and nothing below the line."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)):
        return False
    return any(is_clip(side) or _times_clip(side) for side in (node.left, node.right))


def _spread(call: ast.Call) -> ast.expr | None:
    """The standard deviation of a normal draw."""
    given = keyword(call, "std", "stddev", "scale")
    if given is not None or last_name(call.func) not in ("normal", "normal_"):
        return given
    return call.args[1] if len(call.args) > 1 else None


def _factor(script: Script, call: ast.Call) -> ast.expr | None:
    """The noise multiplier that alone multiplies a draw of unit spread, which is then added: a clip comes no later."""
    found: ast.expr | None = None
    node: ast.AST = call
    parent = script.names.parents.get(node)
    while isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Mult):
        other = parent.right if parent.left is node else parent.left
        if found is not None or last_name(other) not in MULTIPLIERS:  # another factor may be the norm by another name
            return None
        found, node, parent = other, parent, script.names.parents.get(parent)
    added = isinstance(parent, (ast.BinOp, ast.AugAssign)) and isinstance(parent.op, ast.Add)
    in_its_units = parent is not None and any(map(is_clip, ast.walk(parent)))  # as a sum of gradients over the norm
    return found if added and not in_its_units else None


def _multiplied(script: Script, call: ast.Call) -> bool:
    """Whether a clipping norm multiplies the draw afterwards."""
    node = script.names.parents.get(call)
    while isinstance(node, (ast.BinOp, ast.Attribute, ast.Call)):
        product = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)
        if product and any(is_clip(side) for side in ast.iter_child_nodes(node)):
            return True
        node = script.names.parents.get(node)
    return False


def _clip(script: Script) -> float | None:
    """The clipping norm, if every name of one has the same value."""
    names = (node for node in ast.walk(script.tree) if isinstance(node, (ast.Name, ast.Attribute)) and is_clip(node))
    values = {value for value in map(script.names.number, names) if value is not None}
    return values.pop() if len(values) == 1 else None


RULE = Rule(
    name="sigma-as-multiplier",
    level="warning",
    summary="A standard deviation taken for a noise multiplier",
    reason="The noise multiplier is the standard deviation of the noise on the sum divided by the clipping norm: an "
    "accountant that gets another number answers for another mechanism.",
    source="Abadi et al. (2016), Deep Learning with Differential Privacy, Algorithm 1, https://arxiv.org/abs/1607.00133",
    fix="Give accountants stddev / clip, and noise the standard deviation noise_multiplier * clip.",
    in_script=_find,
)
