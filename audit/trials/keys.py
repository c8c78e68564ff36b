"""Names of evidence: SHA-256 over everything that determines a trial, the source of the code that it runs included.

A name alone tells no code from other code: a training loop that was edited, or repaired, keeps its name. So functions
count by the text of their modules and of the user's files that those import, by the values that they close over and
the globals that they read; installed packages count by version. Code whose text cannot be read has no name at all,
unless it has a `trainer_id`, which its author changes with it.
"""

import ast
import contextlib
import functools
import hashlib
import importlib.util
import json
import os
import platform
import re
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from importlib.metadata import PackageNotFoundError, version
from logging import Logger
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

from dpaudit import mechanisms
from dpaudit.audit.inputs.files import InputError, read_regular
from dpaudit.audit.inputs.user_code import UserFunction
from dpaudit.mechanisms.learning.architectures import through_opacus
from dpaudit.mechanisms.learning.spec import Architecture

LARGEST_SOURCE = 1 << 24  # bytes
PROCESSOR_KEYS = ("vendor_id", "cpu family", "model", "CPU implementer", "CPU part")  # of x86 and of ARM
OURS = "dpaudit"
DYNAMIC = ("import_module", "__import__")


class NoSourceError(ValueError):
    """Code whose text cannot be read, or a value that cannot be compared: nothing tells it from others of its name."""


def fingerprint(parts: Mapping[str, Any], *, versions: bool = True) -> str:
    """SHA-256 over named parts: arrays by dtype, shape and bytes, code by its source, everything else by its value.

    Args:
        parts: By name.
        versions: Whether the sources of this package, and the versions of Python and of installed packages, count.

    Raises:
        NoSourceError: A part is code without readable source, or a value of an unknown kind.
    """
    digest = hashlib.sha256()
    for name in sorted(parts):
        value = parts[name]
        content = _array_bytes(value) if isinstance(value, np.ndarray) else _canonical(value, versions)
        digest.update(name.encode() + b"\0" + content + b"\0")
    return digest.hexdigest()


def circumstances(device: str) -> dict[str, str]:
    """What decides the bits of a trial besides its inputs and the code that is under audit."""
    gpu = torch.cuda.get_device_name() if device == "cuda" else ""
    return {
        "device": device,
        "gpu": gpu,
        "cpu": processor(),
        "mkl": os.environ.get("MKL_CBWR", ""),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "training room": folder_sha256(Path(mechanisms.__file__).parent, "**/*.py"),
    }


def processor(info: Path = Path("/proc/cpuinfo")) -> str:
    """Vendor, family and model of the processor, by which linear algebra such as Intel's MKL chooses its kernels.

    Args:
        info: Where Linux tells them; where it does not, Python's less exact name.
    """
    try:
        first = info.read_text().strip().split("\n\n")[0]
    except (OSError, UnicodeDecodeError):
        first = ""
    told = dict(re.findall(r"^(.*?)\s*:\s*(.*)$", first, re.MULTILINE))
    names = [told[key] for key in PROCESSOR_KEYS if key in told]
    return "/".join([platform.machine(), *names]) if names else platform.processor() or platform.machine()


def opacus_version(architecture: Architecture) -> str:
    """The version of Opacus where it trains this architecture, "" where it does not."""
    return version("opacus") if through_opacus(architecture) else ""


@functools.lru_cache(maxsize=64)
def folder_sha256(folder: Path, pattern: str) -> str:
    """SHA-256 over the names and contents of the files of a folder of ours that match a pattern, read once: as loaded.

    Every trial setup asks for a dozen folders.
    """
    digest = hashlib.sha256()
    for path in sorted(folder.glob(pattern)):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder)}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def evidence_key(parts: Mapping[str, Any]) -> str:
    """SHA-256 over what makes evidence what it is, whatever it was measured with: machine, versions, our own code.

    The looks at evidence are counted under it, and the same trials under other circumstances are no new evidence: they
    have the same seeds. Parts that nothing tells apart are left out, so that looks are never counted too low.
    """
    known = {}
    for name, value in parts.items():
        with contextlib.suppress(NoSourceError):
            known[name] = fingerprint({name: value}, versions=False)
    return fingerprint(known)


def plain(value: Any, *, versions: bool = True) -> Any:
    """A value as JSON holds it, equal for equal values and code, and for no others.

    Args:
        value: Of any kind that is known.
        versions: As `fingerprint`.

    Raises:
        NoSourceError: As `fingerprint`.

    >>> plain((1.5, np.float32(2.0), {"a": None}))
    [1.5, ['<f4', 2.0], [['a', None]]]
    """
    try:
        return _Plain(versions=versions)(value)
    except RecursionError:
        raise NoSourceError(f"{type(value).__name__} refers to itself") from None


def sources(path: Path, *, versions: bool = True) -> list[str]:
    """What decides the behaviour of a Python file: SHA-256 of it and of the user's files that it imports, directly or
    not, wherever the import stands; name and version of the installed packages.

    Args:
        path: The file.
        versions: Whether the installed packages count.

    Raises:
        NoSourceError: The file is not there, or holds no Python.
    """
    found: dict[Path, str] = {}
    libraries: set[str] = set()
    waiting = [path.resolve()]
    while waiting:
        file = waiting.pop()
        if file in found:
            continue
        try:
            text = read_regular(file, limit=LARGEST_SOURCE)
            tree = ast.parse(text)
        except (InputError, ValueError, SyntaxError) as error:
            raise NoSourceError(f"{file} cannot be read as Python: {error}") from error
        found[file] = hashlib.sha256(text).hexdigest()
        for name, level in _imported(tree):
            waiting += _files_of(name, level, file, libraries)
    return [*sorted(found.values()), *(sorted(libraries) if versions else ())]


class _Plain:
    """One pass through a value; functions are described once, for they may call each other."""

    def __init__(self, *, versions: bool) -> None:
        self._versions = versions
        self._described: set[FunctionType] = set()

    def __call__(self, value: Any) -> Any:
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, np.ndarray):
            return hashlib.sha256(_array_bytes(value)).hexdigest()
        if isinstance(value, torch.Tensor):
            if not self._versions:  # looks go on where a file draws its networks' weights anew as it is loaded
                return ["tensor", str(value.dtype), list(value.shape)]
            return ["tensor", self(value.detach().cpu().numpy())]
        if isinstance(value, np.generic):
            return [value.dtype.str, value.item()]
        if isinstance(value, (bytes, Path, torch.device, torch.dtype)):
            return [type(value).__name__, repr(value)]
        if isinstance(value, Mapping):
            return sorted(([self(key), self(item)] for key, item in value.items()), key=repr)
        if isinstance(value, (list, tuple)):
            return [self(item) for item in value]
        if isinstance(value, (set, frozenset)):
            return sorted((self(item) for item in value), key=repr)
        if isinstance(value, UserFunction):  # wherever it lies
            return [value.function, value.sha256, sources(Path(value.path), versions=self._versions)]
        if isinstance(value, functools.partial):
            return ["partial", self(value.func), self(value.args), self(value.keywords)]
        if isinstance(value, MethodType):
            return ["method", self(value.__self__), self(value.__func__)]
        if isinstance(value, type):
            return [f"{value.__module__}.{value.__qualname__}", self._module_source(value.__module__)]
        return self._code(value)

    def _code(self, value: Any) -> Any:
        """A function or an object by its source, and by the `trainer_id` that it may have: by that alone if need be."""
        stated = getattr(value, "trainer_id", None)
        try:
            described = self._function(value) if isinstance(value, FunctionType) else self._object(value)
        except NoSourceError:
            if not isinstance(stated, str):
                raise
            described = "no source"
        return described if stated is None else [str(stated), described]

    def _object(self, value: Any) -> Any:
        if is_dataclass(value):
            # a path says where evidence lies, and not what it is
            state = {f.name: getattr(value, f.name) for f in fields(value) if f.metadata.get("evidence", True)}
        elif hasattr(value, "__dict__") and not isinstance(value, ModuleType):
            state = vars(value)
        else:
            raise NoSourceError(f"{value!r} has no source, and no parts that can be compared")
        return [self(type(value)), self(state)]

    def _function(self, function: FunctionType) -> Any:
        name = f"{function.__module__}.{function.__qualname__}"
        if function in self._described:
            return name
        self._described.add(function)
        if _is_ours(function.__module__):
            return [name, self._module_source(function.__module__), self(_closed_over(function))]
        # the code as it was loaded: a file may have been edited since
        return [
            name,
            self._module_source(function.__module__),
            _bytecode(function.__code__) if self._versions else "",
            self(_closed_over(function)),
            self({name: self._global(value) for name, value in _globals(function)}),
        ]

    def _global(self, value: Any) -> Any:
        """A value that a function reads; of what is called and cannot be compared, such as an operator, its type."""
        try:
            return self(value)
        except NoSourceError:
            if not callable(value) or isinstance(value, FunctionType):
                raise
            return type(value).__qualname__

    def _module_source(self, name: str) -> list[str] | str:
        """The sources of a module: of ours, its whole folder; of an installed package, its text and version."""
        module = sys.modules.get(name)
        file = getattr(module, "__file__", None)
        if name == "builtins" or (_is_ours(name) and not self._versions):
            return ""
        if file is None or not file.endswith(".py"):
            raise NoSourceError(f"module {name!r} has no source that can be read")
        if _is_ours(name):
            return folder_sha256(Path(file).parent, "*.py")
        libraries: set[str] = set()
        users = _files_at(name, file, libraries)
        if users:
            return sources(users[0], versions=self._versions)
        return [*libraries, hashlib.sha256(Path(file).read_bytes()).hexdigest()] if self._versions else ""


def _canonical(value: Any, versions: bool) -> bytes:
    return json.dumps(plain(value, versions=versions), sort_keys=True).encode()


def _array_bytes(value: np.ndarray[Any, Any]) -> bytes:
    if value.dtype.hasobject:
        raise NoSourceError("an array of Python objects cannot be compared")
    return f"{value.dtype.str}{value.shape}".encode() + np.ascontiguousarray(value).tobytes()


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == OURS


def _closed_over(function: FunctionType) -> list[Any]:
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    return [cells, function.__defaults__, function.__kwdefaults__]


def _bytecode(code: CodeType) -> list[Any]:
    # sets of constants are left out: the order in which they print differs from process to process
    constants = [item for item in code.co_consts if not isinstance(item, frozenset)]
    shown = [_bytecode(item) if isinstance(item, CodeType) else repr(item) for item in constants]
    return [code.co_code.hex(), list(code.co_names), shown]


def _globals(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The values and the functions of its own module that a function's code reads by name."""
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        codes += [item for item in code.co_consts if isinstance(item, CodeType)]
        for name in code.co_names:
            value = function.__globals__.get(name)
            # of another module; not a partial, or an object that is called: their arguments are values of this one
            elsewhere = getattr(value, "__module__", None) != function.__module__
            imported = (
                elsewhere and callable(value) and (isinstance(value, FunctionType) or not hasattr(value, "__dict__"))
            )
            if value is not None and not imported and not isinstance(value, (ModuleType, type, Logger)):
                yield name, value


def _imported(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Every dotted name that a file imports, with the level of a relative import.

    Of `import_module` and `__import__` those that are written out: import_module("..helper") is two levels up.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args:
            called, first = node.func, node.args[0]
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if name in DYNAMIC and isinstance(first, ast.Constant) and isinstance(first.value, str):
                module = first.value.lstrip(".")
                yield module, len(first.value) - len(module)
        if isinstance(node, ast.Import):
            yield from ((alias.name, 0) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            yield base, node.level
            yield from ((f"{base}.{alias.name}".lstrip("."), node.level) for alias in node.names)


def _files_of(name: str, level: int, file: Path, libraries: set[str]) -> list[Path]:
    """The user's files behind an imported name; installed packages are added to the libraries instead."""
    top = name.partition(".")[0]
    if not level and (_is_ours(top) or top in sys.stdlib_module_names):
        return []
    folder = file.parents[max(level, 1) - 1]
    stems = [folder.joinpath(*part.split(".")) for part in dict.fromkeys((top, name))]
    beside = [path for stem in stems for path in (stem.with_suffix(".py"), stem / "__init__.py") if path.is_file()]
    if level or beside:
        return beside
    found: list[Path] = []
    for part in dict.fromkeys((top, name)):
        try:
            spec = importlib.util.find_spec(part)
        except (ImportError, ValueError, AttributeError):  # a name in a module is no module
            continue
        if spec is not None and spec.origin is not None and spec.origin.endswith(".py"):
            users = _files_at(part, spec.origin, libraries)
            if not users:
                break
            found += users
    return found


def _files_at(name: str, origin: str, libraries: set[str]) -> list[Path]:
    """The file of a module where it is the user's own; else nothing, and the package's version into the libraries."""
    path, top = Path(origin).resolve(), name.partition(".")[0]
    if {"site-packages", "dist-packages"} & set(path.parts):
        try:
            libraries.add(f"{top}=={version(top)}")
        except PackageNotFoundError:
            libraries.add(f"{top}:{hashlib.sha256(path.read_bytes()).hexdigest()}")
        return []
    return [] if path.is_relative_to(sysconfig.get_paths()["stdlib"]) else [path]
