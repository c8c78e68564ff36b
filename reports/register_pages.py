"""The register of published claims as static pages: an index with filters, and a page per source.

Everything on them is in register.json; nothing is computed here. The same JSON gives the same bytes.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dpaudit._files import write_whole
from dpaudit.reports import register_wording as words
from dpaudit.reports.register_figures import bracket, curve
from dpaudit.reports.rendering import fill

INDEX, DATA = "index.html", "register.json"
FORMAT = "dpaudit-register/1"
VERDICTS = ("certified", "refuted", "undecided", "not checkable")


def register_text(document: Mapping[str, Any]) -> str:
    """register.json: one line for every claim, so that two versions are easily compared."""
    head = {key: value for key, value in document.items() if key != "sources"}
    lines = [json.dumps(head, allow_nan=False)[:-1] + ', "sources": [']
    for number, source in enumerate(document["sources"]):
        facts = {key: value for key, value in source.items() if key != "claims"}
        lines.append(("," if number else "") + json.dumps(facts, allow_nan=False)[:-1] + ', "claims": {')
        claims = [
            f"{json.dumps(name)}: {json.dumps(entry, allow_nan=False)}" for name, entry in source["claims"].items()
        ]
        lines += [",\n".join(claims), "}}"]
    return "\n".join([*lines, "]}"]) + "\n"


def pages(document: Mapping[str, Any]) -> dict[str, bytes]:
    """The content of every page by its file name.

    Args:
        document: register.json as `register_text` writes it.
    """
    found = {INDEX: _index(document)}
    found |= {f"{source['name']}.html": _source(source, document) for source in document["sources"]}
    return {name: page.encode("utf-8") for name, page in found.items()}


def write_register(document: Mapping[str, Any], out: Path) -> None:
    """Write register.json and its pages, all or none.

    Args:
        document: What the register holds.
        out: Folder; exists.
    """
    text = register_text(document)
    as_read = json.loads(text)
    write_whole({out / DATA: text.encode(), **{out / name: page for name, page in pages(as_read).items()}})


def verdict_of(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """The verdicts of a row, each once."""
    return list(dict.fromkeys(entry["verdict"]["verdict"] for entry in entries)) or ["not checkable"]


def _index(document: Mapping[str, Any]) -> str:
    rows = []
    for source in document["sources"]:
        for row in source["rows"]:
            entries = [source["claims"][name] for name in row["claims"]]
            rows.append({
                "row": row, "source": source["name"], "title": source["facts"]["title"], "entries": [
                    {"id": name, "verdict": entry["verdict"], "words": words.reason(entry)}
                    for name, entry in zip(row["claims"], entries, strict=True)
                ],
                "verdicts": verdict_of(entries),
                "samplers": _once(words.samplers, entries),
                "mechanisms": _once(words.mechanisms, entries),
            })  # fmt: skip
    counts = Counter(
        entry["verdict"]["verdict"] for source in document["sources"] for entry in source["claims"].values()
    )
    counts["not checkable"] = sum(not row["entries"] for row in rows)
    options = {
        "verdict": [name for name in VERDICTS if counts[name]],
        "source": [source["name"] for source in document["sources"]],
        "sampler": sorted({kind for row in rows for kind in row["samplers"]}),
        "mechanism": sorted({name for row in rows for name in row["mechanisms"]}),
    }
    return fill(
        "register_index.html", rows=rows, options=options, counts=[(name, counts[name]) for name in VERDICTS],
        sources=len(document["sources"]), data_name=DATA, versions=document["versions"],
    )  # fmt: skip


def _once(names: Callable[[Mapping[str, Any]], list[str]], entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names that some claims have, each once."""
    return list(dict.fromkeys(name for entry in entries for name in names(entry["claim"])))


def _source(source: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    rows = []
    for row in source["rows"]:
        entries = [source["claims"][name] for name in row["claims"]]
        judged = [_judged(name, entry) for name, entry in zip(row["claims"], entries, strict=True)]
        rows.append(
            {"row": row, "claims": judged, "change": words.change(row, entries), "verdicts": verdict_of(entries)}
        )
    return fill("register_source.html", source=source, facts=source["facts"], rows=rows, versions=document["versions"])


def _judged(name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    verdict = entry["verdict"]
    sampled = entry["ways"].get("monte-carlo", {}).get("epsilon_lower")
    bounds = (verdict["epsilon_claimed"], float(verdict["epsilon_lower"]), float(verdict["epsilon_upper"]))
    return {
        "id": name,
        "verdict": verdict,
        "words": words.reason(entry),
        "sketch": words.sketch(entry),
        "claim": {key: value for key, value in entry["claim"].items() if key not in ("id", "source")},
        "bracket": bracket(*bounds, None if sampled is None else float(sampled)),
        "curve": curve(entry),
        "ways": [(words.WAYS[way], entry["ways"][way]) for way in words.WAYS if way in entry["ways"]],
        "program": entry["program"],
        "command": entry["command"],
    }
