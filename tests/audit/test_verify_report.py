"""`dpaudit verify --out`: the report's files, its commands and its snippet, which are run here."""

import json
import math
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from dpaudit.audit import claims_run
from dpaudit.audit.claims_run import run_claims
from dpaudit.mechanisms import GammaPLRV, GammaPLRVIID, Gaussian, GeneralizedGaussian, Laplace, Product
from dpaudit.reports import ClaimEntry
from dpaudit.reports.rendering import schema
from dpaudit.reports.verdict_page import snippet
from dpaudit.verify.accountants import table as accountant_table
from dpaudit.verify.claim_files import claim_to_dict, parse_claims
from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.results import Verdict
from dpaudit.verify.samplers import WithoutReplacement

Command = Callable[..., subprocess.CompletedProcess[str]]
CLAIMS = """
[[claim]]
id = "two releases, one of them sampled"
epsilon = 1.0
delta = 1e-5
[[claim.phase]]
steps = 1
[claim.phase.mechanism]
name = "gaussian"
noise_multiplier = 2.0
[[claim.phase]]
steps = 3
sampling_prob = 0.1
[claim.phase.mechanism]
name = "gaussian"
noise_multiplier = 1.5

[[claim]]
id = "held"
epsilon = 2.445
delta = 1e-5
source = "a <b>bold</b> claim"
[claim.mechanism]
name = "gaussian"
noise_multiplier = 1.6666666666666667

[[claim]]
id = "few coordinates"
epsilon = 2.0
delta = 1e-5
accountant = "lap2-theorem-iii.7"
steps = 4
[claim.mechanism]
name = "laplace"
scale = 2.0
dimension = 9
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, dpaudit: Command) -> Path:
    """A folder with some claims.toml and its report in out/."""
    folder = tmp_path_factory.mktemp("verify")
    (folder / "some claims.toml").write_text(CLAIMS)
    done = dpaudit("verify", "some claims.toml", "--out", "out", folder=folder)
    assert done.returncode == 3, done.stderr
    assert done.stderr == ""
    page = f"report: {Path('out') / 'verdicts.html'}\n"
    assert done.stdout == dpaudit("verify", "some claims.toml", folder=folder).stdout + page
    return folder


def claims_of(report: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((report / "out" / "verdicts.json").read_text())["claims"]
    return found


def quiet(what: str, total: int) -> Callable[[int], None]:
    return lambda done: None


@pytest.mark.slow
def test_the_report_holds_page_and_verdicts(report: Path) -> None:
    assert {path.name for path in (report / "out").iterdir()} == {"verdicts.html", "verdicts.json"}
    document = json.loads((report / "out" / "verdicts.json").read_text())
    assert next(Draft202012Validator(schema("verdicts")).iter_errors(document), None) is None
    assert document["format"] == "dpaudit-verdicts/1"
    assert [claim["verdict"] for claim in document["claims"]] == ["refuted", "certified", "refuted"]
    page = (report / "out" / "verdicts.html").read_text()
    assert "2 of 3 claims are refuted" in page
    assert "a &lt;b&gt;bold&lt;/b&gt; claim" in page


def test_the_claims_in_the_report_are_those_of_the_file(report: Path) -> None:
    written = parse_claims({"claim": [claim["claim"] for claim in claims_of(report)]}, source="report")
    assert written == parse_claims(tomllib.loads(CLAIMS), source="file")


def test_every_command_checks_its_claim_alone(report: Path, dpaudit: Command) -> None:
    for claim in claims_of(report)[:2]:
        words = shlex.split(claim["command"])
        assert words[0] == "dpaudit"
        done = dpaudit(*words[1:], folder=report)
        assert done.returncode == (3 if claim["verdict"] == "refuted" else 0)
        assert done.stdout.startswith(f"{claim['verdict']:<9} {claim['id']}:")


def test_a_file_named_like_an_option_is_none_in_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("-s.toml").write_text(CLAIMS.split("[[claim]]")[2].join(["[[claim]]", ""]))
    run_claims([Path("-s.toml")], out=Path("out"), stage=quiet, show=lambda text: None)
    assert [claim["command"] for claim in claims_of(tmp_path)] == ["dpaudit verify ./-s.toml --only held"]


def test_accountants_stand_beside_every_claim(report: Path) -> None:
    for claim in claims_of(report):
        rows = {row["accountant"]: row for row in claim["accountants"]}
        assert {"PLD", "RDP", "naive composition", "advanced composition"} <= set(rows)
        assert all(row["epsilon_lower"] == claim["epsilon_lower"] for row in rows.values())
        assert not [row for row in rows.values() if row["valid"] and row["contradicted"]]
        assert all(row["epsilon"] >= claim["epsilon_upper"] * (1 - 1e-6) for row in rows.values() if row["valid"])
    assert claims_of(report)[2]["accountants"][0]["accountant"] == "published: lap2-theorem-iii.7"


def test_the_snippet_recomputes_the_finding(report: Path, tmp_path: Path) -> None:
    """Each in a namespace of its own, in one process: to start it takes longer than they do."""
    claims = claims_of(report)
    for i, claim in enumerate(claims):
        text = snippet(ClaimEntry.from_dict(claim))
        assert text is not None
        (tmp_path / f"{i}.py").write_text(text)
    names = [f"{i}.py" for i in range(len(claims))]
    code = "import runpy, sys\nfor name in sys.argv[1:]: runpy.run_path(name, run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", code, *names], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stderr == ""
    printed = np.array(done.stdout.split(), dtype=float).reshape(-1, 2)
    for (delta, epsilon), claim in zip(printed, claims, strict=True):
        assert math.isclose(delta, claim["delta_lower"], rel_tol=1e-6)
        assert math.isclose(epsilon, claim["epsilon_lower"], rel_tol=1e-6)
        assert (delta > claim["delta_claimed"]) == (claim["verdict"] == "refuted")


def test_the_report_is_rendered_again_from_its_json(report: Path, tmp_path: Path, dpaudit: Command) -> None:
    done = dpaudit("report", "out/verdicts.json", "--out", str(tmp_path / "again"), folder=report)
    assert (done.returncode, done.stdout.strip()) == (0, str(tmp_path / "again" / "verdicts.html"))
    for name in ("verdicts.html", "verdicts.json"):
        assert (tmp_path / "again" / name).read_bytes() == (report / "out" / name).read_bytes()


def test_json_on_stdout_stays_alone_and_as_it_was(report: Path, tmp_path: Path, dpaudit: Command) -> None:
    done = dpaudit(
        "verify", "some claims.toml", "--only", "held", "--json", "-", "--out", str(tmp_path / "o"), folder=report
    )
    [claim] = json.loads(done.stdout)["claims"]
    told = {"gdp_mu", "gdp_regret", "tpr_at_fpr"}
    assert set(claim) == {field.name for field in fields(Verdict) if field.repr} | told
    assert (tmp_path / "o" / "verdicts.html").exists()


def test_a_folder_that_cannot_be_made_is_one_line_before_any_work(report: Path, dpaudit: Command) -> None:
    done = dpaudit("verify", "some claims.toml", "--out", "some claims.toml/out", folder=report)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "claim",
    [
        Claim.single(
            Laplace(2, clip_norm=math.inf, dimension=3), epsilon=1, delta=0, steps=7, sampling_prob=0.25, id="a"
        ),
        Claim.single(GammaPLRV(3.0, 0.1), epsilon=0.0, delta=0.1, id="'\"\\ <b>", adjacency="replace-one"),
        Claim(
            1.0, 1e-5, (Phase(Product(2.0, dimension=9)), Phase(GammaPLRVIID(9.0, 1e-3), 2, 0.5, "shuffled")), id="b"
        ),
        Claim(1.0, 1e-5, (Phase(GeneralizedGaussian(1.5, 2.0), 3, 1.0, "none"),), id="c", accountant="gg-b.2"),
        Claim(1.0, 1e-5, (Phase(Gaussian(2.0), sampler=WithoutReplacement(0.5, 3)),), id="d", source="x"),
    ],
    ids=lambda claim: claim.phases[-1].sampling_kind,
)
def test_a_claim_survives_the_way_into_json_and_back(claim: Claim) -> None:
    table = json.loads(json.dumps(claim_to_dict(claim), allow_nan=False))
    assert parse_claims({"claim": [table]}, source="report") == [claim]


def test_equal_claims_are_compared_once_and_only_while_there_is_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = CLAIMS.split("[[claim]]")[2]
    text = "".join("[[claim]]" + one.replace('"held"', f'"{i}"').replace("2.445", str(3 + i)) for i in range(3))
    (tmp_path / "claims.toml").write_text(text)
    asked: list[str] = []
    genuine = accountant_table.cross_check

    def counted(claim: Claim, **options: Any) -> Any:
        asked.append(claim.id)
        return genuine(claim, **options)

    monkeypatch.setattr(accountant_table, "cross_check", counted)
    assert run_claims([tmp_path / "claims.toml"], out=tmp_path / "a", stage=quiet, show=lambda text: None) == 0
    assert asked == ["0"]
    found = json.loads((tmp_path / "a" / "verdicts.json").read_text())["claims"]
    assert found[0]["accountants"] == found[2]["accountants"]
    monkeypatch.setattr(claims_run, "COMPARING_SECONDS", -1.0)
    run_claims([tmp_path / "claims.toml"], out=tmp_path / "b", stage=quiet, show=lambda text: None)
    assert asked == ["0"]
    assert "Not compared in this run" in (tmp_path / "b" / "verdicts.html").read_text()


@pytest.mark.parametrize("where", ["check", "cross_check"])
def test_an_interruption_keeps_what_was_done(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "claims.toml").write_text("".join("[[claim]]" + part for part in CLAIMS.split("[[claim]]")[2:]))
    calls = []
    room = claims_run if where == "check" else accountant_table
    genuine = getattr(room, where)

    def interrupted(claim: Claim, **options: Any) -> Any:
        calls.append(claim.id)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return genuine(claim, **options)

    monkeypatch.setattr(room, where, interrupted)
    shown: list[str] = []  # a text for each verdict, and the page's path
    warned: list[str] = []
    status = run_claims(
        [tmp_path / "claims.toml"], out=tmp_path / "out", stage=quiet, show=shown.append, warn=warned.append
    )
    assert warned == [f"dpaudit: interrupted when {1 if where == 'check' else 2} of 2 claims had been checked"]
    found = json.loads((tmp_path / "out" / "verdicts.json").read_text())["claims"]
    assert len(shown) - 1 == len(found) == (1 if where == "check" else 2)
    # a refuted claim beats the interruption
    assert status == (4 if where == "check" else 3)
    assert [claim["accountants"] is None for claim in found] == ([True] if where == "check" else [True, False])
    assert (tmp_path / "out" / "verdicts.html").exists()
