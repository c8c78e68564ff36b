"""The README's files and commands, as somebody would type them one after the other."""

import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from dpaudit.audit.attacks import pilot

README = (Path(__file__).parents[1] / "README.md").read_text()
Command = Callable[..., subprocess.CompletedProcess[str]]
# what other tests run, or what takes a make, an environment or minutes of its own
ELSEWHERE = ("--dry-run", "weights.safetensors", "selfcheck", "beta=3", "--rigorous", "run model.pt")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The README's files, each under the name in its first line; scripts that make one are run."""
    folder = tmp_path_factory.mktemp("readme")
    for text in [*blocks("toml"), *blocks("python")]:
        named = re.match(r"# (\S+)\n", text)
        if named:
            (folder / named[1]).write_text(text)
    (folder / "train.py").write_text("import opacus\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        exec((folder / "data.py").read_text(), {})
    return folder


def commands() -> list[list[str]]:
    lines = [line for text in blocks("sh") for line in text.splitlines() if line.startswith("dpaudit ")]
    return [shlex.split(line, comments=True)[1:] for line in lines]


@pytest.mark.slow  # one after the other, with a training
def test_the_commands_run_on_the_files(folder: Path, dpaudit: Command) -> None:
    run = [words for words in commands() if not any(part in " ".join(words) for part in ELSEWHERE)]
    assert len(run) >= 7
    for words in run:
        done = dpaudit(*words, folder=folder)
        assert done.returncode == 0, (words, done.stderr)
    assert (folder / "model.pt").exists()


@pytest.mark.slow  # the pilot of the dry run trains models
def test_the_dry_run_plans_the_audit_of_the_model(
    folder: Path, dpaudit: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pilot, "PAIRS", 3)
    dpaudit("train", "recipe.toml", "--out", "model.pt", "--seed", "1", folder=folder)
    (words,) = [words for words in commands() if "--dry-run" in words]
    done = dpaudit(*words, "--seed", "1", folder=folder)
    assert done.returncode == 0, done.stderr
    assert "models per arm" in done.stdout


def test_the_python_says_what_it_prints(capsys: pytest.CaptureFixture[str]) -> None:
    (text,) = [text for text in blocks("python") if "check(claim)" in text]
    exec(text, {})
    assert capsys.readouterr().out.strip() == text.splitlines()[-1].rpartition("# ")[2]


def test_every_page_is_in_the_index_and_every_link_leads_somewhere() -> None:
    docs = Path(__file__).parents[1] / "docs"
    linked = set(re.findall(r"\]\(([^)#]+\.md)", (docs / "index.md").read_text()))
    assert {page.name for page in docs.glob("*.md")} - {"index.md"} <= linked
    for page in [*docs.glob("*.md"), docs.parent / "README.md", docs.parent / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
            if "://" not in target and not target.startswith("#"):
                assert (page.parent / target.partition("#")[0]).exists(), f"{page.name}: {target}"
