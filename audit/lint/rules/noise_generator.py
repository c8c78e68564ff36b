"""Noise from a generator that can be predicted."""

import ast
from collections.abc import Iterator

from dpaudit.audit.lint.findings import Hit, Rule
from dpaudit.audit.lint.idioms import SPELLINGS, held_out
from dpaudit.audit.lint.names import keyword, last_name
from dpaudit.audit.lint.releases import handed
from dpaudit.audit.lint.rules.shuffled_as_poisson import OPACUS
from dpaudit.audit.lint.script import Script

DRAWS = ("normal", "normal_", "randn", "randn_like")
TORCH_SEEDS = ("torch.manual_seed", "torch.random.manual_seed")


def _find(script: Script) -> Iterator[Hit]:
    insecure = False
    for call in script.calls("PrivacyEngine"):
        secure = keyword(call, "secure_mode")
        opacus = script.names.dotted(call.func).split(".")[0] == "opacus"
        if opacus and (secure is None or script.names.value(secure) is False):
            insecure = True
            yield Hit(call, "Opacus without secure_mode draws its noise from a statistical generator")
    trained = [*script.calls(*OPACUS)] if insecure else []
    if trained and all(keyword(call, "noise_generator") is None for call in trained):
        seeds = (call for call in script.all_calls if script.names.dotted(call.func) in TORCH_SEEDS)
        seed = next(
            (call for call in seeds if _is_written(script, call) and _comes_before(script, call, trained)), None
        )
        if seed is not None:
            yield Hit(seed, f"{ast.unparse(seed)}: Opacus without secure_mode draws the same noise in every run")
    for call in script.calls(*DRAWS):
        statement = _statement(script, call)
        if statement is not None and any(
            last_name(part) in SPELLINGS["noise_multiplier"] for part in ast.walk(statement)
        ):
            yield Hit(call, f"{ast.unparse(call.func)} draws noise from a statistical generator")


def _is_written(script: Script, seed: ast.Call) -> bool:
    """Whether a seed is a constant of the script itself, and no option or default that a run may change."""
    places = [place for given in seed.args[:1] for place in [*handed(script, given)] or [given]]
    known = [(place, item) for place in places for item in script.names.definitions(place)]
    return bool(known) and all(
        isinstance(item, ast.Constant)
        and script.names.number(item) is not None
        and (item is place or isinstance(script.names.parents[item], (ast.Assign, ast.Tuple)))
        for place, item in known
    )


def _comes_before(script: Script, seed: ast.Call, trained: list[ast.Call]) -> bool:
    """Whether a seed is set above a make_private of its scope, in the module, or in a function that is called."""
    scope = next(script.names.scopes(seed))
    lines = [call.lineno for call in trained if next(script.names.scopes(call)) is scope]
    if lines or held_out(script, seed):
        return seed.lineno < max(lines, default=0)
    return isinstance(scope, ast.Module) or any(script.calls(getattr(scope, "name", "")))


def _statement(script: Script, node: ast.AST) -> ast.AST | None:
    """The simple statement around an expression."""
    current: ast.AST | None = node
    while current is not None and not isinstance(
        current, (ast.Assign, ast.AugAssign, ast.Expr, ast.Return, ast.Module)
    ):
        current = script.names.parents.get(current)
    return None if isinstance(current, ast.Module) else current


RULE = Rule(
    name="noise-generator",
    level="note",
    summary="Noise from a statistical generator",
    reason="The state of the Mersenne Twister and its like follows from their outputs, a constant seed draws all "
    "noise again, and floating-point noise has low-order bits that tell: right for experiments, not for releases to an "
    "adversary.",
    source="Garfinkel and Leclerc (2020), https://arxiv.org/abs/2009.03777; Mironov (2012), "
    "https://doi.org/10.1145/2382196.2382264",
    fix="secure_mode=True of Opacus, or a cryptographic generator, for a model that is released.",
    in_script=_find,
)
