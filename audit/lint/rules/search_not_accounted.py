"""Many private trainings of which the best is kept."""

import ast
import re
from collections.abc import Iterable, Iterator

from dpaudit.audit.lint.findings import Hit, Rule
from dpaudit.audit.lint.idioms import PRIVATE_TRAINING
from dpaudit.audit.lint.names import last_name
from dpaudit.audit.lint.script import Script

TUNERS = ("create_study", "GridSearchCV", "RandomizedSearchCV", "Tuner", "BayesianOptimization", "fmin", "sweep")
TUNING_PACKAGES = {"optuna", "ray", "hyperopt", "keras_tuner", "sklearn", "wandb", "skopt"}
BEST = re.compile(r"(^|_)best(_|$)", re.IGNORECASE)


def _find(script: Script) -> Iterator[Hit]:
    for call in script.calls(*TUNERS):
        package = script.names.dotted(call.func).split(".")[0]
        if package in TUNING_PACKAGES and any(script.calls(*PRIVATE_TRAINING)):
            yield Hit(call, f"{package} compares private trainings, and epsilon is that of one")
    for node in ast.walk(script.tree):
        loop = _compared_over(script, node) if isinstance(node, ast.If) else None
        if loop is not None:
            yield Hit(
                loop, f"the best of the trainings over {ast.unparse(loop.iter)} is kept, and epsilon is that of one"
            )


def _compared_over(script: Script, kept: ast.If) -> ast.For | None:
    """The loop whose private trainings a comparison with the best so far is of.

    The outermost one, for a best that no turn begins anew is the best of all turns of all loops around them.
    """
    found: ast.For | None = None
    begun: set[str] = set()
    node: ast.AST = kept
    while (around := script.names.parents.get(node)) is not None:
        begun |= _begun(item for item in script.names.block(node) if item is not kept)
        if not _keeps_best(kept, begun):
            break
        if isinstance(around, ast.For) and _trains(around):
            found = around
        node = around
    return found


def _begun(statements: Iterable[ast.stmt]) -> set[str]:
    """Names of a best that statements set to what was no best before: `best = 0`, and then `is_best = x > best`."""
    begun: set[str] = set()
    for item in statements:
        if isinstance(item, (ast.Assign, ast.AnnAssign)) and item.value is not None and _bests([item.value]) <= begun:
            begun |= _bests(item.targets if isinstance(item, ast.Assign) else [item.target])
    return begun


def _trains(loop: ast.For) -> bool:
    """Whether a loop trains a private model in every turn."""
    return any(isinstance(node, ast.Call) and last_name(node.func) in PRIVATE_TRAINING for node in ast.walk(loop))


def _keeps_best(kept: ast.If, begun: set[str]) -> bool:
    """Whether a condition asks for the best so far, and keeps it, by other names than were begun anew."""
    return bool(_bests([kept.test]) - begun and _bests(kept.body) - begun)


def _bests(nodes: Iterable[ast.AST]) -> set[str]:
    """The names of a best in some syntax."""
    names = {last_name(part) for node in nodes for part in ast.walk(node)}
    return {name for name in names if BEST.search(name)}


RULE = Rule(
    name="search-not-accounted",
    level="warning",
    summary="A search over trainings, accounted as one training",
    reason="Which of several private models is best depends on the data: releasing the best costs more than releasing "
    "the one.",
    source="Papernot and Steinke (2022), Hyperparameter Tuning with Renyi Differential Privacy, "
    "https://arxiv.org/abs/2110.03620",
    fix="Tune on public data, compose all trainings, or draw their number at random and account for that.",
    in_script=_find,
)
