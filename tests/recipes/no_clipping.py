"""A clipping norm that clips nothing."""

import ast
from collections.abc import Iterator

from dpaudit.audit.lint.findings import Hit, Rule
from dpaudit.audit.lint.names import keyword
from dpaudit.audit.lint.script import Script

INFINITE = ("float('inf')", "math.inf", "np.inf", "numpy.inf", "torch.inf")
LARGE = 1e6  # gradients of one record stay below it


def _find(script: Script) -> Iterator[Hit]:
    for call in script.calls("make_private", "make_private_with_epsilon"):
        norm = keyword(call, "max_grad_norm")
        value = script.names.number(norm)
        if norm is not None and (ast.unparse(norm) in INFINITE or (value is not None and value >= LARGE)):
            yield Hit(norm, f"max_grad_norm={ast.unparse(norm)} clips no gradient")


RULE = Rule(
    name="no-clipping",
    level="warning",
    summary="A clipping norm that clips nothing",
    reason="Noise is scaled by the clipping norm: an infinite one gives no gradients, and a huge one hides them all.",
    source="Abadi et al. (2016), Deep Learning with Differential Privacy, https://arxiv.org/abs/1607.00133",
    fix="Clip near the median norm of a record's gradient, measured on public data.",
    in_script=_find,
)
