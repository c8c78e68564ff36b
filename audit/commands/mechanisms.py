"""`dpaudit mechanisms`: what can be claimed."""

import typer


def mechanisms() -> None:
    """List the mechanisms with their parameters, domains and units."""
    from dpaudit.mechanisms.registry import describe

    for row in describe():
        typer.echo(f"{row['name']}: {row['summary']}")
        for parameter in row["parameters"]:
            typer.echo("    {name} in {domain}, {unit}; typically {typical}".format(**parameter))
