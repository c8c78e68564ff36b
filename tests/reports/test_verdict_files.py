"""Verdicts for machines: lines of claims, counts of a suite, and badges that any reader can draw."""

import json
import os
import time
from dataclasses import replace
from types import ModuleType
from xml.etree import ElementTree

import pytest

from dpaudit.mechanisms import Gaussian, Laplace
from dpaudit.reports.badge import BAD, GOOD, OPEN, _badge, verdicts_badge
from dpaudit.reports.sarif import id_lines, sarif_result
from dpaudit.reports.verdict_exports import prose
from dpaudit.reports.verdict_files import verdict_text, verdicts_junit, verdicts_sarif
from dpaudit.verify import Claim, Phase, check
from dpaudit.verify.claim_files import claim_to_dict
from dpaudit.verify.samplers import Shuffled


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


def test_claims_that_an_ended_run_left_are_no_successes(samples: ModuleType) -> None:
    verdicts = [replace(samples.make_verdict(verdict="certified"), id="é€")]
    text = verdicts_junit(verdicts, require=None, left=["b", "c\x00"])
    suite = ElementTree.fromstring(text.encode("latin-1"))  # whatever stdout's encoding is
    assert [suite.get(key) for key in ("tests", "failures", "errors")] == ["3", "0", "2"]
    assert [case.get("name") for case in suite][:2] == ["é€", "b"]
    image = ElementTree.fromstring(verdicts_badge(verdicts, left=2))
    assert image.findall("{*}text")[1].text == "1 certified, 2 not checked"
    assert image.findall("{*}rect")[1].get("fill") == OPEN
    for whole in (True, False):
        (run,) = json.loads(verdicts_sarif(verdicts, places={}, version="1", whole=whole))["runs"]
        assert (run["invocations"], run["columnKind"]) == ([{"executionSuccessful": whole}], "unicodeCodePoints")


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


def test_what_prose_prints_of_a_proof_proves_the_promise() -> None:
    """A limit of 1.82849 was printed as 1.829, beside a promise of 1.82851."""
    claim = Claim.single(Gaussian(2.0), epsilon=1.0, delta=1e-5)
    claim = replace(claim, epsilon=round(check(claim).epsilon_upper + 1e-5, 5))
    verdict = check(claim)
    assert verdict.verdict == "certified"
    assert f"is at most {claim.epsilon}." in prose(claim_to_dict(claim), verdict)


def test_what_is_read_as_zero_out_is_told_in_text_and_prose() -> None:
    table = {"id": "a", "adjacency": "add-remove", "sampling": {"kind": "shuffled", "batches": 12, "epochs": 71}}
    for adjacency in ("add-remove", "zero-out"):
        verdict = check(Claim(1.5, 1e-5, [Phase(Gaussian(10.0), sampler=Shuffled(12, 71))], adjacency, id="a"))
        told = "read as zero-out: a ghost that contributes 0" in " ".join(verdict_text(verdict).split())
        assert told == verdict.read_as_zero_out == (adjacency == "add-remove")
        words = prose({**table, "adjacency": adjacency}, verdict)
        assert ("Judged is the same where one record is replaced by one that contributes nothing" in words) == told


@pytest.mark.parametrize(("noise", "shown"), [(0.9, "true epsilon 4.9473 to 4.9474"), (2.0, "true epsilon ")])
def test_brackets_are_rounded_to_their_safe_sides(noise: float, shown: str) -> None:
    verdict = check(Claim.single(Gaussian(noise), epsilon=5.0, delta=1e-5))
    assert verdict.bracket.startswith(shown)
    low, high = (float(word) for word in verdict.bracket.split() if word[0].isdigit())
    assert low <= verdict.epsilon_lower <= verdict.epsilon_upper <= high
    assert high - low < 3e-4
    exact = check(Claim.single(Laplace(2.0, clip_norm=1.0), epsilon=0.5, delta=0.0))
    assert exact.bracket == "true epsilon 0.5 to 0.5"


@pytest.mark.parametrize("epsilon", [4.3771, 4.37715, 4.37717, 4.3771783, 4.37718, 4.38])
def test_a_bracket_as_shown_decides_as_the_verdict_does(epsilon: float) -> None:
    verdict = check(Claim.single(Gaussian(1.0), epsilon=epsilon, delta=1e-5))
    low, high = (float(word) for word in verdict.bracket.split() if word[0].isdigit())
    assert verdict.verdict == ("refuted" if epsilon < 4.3771765 else "certified")
    assert (low > epsilon, high <= epsilon) == (verdict.verdict == "refuted", verdict.verdict == "certified")
    assert low <= verdict.epsilon_lower <= verdict.epsilon_upper <= high
    assert verdict.promise == f"epsilon {epsilon} at delta 1e-05"


def test_a_sampled_verdict_tells_its_confidence_and_what_simulation_lacks() -> None:
    claim = Claim.single(Gaussian(1.0), epsilon=6.0, delta=1e-5)
    text = " ".join(verdict_text(check(claim, method="monte-carlo", rng=1)).split())
    assert "(95% confidence)" in text
    assert "simulation has no upper bound, which the exact method may have" in text
    assert "confidence" not in verdict_text(check(claim))


def test_prose_tells_the_confidence_of_a_sampled_bound_and_that_it_exceeds_the_claim() -> None:
    claim = Claim.single(Gaussian(1.0), epsilon=4.377, delta=9.60733e-6)
    told = prose(claim_to_dict(claim), check(claim, method="monte-carlo", rng=2))
    assert told.endswith("This does not hold: the true epsilon is at least 4.3771 (95% confidence).")


def test_no_infinite_mu_is_printed() -> None:
    """It would say that an attack can find everybody."""
    for noise, epsilon, delta in ((1e-4, 1e9, 0.5), (1.0, 9.0, 1e-5)):
        verdict = check(Claim.single(Gaussian(noise), epsilon=epsilon, delta=delta))
        shown = "of members (mu" in " ".join(verdict_text(verdict).split())
        assert verdict.gdp_mu is not None
        assert shown == (verdict.gdp_mu < float("inf"))
