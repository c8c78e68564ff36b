"""Every snippet of docs/scores.md and docs/sealed-canaries.md runs, and says what the page says."""

import contextlib
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpaudit.audit.canaries.judging import judge
from dpaudit.audit.canaries.planting import plant
from dpaudit.audit.canaries.power import ideal_power, needed_canaries, one_run_bound, refutes
from dpaudit.audit.canaries.sealing import Draw, load_coins
from dpaudit.audit.claim_under_test import ClaimUnderTest

ROOT = Path(__file__).resolve().parents[2]
Command = Callable[..., subprocess.CompletedProcess[str]]


def snippets(page: str, language: str) -> list[str]:
    text = (ROOT / f"docs/{page}.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def run_python(code: str, folder: Path) -> None:
    with contextlib.chdir(folder):
        exec(compile(code, "snippet", "exec"), {})


def words_of(line: str) -> list[str]:
    return line.split("#")[0].split()


@pytest.fixture(scope="module")
def score_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("scores"), np.random.default_rng(0)
    inside, outside = rng.normal(1.5, 1.0, 120), rng.normal(size=100)
    np.save(folder / "in.npy", inside)
    np.save(folder / "out.npy", outside)
    for name, arm in (("in", inside), ("out", outside), ("df_train_user", inside), ("df_test_user", outside)):
        lines = ["user,score", *(f"{user},{score}" for user, score in enumerate(arm))]
        (folder / f"{name}.csv").write_text("\n".join(lines))
    np.savez(folder / "attack_result_0.npz", scores=np.append(inside, outside), memberships=np.arange(220) < 120)
    return folder


@pytest.mark.slow
def test_the_commands_of_the_page_on_scores(score_files: Path, dpaudit: Command) -> None:
    lines = [line for block in snippets("scores", "sh") for line in block.splitlines()]
    assert len(lines) == 4
    for line in lines:
        done = dpaudit(*words_of(line)[1:], "--seed", "1", folder=score_files)
        assert done.returncode == (3 if "--epsilon" in line else 0), done.stderr


@pytest.mark.parametrize("place", [pytest.param(0, marks=pytest.mark.slow), 1, 2, 3])
def test_the_code_of_the_page_on_scores(score_files: Path, place: int) -> None:
    blocks = snippets("scores", "python")
    assert len(blocks) == 4
    run_python(blocks[place], score_files)


@pytest.mark.slow
def test_the_page_on_sealed_canaries_from_both_sides(tmp_path: Path, dpaudit: Command) -> None:
    (block,) = snippets("sealed-canaries", "sh")
    plant_line, train_line, judge_line = (line for line in block.splitlines() if not line.startswith("#"))
    planted = dpaudit(*words_of(plant_line)[1:], folder=tmp_path)
    assert planted.returncode == 0, planted.stderr
    commitment = re.search("commitment ([0-9a-f]{64})", planted.stdout)
    assert commitment is not None
    script = str(ROOT / words_of(train_line)[1])
    subprocess.run([sys.executable, script, *words_of(train_line)[2:]], check=True, cwd=tmp_path, timeout=120)
    words = [commitment[1] if word == "COMMITMENT" else word for word in words_of(judge_line)[1:]]
    judged = dpaudit(*words, folder=tmp_path)
    assert judged.returncode == 3
    bound = re.search("epsilon >= ([0-9.]+)", judged.stdout)
    assert bound is not None
    assert float(bound[1]) > 2.5


def test_gradient_canaries_by_the_pages_loop(tmp_path: Path) -> None:
    """mu = sqrt(10) per canary, exactly: the loop of the page refutes 2, and cannot be blamed for its own epsilon."""
    np.savez(tmp_path / "data.npz", x=np.eye(4), y=[0, 1, 0, 1])
    done = plant(
        str(tmp_path / "data.npz"), out=tmp_path / "planted", sealed=tmp_path / "coins.json", draw=Draw(3, 1, 400),
        kind="gradient", parameters=2000,
    )  # fmt: skip
    (code,) = snippets("sealed-canaries", "python")
    run_python(code, tmp_path)
    coins = load_coins(tmp_path / "coins.json", commitment=done.coins.commitment)
    found = judge(coins, [tmp_path / "scores.csv"], ClaimUnderTest(2.0, 1e-5))
    assert found.verdict == "refuted"
    assert found.attacks[0].auc == pytest.approx(0.987, abs=0.01)  # Phi(sqrt(10)/sqrt(2))


@pytest.mark.slow
def test_the_figures_of_the_page() -> None:
    text = (ROOT / "docs/sealed-canaries.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([0-9.]+) \| ([0-9,]+) \|$", text, flags=re.MULTILINE)
    assert [epsilon for epsilon, _ in rows] == ["0.5", "1", "2", "3", "4", "8"]
    settings: dict[str, Any] = {"delta": 1e-5, "confidence": 0.95}
    for epsilon, count in rows:
        assert needed_canaries(partial(refutes, epsilon=float(epsilon), **settings)) == int(count.replace(",", ""))
    bound = partial(one_run_bound, **settings)
    for epsilon, shown in ((1.0, "0.53"), (2.0, "1.15"), (4.0, "2.5")):
        refuted = partial(refutes, epsilon=epsilon, **settings)
        power = ideal_power(1000, 500, 1, epsilon, 1e-5, refuted=refuted, bound=bound, seed=1)
        assert power is not None
        assert power.epsilon_median == pytest.approx(float(shown), rel=0.03)
        assert shown in text
