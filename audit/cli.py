"""The `dpaudit` command: its commands, the options before them, exit codes. Heavy imports are inside the commands."""

import errno
import os
import signal
import sys
from typing import Annotated

import typer

from dpaudit.audit.commands.calibrate import calibrate
from dpaudit.audit.commands.canaries import canaries
from dpaudit.audit.commands.console import BAD_INPUT, GAVE_UP, fail, os_reason
from dpaudit.audit.commands.lint import lint
from dpaudit.audit.commands.mechanisms import mechanisms
from dpaudit.audit.commands.register import register
from dpaudit.audit.commands.report import report
from dpaudit.audit.commands.run import run
from dpaudit.audit.commands.scores import scores
from dpaudit.audit.commands.selfcheck import selfcheck
from dpaudit.audit.commands.train import train
from dpaudit.audit.commands.trials import trials
from dpaudit.audit.commands.verify import verify

app = typer.Typer(
    name="dpaudit",
    help="Tells whether a differential-privacy claim holds: audits trained models, and names what refutes a claim.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit status: 0 nothing refuted, 2 bad usage or input, 3 a claim was refuted, 4 gave up, 5 what is required "
    "is missing.",
)
app.command()(run)
app.command()(trials)
app.command()(verify)
app.command()(train)
app.command()(report)
app.command()(calibrate)
app.command()(mechanisms)
app.command()(selfcheck)
app.command()(lint)
app.command()(scores)
app.add_typer(canaries)
app.command()(register)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"dpaudit {version('dpaudit')} (Python {sys.version.split()[0]}, torch {version('torch')})")
        raise typer.Exit


@app.callback()
def main_options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Versions.")] = False,
) -> None:
    """Options before the command."""


def main() -> None:
    """Entry point: our errors become one line and exit status 2; a crash stays a crash."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        app()
    except KeyboardInterrupt:
        fail("interrupted before anything was measured", GAVE_UP)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(BAD_INPUT)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        fail(os_reason(error), GAVE_UP if full else BAD_INPUT)
    except ValueError as error:
        # named, not imported: --help stays quick
        if not {"InputError", "ToleranceError"} & {kind.__name__ for kind in type(error).__mro__}:
            raise
        fail(" ".join(str(error).split()), BAD_INPUT)


if __name__ == "__main__":
    main()
