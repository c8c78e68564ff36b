"""The command as a person meets it: help, typos, pipes, exit codes."""

import errno
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from dpaudit.audit import cli
from dpaudit.audit.exit_status import ENDING, os_status

NOTHING_KEPT = "dpaudit: interrupted before anything was done that can be kept: the same command starts again"
BIN = Path(sys.executable).with_name("dpaudit")
Command = Callable[..., subprocess.CompletedProcess[str]]


def test_help_names_every_command_and_the_exit_codes() -> None:
    done = subprocess.run([BIN, "--help"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0
    for word in ("run", "train", "report", "mechanisms", "3 a claim was refuted"):
        assert word in " ".join(done.stdout.split())


def test_it_is_a_module_too() -> None:
    command = [sys.executable, "-m", "dpaudit", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == subprocess.run([BIN, "--version"], capture_output=True, text=True, check=True).stdout


def test_a_home_that_cannot_be_written_to_is_nothing_to_talk_about(tmp_path: Path) -> None:
    (tmp_path / "claim.toml").write_text(
        '[[claim]]\nid = "a"\nepsilon = 2.0\ndelta = 1e-5\nmechanism = {name = "gaussian", noise_multiplier = 5.0}\n'
    )
    command = [BIN, "verify", "claim.toml", "--out", "pages"]
    homeless = {**os.environ, "HOME": "/proc/none", "XDG_CONFIG_HOME": "", "XDG_CACHE_HOME": "", "MPLCONFIGDIR": ""}
    done = subprocess.run(command, cwd=tmp_path, env=homeless, capture_output=True, text=True, timeout=120, check=True)
    assert done.stderr == ""


def test_help_loads_nothing_heavy() -> None:
    code = """
import sys
from dpaudit.audit.cli import main
sys.argv = ["dpaudit", "--help"]
try:
    main()
except SystemExit:
    print([m for m in ("numpy", "scipy", "torch", "sklearn", "pydantic") if m in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("[]")


def test_a_typo_is_one_message_and_exit_2(dpaudit: Command) -> None:
    done = dpaudit("rnu")
    assert done.returncode == 2
    assert done.stderr.startswith("dpaudit: No such command 'rnu'. Did you mean 'run'? (")
    assert done.stderr.count("\n") == 1
    assert dpaudit("scores", "--in", "x").stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


def test_a_missing_file_is_one_line_and_exit_2(tmp_path: Path, dpaudit: Command) -> None:
    done = dpaudit("run", str(tmp_path / "nothing.pt"))
    assert done.returncode == 2
    assert "nothing.pt" in done.stderr
    assert "Traceback" not in done.stderr


def test_control_characters_of_a_name_reach_no_terminal(tmp_path: Path, dpaudit: Command) -> None:
    for words in (("report", "\x07.json"), ("verify", "\x07.toml"), ("report", "\x07.json", "--verify")):
        done = dpaudit(*words, folder=tmp_path)
        assert done.returncode == 2
        assert "?." in done.stderr
        assert done.stderr.strip().isprintable()


def test_a_folder_in_the_place_of_a_file_is_told_before_the_work(tmp_path: Path, dpaudit: Command) -> None:
    done = dpaudit("calibrate", "--mechanism", "gaussian", "--epsilon", "1", "--delta", "1e-5", "--json", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"dpaudit: Expected --json={tmp_path} to be a file, not a folder.\n"


def test_version_names_python_and_torch(dpaudit: Command) -> None:
    done = dpaudit("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("dpaudit 0.")
    assert "torch" in done.stdout


def test_mechanisms_are_listed_with_domains(dpaudit: Command) -> None:
    done = dpaudit("mechanisms")
    assert done.returncode == 0
    for name in ("gaussian", "laplace", "gamma-plrv", "gamma-plrv-iid", "product", "generalized-gaussian"):
        assert name in done.stdout


@pytest.mark.slow
def test_an_audit_of_digits_starts_without_the_slow_packages() -> None:
    code = """
import sys
import dpaudit.audit.inputs.bundles, dpaudit.audit.runner
from dpaudit.audit.inputs import datasets
datasets.load("digits")
slow = ("scipy.stats", "sklearn", "pandas", "statsmodels", "opacus", "dp_accounting", "matplotlib", "hypothesis")
print([m for m in slow if m in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


CLAIM = """
[[claim]]
id = "a"
epsilon = {epsilon}
delta = 1e-5
mechanism = {{name = "gaussian", noise_multiplier = 1.6666666666666667}}
"""
VERIFY = ("verify", "claims.toml", "--json", "-")
FULL = "dpaudit: standard output: No space left on device\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a claims file whose only claim is refuted."""
    made = tmp_path_factory.mktemp("claims")
    (made / "claims.toml").write_text(CLAIM.format(epsilon=2.0))
    return made


@pytest.mark.parametrize(("arguments", "status"), [(VERIFY, 3), (("mechanisms",), 0), (("--help",), 0)])
def test_a_reader_that_has_gone_leaves_the_exit_status_as_it_is(
    arguments: tuple[str, ...], status: int, folder: Path
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as pipe:
        done = subprocess.run(
            [BIN, *arguments], stdout=pipe, stderr=subprocess.PIPE, text=True, cwd=folder, timeout=120, check=False
        )
    assert (done.returncode, done.stderr) == (status, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize(("arguments", "status"), [(VERIFY, 3), (("mechanisms",), 4)])
def test_a_full_disk_hides_no_refutation(arguments: tuple[str, ...], status: int, folder: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [BIN, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, cwd=folder, timeout=120, check=False
        )
    assert (done.returncode, done.stderr) == (status, FULL)


@pytest.mark.parametrize("written", [("--json", "a.json"), ("--out", "page")])
def test_a_file_that_cannot_grow_is_named(written: tuple[str, str], folder: Path) -> None:
    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

    held = CLAIM.format(epsilon=9.0)
    (folder / "held.toml").write_text(held)
    for claims, status in (("held.toml", 4), ("claims.toml", 3)):
        done = subprocess.run(
            [BIN, "verify", claims, *written], capture_output=True, text=True, cwd=folder, timeout=120, check=False,
            preexec_fn=limited, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},  # modules would be cut off, too
        )  # fmt: skip
        file = "a.json" if "--json" in written else "page/verdicts.json"
        assert (done.returncode, done.stderr) == (status, f"dpaudit: File too large: {file}\n")
        assert not (folder / file).exists()


def test_streams_that_are_closed_leave_the_exit_status_as_it_is(folder: Path) -> None:
    for words, status in (("verify none.toml 2>&-", 2), ("verify claims.toml >&- 2>&-", 3)):
        done = subprocess.run(f"{BIN} {words}", shell=True, cwd=folder, timeout=120, check=False)
        assert done.returncode == status, words


def test_letters_that_the_output_cannot_take_leave_the_exit_status_as_it_is(tmp_path: Path) -> None:
    claim = CLAIM.format(epsilon=2.0).replace('id = "a"', 'id = "\N{GREEK SMALL LETTER MU}"')
    (tmp_path / "claims.toml").write_text(claim, "utf-8")
    done = subprocess.run(
        [BIN, "verify", "claims.toml"], env={**os.environ, "PYTHONIOENCODING": "latin-1"}, cwd=tmp_path,
        capture_output=True, text=True, encoding="latin-1", timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (3, "")
    assert "\\u03bc" in done.stdout


def test_more_trials_than_memory_holds_are_a_mistake(dpaudit: Command) -> None:
    assert dpaudit("selfcheck", "--trials", "1" + 20 * "0").returncode == 2


def test_an_interruption_is_one_line_and_exit_4() -> None:
    with subprocess.Popen(
        [BIN, "selfcheck", "--trials", "1000000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # a shell may have switched it off
    ) as process:  # fmt: skip
        assert process.stderr is not None
        assert process.stderr.readline().startswith("seed ")
        process.send_signal(signal.SIGINT)
        told = process.stderr.readline()
        while process.poll() is None:  # pressed again as the interpreter ends
            process.send_signal(signal.SIGINT)
            time.sleep(0.002)
        rest = process.communicate(timeout=120)
    assert (process.returncode, told, rest) == (
        4,
        NOTHING_KEPT + "\n",
        ("", ""),
    )


def test_an_interruption_of_a_text_that_is_executed_exits_4_as_any_other(tmp_path: Path) -> None:
    """SciPy hands such a text to exec as it is imported; python -m then ended by SIGINT."""
    code = "from dpaudit.audit import cli\ncli.app = lambda: exec('raise KeyboardInterrupt')\ncli.main()"
    (tmp_path / "ended.py").write_text(code)
    command = [sys.executable, "-m", "ended"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (
        4,
        NOTHING_KEPT + "\n",
    )


def test_an_interruption_before_the_commands_have_loaded_is_one_line_and_exit_4(tmp_path: Path) -> None:
    code = """
import sys

class Pressed:
    def find_spec(name, *rest):
        if name == "dpaudit.audit.cli":
            exec("raise KeyboardInterrupt")

sys.meta_path.insert(0, Pressed)
import dpaudit.__main__
dpaudit.__main__.main()
"""
    (tmp_path / "pressed.py").write_text(code)
    command = [sys.executable, "-m", "pressed"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (4, "dpaudit: interrupted before it began\n")


LOADS = """
from dpaudit.audit import cli
from dpaudit.audit.exit_status import keep_what_is_done

def app():
    if KEEPING:
        keep_what_is_done()
    import package, time
    time.sleep(20)

cli.app = app
cli.main()
"""
PACKAGE = """
import os, signal, sys, time
sys.stderr.write("loading\\n")
try:
    os.kill(os.getpid(), signal.NUMBER)
    time.sleep(0.3)
    sys.stderr.write("loaded\\n")
except BaseException:
    pass
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("keeping", [False, True])
def test_a_signal_while_a_package_loads_is_not_lost(tmp_path: Path, number: signal.Signals, keeping: bool) -> None:
    """It left NumPy half loaded, which ended in a traceback, or a package that catches everything lost it."""
    (tmp_path / "package.py").write_text(PACKAGE.replace("NUMBER", number.name))
    (tmp_path / "loads.py").write_text(LOADS.replace("KEEPING", str(keeping)))
    done = subprocess.run(
        [sys.executable, "loads.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    told = ["loading", *(["loaded"] if keeping else []), NOTHING_KEPT]
    assert (done.returncode, done.stderr.splitlines()) == (4, told)


def test_no_more_processes_is_giving_up() -> None:
    assert os_status(OSError(errno.EAGAIN, "Resource temporarily unavailable")) == 4


FORKED = """
import multiprocessing, signal, time
from dpaudit.audit.exit_status import end_by_signals

if __name__ == "__main__":
    end_by_signals()
    forks = multiprocessing.get_context("fork")
    for _ in range(20):
        process = forks.Process(target=time.sleep, args=(60,))
        process.start()
        process.terminate()
        process.join(20)
        assert process.exitcode == -signal.SIGTERM, process.exitcode
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    process = forks.Process(target=time.sleep, args=(0.2,))
    process.start()
    process.terminate()
    process.join(20)
    assert process.exitcode == 0
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
"""


def test_a_process_that_a_users_code_forks_can_be_ended_at_once(tmp_path: Path) -> None:
    """29 of 30 went on, and a loop that waited for one never ended."""
    (tmp_path / "forked.py").write_text(FORKED)
    done = subprocess.run(
        [sys.executable, "forked.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_lost_terminal_ends_a_command_as_ctrl_c_does_unless_it_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    monkeypatch.setattr(cli, "app", lambda: seen.append(signal.getsignal(signal.SIGHUP)))
    before = {number: signal.getsignal(number) for number in ENDING}
    try:
        for handler in (signal.SIG_DFL, signal.SIG_IGN):
            signal.signal(signal.SIGHUP, handler)
            cli.main()
    finally:
        for number, handler_before in before.items():
            signal.signal(number, handler_before)
    interrupt, ignored = seen
    assert callable(interrupt)
    with pytest.raises(KeyboardInterrupt):
        interrupt(signal.SIGHUP, None)
    assert ignored is signal.SIG_IGN
