"""The plan of the house: which room may import what, no circle among modules, the links in src/ and the packages
that pyproject lists. Read from the source; nothing is run."""

import ast
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("mechanisms", "verify", "audit", "reports")
NUMERIC = {"numpy", "scipy"}
VERIFYING = NUMERIC | {
    "statsmodels", "dp_accounting", "hypothesis", "pytest", "sklearn", "pydantic", "opacus", "prv_accountant",
}  # fmt: skip

# room: (other rooms of ours it may import, third-party packages it may import)
TABLE: dict[str, tuple[set[str], set[str]]] = {
    "mechanisms": (set(), NUMERIC),
    "mechanisms/published": ({"mechanisms"}, NUMERIC | {"mpmath"}),
    "mechanisms/learning": ({"mechanisms"}, NUMERIC | {"torch", "opacus"}),
    "mechanisms/learning/pate": ({"mechanisms", "mechanisms/learning"}, NUMERIC | {"torch"}),
    # the checker's second file is run beside its first one as well, where nothing of ours is
    "verify": ({"mechanisms", "mechanisms/published"}, VERIFYING | {"flint", "check_certificate"}),
    "verify/papers": ({"mechanisms", "mechanisms/published", "verify"}, VERIFYING),
    "audit": (
        {"mechanisms", "mechanisms/published", "mechanisms/learning", "verify", "reports", "audit/frameworks"},
        NUMERIC | {"torch", "sklearn", "safetensors", "pydantic", "pooch", "joblib", "typer", "rich", "yaml"}
        | {"textattack", "transformers", "ray", "datasets", "PIL"},
    ),
    "audit/frameworks": (
        {"mechanisms", "mechanisms/published", "mechanisms/learning", "verify", "audit"},
        NUMERIC | {"torch", "opacus", "transformers"},
    ),
    "reports": ({"verify/results.py"}, {"numpy", "jinja2", "markupsafe", "matplotlib", "jsonschema", "cryptography"}),
}  # fmt: skip

# packages that one file of a room may import, and no second one
ONE_FILE = {
    "verify": {"dp_accounting", "opacus", "prv_accountant", "pytest", "sklearn", "check_certificate"},
    "audit": {"rich", "textattack", "transformers", "ray", "datasets", "PIL", "yaml"},
}


def source_files() -> list[Path]:
    return [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]


def module_name(path: Path) -> str:
    """dpaudit.verify.claims for verify/claims.py, dpaudit.verify for verify/__init__.py."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(("dpaudit", *(parts[:-1] if parts[-1] == "__init__" else parts)))


MODULES = {module_name(path): path for path in source_files()}


def room_of(path: Path) -> str:
    """The innermost room of the table that a file lies in."""
    folders = [str(folder) for folder in path.relative_to(ROOT).parents]
    return next(folder for folder in folders if folder in TABLE)


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imports(path: Path, *, typing: bool = True) -> Iterator[str]:
    """Every name imported anywhere in a file, as a dotted path; without `typing`, none that only type checkers read."""
    waiting: list[ast.AST] = [parsed(path)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            prefix = "." * node.level + (node.module or "")
            yield from (f"{prefix}.{alias.name}" for alias in node.names)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and not typing:
            waiting.extend(node.orelse)
        else:
            waiting.extend(ast.iter_child_nodes(node))


def imported_module(name: str) -> str | None:
    """The module of ours that an imported name is, or is taken from."""
    return next((module for module in (name, name.rpartition(".")[0]) if module in MODULES), None)


def trespasses(path: Path) -> Iterator[str]:
    """What a file imports against the table, in words."""
    room = room_of(path)
    ours, theirs = TABLE[room]
    for name in imports(path):
        top = name.split(".")[0]
        if name.startswith("."):
            yield f"{path.relative_to(ROOT)}: relative import of {name}"
        elif top != "dpaudit":
            if top not in sys.stdlib_module_names and top not in theirs:
                yield f"{path.relative_to(ROOT)}: {room} may not import {top}"
        elif name.startswith("dpaudit._lazy."):
            if path.name != "__init__.py":
                yield f"{path.relative_to(ROOT)}: only a package hands names on lazily"
        elif name.startswith(("dpaudit._npy.", "dpaudit._plain_text.")):
            continue
        elif name.startswith("dpaudit._files."):
            if not {"audit", "reports"} & set(room.split("/")):
                yield f"{path.relative_to(ROOT)}: {room} may not write files"
        else:
            target = MODULES.get(imported_module(name) or "")
            if target is None:
                yield f"{path.relative_to(ROOT)}: {name} does not exist"
            elif room_of(target) not in {room, *ours} and str(target.relative_to(ROOT)) not in ours:
                yield f"{path.relative_to(ROOT)}: {room} may not import {name}"


def circles(graph: dict[str, set[str]]) -> list[str]:
    """One circle after another, each cut where it closes, until none is left."""
    graph, found = {node: set(targets) for node, targets in graph.items()}, []
    while True:
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            circle = error.args[1]
            found.append(" <- ".join(circle))
            graph[circle[1]].discard(circle[0])
        else:
            return found


def test_every_file_imports_only_what_its_room_may() -> None:
    assert [words for path in source_files() for words in trespasses(path)] == []


def test_some_packages_are_imported_by_one_file_alone() -> None:
    importers: dict[tuple[str, str], set[str]] = defaultdict(set)
    for path in source_files():
        for top in {name.split(".")[0] for name in imports(path)} & ONE_FILE.get(room_of(path), set()):
            importers[room_of(path), top].add(str(path.relative_to(ROOT)))
    assert {package: files for package, files in importers.items() if len(files) > 1} == {}
    assert importers["audit", "rich"] == {"audit/commands/console.py"}


def test_only_the_command_line_reads_arguments() -> None:
    users = {path for path in source_files() if "typer" in {name.split(".")[0] for name in imports(path)}}
    assert {path for path in users if path.parent != ROOT / "audit/commands"} == {ROOT / "audit/cli.py"}


def test_a_command_is_a_file_and_a_line() -> None:
    """`audit/commands/<name>.py` defines the function or group of that name, and the command line registers it."""
    from dpaudit.audit.cli import app

    groups = {str(group.typer_instance.info.name): group.typer_instance for group in app.registered_groups}
    commands = [
        *app.registered_commands,
        *(command for group in groups.values() for command in group.registered_commands),
    ]
    files = {path.stem for path in (ROOT / "audit/commands").glob("*.py")} - {"__init__", "console"}
    assert {command.callback.__name__ for command in app.registered_commands} | groups.keys() == files
    assert {command.callback.__module__ for command in commands} == {f"dpaudit.audit.commands.{name}" for name in files}


def test_no_module_imports_itself_through_others() -> None:
    """Imports inside functions count; those that only type checkers read do not."""
    graph = {
        module: {target for name in imports(path, typing=False) if (target := imported_module(name))} - {module}
        for module, path in MODULES.items()
    }
    assert circles(graph) == []
    assert len(circles({"a": {"b"}, "b": {"c"}, "c": {"b", "a"}})) == 2


def test_no_module_bears_the_name_of_a_public_function() -> None:
    """Outside the commands: no name of `audit.commands` is handed on by another package."""
    stems = {path.stem for path in source_files() if path.parent != ROOT / "audit/commands"}
    assert not stems & {"check", "run", "calibrate", "train_model", "clopper_pearson"}


def test_the_source_tree_is_links_to_the_rooms() -> None:
    source = ROOT / "src/dpaudit"
    links = {path.name: str(path.readlink()) for path in source.iterdir() if path.is_symlink()}
    assert links == {folder: f"../../{folder}" for folder in FOLDERS}
    assert {path.stem for path in source.glob("*.py")} == {
        "__init__",
        "__main__",
        "_files",
        "_lazy",
        "_npy",
        "_plain_text",
        "_version",
    }


def test_every_package_is_listed_for_the_build() -> None:
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {".".join(("dpaudit", *path.parent.relative_to(ROOT).parts)) for path in source_files()}
    assert table["packages"] == sorted({"dpaudit"} | folders)
    packages = {module for module, path in MODULES.items() if path.name == "__init__.py"}
    assert {"dpaudit"} | packages == {"dpaudit"} | folders, "a folder of modules lacks its __init__.py"
