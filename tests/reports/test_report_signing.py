"""Signatures of a report: made and checked here, checked by standard tools, and refused where anything differs."""

import hashlib
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpaudit.audit.cli import app
from dpaudit.reports import load_result, page_beside
from dpaudit.reports.signing import sign_report, verify_report

pytest.importorskip("cryptography")
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)

Written = Callable[[str], Path]


def key_file(
    path: Path,
    form: PrivateFormat = PrivateFormat.PKCS8,
    encryption: KeySerializationEncryption | None = None,
) -> Path:
    key = Ed25519PrivateKey.generate()
    path.write_bytes(key.private_bytes(Encoding.PEM, form, encryption or NoEncryption()))
    return path


def nobody() -> bytes:
    raise AssertionError("asked for a passphrase")


@pytest.fixture
def report(written: Written, tmp_path: Path) -> tuple[Path, Path]:
    for name in ("report.html", "result.json"):
        shutil.copy(written("curve_only").with_name(name), tmp_path)
    return tmp_path / "report.html", tmp_path / "result.json"


@pytest.mark.parametrize("form", [PrivateFormat.PKCS8, PrivateFormat.OpenSSH])
def test_what_was_signed_is_verified(form: PrivateFormat, report: tuple[Path, Path], tmp_path: Path) -> None:
    by = sign_report(*report, key_file(tmp_path / "key", form), passphrase=nobody)
    assert verify_report(*report) == by
    assert verify_report(*report, key=tmp_path / "report.sha256.pub") == by


def test_a_page_that_only_mentions_the_hash_is_that_of_another(report: tuple[Path, Path], tmp_path: Path) -> None:
    page, data = report
    digest = hashlib.sha256(data.read_bytes()).hexdigest()
    page.write_text(page.read_text().replace(f"<code>{digest}</code>", "<code>0</code>") + f"claim {digest}")
    with pytest.raises(ValueError, match="to be the page of"):
        sign_report(page, data, key_file(tmp_path / "key"), passphrase=nobody)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda page, data: (page.replace("refuted", "accepted", 1), data), "to be the page of"),
        (lambda page, data: ("<!-- {hash} --><h1>certified</h1>", data), "to be the page of"),
        (lambda page, data: (page, '{"nonsense": true}'), "to follow result.schema.json"),
    ],
)
def test_only_what_is_rendered_of_a_result_is_signed(
    change: Callable[[str, str], tuple[str, str]], message: str, report: tuple[Path, Path], tmp_path: Path
) -> None:
    """The hash of the JSON stands in its place in each of these pages."""
    page, data = report
    before = hashlib.sha256(data.read_bytes()).hexdigest()
    text, content = change(page.read_text(), data.read_text())
    data.write_text(content)
    after = hashlib.sha256(data.read_bytes()).hexdigest()
    page.write_text(text.replace(before, after).replace("{hash}", f"SHA-256 <code>{after}</code>"))
    with pytest.raises(ValueError, match=message):
        sign_report(page, data, key_file(tmp_path / "key"), passphrase=nobody)
    assert not (tmp_path / "report.sha256").exists()


def test_a_page_of_verdicts_is_signed(tmp_path: Path) -> None:
    """As `verify --out` writes it."""
    claims = tmp_path / "claims.toml"
    claims.write_text(
        '[[claim]]\nid = "a"\nepsilon = 1\ndelta = 1e-5\nsteps = 1\n'
        'mechanism = {name = "laplace", scale = 1.0, clip_norm = 1.0, dimension = 1}\n'
    )
    runner, data = CliRunner(), tmp_path / "out" / "verdicts.json"
    assert runner.invoke(app, ["verify", str(claims), "--out", str(tmp_path / "out")]).exit_code == 0
    by = sign_report(data.with_suffix(".html"), data, key_file(tmp_path / "key"), passphrase=nobody)
    assert verify_report(data.with_suffix(".html"), data) == by


def test_names_of_any_alphabet_are_verified(report: tuple[Path, Path], tmp_path: Path) -> None:
    page, data = report
    named = data.rename(tmp_path / "résultat.json")
    by = sign_report(page, named, key_file(tmp_path / "key"), passphrase=nobody)
    assert verify_report(page, named) == by


def test_an_encrypted_key_needs_its_passphrase(report: tuple[Path, Path], tmp_path: Path) -> None:
    key = key_file(tmp_path / "key", encryption=BestAvailableEncryption(b"right"))
    assert sign_report(*report, key, passphrase=lambda: b"right") == verify_report(*report)
    with pytest.raises(ValueError, match="and its passphrase"):
        sign_report(*report, key, passphrase=lambda: b"wrong")


@pytest.mark.parametrize(("given", "status"), [("right\n", 0), ("wrong\n", 2), ("", 2)])
def test_a_passphrase_is_read_from_stdin_where_there_is_no_terminal(
    report: tuple[Path, Path], tmp_path: Path, given: str, status: int
) -> None:
    """getpass warned, in three lines, that what is typed might be seen."""
    key = key_file(tmp_path / "key", encryption=BestAvailableEncryption(b"right"))
    command = [sys.executable, "-m", "dpaudit", "report", report[1], "--sign", key]
    done = subprocess.run(
        command, input=given, capture_output=True, text=True, timeout=120, check=False, start_new_session=True
    )
    assert (done.returncode, len((done.stdout + done.stderr).splitlines())) == (status, 1)


def test_an_encrypted_openssh_key_says_what_is_lacking(report: tuple[Path, Path], tmp_path: Path) -> None:
    if importlib.util.find_spec("bcrypt") is not None or shutil.which("ssh-keygen") is None:
        pytest.skip("bcrypt is installed, or ssh-keygen is not")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "right", "-f", tmp_path / "key"], check=True)
    with pytest.raises(ValueError, match="key that can be read here: Need bcrypt"):
        sign_report(*report, tmp_path / "key", passphrase=lambda: b"right")


@pytest.mark.parametrize("name", ["report.html", "result.json", "report.sha256", "report.sha256.sig"])
def test_a_changed_bit_is_refused(name: str, report: tuple[Path, Path], tmp_path: Path) -> None:
    sign_report(*report, key_file(tmp_path / "key"), passphrase=nobody)
    content = bytearray((tmp_path / name).read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=r"Expected .* to (have the SHA-256|be a signature)"):
        verify_report(*report)


def test_the_signature_of_another_or_of_nothing_is_refused(report: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"Expected .*report\.sha256, a signature of report\.html: dpaudit report .* --sign"
    ):
        verify_report(*report)
    sign_report(*report, key_file(tmp_path / "key"), passphrase=nobody)
    shutil.copy(tmp_path / "report.sha256.pub", tmp_path / "mine.pub")
    (tmp_path / "report.sha256.sig").unlink()
    sign_report(*report, key_file(tmp_path / "key"), passphrase=nobody)
    with pytest.raises(ValueError, match="to be a signature"):
        verify_report(*report, key=tmp_path / "mine.pub")


def test_a_signature_is_replaced_by_its_own_key_alone(report: tuple[Path, Path], tmp_path: Path) -> None:
    first = sign_report(*report, key_file(tmp_path / "first"), passphrase=nobody)
    with pytest.raises(ValueError, match=f"by the key {first}, to be replaced by that key alone"):
        sign_report(*report, key_file(tmp_path / "second"), passphrase=nobody)
    assert verify_report(*report) == first
    assert sign_report(*report, tmp_path / "first", passphrase=nobody) == first


def test_names_that_the_signed_list_cannot_hold(report: tuple[Path, Path], tmp_path: Path) -> None:
    page, data = report
    with pytest.raises(ValueError, match=r"Expected name='a\\nb\.json' to have no line break"):
        sign_report(page, data.rename(tmp_path / "a\nb.json"), key_file(tmp_path / "key"), passphrase=nobody)
    with pytest.raises(ValueError, match=r"Expected .*none\.json to be the JSON of the report"):
        verify_report(page, tmp_path / "none.json")


def test_what_cannot_be_signed_is_refused(report: tuple[Path, Path], tmp_path: Path) -> None:
    rsa = generate_private_key(65537, 2048).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (tmp_path / "rsa").write_bytes(rsa)
    (tmp_path / "noise").write_bytes(b"\x00\xff")
    for name in ("rsa", "noise", "absent"):
        with pytest.raises(ValueError, match=rf"Expected .*{name}") as caught:
            sign_report(*report, tmp_path / name, passphrase=nobody)
        assert "\n" not in str(caught.value)
    report[1].write_text(report[1].read_text() + " ")
    with pytest.raises(ValueError, match="to be the page of"):
        sign_report(*report, key_file(tmp_path / "key"), passphrase=nobody)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_standard_tools_agree(report: tuple[Path, Path], tmp_path: Path) -> None:
    sign_report(*report, key_file(tmp_path / "key"), passphrase=nobody)
    subprocess.run(["sha256sum", "-c", "report.sha256"], cwd=tmp_path, check=True, capture_output=True)
    command = "openssl pkeyutl -verify -pubin -inkey report.sha256.pub -rawin -in report.sha256 -sigfile"
    subprocess.run([*command.split(), "report.sha256.sig"], cwd=tmp_path, check=True, capture_output=True)


def test_the_commands_of_the_page_on_reports(report: tuple[Path, Path], tmp_path: Path) -> None:
    """Those of docs/report.md, and what they refuse."""
    page, data = report
    key, runner = key_file(tmp_path / "key.pem"), CliRunner()

    def call(*arguments: object) -> tuple[int, str]:
        result = runner.invoke(app, ["report", *map(str, arguments)])
        return result.exit_code, " ".join(result.output.split())

    before = page.read_bytes()
    status, said = call(data, "--sign", key)
    assert (status, page.read_bytes()) == (0, before), "the page stays"
    assert "signed by the key" in said
    shutil.copy(tmp_path / "report.sha256.pub", tmp_path / "signer.pem")
    assert call(data, "--verify", "--key", tmp_path / "signer.pem")[0] == 0
    assert "compare it with the signer's own" in call(data, "--verify")[1]
    page.write_bytes(before.replace(b"refuted", b"accepted"))
    assert call(data, "--verify") == (2, f"dpaudit: Expected {page} to have the SHA-256 that was signed, "
                                      f"{hashlib.sha256(before).hexdigest()}.")  # fmt: skip
    assert call(data, "--verify", "--sign", key)[0] == 2
    assert call(data, "--key", key)[0] == 2
    assert call(data, "--out", tmp_path / "again", "--sign", key)[0] == 0
    assert (tmp_path / "again" / "report.sha256").exists()


def test_a_device_without_an_end_is_no_result() -> None:
    with pytest.raises(ValueError, match="Expected /dev/zero to be a file, not a pipe or device"):
        load_result(Path("/dev/zero"))
    assert page_beside(Path("/dev/zero")) == Path("/dev/report.html")
