"""How many releases the loops of a script make: a loop counts if it is exactly understood, else not at all."""

import ast
from collections.abc import Iterable, Iterator

from dpaudit.audit.lint.idioms import argument
from dpaudit.audit.lint.names import keyword, last_name
from dpaudit.audit.lint.script import Script

KNOWN_BLOCKS = ("BatchMemoryManager", "tqdm")
FUNCTION_DEPTH = 3
Block = ast.With | ast.AsyncWith


def passes(script: Script, iterated: ast.expr) -> int | None:
    """How many passes `range(...)` or `trange(...)` makes; None of anything else."""
    iterated = _unwrapped(iterated)
    if not isinstance(iterated, ast.Call) or last_name(iterated.func) not in ("range", "trange"):
        return None
    bounds = [script.names.number(item) for item in iterated.args]
    known = [int(item) for item in bounds if item is not None and item == int(item)]
    if len(known) != len(bounds) or not 1 <= len(bounds) <= 3 or 0 in known[2:]:
        return None
    return len(range(*known))


def goes_through_loader(script: Script, loop: ast.For) -> bool:
    """Whether every pass of a loop makes a private step for every batch of the loader that make_private returned."""
    inner = (item for item in _carried_out(script, loop.body) if isinstance(item, ast.For))
    return _always_reached(script, loop) and any(_steps_through(script, item) for item in inner)


def is_accounted(script: Script, loop: ast.For) -> bool:
    """Whether every pass of a loop tells an accountant of a release."""
    calls = (item.value for item in _carried_out(script, loop.body) if isinstance(item, ast.Expr))
    told = (call for call in calls if isinstance(call, ast.Call) and last_name(call.func) in ("step", "compose"))
    return _always_reached(script, loop) and any(
        last_name(call.func) == "compose" or argument(call, "noise_multiplier") is not None for call in told
    )


def handed(script: Script, node: ast.expr) -> Iterator[ast.expr]:
    """What the calls of the function around a name give it, where the name is that of a parameter alone."""
    if script.names.definitions(node) != [None]:
        return
    for function in script.names.scopes(node):
        parameters = [item.arg for item in function.args.args] if isinstance(function, ast.FunctionDef) else []
        if isinstance(function, ast.FunctionDef) and last_name(node) in parameters:
            position = parameters.index(last_name(node))
            for call in script.calls(function.name):
                yield from [*call.args[position : position + 1], *filter(None, [keyword(call, last_name(node))])]
            return


def _steps_through(script: Script, loop: ast.For) -> bool:
    if not _made_private(script, _unwrapped(loop.iter)):
        return False
    calls = (item.value for item in _carried_out(script, loop.body) if isinstance(item, ast.Expr))
    return any(
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "step"
        and _made_private(script, call.func.value)
        for call in calls
    )


def _unwrapped(iterated: ast.expr) -> ast.expr:
    """What enumerate() or tqdm() goes through."""
    while isinstance(iterated, ast.Call) and last_name(iterated.func) in ("enumerate", "tqdm") and iterated.args:
        iterated = iterated.args[0]
    return iterated


def _made_private(script: Script, node: ast.expr) -> bool:
    """Whether a name is of what the script's make_private returned, whole or in the parts of a BatchMemoryManager."""
    places = [*handed(script, node)] or [node]
    known = [item for place in places for item in script.names.definitions(place)]
    made = [item for item in known if isinstance(item, ast.Call) and last_name(item.func) == "make_private"]
    if not made:
        around = known[0] if len(known) == 1 else None
        if not isinstance(around, ast.Call) or last_name(around.func) not in KNOWN_BLOCKS:
            return False
        inner = keyword(around, "data_loader") or (_unwrapped(around) if around.args else None)
        return isinstance(inner, ast.Name) and _made_private(script, inner)
    before = (item for item in known if item not in made)  # what is bound to the same name
    loader = keyword(made[0], "data_loader")
    return (
        len(made) == 1
        and all(isinstance(item, ast.Call) and item.lineno < made[0].lineno for item in before)
        and loader is not None
        and _is_plain(script, loader)
    )


def _is_plain(script: Script, loader: ast.expr) -> bool:
    """Whether a loader goes through every record once: it has no sampler of its own."""
    places = [*handed(script, loader)] or [loader]
    known = [item for place in places for item in script.names.definitions(place)]
    loaders = [item for item in known if isinstance(item, ast.Call) and last_name(item.func) == "DataLoader"]
    return bool(loaders) and all(keyword(item, "sampler", "batch_sampler") is None for item in loaders)


def _carried_out(script: Script, body: Iterable[ast.stmt], depth: int = FUNCTION_DEPTH) -> Iterator[ast.stmt]:
    """The statements that are carried out whenever a block is, with those of the script's functions that it calls."""
    for statement in body:
        yield statement
        if isinstance(statement, Block) and all(_is_known(item.context_expr) for item in statement.items):
            yield from _carried_out(script, statement.body, depth)
        function = _called(script, statement) if depth else None
        if function is not None:
            yield from _carried_out(script, function.body, depth - 1)
        if any(isinstance(part, (ast.Return, ast.Raise)) for part in ast.walk(statement)):
            return


def _is_known(context: ast.expr) -> bool:
    return isinstance(context, ast.Call) and last_name(context.func) in KNOWN_BLOCKS


def _called(script: Script, statement: ast.stmt) -> ast.FunctionDef | None:
    """The one plain function of a script that a statement is a call of."""
    call = statement.value if isinstance(statement, (ast.Expr, ast.Assign)) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        return None
    named = [function for function in _functions(script) if function.name == last_name(call.func)]
    if len(named) != 1 or named[0].decorator_list:
        return None
    lazy = any(isinstance(part, (ast.Yield, ast.YieldFrom)) for part in ast.walk(named[0]))
    return None if lazy else named[0]


def _functions(script: Script) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(script.tree) if isinstance(node, ast.FunctionDef))


def is_own(script: Script, call: ast.Call) -> bool:
    """Whether a call is of a function that the script itself defines."""
    return any(function.name == last_name(call.func) for function in _functions(script))


def _always_reached(script: Script, node: ast.AST, depth: int = FUNCTION_DEPTH) -> bool:
    """Whether a run gets to a statement: no condition is around it, around a call of its function, or before it."""
    current = script.names.parents.get(node)
    while current is not None and not isinstance(current, ast.Module):
        if isinstance(current, ast.FunctionDef):
            before = (part for part in ast.walk(current) if getattr(part, "lineno", node.lineno) < node.lineno)  # type: ignore[attr-defined]
            if any(isinstance(part, ast.Return) for part in before):
                return False
            calls = [*script.calls(current.name)]
            return not calls or (depth > 0 and any(_always_reached(script, call, depth - 1) for call in calls))
        guarded = isinstance(current, ast.If) and "__name__" in ast.unparse(current.test)
        plain = (*Block.__args__, ast.For, ast.ClassDef, ast.Expr, ast.Assign, ast.Call, ast.keyword)
        if not guarded and not isinstance(current, plain):
            return False
        current = script.names.parents.get(current)
    return True
