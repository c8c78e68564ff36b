"""A gradient norm that the solver cannot reach, as a person at the command line meets it: one line, exit status 2."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

BIN = Path(sys.executable).with_name("dpaudit")
EXAMPLE = Path(__file__).parents[2] / "examples" / "digits-approximate-minima.toml"
Command = Callable[..., subprocess.CompletedProcess[str]]
LITTLE, HUGE = ("gradient_norm = 1e-5", "gradient_norm = 1e-30"), ("noise_multiplier = 4.0", "noise_multiplier = 1e12")
BEYOND_FLOATS = ("noise_multiplier = 4.0", "noise_multiplier = 1e80")


@pytest.fixture
def as_process() -> Command:
    """The installed command: whatever writes to its streams."""

    def call(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(BIN), *map(str, arguments)], capture_output=True, text=True, timeout=120,
            env={**os.environ, "NO_COLOR": "1"}, check=False,
        )  # fmt: skip

    return call


def recipe(folder: Path, change: tuple[str, str]) -> Path:
    text = EXAMPLE.read_text()
    assert change[0] in text
    path = folder / "recipe.toml"
    path.write_text(text.replace(*change, 1))
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "change", "words"),
    [
        ("dpaudit", LITTLE, ("Expected gradient_norm=1e-30 >= ", "1e-10 for each record")),
        # the gradient is a difference of numbers of this size, of which float64 keeps 16 digits
        (
            "as_process",
            HUGE,
            (
                "Expected gradient_norm=1e-05 to be at least ",
                "rounding included, is the least that was reached",
                "Raise gradient_n",
            ),
        ),
        ("dpaudit", BEYOND_FLOATS, ("Expected the noise of mechanism and output_mechanism to be finite",)),
    ],
)
def test_training_ends_with_one_line_and_no_model(
    tmp_path: Path, request: pytest.FixtureRequest, command: str, change: tuple[str, str], words: tuple[str]
) -> None:
    call: Command = request.getfixturevalue(command)
    done = call("train", recipe(tmp_path, change), "--out", tmp_path / "model.pt", "--seed", "1")
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    for part in words:
        assert part in done.stderr
    assert not (tmp_path / "model.pt").exists()


@pytest.mark.slow
def test_an_audit_that_must_train_ends_with_the_same_line(tmp_path: Path, dpaudit: Command) -> None:
    torch.save({"weight": torch.zeros(1, 64)}, tmp_path / "weights.pt")
    done = dpaudit(
        "run", tmp_path / "weights.pt", "--recipe", recipe(tmp_path, HUGE), "--out", tmp_path / "report", "--seed", "1",
        "--trials", "20", "--workers", "1",
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert "Expected gradient_norm=1e-05 to be at least " in done.stderr
