"""`dpaudit report`: the page of a result, from its JSON; its signature."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from dpaudit._plain_text import printable
from dpaudit.audit.commands.console import BAD_INPUT, fail


def report(
    result: Annotated[Path, typer.Argument(help="The JSON of an audit, or of verdicts.")],
    out: Annotated[Path | None, typer.Option(help="Folder of the report; default the JSON's own.")] = None,
    sign: Annotated[
        Path | None,
        typer.Option(
            help="Sign page and JSON with this Ed25519 key, PEM or OpenSSH; refused where the page is not of the JSON.",
            metavar="KEY",
        ),
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Check the signature of the page beside the JSON.")] = False,
    key: Annotated[
        Path | None, typer.Option(help="The signer's public key, for --verify; default the one beside the JSON.")
    ] = None,
) -> None:
    """Render the HTML report again from the JSON, sign it, or check its signature."""
    from dpaudit.reports import data_beside, page_beside, write_again
    from dpaudit.reports.signing import sign_report, verify_report

    if verify and (sign is not None or out is not None):
        raise typer.BadParameter("Expected --verify without --sign and --out.")
    if key is not None and not verify:
        raise typer.BadParameter("Expected --key with --verify.")
    try:
        if verify:
            by = verify_report(page_beside(result), result, key=key)
            compare = "" if key is not None else "; compare it with the signer's own: the key lay beside the report"
            typer.echo(f"{printable(str(result))} and its page are as they were signed by the key {by}{compare}")
            return
        rendered = sign is None or out is not None or not page_beside(result).exists()
        page = write_again(result, out or result.parent) if rendered else page_beside(result)
        if sign is None:
            typer.echo(printable(str(page)))
            return
        by = sign_report(page, data_beside(page) if rendered else result, sign, passphrase=_passphrase)
        typer.echo(f"{printable(str(page))}, signed by the key {by}")
    except ValueError as error:
        fail(str(error), BAD_INPUT)


def _passphrase() -> bytes:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:  # there is no terminal
        return sys.stdin.readline().rstrip("\n").encode()
    return str(typer.prompt("Passphrase of the key", hide_input=True, err=True)).encode()
