"""`dpaudit train`: a recipe in, an audit bundle out."""

from pathlib import Path
from typing import Annotated

import typer

from dpaudit._plain_text import printable
from dpaudit.audit.commands.console import (
    Device,
    Seed,
    another_file,
    in_a_folder,
    progress_bars,
    seed_or_drawn,
    users_words_aside,
)


def train(
    recipe: Annotated[Path, typer.Argument(help="A recipe, TOML.")],
    out: Annotated[Path, typer.Option(help="The audit bundle to write.")],
    seed: Seed = None,
    device: Device = "auto",
) -> None:
    """Train one model with a named mechanism and write the audit bundle."""
    from dpaudit.audit.inputs.files import InputError
    from dpaudit.audit.inputs.recipes import load_recipe
    from dpaudit.audit.training_run import train_bundle

    loaded = load_recipe(recipe)
    # before the work, and before it takes the place of what it was made from
    if out.is_dir():
        raise InputError(f"Expected --out={out} to be a file, not a folder.")
    if out.exists() and out.samefile(recipe):
        raise InputError(f"Expected --out={out} to be another file than the recipe.")
    another_file("--out", out, *loaded.files)
    in_a_folder("--out", out)
    chosen = seed_or_drawn(loaded.seed if seed is None else seed)
    with progress_bars() as stage, users_words_aside():
        summary = train_bundle(loaded, out, seed=chosen, device=device, stage=stage)
    typer.echo(printable(summary))
