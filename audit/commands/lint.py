"""`dpaudit lint`: scripts, notebooks and recipes in, wrong practice out."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from dpaudit.audit.commands.console import BAD_INPUT, LACKING, REFUTED, columns, one_of, painted


def lint(
    paths: Annotated[
        list[Path], typer.Argument(readable=False, help="Scripts, notebooks, recipes, or folders of them.")
    ],
    ignore: Annotated[list[str] | None, typer.Option(help="A rule to leave out; repeatable.", metavar="RULE")] = None,
    require: Annotated[str | None, typer.Option(help="clean: exit with 5 if anything but notes is found.")] = None,
    format: Annotated[str, typer.Option(help="text, json or sarif.", metavar="FORMAT")] = "text",
) -> None:
    """Find wrong practice in training scripts and recipes, which are read and not run."""
    from dpaudit.audit.lint.linting import lint_paths
    from dpaudit.audit.lint.output import lint_json, lint_sarif, lint_text

    form = one_of("format", format, ("text", "json", "sarif"))
    lacking = LACKING if require is not None and one_of("require", require, ("clean",)) else 0
    result = lint_paths(paths, ignore=ignore or (), warn=partial(typer.echo, err=True))
    if form == "sarif":
        from importlib.metadata import version

        typer.echo(lint_sarif(result, version=version("dpaudit")).rstrip())
    else:
        typer.echo(lint_json(result).rstrip() if form == "json" else lint_text(result, width=columns(), paint=painted))
    raise typer.Exit(BAD_INPUT if result.refused else REFUTED if result.refuted else 0 if result.clean else lacking)
