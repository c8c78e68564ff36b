"""The page: what it must say for each verdict, that nothing outside gets in, and that it is written whole or not."""

import hashlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any

import matplotlib
import pytest

from dpaudit import reports
from dpaudit.reports import load_result, write_report
from dpaudit.reports.summary import rates_shown
from dpaudit.verify.results import AuditResult

KINDS = ("not_refuted", "inconclusive", "refuted", "curve_only", "claim_check", "gave_up")
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>&amp;$\\frac{ \ud800\x00 {{ 7*191 }}"
Written = Callable[[str], Path]
VOID = {"meta", "img", "br", "hr", "link", "input", "base"}


class Page(HTMLParser):
    """Tags, attributes and text of a page; complains about tags that are not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open[-1:]:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def read(path: Path) -> Page:
    return Page(path.read_text(encoding="utf-8"))


def render(result: AuditResult, folder: Path) -> Page:
    return read(write_report(result, folder))


def bare(samples: ModuleType) -> AuditResult:
    return samples.make_result(
        claim_check=None, attacks=[], epsilon_lower=None, certified_curve=None, tradeoff=None, budget={},
        reproduce={}, model={}, versions={}, claim={},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "title", "badge"),
    [
        ("not_refuted", "Claim not refuted", "certified"),
        ("refuted", "Claim refuted", "certified"),
        ("curve_only", "Claim refuted", "certified"),
        ("claim_check", "Claim refuted", "refuted"),
        ("gave_up", "Audit not finished", "undecided"),
    ],
)
def test_every_verdict_is_said_in_words(
    kind: str, title: str, badge: str, samples: ModuleType, written: Written
) -> None:
    result = samples.make_result(kind)
    page = read(written(kind))
    assert f"{title} " in page.text
    assert f"Claim check, by calculation: {badge} " in page.text
    assert result.claim_check.reason in page.text
    assert ("does not mean" in page.text) == (result.verdict != "refuted")
    for text in (*result.claim_check.assumptions, *result.notes, *result.versions, result.reproduce["command"]):
        assert text in page.text
    for text in (str(result.seed), result.model["sha256"], result.reproduce["data_sha256"], *result.budget):
        assert text in page.text


def test_the_parts_come_in_their_order(written: Written) -> None:
    text = read(written("gave_up")).text
    parts = [
        "The audit stopped", "Claim check, by calculation", "What “not refuted” does not mean", "on one axis",
        "certified to leak", "All lower bounds and tests", "Noise is added to the sum", "Notes and warnings",
        "error probability was split", "How to reproduce", "machine-readable",
    ]  # fmt: skip
    places = [text.index(part) for part in parts]
    assert places == sorted(places)


def test_the_attack_table_holds_the_numbers(samples: ModuleType, written: Written) -> None:
    text = read(written("curve_only")).text
    attack = samples.make_result("curve_only").attacks[1]
    assert "more than promised" not in text.split("Attacks", 1)[1]
    assert "yes: seen 72.5%, 49.64% allowed at 27.12% false alarms" in text
    assert f"{attack.auc:.4f}".rstrip("0") in text
    assert "0.7557 to 0.8413" in text
    assert "ε ≥ 2.1 if its noise is of the claimed family" in text
    assert "1,000 models on each side" in text
    assert "one model; 148 members against 152 others" in text


def test_a_rate_is_printed_only_where_it_rests_on_false_alarms(samples: ModuleType, written: Written) -> None:
    few, many = read(written("curve_only")).text, read(written("refuted")).text
    assert "TPR at 1% FPR" in few
    assert "TPR at 0.1% FPR" not in few, "one false alarm of 1,000 says nothing"
    assert "too few records" in few
    assert "TPR at 0.1% FPR" in many
    without = rates_shown(samples.make_result().attacks[0])
    assert without == {}


def test_no_line_ends_inside_a_number(written: Written) -> None:
    text = written("not_refuted").read_text(encoding="utf-8")
    verdict = text[text.index('<div class="verdict') : text.index('<dl class="tiles')]
    assert verdict.count("1e-5") == verdict.count('<span class="whole">1e-5</span>') == 1
    assert '<span class="whole">9.993e-6</span>' in text


def test_missing_pieces_leave_a_page_that_says_so(samples: ModuleType, tmp_path: Path) -> None:
    text = render(bare(samples), tmp_path).text
    for sentence in ("No attack was carried out", "was not checked by calculation", "Not recorded", "Unnamed model"):
        assert sentence in text


@pytest.mark.parametrize("missing", ["roc", "bound", "curve_test", "epsilon_lower", "best_possible_epsilon"])
def test_an_attack_without_one_of_its_parts(missing: str, samples: ModuleType, tmp_path: Path) -> None:
    result = samples.make_result()
    attack = replace(result.attacks[1], **{missing: None}, tpr_at_fpr={})
    page = render(replace(result, attacks=[attack], epsilon_lower=None), tmp_path)
    assert len(page.named("svg")) == (3 if missing == "roc" else 4)


@pytest.mark.slow
def test_extreme_numbers_are_drawn(samples: ModuleType, tmp_path: Path) -> None:
    result = samples.make_result("claim_check")
    attack = replace(
        result.attacks[0], epsilon_lower=0.01, best_possible_epsilon=math.inf, trials=2,
        roc={"fpr": [0.0, 0.0], "tpr": [0.0, 1.0], "tpr_lower": [0.0, 0.2], "tpr_upper": [0.8, 1.0], "confidence": 0.9},
    )  # fmt: skip
    check = replace(result.claim_check, epsilon_lower=0.0, epsilon_upper=1e4, delta_claimed=0.0)
    curve = {"epsilon": [0.0], "delta_lower": [0.0], "delta_upper": [0.0]}
    for claimed in (0.0, 1e-12, 1e4):
        changed = replace(
            result, attacks=[attack], claim_check=check, certified_curve=curve, epsilon_claimed=claimed,
            claim={"epsilon": claimed, "delta": 0.0},
        )  # fmt: skip
        assert "∞" in render(changed, tmp_path).text


def test_hostile_text_stays_text(samples: ModuleType, tmp_path: Path) -> None:
    result = samples.make_result("claim_check")
    table: dict[str, Any] = {HOSTILE: HOSTILE, "nested": {HOSTILE: [HOSTILE]}}
    bound = replace(result.attacks[0].bound, method=HOSTILE, source=HOSTILE, assumes=HOSTILE, inputs=table)
    attack = replace(result.attacks[0], name=HOSTILE, arms=table, details=table, bound=bound, tpr_at_fpr={HOSTILE: 0.1})
    witness = replace(result.claim_check.witness, family=HOSTILE, event=HOSTILE)
    check = replace(
        result.claim_check, id=HOSTILE, reason=HOSTILE, methods=[HOSTILE], assumptions=[HOSTILE], witness=witness
    )
    changed = replace(
        result, model={"path": HOSTILE, "sha256": HOSTILE, **table}, claim={**result.claim, **table},
        claim_check=check, attacks=[attack], refuted_by=[HOSTILE], versions={HOSTILE: HOSTILE, "dpaudit": HOSTILE},
        budget={HOSTILE: 0.05}, notes=[HOSTILE],
        reproduce={"command": HOSTILE, "recipe": HOSTILE, "stopped": HOSTILE, **table},
    )  # fmt: skip
    page = render(changed, tmp_path)
    assert not {"script", "img"} & {tag for tag, _ in page.tags}
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    assert page.text.count("<script>alert(1)</script>\"'><img src=x onerror=alert(2)>") > 20
    assert "{{ 7*191 }}" in page.text
    assert "1337" not in page.text
    with pytest.raises(ValueError, match="to agree with itself: it is refuted by '<script>") as caught:
        load_result(tmp_path / "result.json")
    assert "\x00" not in str(caught.value)
    assert AuditResult.from_dict(json.loads((tmp_path / "result.json").read_text())).notes == [HOSTILE]


def test_no_outside_text_turns_around_what_stands_beside_it(samples: ModuleType, tmp_path: Path) -> None:
    page = render(replace(samples.make_result("claim_check"), notes=["safe\u202etxt\u2066.exe"]), tmp_path)
    assert "safe\ufffdtxt\ufffd.exe" in page.text


def test_no_control_character_reaches_a_page(samples: ModuleType, tmp_path: Path) -> None:
    text = "a\x1b[31mb\x07c\x7fd\x9be\x00f\tg\nh"
    page = write_report(replace(samples.make_result("claim_check"), notes=[text]), tmp_path).read_text("utf-8")
    assert "a\ufffd[31mb\ufffdc\ufffdd\ufffde\ufffdf\tg\nh" in page


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_needs_nothing_but_itself(kind: str, written: Written) -> None:
    text = written(kind).read_text(encoding="utf-8")
    assert not re.search(r"https?:|//[\w-]+\.|@import|javascript:", text)
    assert set(re.findall(r"url\((.)", text)) <= {"#"}
    page = Page(text)
    assert not {"script", "link", "iframe", "object", "embed", "img", "base"} & {tag for tag, _ in page.tags}
    references = {attributes[name] for _, attributes in page.tags for name in ("src", "href") if name in attributes}
    assert {reference for reference in references if not str(reference).startswith("#")} == {"result.json"}
    policy = next(meta["content"] for meta in page.named("meta") if meta.get("http-equiv"))
    assert str(policy).startswith("default-src 'none'")
    assert len(text) < 400_000


def test_every_figure_has_a_text_and_ids_of_its_own(written: Written) -> None:
    page = read(written("refuted"))
    figures = page.named("svg")
    assert len(figures) == 6
    assert all(figure["role"] == "img" and len(str(figure["aria-label"])) > 60 for figure in figures)
    assert "Promised: 2.445" in str(figures[1]["aria-label"])
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids)) > 100
    links = {str(attributes["href"]) for _, attributes in page.tags if "href" in attributes}
    used = {link[1:] for link in links if link.startswith("#")}
    assert used
    assert used <= set(ids)
    clips = {clip for _, tag in page.tags for clip in re.findall(r"url\(#([^)]*)\)", str(tag.get("clip-path")))}
    assert clips
    assert clips <= set(ids)
    headers = page.named("th")
    assert headers
    assert all(header["scope"] in ("col", "row") for header in headers)


def test_the_json_leads_to_the_same_page_byte_for_byte(written: Written, tmp_path: Path) -> None:
    first = written("refuted")
    second = write_report(load_result(first.with_name("result.json")), tmp_path / "b")
    assert first.read_bytes() == second.read_bytes()
    assert hashlib.sha256((tmp_path / "b" / "result.json").read_bytes()).hexdigest() in second.read_text()


def test_the_style_of_the_user_does_not_matter_and_is_left_alone(
    samples: ModuleType, written: Written, tmp_path: Path
) -> None:
    plain = written("not_refuted").read_bytes()
    with matplotlib.rc_context({"font.size": 31.0, "axes.facecolor": "black", "svg.fonttype": "path"}):
        assert write_report(samples.make_result(), tmp_path / "b").read_bytes() == plain
        assert matplotlib.rcParams["font.size"] == 31.0


def test_a_failure_half_way_leaves_the_old_report(
    samples: ModuleType, written: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(written("not_refuted").parent, tmp_path, dirs_exist_ok=True)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert set(before) == {"report.html", "result.json"}
    written: list[int] = []

    def disk_full(descriptor: int) -> None:
        written.append(descriptor)
        if len(written) == 2:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", disk_full)
    with pytest.raises(OSError, match="No space left"):
        write_report(samples.make_result("refuted"), tmp_path)
    assert len(written) == 2
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_the_written_json_is_the_result(samples: ModuleType, tmp_path: Path) -> None:
    result = samples.make_result("claim_check")
    write_report(result, tmp_path / "new" / "folder")
    assert json.loads((tmp_path / "new" / "folder" / "result.json").read_text()) == result.to_dict()


def test_importing_the_room_loads_no_plotting() -> None:
    code = (
        "import sys, dpaudit.reports as r; r.verdict_sentence\n"
        "assert not {'matplotlib', 'jinja2', 'jsonschema'} & set(sys.modules); r.write_report\n"
        "assert 'matplotlib.pyplot' not in sys.modules and 'torch' not in sys.modules and 'matplotlib' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_name_the_room_does_not_have_is_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'draw'"):
        reports.draw  # noqa: B018
