"""A clipping norm that is taken from the data at no charge."""

import ast
import re
from collections.abc import Iterator

from dpaudit.audit.lint.findings import Hit, Rule
from dpaudit.audit.lint.idioms import is_clip
from dpaudit.audit.lint.names import last_name
from dpaudit.audit.lint.script import Script

STATISTICS = ("median", "quantile", "nanquantile", "percentile", "max", "mean", "amax", "kthvalue")
NORMS = re.compile(r"norm", re.IGNORECASE)
QUERIES = ("QuantileAdaptiveClipSumQuery", "QuantileAdaptiveClipTreeSumQuery", "QuantileEstimatorQuery")


def _find(script: Script) -> Iterator[Hit]:
    for node in ast.walk(script.tree):
        if isinstance(node, ast.Assign) and any(is_clip(target) for target in node.targets):
            for call in ast.walk(node.value):
                if isinstance(call, ast.Call) and last_name(call.func) in STATISTICS and _of_norms(call):
                    yield Hit(
                        node, f"the clipping norm is {ast.unparse(call)}, a statistic of the gradients themselves"
                    )
    if any(script.calls("adaptive_clip_noise_params")) or not any(script.calls(*QUERIES)):
        return
    for call in script.calls(*QUERIES[:2]):
        yield Hit(call, "the clipping norm follows the data, and its own query is charged nowhere in this script")


def _of_norms(call: ast.Call) -> bool:
    """Whether a statistic is of norms: its arguments, or the object whose method it is, are so called."""
    parts = [*call.args, call.func.value] if isinstance(call.func, ast.Attribute) else call.args
    return any(NORMS.search(last_name(part)) for item in parts for part in ast.walk(item))


RULE = Rule(
    name="adaptive-clipping",
    level="warning",
    summary="A clipping norm from the data, without its share of the budget",
    reason="A norm that follows the data tells of them; a private estimate of it has a noise multiplier of its own, "
    "which the accountant must get together with that of the gradients.",
    source="Andrew et al. (2021), Differentially Private Learning with Adaptive Clipping, Theorem 1, "
    "https://arxiv.org/abs/1905.03871",
    fix='Fix the norm beforehand, or estimate it privately and split the noise multiplier (clipping="adaptive" of '
    "Opacus, adaptive_clip_noise_params of TensorFlow).",
    in_script=_find,
)
