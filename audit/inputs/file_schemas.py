"""JSON Schemas of claims files and recipes, from what reads them; reports/schemas/ keeps them for editors.

`python -m dpaudit.audit.inputs.file_schemas` writes them again. A schema knows keys, types and ranges of single
numbers; what follows from several values at once is the readers' to refuse.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from pydantic import Field, TypeAdapter

from dpaudit.audit.inputs.recipe_tables import KWARGS
from dpaudit.audit.inputs.recipes import RECIPES
from dpaudit.mechanisms.base import CLIP_NORM, COMMON, Domain
from dpaudit.mechanisms.defects import DEFECTS
from dpaudit.mechanisms.published import ACCOUNTANTS
from dpaudit.mechanisms.registry import MECHANISMS
from dpaudit.verify.claim_files import CLAIMS_FORMATS, _Claim, _Phase
from dpaudit.verify.claims import PLAIN_KINDS, SAMPLING_PROB, STEPS
from dpaudit.verify.correlated import STRATEGIES
from dpaudit.verify.correlated.correlation import KEYS as STRATEGY_KEYS
from dpaudit.verify.correlated.participation import DOMAINS, OPTIONAL, REQUIRED
from dpaudit.verify.guarantees import DELTA, EPSILON, GUARANTEES, MU, ORDER, RHO
from dpaudit.verify.samplers import SAMPLERS, required_keys, sampler_keys

Schema = dict[str, Any]
DRAFT = "https://json-schema.org/draft/2020-12/schema"
FOLDER = Path(__file__).parents[2] / "reports/schemas"
GUARANTEE_DOMAINS = {"epsilon": EPSILON, "delta": DELTA, "mu": MU, "rho": RHO, "order": ORDER}
# a sampler's table without the steps that it needs, which then stand beside it; two keys are a kind and its rate alone
_STEPS_LACKING: Schema = {
    "properties": {
        "kind": {"enum": [kind for kind in SAMPLERS if "steps" in sampler_keys(kind)]},
        "steps": False,
        "epochs": False,  # from which they follow
    },
    "minProperties": 3,
}
ALTERNATIVES = {"shuffled": (("batches",), ("records", "batch"))}  # of sampler keys, one of which must be there


def claims_schema() -> Schema:
    """The schema of a claims file, as `verify.claim_files` reads it."""
    claim, phase = (_plain(TypeAdapter(kind).json_schema()) for kind in (_Claim, _Phase))
    definitions = {
        "claim": _told_once(claim, "guarantee", ("epsilon", "delta"), alone=False),
        "phase": _one_way_to_sample(phase),
        "mechanism": _mechanism(),
        "sampling": _claimed_sampling(),
        "guarantee": _guarantee(),
        "correlation": _correlation(),
    }
    for name in ("claim", "phase"):
        definitions[name].pop("$defs", None)
        for key in ("mechanism", "sampling", "guarantee", "correlation"):
            if key in definitions[name]["properties"]:
                definitions[name]["properties"][key] = _reference(key)
        definitions[name]["properties"] |= {"sampling_prob": _number(SAMPLING_PROB), "steps": _number(STEPS)}
    properties = definitions["claim"]["properties"]
    properties |= {"epsilon": _number(EPSILON), "delta": _number(DELTA)}
    properties["accountant"] = {"enum": list(ACCOUNTANTS)}
    properties["phase"] = {"type": "array", "minItems": 1, "items": _reference("phase")}
    _told_once(definitions["claim"], "phase", tuple(phase["properties"]), alone=True)
    _one_way_to_sample(definitions["claim"])
    rows = {"type": "array", "minItems": 1, "items": _reference("claim")}
    body = _table({"format": {"enum": list(CLAIMS_FORMATS)}, "claim": rows}, required=("claim",))
    return {"$schema": DRAFT, "title": "Claims file of dpaudit", **body, "$defs": definitions}


def recipe_schema() -> Schema:
    """The schema of a training recipe, by its algorithm, as `audit.inputs.recipes` reads it."""
    union: Any = Annotated[reduce(or_, RECIPES.values()), Field(discriminator="algorithm")]
    definitions: dict[str, Schema] = _plain(TypeAdapter(union).json_schema())["$defs"]
    definitions |= {"mechanism": _mechanism(), "SamplingTable": _drawn_sampling()}
    definitions["NoSamplingTable"] = _table({"kind": {"const": "none"}, "prob": {"const": 1}}, required=("kind",))
    definitions["DatasetTable"]["oneOf"] = [{"required": ["name"]}, {"required": ["file"]}]
    definitions["ArchitectureTable"] |= _known_architectures()
    whole = {"type": "integer", "minimum": 0}
    for algorithm, kind in RECIPES.items():
        properties = definitions[kind.__name__]["properties"]
        properties["planted_defect"] = {"enum": list(DEFECTS)}
        for key in kind.mechanism_keys:
            properties[key] = _reference("mechanism")
        properties["audit_records"] = {"anyOf": [whole, {"type": "array", "minItems": 1, "items": whole}]}
        if algorithm != "dp-sgd":
            properties["claim"] = {"$ref": "#/$defs/ClaimTable", "properties": {"sampling": False}}
    sgd = definitions[RECIPES["dp-sgd"].__name__]
    sgd["required"].remove("steps")  # follows from the batches of most samplers
    plain = {"properties": {"kind": {"enum": list(PLAIN_KINDS)}}}
    counted = {"properties": {"sampling": {"anyOf": [plain, _STEPS_LACKING]}}}
    sgd |= {"if": counted, "then": {"required": ["steps"]}}
    branches = [
        {"if": {"properties": {"algorithm": {"const": algorithm}}}, "then": _reference(kind.__name__)}
        for algorithm, kind in RECIPES.items()
    ]
    return {
        "$schema": DRAFT, "title": "Training recipe of dpaudit", "type": "object", "required": ["algorithm"],
        "properties": {"algorithm": {"enum": list(RECIPES)}}, "allOf": branches, "$defs": definitions,
    }  # fmt: skip


def _mechanism() -> Schema:
    tables = []
    for name, kind in MECHANISMS.items():
        domains = {**kind.domains, **COMMON}
        properties = {field.name: _number(domains[field.name]) for field in fields(kind)}
        properties["clip_norm"] = {"anyOf": [_number(CLIP_NORM), {"const": "inf"}]}
        required = [field.name for field in fields(kind) if field.default is MISSING]
        tables.append(_table({"name": {"const": name}, **properties}, required=("name", *required)))
    return _one_of("name", tables)


def _sampler(kind: str) -> Schema:
    """A sampler's table; its steps may stand beside the table instead."""
    names, hints = sampler_keys(kind), get_type_hints(SAMPLERS[kind])
    properties = {key: _plain(TypeAdapter(hints[field.name]).json_schema()) for key, field in names.items()}
    whole = {"type": "integer"}
    properties = {key: {**rule, "minimum": 1} if rule == whole else rule for key, rule in properties.items()}
    properties |= {"prob": _number(SAMPLING_PROB)} if "prob" in properties else {}
    needed = set(required_keys(kind)) - {"steps"}
    table = _table({"kind": {"const": kind}, **properties}, required=("kind", *sorted(needed)))
    ways = [{"required": list(keys)} for keys in ALTERNATIVES.get(kind, ())]
    return {**table, "anyOf": ways} if ways else table


def _claimed_sampling() -> Schema:
    rate = _number(SAMPLING_PROB)
    named = {"enum": ["poisson", *SAMPLERS]}
    bare = _table({"kind": named, "prob": rate}, required=("kind", "prob"))
    return {"type": "object", "anyOf": [_unsampled(), bare, *map(_sampler, SAMPLERS)]}


def _drawn_sampling() -> Schema:
    poisson = _table({"kind": {"const": "poisson"}, "prob": _number(SAMPLING_PROB)}, required=("kind", "prob"))
    return _one_of("kind", [_unsampled(), poisson, *map(_sampler, SAMPLERS)])


def _unsampled() -> Schema:
    return _table({"kind": {"const": "none"}, "prob": {"const": 1}}, required=("kind",))


def _guarantee() -> Schema:
    pair = {"type": "array", "prefixItems": [_number(EPSILON), _number(DELTA)], "minItems": 2, "maxItems": 2}
    keys = {name: _number(domain) for name, domain in GUARANTEE_DOMAINS.items()}
    keys["points"] = {"type": "array", "minItems": 1, "items": pair}
    tables = []
    for kind, guarantee in GUARANTEES.items():
        names = [field.name for field in fields(guarantee)]
        tables.append(_table({"kind": {"const": kind}} | {name: keys[name] for name in names}, ("kind", *names)))
    return _one_of("kind", tables)


def _correlation() -> Schema:
    participations = []
    for kind, needed in REQUIRED.items():
        names = (*needed, *OPTIONAL.get(kind, ()))
        keys = {"kind": {"const": kind}} | {name: _number(DOMAINS[name]) for name in names}
        participations.append(_table(keys, ("kind", *needed)))
    taking_part = _one_of("kind", participations)
    tables = []
    for name, family in STRATEGIES.items():
        hints = get_type_hints(family)
        keys = {key: _plain(TypeAdapter(hints[key]).json_schema()) for key in STRATEGY_KEYS.get(name, ())}
        needed = tuple(field.name for field in fields(family) if field.default is MISSING)  # type: ignore[arg-type]
        strategy = {"strategy": {"const": name}, "participation": taking_part}
        tables.append(_table(strategy | keys, ("strategy", "participation", *needed)))
    named = {"strategy": {"type": "string", "pattern": r"\.npy$"}, "sha256": {"type": "string"}}
    tables.append(_table({**named, "participation": taking_part}, ("strategy", "participation")))
    return {"type": "object", "anyOf": tables}


def _known_architectures() -> Schema:
    """What `kwargs` may hold, by name; the user's own code takes what it likes."""
    keys = [
        {
            "if": {"properties": {"name": {"const": name}}},
            "then": {"properties": {"kwargs": {"propertyNames": {"enum": list(rules)}}}},
        }
        for name, rules in KWARGS.items()
    ]
    folder = {"properties": {"kwargs": {"required": ["folder"]}}, "required": ["kwargs"]}
    encoder = {"if": {"properties": {"name": {"const": "encoder"}}}, "then": folder}
    known = {"name": {"type": "string", "anyOf": [{"enum": list(KWARGS)}, {"pattern": ":"}]}}
    return {"allOf": [{"properties": known}, encoder, *keys]}


def _told_once(table: Schema, key: str, others: Iterable[str], *, alone: bool) -> Schema:
    """Either `key` or all of `others`; with `alone`, the first of these says enough."""
    others = tuple(others)
    excluded = {"properties": dict.fromkeys(others, False)}
    needed = {"required": ["mechanism"] if alone else list(others)}
    table.setdefault("allOf", []).append({"if": {"required": [key]}, "then": excluded, "else": needed})
    return table


def _one_way_to_sample(table: Schema) -> Schema:
    for key, excluded in (("correlation", ("sampling", "sampling_prob")), ("sampling", ("sampling_prob",))):
        rule = {"if": {"required": [key]}, "then": {"properties": dict.fromkeys(excluded, False)}}
        table.setdefault("allOf", []).append(rule)
    counted = {"required": ["sampling"], "properties": {"sampling": _STEPS_LACKING}}
    table["allOf"].append({"if": counted, "then": {"required": ["steps"]}})
    return table


def _number(domain: Domain) -> Schema:
    low, high = (int(end) if float(end).is_integer() else end for end in (domain.low, domain.high))
    found: Schema = {"type": "integer" if domain.integer else "number", "description": f"{domain.unit}, in {domain}"}
    if low != float("-inf"):
        found["minimum" if domain.closed_low else "exclusiveMinimum"] = low
    if high != float("inf"):
        found["maximum" if domain.closed_high else "exclusiveMaximum"] = high
    return found


def _table(properties: Mapping[str, Any], required: Iterable[str] = ()) -> Schema:
    return {
        "type": "object", "properties": dict(properties), "required": list(required), "additionalProperties": False,
    }  # fmt: skip


def _one_of(key: str, tables: list[Schema]) -> Schema:
    """The table that the constant under `key` chooses, so that an error is that of one table alone."""
    names = [table["properties"][key]["const"] for table in tables]
    chosen = [
        {"if": {"properties": {key: {"const": name}}}, "then": table} for name, table in zip(names, tables, strict=True)
    ]
    return {"type": "object", "required": [key], "properties": {key: {"enum": names}}, "allOf": chosen}


def _reference(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def _plain(schema: Any) -> Any:
    """Without titles, without null, which TOML lacks, and with the first lines of docstrings alone."""
    if isinstance(schema, list):
        return [_plain(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept: Schema = {
        key: {name: _plain(value) for name, value in inner.items()} if key in ("properties", "$defs") else _plain(inner)
        for key, inner in schema.items()
        if key not in ("title", "default")
    }
    if isinstance(kept.get("description"), str):
        kept["description"] = kept["description"].splitlines()[0]
    if "anyOf" in kept:
        members = [member for member in kept.pop("anyOf") if member != {"type": "null"}]
        kept |= members[0] if len(members) == 1 else {"anyOf": members}
    return kept


def file_schemas() -> dict[str, str]:
    """The text of every schema by its name in reports/schemas."""
    built = {"claims": claims_schema(), "recipe": recipe_schema()}
    return {f"{name}.schema.json": json.dumps(schema, indent=1) + "\n" for name, schema in built.items()}


if __name__ == "__main__":
    for name, text in file_schemas().items():
        (FOLDER / name).write_text(text)
