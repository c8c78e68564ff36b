"""The documentation: what snippets print and commands do, the pictures, and the site as a whole."""

import ast
import contextlib
import importlib.util
import io
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dpaudit.mechanisms import Gaussian
from dpaudit.verify import Claim, check

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
Command = Callable[..., subprocess.CompletedProcess[str]]


def blocks(page: str, language: str) -> list[str]:
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def write_files(page: str, folder: Path) -> None:
    """The page's files, each under the name in its first line."""
    for language in ("toml", "text", "python"):
        for text in blocks(page, language):
            if named := re.match(r"# (\S+\.\w+)\n", text):
                (folder / named[1]).write_text(text.partition("\n")[2] if language == "text" else text)


@pytest.mark.parametrize("page", ["epsilon-lower", "not-refuted", "adjacency", "monte-carlo"])
def test_the_python_prints_what_its_comments_say(page: str) -> None:
    printed, stated = io.StringIO(), []
    for block in blocks(page, "python"):
        with contextlib.redirect_stdout(printed):
            exec(block, {})
        stated += [line for comment in re.findall(r"# (.*)", block) for line in comment.split("; ")]
    assert stated
    assert printed.getvalue().splitlines() == stated


@pytest.mark.parametrize("page", ["adjacency", "claims-in-ci"])
def test_the_commands_on_claims_find_nothing_refuted(page: str, dpaudit: Command, tmp_path: Path) -> None:
    write_files(page, tmp_path)
    lines = [line for block in blocks(page, "sh") for line in block.splitlines()]
    run = [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("dpaudit verify")]
    assert run
    for words in run:
        done = dpaudit(*words, folder=tmp_path)
        assert done.returncode == 0, (words, done.stdout, done.stderr)


def test_claims_in_continuous_integration(pytester: pytest.Pytester) -> None:
    check(Claim.single(Gaussian(1.0), epsilon=5.0, delta=1e-5))  # loads what the inner run would load and forget
    write_files("claims-in-ci", pytester.path)
    [line] = [line for block in blocks("claims-in-ci", "sh") for line in block.splitlines() if "pytest" in line]
    result = pytester.runpytest_inprocess(*shlex.split(line)[1:], "test_privacy.py")
    result.assert_outcomes(passed=3)


@pytest.mark.slow  # three claims of shuffled batches
def test_a_papers_table_becomes_claims_that_come_out_as_stated(dpaudit: Command, tmp_path: Path) -> None:
    write_files("paper-table", tmp_path)
    [commands] = blocks("paper-table", "sh")
    script, verify = commands.splitlines()
    subprocess.run([sys.executable, *shlex.split(script)[1:]], cwd=tmp_path, check=True)
    done = dpaudit(*shlex.split(verify)[1:], folder=tmp_path)
    assert done.returncode == 3, done.stderr
    assert (tmp_path / "table/verdicts.html").exists()
    verdicts = re.findall(r"^(certified|refuted) +row-\d-as-(\w+): .* true epsilon ([\d.]+)", done.stdout, re.MULTILINE)
    assert [(verdict, how) for verdict, how, _ in verdicts] == [("certified", "accounted"), ("refuted", "run")] * 3
    page = " ".join((DOCS / "paper-table.md").read_text().split())
    lower = [float(value) for _, _, value in verdicts]
    stated = re.search(
        r"true epsilons of ([\d.]+), ([\d.]+) and ([\d.]+):.*at least ([\d.]+), ([\d.]+) and ([\d.]+)\.", page
    )
    assert stated is not None
    for value, text in zip([*lower[::2], *lower[1::2]], stated.groups(), strict=True):
        assert abs(value - float(text)) <= 0.5 * 10 ** -len(text.partition(".")[2]) * 2


def test_the_pictures_are_those_that_the_script_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["pictures.py", str(tmp_path)])
    runpy.run_path(str(DOCS / "pictures.py"), run_name="__main__")

    def words(folder: Path) -> dict[str, list[str]]:
        return {path.name: re.findall(r">([^<>\n]+)</text>", path.read_text()) for path in folder.glob("*.svg")}

    assert words(tmp_path) == words(DOCS / "pictures")
    assert all(words(tmp_path).values())


def test_every_theorem_by_name_has_its_proof_on_the_site() -> None:
    """Links of docs/theory.md lead to files that the pages of docs/theory/ show."""
    pages = [re.search(r"^room: (\S+)$", page.read_text(), re.MULTILINE) for page in (DOCS / "theory").glob("*.md")]
    rooms = {found[1] for found in pages if found}
    linked = re.findall(r"\]\(\.\./([\w/]+\.py)\)", (DOCS / "theory.md").read_text())
    assert len(linked) > 20
    assert {str(Path(path).parent) for path in linked} <= rooms


def test_files_that_pages_name_are_there() -> None:
    """Pages send readers to proofs and tests; eight such files had moved."""
    rooms = "|".join(("audit", "benchmarks", "docs", "examples", "mechanisms", "reports", "tests", "verify"))
    pages = [DOCS.parent / "README.md", *DOCS.glob("*.md")]
    named = {
        (page.name, path)
        for page in pages
        for path in re.findall(rf"`(?:python )?((?:{rooms})/[\w\-./]*(?:\.py|/))`", page.read_text())
    }
    assert len(named) > 20
    assert {(page, path) for page, path in named if not (DOCS.parent / path).exists()} == set()


def test_the_reference_lists_every_package_that_users_import_from() -> None:
    listed = {re.findall(r"automodule:: (\S+)", page.read_text())[0] for page in (DOCS / "reference").glob("[!cs]*.md")}
    assert listed == {f"dpaudit.{name}" for name in ("mechanisms", "verify", "verify.bounds", "audit", "reports")}


@pytest.mark.slow  # the whole site, and a browser for all of its pages
def test_the_site_builds_strictly_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    for needed in ("sphinx", "myst_parser", "furo"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed")
    site = tmp_path / "site"
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "--keep-going",
        "-c",
        "docs",
        "-d",
        tmp_path / "trees",
        ".",
        site,
    ]
    built = subprocess.run([*map(str, command)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    pages = [path for path in site.rglob("*.html") if "reports" not in path.relative_to(site).parts]
    assert len(pages) > 45
    for page in pages:
        outside = re.findall(
            r"<(?:script|img|iframe|link)[^>]+(?:src|href)=\"((?:https?:)?//[^\"]+)\"", page.read_text()
        )
        assert outside == [], page
    assert "verify.upper.shift_norms" in (site / "docs/theory/upper.html").read_text()
    if (chromium := shutil.which("chromium")) is None:
        pytest.skip("chromium is not installed")
    frames = "".join(  # the pages' scripts are one theme's: a third of them shows those, every other one wide
        f'<iframe width="{(400, 1280)[place % 2]}" src="{page.as_uri()}"></iframe>'
        for place, page in enumerate(pages[::3])
    )
    (tmp_path / "frames.html").write_text(frames)
    flags = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--enable-logging=stderr", "--v=0")
    seen = subprocess.run(
        [chromium, *flags, f"--user-data-dir={tmp_path}/profile", "--dump-dom", (tmp_path / "frames.html").as_uri()],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert [line for line in seen.stderr.splitlines() if "CONSOLE" in line] == []


def test_formulas_in_docstrings_reach_the_page_as_they_are() -> None:
    """Every word of the modules' docstrings, with its stars, bars and underscores, in its order."""
    core = pytest.importorskip("docutils.core", reason="the documentation's packages are not installed")
    spec = importlib.util.spec_from_file_location("docstrings", DOCS / "docstrings.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    paths = [path for room in ("upper", "pld", "bounds") for path in sorted((ROOT / "verify" / room).glob("*.py"))]
    assert len(paths) > 40
    for path in paths:
        stated = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        page = core.publish_doctree(
            "\n".join(module.restructured(stated.splitlines())), settings_overrides={"halt_level": 2, "report_level": 2}
        )
        words = re.sub(r"[`\s]|^ *- ", "", stated, flags=re.MULTILINE)
        assert re.sub(r"\s", "", page.astext()) == words, path
