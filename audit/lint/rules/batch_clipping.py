"""Clipping of a whole batch's gradient, beside noise of one's own."""

import ast
from collections.abc import Iterator

from dpaudit.audit.lint.findings import Hit, Rule
from dpaudit.audit.lint.names import keyword, last_name
from dpaudit.audit.lint.rules.sigma_as_multiplier import DRAWS_NOISE
from dpaudit.audit.lint.script import Script

CLIPS = ("clip_grad_norm_", "clip_grad_value_")


def _find(script: Script) -> Iterator[Hit]:
    for clip in script.calls(*CLIPS):
        loop = _turn(script, clip)
        if loop is not None and not _of_one_record(script, loop) and _noisy(script, loop):
            yield Hit(clip, f"{last_name(clip.func)} clips the gradient of a batch, to which noise is then added")


def _turn(script: Script, node: ast.AST) -> ast.For | ast.While | None:
    """The loop whose turn a statement belongs to; loops over parameters are no turns of their own."""
    while (node := script.names.parents.get(node)) is not None:  # type: ignore[assignment]
        if isinstance(node, ast.While) or (isinstance(node, ast.For) and "param" not in ast.unparse(node.iter)):
            return node
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            return None
    return None


def _of_one_record(script: Script, loop: ast.For | ast.While) -> bool:
    """Whether its batches are of one record, as those of a loader are that is told no size."""
    loaders = script.names.definitions(loop.iter) if isinstance(loop, ast.For) else []
    return any(
        isinstance(call, ast.Call)
        and last_name(call.func) == "DataLoader"
        and (script.names.number(keyword(call, "batch_size")) == 1 or not _sized(call))
        for call in loaders
    )


def _sized(loader: ast.Call) -> bool:
    """Whether a loader is told the size of its batches, or what draws them."""
    return len(loader.args) > 1 or keyword(loader, "batch_size", "batch_sampler") is not None


def _noisy(script: Script, loop: ast.For | ast.While) -> bool:
    """Whether normal draws of a turn enter gradients in the same turn."""
    noise: set[str] = set()
    for node in ast.walk(loop):
        if not isinstance(node, (ast.Assign, ast.AugAssign, ast.Expr)) or _turn(script, node) is not loop:
            continue
        inside = list(ast.walk(node))
        drawn = any(isinstance(part, ast.Call) and last_name(part.func) in DRAWS_NOISE for part in inside)
        named = any(isinstance(part, ast.Name) and part.id in noise for part in inside)
        if (drawn or named) and any(isinstance(part, ast.Attribute) and part.attr == "grad" for part in _changed(node)):
            return True
        if drawn and isinstance(node, ast.Assign):
            noise |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return False


def _changed(node: ast.Assign | ast.AugAssign | ast.Expr) -> Iterator[ast.AST]:
    """What a statement assigns to, or whose method it calls."""
    if isinstance(node, ast.Expr):
        method = node.value.func if isinstance(node.value, ast.Call) else None
        yield from ast.walk(method) if method is not None else ()
        return
    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
        yield from ast.walk(target)


RULE = Rule(
    name="batch-clipping",
    level="warning",
    summary="A batch's gradient clipped as a whole",
    reason="One record can turn the whole clipped gradient round, so that of a batch of any size moves by twice the "
    "clipping norm, and noise that is scaled to one record's share of the mean is many times too little.",
    source="Abadi et al. (2016), Deep Learning with Differential Privacy, Algorithm 1, https://arxiv.org/abs/1607.00133",
    fix="Clip the gradient of every record before they are summed: Opacus, or torch.func.vmap of torch.func.grad.",
    in_script=_find,
)
