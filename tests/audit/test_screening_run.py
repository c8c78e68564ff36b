"""`dpaudit verify --screen` as users meet it: tables, claims files, statuses, mistakes."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpaudit.audit.cli import app

HEADER = "id,noise_multiplier,sampling_prob,steps,delta,epsilon"
TOML = """
[[claim]]
id = "file"
epsilon = 9.0
delta = 1e-5
steps = 1000
sampling_prob = 0.01
mechanism = {name = "gaussian", noise_multiplier = 1.0}
[[claim]]
id = "laplace"
epsilon = 9.0
delta = 0
mechanism = {name = "laplace", scale = 1.0, clip = 1.0, clip_norm = 1.0}
"""
GOOD, BAD, NEAR = "good,1.0,0.01,1000,1e-5,9.0", "bad,1.0,0.01,1000,1e-5,0.1", "near,1.0,0.01,1000,1e-5,2.0"


def screened(folder: Path, *rows: str, options: tuple[str, ...] = (), header: str = HEADER) -> tuple[int, str, str]:
    (folder / "claims.csv").write_text("\n".join([header, *rows]) + "\n")
    command = ["verify", str(folder / "claims.csv"), "--screen", *options]
    done = CliRunner().invoke(app, command)
    return done.exit_code, done.stdout, done.stderr


def test_counts_and_ids_are_printed(tmp_path: Path) -> None:
    status, printed, _ = screened(tmp_path, GOOD, BAD, NEAR)
    lines = printed.splitlines()
    assert status == 3
    assert lines[0] == "3 claims: 1 certified, 1 refuted, 1 left"
    assert lines[2:] == ["refuted   bad", "left      near"]


def test_json_holds_tables_and_claims_files(tmp_path: Path) -> None:
    (tmp_path / "claims.toml").write_text(TOML)
    status, printed, _ = screened(tmp_path, GOOD, NEAR, options=("--json", "-", str(tmp_path / "claims.toml")))
    document = json.loads(printed)
    assert status == 0
    assert document["format"] == "dpaudit-screening/1"
    assert document["counts"] == {"certified": 2, "refuted": 0, "left": 2}
    assert document["left"] == ["near", "laplace"]


def test_an_id_in_a_claims_file_keeps_its_last_nul(tmp_path: Path) -> None:
    (tmp_path / "claims.toml").write_text(
        TOML.replace('"file"', r'"file\u0000"').replace("epsilon = 9.0", "epsilon = 0.1")
    )
    _, printed, _ = screened(tmp_path, NEAR, options=("--json", "-", str(tmp_path / "claims.toml")))
    assert json.loads(printed)["refuted"][0] == "file\0"


def test_certified_may_be_required(tmp_path: Path) -> None:
    assert screened(tmp_path, GOOD, options=("--require", "certified"))[0] == 0
    assert screened(tmp_path, GOOD, NEAR, options=("--require", "certified"))[0] == 5


@pytest.mark.parametrize(
    ("header", "row", "message"),
    [
        ("id,epsilon", "a,1", "Expected the first line of"),
        (HEADER, "a,1.0,0.01", "to have 6 columns, not 3"),
        (HEADER, "a,1.0,high,10,1e-5,1", "Expected sampling_prob='high' in line 3 of"),
        (HEADER, "a,1.0,2.0,10,1e-5,1", "Expected sampling_prob=2 in [1e-300, 1]"),
        (HEADER, GOOD, "id appears twice"),
        (HEADER, GOOD.replace("good", "x" * 130_000), "Expected the id in line 3 of"),
        (HEADER, GOOD.replace("good", "a\0"), "Expected the id in line 3 of"),
        (HEADER, GOOD.replace("good", ""), "Expected the id in line 3 of"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, header: str, row: str, message: str) -> None:
    status, printed, told = screened(tmp_path, GOOD, row, header=header)
    assert (status, printed, told.count("\n")) == (2, "", 1)
    assert message in told


def test_options_of_the_exact_path_are_refused(tmp_path: Path) -> None:
    status, printed, told = screened(tmp_path, GOOD, options=("--rigorous",))
    assert status == 2
    assert not printed
    assert "Expected --screen without --rigorous." in told


def test_blank_lines_may_end_a_table_and_steps_have_an_end(tmp_path: Path) -> None:
    assert screened(tmp_path, GOOD, "", "") == screened(tmp_path, GOOD)
    assert screened(tmp_path, GOOD)[0] == 0
    status, _, told = screened(tmp_path, GOOD, "", BAD)
    assert (status, "line 3" in told) == (2, True)
    status, _, told = screened(tmp_path, GOOD.replace("1000", "1e13"))
    assert (status, "steps" in told) == (2, True)
