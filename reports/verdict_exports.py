"""A verdict in other people's forms: an entry of the OpenDP registry, a block of a model card, a statement in prose.

YAML is written as JSON scalars and lists in block style, which every YAML reader takes.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from dpaudit._plain_text import printable
from dpaudit.reports.register_wording import SAMPLERS, mechanisms, samplers
from dpaudit.reports.verdict_wording import INFINITE, proven_bracket
from dpaudit.reports.wording import percent, stated
from dpaudit.verify.results import Verdict

UNITS = {
    "add-remove": "one record is present or absent",
    "zero-out": "one record is replaced by one that contributes nothing",
    "replace-one": "one record is replaced by another",
}


def registry_entry(claim: Mapping[str, Any], verdict: Verdict) -> str:
    """An entry for opendp/deployments-registry-data; what a claim does not know says so.

    Args:
        claim: As a claims file holds it.
        verdict: On it.
    """
    kept = claim.get("guarantee", {})
    if kept.get("kind") == "zcdp":
        variant, parameters = "Zero-concentrated DP", {"rho": kept["rho"]}
    elif verdict.delta_claimed == 0:
        variant, parameters = "Pure DP", {"epsilon": verdict.epsilon_claimed}
    else:
        variant = "Approximate DP"
        parameters = {"epsilon": verdict.epsilon_claimed, "delta": verdict.delta_claimed}
    todo = "To be filled in."
    basic = {
        "name": claim["id"], "data_curators": [todo], "description": claim.get("source") or todo, "intended_use": todo,
        "data_product_type": "Machine learning model", "data_product_region": todo, "publication_date": "1970-01-01",
    }  # fmt: skip
    loss = {
        "privacy_unit": str(claim.get("unit", "record")) + "-level",
        "privacy_unit_details": f"Adjacent datasets: {_neighbours(claim)}.",
        "privacy_parameters": parameters, "privacy_parameters_details": prose(claim, verdict),
    }  # fmt: skip
    deployment = {
        "basic": basic, "dp_variant": {"variant_name": variant}, "privacy_loss": loss,
        "accounting": {"composition": verdict.reason}, "implementation": {"mechanisms": json.dumps(_history(claim))},
        "administrative": {"registry_authors": [todo]},
    }  # fmt: skip
    return "---\n" + _yaml({"url_slug": _slug(claim["id"]), "status": "Draft", "tier": 2, "deployment": deployment})


def model_card(claim: Mapping[str, Any], verdict: Verdict) -> str:
    """A section of a Hugging Face model card, in Markdown.

    Args:
        claim: As a claims file holds it.
        verdict: On it.
    """
    name, lower, upper = proven_bracket(verdict)
    known = "none is enough" if lower == INFINITE else f"between {lower} and {upper}"
    rows = {
        "claim": claim["id"],
        "guarantee": f"{_promise(verdict)}, differential privacy",
        "neighbouring data": _neighbours(claim),
        "mechanism": ", ".join(mechanisms(claim)),
        "batches": ", ".join(SAMPLERS.get(kind, kind) for kind in samplers(claim)),
        "verdict": verdict.verdict,
        f"true {name}": f"{known}{'' if verdict.guarantee else ' at that delta'}",
    }
    table = [f"| {key} | {_cell(value)} |" for key, value in rows.items()]
    assumed = [f"- {_cell(text)}" for text in verdict.assumptions]
    return "\n".join(
        ["## Privacy", "", prose(claim, verdict), "", "| | |", "|---|---|", *table, "", "Assumed:", "", *assumed]
    )


def prose(claim: Mapping[str, Any], verdict: Verdict) -> str:
    """A statement in two sentences.

    Args:
        claim: As a claims file holds it.
        verdict: On it.
    """
    batches = " and ".join(SAMPLERS.get(kind, kind) for kind in samplers(claim))
    name, lower, upper = proven_bracket(verdict)
    least = f"no {name} is enough" if lower == INFINITE else f"the true {name} is at least {lower}"
    sure = "" if verdict.confidence >= 1.0 else f" ({percent(verdict.confidence)} confidence)"
    found = {
        "certified": f"This holds by proof: the true {name} is at most {upper}.",
        "refuted": f"This does not hold: {least}{sure}.",
        "undecided": f"This is not decided: the true {name} lies between {lower} and {upper}{sure}.",
    }[verdict.verdict]
    read = ""
    if verdict.read_as_zero_out:
        read = f" Judged is the same where {_unit(claim, 'zero-out')}."
    return f"Stated is {_promise(verdict)}, for {batches}, where {_neighbours(claim)}.{read} {found}"


def _promise(verdict: Verdict) -> str:
    if verdict.guarantee is not None:
        return verdict.promise
    return f"epsilon = {stated(verdict.epsilon_claimed)} at delta = {stated(verdict.delta_claimed)}"


def _neighbours(claim: Mapping[str, Any]) -> str:
    return _unit(claim, claim["adjacency"])


def _unit(claim: Mapping[str, Any], adjacency: str) -> str:
    return UNITS[adjacency].replace("record", str(claim.get("unit", "record")))


def entry_block(slug: str, status: str, findings: Sequence[tuple[str, bool, str]], note: str) -> str:
    """The verification block of a registry entry.

    Args:
        slug: Of the entry.
        status: "consistent", "inconsistent" or "not checkable".
        findings: Rule, whether it holds, what was compared.
        note: What a reader must know.
    """
    rows = [{"rule": rule, "holds": holds, "text": text} for rule, holds, text in findings]
    return _yaml({"url_slug": slug, "verification": {"status": status, "findings": rows, "note": note}})


def _history(claim: Mapping[str, Any]) -> list[Any]:
    keys = ("mechanism", "sampling", "correlation", "steps")
    return [{key: phase[key] for key in keys if key in phase} for phase in claim.get("phase", [claim])]


def _slug(name: str) -> str:
    return "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in name.lower()).strip("-")


def _cell(text: str) -> str:
    """Outside text in a Markdown table: on one line, without marks that end a cell or begin a tag."""
    flat = printable(" ".join(text.split()))
    return flat.replace("|", "\\|").replace("<", "&lt;").replace(">", "&gt;")


def _yaml(table: Mapping[str, Any], indent: str = "") -> str:
    lines = []
    for key, value in table.items():
        if isinstance(value, Mapping):
            lines.append(f"{indent}{key}:\n{_yaml(value, indent + '  ')}".rstrip("\n"))
        else:
            lines.append(f"{indent}{key}: {_scalar(value)}")
    return "\n".join(lines) + "\n"


_PAIR = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")


def _scalar(value: Any) -> str:
    """JSON, which YAML takes; a float with a dot, or YAML 1.1 reads 1e-05 as text."""
    if isinstance(value, float):
        text = repr(value)
        return text.replace("e", ".0e") if "e" in text and "." not in text else text
    return _PAIR.sub(_whole, json.dumps(value).replace("\x7f", "\\x7f"))


def _whole(pair: re.Match[str]) -> str:
    """A character beyond 16 bits, which JSON escapes as two halves, and YAML as one."""
    letter = str(json.loads('"' + pair[0] + '"'))
    return f"\\U{ord(letter):08X}"


EXPORTS = {"registry": registry_entry, "model-card": model_card, "prose": prose}  # by the name of --format
