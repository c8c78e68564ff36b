"""The published votes: refusals without the file, and what is in it where it is at hand."""

import os
import runpy
from pathlib import Path

import numpy as np
import pytest

from dpaudit.audit.inputs.files import InputError
from dpaudit.audit.inputs.votes import FILE, FOLDER, NAMES, load_votes

PROJECT = Path(__file__).parents[2]
ROOT = os.environ.get("DPAUDIT_DATA")
needs_votes = pytest.mark.skipif(
    not (ROOT and Path(ROOT, FOLDER, FILE).exists()), reason=f"{FOLDER}/{FILE} is not under DPAUDIT_DATA={ROOT}"
)


def test_without_the_file_the_folder_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("DPAUDIT_DATA", raising=False)
    with pytest.raises(InputError, match="DPAUDIT_DATA to name the folder"):
        load_votes("mnist")
    monkeypatch.setenv("DPAUDIT_DATA", str(tmp_path))
    with pytest.raises(InputError, match="does not exist"):
        load_votes("mnist")


def test_another_file_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    np.savez(tmp_path / FOLDER / FILE, mnist_250_teachers=np.full((9000, 10), 25, np.uint8))
    monkeypatch.setenv("DPAUDIT_DATA", str(tmp_path))
    with pytest.raises(InputError, match="SHA-256"):
        load_votes("mnist")


def test_an_unknown_set_is_refused() -> None:
    with pytest.raises(InputError, match="votes='glyph' to be one of mnist, svhn, adult"):
        load_votes("glyph")  # type: ignore[arg-type]


@needs_votes
@pytest.mark.parametrize("name", NAMES)
def test_every_query_has_250_votes(name: str) -> None:
    votes = load_votes(name, labels=False)  # type: ignore[arg-type]
    assert votes.counts.shape == {"mnist": (9000, 10), "svhn": (26032, 10), "adult": (16281, 2)}[name]
    assert set(votes.counts.sum(axis=1).tolist()) == {250}
    assert (votes.labels, votes.teachers) == (None, 250)


@needs_votes
@pytest.mark.parametrize(("name", "accuracy"), [("mnist", 0.9437), ("adult", 0.8440)])
def test_plurality_agrees_with_the_labels(name: str, accuracy: float) -> None:
    """Labels in another order would agree by chance: 10% on MNIST, 64% on Adult."""
    if not Path(ROOT or "", name).exists():
        pytest.skip(f"the labels of {name} are not under DPAUDIT_DATA={ROOT}")
    votes = load_votes(name)  # type: ignore[arg-type]
    assert votes.labels is not None
    assert np.mean(votes.counts.argmax(axis=1) == votes.labels) == pytest.approx(accuracy, abs=1e-4)


@needs_votes
@pytest.mark.skipif(not Path(ROOT or "", "adult").exists(), reason="the labels of adult are not at hand")
def test_the_documented_rows_are_what_the_example_prints(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(PROJECT / "examples" / "pate.py"))["published_votes"]("adult", 1)
    printed = capsys.readouterr().out.splitlines()
    documented = (PROJECT / "docs" / "pate.md").read_text().splitlines()
    assert len(printed) == 2
    assert set(printed) <= set(documented)
