"""`dpaudit verify`: claims files in, verdicts out."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from dpaudit.audit.commands.console import Seed, columns, one_of, painted, progress_bars, seed_or_drawn, written_apart

FORMS = ("text", "junit", "sarif", "badge", "registry", "model-card", "prose")


def verify(
    claims: Annotated[list[Path] | None, typer.Argument(help="Claims files, TOML; - for stdin.")] = None,
    only: Annotated[str | None, typer.Option(help="Check the claim of this id alone.")] = None,
    method: Annotated[str, typer.Option(help="exact, monte-carlo or both.", metavar="METHOD")] = "exact",
    require: Annotated[str | None, typer.Option(help="certified: exit with 5 unless every claim is.")] = None,
    format: Annotated[
        str,
        typer.Option(
            help="text, junit, sarif or badge (SVG); registry, model-card or prose for other people's records.",
            metavar="FORMAT",
        ),
    ] = "text",
    json: Annotated[str | None, typer.Option(help="Write the verdicts here as well; - prints them alone.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of a report: verdicts.html and verdicts.json.")] = None,
    rigorous: Annotated[
        bool, typer.Option("--rigorous", help="Judge every claim again by a second engine, in ball arithmetic.")
    ] = False,
    certificates: Annotated[
        Path | None,
        typer.Option(help="Folder of certificates, one per decided claim, for dpaudit-check.", metavar="DIR"),
    ] = None,
    registry: Annotated[
        Path | None, typer.Option(help="Check an entry of the OpenDP registry, or a folder.", metavar="FILE|DIR")
    ] = None,
    screen: Annotated[
        bool, typer.Option("--screen", help="Cheap bounds alone, for a million claims; tables (.csv) are read as well.")
    ] = False,
    seed: Seed = None,
) -> None:
    """Check claimed (epsilon, delta) of mechanisms: no model, no data."""
    if (registry is None) == (not claims):
        raise typer.BadParameter("Expected claims files, or --registry.")
    required = None if require is None else one_of("require", require, ("certified",))
    verdicts_only = {
        "--only": only, "--certificates": certificates, "--rigorous": rigorous or None,
        "--method": method if method != "exact" else None, "--format": format if format != "text" else None,
    }  # fmt: skip
    if registry is not None:
        _without("--registry", {**verdicts_only, "--json": json, "--require": require, "--screen": screen or None})
        from dpaudit.audit.registry import run_registry

        raise typer.Exit(run_registry(registry, out=out, show=typer.echo, warn=partial(typer.echo, err=True)))
    written_apart(json, *(claims or []))
    if screen:
        _without("--screen", {**verdicts_only, "--out": out})
        from dpaudit.audit.screening_run import run_screening

        printed: list[str] = []
        with progress_bars() as stage:
            found = run_screening(
                claims or [], require=required, json_file=json, stage=stage, show=printed.append,
                warn=partial(typer.echo, err=True),
            )  # fmt: skip
        typer.echo("\n".join(printed))
        raise typer.Exit(found)
    from dpaudit.audit.claims_run import run_claims
    from dpaudit.reports import verdict_text

    exact = one_of("method", method, ("exact", "monte-carlo", "both")) == "exact"
    chosen = 0 if exact else seed_or_drawn(seed)
    shown: list[str] = []  # printed when the bars are gone: both may be the same terminal
    with progress_bars() as stage:
        status = run_claims(
            claims or [],
            only=only,
            method=method,
            require=required,
            form=one_of("format", format, FORMS),
            json_file=json,
            seed=chosen,
            out=out,
            rigorous=rigorous,
            certificates=certificates,
            stage=stage,
            show=shown.append,
            warn=partial(typer.echo, err=True),
            as_text=partial(verdict_text, width=columns(), paint=painted),
        )
    for text in shown:
        typer.echo(text)
    raise typer.Exit(status)


def _without(option: str, others: dict[str, object]) -> None:
    """Refuse what an option has no use for: it would be taken for done."""
    for name in (name for name, value in others.items() if value is not None):
        raise typer.BadParameter(f"Expected {option} without {name}.")
