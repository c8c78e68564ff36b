"""`dpaudit verify` as a person and a pipeline meet it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from dpaudit.audit import claims_run
from dpaudit.audit.inputs.files import InputError

Command = Callable[..., subprocess.CompletedProcess[str]]
CLAIM = """
[[claim]]
id = "{id}"
epsilon = {epsilon}
delta = 1e-5
[claim.mechanism]
name = "gaussian"
noise_multiplier = 1.6666666666666667
"""


@pytest.fixture
def verify(dpaudit: Command, tmp_path: Path) -> Command:
    def call(*arguments: str, epsilons: tuple[float, ...] = (2.445, 2.0)) -> subprocess.CompletedProcess[str]:
        text = "".join(CLAIM.format(id=f"e{epsilon}", epsilon=epsilon) for epsilon in epsilons)
        (tmp_path / "claims.toml").write_text(text)
        return dpaudit("verify", "claims.toml", *arguments, folder=tmp_path)

    return call


def test_a_refuted_claim_exits_3_and_shows_its_witness(verify: Command) -> None:
    done = verify()
    assert done.returncode == 3
    assert "certified e2.445" in done.stdout
    assert "refuted   e2.0" in done.stdout
    assert "witness" in done.stdout
    assert done.stderr == ""


def test_what_an_attack_finds_is_rounded_up(tmp_path: Path, dpaudit: Command) -> None:
    """5.52% stood for 5.52021, which is no bound."""
    text = CLAIM.format(id="a", epsilon=4.0).replace("1.6666666666666667", "1.37")
    (tmp_path / "c.toml").write_text(text)
    found = json.loads(dpaudit("verify", "c.toml", "--json", "-", folder=tmp_path).stdout)["claims"][0]
    text = " ".join(dpaudit("verify", "c.toml", folder=tmp_path).stdout.split())
    assert 0.0552 < found["tpr_at_fpr"]["0.01"] < 0.0553
    assert "finds at most 5.53% of members (mu 0.731 down" in text


def test_only_one_claim_is_checked_on_request(verify: Command) -> None:
    done = verify("--only", "e2.445", "--require", "certified")
    assert done.returncode == 0
    assert "e2.0" not in done.stdout


def test_the_others_may_be_wrong_where_only_one_is_asked_for(verify: Command) -> None:
    assert verify("--only", "e2.445", epsilons=(2.445, -1.0)).returncode == 0
    assert verify(epsilons=(2.445, -1.0)).returncode == 2
    assert verify("--only", "e-1.0", epsilons=(2.445, -1.0)).returncode == 2


def test_claims_come_from_a_pipe(tmp_path: Path) -> None:
    claims, command = CLAIM.format(id="piped", epsilon=2.0), [sys.executable, "-m", "dpaudit", "verify", "-"]
    options = ["--out", "page", "--format", "sarif"]
    done = subprocess.run([*command, *options], input=claims, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 3
    assert json.loads(done.stdout)["runs"][0]["results"][0]["ruleId"] == "refuted"
    (page,) = json.loads((tmp_path / "page" / "verdicts.json").read_text())["claims"]
    assert page["id"] == "piped"
    assert "dpaudit verify - --only piped" in (tmp_path / "page" / "verdicts.html").read_text()
    broken = subprocess.run(command, input=b"\xff\xfe", capture_output=True, cwd=tmp_path, check=False)
    assert broken.returncode == 2
    assert broken.stderr.startswith(b"dpaudit: -: not TOML: ")


def test_a_table_of_claims_is_told_where_it_is_read(tmp_path: Path, dpaudit: Command) -> None:
    (tmp_path / "table.csv").write_text("epsilon,delta\n1,1e-5\n")
    done = dpaudit("verify", "table.csv", folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr.rstrip().endswith("dpaudit verify --screen reads tables of claims")


def test_require_certified_exits_5_where_nothing_is_refuted(tmp_path: Path, dpaudit: Command) -> None:
    text = CLAIM.format(id="shuffled", epsilon=9.0) + ""
    text = text.replace("[claim.mechanism]", 'sampling = {kind = "shuffled", prob = 0.1}\n[claim.mechanism]')
    (tmp_path / "other.toml").write_text(text)
    done = dpaudit("verify", "other.toml", "--require", "certified", folder=tmp_path)
    assert done.returncode == 5
    assert "undecided" in done.stdout


def test_json_stands_alone_on_stdout(verify: Command) -> None:
    document = json.loads(verify("--json", "-").stdout)
    assert document["format"] == "dpaudit-verdicts/1"
    assert [claim["verdict"] for claim in document["claims"]] == ["certified", "refuted"]


def test_junit_counts_the_refuted_claim_as_a_failure(verify: Command) -> None:
    suite = ElementTree.fromstring(verify("--format", "junit").stdout)
    assert [suite.get(key) for key in ("tests", "failures", "errors", "skipped")] == ["2", "1", "0", "0"]
    seconds = [float(case.get("time", "nan")) for case in suite]
    assert abs(float(suite.get("time", "nan")) - sum(seconds)) < 0.002


def test_sarif_lists_what_is_not_certified(verify: Command) -> None:
    document = json.loads(verify("--format", "sarif").stdout)
    (result,) = document["runs"][0]["results"]
    assert result["level"] == "error"
    (location,) = result["locations"]
    place = location["physicalLocation"]
    assert place["artifactLocation"] == {"uri": "claims.toml"}
    assert place["region"]["startLine"] == (CLAIM * 2).splitlines().index('id = "{id}"', 3) + 1


def test_sarif_has_the_lines_of_claims_that_come_through_a_pipe(dpaudit: Command) -> None:
    """A pipe was read again for its lines, of which it had none; one with a name was waited for without end."""
    text = CLAIM.format(id="a", epsilon=2.445) + CLAIM.format(id="b", epsilon=2.0)
    reader, writer = os.pipe()
    with open(reader), open(writer, "w") as pipe:
        pipe.write(text)
        pipe.close()
        done = dpaudit("verify", f"/dev/fd/{reader}", "--format", "sarif")
    (result,) = json.loads(done.stdout)["runs"][0]["results"]
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"] == {"uri": f"/dev/fd/{reader}"}
    assert place["region"]["startLine"] == text.splitlines().index('id = "b"') + 1


@pytest.mark.parametrize(
    "words",
    [
        ("--out", "page"),
        ("--certificates", "page"),
    ],
)
def test_what_cannot_be_written_hides_no_verdict(words: tuple[str, ...], tmp_path: Path, verify: Command) -> None:
    for name in ("verdicts.html", "e2%2E445.json", "e2.445.json", "e2.0.json"):
        (tmp_path / "page" / name).mkdir(parents=True)
    for epsilons, status, verdict in (((2.445, 2.0), 3, "refuted"), ((2.445,), 2, "certified")):
        done = verify(*words, epsilons=epsilons)
        assert (done.returncode, done.stderr.count("\n")) == (status, 1), done.stderr
        assert words[-1] in done.stderr
        assert "tmp" not in done.stderr.replace(str(tmp_path), "")
        assert verdict in done.stdout


def test_a_badge_counts_what_is_refuted_else_what_is_certified(verify: Command) -> None:
    for epsilons, words in (((2.445, 2.0), "1 refuted"), ((2.445, 2.5), "2 certified")):
        image = ElementTree.fromstring(verify("--format", "badge", epsilons=epsilons).stdout)
        assert image.tag == "{http://www.w3.org/2000/svg}svg"
        assert [node.text for node in image.iter("{http://www.w3.org/2000/svg}text")] == ["privacy claims", words]


def test_an_id_of_two_files_is_found_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = 0

    class Name(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

    files = {"a": range(1000), "b": range(999, 1999)}
    monkeypatch.setattr(claims_run, "claims_text", str)
    monkeypatch.setattr(
        claims_run, "claims_of_text", lambda text, path, only: [SimpleNamespace(id=Name(i)) for i in files[text]]
    )
    with pytest.raises(InputError, match="claim '999': id appears in two files"):
        claims_run._load([Path(name) for name in files], None)
    assert compared < 10_000


def test_bad_claims_are_one_line_and_exit_2(verify: Command) -> None:
    done = verify(epsilons=(-1.0,))
    assert done.returncode == 2
    assert "epsilon=-1.0" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert verify("--only", "nothing").returncode == 2
