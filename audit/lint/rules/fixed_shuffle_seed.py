"""An order of records that the script itself gives away."""

import ast
from collections.abc import Iterator

from dpaudit.audit.lint.findings import Hit, Rule
from dpaudit.audit.lint.idioms import data_loaders, shuffles
from dpaudit.audit.lint.names import keyword, last_name
from dpaudit.audit.lint.script import Script

POISSON_SAMPLERS = ("UniformWithReplacementSampler", "DPDataLoader", "PoissonSampler")


def seeded_generator(script: Script, node: ast.expr | None) -> bool:
    """Whether an expression is a torch generator with a constant seed."""
    if node is None:
        return False
    for definition in script.names.definitions(node):
        if isinstance(definition, ast.Call) and last_name(definition.func) == "manual_seed" and definition.args:
            return script.names.number(definition.args[0]) is not None
    name = last_name(node)
    return bool(name) and any(
        isinstance(call.func, ast.Attribute)
        and last_name(call.func.value) == name
        and call.args
        and script.names.number(call.args[0]) is not None
        for call in script.calls("manual_seed")
    )


def _find(script: Script) -> Iterator[Hit]:
    for call in shuffles(script):
        seed = keyword(call, "seed") or (call.args[1] if len(call.args) > 1 else None)
        if script.names.number(seed) is not None:
            yield Hit(call, f"the order is that of seed {script.names.number(seed):g} in every run")
        elif script.names.value(keyword(call, "reshuffle_each_iteration")) is False:
            yield Hit(call, "every pass has the same order, and costs as much as one pass with all of their noise")
    for call in [*data_loaders(script), *script.calls(*POISSON_SAMPLERS)]:
        if seeded_generator(script, keyword(call, "generator")):
            yield Hit(call, "batches are drawn from a generator with a constant seed")


RULE = Rule(
    name="fixed-shuffle-seed",
    level="warning",
    summary="Batches drawn with a constant seed, or in the same order in every pass",
    reason="Amplification by sampling or shuffling rests on batches that nobody knows, and the seed tells them.",
    source="Balle, Barthe and Gaboardi (2018), Privacy Amplification by Subsampling, https://arxiv.org/abs/1807.01647",
    fix="Seed the batches from the operating system's entropy, or account without amplification.",
    in_script=_find,
)
