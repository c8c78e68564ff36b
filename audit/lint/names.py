"""What the names of a script stand for, as far as it can be told without running it.

A name has a value where it is bound once, or to equal constants only: module constants, local constants, function
defaults, and options with their defaults (argparse, absl flags, click, typer, dataclass fields, attributes of self).
"""

import ast
import math
import operator
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

LARGEST = 1e300
Number = int | float
SCOPES = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)

ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: lambda a, b: float(a) ** b,  # floats overflow where integers would fill the memory
}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "int": int, "float": float, "round": round, "abs": abs, "min": min, "max": max, "pow": lambda a, b: float(a) ** b,
    "ceil": math.ceil, "floor": math.floor, "sqrt": math.sqrt, "log": math.log, "log10": math.log10, "exp": math.exp,
}  # fmt: skip
OPTION_CALLS = {"Option", "Argument", "field", "Field"}


def last_name(node: ast.AST) -> str:
    """The last part of a dotted name: "shuffle" of `data.map(f).shuffle`; "" of anything else.

    >>> last_name(ast.parse("torch.optim.SGD", mode="eval").body)
    'SGD'
    """
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def keyword(call: ast.Call, *names: str) -> ast.expr | None:
    """The first keyword argument of a call that has one of these names."""
    return next((item.value for item in call.keywords if item.arg in names), None)


class Names:
    """Bindings of a syntax tree."""

    def __init__(self, tree: ast.Module) -> None:
        """Read all bindings of a module."""
        self.parents: dict[ast.AST, ast.AST] = {
            child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)
        }
        self.imports = dict(_imports(tree))
        self._bound: dict[ast.AST, dict[str, list[ast.expr | None]]] = defaultdict(lambda: defaultdict(list))
        self._options: dict[str, list[ast.expr | None]] = defaultdict(list)
        self._definitions: dict[ast.AST, list[ast.expr | None]] = {}
        self._values: dict[ast.AST, Number | str | bool | None] = {}
        self._globals = {(next(self.scopes(node)), name) for node in _globals(tree) for name in node.names}
        for node in ast.walk(tree):
            self._read(node)
        self._read_arguments(tree)

    def dotted(self, node: ast.AST) -> str:
        """A dotted name with its import spelt out: "opacus.PrivacyEngine"; parts that are no names are left out."""
        if isinstance(node, ast.Attribute):
            return f"{self.dotted(node.value)}.{node.attr}".lstrip(".")
        return self.imports.get(node.id, node.id) if isinstance(node, ast.Name) else ""

    def scopes(self, node: ast.AST) -> Iterator[ast.AST]:
        """The functions around a node from the innermost, then the module."""
        current: ast.AST | None = node
        while current is not None:
            if isinstance(current, SCOPES):
                yield current
            current = self.parents.get(current)

    def block(self, statement: ast.AST) -> list[ast.stmt]:
        """The statements among which one stands: of an `if`, those of its own branch."""
        around = self.parents[statement]
        blocks = (getattr(around, name, []) for name in ("body", "orelse", "finalbody"))
        return next((block for block in blocks if isinstance(block, list) and statement in block), [])

    def mentions(self, *names: str) -> Iterator[ast.expr]:
        """Names, attributes and keyword arguments that are spelt like this in any case."""
        for node in self.parents:
            if isinstance(node, (ast.Name, ast.Attribute)) and last_name(node).lower() in names:
                yield node
            elif isinstance(node, ast.keyword) and (node.arg or "").lower() in names:
                yield node.value

    def only_number(self, *names: str) -> Number | None:
        """The one number that all mentions of these names have; None where there are several, or none."""
        values = {value for value in map(self.number, self.mentions(*names)) if value is not None}
        return values.pop() if len(values) == 1 else None

    def definitions(self, node: ast.AST) -> list[ast.expr | None]:
        """The expressions that a name was bound to, None for what cannot be followed; of other nodes, the node."""
        if node not in self._definitions:
            found: list[ast.expr | None] = []
            waiting: list[ast.AST | None] = [node]
            seen: set[ast.AST | None] = set()
            while waiting:
                item = waiting.pop()
                if item in seen:
                    continue
                if isinstance(item, ast.Name) or (isinstance(item, ast.Attribute) and last_name(item.value)):
                    seen.add(item)
                    waiting += self._bindings(item) or [None]
                else:
                    found.append(item if isinstance(item, ast.expr) else None)  # None: bound to what is not followed
            self._definitions[node] = list(dict.fromkeys(found))
        return self._definitions[node]

    def _bindings(self, node: ast.Name | ast.Attribute) -> list[ast.expr | None] | None:
        """What a name in its innermost scope, or an option of that name, is bound to."""
        if isinstance(node, ast.Attribute):
            return self._options.get(node.attr)
        tables = (self._bound[scope] for scope in self.scopes(node) if scope in self._bound)
        return next((table[node.id] for table in tables if node.id in table), None)

    def value(self, node: ast.AST | None) -> Number | str | bool | None:
        """The constant that an expression has, None where it has none or more than one."""
        if node is None:
            return None
        if node not in self._values:
            self._values[node] = None  # what leads back to itself has none
            self._values[node] = self._evaluated(node)
        return self._values[node]

    def _evaluated(self, node: ast.AST) -> Number | str | bool | None:
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, (int, float, str)) else None
        if isinstance(node, (ast.Name, ast.Attribute)):
            values = [self.value(item) for item in self.definitions(node)]
            return values[0] if values and all(value == values[0] for value in values) else None
        try:
            value: Number | str | bool | None = _finite(self._computed(node))
            return value
        except (ArithmeticError, TypeError, ValueError):
            return None

    def number(self, node: ast.AST | None) -> Number | None:
        """The number that an expression has; None for anything else, truth values and what is too large too."""
        value = self.value(node)
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            return None
        return value if abs(value) <= LARGEST else None

    def _computed(self, node: ast.AST) -> Any:
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self._operand(node.operand)
        if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
            left, right = self._operand(node.left), self._operand(node.right)
            return ARITHMETIC[type(node.op)](left, right)
        if isinstance(node, ast.Call) and last_name(node.func) in FUNCTIONS and not node.keywords:
            return FUNCTIONS[last_name(node.func)](*(self._operand(item) for item in node.args))
        if isinstance(node, ast.Subscript):
            key = self.value(node.slice)
            for table in self.definitions(node.value):
                if isinstance(table, ast.Dict):
                    entries = zip(table.keys, table.values, strict=True)
                    return next((self.value(item) for name, item in entries if self.value(name) == key), None)
        return None

    def _operand(self, node: ast.AST) -> Number:
        value = self.value(node)
        if not isinstance(value, (int, float)) or abs(value) > LARGEST:
            raise ValueError("no number")
        return value

    def _bind(self, target: ast.AST, value: ast.expr | None, node: ast.AST) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            items = value.elts if isinstance(value, (ast.Tuple, ast.List)) else []
            for index, item in enumerate(target.elts):
                # the name of an unpacked call is bound to the call as a whole
                whole = value if isinstance(value, ast.Call) else None
                self._bind(item, items[index] if len(items) == len(target.elts) else whole, node)
        elif isinstance(target, ast.Starred):
            self._bind(target.value, None, node)
        elif isinstance(target, ast.Name) and isinstance(self.parents.get(node), ast.ClassDef):
            self._options[target.id].append(value)
        elif isinstance(target, ast.Name):
            scope = next(self.scopes(node))
            outer = [*self.scopes(node)][-1] if (scope, target.id) in self._globals else scope
            self._bound[outer][target.id].append(value)
        elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
            self._options[target.attr].append(value)

    def _read(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._bind(target, node.value, node)
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)):
            if node.value is not None:
                self._bind(node.target, _default(node.value), node)
        elif isinstance(node, (ast.AugAssign, ast.For, ast.AsyncFor, ast.comprehension)):
            self._bind(node.target, None, node)
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            self._bind(node.optional_vars, node.context_expr, node)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            self._read_parameters(node)
        elif isinstance(node, ast.Call):
            option = _option(node)
            if option is not None:
                self._options[option[0]].append(option[1])

    def _read_parameters(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> None:
        spec = node.args
        names = [*spec.posonlyargs, *spec.args]
        padded = [None] * (len(names) - len(spec.defaults)) + list(spec.defaults)
        pairs = [*zip(names, padded, strict=True), *zip(spec.kwonlyargs, spec.kw_defaults, strict=True)]
        decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
        clicked = dict(filter(None, (_option(item) for item in decorators if isinstance(item, ast.Call))))
        for name, default in pairs:
            self._bound[node][name.arg].append(clicked.get(name.arg) if default is None else _default(default))

    def _read_arguments(self, tree: ast.Module) -> None:
        """Bind parameters that have a default to what calls give them in its place."""
        functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                own = (item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__")
                functions.update((node.name, item) for item in own)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and last_name(node.func) in functions:
                for name, value in self._given(functions[last_name(node.func)], node):
                    self._bind_given(functions[last_name(node.func)], name, value)
            for name in _called_elsewhere(node) & set(functions):
                for parameter in [*self._bound[functions[name]]]:
                    self._bind_given(functions[name], parameter, None)

    def _given(self, function: ast.FunctionDef, call: ast.Call) -> Iterator[tuple[str, ast.expr | None]]:
        """What a call gives the parameters of a function; None to each where it gives what is unpacked."""
        names = [item.arg for item in (*function.args.posonlyargs, *function.args.args)]
        names = names[1:] if isinstance(self.parents[function], ast.ClassDef) else names
        if any(isinstance(item, ast.Starred) for item in call.args) or any(word.arg is None for word in call.keywords):
            yield from ((name, None) for name in self._bound[function])
        yield from zip(names, call.args, strict=False)
        yield from ((word.arg, word.value) for word in call.keywords if word.arg is not None)

    def _bind_given(self, function: ast.FunctionDef, name: str, value: ast.expr | None) -> None:
        if any(item is not None for item in self._bound[function].get(name, [])):  # it has a default
            self._bound[function][name].append(value)


def _called_elsewhere(node: ast.AST) -> set[str]:
    """The functions that get another name here, `run = train`, or some of their arguments, `partial(train, 5)`."""
    if isinstance(node, ast.Assign):
        return {last_name(node.value)}
    return {last_name(item) for item in node.args} if isinstance(node, ast.Call) and _is_partial(node) else set()


def _is_partial(call: ast.Call) -> bool:
    return last_name(call.func) == "partial"


def _globals(tree: ast.Module) -> Iterator[ast.Global]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Global))


def _finite(value: Any) -> Any:
    return None if isinstance(value, (int, float)) and not abs(value) <= LARGEST else value


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (alias.asname, alias.name) if alias.asname else ((top := alias.name.split(".")[0]), top)
        elif isinstance(node, ast.ImportFrom):
            yield from ((alias.asname or alias.name, f"{node.module or ''}.{alias.name}") for alias in node.names)


def _default(value: ast.expr) -> ast.expr | None:
    """What a default is: of typer.Option(0.1), of field(default=0.1) and of 0.1 itself, 0.1."""
    if isinstance(value, ast.Call) and last_name(value.func) in OPTION_CALLS:
        return keyword(value, "default") or next(iter(value.args), None)
    return value


def _option(call: ast.Call) -> tuple[str, ast.expr | None] | None:
    """An option's name and default: argparse's add_argument, absl's DEFINE_*, click's option."""
    kind = last_name(call.func)
    words = [item.value for item in call.args if isinstance(item, ast.Constant) and isinstance(item.value, str)]
    if kind.startswith("DEFINE_") and words:
        return words[0], call.args[1] if len(call.args) > 1 else keyword(call, "default")
    if kind not in ("add_argument", "option") or not words:
        return None
    given = keyword(call, "dest")
    longest = given.value if isinstance(given, ast.Constant) else max(words, key=lambda word: word.startswith("--"))
    return str(longest).lstrip("-").replace("-", "_"), keyword(call, "default")
