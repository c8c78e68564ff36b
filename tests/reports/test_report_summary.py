"""The first screen: what decided, what was tested and what was not, for every verdict."""

import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dpaudit.audit.inputs.files import InputError
from dpaudit.audit.inputs.recipes import Recipe
from dpaudit.reports import summary, verdict_sentence, write_report
from dpaudit.reports.summary import curve_finding, decision, scope, tiles, untested
from dpaudit.reports.wording import check_summary
from dpaudit.verify.results import AuditResult, Verdict

Written = Callable[[str], Path]
ROOT = Path(__file__).parents[2]


def with_report(result: AuditResult, **table: Any) -> AuditResult:
    recipe = {**result.reproduce["recipe"], "report": table}
    return replace(result, reproduce={**result.reproduce, "recipe": recipe})


@pytest.mark.parametrize(
    ("kind", "value", "note"),
    [
        ("not_refuted", "ε ≤ 2.445", "by proof; 2.445 was promised"),
        ("inconclusive", "7 of 20", "19 of 20 are asked for"),
        ("curve_only", "seen 72.5%", "at most 49.64% allowed by the mechanism"),
        ("refuted", "ε ≥ 2.701", "by experiment; 2.445 was promised"),
        ("claim_check", "ε ≥ 5,098", "by proof; 0.1 was promised"),
        ("as_run", "ε ≥ 11.38", "by proof, of the batches as they are drawn; 2.445 was promised"),
        ("gave_up", "nothing", "budget of 10m used up"),
    ],
)
def test_the_number_that_decided(kind: str, value: str, note: str, samples: ModuleType) -> None:
    tile = decision(samples.make_result(kind))
    assert (tile.value, note in tile.note) == (value, True)


def test_batches_that_are_not_those_that_were_accounted_decide(samples: ModuleType) -> None:
    result = samples.make_result("as_run")
    assert "the batches that the training draws, which are not those that were accounted" in verdict_sentence(result)
    assert ("batches, as run", "kind shuffled, batches 10, epochs 6", True) in scope(result)
    assert not any(
        "certified" in tile.note or "2.445" in tile.value for tile in tiles(result) if tile.label != "Promised"
    )
    certified = replace(result, verdict="not_refuted", refuted_by=[], check_as_run=make_less(result.claim_check))
    assert "certified, epsilon is at most 2.1 " in verdict_sentence(certified)
    summary_words = check_summary(certified.claim_check, as_run=certified.check_as_run)
    assert summary_words.count("A valid upper bound proves") == 2
    assert summary_words.startswith("As accounted: ")


def test_what_was_accounted_decides_where_only_that_is_refuted(samples: ModuleType, tmp_path: Path) -> None:
    """The page said that an attack decided, and that the training is not what the recipe says."""
    run = samples.make_result("as_run")
    refuted = replace(run.check_as_run, epsilon_claimed=2.445)
    result = replace(run, claim_check=refuted, check_as_run=make_less(run.claim_check), refuted_by=["claim-check"])
    tile = decision(result)
    assert (tile.label, tile.value) == ("Decided by: calculation", "ε ≥ 11.38")
    assert tile.note == "by proof, of the batches as accounted; 2.445 was promised"
    assert not any("this training is not it" in tile.note for tile in tiles(result))
    page = write_report(result, tmp_path).read_text()
    assert "this training is not it" not in page
    assert "A correct claim is refuted by mistake" not in page


def make_less(verdict: Verdict) -> Verdict:
    return replace(verdict, epsilon_upper=2.1)


def test_a_refutation_by_the_curve_says_that_the_recipe_would_keep_the_promise(samples: ModuleType) -> None:
    notes = {tile.label: tile.note for tile in tiles(samples.make_result("curve_only"))}
    assert notes["Mechanism as described, by proof"].endswith("would keep the promise; this training is not it")
    assert "this number alone would not refute" in notes["Shown by attack"]
    for kind in ("not_refuted", "claim_check"):
        assert not any("this training is not it" in tile.note for tile in tiles(samples.make_result(kind)))


def test_the_finding_is_the_attack_with_the_least_p_value(samples: ModuleType) -> None:
    result = samples.make_result("curve_only")
    weaker = replace(
        result.attacks[1], name="weaker", curve_violation=replace(result.attacks[1].curve_violation, p_value=0.04)
    )
    both = replace(
        result, attacks=[weaker, *result.attacks], refuted_by=["weaker:curve_violation", "clipbkd:curve_violation"]
    )
    found = curve_finding(both)
    assert found is not None
    assert found[0].name == "clipbkd"
    assert curve_finding(samples.make_result()) is None


def test_what_was_tested_and_what_was_not(samples: ModuleType) -> None:
    result = samples.make_result()
    lines = summary.tested(result)
    assert lines[0] == "The claim, by calculation, for the mechanism as described: certified."
    assert "clipbkd: 25,000 models on each side; the attacker sees outputs of retrained models." in lines
    silent = replace(result, attacks=result.attacks[1:])
    assert any("How this very file came about" in line for line in untested(silent))
    assert any("tuning, preprocessing, other releases: not stated" in line for line in untested(silent))
    told = with_report(result, tuning="none", preprocessing="none", other_releases="none")
    assert not any("not stated" in line for line in untested(told))


def test_what_the_owner_states_is_shown_and_what_is_missing_is_not_stated(samples: ModuleType) -> None:
    rows = {name: (text, known) for name, text, known in scope(with_report(samples.make_result(), tuning="a grid"))}
    assert rows["tuning"] == ("a grid", True)
    assert rows["privacy unit"] == ("not stated", False)
    assert rows["neighbours"] == ("add-remove", True)


def test_an_unknown_attack_tells_what_its_attacker_sees(samples: ModuleType) -> None:
    result = samples.make_result()
    attack = replace(result.attacks[1], name="new", arms={"attacker_sees": "everything"})
    assert "the attacker sees everything" in summary.tested(replace(result, attacks=[attack]))[1]
    assert "the attacker sees not stated" in summary.tested(replace(result, attacks=[replace(attack, arms={})]))[1]


def test_a_planted_fault_is_named_before_the_verdict(samples: ModuleType, written: Written, tmp_path: Path) -> None:
    result = samples.make_result("refuted")
    planted = {**result.reproduce, "recipe": {**result.reproduce["recipe"], "planted_defect": "half-noise"}}
    text = write_report(replace(result, reproduce=planted), tmp_path).read_text("utf-8")
    assert 0 < text.index("Positive control, not a finding") < text.index("Claim refuted</h2>")
    assert "Positive control, not a finding" not in written("refuted").read_text("utf-8")


def test_date_machine_and_signature_lines(written: Written) -> None:
    text = written("not_refuted").read_text("utf-8")
    assert text.count("2026-03-01 17:05 UTC") == 2
    for part in ("Linux, x86_64, 2 cores", "Auditor", "Reviewer", "Name</span>", "Role</span>", "Words used here"):
        assert part in text


def test_what_the_page_on_reports_says_an_owner_can_state(samples: ModuleType) -> None:
    """The table of docs/report.md is read from a recipe, kept, and shown; another key is refused."""
    text = (ROOT / "docs" / "report.md").read_text("utf-8")
    table = tomllib.loads(text.split("```toml\n", 1)[1].split("```", 1)[0])
    example = tomllib.loads((ROOT / "examples" / "digits-headline.toml").read_text())
    assert Recipe.from_dict({**example, **table}).to_dict()["report"] == table["report"]
    assert "report" not in Recipe.from_dict(example).to_dict()
    with pytest.raises(InputError, match=r"report\.auditor"):
        Recipe.from_dict({**example, "report": {"auditor": "me"}})
    shown = {text for _, text, _ in scope(with_report(samples.make_result(), **table["report"]))}
    assert set(table["report"].values()) <= shown
