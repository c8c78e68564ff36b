"""Clipping of averages over several records."""

from collections.abc import Iterator

from dpaudit.audit.lint.findings import Hit, Rule
from dpaudit.audit.lint.idioms import SPELLINGS
from dpaudit.audit.lint.names import Number, keyword, last_name
from dpaudit.audit.lint.script import Script


def _find(script: Script) -> Iterator[Hit]:
    doubled = any(script.names.value(keyword(call, "used_microbatching")) is True for call in script.all_calls)
    batch = None if doubled else _batch(script)
    for call in script.all_calls:
        count = script.names.number(keyword(call, "num_microbatches", "microbatches"))
        if not doubled and count is not None and batch is not None and count < batch:
            yield Hit(
                call,
                f"{last_name(call.func)} clips the mean of {batch / count:g} records: num_microbatches={count:g} in a "
                f"batch of {batch:g}",
            )


def _batch(script: Script) -> Number | None:
    """The batch size, if every option and constant of that name has the same value."""
    values = set()
    for call in script.all_calls:
        given = keyword(call, *SPELLINGS["batch_size"])
        values.add(script.names.number(given))
    values |= {script.names.number(node) for node in script.names.mentions("batch_size")}
    known = {value for value in values if value is not None}
    return known.pop() if len(known) == 1 else None


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
