"""`dpaudit train`: a recipe in, one trained model with its claim and coins out."""

from pathlib import Path

import numpy as np

from dpaudit.audit.inputs.bundles import save_bundle
from dpaudit.audit.inputs.coins import draw_coins
from dpaudit.audit.inputs.files import unfit_is_input
from dpaudit.audit.inputs.networks import check_trainable
from dpaudit.audit.inputs.recipes import Recipe
from dpaudit.audit.inputs.sources import Stage
from dpaudit.audit.settings import usable_device
from dpaudit.mechanisms.learning.spec import Pool
from dpaudit.mechanisms.learning.training import logits, train


def train_bundle(recipe: Recipe, out: Path, *, seed: int, device: str, stage: Stage) -> str:
    """Train the recipe's model and write its audit bundle.

    Args:
        recipe: What to train.
        out: The bundle; written under a temporary name, then renamed.
        seed: Root seed of initial weights, sampling, noise and coins.
        device: "auto", "cpu" or "cuda".
        stage: Told what begins and how long it is.

    Returns:
        One line on what was written.
    """
    place = usable_device(device)
    dataset = recipe.load_dataset(progress=stage)
    spec = recipe.spec(dataset)
    check_trainable(spec.architecture)
    recipe = recipe.filled(dataset, dimension=spec.mechanism.dimension or 0, seed=seed)
    coins = draw_coins(recipe, len(dataset.y), seed) if recipe.audit_records else None
    members = np.ones(len(dataset.y), dtype=bool) if coins is None else coins.members(len(dataset.y))
    with unfit_is_input():
        models = train(
            spec,
            Pool(dataset.x, dataset.y),
            members[None, :],
            [seed],
            device=place,
            progress=stage("Training", spec.steps),
        )
    if models.ledger.releases != recipe.record_releases():
        raise AssertionError(f"a record entered {models.ledger.releases} releases, and {recipe.phases()} are claimed")
    save_bundle(
        out,
        state_dict=models.state_dict(0),
        architecture=spec.architecture,
        recipe=recipe,
        claim=recipe.claim_object(),
        coins=coins,
        ledger=models.ledger,
    )
    line = (
        f"{out}: {spec.architecture.name}, {spec.mechanism.name}, claims epsilon {recipe.claim.epsilon:.12g} "
        f"at delta {recipe.claim.delta:.12g} ({recipe.claim.adjacency})"
    )
    if len(dataset.y_test) == 0:
        return line
    predicted = logits(models, dataset.x_test)[0].argmax(dim=-1).numpy()
    return f"{line}, test accuracy {float((predicted == dataset.y_test).mean()):.3f}"
