"""The page that judges a claim in a browser: its numbers against mpmath, its brackets against `check`; keys, 400 px.

`DPAUDIT_JUDGE_CLAIMS=500` compares so many drawn claims; the default keeps the test under a minute.
"""

import html
import json
import math
import os
import random
import re
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote

import mpmath
import numpy as np
import pytest

from dpaudit.mechanisms import Gaussian
from dpaudit.verify import Claim, check
from dpaudit.verify.claim_files import load_claims
from dpaudit.verify.claims import Phase
from dpaudit.verify.lower import certified_lower
from dpaudit.verify.samplers import BallsInBins, Shuffled

PAGE = Path(__file__).parents[2] / "reports" / "browser" / "judge.html"
BATCH = 8  # claims of one run of the browser
SAMPLERS = ("poisson", "poisson", "deterministic", "shuffled", "balls-in-bins")


def evaluate(browser: ModuleType, folder: Path, script: str) -> Any:
    """What a script appended to the page leaves in `answer`."""
    told = "document.title = JSON.stringify(answer, (_, v) => v === Infinity ? 'inf' : v)"
    page = folder / "judge.html"
    page.write_text(PAGE.read_text("utf-8").replace("</body>", f"<script>{script}; {told}</script></body>"), "utf-8")
    dom, console = browser.browse(folder, page, "--dump-dom")
    assert console == []
    return json.loads(html.unescape(re.search("<title>(.*?)</title>", dom, re.DOTALL).group(1)))  # type: ignore[union-attr]


def phase(claim: dict[str, Any]) -> Phase:
    """The claim's releases, as `check` reads them."""
    noise, epochs = Gaussian(claim["noise"]), claim["epochs"]
    batches = -(-claim["records"] // claim["batch"])
    if claim["sampler"] == "deterministic" or batches == 1:
        return Phase(noise, epochs, 1.0, "none")
    if claim["sampler"] == "poisson":
        return Phase(noise, batches * epochs, claim["batch"] / claim["records"])
    if claim["sampler"] == "shuffled":
        return Phase(noise, sampler=Shuffled.of(claim["records"], claim["batch"], epochs))
    return Phase(noise, sampler=BallsInBins(batches, epochs))


def draw(rng: random.Random, samplers: Sequence[str] = SAMPLERS, largest: float = 6.0) -> dict[str, Any]:
    """A claim whose epsilon is near what is true."""
    records = int(10 ** rng.uniform(1, largest))
    claim: dict[str, Any] = {
        "sampler": rng.choice(samplers),
        "noise": round(10 ** rng.uniform(-0.4, 1.3), 4),
        "batch": max(1, min(records, int(records * 10 ** rng.uniform(-3.5, 0)))),
        "records": records,
        "epochs": int(10 ** rng.uniform(0, 2 if largest > 4 else 0.7)),
        "delta": 10 ** rng.uniform(-9, -3),
    }
    known = float(certified_lower(Claim(1.0, claim["delta"], [phase(claim)])).epsilon(np.array([claim["delta"]]))[0])
    factor = rng.choice([0.5, 0.9, 0.99, 0.999, 1.001, 1.01, 1.1, 2.0])
    return {**claim, "epsilon": min(max(known, 0.01) * factor, 9e3)}


def assert_agrees(claims: Sequence[dict[str, Any]], browser: ModuleType, folder: Path) -> None:
    """Brackets overlap, no verdict contradicts, and none is more than 1% looser than that of `check`.

    Of shuffled batches the page has the bound of a known order from above; `check` may have a better one.
    """
    for start in range(0, len(claims), BATCH):
        part = claims[start : start + BATCH]
        for claim, answer in zip(
            part, evaluate(browser, folder, f"const answer = {json.dumps(part)}.map(judge)"), strict=True
        ):
            verdict = check(Claim(claim["epsilon"], claim["delta"], [phase(claim)]))
            assert {answer["verdict"], verdict.verdict} != {"certified", "refuted"}, claim
            low, high = float(answer["epsilonLower"]), float(answer["epsilonUpper"])
            assert low <= verdict.epsilon_upper, claim
            assert high >= verdict.epsilon_lower, claim
            assert answer["deltaLower"] <= verdict.delta_upper * (1 + 1e-9) + 1e-290, claim
            assert answer["deltaUpper"] >= verdict.delta_lower * (1 - 1e-9), claim
            assert low >= 0.99 * verdict.epsilon_lower - 1e-4, claim
            if claim["sampler"] == "shuffled":
                verdict = check(Claim(claim["epsilon"], claim["delta"], [phase({**claim, "sampler": "deterministic"})]))
            assert high <= 1.01 * verdict.epsilon_upper + 1e-4, claim


@pytest.mark.slow
def test_numbers_are_within_their_charge(browser: ModuleType, tmp_path: Path) -> None:
    rng = random.Random(5)
    exps = [rng.uniform(-700, 709) for _ in range(1500)] + [rng.gauss(0, 1e-3) for _ in range(200)]
    logs = [2.0 ** rng.uniform(-1000, 1000) for _ in range(700)] + [1 + rng.uniform(-0.3, 0.5) for _ in range(800)]
    tails = [rng.uniform(0, 37.4) for _ in range(900)] + [rng.uniform(0, 3) for _ in range(600)]
    tails += [1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 14.0, 20.0]  # where the fractions are shortest for their x
    curves = [(mu := 10 ** rng.uniform(-2, 1.2), max(0.0, mu * mu / 2 + mu * rng.uniform(-5, 9))) for _ in range(1200)]
    turns = "[0, 1, 77, 4095, 16384, 32768, 49000, 65535].map(k => [k, turns(131072).re[k], turns(131072).im[k]])"
    found = evaluate(
        browser, tmp_path,
        f"const answer = [{exps}.map(exp), {logs}.map(log), {tails}.map(x => [tail(x), tailError(x)]), "
        f"{[list(pair) for pair in curves]}.map(([mu, e]) => gaussianDelta(mu, e)), {turns}]",
    )  # fmt: skip
    with mpmath.workdps(40):
        unit = mpmath.mpf(2) ** -53
        normal = lambda x: mpmath.erfc(x / mpmath.sqrt(2)) / 2  # noqa: E731
        assert all(abs(a / mpmath.exp(x) - 1) < 8 * unit for a, x in zip(found[0], exps, strict=True))
        assert all(abs(a / mpmath.log(x) - 1) < 16 * unit for a, x in zip(found[1], logs, strict=True))
        assert all(abs(a / normal(x) - 1) < charge for (a, charge), x in zip(found[2], tails, strict=True))
        for bound, (mu, epsilon) in zip(found[3], curves, strict=True):
            m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
            true = normal(e / m - m / 2) - mpmath.exp(e) * normal(e / m + m / 2)
            assert bound["lower"] <= true <= bound["upper"]
            assert (
                bound["upper"] - bound["lower"] <= 1e-6 * true + 1e-14 * normal(e / m - m / 2) + mpmath.mpf(10) ** -280
            )
        for k, real, imaginary in found[4]:
            assert abs(mpmath.mpc(real, imaginary) - mpmath.expj(-2 * mpmath.pi * k / 131072)) < 3.2 * unit


@pytest.mark.slow
def test_a_few_claims_agree_with_check(browser: ModuleType, tmp_path: Path) -> None:
    rng = random.Random(3)
    claims = [draw(rng, ("deterministic",)) for _ in range(4)]
    claims += [draw(rng, ("poisson",), 3.0)]
    shuffled = {
        "sampler": "shuffled",
        "noise": 2.5,
        "batch": 10,
        "records": 100,
        "epochs": 2,
        "delta": 1e-5,
        "epsilon": 0.3,
    }
    assert_agrees([*claims, shuffled], browser, tmp_path)


@pytest.mark.slow
def test_drawn_claims_agree_with_check(browser: ModuleType, tmp_path: Path) -> None:
    rng = random.Random(11)
    assert_agrees([draw(rng) for _ in range(int(os.environ.get("DPAUDIT_JUDGE_CLAIMS", "6")))], browser, tmp_path)


def test_what_is_out_of_reach_is_undecided(browser: ModuleType, tmp_path: Path) -> None:
    base = {"sampler": "poisson", "noise": 1.0, "batch": 1, "records": 10, "epochs": 1, "delta": 1e-5, "epsilon": 1.0}
    wrong = [{"noise": 0.1}, {"noise": None}, {"epochs": 1.5}, {"batch": 11}, {"records": 10**12}, {"sampler": "queue"}]
    claims = json.dumps([{**base, **change} for change in wrong])
    answers = evaluate(browser, tmp_path, f"const answer = {claims}.map(judge)")
    assert [answer["verdict"] for answer in answers] == ["undecided"] * len(wrong)
    for answer, word in zip(answers, ("noise", "noise", "whole", "batch", "2,000,000", "queue"), strict=True):
        assert word in answer["reason"]


@pytest.mark.slow
def test_keys_alone_and_a_claims_file_that_check_reads(browser: ModuleType, tmp_path: Path) -> None:
    script = """
      const field = (name, value) => { FORM.elements[name].value = value; };
      const values = {noise: 2, sampler: "deterministic", batch: 10, records: 95, epochs: 1};
      for (const [name, value] of Object.entries(values))
        field(name, value);
      const stops = [...document.querySelectorAll("input, select, button, a")];
      FORM.elements.epsilon.focus();
      FORM.requestSubmit(); // what Enter in a field does
      show(read());
      const titles = [...OUT.querySelectorAll("h2")].map(e => e.textContent);
      const as_run = claimsFile({...read(), sampler: "shuffled"});
      const answer = [stops.map(e => e.tabIndex), titles, DOWNLOAD.href, as_run]"""
    order, titles, link, shuffled = evaluate(browser, tmp_path, script)
    assert order == [0] * 9
    assert len(titles) == 2
    assert titles[0].startswith("As accounted, Poisson batches: ")
    assert titles[1].startswith("As run, fixed batches: ")
    for text, as_run in (
        (unquote(link.split(",", 1)[1]), Phase(Gaussian(2.0), 1, 1.0)),
        (shuffled, Phase(Gaussian(2.0), sampler=Shuffled.of(95, 10, 1))),
    ):
        (tmp_path / "claims.toml").write_text(text)
        accounted, run = load_claims(tmp_path / "claims.toml")
        assert accounted.phases[0] == Phase(Gaussian(2.0), 10, 10 / 95)
        assert run.phases[0] == as_run


def test_the_page_fits_its_window_and_needs_nothing_but_itself(browser: ModuleType, tmp_path: Path) -> None:
    text = PAGE.read_text("utf-8")
    assert not re.search(r"https?:|//[\w-]+\.\w|@import|<link|fetch\(|XMLHttp|eval\(|innerHTML", text)
    deterministic = text.replace('<option value="deterministic">', '<option value="deterministic" selected>')
    filled = deterministic.replace("</body>", "<script>show({...read(), records: 256})</script></body>")
    for key, (width, _, out) in browser.measure(tmp_path, {"judge": filled}).items():
        assert (width, out) == (int(key.split("@")[1]), []), key
    assert math.isclose(len(text), 60_000, rel_tol=0.2)
