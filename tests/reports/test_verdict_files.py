"""Verdicts for machines: lines of claims, counts of a suite, and badges that any reader can draw."""

import os
import time
from types import ModuleType
from xml.etree import ElementTree

import pytest

from dpaudit.reports.badge import BAD, GOOD, OPEN, _badge, verdicts_badge
from dpaudit.reports.sarif import id_lines, sarif_result
from dpaudit.reports.verdict_files import verdicts_junit


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("[[claim]]\nid = \"a\"\n\n[[claim]]\n  id='b c'\n", {"a": 2, "b c": 5}),
        ('# id = "x"\nclaim = [\n  {id = "a", epsilon = 1},\n  {epsilon = 1, "id" = "b"},\n]\n', {"a": 3, "b": 4}),
        (r'id = "quote \" and \u00e9"', {'quote " and \u00e9': 1}),
        ('accountant_id = "no"\nsource = "id = 3"\n', {}),
        ('id = "a"\nid = "a"\n', {"a": 1}),
        (r'id = "\q"', {}),
        ('# three """\nid = "a"  # and """ again\nid = "b"\n', {"a": 2, "b": 3}),
        ('id = "a"\nnote = "say \'\'\' so"\nid = "b"\nnote = "say \'\'\' so"\n', {"a": 1, "b": 3}),
        ('id = "a"\nsource = """\nid = "b"\n"""\nnote = \'\'\'\nid = "b"\'\'\'\nid = "b"\n', {"a": 1, "b": 7}),
    ],
)
def test_the_line_of_an_id_is_found_in_every_way_of_writing_it(text: str, lines: dict[str, int]) -> None:
    assert id_lines(text) == lines


def test_lines_are_counted_once_for_all_ids() -> None:
    """A file of 64 MB may hold a million of them."""
    start = time.process_time()
    lines = id_lines("\n" * 2**20 + "".join(f'id = "{i}"\n' for i in range(20_000)))
    assert lines["19999"] == 2**20 + 20_000
    assert time.process_time() - start < 6


@pytest.mark.parametrize(
    ("kinds", "words", "colour"),
    [
        (["certified"] * 12, "12 certified", GOOD),
        (["certified", "undecided"], "1 certified, 1 undecided", OPEN),
        (["certified", "undecided", "refuted"], "1 refuted", BAD),
    ],
)
def test_a_badge_takes_the_colour_of_the_worst_verdict(
    kinds: list[str], words: str, colour: str, samples: ModuleType
) -> None:
    text = verdicts_badge([samples.make_verdict(verdict=kind) for kind in kinds])
    image = ElementTree.fromstring(text)
    label, message = image.findall("{*}rect")
    assert [node.text for node in image.findall("{*}text")] == ["privacy claims", words]
    assert message.get("fill") == colour
    width = float(label.get("width", 0)) + float(message.get("width", 0))
    assert float(image.get("width", 0)) == pytest.approx(width, abs=0.2)
    assert "href" not in text


def test_no_text_of_a_badge_is_markup() -> None:
    image = ElementTree.fromstring(_badge("<script>", "a & b", BAD))
    assert [node.text for node in image.findall("{*}text")] == ["<script>", "a & b"]


def test_a_suite_counts_what_it_skips_and_what_is_required(samples: ModuleType) -> None:
    verdicts = [samples.make_verdict(verdict=kind) for kind in ("certified", "undecided", "refuted")]
    for require, counts in ((None, ["3", "1", "1"]), ("certified", ["3", "2", "0"])):
        suite = ElementTree.fromstring(verdicts_junit(verdicts, require=require))
        assert [suite.get(key) for key in ("tests", "failures", "skipped")] == counts


@pytest.mark.parametrize(
    ("name", "uri"),
    [
        (b"my claims/#1 100%.toml", "my%20claims/%231%20100%25.toml"),
        (b"\xc3\xa4.toml", "%C3%A4.toml"),
        (b"\xe4.toml", "%E4.toml"),  # no UTF-8, which a file's name need not be
    ],
)
def test_a_place_in_sarif_is_a_uri_reference(name: bytes, uri: str) -> None:
    found = sarif_result("a", "error", "b", uri=os.fsdecode(name))
    assert found["locations"][0]["physicalLocation"]["artifactLocation"] == {"uri": uri}
