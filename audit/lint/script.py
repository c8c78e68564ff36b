"""A training script as syntax: Python, or the code cells of a notebook."""

import ast
import io
import json
import re
import tokenize
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from dpaudit.audit.inputs.files import InputError, read_regular
from dpaudit.audit.lint.ignoring import Ignored, python_comments
from dpaudit.audit.lint.names import Names, last_name

# packages that train privately, and parameters of theirs
PRIVATE_PACKAGES = {
    "opacus", "tensorflow_privacy", "dp_accounting", "jax_privacy", "private_transformers", "dp_transformers", "fastDP",
    "prv_accountant", "autodp", "private_vision", "pyvacy",
}  # fmt: skip
PRIVATE_NAMES = {"noise_multiplier", "l2_norm_clip", "target_epsilon", "target_delta", "max_per_sample_grad_norm"}

LARGEST_SCRIPT = 16 << 20  # bytes


@dataclass(frozen=True)
class Script:
    """Python source with what its names stand for.

    Args:
        path: The file.
        text: The source; of a notebook, its code cells one below the other.
        tree: Its syntax.
        cells: Of every line of a notebook's source, (line of the .ipynb file, "cell 3, line 2"); () of other files.
    """

    path: str
    text: str
    tree: ast.Module
    cells: tuple[tuple[int, str], ...] = ()

    @cached_property
    def names(self) -> Names:
        """What its names stand for."""
        return Names(self.tree)

    @cached_property
    def private(self) -> bool:
        """Whether it trains privately: it imports a package for that, or has names of its parameters."""
        packages = {name.split(".")[0] for name in self.names.imports.values()}
        nodes = list(ast.walk(self.tree))
        given = {node.arg for node in nodes if isinstance(node, (ast.keyword, ast.arg))}
        bound = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        return bool(packages & PRIVATE_PACKAGES or (given | bound) & PRIVATE_NAMES)

    @cached_property
    def all_calls(self) -> tuple[ast.Call, ...]:
        """Every call, in the order of the source."""
        calls = [node for node in ast.walk(self.tree) if isinstance(node, ast.Call)]
        return tuple(sorted(calls, key=lambda call: (call.lineno, call.col_offset)))

    def column(self, node: ast.AST) -> int:
        """Where a node begins in its line, in characters from 1: Python's offsets are bytes of UTF-8."""
        line = self.lines[getattr(node, "lineno", 1) - 1]
        return len(line.encode()[: getattr(node, "col_offset", 0)].decode()) + 1

    @cached_property
    def lines(self) -> list[str]:
        """The source's lines, as Python counts them."""
        return re.split(r"\r\n|\r|\n", self.text)

    def calls(self, *names: str) -> Iterator[ast.Call]:
        """The calls of functions or methods that have one of these names, whatever stands before the last dot."""
        return (call for call in self.all_calls if last_name(call.func) in names)

    @cached_property
    def ignored(self) -> Ignored:
        """The rules that its comments switch off."""
        return Ignored.by(python_comments(self.text))


def read_script(path: Path) -> Script:
    """Read a .py or .ipynb file; nothing in it is run.

    Raises:
        InputError: There is no such file, it is too large, or it is not Python.
    """
    raw = read_regular(path, limit=LARGEST_SCRIPT)
    try:
        if path.suffix == ".ipynb":
            source, cells = _notebook(raw.decode("utf-8-sig"))
        else:
            source, cells = raw.decode(tokenize.detect_encoding(io.BytesIO(raw).readline)[0]), ()
        return Script(str(path), source, _parsed(source, path.name), cells)
    except (LookupError, ValueError, SyntaxError, RecursionError, MemoryError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        what = "a notebook of Python" if path.suffix == ".ipynb" else "Python"
        raise InputError(f"Expected {path} to be {what}: {reason}") from error


def _parsed(source: str, name: str = "<cell>") -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of escape sequences, which are no matter of privacy
        return ast.parse(source, name)


def _notebook(text: str) -> tuple[str, tuple[tuple[int, str], ...]]:
    """The code cells of a notebook, with the line of the file that each of their lines stands in."""
    document = json.loads(text)
    cells = document.get("cells") if isinstance(document, dict) else None
    if not isinstance(cells, list):
        raise ValueError("expected a notebook with cells.")
    lines: list[str] = []
    places: list[tuple[int, str]] = []
    position, row, number = 0, 1, 0
    for cell in cells:
        if not isinstance(cell, dict) or cell.get("cell_type") != "code":
            continue
        number += 1
        source = cell.get("source", "")
        code = _plain("".join(map(str, source)) if isinstance(source, list) else str(source))
        for index, (written, line) in enumerate(code, start=1):
            found = max(position, _find(text, written, position))
            position, row = found, row + text.count("\n", position, found)
            places.append((row, f"cell {number}, line {index}"))
            lines.append(line)
    return "\n".join(lines), tuple(places)


def _find(text: str, line: str, start: int) -> int:
    """Where a line stands in the JSON text; -1 where it cannot be found."""
    spellings = (json.dumps(line, ensure_ascii=ascii_only)[1:-1] for ascii_only in (False, True))
    return max(text.find(spelling, start) for spelling in spellings) if line.strip() else -1


def _plain(code: str) -> list[tuple[str, str]]:
    """The lines of a cell as written and as Python: magics become `pass`, a cell that is no Python becomes blank."""
    lines = [(line, re.sub(r"^(\s*)[%!?].*", r"\1pass", line)) for line in code.split("\n")]
    try:
        _parsed("\n".join(line for _, line in lines))
    except (SyntaxError, ValueError):
        return [(written, "") for written, _ in lines]
    return lines
