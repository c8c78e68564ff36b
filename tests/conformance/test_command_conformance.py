"""Every command of the command line explains itself, and loads what is heavy only when it is called."""

import ast
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from dpaudit.audit.cli import app

LIGHT = {"typer", "dpaudit._plain_text", "dpaudit.audit.commands.console", *sys.stdlib_module_names}


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command with the words that call it, those of groups too; of whichever click typer stands on."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


COMMANDS = dict(commands(typer.main.get_command(app)))
over_commands = pytest.mark.parametrize(("words", "command"), COMMANDS.items(), ids=[" ".join(key) for key in COMMANDS])


@over_commands
def test_its_help_says_what_it_does_and_what_every_option_is(words: tuple[str, ...], command: Any) -> None:
    done = CliRunner().invoke(app, [*words, "--help"])
    assert done.exit_code == 0
    summary = (command.help or "").strip().splitlines()[0]
    assert summary.endswith((".", ":"))
    for parameter in command.params:
        assert getattr(parameter, "help", None), parameter.name


@over_commands
def test_a_wrong_option_is_bad_usage_in_a_few_lines(words: tuple[str, ...], command: Any) -> None:
    done = CliRunner().invoke(app, [*words, "--no-such-option"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "--no-such-option" in done.stderr


@over_commands
def test_its_file_imports_what_is_heavy_inside(words: tuple[str, ...], command: Any) -> None:
    """`dpaudit --help` reads the file of every command."""
    callback: Callable[..., Any] = inspect.unwrap(command.callback)
    source = Path(inspect.getsourcefile(callback) or "")
    assert source.parent.name == "commands"
    imported: set[str] = set()
    for node in ast.parse(source.read_text()).body:
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(str(node.module))
    assert {name for name in imported if name not in LIGHT and name.partition(".")[0] not in LIGHT} == set()
