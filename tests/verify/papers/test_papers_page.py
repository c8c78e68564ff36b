"""The page about the four papers: its examples print what they say, and the names and files on it exist."""

import doctest
import math
import re
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest

from dpaudit.mechanisms.published.gaussian_baselines import analytic_gaussian_sigma
from dpaudit.mechanisms.published.product import theorem_8_delta

ROOT = Path(__file__).parents[3]
PAPERS = ROOT / "docs" / "papers.md"


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """What the examples compute, after they printed what the page says."""
    runner = doctest.DocTestRunner()
    examples = doctest.DocTestParser().get_doctest(PAPERS.read_text(), {}, PAPERS.name, str(PAPERS), 0)
    runner.run(examples, clear_globs=False)
    assert runner.tries > 10
    assert runner.failures == 0
    return examples.globs


@pytest.mark.slow
def test_product_by_the_paper_and_honestly(found: dict[str, Any]) -> None:
    m, epsilon, delta, three = 784, 0.1, 1e-5, found["found"]
    k = three.published_k
    t = math.sqrt(2 * k ** (4 / m) * (m / 4 + 1.5) ** (1 + 4 / m) / math.exp(1 + 2 / m))
    assert three.published_sigma == pytest.approx(t / epsilon, rel=1e-12)
    assert theorem_8_delta(dimension=m, shift=1 / three.published_sigma, k=k) <= delta
    assert three.published_verdict.verdict == "refuted"
    assert three.published_verdict.delta_lower == pytest.approx(0.204, abs=2e-3)  # theory, at k = 1000
    assert three.honest.verdict.verdict == "certified"
    sigma = analytic_gaussian_sigma(1.0, epsilon=epsilon, delta=delta)
    assert three.gaussian.value == pytest.approx(sigma, rel=1.1e-3)
    assert three.honest_factor == pytest.approx(three.honest.value / (three.gaussian.value * 28.0))
    # the limit: delta = E_R delta_mu(epsilon), mu = sqrt(M)/(sigma R); the factor grows as 1/delta
    assert three.published_factor < 0.2 < 100 < three.honest_factor


@pytest.mark.slow
def test_gg_scale_of_one_coordinate_and_of_all(found: dict[str, Any]) -> None:
    published, valid = found["published"], found["valid"]
    # one coordinate needs 10.5295 exactly; B.2's numerical error is counted
    assert 10.5295 <= published.value <= 10.5295 * 1.006
    assert published.verdict.verdict == "refuted"
    assert published.verdict.delta_lower > 0.05
    assert valid.verdict.verdict == "certified"
    assert valid.value > 2 * published.value


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
