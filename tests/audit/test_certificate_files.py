"""`dpaudit verify --rigorous --certificates`: files, names that lead nowhere else, what is missing and why."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flint")

from dpaudit.audit import certificate_files
from dpaudit.audit.claims_run import run_claims
from dpaudit.verify.rigorous import check_sampled_certificate as checker

CLAIM = """
[[claim]]
id = {id}
epsilon = {epsilon}
delta = 0.1
mechanism = {{name = "{name}", {parameters}}}
"""
HOSTILE = ["../out", "/etc/x", "..", ".hidden", "a\nb", "\u001b[31m", "x" * 200, "X" * 200, "é" * 200, "A", "a", "a b"]


def quiet(what: str, total: int) -> Any:
    return lambda done: None


def claims(folder: Path, *rows: str) -> Path:
    path = folder / "claims.toml"
    path.write_text("".join(rows))
    return path


def gaussian(name: str, epsilon: float) -> str:
    return CLAIM.format(id=json.dumps(name), epsilon=epsilon, name="gaussian", parameters="noise_multiplier = 1.0")


def test_every_decided_claim_has_a_certificate_that_is_accepted(tmp_path: Path) -> None:
    warned: list[str] = []
    cut = 'sampling = {kind = "truncated-poisson", prob = 0.1, max_batch = 400, records = 1000, steps = 5}\n'
    path = claims(tmp_path, gaussian("held", 3.0), gaussian("broken", 1.0), gaussian("p", 40.0) + cut)
    out = tmp_path / "made" / "here"
    status = run_claims([path], certificates=out, stage=quiet, show=lambda text: None, warn=warned.append)
    assert status == 3
    assert sorted(file.name for file in out.iterdir()) == ["broken.json", "held.json"]
    assert checker.main([str(file) for file in out.iterdir()]) == 0
    assert json.loads((out / "held.json").read_text())["claim"]["id"] == "held"
    assert warned[0].startswith("claim 'p' has no certificate: ")
    assert warned[1:] == [f"certificates of 2 of 3 decided claims are in {out}"]


def test_no_id_leads_out_of_the_folder(tmp_path: Path) -> None:
    path = claims(tmp_path, *(gaussian(name, 3.0) for name in HOSTILE))
    out = tmp_path / "deep" / "out"
    run_claims([path], certificates=out, stage=quiet, show=lambda text: None)
    files = list(out.iterdir())
    assert {json.loads(file.read_text())["claim"]["id"] for file in files} == set(HOSTILE)
    assert len({file.name.casefold() for file in files}) == len(HOSTILE)
    assert all(file.name.isprintable() and not file.name.startswith(".") for file in files)
    assert sorted(item.name for item in tmp_path.rglob("*") if item.parent != out) == ["claims.toml", "deep", "out"]


def test_an_interruption_keeps_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    genuine, calls = certificate_files.certificate, []

    def interrupted(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return genuine(*arguments)

    monkeypatch.setattr(certificate_files, "certificate", interrupted)
    path = claims(tmp_path, gaussian("one", 3.0), gaussian("two", 4.0))
    status = run_claims([path], certificates=tmp_path / "out", stage=quiet, show=lambda text: None)
    assert status == 4
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["one.json"]


def test_without_flint_it_is_one_line_and_exit_2(tmp_path: Path) -> None:
    path = claims(tmp_path, gaussian("held", 3.0))
    code = (
        "import sys; sys.modules['flint'] = None; from dpaudit.audit.cli import main;"
        f"sys.argv = ['dpaudit', 'verify', {str(path)!r}, '--rigorous']; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install python-flint" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""
