"""Clipping of averages over several records."""

import ast
import re
from collections.abc import Iterator

from dpaudit.audit.lint.findings import Hit, Rule
from dpaudit.audit.lint.idioms import SIGNATURES, argument, held_out
from dpaudit.audit.lint.names import Number, keyword, last_name
from dpaudit.audit.lint.script import Script

# of TF-Privacy: the vectorized, Keras and Gaussian ones take a clipping norm and a noise multiplier, the others a query
OPTIMIZERS = re.compile(r"(Vectorized)?DP(Keras)?(?:Adagrad|Adam|GradientDescent|RMSProp|SGD)(Gaussian)?Optimizer")


def _find(script: Script) -> Iterator[Hit]:
    if any(script.calls("CrossShardOptimizer")):  # microbatches of a core, of whose share of the batch nothing is said
        return
    doubled = any(script.names.value(keyword(call, "used_microbatching")) is True for call in script.all_calls)
    batch = None if doubled else _batch_size(script)
    for call in script.all_calls:
        count = script.names.number(_microbatches(call))
        if not doubled and count is not None and batch is not None and 0 < count < batch:
            yield Hit(
                call,
                f"{last_name(call.func)} clips the mean of {batch / count:g} records: num_microbatches={count:g} in a "
                f"batch of {batch:g}",
            )


def _microbatches(call: ast.Call) -> ast.expr | None:
    """The number of microbatches that a call gives: by name, or after what an optimizer of TF-Privacy takes first."""
    given = keyword(call, "num_microbatches", "microbatches")
    kind = OPTIMIZERS.fullmatch(last_name(call.func))
    if given is not None or kind is None or any(isinstance(item, ast.Starred) for item in call.args):
        return given
    place = 2 if any(kind.groups()) else 1
    return call.args[place] if len(call.args) > place else None


def _batch_size(script: Script) -> Number | None:
    """The one batch size that names, accountants and the stream that is trained on tell."""
    places = [*script.names.mentions("batch_size")]
    places += [item for call in script.calls(*SIGNATURES) if (item := argument(call, "batch_size")) is not None]
    places += [call.args[0] for call in script.calls("batch") if call.args and not held_out(script, call)]
    sizes = {script.names.number(place) for place in places} - {None}
    return sizes.pop() if len(sizes) == 1 else None


RULE = Rule(
    name="microbatches",
    level="warning",
    summary="Microbatches of more than one record",
    reason="The mean of a microbatch is clipped as a whole: replacing one record in it can turn it round, so the "
    "sensitivity is twice the clipping norm.",
    source="Ponomareva et al. (2023), How to DP-fy ML, https://arxiv.org/abs/2303.00654; "
    "https://github.com/tensorflow/privacy/blob/master/tensorflow_privacy/privacy/analysis/compute_dp_sgd_privacy_lib.py",
    fix="num_microbatches equal to the batch size, or an accountant that knows (used_microbatching=True).",
    in_script=_find,
)
