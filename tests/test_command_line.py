"""The command as a person meets it: help, typos, pipes, exit codes."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

BIN = Path(sys.executable).with_name("dpaudit")
Command = Callable[..., subprocess.CompletedProcess[str]]


def test_help_names_every_command_and_the_exit_codes() -> None:
    done = subprocess.run([BIN, "--help"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0
    for word in ("run", "train", "report", "mechanisms", "3 a claim was refuted"):
        assert word in " ".join(done.stdout.split())


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
    assert "rnu" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_file_is_one_line_and_exit_2(tmp_path: Path, dpaudit: Command) -> None:
    done = dpaudit("run", str(tmp_path / "nothing.pt"))
    assert done.returncode == 2
    assert "nothing.pt" in done.stderr
    assert "Traceback" not in done.stderr


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
