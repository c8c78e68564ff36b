"""A sampling rate taken from a loader that is not made of the records."""

import ast
from collections.abc import Iterator

from dpaudit.audit.lint.findings import Hit, Rule
from dpaudit.audit.lint.idioms import SPELLINGS, argument
from dpaudit.audit.lint.names import keyword, last_name
from dpaudit.audit.lint.rules.delta_from_loader import lengths
from dpaudit.audit.lint.script import Script

OTHER_SAMPLERS = ("WeightedRandomSampler", "SubsetRandomSampler", "RandomSampler")
SPLITTING = ("BatchMemoryManager", "wrap_data_loader")  # len() of what they return counts physical batches


def _find(script: Script) -> Iterator[Hit]:
    for call in script.calls("make_private", "make_private_with_epsilon"):
        sampler = _sampler(script, keyword(call, "data_loader"))
        if sampler:
            yield Hit(
                call,
                f"the rate is 1/len(data_loader) = 1/(batches of {sampler}), and the sampler itself is replaced",
            )
    for rate in _rates(script):
        loader = next((item for item in lengths(rate) if _is_split(script, item)), None)
        if loader is not None:
            yield Hit(rate, f"{ast.unparse(rate)} counts the physical batches of a loader that splits them")


def _sampler(script: Script, loader: ast.expr | None) -> str:
    """The sampler of its own choice that a loader has, "" for none."""
    if loader is None:
        return ""
    for call in script.names.definitions(loader):
        given = (
            keyword(call, "sampler") if isinstance(call, ast.Call) and last_name(call.func) == "DataLoader" else None
        )
        for definition in [] if given is None else script.names.definitions(given):
            if not isinstance(definition, ast.Call):
                continue
            name = last_name(definition.func)
            counted = keyword(definition, "num_samples") is not None or len(definition.args) > 1
            if name in OTHER_SAMPLERS and (name != "RandomSampler" or counted):
                return name
    return ""


def _rates(script: Script) -> Iterator[ast.expr]:
    for node in ast.walk(script.tree):
        if isinstance(node, ast.Assign) and any(
            last_name(item) in SPELLINGS["sampling_prob"][:4] for item in node.targets
        ):
            yield node.value
        elif isinstance(node, ast.Call):
            given = argument(node, "sampling_prob")
            if given is not None and not isinstance(given, ast.Name):
                yield given


def _is_split(script: Script, node: ast.AST) -> bool:
    """Whether a loader came out of what splits batches for the memory's sake."""
    definitions = script.names.definitions(node)
    return any(isinstance(item, ast.Call) and last_name(item.func) in SPLITTING for item in definitions)


RULE = Rule(
    name="loader-sample-rate",
    level="warning",
    summary="A sampling rate taken from a wrapped loader, or from one with a sampler of its own",
    reason="The length of such a loader counts physical or drawn batches, not n / batch: the accountant gets another "
    "rate than the one at which records are drawn.",
    source="https://github.com/pytorch/opacus/issues/813",
    fix="Compute batch_size / len(dataset) from the data set, and give make_private a plain loader of it.",
    in_script=_find,
)
