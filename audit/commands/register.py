"""`dpaudit register`: the register of published claims, built and checked."""

from pathlib import Path
from typing import Annotated

import typer

from dpaudit._plain_text import printable
from dpaudit.audit.commands.console import REFUTED, one_of, progress_bars


def register(
    action: Annotated[
        str,
        typer.Argument(
            help="build judges every claim anew, check a sampled share, render writes the pages.",
            metavar="build|check|render",
        ),
    ],
    claims: Annotated[Path, typer.Option(help="Folder of claims files and sources/.", metavar="DIR")] = Path(
        "reports/claims"
    ),
    out: Annotated[Path, typer.Option(help="Folder of the register.", metavar="DIR")] = Path("reports/register"),
    only: Annotated[str | None, typer.Option(help="Build the source of this name alone.", metavar="NAME")] = None,
    share: Annotated[float | None, typer.Option(help="Of the claims to check, in (0, 1]; 0.1 if absent.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of the choice of claims to check; 1 if absent.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes.")] = 1,
) -> None:
    """Build, check or render the register of published claims: exit status 3 where a check finds a difference."""
    one_of("action", action, ("build", "check", "render"))
    if only is not None and action != "build":
        raise typer.BadParameter(f"Expected --only with build, not {action}.")
    if (share is not None or seed is not None) and action != "check":
        raise typer.BadParameter(f"Expected --share and --seed with check, not {action}.")
    from dpaudit.audit.register import build_register, check_register, render_register

    if action == "render":
        render_register(out, show=_show)
        return
    with progress_bars() as stage:
        if action == "build":
            build_register(claims, out, only=only, workers=workers, stage=stage, show=_show)
            return
        good = check_register(
            claims, out, share=0.1 if share is None else share, seed=1 if seed is None else seed,
            workers=workers, stage=stage, show=_show,
        )  # fmt: skip
    raise typer.Exit(0 if good else REFUTED)


def _show(line: str) -> None:
    typer.echo(printable(line))  # it may quote a claims file
