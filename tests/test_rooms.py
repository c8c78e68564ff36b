"""The import table of the house: which room may import what. Read from the source, nothing is run."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NUMERIC = {"numpy", "scipy"}

# room: (rooms of ours it may import, third-party packages it may import)
TABLE = {
    "mechanisms": (set(), NUMERIC),
    "mechanisms/published": ({"mechanisms"}, NUMERIC | {"mpmath"}),
    "mechanisms/learning": ({"mechanisms"}, NUMERIC | {"torch", "opacus"}),
    "verify": (
        {"mechanisms", "mechanisms/published"},
        NUMERIC
        | {"statsmodels", "dp_accounting", "hypothesis", "pytest", "sklearn", "pydantic", "opacus", "prv_accountant"},
    ),
    "audit": (
        {"mechanisms", "mechanisms/published", "mechanisms/learning", "verify", "audit", "reports"},
        NUMERIC | {"torch", "sklearn", "safetensors", "pydantic", "pooch", "tqdm", "joblib", "typer", "rich"},
    ),
    "reports": (set(), {"numpy", "jinja2", "markupsafe", "matplotlib", "jsonschema"}),
}
ONE_FILE = {"typer": "audit/cli.py", "rich": "audit/cli.py"}


def room_of(path: Path) -> str:
    parts = path.relative_to(ROOT).parts
    nested = "/".join(parts[:2])
    return nested if nested in TABLE else parts[0]


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def source_files() -> list[Path]:
    return [p for room in ("mechanisms", "verify", "audit", "reports") for p in sorted((ROOT / room).rglob("*.py"))]


@pytest.mark.parametrize("path", source_files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_a_file_imports_only_what_its_room_may(path: Path) -> None:
    import sys

    room = room_of(path)
    ours, theirs = TABLE[room]
    for name in imports(path):
        top = name.split(".")[0]
        if top == "dpaudit":
            target = name.split(".")[1:]
            other = "/".join(target[:2]) if "/".join(target[:2]) in TABLE else target[0]
            allowed = (
                other == room or other in ours or (room == "reports" and name.startswith("dpaudit.verify.results"))
            )
            assert allowed, f"{path}: {room} may not import {name}"
        elif top not in sys.stdlib_module_names:
            assert top in theirs, f"{path}: {room} may not import {top}"
            assert ONE_FILE.get(top, str(path.relative_to(ROOT))) == str(path.relative_to(ROOT))


def test_no_module_bears_the_name_of_a_public_function() -> None:
    stems = {path.stem for path in source_files()}
    assert not stems & {"check", "run", "calibrate", "train_model", "clopper_pearson"}
