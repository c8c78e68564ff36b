"""The page on what sampling alone refutes: it has every refuted row, and its numbers are those of its seed."""

from pathlib import Path

import pytest

from dpaudit.verify import check
from dpaudit.verify.claim_files import load_claims

ROOT = Path(__file__).resolve().parents[3]
CLAIMS = {claim.id: claim for path in (ROOT / "reports/claims").glob("*.toml") for claim in load_claims(path)}


def rows(page: str) -> dict[str, list[str]]:
    """Cells of a page's rows, by claim."""
    lines = (ROOT / f"docs/{page}.md").read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    return {row[0]: row for row in cells if row[0] in CLAIMS}


PAGE = rows("monte-carlo")


def test_the_page_has_every_refuted_row() -> None:
    judged = {**rows("verdicts"), **rows("released-code")}
    assert [*PAGE] == [name for name, row in judged.items() if row[-1] == "refuted"]
    assert {name for name, row in PAGE.items() if row[5] != "refuted"} == {"plrvo-table2-row1-shared"}
    for name, (_, epsilon, exact, sampled, delta, verdict, _) in PAGE.items():
        assert float(epsilon) == CLAIMS[name].epsilon
        assert (verdict == "refuted") == (float(sampled) > float(epsilon) or float(delta) > CLAIMS[name].delta)
        if float(exact) > 1.05 * float(epsilon):
            assert verdict == "refuted"


# the others take seconds each; sampling of their noise is tested in tests/verify/test_monte_carlo.py
@pytest.mark.parametrize("name", ["gg-b2-beta4-n1000000", "product-a6-m1e8", "plrvo-code-ftrl"])
def test_a_row_of_the_page(name: str) -> None:
    """Seed 1, as the page says; another version of numpy or scipy may move the last digits, or draw anew."""
    verdict = check(CLAIMS[name], method="monte-carlo", rng=1)
    _, _, _, sampled, delta, decided, _ = PAGE[name]
    assert verdict.verdict == decided == "refuted"
    assert verdict.epsilon_lower == pytest.approx(float(sampled), rel=0.05)
    assert verdict.delta_lower == pytest.approx(float(delta), rel=0.2)
