"""Noise that can be drawn again."""

import ast
from collections.abc import Iterator

from dpaudit.audit.lint.findings import Hit, Rule
from dpaudit.audit.lint.idioms import SIGNATURES, argument, held_out
from dpaudit.audit.lint.names import SCOPES, keyword, last_name
from dpaudit.audit.lint.releases import handed
from dpaudit.audit.lint.rules.fixed_shuffle_seed import seeded_generator
from dpaudit.audit.lint.rules.noise_generator import TORCH_SEEDS
from dpaudit.audit.lint.rules.sigma_as_multiplier import DRAWS_NOISE, MULTIPLIERS
from dpaudit.audit.lint.script import Script

NOISE_KEYS = ("noise_generator", "noise_seed", "noise_rng", "prng_key", "noise_key")
NOISE_CALLS = (
    "gaussian_privatizer", "matrix_factorization_privatizer", "DPKerasConfig", "dpsgd",
    "differentially_private_aggregate",
)  # fmt: skip
KEYS = ("key", "PRNGKey")
SEEDS = (*TORCH_SEEDS, "numpy.random.seed")


def _find(script: Script) -> Iterator[Hit]:
    for call in script.all_calls:
        noise = keyword(call, *NOISE_KEYS)
        if noise is None and last_name(call.func) in NOISE_CALLS:
            noise = keyword(call, "seed", "key")
        if noise is not None and (script.names.number(noise) is not None or _constant_key(script, noise)):
            yield Hit(noise, f"the noise of {last_name(call.func)} is drawn from a constant seed")
    for call in script.calls("DPOptimizer"):
        if seeded_generator(script, keyword(call, "generator")):
            yield Hit(call, "the noise of DPOptimizer is drawn from a generator with a constant seed")
    for call in script.calls(*DRAWS_NOISE):
        if _is_scaled_noise(script, call):
            if seeded_generator(script, keyword(call, "generator")):
                yield Hit(call, "the noise is drawn from a generator with a constant seed")
            elif _seeded_before(script, call):
                yield Hit(call, "the noise is drawn right after a constant seed, the same every time")
    for call in script.calls("normal"):
        key = call.args[0] if call.args else keyword(call, "key")
        if key is not None and _is_scaled_noise(script, call):
            for place in (key, *handed(script, key)):
                known = script.names.definitions(place)
                if known and all(_is_key(script, item) for item in known) and not held_out(script, place):
                    yield Hit(place, f"the noise of {ast.unparse(call.func)} is drawn from a constant key, every time")
            if _is_kept_in_loop(script, call, key):
                yield Hit(key, f"the noise of {ast.unparse(call.func)} is drawn from the same key in every pass")


def _statement(script: Script, node: ast.AST) -> ast.stmt:
    while not isinstance(node, ast.stmt):
        node = script.names.parents[node]
    return node


def _is_scaled_noise(script: Script, draw: ast.Call) -> bool:
    """Whether a noise multiplier stands in the statement of a draw, by its name or as an accountant is told it."""
    told = [node for call in script.calls(*SIGNATURES) if (node := argument(call, "noise_multiplier")) is not None]
    told += [given for node in told for given in handed(script, node)]
    names = MULTIPLIERS | {last_name(node) for node in told} - {""}
    found = {item for node in told for item in script.names.definitions(node)}
    values = {item for item in found if isinstance(item, ast.Constant)}  # several names may share a call
    return any(
        last_name(part) in names
        or (isinstance(part, ast.Name) and not values.isdisjoint(script.names.definitions(part)))
        for part in ast.walk(_statement(script, draw))
    )


def _is_kept_in_loop(script: Script, draw: ast.Call, key: ast.expr) -> bool:
    """Whether every pass of a loop draws from one key: a loop of the draw's function, which does not bind it anew."""
    if not isinstance(key, ast.Name) or not script.names.dotted(draw.func).startswith("jax."):
        return False
    current: ast.AST | None = draw
    while current is not None and not isinstance(current, SCOPES):
        if isinstance(current, (ast.If, ast.IfExp, ast.Try)):  # may be drawn once
            return False
        if isinstance(current, (ast.For, ast.While)) and key.id not in _stored(current):
            return not any(isinstance(part, (ast.Break, ast.Return)) for part in ast.walk(current))
        current = script.names.parents.get(current)
    return False


def _stored(node: ast.AST) -> set[str]:
    parts = (part for part in ast.walk(node) if isinstance(part, ast.Name))
    return {part.id for part in parts if isinstance(part.ctx, ast.Store)}


def _seeded_before(script: Script, draw: ast.Call) -> bool:
    """Whether a statement of the same block, before the draw, seeds the generator of all draws with a constant."""
    statement = _statement(script, draw)
    block = script.names.block(statement) or [statement]
    before = [item.value for item in block[: block.index(statement)] if isinstance(item, ast.Expr)]
    return any(
        isinstance(call, ast.Call)
        and script.names.dotted(call.func) in SEEDS
        and call.args
        and script.names.number(call.args[0]) is not None
        for call in before
    )


def _is_key(script: Script, node: ast.expr | None) -> bool:
    """Whether an expression is a key of JAX with a constant seed."""
    if not (isinstance(node, ast.Call) and last_name(node.func) in KEYS and node.args):
        return False
    return script.names.number(node.args[0]) is not None


def _constant_key(script: Script, node: ast.expr) -> bool:
    """Whether an expression is a generator, or a key of JAX, with a constant seed."""
    return any(_is_key(script, item) for item in script.names.definitions(node)) or seeded_generator(script, node)


RULE = Rule(
    name="fixed-noise-seed",
    level="warning",
    summary="Noise from a constant seed",
    reason="Whoever reads the script can draw the same noise and take it off again: the release is not private at all.",
    source="Garfinkel and Leclerc (2020), Randomness Concerns When Deploying Differential Privacy, "
    "https://arxiv.org/abs/2009.03777",
    fix="Seed the noise from the operating system's entropy for every run, and keep the seed secret.",
    in_script=_find,
)
