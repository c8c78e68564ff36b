"""The page about the four papers: its examples print what they say, and the names and files on it exist."""

import doctest
import re
from pathlib import Path
from pkgutil import resolve_name

import pytest

ROOT = Path(__file__).parents[3]
PAPERS = ROOT / "docs" / "papers.md"


@pytest.mark.slow
def test_the_examples_on_the_papers_page() -> None:
    result = doctest.testfile(str(PAPERS), module_relative=False)
    assert result.attempted > 10
    assert result.failed == 0


def resolves(name: str) -> bool:
    try:
        return resolve_name(name) is not None
    except (ImportError, AttributeError):
        return False


def test_the_names_and_files_on_the_papers_page_exist() -> None:
    page = PAPERS.read_text()
    names = sorted(set(re.findall(r"`((?:mechanisms|verify)\.[\w.]+)`", page)))
    files = sorted(set(re.findall(r"`(?:[a-z]+/)*([\w-]+\.(?:toml|py))`", page)))
    assert names
    assert files
    assert [name for name in names if not resolves(f"dpaudit.{name}")] == []
    folders = [ROOT / folder for folder in ("examples", "reports/claims")]
    assert [name for name in files if not any((folder / name).is_file() for folder in folders)] == []
