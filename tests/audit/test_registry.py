"""Entries of the registry of deployments: each rule finds what is wrong and leaves alone what is right."""

import json
import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpaudit.audit.inputs.deployments import Entry, load_entries
from dpaudit.audit.inputs.files import InputError
from dpaudit.audit.registry import check_entry, run_registry
from dpaudit.reports.verdict_exports import EXPORTS
from dpaudit.verify.checking import check
from dpaudit.verify.claim_files import claim_from_dict, claim_to_dict

Command = Callable[..., subprocess.CompletedProcess[str]]


def entry(variant: str | None = "Pure DP", details: str = "", composition: str = "", **parameters: Any) -> Entry:
    loss = {"privacy_parameters": parameters, "privacy_parameters_details": details}
    deployment = {"basic": {"name": "a"}, "dp_variant": {"variant_name": variant}, "privacy_loss": loss}
    deployment["accounting"] = {"composition": composition}
    return Entry.model_validate({"url_slug": "a-2020", "deployment": deployment})


LEVELS = "epsilon = {0} in all:\n  - Level 0: \\\\(\\\\epsilon_0\\\\) = {1}\n  - Level 1: ε_1 = {2}\n"
RHO = r"- Persons: \\(\\rho\\) = {0} (corresponding to \\(\\epsilon\\) = {1} and \\(\\delta = 10^{{-10}}\\))."
FACTOR = "- Pre-amplification: epsilon = 6.8 and delta = 4.08e-8.\n- an 'amplification factor' of 0.124 was applied"
LAPLACE = "Laplace noise with epsilon = {0} (sensitivity = 1, noise scale = 10)"
SCALE = "Laplace noise: sensitivity = 1, scale = {0}"
THIRD = "Laplace noise: sensitivity = 1 and noise scale = 3, so epsilon = {0}"

CASES: list[tuple[str, Entry, str]] = [
    ("pure", entry(epsilon=1.0), "consistent"),
    ("pure with a delta", entry(epsilon=1.0, delta=1e-7), "inconsistent"),
    ("a delta that YAML reads as text", entry("Approximate DP", epsilon=1.0, delta="1e-5"), "consistent"),
    ("approximate without a delta", entry("Approximate DP", epsilon=1.0), "inconsistent"),
    ("zero-concentrated without rho", entry("Zero-concentrated DP", epsilon=1.0), "inconsistent"),
    ("nothing stated", entry(None), "not checkable"),
    ("a custom variant", entry("Custom", epsilon=1.0), "not checkable"),
    ("a sum", entry(epsilon=1.5, composition=LEVELS.format(1.5, 0.4, 1.1)), "consistent"),
    ("a sum, rounded", entry(epsilon=1.5, composition=LEVELS.format(1.5, 0.45, 1.1)), "consistent"),
    ("a sum that is half", entry(epsilon=1.5, composition=LEVELS.format(1.5, 0.25, 0.5)), "inconsistent"),
    ("points against the entry", entry(epsilon=3.0, details="- ε = 1 here\n- ε = 2 there"), "consistent"),
    ("points in a line", entry(epsilon=3.0, details="as follows: • ε = 1 here • ε = 3 there"), "inconsistent"),
    ("a point without a value", entry(epsilon=3.0, details="- ε = 1 here\n- nothing there"), "consistent"),
    ("rho, converted tightly", entry("Zero-concentrated DP", RHO.format(2.56, 17.14), rho=2.56), "consistent"),
    ("rho, converted loosely", entry("Zero-concentrated DP", RHO.format(2.56, 17.91), rho=2.56), "consistent"),
    ("rho, too little", entry("Zero-concentrated DP", RHO.format(2.56, 15.0), rho=2.56), "inconsistent"),
    ("rho beside epsilon", entry("Zero-concentrated DP", rho=0.0728, epsilon=1.3, delta=1e-5), "inconsistent"),
    ("amplified", entry("Approximate DP", composition=FACTOR, epsilon=4.72, delta=5.06e-9), "consistent"),
    (
        "multiplied by the rate",
        entry("Approximate DP", composition=FACTOR, epsilon=0.843, delta=5.06e-9),
        "inconsistent",
    ),
    ("delta not amplified", entry("Approximate DP", composition=FACTOR, epsilon=4.72, delta=4.08e-8), "inconsistent"),
    ("a Laplace scale", entry(epsilon=0.1, details=LAPLACE.format(0.1)), "consistent"),
    ("a Laplace scale, rounded", entry(epsilon=0.3, details=THIRD.format(0.3)), "consistent"),
    ("a Laplace scale, rounded by less", entry(epsilon=0.33, details=THIRD.format(0.33)), "consistent"),
    ("a Laplace scale, said more closely", entry(epsilon=0.3, details=THIRD.format("0.30")), "inconsistent"),
    ("a Laplace scale, rounded to another value", entry(epsilon=0.4, details=THIRD.format(0.4)), "inconsistent"),
    (
        "a Laplace scale and a parameter",
        entry(epsilon=1, details=SCALE.format(1.05)),
        "inconsistent",
    ),
    (
        "a Laplace scale and a power",
        entry(epsilon=1e-5, details=SCALE.format("7e4")),
        "inconsistent",
    ),
    ("another Laplace scale", entry(epsilon=0.1, details=LAPLACE.format(0.9)), "inconsistent"),
]


@pytest.mark.parametrize(("given", "status"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_rule_finds_what_is_wrong_and_leaves_alone_what_is_right(given: Entry, status: str) -> None:
    found = check_entry(given)
    assert found.status == status, found.findings


def test_a_loose_conversion_is_the_one_of_bun_and_steinke() -> None:
    """rho + 2 sqrt(rho log(1/delta)) at rho 2.56 and delta 1e-10, by hand: 2.56 + 2 * 1.6 * 4.79853 = 17.9153."""
    [finding] = [f for f in check_entry(CASES[14][1]).findings if f.rule == "conversion"]
    assert "17.92" in finding.text


GOOD = "url_slug: a\ndeployment: {basic: {name: b}}\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a\n- b", "a table"),
        ("url_slug: [", "not YAML"),
        ("!!python/object/apply:os.system ['true']", "not YAML"),
        ("url_slug: a", "deployment"),
        (
            "a: &a [x, x, x]\n"
            + "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 60)}]\n" for a, b in pairwise("abcdefgh")),
            "url_slug",
        ),
        ("a: &a [*a]\nurl_slug: *a\ndeployment: {basic: {name: b}}", "url_slug"),
        ("url_slug: a\ndeployment: {basic: {name: b}, privacy_loss: {privacy_parameters: {epsilon: -1}}}", "epsilon"),
        ("url_slug: a\ndeployment: {basic: {name: b}, privacy_loss: {privacy_parameters: {delta: 2}}}", "delta"),
        ("url_slug: a\ndeployment: {basic: {name: b}, privacy_loss: {privacy_parameters: {epsilon: true}}}", "epsilon"),
        ("url_slug: a\ndeployment: {basic: {name: b}, privacy_loss: {privacy_parameters: {rho: yes}}}", "rho"),
        ("url_slug: a\ndeployment: {basic: {name: b}, privacy_loss: {privacy_parameters: {delta: off}}}", "delta"),
        (f"{GOOD}---\n{GOOD}", "'a' appears twice"),
        (f"{GOOD}---\n- a", "a table"),
        (f"{GOOD}---\n", "a table"),
        (f"{GOOD}---\nurl_slug: [", "not YAML"),
        (f"{GOOD}---\nurl_slug: b", "deployment"),
        (f"a: &a b\n{GOOD}---\nurl_slug: *a", "not YAML"),
        (GOOD + "# more\n" * 2**18, "bytes"),
        ("", "a table"),
    ],
)
def test_a_file_that_is_no_entry_is_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as refused:
        load_entries(path)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "pre-amplification epsilon = 1000 and amplification factor of 0.1",
        "pre-amplification epsilon = 1e999 and amplification factor of 0.1",
        "pre-amplification epsilon = 3 and amplification factor of 1e99",
        "rho = 1e999 corresponding to epsilon = 1 and delta = 10^-5",
        "epsilon = 1\n- epsilon = 1e-99999999999999999999\n- epsilon = 1e999999999999999999999",
        "Laplace sensitivity = 1e999 with scale = 1e999",
    ],
)
def test_numbers_that_no_float_can_convert_decide_nothing(text: str) -> None:
    loss = {"privacy_parameters": {"epsilon": 1.0, "delta": 1e-6}, "privacy_parameters_details": text}
    deployment = {"basic": {"name": "a"}, "privacy_loss": loss, "implementation": {"mechanisms": text}}
    assert check_entry(Entry.model_validate({"url_slug": "a", "deployment": deployment})).findings == []


def test_a_rho_that_no_conversion_takes_is_left_alone() -> None:
    loss = {"privacy_parameters": {"rho": 1e300, "epsilon": 1e300, "delta": 1e-6}}
    deployment = {"basic": {"name": "a"}, "privacy_loss": loss}
    assert check_entry(Entry.model_validate({"url_slug": "a", "deployment": deployment})).status == "not checkable"


def test_the_command_exits_3_and_writes_a_block_for_each_entry(dpaudit: Command, tmp_path: Path) -> None:
    for name, given in (("good", CASES[0][1]), ("bad", CASES[1][1])):
        table = {**given.model_dump(), "url_slug": name}
        (tmp_path / f"{name}.yaml").write_text(json.dumps(table))
    done = dpaudit("verify", "--registry", ".", "--out", "blocks", folder=tmp_path)
    assert done.returncode == 3
    assert "the primary source decides" in done.stdout
    blocks = {path.name: yaml.safe_load(path.read_text()) for path in (tmp_path / "blocks").iterdir()}
    assert blocks["bad.verification.yaml"]["verification"]["status"] == "inconsistent"
    assert blocks["good.verification.yaml"]["verification"]["findings"][0]["rule"] == "variant"
    assert dpaudit("verify", "--registry", "good.yaml", folder=tmp_path).returncode == 0
    assert dpaudit("verify", folder=tmp_path).returncode == 2
    for words in (
        ["--json", "j.json"],
        ["--require", "certified"],
        ["--rigorous"],
        ["--format", "junit"],
        ["--screen"],
    ):
        done = dpaudit("verify", "--registry", "good.yaml", *words, folder=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert f"Expected --registry without {words[0]}." in done.stderr


def test_a_block_that_cannot_be_written_hides_no_finding(dpaudit: Command, tmp_path: Path) -> None:
    for name, given in (("good", CASES[0][1]), ("bad", CASES[1][1])):
        (tmp_path / f"{name}.yaml").write_text(json.dumps({**given.model_dump(), "url_slug": name}))
        (tmp_path / "blocks" / f"{name}.verification.yaml").mkdir(parents=True)
    bad, good = (
        dpaudit("verify", "--registry", f"{name}.yaml", "--out", "blocks", folder=tmp_path) for name in ("bad", "good")
    )
    assert (bad.returncode, good.returncode) == (3, 2)
    assert "1 inconsistent" in bad.stdout
    assert len(bad.stderr.splitlines()) == 1


CLAIM = {
    "id": "my-model",
    "epsilon": 2.445,
    "delta": 1e-5,
    "mechanism": {"name": "gaussian", "noise_multiplier": 5 / 3},
}


@pytest.mark.parametrize("epsilon", [2.0, 2.445])
def test_a_claim_of_ours_is_an_entry_that_the_reader_takes(tmp_path: Path, epsilon: float) -> None:
    claim = claim_from_dict({**CLAIM, "epsilon": epsilon})
    (tmp_path / "a.yaml").write_text(EXPORTS["registry"](claim_to_dict(claim), check(claim)))
    [read] = load_entries(tmp_path / "a.yaml")
    assert (read.parameters.epsilon, read.parameters.delta) == (epsilon, 1e-5)
    assert run_registry(tmp_path, out=None, show=print, warn=print) == 0


CLAIMED = {"first": 1e-5, "second": 1e-6}


def two_claims() -> str:
    noise = 'mechanism = {name = "gaussian", noise_multiplier = 3.0}'
    claims = [f'[[claim]]\nid = "{name}"\nepsilon = 2.4\ndelta = {delta}\n{noise}' for name, delta in CLAIMED.items()]
    return "\n".join(claims)


def test_entries_of_several_claims_are_read_from_one_file(dpaudit: Command, tmp_path: Path) -> None:
    """As the command writes them, in their order."""
    (tmp_path / "a.toml").write_text(two_claims())
    (tmp_path / "a.yaml").write_text(dpaudit("verify", "a.toml", "--format", "registry", folder=tmp_path).stdout)
    read = load_entries(tmp_path / "a.yaml")
    assert {entry.url_slug: entry.parameters.delta for entry in read} == CLAIMED
    done = dpaudit("verify", "--registry", "a.yaml", folder=tmp_path)
    assert (done.returncode, "2 entries: 2 consistent" in done.stdout) == (0, True)


def test_slugs_that_differ_in_other_letters_alone_have_a_block_each(tmp_path: Path) -> None:
    """The second was written over the first."""
    slugs = ["a b", "a-b", "A-B", "a_b"]
    table = "url_slug: {0}\ndeployment: {{basic: {{name: b}}}}\n"
    (tmp_path / "all.yaml").write_text("---\n".join(table.format(slug) for slug in slugs))
    run_registry(tmp_path / "all.yaml", out=tmp_path / "out", show=print, warn=print)
    written = sorted(file.read_text() for file in (tmp_path / "out").iterdir())
    assert [text.splitlines()[0] for text in written] == sorted(f'url_slug: "{slug}"' for slug in slugs)


def test_prose_and_card_say_what_was_found() -> None:
    claim = claim_from_dict({**CLAIM, "epsilon": 2.0, "source": "| <b>"})
    verdict = check(claim)
    for name in ("prose", "model-card"):
        assert "does not hold: the true epsilon is at least 2.4" in EXPORTS[name](claim_to_dict(claim), verdict)


def test_statements_of_several_claims_have_their_names(dpaudit: Command, tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(two_claims())
    told = dpaudit("verify", "a.toml", "--format", "prose", folder=tmp_path).stdout.splitlines()
    assert [line[: line.index(" is")] for line in told] == [f"{name}: Stated" for name in CLAIMED]
    told = dpaudit("verify", "a.toml", "--format", "model-card", folder=tmp_path).stdout.splitlines()
    assert [line for line in told if "claim |" in line] == [f"| claim | {name} |" for name in CLAIMED]


TREE = {"strategy": "tree", "participation": {"kind": "fixed-order", "separation": 8}}


@pytest.mark.parametrize("name", sorted(EXPORTS))
def test_correlated_noise_is_told_in_every_form(name: str) -> None:
    """It has who takes part when, and no sampling."""
    claim = claim_from_dict({**CLAIM, "steps": 8, "correlation": TREE})
    assert "fixed-order" in EXPORTS[name](claim_to_dict(claim), check(claim))


def test_entries_of_several_claims_are_as_many_documents_with_their_names_to_the_letter() -> None:
    names = ["party \N{PARTY POPPER}", "\x7f\x85\u2028", "\\ud83c\\udf89 \\\N{PARTY POPPER}"]
    claims = [claim_from_dict({**CLAIM, "id": name}) for name in names]
    text = "\n".join(EXPORTS["registry"](claim_to_dict(claim), check(claim)) for claim in claims)
    assert [entry["deployment"]["basic"]["name"] for entry in yaml.safe_load_all(text)] == names
