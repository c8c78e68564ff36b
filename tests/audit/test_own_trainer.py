"""A training loop of the user's own, which does not do what the recipe says."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from dpaudit.audit import Settings, load_bundle, run
from dpaudit.audit.inputs.recipes import load_recipe
from dpaudit.audit.training_run import train_bundle
from dpaudit.mechanisms.defects import Defect
from dpaudit.mechanisms.learning.spec import TrainedModels, TrainingSpec
from dpaudit.mechanisms.learning.training import train

RECIPE = load_recipe(Path(__file__).parents[2] / "examples" / "digits-headline.toml")


def forgetful(spec: TrainingSpec, *arguments: Any, **options: Any) -> TrainedModels:
    """Training that scales the noise by the wrong clip."""
    return train(replace(spec, defect=Defect(noise_factor=0.4)), *arguments, **options)


def test_a_faulty_loop_is_refuted_though_the_recipe_is_honest(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    train_bundle(RECIPE, path, seed=4, device="cpu", stage=lambda what, total: lambda done: None)
    bundle = load_bundle(path)
    dataset = bundle.recipe.load_dataset()
    settings = Settings(seed=4, attacks=("clipbkd",), trials=800, device="cpu")
    assert run(bundle, dataset, settings).verdict == "not_refuted"
    assert run(bundle, dataset, replace(settings, trainer=forgetful)).verdict == "refuted"
