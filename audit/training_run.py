"""`dpaudit train`: a recipe in, one trained model with its claim and coins out."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from dpaudit.audit.inputs import datasets
from dpaudit.audit.inputs.bundles import save_bundle
from dpaudit.audit.inputs.recipes import draw_coins, load_recipe
from dpaudit.mechanisms.learning.spec import Pool
from dpaudit.mechanisms.learning.training import logits, resolve_device, train

Stage = Callable[[str, int], Callable[[int], None]]


def train_bundle(
    recipe_path: Path, out: Path, *, seed: int | None, draw_seed: Callable[[int | None], int], device: str, stage: Stage
) -> str:
    """Train the recipe's model and write its audit bundle.

    Args:
        recipe_path: TOML file.
        out: The bundle; written under a temporary name, then renamed.
        seed: Overrides the recipe's.
        draw_seed: Draws one where neither names any.
        device: "auto", "cpu" or "cuda".
        stage: Told what begins and how long it is.

    Returns:
        One line on what was written.
    """
    recipe = load_recipe(recipe_path)
    recipe = recipe.with_seed(draw_seed(recipe.seed if seed is None else seed))
    dataset = datasets.load_for(recipe)
    recipe = recipe.with_data(dataset)
    spec = recipe.spec(dataset)
    rng = np.random.default_rng(np.random.SeedSequence(recipe.seed, spawn_key=(0,)))
    coins = draw_coins(recipe, len(dataset.x), rng)
    members = np.ones(len(dataset.x), dtype=bool)
    if coins is not None:
        members[coins.records] = coins.included
    models = train(
        replace(spec, init_seed=None), Pool(dataset.x, dataset.y), members[None, :], [recipe.seed],
        device=resolve_device(device), progress=stage("Training", spec.steps),
    )
    save_bundle(out, state_dict=models.state_dict(0), recipe=recipe, coins=coins, ledger=models.ledger)
    predicted = logits(models, dataset.x_test)[0].argmax(dim=-1).numpy()
    accuracy = float((predicted == dataset.y_test).mean())
    claim = recipe.claim
    return (f"{out}: {spec.architecture.name}, {spec.mechanism.name}, test accuracy {accuracy:.3f}, "
            f"claims epsilon {claim.epsilon:g} at delta {claim.delta:g} ({claim.adjacency})")
