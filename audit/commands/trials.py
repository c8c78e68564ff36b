"""`dpaudit trials`: a share of an audit's models, trained into a store."""

import re
import time
from pathlib import Path
from typing import Annotated

import typer

from dpaudit._plain_text import printable
from dpaudit.audit.commands.console import (
    GAVE_UP,
    Device,
    audit_settings,
    progress_bars,
    seconds_left,
    users_words_aside,
)


def trials(
    model: Annotated[Path, typer.Argument(help="As for run.")],
    shard: Annotated[str, typer.Option(help="Which share of the models: 1/4 is the first of four.", metavar="I/N")],
    store: Annotated[Path, typer.Option(help="Folder that all shares write to, a file each.", metavar="DIR")],
    recipe: Annotated[Path | None, typer.Option(help="Recipe of weights that carry none.")] = None,
    data: Annotated[str | None, typer.Option(help="Data set name or .npz file, if not the recipe's.")] = None,
    attacks: Annotated[str | None, typer.Option(help="Which attacks, separated by commas.")] = None,
    trainer: Annotated[str | None, typer.Option(help="Your own training loop.", metavar="FILE.py:NAME")] = None,
    trials: Annotated[int | None, typer.Option(help="Models per arm, of all shares together.")] = None,
    confidence: Annotated[float, typer.Option(help="As for run: the default of --trials depends on it.")] = 0.95,
    budget: Annotated[str | None, typer.Option(help="Stop training after this time: 90s, 10m, 2h.")] = None,
    device: Device = "auto",
    workers: Annotated[int | None, typer.Option(min=1, help="Training processes; default one per core.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="The same for all shares.")] = None,
) -> None:
    """Train a part of an audit's models, for dpaudit run --store DIR; the same options as there."""
    began, share = time.monotonic(), _share(shard)
    seconds_left(budget, began)
    from dpaudit.audit.inputs.bundles import load_bundle
    from dpaudit.audit.inputs.recipes import load_recipe

    bundle = load_bundle(model, recipe=None if recipe is None else load_recipe(recipe))

    from dpaudit.audit import runner
    from dpaudit.audit.trials.store import stored_seed

    file = store / f"shard-{share[0]}-of-{share[1]}.sqlite"
    chosen = seed if seed is not None else stored_seed(file, shared=True)
    if chosen is None:
        raise typer.BadParameter("Expected --seed, the same for all shares.")
    settings = audit_settings(
        chosen, attacks, trainer, trials=trials, confidence=confidence, device=device, workers=workers, store=file,
        shared=True, budget=seconds_left(budget, began),
    )  # fmt: skip
    with progress_bars() as stage, users_words_aside():
        done = runner.train_share(
            bundle, bundle.recipe.load_dataset(data, progress=stage), settings, share, stage=stage
        )
    rest = f"stopped: {done.stopped}" if done.stopped else "with the other shares' all are there"
    typer.echo(f"{printable(str(file))}: {done.trained:,} models trained here, {rest}")
    raise typer.Exit(GAVE_UP if done.stopped else 0)


def _share(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise typer.BadParameter(f"Expected shard={text!r} to be I/N with I in 1..N, such as 2/4.")
    return int(match[1]), int(match[2])
