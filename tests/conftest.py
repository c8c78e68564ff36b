"""What every test may use: pytest's own tester; the command line; one thread a process, and one width."""

import contextlib
import gc
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import pytest

if TYPE_CHECKING:
    from dpaudit.verify import Claim, Verdict

# before numpy or torch is loaded: tests run side by side, and threads that wait for each other slow all of them
os.environ.setdefault("OMP_NUM_THREADS", "1")
# the width of a pipe, wherever the tests are run from: a terminal's own would fold what they compare
os.environ["COLUMNS"] = "100"

pytest_plugins = ["pytester"]

# tests of what the four papers print; `make check` leaves them out
PAPERS = (
    "audit/test_teacher_votes.py",
    "examples",
    "mechanisms/learning/pate",
    "mechanisms/published",
    "verify/lower/test_papers.py",
    "verify/papers",
)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """No search for garbage among modules and test items: a second of a collection, a fortieth of all tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the papers' tests by where they are."""
    here = Path(__file__).parent
    places = tuple(str(here / part) + ("" if part.endswith(".py") else os.sep) for part in PAPERS)
    for item in items:
        if str(item.path).startswith(places):
            item.add_marker(pytest.mark.papers)


@pytest.fixture(scope="session")
def dpaudit() -> Callable[..., subprocess.CompletedProcess[str]]:
    """The command line, called in this process as from a pipe: exit status, stdout, stderr."""
    from dpaudit.audit.cli import main

    def call(
        *arguments: str | Path, folder: Path | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        words, status = ["dpaudit", *map(str, arguments)], 0
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        with (
            contextlib.chdir(folder or Path.cwd()),
            mock.patch.dict(os.environ, {"NO_COLOR": "1", **environment}),
            mock.patch.object(sys, "argv", words),
            contextlib.redirect_stdout(io.StringIO()) as out,
            contextlib.redirect_stderr(io.StringIO()) as err,
        ):
            try:
                main()
            except SystemExit as ended:
                status = int(ended.code or 0)
            finally:
                for number, handler in handlers.items():
                    signal.signal(number, handler)
        return subprocess.CompletedProcess(words, status, out.getvalue(), err.getvalue())

    return call


@pytest.fixture(scope="session")
def checked(tmp_path_factory: pytest.TempPathFactory) -> "Callable[[Claim], Verdict]":
    """`check` of a claim, read back from JSON: computed once for all tests of a run, in whichever process they are.

    Without what the bound leaves to an attack, which costs up to half as much again, and which no caller looks at.
    """
    from dpaudit.verify import Verdict, check

    folder = tmp_path_factory.getbasetemp()
    folder = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "verdicts"
    folder.mkdir(exist_ok=True)

    def verdict(claim: "Claim") -> Verdict:
        path = folder / hashlib.sha256(repr(claim).encode()).hexdigest()
        if not path.exists():
            part = path.with_suffix(f".{os.getpid()}")
            part.write_text(json.dumps(replace(check(claim), operating=None).to_dict()))
            part.replace(path)
        return Verdict.from_dict(json.loads(path.read_text()))

    return verdict
