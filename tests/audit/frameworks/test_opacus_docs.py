"""The example and the page on Opacus: what they show is run."""

import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dpaudit import audit as room
from dpaudit import check
from dpaudit.audit import audit_opacus, load_bundle
from dpaudit.audit.attacks import control, pilot

ROOT = Path(__file__).parents[3]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "opacus.md").read_text(), re.DOTALL)
pytestmark = [
    pytest.mark.filterwarnings("ignore:Secure RNG turned off:UserWarning"),
    pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning"),
]


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import opacus_digits  # type: ignore[import-not-found]

    monkeypatch.setitem(sys.modules, "opacus_digits", opacus_digits)
    return opacus_digits  # type: ignore[no-any-return]


def block(words: str) -> str:
    """The one block of the page that has these words."""
    (found,) = [text for text in BLOCKS if words in text]
    return str(found)


def test_the_pages_three_lines_and_its_claim(
    example: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names = ("module", "optimizer", "privacy_engine", "data_loader")
    parts = dict(zip(names, example.train_private(example.digits(), 1), strict=True))
    exec(block("bundle_from_opacus"), dict(parts))
    assert "covered: Poisson batches of rate 0.5" in capsys.readouterr().out
    recipe = load_bundle("model.pt").recipe
    assert recipe.architecture.kwargs == {"hidden": [32, 16]}
    assert (recipe.steps, recipe.optimizer.name, len(recipe.load_dataset().y)) == (8, "adam", example.RECORDS)
    exec(block("claim_from_opacus"), dict(parts))
    assert capsys.readouterr().out.startswith("certified ")


@pytest.mark.slow
def test_shuffled_batches_with_the_epsilon_of_poisson_ones_are_refuted(example: Any, tmp_path: Path) -> None:
    parts = example.train_private(example.digits(), 1, poisson_sampling=False)
    export = room.bundle_from_opacus(tmp_path / "m.pt", *parts, delta=example.DELTA)
    assert export.claim.phases[0].sampling_kind == "shuffled"
    assert check(export.claim).verdict == "refuted"


def test_the_pages_events(capsys: pytest.CaptureFixture[str]) -> None:
    exec(block("GaussianDpEvent"), {})
    assert capsys.readouterr().out == "certified\n"


@pytest.mark.slow
def test_the_pages_audits(
    example: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    dpaudit: Callable[..., Any],
) -> None:
    """With fewer steps and models than a user would take."""
    monkeypatch.setattr(pilot, "PAIRS", 2)
    monkeypatch.setattr(control, "NO_NOISE_MODELS", 10)
    monkeypatch.setattr(example, "EPOCHS", 1)
    monkeypatch.setattr(room, "audit_opacus", partial(audit_opacus, trials=10, workers=1), raising=False)
    exec(block("audit_opacus"), {"__name__": "page"})
    assert capsys.readouterr().out in ("not_refuted []\n", "inconclusive []\n")
    path = tmp_path / "model.pt"
    room.bundle_from_opacus(path, *example.train_private(example.digits(), 1), delta=1e-5)
    script = (ROOT / "examples/opacus_digits.py").read_text()
    assert "EPOCHS, BATCH, NOISE, CLIP, DELTA = 200, 4, " in script
    (tmp_path / "opacus_digits.py").write_text(script.replace(" = 200, 4, ", " = 200, 1, "))
    options = ("--trainer", "opacus_digits.py:train", "--trials", "10", "--seed", "1", "--workers", "1")
    done = dpaudit("run", path, *options, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "positive control:" in done.stdout
