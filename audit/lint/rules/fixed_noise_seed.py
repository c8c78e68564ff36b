"""Noise that can be drawn again."""

import ast
from collections.abc import Iterator

from dpaudit.audit.lint.findings import Hit, Rule
from dpaudit.audit.lint.names import keyword, last_name
from dpaudit.audit.lint.rules.fixed_shuffle_seed import seeded_generator
from dpaudit.audit.lint.script import Script

NOISE_KEYS = ("noise_generator", "noise_seed", "noise_rng", "prng_key", "noise_key")
NOISE_CALLS = ("gaussian_privatizer", "matrix_factorization_privatizer", "DPKerasConfig")
KEYS = ("key", "PRNGKey")


def _find(script: Script) -> Iterator[Hit]:
    for call in script.all_calls:
        noise = keyword(call, *NOISE_KEYS)
        if noise is None and last_name(call.func) in NOISE_CALLS:
            noise = keyword(call, "seed")
        if noise is not None and (script.names.number(noise) is not None or _constant_key(script, noise)):
            yield Hit(noise, f"the noise of {last_name(call.func)} is drawn from a constant seed")


def _constant_key(script: Script, node: ast.expr) -> bool:
    """Whether an expression is a generator, or a key of JAX, with a constant seed."""
    definitions = script.names.definitions(node)
    keys = [item for item in definitions if isinstance(item, ast.Call) and last_name(item.func) in KEYS]
    constant = [script.names.number(item.args[0]) is not None for item in keys if item.args]
    return any(constant) or seeded_generator(script, node)


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
