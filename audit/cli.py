"""The `dpaudit` command: its commands, the options before them, exit codes. Heavy imports are inside the commands."""

import errno
import io
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from dpaudit.audit.commands.calibrate import calibrate
from dpaudit.audit.commands.canaries import canaries
from dpaudit.audit.commands.console import BAD_INPUT, GAVE_UP, REFUTED, fail, os_reason, os_status
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
from dpaudit.audit.exit_status import ENDING, NOTHING_KEPT, end_by_signals


@contextmanager
def in_one_line() -> Iterator[None]:
    """Our errors become one line and exit status 2 or 4; a crash stays a crash."""
    try:
        yield
    except KeyboardInterrupt:
        _end_undisturbed()
        fail(NOTHING_KEPT, GAVE_UP)
    except OSError as error:
        fail(os_reason(error), os_status(error))
    except MemoryError:
        fail("memory is used up", GAVE_UP)
    except Exception as error:
        # named, not imported: --help stays quick
        kinds = {kind.__name__ for kind in type(error).__mro__}
        if "UsageError" in kinds and "NoArgsIsHelpError" not in kinds:
            path = getattr(getattr(error, "ctx", None), "command_path", "dpaudit")
            fail(f"{' '.join(error.format_message().split())} ({path} --help)", BAD_INPUT)  # type: ignore[attr-defined]
        if not {"InputError", "ToleranceError"} & kinds:
            raise
        fail(" ".join(str(error).split()), BAD_INPUT)


def _end_undisturbed() -> None:
    """Ignore what ends a command while it ends: Ctrl-C, pressed again, would take its exit status away."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    # where Ctrl-C ended a text that a package hands to exec, as SciPy does when it loads, the interpreter would end by
    # SIGINT in place of our status: the next such text makes it forget
    exec("pass")


class Commands(TyperGroup):
    """The commands; what they raise is told before typer sees it, whose own exit status is 1 or 130."""

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """Read the options before the command."""
        with in_one_line():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        with in_one_line():
            return super().invoke(ctx)


class Lasting(io.TextIOWrapper):
    """Output that goes on when its reader has gone or its disk is full: the exit status tells what was found."""

    failure: OSError | None = None

    def write(self, text: str) -> int:
        """Write; what cannot be is dropped."""
        try:
            return super().write(text)
        except OSError as error:
            self._drop(error)
            return len(text)

    def flush(self) -> None:
        """Flush; what cannot be written is dropped."""
        try:
            super().flush()
        except OSError as error:
            self._drop(error)

    def _drop(self, error: OSError) -> None:
        self.failure = self.failure or error
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())  # what is left, too, which Python writes at its end


app = typer.Typer(
    name="dpaudit",
    cls=Commands,
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


def _made_lasting(name: str, descriptor: int) -> None:
    """Put another in the place of one of the interpreter's own streams, not of one that a caller put there."""
    stream = getattr(sys, name)
    if stream is not getattr(sys, f"__{name}__"):
        return
    file = io.FileIO(os.devnull if stream is None else descriptor, "w", closefd=stream is None)  # None: it is closed
    encoding, errors = ("utf-8", "strict") if stream is None else (stream.encoding, stream.errors)
    errors = "backslashreplace" if errors == "strict" else errors  # a letter that the encoding lacks ends nothing
    lines, through = (stream is not None and getattr(stream, key) for key in ("line_buffering", "write_through"))
    if stream is not None:
        with suppress(OSError):  # a reader that has gone is met again at the next write
            stream.flush()
    lasting = Lasting(
        io.BufferedWriter(file), encoding=encoding, errors=errors, line_buffering=lines, write_through=through
    )
    setattr(sys, name, lasting)


def main() -> None:
    """Entry point; a refutation is told by the exit status even where it cannot be printed."""
    end_by_signals()
    _made_lasting("stderr", 2)
    _made_lasting("stdout", 1)
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it warns where it cannot write to HOME
    try:
        with in_one_line():
            app()
    except SystemExit as ended:
        _end_undisturbed()
        failure = getattr(sys.stdout, "failure", None)
        if failure is None or failure.errno == errno.EPIPE:  # a reader may stop when it has seen enough
            raise
        told = isinstance(ended.code, int) and ended.code in (BAD_INPUT, REFUTED, GAVE_UP)
        fail(f"standard output: {os_reason(failure)}", int(ended.code or 0) if told else os_status(failure))


if __name__ == "__main__":
    main()
