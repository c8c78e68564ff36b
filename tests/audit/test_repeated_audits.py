"""Audits that are repeated, cut short or cannot write: what the command says, keeps and returns."""

import errno
import json
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpaudit import reports
from dpaudit.audit.attacks import canary_game
from dpaudit.audit.attacks.base import Audit, operating_points
from dpaudit.audit.attacks.canary_game import CanaryGame
from dpaudit.audit.inputs.recipes import load_recipe
from dpaudit.audit.training_run import train_bundle
from dpaudit.audit.trials import local_engine
from dpaudit.audit.trials import store as store_module
from dpaudit.audit.trials.store import UNRECORDED, TrialStore, stored_seed
from dpaudit.reports import rendering
from dpaudit.verify.results import AttackResult

HEADLINE = Path(__file__).parents[2] / "examples" / "digits-headline.toml"
Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "m.pt"
    train_bundle(load_recipe(HEADLINE), path, seed=1, device="cpu", stage=lambda what, total: lambda done: None)
    return path


def quick_judgement(
    game: CanaryGame, audit: Audit, shares: Any, arms: Any, without: Any, inside: Any, *, look: int
) -> AttackResult:
    """Rates without a bound: what the scores prove is not at issue here, and takes seconds."""
    rates = operating_points(inside, without, confidence=0.95)
    return AttackResult(
        name=game.name, epsilon_lower=None, curve_violation=None, arms=arms.description, confidence_spent=0.05,
        trials=len(without), best_possible_epsilon=None, **rates,
    )  # fmt: skip


def quick_refuter(game: CanaryGame, audit: Audit, shares: Any, look: int = 1) -> Callable[[Any, Any], bool]:
    """For the positive control, which asks it twenty times."""
    return lambda without, inside: bool(np.median(inside) > np.median(without))


@pytest.fixture
def audit(model: Path, tmp_path: Path, dpaudit: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setattr(CanaryGame, "judge", quick_judgement)
    monkeypatch.setattr(CanaryGame, "refuter", quick_refuter)
    monkeypatch.setattr(canary_game, "models_needed", lambda *_, **__: (100, 50))  # the commands say how many
    monkeypatch.setattr(rendering, "_html", lambda result, digest: f"<html>{digest}</html>")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        done = dpaudit("run", model, "--attacks", "clipbkd", "--workers", "1", *arguments, folder=tmp_path)
        done.stderr = "".join(
            line for line in done.stderr.splitlines(True) if not line.startswith("clipbkd: the pilot")
        )
        return done

    return run


def result(folder: Path) -> dict[str, object]:
    return json.loads((folder / "m.audit" / "result.json").read_text())  # type: ignore[no-any-return]


def test_a_repeated_command_takes_up_its_seed_and_trains_nothing_again(
    audit: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = audit("--trials", "100")
    drawn = stored_seed(tmp_path / "m.audit" / "trials.sqlite")
    assert first.stderr == f"seed {drawn}\n"
    before = result(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(local_engine, "train_block", lambda *_: pytest.fail("trained again"))
        assert audit("--trials", "100").stderr == first.stderr
    assert result(tmp_path)["attacks"] == before["attacks"]
    assert audit("--trials", "100", "--fresh").stderr != first.stderr


def test_the_control_is_judged_at_the_level_of_the_audits_own_look(
    audit: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests that find half the noise at the first look alone."""
    looks: list[int] = []

    def refuter(game: CanaryGame, audit: Audit, shares: Any, look: int = 1) -> Callable[[Any, Any], bool]:
        looks.append(look)
        return lambda without, inside: look == 1

    def control(trials: int) -> tuple[int, bool]:
        done = audit("--trials", str(trials), "--seed", "1", "--json", "-")
        return looks[-1], json.loads(done.stdout)["control"]["found"]

    monkeypatch.setattr(CanaryGame, "refuter", refuter)
    assert [control(50), control(60), control(50), control(70)] == [(1, True), (2, False), (1, True), (3, False)]
    counted = TrialStore.look
    with monkeypatch.context() as patch:  # a look that could not be written down is a later one than was expected
        patch.setattr(TrialStore, "look", lambda *a, count=True: UNRECORDED if count else counted(*a, count=False))
        assert control(50) == (UNRECORDED, False)


def test_a_report_gives_way_to_no_report_with_less_evidence(audit: Command, tmp_path: Path) -> None:
    audit("--trials", "100", "--seed", "1")
    page = (tmp_path / "m.audit" / "report.html").read_bytes()
    done = audit("--trials", "50", "--seed", "2")
    assert "more evidence and stays; this one is in m.audit/run-2" in done.stderr
    assert (tmp_path / "m.audit" / "report.html").read_bytes() == page
    assert json.loads((tmp_path / "m.audit" / "run-2" / "result.json").read_text())["seed"] == 2
    assert audit("--trials", "150", "--seed", "3").stderr == ""
    assert result(tmp_path)["seed"] == 3


def test_a_damaged_store_is_one_line_and_exit_2(audit: Command, tmp_path: Path) -> None:
    audit("--trials", "50", "--seed", "1")
    db = sqlite3.connect(tmp_path / "m.audit" / "trials.sqlite")
    db.execute("UPDATE entries SET value = x'' WHERE key LIKE 'scores %'")
    db.commit()
    db.close()
    done = audit("--trials", "50")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].startswith("dpaudit: Expected m.audit/trials.sqlite to be as it was written")
    assert audit("--trials", "50", "--fresh").returncode == 0


def test_a_disk_that_fills_up_is_reported_with_what_was_measured(
    audit: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = store_module._check_or_create

    def small(db: sqlite3.Connection, path: Path | None) -> None:
        original(db, path)
        db.execute("PRAGMA max_page_count = 2")

    monkeypatch.setattr(store_module, "_check_or_create", small)
    done = audit("--trials", "1000", "--seed", "1")
    assert done.returncode == 4
    assert "dpaudit: cannot write to m.audit/trials.sqlite: database or disk is full" in done.stderr.splitlines()
    assert done.stdout.startswith("gave_up: ")
    assert result(tmp_path)["verdict"] == "gave_up"


def test_a_report_that_cannot_be_written_leaves_an_audit_that_gave_up_its_status(
    audit: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.EFBIG, "File too large", "report.html")

    monkeypatch.setattr(reports, "write_report", refused, raising=False)
    done = audit("--trials", "2000", "--seed", "2", "--budget", "0.1s")
    assert done.returncode == 4
    assert done.stdout.startswith("gave_up: ")
    assert done.stderr.splitlines()[-1] == "dpaudit: File too large: report.html"


def test_an_out_that_is_a_file_is_refused_before_the_work(audit: Command, tmp_path: Path) -> None:
    (tmp_path / "m.audit").write_text("mine")
    done = audit("--seed", "2")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "dpaudit: Expected --out=m.audit to be a folder, not a file.\n"
    assert (tmp_path / "m.audit").read_text() == "mine"
    (tmp_path / "m.audit").unlink()
    (tmp_path / "m.audit").symlink_to("nowhere")
    assert audit("--seed", "2").stderr == "dpaudit: Expected --out=m.audit to be a folder, not a link to none.\n"


def test_a_report_that_cannot_be_written_is_told_and_the_verdict_too(
    audit: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "report.html")

    monkeypatch.setattr(reports, "write_report", full, raising=False)
    done = audit("--trials", "100", "--seed", "2")
    assert done.returncode == 4
    assert done.stdout.startswith(("not_refuted: ", "inconclusive: "))
    assert done.stderr == "dpaudit: No space left on device: report.html\n"
