"""Which of two reports has less evidence: by what each could prove, and what one of them has proven."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from dpaudit import reports
from dpaudit._files import write_whole
from dpaudit.audit.commands.run import _command, _lines
from dpaudit.audit.delivery import deliver, has_less_evidence
from dpaudit.mechanisms import Gaussian
from dpaudit.reports import load_result, write_again
from dpaudit.verify.bounds import JointTest, Tradeoff
from dpaudit.verify.checking import check
from dpaudit.verify.claims import Claim
from dpaudit.verify.results import AttackResult, AuditResult, Control

CONTROL = Control("clipbkd", "the built-in training", 0.5, 50, 50, 20, 1.0, True, 50, True, 1, 1.0)


def best_possible(models: int, look: int) -> float:
    """What perfect scores of so many models prove at the level of a look, by the test that audits use."""
    curve = Tradeoff.of_points([1.0], [1e-5])
    level = 1.0 - 0.05 * 6.0 / (np.pi * look) ** 2
    return JointTest(np.ones(models), np.zeros(models), curve, level, 1).epsilon_lower(1e-5)


def attack(name: str = "clipbkd", trials: int = 100, best: float | None = 3.0, spent: float = 0.05) -> AttackResult:
    return AttackResult(
        name=name, epsilon_lower=0.4, curve_violation=None, arms={}, confidence_spent=spent, auc=0.6, tpr_at_fpr={},
        trials=trials, best_possible_epsilon=best,
    )  # fmt: skip


def result(*attacks: AttackResult, **changes: Any) -> AuditResult:
    verdict = check(Claim.single(Gaussian(5.0, dimension=1), epsilon=1.0, delta=1e-5))
    made = AuditResult(
        model={"sha256": "a"}, claim={"epsilon": 1.0}, verdict="not_refuted", refuted_by=[], epsilon_lower=0.4,
        confidence=0.95, epsilon_claimed=1.0, claim_check=verdict, attacks=list(attacks), seed=1, versions={},
        seconds=1.0, control=CONTROL,
    )  # fmt: skip
    return replace(made, **changes)


def test_more_models_at_a_later_look_can_prove_less() -> None:
    first, few, many = (attack(trials=m, best=best_possible(m, look)) for m, look in ((100, 1), (110, 2), (400, 2)))
    assert few.best_possible_epsilon < first.best_possible_epsilon < many.best_possible_epsilon  # type: ignore[operator]
    assert has_less_evidence(result(few), result(first))
    assert not has_less_evidence(result(many), result(first))
    assert not has_less_evidence(result(first), result(few))


def test_an_interruption_ends_no_report_that_is_being_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refuted claim ended with exit status 4 and without a report."""
    draw = reports.write_report

    def interrupted(*arguments: Any) -> Path:
        signal.raise_signal(signal.SIGINT)
        return draw(*arguments)

    monkeypatch.setattr(reports, "write_report", interrupted)
    shown: list[str] = []
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite in the background of a shell has none
    try:
        deliver(result(attack()), tmp_path, None, ["found"], show=shown.append, warn=shown.append)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert (tmp_path / "report.html").exists()
    assert shown == ["found", f"report: {tmp_path / 'report.html'}"]


def test_a_report_is_written_before_anything_is_told(tmp_path: Path) -> None:
    """Whoever reads what is told may not read on: a command then waits, and may be ended."""

    def waits(line: str) -> None:
        assert (tmp_path / "report.html").exists()
        raise KeyboardInterrupt

    ready: list[bool] = []
    with pytest.raises(KeyboardInterrupt):
        deliver(result(attack()), tmp_path, None, ["found"], show=waits, warn=waits, written=lambda: ready.append(True))
    assert ready == [True]


def test_no_refutation_is_filed_below_a_silence() -> None:
    silent, other = result(attack("clipbkd"), attack("white-box")), attack("history", best=1.0)
    refuted = result(other, verdict="refuted", refuted_by=["history:epsilon_lower"])
    assert not has_less_evidence(refuted, silent)
    assert has_less_evidence(silent, refuted)
    assert has_less_evidence(result(other), silent)


def test_a_report_on_something_else_is_set_aside(tmp_path: Path) -> None:
    tested = replace(attack(), details={"p_value": 1e-3})
    first = result(tested, verdict="refuted", refuted_by=["clipbkd:p_value"])
    other = result(attack(), model={"sha256": "b"})
    told: list[str] = []
    for found in (first, other):
        deliver(found, tmp_path, None, [], show=told.append, warn=told.append)
    (tmp_path / "report.sha256").write_text("of the second")
    of_two = replace(first, claim={"epsilon": 2.0}, epsilon_claimed=2.0, claim_check=None)
    deliver(of_two, tmp_path, None, [], show=told.append, warn=told.append)
    verdicts = [
        load_result(folder / "result.json").verdict for folder in (tmp_path, tmp_path / "run-2", tmp_path / "run-3")
    ]
    assert verdicts == ["refuted", "refuted", "not_refuted"]
    assert (tmp_path / "run-3" / "report.sha256").read_text() == "of the second"
    assert not (tmp_path / "report.sha256").exists()
    assert [line for line in told if "it is now in" in line] == [
        f"the report in {tmp_path} was of another model, claim or loop; it is now in {tmp_path / name}"
        for name in ("run-2", "run-3")
    ]
    deliver(first, tmp_path, None, [], show=told.append, warn=told.append)
    page, before = tmp_path / "run-2" / "report.html", (tmp_path / "result.json").read_bytes()
    with pytest.raises(ValueError, match="of another result"):
        write_again(tmp_path / "run-3" / "result.json", tmp_path)
    assert (tmp_path / "result.json").read_bytes() == before
    assert write_again(tmp_path / "run-2" / "result.json", tmp_path / "run-2") == page


def test_the_seed_stands_among_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["dpaudit", "run", "--trials", "9", "--", "-s.pt"])
    assert _command(3) == "dpaudit run --trials 9 --seed 3 -- -s.pt"


def test_a_bound_on_the_command_line_is_rounded_down() -> None:
    exact = replace(attack(), epsilon_lower=0.71875)
    lines = _lines(result(exact, replace(exact, epsilon_lower=1.0000001)))
    found = [line.split(",")[0] for line in lines if line.startswith("clipbkd: ")]
    assert found == ["clipbkd: epsilon >= 0.7187", "clipbkd: epsilon >= 1.0000001"]


LATER: dict[str, tuple[AuditResult, AuditResult, bool]] = {
    "the same": (result(attack()), result(attack()), False),
    "another attack besides": (result(attack(), attack("lira")), result(attack()), False),
    "an attack less": (result(attack()), result(attack(), attack("lira")), True),
    "fewer models": (result(attack(trials=90, best=None)), result(attack(best=None)), True),
    "less error probability": (result(attack(best=None, spent=0.02)), result(attack(best=None)), True),
    "a refutation is missing": (result(attack(best=9.0)), result(attack(), refuted_by=["clipbkd:epsilon_lower"]), True),
    "a refutation is new": (result(attack(), refuted_by=["claim-check"], control=None), result(attack()), False),
    "no control any more": (result(attack(), control=None), result(attack()), True),
    "of another model": (result(attack(trials=1, best=0.1)), result(attack(), model={"sha256": "b"}), False),
    "of another claim": (result(attack(trials=1, best=0.1)), result(attack(), claim={"epsilon": 2.0}), False),
}  # fmt: skip


@pytest.mark.parametrize("case", LATER)
def test_a_later_report(case: str) -> None:
    later, before, less = LATER[case]
    assert has_less_evidence(later, before) is less


def test_what_was_proven_of_another_loop_is_no_evidence_on_this_one() -> None:
    faulty = result(
        attack(), refuted_by=["clipbkd:curve_violation"], reproduce={"trainer": "loop.py:train (SHA-256 a)"}
    )
    repaired = result(attack(), reproduce={"trainer": "loop.py:train (SHA-256 b)"})
    assert not has_less_evidence(repaired, faulty)
    assert has_less_evidence(replace(repaired, reproduce=faulty.reproduce), faulty)


def test_a_pipe_is_written_to_and_stays_one(tmp_path: Path) -> None:
    """Replaced, as /dev/stdout was where a user may, it was a file that nobody reads."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(pipe.read_bytes)
        write_whole({pipe: b"what was found"})
        assert reader.result(10) == b"what was found"
    assert pipe.is_fifo()
    write_whole({"/dev/null": b"nothing"})
    assert Path("/dev/null").is_char_device()


def test_what_a_killed_command_left_behind_is_in_nobodys_way(tmp_path: Path) -> None:
    """In a container every command has the same process id, and a name of its temporary file was that of the last."""
    target = tmp_path / "model.pt"
    (tmp_path / f".model.pt.{os.getpid()}.tmp").touch()
    write_whole({target: b"trained for hours"})
    assert target.read_bytes() == b"trained for hours"


def test_a_name_may_be_as_long_as_names_can_be(tmp_path: Path) -> None:
    longest = tmp_path / ("n" * os.pathconf(tmp_path, "PC_NAME_MAX"))
    write_whole({longest: b"what was found"})
    assert [path.name for path in tmp_path.iterdir()] == [longest.name]


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="there is no memory to write files into")
def test_files_in_shared_memory_are_written_whole_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """It lies below /dev, and is no device: what was there was lost where it was full."""

    def disk_full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with TemporaryDirectory(dir="/dev/shm") as folder:
        target = Path(folder) / "result.json"
        target.write_bytes(b"before")
        monkeypatch.setattr(os, "fsync", disk_full)
        with pytest.raises(OSError, match="No space left"):
            write_whole({target: b"after"})
        assert [path.read_bytes() for path in Path(folder).iterdir()] == [b"before"]
