"""What commands share: exit statuses, options, seeds, progress bars, and failing in one line."""

import os
import re
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from dpaudit._plain_text import printable

# commands find them here: their files load nothing else at the start
from dpaudit.audit.exit_status import BAD_INPUT as BAD_INPUT
from dpaudit.audit.exit_status import GAVE_UP as GAVE_UP
from dpaudit.audit.exit_status import LACKING as LACKING
from dpaudit.audit.exit_status import REFUTED as REFUTED
from dpaudit.audit.exit_status import Lost as Lost
from dpaudit.audit.exit_status import os_reason as os_reason
from dpaudit.audit.exit_status import os_status as os_status

if TYPE_CHECKING:
    from dpaudit.audit.inputs.sources import Stage
    from dpaudit.audit.settings import Settings

Seed = Annotated[
    int | None, typer.Option(min=0, help="Seed of everything random; drawn, printed and recorded if absent.")
]
Device = Annotated[str, typer.Option(help="Where models train: auto, cpu or cuda.", metavar="auto|cpu|cuda")]

COLOURS = {
    "refuted": "red", "error": "red", "certified": "green", "undecided": "yellow", "inconclusive": "yellow",
    "gave_up": "yellow", "warning": "yellow", "note": "cyan",
}  # fmt: skip


def painted(text: str, kind: str) -> str:
    """Text in the colour of a verdict or a level; `typer.echo` takes it off again where stdout is no terminal."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return text if plain else typer.style(text, fg=COLOURS.get(kind), bold=kind in COLOURS)


def columns() -> int:
    """The width to wrap at: the terminal's, up to 120; 100 where there is none."""
    return min(shutil.get_terminal_size((100, 24)).columns, 120)


@contextmanager
def progress_bars() -> Iterator["Stage"]:
    """Progress bars with an estimate of the time left, on stderr, silent where that is no terminal."""
    if not sys.stderr.isatty():
        yield lambda what, total: lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:

        def stage(what: str, total: int) -> Callable[[int], None]:
            task = bars.add_task(what, total=total)
            return lambda done: bars.advance(task, done)

        yield stage


def users_words_aside() -> AbstractContextManager[object]:
    """Inside, what a user's own code prints goes to stderr: stdout carries the result only."""
    return redirect_stdout(sys.stderr)


def one_of(name: str, value: str, allowed: tuple[str, ...]) -> str:
    """An option's value, refused unless it is one of those allowed."""
    if value not in allowed:
        raise typer.BadParameter(f"Expected {name}={value!r} to be {' or '.join(allowed)}.")
    return value


def audit_settings(seed: int, attacks: str | None, trainer: str | None, **options: Any) -> "Settings":
    """Settings of an audit from the command line's words."""
    from dpaudit.audit.inputs.files import InputError
    from dpaudit.audit.inputs.user_code import UserFunction, UserTrainer
    from dpaudit.audit.settings import Settings

    if trainer is not None:
        options["trainer"] = UserTrainer(UserFunction.named(trainer, "--trainer"))
    names = () if attacks is None else tuple(name.strip() for name in attacks.split(","))
    for name in (name for number, name in enumerate(names) if name in names[:number]):
        raise InputError(f"Expected attacks={name!r} once: it is named again.")
    return Settings(seed=seed, attacks=names, **options)


def in_a_folder(option: str, path: Path) -> None:
    """Refuses, before the work, a file to be written in a folder that does not exist, or that takes no files."""
    from dpaudit.audit.inputs.files import InputError

    if not path.parent.is_dir():
        raise InputError(f"Expected the folder of {option}={path} to exist.")
    if not os.access(path.parent if path.is_file() or not path.exists() else path, os.W_OK):  # a pipe takes no other's
        raise InputError(f"Expected the folder of {option}={path} to be one that can be written to.")


def written_apart(json: str | None, *read: Path | str | None) -> None:
    """Refuses, before the work, a --json file in no folder, or in the place of one that the command reads."""
    if json in (None, "-"):
        return
    json = str(Path(str(json)))  # as it will be opened: a slash at its end is no other file
    in_a_folder("--json", Path(json))
    if os.path.isdir(json):
        from dpaudit.audit.inputs.files import InputError

        raise InputError(f"Expected --json={json} to be a file, not a folder.")
    another_file("--json", json, *read)


def another_file(option: str, written: Path | str, *read: Path | str | None) -> None:
    """Refuses, before the work, to write in the place of a file that the command reads."""
    if not os.path.isfile(written):
        return
    for path in (path for path in read if path is not None and os.path.exists(path)):
        if os.path.samefile(written, path):
            from dpaudit.audit.inputs.files import InputError

            raise InputError(f"Expected {option}={written} to be another file than {path}, which is read.")


def fail(message: str, status: int) -> NoReturn:
    """One line on stderr, and the end of the process with that status."""
    typer.echo(f"dpaudit: {printable(message)}", err=True)
    sys.exit(status)


def seed_or_drawn(seed: int | None, before: int | None = None) -> int:
    """The seed that was given, else the one of an earlier run, else a drawn one; what was not given is printed."""
    if seed is not None:
        return seed
    drawn = secrets.randbits(31) if before is None else before
    typer.echo(f"seed {drawn}", err=True)
    return drawn


def seconds_left(budget: str | None, began: float) -> float | None:
    """Seconds that are left of the budget of a command that began then; None without one."""
    if budget is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", budget.strip())
    if match is None:
        raise typer.BadParameter(f"Expected budget={budget!r} such as 90s, 10m or 2h.")
    seconds = float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]
    return max(1e-9, began + seconds - time.monotonic()) if seconds else seconds
