"""Lint of files and folders: every rule on every script and recipe, less what comments switch off."""

import ast
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpaudit._plain_text import printable
from dpaudit.audit.exit_status import os_reason
from dpaudit.audit.inputs.files import InputError
from dpaudit.audit.lint.findings import Finding, Hit, Level, Rule
from dpaudit.audit.lint.recipe_files import RecipeFile, is_recipe, read_recipe
from dpaudit.audit.lint.rules import RULES
from dpaudit.audit.lint.script import Script, read_script

SCRIPTS = (".py", ".ipynb")
SKIPPED = {"node_modules", "site-packages", "__pycache__", "build", "dist"}


@dataclass(frozen=True)
class LintResult:
    """What was found in some files.

    Args:
        findings: In the order of the files and their lines.
        files: How many files were read.
        unread: How many files and folders cannot be read, or not as what their names say.
        others: How many of the files are left alone, as nothing in them shows that they train privately.
        refused: How many of those that cannot be read were named.
    """

    findings: tuple[Finding, ...]
    files: int
    unread: int = 0
    others: int = 0
    refused: int = 0

    @property
    def refuted(self) -> bool:
        """Whether a claim is contradicted by its own numbers."""
        return any(finding.level == "error" for finding in self.findings)

    @property
    def clean(self) -> bool:
        """Whether everything could be read, and there is nothing but notes."""
        return not self.unread and all(finding.level == "note" for finding in self.findings)


def lint_paths(
    paths: Sequence[Path], *, ignore: Iterable[str] = (), warn: Callable[[str], None] = lambda line: None
) -> LintResult:
    """Lint scripts, notebooks, recipes, and what of these lies in folders.

    Args:
        paths: Files and folders.
        ignore: Rules to leave out.
        warn: Told of what in folders cannot be read, and of comments that name no rule.

    Raises:
        InputError: A rule is unknown, or all there is are named files that cannot be read as what their names say.
    """
    unknown = sorted(set(ignore) - set(RULES))
    if unknown:
        raise InputError(f"Expected ignore={unknown[0]!r} to be one of {', '.join(RULES)}.")
    rules = [rule for name, rule in RULES.items() if name not in set(ignore)]
    findings: list[Finding] = []
    refused: list[InputError] = []
    count = unread = others = 0

    def leave_out(error: OSError) -> None:
        nonlocal unread
        unread += 1
        warn(f"left out: {printable(os_reason(error))}")

    for path, named in _files(paths, leave_out):
        try:
            found = lint_file(path, rules, warn)
        except InputError as error:
            if named:
                unread += 1
                refused.append(error)
            elif isinstance(error.__cause__, OSError):
                leave_out(error.__cause__)
            else:
                unread += 1
                warn(f"left out: {error}")
            continue
        findings += found or []
        count, others = count + 1, others + (found is None)
    for one in refused if count else refused[:-1]:
        warn(f"left out: {one}")
    if refused and not count:
        raise refused[-1]
    return LintResult(tuple(findings), count, unread, others, len(refused))


def lint_file(path: Path, rules: Iterable[Rule], warn: Callable[[str], None]) -> list[Finding] | None:
    """The findings of one file, in the order of its lines; None where nothing shows that it trains privately.

    Raises:
        InputError: It cannot be read as what its name says.
    """
    if path.suffix == ".toml":
        recipe = read_recipe(path)
        _warn_of_unknown(recipe, warn)
        return sorted(_recipe_findings(recipe, rules))
    if path.suffix not in SCRIPTS:
        raise InputError(f"Expected {path} to be a script (.py), a notebook (.ipynb), a recipe (.toml) or a folder.")
    script = read_script(path)
    _warn_of_unknown(script, warn)
    try:
        return sorted(set(_script_findings(script, rules))) if script.private else None
    except RecursionError:
        raise InputError(f"Expected {path} to be Python of less depth.") from None


def _warn_of_unknown(file: Script | RecipeFile, warn: Callable[[str], None]) -> None:
    for name in sorted(file.ignored.names - set(RULES)):
        warn(f"{printable(file.path)}: ignore[{printable(name)}] names no rule")


def _files(paths: Sequence[Path], leave_out: Callable[[OSError], None]) -> Iterator[tuple[Path, bool]]:
    """Every file once, and whether it was named itself."""
    seen: set[Path] = set()
    for path in paths:
        inside = _in_folder(path, leave_out) if path.is_dir() else [path]
        for file in inside:
            if file not in seen:
                seen.add(file)
                yield file, not path.is_dir()


def _in_folder(folder: Path, leave_out: Callable[[OSError], None]) -> list[Path]:
    """The scripts and recipes inside, by path, but those of hidden folders, of packages and of links to folders."""
    found: list[Path] = []
    for here, folders, names in os.walk(folder, onerror=leave_out):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in SKIPPED]
        for path in (Path(here, name) for name in names if not name.startswith(".")):
            if path.suffix in (*SCRIPTS, ".toml"):
                try:
                    if path.is_file() and (path.suffix != ".toml" or is_recipe(path)):
                        found.append(path)
                except OSError as error:
                    leave_out(error)
    return sorted(found)


def _script_findings(script: Script, rules: Iterable[Rule]) -> Iterator[Finding]:
    for rule in rules:
        for hit in [] if rule.in_script is None else rule.in_script(script):
            assert isinstance(hit.place, ast.AST)
            line = getattr(hit.place, "lineno", 1)
            last = getattr(hit.place, "end_lineno", line)
            if any(rule.name in script.ignored.on(number) for number in range(line, last + 1)):
                continue
            place, cell = script.cells[line - 1] if script.cells else (line, "")
            yield _finding(rule, hit, script.path, place, 1 if cell else script.column(hit.place), cell)


def _recipe_findings(recipe: RecipeFile, rules: Iterable[Rule]) -> Iterator[Finding]:
    for rule in rules:
        for hit in [] if rule.in_recipe is None else rule.in_recipe(recipe):
            assert isinstance(hit.place, int)
            if rule.name not in recipe.ignored.on(hit.place):
                yield _finding(rule, hit, recipe.path, hit.place, 1, "")


def _finding(rule: Rule, hit: Hit, path: str, line: int, column: int, cell: str) -> Finding:
    level: Level = "error" if hit.refuted else rule.level
    return Finding(path, line, column, cell, rule.name, level, hit.message, rule.reason, rule.source, rule.fix)
