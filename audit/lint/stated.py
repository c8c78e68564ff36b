"""Which numbers of a script demonstrably belong to one private training, and which epsilon it states of that.

A bare epsilon may also be an optimizer's, an attack's radius or the rate of an exploration, and an attack has steps
too. So an epsilon counts by a name that says what it is, by an assertion on an accountant's answer, or beside its
delta; every other number counts if privacy code is given it. A run that may end early has no number of steps.
"""

import ast
import re
from collections.abc import Iterator, Sequence

from dpaudit.audit.lint.idioms import (
    CALIBRATION,
    POISSON_ACCOUNTING,
    PRIVACY_EPSILONS,
    PRIVATE_TRAINING,
    SIGNATURES,
    SPELLINGS,
    SPENT,
    argument,
    data_loaders,
)
from dpaudit.audit.lint.names import FUNCTIONS, Number, keyword, last_name
from dpaudit.audit.lint.releases import goes_through_loader, is_accounted, is_own, passes
from dpaudit.audit.lint.script import PRIVATE_PACKAGES, Script

# names that may stand for something else
AMBIGUOUS = {"q", "n", "batch", "count", "epoch", "noise_level", "noise_multi", "iterations"}
PRIVACY_CALLS = {*SIGNATURES, *POISSON_ACCOUNTING, *PRIVATE_TRAINING, *SPENT, "compose"}
POSITIONS = {("get_epsilon", "delta"): 0, ("compose", "steps"): 1}  # of methods that SIGNATURES does not have
TRAINS = re.compile(r"step|train|fit|update|backward|minimize|compose|apply", re.IGNORECASE)
STOPS_EARLY = re.compile(r"early[-_ ]?stop|stop_training|should_stop|KeyboardInterrupt", re.IGNORECASE)
# f"({epsilon}, {delta})-DP"
PRINTED_PAIR = re.compile(r"\{[\w.]*\b(epsilon|eps)(:[^}]*)?\}\W*(delta\W*)?\{[\w.]*\b(target_)?delta\b", re.IGNORECASE)
OF_PRIVACY = re.compile(r"\bDP\b|priva", re.IGNORECASE)
TELLS = {"print", "format", "str", "float", "round", "debug", "info", "warning", "log", "write", "append", *FUNCTIONS}
TELLS_GUARANTEE = re.compile(r"guarantee|claim|promise", re.IGNORECASE)
KNOWN_EVENTS = {"GaussianDpEvent", "PoissonSampledDpEvent", "ComposedDpEvent", "SelfComposedDpEvent"}
# noise that is correlated over the steps
CORRELATED = re.compile(r"matrix_factorization|ftrl|tree_?aggregation|toeplitz|band_?mf", re.IGNORECASE)
LEAVES_OUT = ("signal_skip_step", "virtual_step")
NOISE_SCHEDULES = ("ExponentialNoise", "StepNoise", "LambdaNoise")
Loop = ast.For | ast.AsyncFor | ast.While


def judges_itself(script: Script) -> bool:
    """Whether noise or delta is solved for or changes, or the run may end before all its steps: no claim is of them."""
    if any(script.calls(*CALIBRATION, *NOISE_SCHEDULES, *LEAVES_OUT, "get_delta")) or STOPS_EARLY.search(script.text):
        return True
    if _is_another_mechanism(script) or _several_trainings(script):
        return True
    asserted, repeated = _asserted(script), _called_in_loops(script)
    for node in ast.walk(script.tree):
        again = isinstance(node, ast.FunctionDef) and node.name in repeated
        known = SPELLINGS["noise_multiplier"] if again else ()
        if (again or isinstance(node, (Loop, ast.AugAssign))) and _changes_noise(node, known):
            return True
        if isinstance(node, Loop) and TRAINS.search(ast.unparse(node)) and _is_left(node):
            return True
        asks = isinstance(node, (ast.If, ast.While, ast.IfExp))  # and acts on the answer
        if asks and (_names_epsilon(node.test) or _is_spent(script, node.test)):  # type: ignore[attr-defined]
            return True
        compared = isinstance(node, (ast.Compare, ast.BinOp)) and node not in asserted
        tested = isinstance(node, ast.Call) and last_name(node.func).startswith("assert")
        if (compared or tested) and _names_epsilon(node) and _is_spent(script, node):
            return True
    return False


def _is_another_mechanism(script: Script) -> bool:
    """Whether something else than Gaussian noise on Poisson batches is released, such as Laplace noise or FTRL."""
    if CORRELATED.search(script.text):
        return True
    for call in script.all_calls:
        event = script.names.dotted(call.func).split(".")[-1]
        if event.endswith("DpEvent") and event not in KNOWN_EVENTS:
            return True
        inner = "ComposedDpEvent" in ast.unparse(call)  # one batch for all of its releases
        if event == "PoissonSampledDpEvent" and inner:
            return True
        shuffled = keyword(call, "poisson_sampling")
        if shuffled is not None and script.names.value(shuffled) is not True:
            return True
    return False


def _several_trainings(script: Script) -> bool:
    """Whether several may be meant by a claim, or options are given to the script by itself."""
    given = [call for call in script.calls("parse_args", "parse_known_args") if call.args or call.keywords]
    if any(isinstance(node, ast.Attribute) and node.attr == "history" for node in ast.walk(script.tree)):
        return True  # what an accountant was told is changed
    engines, trainings = [*script.calls("PrivacyEngine")], [*script.calls("make_private")]
    accountants = [*_accountants(script)]
    asked = [call.func.value for call in script.calls(*SPENT) if isinstance(call.func, ast.Attribute)]
    both = accountants and any(engine in script.names.definitions(item) for item in asked for engine in engines)
    return bool(given or both) or len(engines) > 1 or len(trainings) > 1 or len(accountants) > 1


def _accountants(script: Script) -> Iterator[ast.Call]:
    return (call for call in script.all_calls if last_name(call.func).endswith("Accountant"))


def _is_asked_before(script: Script, line: int) -> bool:
    """Whether an assertion is about what an accountant answers before a line."""
    parts = (part for part in _asserted(script) if isinstance(part, (ast.Name, ast.Call)))
    known = (item for part in parts for item in script.names.definitions(part) if isinstance(item, ast.Call))
    return any(last_name(call.func) in SPENT and call.lineno < line for call in known)


def _changes_noise(node: ast.AST, known: Sequence[str] = ()) -> bool:
    """Whether the noise multiplier of an object is set anew: `optimizer.noise_multiplier *= 2`, setattr().

    Args:
        node: Where.
        known: Names of what it may be set to without a change, such as the noise multiplier that is stated.
    """
    targets: list[ast.expr] = []
    for part in ast.walk(node):
        if isinstance(part, ast.Call) and last_name(part.func) == "setattr" and len(part.args) == 3:
            name = part.args[1]
            if isinstance(name, ast.Constant) and name.value == "noise_multiplier":
                return True
        if isinstance(part, ast.Assign) and last_name(part.value) not in known:
            targets += part.targets
        elif isinstance(part, (ast.AugAssign, ast.AnnAssign)):
            targets.append(part.target)
    return any(isinstance(target, ast.Attribute) and target.attr == "noise_multiplier" for target in targets)


def _called_in_loops(script: Script) -> set[str]:
    """The names of what is called in a loop."""
    loops = (node for node in ast.walk(script.tree) if isinstance(node, Loop))
    return {last_name(part.func) for loop in loops for part in ast.walk(loop) if isinstance(part, ast.Call)}


def _asserted(script: Script) -> set[ast.AST]:
    return {part for node in ast.walk(script.tree) if isinstance(node, ast.Assert) for part in ast.walk(node)}


def _names_epsilon(node: ast.AST) -> bool:
    return any(last_name(part).lower() in SPELLINGS["epsilon"] for part in ast.walk(node))


def _is_left(loop: Loop) -> bool:
    """Whether passes of a loop may be left out or cut short."""
    parts = [*ast.walk(loop)]
    ended = any(isinstance(part, ast.Call) and last_name(part.func) in ("exit", "quit", "_exit") for part in parts)
    return ended or any(isinstance(part, (ast.Break, ast.Continue, ast.Return, ast.Raise)) for part in parts)


def stated_epsilons(script: Script) -> Iterator[ast.expr]:
    """What a script states as its privacy's epsilon."""
    parents, asserted = script.names.parents, _asserted(script)
    for node in script.names.mentions(*SPELLINGS["epsilon"]):
        parent = parents[node]
        spelt = {last_name(node).lower(), (parent.arg or "").lower() if isinstance(parent, ast.keyword) else ""}
        named = spelt & set(PRIVACY_EPSILONS) and not _is_computed_with(script, last_name(node), asserted)
        if named or _beside_delta(script, parent, node) or _printed(parents.get(parent)):
            yield node
    for statement in ast.walk(script.tree):
        if isinstance(statement, ast.Assert) and isinstance(statement.test, ast.Compare):
            sides = [statement.test.left, *statement.test.comparators]
            if isinstance(statement.test.ops[0], (ast.Gt, ast.GtE)):
                sides.reverse()
            if len(sides) == 2 and _is_spent(script, sides[0]):
                yield sides[1]


def call_epsilon(script: Script, call: ast.Call) -> ast.expr | None:
    """The epsilon of privacy that a call is given."""
    library = script.names.dotted(call.func).split(".")[0] in PRIVATE_PACKAGES
    return argument(call, "epsilon") if library else keyword(call, *PRIVACY_EPSILONS)


def given(script: Script, name: str) -> Number | None:
    """The one number that a script has for a quantity, if privacy code is given it; else None."""
    places = [*script.names.mentions(*(word for word in SPELLINGS[name] if word not in AMBIGUOUS))]
    for call in script.all_calls:
        if _is_private(script, call):
            position = POSITIONS.get((last_name(call.func), name), len(call.args))
            places += [item for item in (argument(call, name), *call.args[position : position + 1]) if item is not None]
    numbers = {script.names.number(place) for place in places} - {None}
    used = [place for place in places if _is_given(script, place, name)]
    computed = any(
        definition is not None and script.names.number(definition) is None
        for place in used
        for definition in script.names.definitions(place)
    )
    known = len(numbers) == 1 and not computed and any(script.names.number(place) is not None for place in used)
    return numbers.pop() if known else None


def _is_private(script: Script, call: ast.Call) -> bool:
    """Whether a call is that of a privacy library, or is given the noise multiplier."""
    if last_name(call.func) in PRIVACY_CALLS or script.names.dotted(call.func).split(".")[0] in PRIVATE_PACKAGES:
        return True
    return keyword(call, "noise_multiplier") is not None or any(
        last_name(item).lower() == "noise_multiplier" for item in [*call.args, *(word.value for word in call.keywords)]
    )


def _is_given(script: Script, node: ast.expr, name: str) -> bool:
    """Whether private training is given what stands here, as an argument or as the length of its loop."""
    if name in ("epochs", "steps") and _is_asked_before(script, node.lineno):
        return False
    child, current = node, script.names.parents.get(node)
    while current is not None and not isinstance(current, ast.stmt):
        if isinstance(current, ast.Call) and child is not current.func and last_name(current.func) not in FUNCTIONS:
            if _is_private(script, current):
                return not (name in ("epochs", "steps") and is_own(script, current))
            if name == "batch_size":
                return [*data_loaders(script)] == [current]
            if "range" not in last_name(current.func):
                return False
        child, current = current, script.names.parents.get(current)  # type: ignore[assignment]
    if not isinstance(current, ast.For) or child is not current.iter:
        return False
    other = any(script.calls("make_private")) and any(_accountants(script))  # whose loop it is, is not known
    asked = _is_asked_before(script, (current.end_lineno or current.lineno) + 1)
    if other or asked or passes(script, current.iter) != script.names.number(node):
        return False
    return (name == "epochs" and goes_through_loader(script, current)) or (
        name == "steps" and is_accounted(script, current)
    )


def _is_spent(script: Script, node: ast.AST) -> bool:
    """Whether an accountant's answer is in an expression."""
    for part in ast.walk(node):
        known = script.names.definitions(part) if isinstance(part, (ast.Name, ast.Call)) else []
        if any(isinstance(item, ast.Call) and last_name(item.func) in SPENT for item in known):
            return True
    return False


def _is_computed_with(script: Script, name: str, asserted: set[ast.AST]) -> bool:
    """Whether a name stands in a computation or is handed to a call that is not privacy's, as for another release."""
    for node in script.names.mentions(name):
        parent = script.names.parents[node]
        handed = isinstance(parent, ast.Call) and node is not parent.func and not _is_private(script, parent)
        if handed and last_name(parent.func) not in TELLS:  # type: ignore[attr-defined]
            return True
        if isinstance(parent, (ast.BinOp, ast.Compare)) and parent not in asserted:
            return True
    return False


def _beside_delta(script: Script, parent: ast.AST, node: ast.expr) -> bool:
    """Whether a pair (epsilon, delta) is read, not handed to a call that is neither privacy's nor told a guarantee."""
    if not (isinstance(parent, ast.Tuple) and isinstance(parent.ctx, ast.Load) and len(parent.elts) == 2):
        return False
    reader = script.names.parents.get(parent)
    told = isinstance(reader, ast.keyword) and TELLS_GUARANTEE.search(reader.arg or "") is not None
    reader = script.names.parents.get(reader) if isinstance(reader, ast.keyword) else reader
    if isinstance(reader, ast.Call) and not told and not _is_private(script, reader):
        return False
    return parent.elts[0] is node and last_name(parent.elts[1]).lower() in SPELLINGS["delta"]


def _printed(text: ast.AST | None) -> bool:
    """Whether a formatted text tells epsilon with its delta as a privacy guarantee."""
    if not isinstance(text, ast.JoinedStr):
        return False
    written = ast.unparse(text)
    return PRINTED_PAIR.search(written) is not None and OF_PRIVACY.search(written) is not None
