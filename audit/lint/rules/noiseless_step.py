"""Steps of the optimizer that Opacus has wrapped, which clip nothing and add no noise."""

import ast
from collections.abc import Iterator

from dpaudit.audit.lint.findings import Hit, Rule
from dpaudit.audit.lint.names import keyword
from dpaudit.audit.lint.rules.shuffled_as_poisson import OPACUS
from dpaudit.audit.lint.script import Script


def _find(script: Script) -> Iterator[Hit]:
    steps = [call for call in script.calls("step") if isinstance(call.func, ast.Attribute)]
    for step in steps:
        of = step.func.value  # type: ignore[attr-defined]
        if isinstance(of, ast.Attribute) and of.attr == "original_optimizer":
            yield Hit(step, f"{ast.unparse(of)}.step() neither clips nor adds noise")
    for private in script.calls(*OPACUS):
        given = keyword(private, "optimizer") or (private.args[1] if len(private.args) > 1 else None)
        known = script.names.definitions(given) if isinstance(given, ast.Name) else []
        if len(known) != 1 or not isinstance(known[0], ast.Call):  # one that is bound again may be the private one
            continue
        for step in steps:
            of = step.func.value  # type: ignore[attr-defined]
            if step.lineno > private.lineno and isinstance(of, ast.Name) and script.names.definitions(of) == known:
                yield Hit(
                    step, f"{of.id} is the optimizer that make_private was given: it neither clips nor adds noise"
                )


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
