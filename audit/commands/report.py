"""`dpaudit report`: the page of a result, from its JSON."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    result: Annotated[Path, typer.Argument(help="The JSON of an audit, or of verdicts.")],
    out: Annotated[Path, typer.Option(help="Folder of the report.")],
) -> None:
    """Render the HTML report again from the JSON."""
    from dpaudit.reports import write_again

    try:
        page = write_again(result, out)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    typer.echo(str(page))
