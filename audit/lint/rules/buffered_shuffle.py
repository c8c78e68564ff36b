"""A shuffle that sees only a buffer of the records."""

import ast
from collections.abc import Iterator

from dpaudit.audit.lint.findings import Hit, Rule
from dpaudit.audit.lint.idioms import CALIBRATION, POISSON_ACCOUNTING, PRIVATE_TRAINING, buffer_size, records, shuffles
from dpaudit.audit.lint.names import last_name
from dpaudit.audit.lint.script import Script

# what counts on random batches; output perturbation does not
AMPLIFIED = (*POISSON_ACCOUNTING, *CALIBRATION, *PRIVATE_TRAINING)


def _find(script: Script) -> Iterator[Hit]:
    if not any(script.calls(*AMPLIFIED)):
        return
    count = records(script)
    for call in shuffles(script):
        size = buffer_size(script, call)
        if _repeats_before(call):
            yield Hit(call, "repeat() before shuffle() mixes passes: a record can be twice in a batch")
        elif size is not None and count is not None and size < count:
            yield Hit(call, f"the buffer holds {size:g} of {count:,} records")
        elif size is not None and count is None:
            yield Hit(call, f"the buffer holds {size:g} records, whatever there are")


def _repeats_before(call: ast.Call) -> bool:
    """Whether repeat() comes earlier in the chain of methods."""
    node: ast.AST = call.func
    while isinstance(node, (ast.Attribute, ast.Call)):
        node = node.value if isinstance(node, ast.Attribute) else node.func
        if isinstance(node, ast.Call) and last_name(node.func) == "repeat":
            return True
    return False


RULE = Rule(
    name="buffered-shuffle",
    level="warning",
    summary="A shuffle with a buffer smaller than the data set",
    reason="A record comes out near where it went in, so its batch is all but known: Poisson batches hide far more.",
    source="https://www.tensorflow.org/api_docs/python/tf/data/Dataset#shuffle; Chua et al. (2024), "
    "https://arxiv.org/abs/2403.17673",
    fix="Take a buffer of all records before repeat(), or draw Poisson batches by index.",
    in_script=_find,
)
