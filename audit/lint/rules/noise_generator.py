"""Noise from a generator that can be predicted."""

import ast
from collections.abc import Iterator

from dpaudit.audit.lint.findings import Hit, Rule
from dpaudit.audit.lint.idioms import SPELLINGS
from dpaudit.audit.lint.names import keyword, last_name
from dpaudit.audit.lint.script import Script

DRAWS = ("normal", "normal_", "randn", "randn_like")


def _find(script: Script) -> Iterator[Hit]:
    for call in script.calls("PrivacyEngine"):
        secure = keyword(call, "secure_mode")
        opacus = script.names.dotted(call.func).split(".")[0] == "opacus"
        if opacus and (secure is None or script.names.value(secure) is False):
            yield Hit(call, "Opacus without secure_mode draws its noise from a statistical generator")
    for call in script.calls(*DRAWS):
        statement = _statement(script, call)
        if statement is not None and any(
            last_name(part) in SPELLINGS["noise_multiplier"] for part in ast.walk(statement)
        ):
            yield Hit(call, f"{ast.unparse(call.func)} draws noise from a statistical generator")


def _statement(script: Script, node: ast.AST) -> ast.AST | None:
    """The simple statement around an expression."""
    current: ast.AST | None = node
    while current is not None and not isinstance(
        current, (ast.Assign, ast.AugAssign, ast.Expr, ast.Return, ast.Module)
    ):
        current = script.names.parents.get(current)
    return None if isinstance(current, ast.Module) else current


RULE = Rule(
    name="noise-generator",
    level="note",
    summary="Noise from a statistical generator",
    reason="The state of the Mersenne Twister and its like follows from their outputs, and floating-point noise has "
    "low-order bits that tell: right for experiments, not for releases to an adversary.",
    source="Garfinkel and Leclerc (2020), https://arxiv.org/abs/2009.03777; Mironov (2012), "
    "https://doi.org/10.1145/2382196.2382264",
    fix="secure_mode=True of Opacus, or a cryptographic generator, for a model that is released.",
    in_script=_find,
)
