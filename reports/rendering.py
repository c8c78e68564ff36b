"""The report of one audit: report.html, which needs nothing but itself, and result.json, which holds it all."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from markupsafe import Markup, escape

from dpaudit._files import write_whole
from dpaudit._plain_text import printable
from dpaudit.reports import plots, summary, wording
from dpaudit.reports.consistency import contradiction
from dpaudit.reports.drawing import ATTACK, BAD, GREY, GRID, INK, PROOF
from dpaudit.verify.results import AuditResult

PAGE, DATA = "report.html", "result.json"

_EXPONENT = re.compile(r"(?<![\w.])[\d.]+e-\d+(?![\w.]\w)")
_THEME = {
    INK: "ink", GREY: "grey", GRID: "line", PROOF: "proof", ATTACK: "attack", BAD: "beyond", "#ffffff": "paper",
}  # fmt: skip
_COLOUR = re.compile(f"(?<=: )({'|'.join(_THEME)})\\b")
_CONTROLS = {*range(0x20), *range(0x7F, 0xA0)} - {*map(ord, "\t\n\r")}  # HTML holds none; a terminal obeys them
_UNPRINTED = dict.fromkeys((*_CONTROLS, *range(0x202A, 0x202F), *range(0x2066, 0x206A)), "\ufffd")
_HERE = Path(__file__).parent
_TABLES = {
    "roc": ("fpr", "tpr", "tpr_lower", "tpr_upper"),
    "certified_curve": ("epsilon", "delta_lower", "delta_upper"),
    "tradeoff": ("fpr", "tpr_max"),
}


def write_report(result: AuditResult, out: Path) -> Path:
    """Write report.html and result.json into a folder, each complete or not at all.

    Args:
        result: What the audit found.
        out: Folder; made if absent.

    Returns:
        The path of the page.
    """
    data = (result_json(result) + "\n").encode()
    as_read = AuditResult.from_dict(result.to_dict())  # so that `load_result` leads to the same page
    page = _html(as_read, hashlib.sha256(data).hexdigest()).encode("utf-8", "replace")
    out.mkdir(parents=True, exist_ok=True)
    write_whole({out / DATA: data, out / PAGE: page})
    return out / PAGE


def result_json(result: AuditResult) -> str:
    """The result as JSON text in the format "dpaudit-result/2", ASCII only."""
    return json.dumps(result.to_dict(), indent=2, allow_nan=False)


def load_result(path: Path) -> AuditResult:
    """Read and validate a result.json; unknown keys are ignored.

    Args:
        path: The file.

    Raises:
        ValueError: The file cannot be read, is no JSON, does not follow schemas/result.schema.json, or contradicts
            itself; one line.
    """
    data = load_json(path, "result")
    for where, name, table in _tables(data):
        if table and len({len(table[column]) for column in _TABLES[name]}) > 1:
            raise ValueError(f"Expected {path} to follow result.schema.json: {where}: columns of unequal length.")
    result = AuditResult.from_dict(data)
    check_agrees(path, contradiction(result))
    return result


def check_agrees(path: Path, why: str) -> None:
    """Refuse a file whose parts contradict each other.

    Args:
        path: The file.
        why: From `reports.consistency`.

    Raises:
        ValueError: They do; one line.
    """
    if why:
        raise ValueError(f"Expected {path} to agree with itself: {_line(why)}.")


def load_json(path: Path, kind: str) -> dict[str, Any]:
    """Read a JSON file and validate it.

    Args:
        path: The file.
        kind: Name of its schema: "result" or "verdicts".

    Raises:
        ValueError: The file cannot be read, is no JSON, or does not follow its schema; one line.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise ValueError(f"Expected {path} to be a file, not a pipe or device.")
    try:
        data: dict[str, Any] = json.loads(path.read_bytes(), parse_constant=_refuse, object_pairs_hook=_each_once)
        problem = best_match(Draft202012Validator(schema(kind)).iter_errors(data))
    except OSError as error:
        what = "an audit" if kind == "result" else "verdicts"
        raise ValueError(f"Expected {path} to hold the JSON of {what}: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"Expected {path} to hold JSON: {_line(str(error))}") from error
    if problem is not None:
        raise ValueError(
            f"Expected {path} to follow {kind}.schema.json: {_line(problem.json_path)}: {_line(problem.message)}"
        )
    return data


def schema(name: str) -> dict[str, Any]:
    """A JSON schema shipped with the package: "result" or "verdicts"."""
    return dict(json.loads((_HERE / "schemas" / f"{name}.schema.json").read_text()))


def _refuse(constant: str) -> float:
    raise ValueError(f'{constant} is no JSON; infinity is written as "inf".')


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):  # readers differ in which of two they take
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"the key {twice!r} is there twice in a table.")
    return found


def _line(text: str) -> str:
    flat = printable(" ".join(text.split()))
    return flat if len(flat) <= 160 else f"{flat[:80]} ... {flat[-75:]}"


def _tables(data: Mapping[str, Any]) -> list[tuple[str, str, Mapping[str, Any] | None]]:
    """Every table of numbers in a result: where it stands, its kind, its columns."""
    rocs = [(f"$.attacks[{i}].roc", "roc", attack.get("roc")) for i, attack in enumerate(data["attacks"])]
    return [(f"$.{name}", name, data.get(name)) for name in ("certified_curve", "tradeoff")] + rocs


def fill(template: str, **context: Any) -> str:
    """A page of the templates folder; outside text is escaped."""
    return _environment().get_template(template).render(**context)


def _in_order(value: object) -> object:
    """What is printed, without control characters and those by which outside text turns around what is beside it."""
    return value.translate(_UNPRINTED) if isinstance(value, str) else value


@cache
def _environment() -> Environment:
    """Templates, compiled once each, and their filters."""
    environment = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        finalize=_in_order,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = (
        wording.figure,
        wording.at_least,
        wording.at_most,
        wording.stated,
        wording.percent,
        wording.words,
        wording.plain,
        wording.rate,
        wording.duration,
        wording.date,
    )
    environment.filters |= {
        **{function.__name__: function for function in filters},
        "unbroken": _unbroken,
        "themed": _themed,
        "capitalize_first": _capitalize_first,
    }
    return environment


def _html(result: AuditResult, digest: str) -> str:
    return fill(
        "report.html",
        result=result,
        title=wording.title(result),
        sentence=wording.verdict_sentence(result),
        planted=summary.planted_defect(result),
        power=wording.power_sentence(result.control, finished=wording.finished(result)),
        tested=summary.tested(result),
        untested=summary.untested(result),
        tiles=summary.tiles(result),
        scope=summary.scope(result),
        deviates=summary.training_deviates(result),
        by_experiment=summary.by_experiment(result),
        finding=plots.finding_figure(result),
        finding_words=wording.finding_certainty(result, summary.curve_finding(result)),
        control_badge=wording.control_badge(result.control),
        control_sentence=wording.control_sentence(result.control, finished=wording.finished(result)),
        check_summary=wording.check_summary(result.claim_check, as_run=result.check_as_run),
        delta=wording.claimed_delta(result),
        brackets=[("wide" if wide else "narrow", plots.bracket_figure(result, wide=wide)) for wide in (True, False)],
        curve=plots.curve_figure(result),
        attacks=[
            {
                "result": attack,
                "roc": plots.roc_figure(attack, result.tradeoff, key=f"roc{index}"),
                "evidence": summary.evidence(attack),
                "sees": summary.attacker_sees(attack),
                "rates": summary.rates_shown(attack),
                "contradicts": f"{attack.name}:epsilon_lower" in result.refuted_by,
            }
            for index, attack in enumerate(result.attacks)
        ],
        rates=list(dict.fromkeys(rate for attack in result.attacks for rate in summary.rates_shown(attack))),
        fewest=summary.FEWEST_FALSE_ALARMS,
        digest=digest,
        data_name=DATA,
    )


def _capitalize_first(text: str) -> str:
    return text[:1].upper() + text[1:]


def _themed(drawing: Markup | None) -> Markup | None:
    """A drawing in the colours of the page's style, which a dark screen has its own of."""
    if drawing is None:
        return None
    return Markup(_COLOUR.sub(lambda found: f"var(--{_THEME[found[0]]})", str(drawing)))


def _unbroken(text: str) -> Markup:
    """Markup in which no line ends inside a number such as 1e-5; for text, not for attributes."""
    return Markup(_EXPONENT.sub(r'<span class="whole">\g<0></span>', str(escape(text))))
