"""The verdicts' page: what it says about each claim, that nothing outside gets in, and that it stays small."""

import ast
import json
import math
import os
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dpaudit.mechanisms import Laplace
from dpaudit.reports import ClaimEntry, verdicts_json, write_again, write_report, write_verdicts
from dpaudit.reports.consistency import claims_contradiction, verdict_contradiction
from dpaudit.reports.rendering import load_json
from dpaudit.reports.verdict_page import DETAILED, LISTED, shown_in_detail, snippet
from dpaudit.reports.verdict_wording import in_words
from dpaudit.verify import Claim, check
from dpaudit.verify.claim_files import claim_to_dict
from dpaudit.verify.claims import Phase
from dpaudit.verify.guarantees import PureDP
from dpaudit.verify.results import Verdict, Witness
from dpaudit.verify.samplers import BallsInBins

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>&amp;$\\frac{ \x00 {{ 7*191 }} \\' '''"
CLAIM = {"id": "digits-gaussian", "epsilon": 2.445, "delta": 1e-5, "mechanism": {"name": "gaussian", "clip": 1.0}}
NOTES = {"accountant": "PLD", "epsilon": 2.4, "valid": True, "gap": 0.1, "contradicted": False, "note": "by a theorem"}
ROWS = [
    NOTES,
    {**NOTES, "accountant": "GDP/CLT", "epsilon": 1.618, "valid": False, "gap": -0.21, "contradicted": True},
    {**NOTES, "accountant": "naive composition", "epsilon": "inf", "gap": "inf"},
    {**NOTES, "accountant": "RDP", "epsilon": None, "valid": False, "gap": None, "note": "its moments are infinite"},
    {**NOTES, "accountant": "somebody's", "epsilon": 3.0, "valid": False, "gap": 0.6},
]


class Page(HTMLParser):
    """Tags with attributes and the text; complains about tags that are not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag != "meta":
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


def refuted(samples: ModuleType, **changes: Any) -> Verdict:
    witness = Witness("equal", 26_000, 0.5, [[0.0031, 26_000]], "remove", "privacy loss >= 1.6087")
    settings = {
        "id": "table-13", "verdict": "refuted", "reason": "26,000 coordinates force it", "epsilon_claimed": 1.606,
        "epsilon_lower": 1.7776, "epsilon_upper": 2.386, "delta_lower": 2.475e-5, "delta_upper": 4.9e-4,
        "witness": witness, "published_epsilon": 1.60693,
    }  # fmt: skip
    return samples.make_verdict(**{**settings, **changes})


def entries(samples: ModuleType) -> list[ClaimEntry]:
    """Certified, undecided without an upper bound, refuted with everything."""
    undecided = samples.make_verdict(
        id="open", verdict="undecided", reason="a theorem would decide", epsilon_lower=0.0, epsilon_upper=math.inf,
        delta_lower=0.0, delta_upper=1.0, methods=[], assumptions=[],
    )  # fmt: skip
    table = {**CLAIM, "id": "table-13", "epsilon": 1.606}
    return [
        ClaimEntry(samples.make_verdict(), CLAIM, "dpaudit verify a.toml --only digits-gaussian", ROWS[:1]),
        ClaimEntry(undecided),
        ClaimEntry(refuted(samples), table, "dpaudit verify a.toml --only table-13", ROWS),
    ]


def read(path: Path) -> Page:
    return Page(path.read_text("utf-8"))


@pytest.fixture(scope="module")
def written(samples: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of `entries`, written once for every test that only reads it."""
    return write_verdicts(entries(samples), tmp_path_factory.mktemp("page"), versions={"dpaudit": "0.1.0"})


def test_every_part_of_the_report_is_there(written: Path) -> None:
    text = read(written).text
    assert "1 of 3 claims is refuted" in text
    places = [text.index(part) for part in ("How to read this", "All verdicts", "The claim ", "machine-readable")]
    assert places == sorted(places)
    for part in (
        "The promise is broken: the mechanism can leak at least epsilon = 1.777 at delta = 1e-5 ; epsilon = 1.606 was",
        "The promise is kept, by proof: the mechanism leaks at most epsilon = 2.445 at delta = 1e-5 ; epsilon = 2.445",
        "is at least 0, with no upper limit known at delta = 1e-5",
        "26,000 coordinates force it", "privacy loss >= 1.6087", "0.0031 in 26,000", "epsilon = 1.607",
        "dpaudit verify a.toml --only table-13", "divided by the public expected batch size", "replayed_lower(parsed",
        "wrong here: less than is proved to leak", "its moments are infinite", "not proven, not contradicted", "∞",
        "a proven limit", "Not compared in this run", "None was recorded", "Not recorded", "Written by dpaudit 0.1.0",
    ):  # fmt: skip
        assert part in text, part


def test_refuted_claims_come_first_and_lead_to_their_details(written: Path) -> None:
    page = read(written)
    links = [str(tag["href"]) for name, tag in page.tags if name == "a"]
    assert links == ["#claim-3", "#claim-2", "#claim-1", "verdicts.json"]
    sections = [tag["id"] for name, tag in page.tags if name == "section" and "id" in tag]
    assert [f"#{name}" for name in sections] == links[:3]


def test_only_contradicted_accountants_are_marked(written: Path) -> None:
    found = re.findall(r'<span class="bad">(.*?)</span>', written.read_text("utf-8"))
    assert found == ["wrong here: less than is proved to leak"]


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"epsilon_lower": 1.6060004}, "at least epsilon = 1.6060004 at"),
        ({"epsilon_lower": math.inf}, "no epsilon is enough at delta = 1e-5; epsilon"),
        ({"confidence": 0.95}, "at delta = 1e-5 (95% confidence); epsilon"),
        ({"verdict": "certified", "epsilon_upper": 1.60599999}, "at most epsilon = 1.606 at"),
        (
            {"verdict": "certified", "epsilon_claimed": 1.60512345, "epsilon_upper": 1.60512344},
            "epsilon = 1.60512345 a",
        ),
        ({"verdict": "undecided"}, "between 1.777 and 2.386 at"),
    ],
)
def test_numbers_are_rounded_to_the_safe_side(changes: dict[str, Any], part: str, samples: ModuleType) -> None:
    assert part in in_words(refuted(samples, **changes))


def test_hostile_text_stays_text(samples: ModuleType, tmp_path: Path) -> None:
    witness = Witness(HOSTILE, 1, 1.0, [[1.0, 1]], "add", HOSTILE)
    verdict = refuted(
        samples, id=HOSTILE, reason=HOSTILE, methods=[HOSTILE], assumptions=[HOSTILE], witness=witness
    )  # fmt: skip
    claim = {"id": HOSTILE, "source": HOSTILE, HOSTILE: {"nested": [HOSTILE]}}
    row = {**NOTES, "accountant": HOSTILE, "note": HOSTILE}
    entry = ClaimEntry(verdict, claim, HOSTILE, [row])
    page = read(write_verdicts([entry], tmp_path, versions={"dpaudit": HOSTILE}))
    assert not {"script", "img"} & {tag for tag, _ in page.tags}
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    assert page.text.count("<script>alert(1)</script>\"'><img src=x onerror=alert(2)>") > 10
    assert "1337" not in page.text
    text = snippet(entry)
    assert text is not None
    calls = {
        node.func.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call) and hasattr(node.func, "id")
    }
    assert calls == {"parse_claims", "replayed_lower", "Witness", "print", "float"}


@pytest.mark.parametrize("kind", ["poisson", "balls-in-bins"])
def test_the_snippet_prints_the_bounds_of_the_verdict(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A witness of batches that are drawn otherwise proves less alone than the search did."""
    noise = Laplace(1.0, dimension=2)
    phase = Phase(noise, 10, 0.1) if kind == "poisson" else Phase(noise, sampler=BallsInBins(10, 3))
    claim = Claim(1.0, 1e-5, [Phase(noise, 1, 0.5), phase], id="drawn")
    verdict = check(claim)
    text = snippet(ClaimEntry(verdict, claim_to_dict(claim)))
    assert text is not None
    exec(text, {})
    assert capsys.readouterr().out.split() == [str(verdict.delta_lower), str(verdict.epsilon_lower)]


def test_the_snippet_holds_the_claim_and_the_witness_themselves(samples: ModuleType) -> None:
    entry = ClaimEntry(refuted(samples), {**CLAIM, "mechanism": {"clip_norm": "inf", "k": 1e-300}})
    text = snippet(entry)
    assert text is not None
    values = {
        target.id: ast.literal_eval(node.value)
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Name) and target.id != "curve"
    }
    assert values["claim"] == entry.claim
    assert Witness(**values["witness"]) == entry.verdict.witness
    assert snippet(ClaimEntry(refuted(samples))) is None
    assert snippet(ClaimEntry(samples.make_verdict(), CLAIM)) is None


def test_the_page_needs_nothing_but_itself(written: Path) -> None:
    text = written.read_text("utf-8")
    assert not re.search(r"https?:|//[\w-]+\.|@import|javascript:", text)
    assert set(re.findall(r"url\((.)", text)) <= {"#"}
    page = Page(text)
    assert not {"script", "link", "iframe", "object", "embed", "img", "base"} & {tag for tag, _ in page.tags}
    policy = next(tag["content"] for name, tag in page.tags if name == "meta" and tag.get("http-equiv"))
    assert str(policy).startswith("default-src 'none'")
    ids = [tag["id"] for _, tag in page.tags if "id" in tag]
    assert len(ids) == len(set(ids)) > 100
    figures = [tag for name, tag in page.tags if name == "svg"]
    assert len(figures) == 6
    assert all("Promised: " in str(figure["aria-label"]) for figure in figures)


def test_the_json_is_the_verdicts_format_and_leads_to_the_same_page(
    samples: ModuleType, written: Path, tmp_path: Path
) -> None:
    found, data = entries(samples), written.with_name("verdicts.json")
    document = load_json(data, "verdicts")
    assert document["format"] == "dpaudit-verdicts/1"
    assert [Verdict.from_dict(claim) for claim in document["claims"]] == [entry.verdict for entry in found]
    assert document["claims"][2]["accountants"] == ROWS
    second = write_again(data, tmp_path / "b")
    assert written.read_bytes() == second.read_bytes()
    assert {path.name for path in (tmp_path / "b").iterdir()} == {"verdicts.html", "verdicts.json"}


def test_plain_verdicts_and_audits_are_rendered_again_too(samples: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "plain.json").write_text(verdicts_json([refuted(samples)]))
    assert "The claim is refuted" in read(write_again(tmp_path / "plain.json", tmp_path / "c")).text
    audit = write_report(samples.make_result(), tmp_path / "audit")
    assert write_again(tmp_path / "audit" / "result.json", tmp_path / "d").read_bytes() == audit.read_bytes()


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"claims": [{}]}, "claims"),
        ({"claims": 3}, "claims"),
        ({"accountants": [{**NOTES, "epsilon": "many"}]}, "accountants"),
        ({"accountants": [{"accountant": "RDP"}]}, "accountants"),
        ({"claim": "text"}, "claim"),
        ({"command": 7}, "command"),
    ],
)
def test_what_is_no_verdicts_file_is_refused(
    change: dict[str, Any], where: str, samples: ModuleType, tmp_path: Path
) -> None:
    document = json.loads(verdicts_json([refuted(samples)]))
    if "claims" in change:
        document.update(change)
    else:
        document["claims"][0].update(change)
    (tmp_path / "bad.json").write_text(json.dumps(document))
    with pytest.raises(ValueError, match=f"to follow verdicts.schema.json: .*{where}") as refusal:
        write_again(tmp_path / "bad.json", tmp_path / "out")
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("number", "changes", "words"),
    [
        (0, {"epsilon_claimed": 2.0}, "gaussian: it is certified, and epsilon is at least 2.4449, not at most 2."),
        (0, {"delta_claimed": 9e-6, "epsilon_upper": 2.5}, "certified, and delta is at most 9.996e-06, not 9e-06."),
        (0, {"delta_claimed": 9e-6, "epsilon_lower": 2.0}, "and delta is at least 9.993e-06, not at most 9e-06"),
        (2, {"epsilon_claimed": 2.4}, "table-13: it is refuted, and epsilon is at most 2.386, not above 2.4."),
        (2, {"delta_claimed": 1e-3}, "table-13: it is refuted, and delta is at most 0.00049, not above 0.001."),
        (0, {"epsilon_claimed": 2.5}, "digits-gaussian: its epsilon is 2.5, and that of the claim beside it 2.445."),
        (0, {"delta_claimed": 0.2}, "digits-gaussian: its delta is 0.2, and that of the claim beside it 1e-05."),
        (0, {"claim": {**CLAIM, "delta": 0}}, "its delta is 1e-05, and that of the claim beside it 0."),
        (0, {"id": "other"}, "other: its id is 'other', and that of the claim beside it 'digits-gaussian'."),
        (1, {"id": "digits-gaussian"}, "the id 'digits-gaussian' is that of two claims."),
    ],
)
def test_verdicts_that_contradict_themselves_are_refused(
    number: int, changes: dict[str, Any], words: str, written: Path, tmp_path: Path
) -> None:
    document = json.loads(written.with_name("verdicts.json").read_bytes())
    document["claims"][number].update(changes)
    (tmp_path / "edited.json").write_text(json.dumps(document))
    with pytest.raises(ValueError, match=r"edited\.json to agree with itself: ") as refusal:
        write_again(tmp_path / "edited.json", tmp_path / "out")
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_guarantee_that_is_not_that_of_the_claim_is_refused() -> None:
    claim = Claim(1.0, 1e-5, [Phase(Laplace(scale=1.0))], id="a", guarantee=PureDP(2.0))
    verdict = check(claim)
    table = claim_to_dict(claim)
    assert claims_contradiction([(verdict, table)]) == ""
    table["guarantee"]["epsilon"] = 3.0
    assert "its guarantee is {" in claims_contradiction([(verdict, table)])


def test_claims_without_a_name_are_no_contradiction(samples: ModuleType) -> None:
    assert claims_contradiction([(samples.make_verdict(id=""), None)] * 2) == ""


@pytest.mark.parametrize("bound", ["lower", "upper"])
def test_bounds_that_meet_a_claim_up_to_rounding_are_no_contradiction(bound: str, samples: ModuleType) -> None:
    at = {"lower": ("certified", 1 + 1e-8, 1.0), "upper": ("refuted", 1 - 1e-8, 1 + 1e-9)}[bound]
    verdict = samples.make_verdict(
        verdict=at[0], epsilon_lower=2.445 * at[1], epsilon_upper=2.445 * at[1], delta_lower=1e-5 * at[2],
        delta_upper=1e-5 * at[2],
    )  # fmt: skip
    assert verdict_contradiction(verdict) == ""


@pytest.mark.parametrize("value", [10**400, "nested"])
def test_numbers_and_tables_out_of_all_bounds_are_refused(value: Any, samples: ModuleType, tmp_path: Path) -> None:
    if value == "nested":
        for _ in range(800):
            value = [value]
    document = json.loads(verdicts_json([refuted(samples)]))
    document["claims"][0]["claim"] = {"steps": value}
    (tmp_path / "bad.json").write_text(json.dumps(document))
    with pytest.raises(ValueError, match="range of floats, not too deeply nested"):
        write_again(tmp_path / "bad.json", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("format_", ["dpaudit-verdicts/1", "dpaudit-result/2"])
def test_a_key_that_is_there_twice_is_refused(format_: str, tmp_path: Path) -> None:
    """Whoever reads the file elsewhere may take the other one."""
    (tmp_path / "bad.json").write_text(f'{{"format": "{format_}", "verdict": "refuted", "verdict": "certified"}}')
    with pytest.raises(ValueError, match=r"bad\.json to hold JSON: the key 'verdict' is there twice"):
        write_again(tmp_path / "bad.json", tmp_path / "out")


def test_what_is_no_whole_json_or_no_file_is_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "half.json").write_text('{"format": "dpaudit-verdicts/1", "claims": [{"id": "a')
    with pytest.raises(ValueError, match=r"half\.json to hold JSON: Unterminated string"):
        write_again(tmp_path / "half.json", tmp_path / "out")
    for name, named in (("none.json", "No such file"), ("", "Is a directory")):
        with pytest.raises(ValueError, match=f"{tmp_path / name} to hold the JSON of an audit: {named}"):
            write_again(tmp_path / name, tmp_path / "out")


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b'{"format": "dpaudit-verdicts/2"}', b'{"format": NaN}'])
def test_other_files_are_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_bytes(content)
    with pytest.raises(ValueError, match="Expected"):
        write_again(tmp_path / "bad.json", tmp_path / "out")


def test_a_failure_half_way_leaves_the_old_report(
    samples: ModuleType, written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(written.parent, tmp_path, dirs_exist_ok=True)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    written: list[int] = []

    def disk_full(descriptor: int) -> None:
        written.append(descriptor)
        if len(written) == 2:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", disk_full)
    with pytest.raises(OSError, match="No space left"):
        write_verdicts(entries(samples)[:1], tmp_path, versions={})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.slow
def test_thousands_of_claims_leave_a_page_that_can_be_used(samples: ModuleType, tmp_path: Path) -> None:
    claims = 2 * LISTED
    kinds = ["certified"] * (claims - 10) + ["refuted", "undecided"] * 5
    verdicts = [samples.make_verdict(id=f"claim {i}", verdict=kind) for i, kind in enumerate(kinds)]
    detailed = shown_in_detail(verdicts)
    assert len(detailed) == DETAILED
    assert [verdicts[i].verdict for i in detailed] == ["refuted"] * 5 + ["undecided"] * 5 + ["certified"] * 20
    path = write_verdicts([ClaimEntry(verdict) for verdict in verdicts], tmp_path, versions={})
    assert path.stat().st_size < 2_000_000
    page = Page(path.read_text("utf-8"))
    assert f"The table lists {LISTED:,} of {claims:,} claims" in page.text
    assert f"{DETAILED} of {claims:,} claims are explained" in page.text
    assert len([1 for name, tag in page.tags if name == "th" and tag["scope"] == "row"]) == LISTED
    assert len(json.loads((tmp_path / "verdicts.json").read_text())["claims"]) == claims


def test_a_run_that_was_stopped_at_once_still_has_a_page(tmp_path: Path) -> None:
    assert "No claim was checked" in read(write_verdicts([], tmp_path, versions={})).text


def test_no_page_is_wider_than_its_window(
    samples: ModuleType, written: Path, browser: ModuleType, tmp_path: Path
) -> None:
    long = "a" * 300
    stretched = refuted(samples, id=long, reason=long, assumptions=[long])
    odd = ClaimEntry(stretched, {long: long, "id": long}, long, [{**NOTES, "accountant": long, "note": long}])
    pages = {
        "all": written.read_text("utf-8"),
        "long": write_verdicts([odd], tmp_path / "long", versions={}).read_text("utf-8"),
    }
    pages = {name: text.replace("<details>", "<details open>") for name, text in pages.items()}
    pages["control"] = pages["all"].replace("<h2>All", '<h2 style="width: 1500px">All')
    for key, (width, height, out) in browser.measure(tmp_path, pages).items():
        name, window = key.split("@")
        if name == "control":
            assert "H2." in out
        else:
            assert (width, out) == (int(window), []), key
            assert height > 1000


def test_the_page_is_drawn_without_complaint(written: Path, browser: ModuleType, tmp_path: Path) -> None:
    assert browser.browse(tmp_path, written, "--dump-dom")[1] == []
    text, page = written.read_text("utf-8"), tmp_path / "verdicts.html"
    page.write_text(text.replace("</main>", "<script>document.title = 'ran'</script></main>"), "utf-8")
    dom, console = browser.browse(tmp_path, page, "--dump-dom")
    assert "<title>ran" not in dom
    assert any("Content Security Policy" in line for line in console)


def test_replacing_a_verdict_changes_the_page(samples: ModuleType, written: Path, tmp_path: Path) -> None:
    """The positive control of "the same page"."""
    one = entries(samples)
    other = [replace(one[0], command="dpaudit verify b.toml"), *one[1:]]
    again = write_verdicts(other, tmp_path, versions={"dpaudit": "0.1.0"})
    assert again.read_bytes() != written.read_bytes()
