"""Many private trainings of which the best is kept."""

import ast
import re
from collections.abc import Iterator

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
    for loop in ast.walk(script.tree):
        if isinstance(loop, ast.For) and _trains(script, loop) and _keeps_best(loop):
            yield Hit(
                loop, f"the best of the trainings over {ast.unparse(loop.iter)} is kept, and epsilon is that of one"
            )


def _trains(script: Script, loop: ast.For) -> bool:
    """Whether a loop trains a private model in every turn."""
    return any(isinstance(node, ast.Call) and last_name(node.func) in PRIVATE_TRAINING for node in ast.walk(loop))


def _keeps_best(loop: ast.For) -> bool:
    """Whether a loop compares something with the best so far, and keeps it."""
    return any(
        isinstance(node, ast.If)
        and any(BEST.search(last_name(part)) for part in ast.walk(node.test))
        and any(BEST.search(last_name(part)) for item in node.body for part in ast.walk(item))
        for node in ast.walk(loop)
    )


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
