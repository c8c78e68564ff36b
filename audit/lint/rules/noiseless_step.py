"""Steps of the optimizer that Opacus has wrapped, which clip nothing and add no noise."""

import ast
from collections.abc import Iterator

from dpaudit.audit.lint.findings import Hit, Rule
from dpaudit.audit.lint.names import keyword
from dpaudit.audit.lint.rules.shuffled_as_poisson import OPACUS
from dpaudit.audit.lint.script import Script

ADDS_NOISE = ("pre_step", "add_noise")  # of DPOptimizer, called by hand before the step of the optimizer inside


def _find(script: Script) -> Iterator[Hit]:
    noisy = {next(script.names.scopes(call)) for call in script.calls(*ADDS_NOISE)}
    steps = [call for call in script.calls("step") if next(script.names.scopes(call)) not in noisy]
    for step in steps:
        of = step.func.value if isinstance(step.func, ast.Attribute) else None
        if isinstance(of, ast.Attribute) and of.attr == "original_optimizer":
            yield Hit(step, f"{ast.unparse(of)}.step() neither clips nor adds noise")
    for private in script.calls(*OPACUS):
        given = keyword(private, "optimizer") or (private.args[1] if len(private.args) > 1 else None)
        known = script.names.definitions(given) if isinstance(given, ast.Name) else []
        if len(known) != 1 or not isinstance(known[0], ast.Call):  # one that is bound again may be the private one
            continue
        for step in steps:
            of = step.func.value if isinstance(step.func, ast.Attribute) else None
            same = isinstance(of, ast.Name) and script.names.definitions(of) == known
            if same and _surely_follows(script, step, private):
                name = ast.unparse(step.func)
                yield Hit(step, f"{name}() is of the optimizer that make_private was given: it adds no noise")


def _surely_follows(script: Script, node: ast.Call, first: ast.Call) -> bool:
    """Whether a call below another is reached after it: in the same function, under all conditions of the other."""
    conditions = _conditions(script, first)
    return (
        node.lineno > first.lineno
        and next(script.names.scopes(node)) is next(script.names.scopes(first))
        and conditions <= _conditions(script, node)
    )


def _conditions(script: Script, node: ast.AST) -> set[tuple[ast.AST, bool]]:
    """The `if`s around a node, each with whether it stands where the test holds."""
    found: set[tuple[ast.AST, bool]] = set()
    while (parent := script.names.parents.get(node)) is not None:
        if isinstance(parent, ast.If):
            found.add((parent, node in parent.body))
        node = parent
    return found


RULE = Rule(
    name="noiseless-step",
    level="warning",
    summary="A step without noise beside private ones",
    reason="The optimizer inside DPOptimizer takes the gradient as it finds it. On private records no epsilon holds, "
    "and the accountant does not count such steps.",
    source="Abadi et al. (2016), Deep Learning with Differential Privacy, Algorithm 1, https://arxiv.org/abs/1607.00133",
    fix="Call step() of the optimizer that make_private returned; where the records are public, say so in a comment "
    "that switches the rule off there.",
    in_script=_find,
)
