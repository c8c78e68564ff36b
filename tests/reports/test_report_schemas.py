"""The JSON: what is written can be read again and follows the schemas; what does not is refused in one line."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from dpaudit.reports import load_result, result_json
from dpaudit.reports.rendering import schema
from dpaudit.verify.results import VERDICTS_FORMAT, Witness

KINDS = ("not_refuted", "inconclusive", "refuted", "curve_only", "claim_check", "as_run", "gave_up")


def written(tmp_path: Path, data: Any) -> Path:
    path = tmp_path / "r.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_a_result_survives_the_round_trip(kind: str, samples: ModuleType, tmp_path: Path) -> None:
    result = samples.make_result(kind)
    loaded = load_result(written(tmp_path, result_json(result)))
    assert loaded.to_dict() == result.to_dict()
    assert loaded.claim_check.epsilon_upper == result.claim_check.epsilon_upper  # infinity too


def test_unknown_keys_are_allowed_at_every_level(samples: ModuleType, tmp_path: Path) -> None:
    def extend(value: Any) -> Any:
        if isinstance(value, dict):
            keep = ("tpr_at_fpr", "budget", "versions")
            return {**{k: v if k in keep else extend(v) for k, v in value.items()}, "from_the_future": 1}
        return [extend(item) for item in value] if isinstance(value, list) else value

    result = samples.make_result("claim_check")
    assert load_result(written(tmp_path, extend(result.to_dict()))).claim_check == result.claim_check


def test_format_1_is_still_read(samples: ModuleType, tmp_path: Path) -> None:
    data = {**samples.make_result().to_dict(), "format": "dpaudit-result/1"}
    del data["control"]
    assert load_result(written(tmp_path, data)).control is None


def replaced(*path: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(data: Any) -> None:
        for key in path[:-1]:
            data = data[key]
        data[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (replaced("format", value="dpaudit-result/3"), "$.format"),
        (replaced("control", "power", value=1.2), "$.control.power"),
        (replaced("verdict", value="private"), "$.verdict"),
        (replaced("confidence", value=1.2), "$.confidence"),
        (replaced("attacks", 1, "auc", value="high"), "$.attacks[1].auc"),
        (replaced("attacks", 1, "epsilon_lower", value=-0.1), "$.attacks[1].epsilon_lower"),
        (replaced("attacks", 0, "roc", "tpr", value=[0.5]), "$.attacks[0].roc"),
        (replaced("certified_curve", "epsilon", value=["x"]), "$.certified_curve"),
        (replaced("claim_check", "verdict", value="proven"), "$.claim_check.verdict"),
        (replaced("epsilon_claimed", value=10**400), "$.epsilon_claimed"),
        (replaced("attacks", 1, "curve_test", "inputs", "fp", value=None), "$.attacks[1].curve_test"),
        (replaced("attacks", 1, "details", value={"look": "second"}), "$.attacks[1].details.look"),
        (replaced("claim_check", "gdp_mu", value=1.0), "'tpr_at_fpr' is a dependency of 'gdp_mu'"),
        (lambda data: data.pop("attacks"), "'attacks' is a required property"),
    ],
)
def test_a_wrong_result_is_refused_by_place(change: Any, names: str, samples: ModuleType, tmp_path: Path) -> None:
    data = json.loads(result_json(samples.make_result()))
    change(data)
    path = written(tmp_path, data)
    with pytest.raises(ValueError, match=r"Expected .*r\.json to follow") as caught:
        load_result(path)
    assert names in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        ("refuted", replaced("verdict", value="not_refuted"), "it is not_refuted, and what refutes it is clipbkd:"),
        ("refuted", replaced("refuted_by", value=["other:epsilon_lower"]), "refuted by 'other:epsilon_lower', which"),
        ("refuted", replaced("refuted_by", value=["clipbkd:p_value"]), "refuted by 'clipbkd:p_value', which"),
        ("refuted", replaced("refuted_by", value=[]), "contradicts the claim, and is not among what refutes it"),
        ("refuted", replaced("attacks", value=[]), "refuted by 'clipbkd:"),
        ("not_refuted", replaced("control", "found", value=False), "not_refuted, and its positive control does not"),
        ("not_refuted", replaced("reproduce", "noise_seen", value=[0.0, 0.5]), "its training was seen to lack noise"),
        (
            "not_refuted",
            replaced("attacks", 0, "epsilon_lower", value=99.0),
            "epsilon_lower contradicts the claim, and",
        ),
        ("claim_check", replaced("claim_check", "verdict", value="certified"), "it is certified, and delta is at most"),
        ("not_refuted", replaced("claim_check", "verdict", value="refuted"), "it is refuted, and delta is at least"),
        ("not_refuted", replaced("verdict", value="refuted"), "it is refuted, and what refutes it is nothing"),
        ("not_refuted", replaced("epsilon_lower", value=9.0), "epsilon is at least 9, and no attack shows more than"),
        ("not_refuted", replaced("epsilon_lower", value=None), "and all attacks together None"),
        ("not_refuted", replaced("attacks", 1, "bound", "epsilon_lower", value=7.0), "by a bound of 7"),
        ("not_refuted", replaced("claim_check", "epsilon_lower", value=5.0), "epsilon is at least 5 and at most"),
        ("not_refuted", replaced("claim_check", "verdict", value="undecided"), "which decides 1e-05"),
        ("not_refuted", replaced("claim_check", "epsilon_claimed", value=9.0), "claim-check is of epsilon 9, and"),
        (
            "not_refuted",
            replaced("claim", "epsilon", value=0.1),
            "and the claim is of epsilon 0.1",
        ),
        (
            "not_refuted",
            replaced("claim", "delta", value=0.1),
            "that of the claim beside it 0.1",
        ),
        ("not_refuted", replaced("claim", "delta", value=0), "that of the claim beside it 0"),
        (
            "not_refuted",
            replaced("claim_check", "delta_claimed", value=0.2),
            "claim-check: its delta is 0.2, and",
        ),
        ("not_refuted", replaced("attacks", 1, "bound", "delta", value=0.2), "clipbkd has a bound at delta 0.2, and"),
        ("as_run", replaced("check_as_run", "delta_claimed", value=0.2), "as-run: its delta is 0.2, and that of"),
        ("not_refuted", replaced("control", "power", value=0.0), "found what it finds in a share of 0"),
        ("curve_only", replaced("attacks", 1, "curve_violation", "violated", value=False), "not find violated"),
        ("curve_only", replaced("attacks", 1, "curve_violation", "p_value", value=1.0), "not find violated"),
    ],
)
def test_a_result_that_contradicts_itself_is_refused(
    kind: str, change: Any, words: str, samples: ModuleType, tmp_path: Path
) -> None:
    data = json.loads(result_json(samples.make_result(kind)))
    change(data)
    with pytest.raises(ValueError, match=r"Expected .*r\.json to agree with itself: ") as caught:
        load_result(written(tmp_path, data))
    assert words in str(caught.value)


@pytest.mark.parametrize("text", ["", "[1", "NaN", '{"format": Infinity}', "[" * 100_000, "\x00\xff", "[]", "3"])
def test_a_file_that_is_no_result_is_refused_in_one_line(text: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"r\.json") as caught:
        load_result(written(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_an_absent_file_or_a_folder_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent.json"):
        with pytest.raises(ValueError, match=r"Expected .* to hold the JSON of an audit"):
            load_result(path)


def test_the_json_holds_no_number_that_json_does_not_know(samples: ModuleType) -> None:
    text = result_json(samples.make_result("claim_check"))
    data = json.loads(text, parse_constant=lambda constant: pytest.fail(constant))
    assert data["claim_check"]["epsilon_upper"] == "inf"
    assert text.isascii()


def test_both_schemas_are_schemas_and_share_one_verdict() -> None:
    for name in ("result", "verdicts"):
        Draft202012Validator.check_schema(schema(name))
    result, verdicts = (schema(name)["$defs"] for name in ("result", "verdicts"))
    assert {key: result[key] for key in verdicts} == verdicts


def test_the_verdict_file(samples: ModuleType) -> None:
    witness = Witness("equal", 26_000, 0.5, [[0.0031, 26_000]], "remove", "loss > 1.23")
    verdicts = [
        samples.make_verdict(),
        samples.make_verdict(verdict="refuted", witness=witness, epsilon_upper=math.inf, published_epsilon=1.606),
    ]
    validator = Draft202012Validator(schema("verdicts"))
    data = {"format": VERDICTS_FORMAT, "claims": [verdict.to_dict() for verdict in verdicts]}
    validator.validate(data)
    data["claims"][1]["witness"]["direction"] = "sideways"
    assert [list(error.path) for error in validator.iter_errors(data)] == [["claims", 1, "witness"]]
