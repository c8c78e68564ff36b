"""`dpaudit accountants`: the published formulas that a claim may name."""

import typer


def accountants() -> None:
    """List the published accountants that a claim may name."""
    from dpaudit.mechanisms.published import ACCOUNTANTS

    for name, formula in ACCOUNTANTS.items():
        typer.echo(f"{name}: {(formula.__doc__ or '').partition(chr(10))[0]}")
