"""Shuffled batches that are accounted as Poisson ones."""

import ast
from collections.abc import Iterator

from dpaudit.audit.lint.findings import Hit, Rule
from dpaudit.audit.lint.idioms import (
    POISSON_ACCOUNTING,
    argument,
    data_loaders,
    held_out,
    shuffles,
)
from dpaudit.audit.lint.names import keyword, last_name
from dpaudit.audit.lint.recipe_files import RecipeFile
from dpaudit.audit.lint.releases import is_own
from dpaudit.audit.lint.script import Script

OPACUS = ("make_private", "make_private_with_epsilon")
PASSES = (
    "shuffled",
    "deterministic",
)  # kinds of a recipe's [sampling], in which every record has its batch in every pass
SHUFFLING_SAMPLERS = ("RandomSampler", "DistributedSampler", "SubsetRandomSampler")


def _find(script: Script) -> Iterator[Hit]:
    if _told_of_no_sampling(script):
        return
    replaced = False
    for call in script.calls(*OPACUS):
        old = keyword(call, "data_loader") or (call.args[2] if len(call.args) > 2 else None)
        replaced = replaced or old is not None
        if _is_of_script(script, call):
            continue
        sampling = keyword(call, "poisson_sampling")
        if script.names.value(sampling) is False:
            yield Hit(
                sampling or call, "poisson_sampling=False shuffles, and the accountant still assumes Poisson batches"
            )
        if old is not None and script.names.value(sampling) is not False:
            yield from _beside_its_loader(script, call, old)
    accounting = _accounting(script)
    if replaced or accounting is None:
        return
    for call in data_loaders(script):
        if script.names.value(keyword(call, "shuffle")) is True or _shuffling_sampler(call):
            yield Hit(call, f"batches are shuffled, and {accounting} assumes Poisson batches")
    for call in shuffles(script):
        yield Hit(call, f"batches are cut from a shuffled stream, and {accounting} assumes Poisson batches")
    for call in script.all_calls:
        if last_name(call.func).endswith("Trainer") and keyword(call, "train_dataset") is not None:
            yield Hit(
                call, f"{last_name(call.func)} shuffles its training set, and {accounting} assumes Poisson batches"
            )
    for call in script.calls("numpy_input_fn", "pandas_input_fn"):
        batch = script.names.number(keyword(call, "batch_size"))  # len(...) of a drawn batch is none of these
        if script.names.value(keyword(call, "shuffle")) is True and batch is not None and not held_out(script, call):
            yield Hit(call, f"{last_name(call.func)} shuffles, and {accounting} assumes Poisson batches")
    yield from _keras_fits(script, accounting)


def _told_of_no_sampling(script: Script) -> bool:
    """Whether every rate that accountants are told is 1: no batches amplify what is claimed then."""
    told = (argument(call, "sampling_prob") for call in script.calls("step"))
    rates = {script.names.number(rate) for rate in told if rate is not None}
    for call in script.calls("append"):
        kept = isinstance(call.func, ast.Attribute) and last_name(call.func.value) == "history"  # of Opacus
        if kept and call.args and isinstance(call.args[0], ast.Tuple) and len(call.args[0].elts) == 3:
            rates.add(script.names.number(call.args[0].elts[1]))
    return rates == {1}


def _is_of_script(script: Script, call: ast.Call) -> bool:
    """Whether make_private is a function of the script, or a method of a class of it: what these call is judged."""
    if not isinstance(call.func, ast.Attribute):
        return is_own(script, call)
    receiver = call.func.value
    made = {last_name(item.func) for item in script.names.definitions(receiver) if isinstance(item, ast.Call)}
    for item in ast.walk(script.tree):
        methods = item.body if isinstance(item, ast.ClassDef) else ()
        own = any(isinstance(part, ast.FunctionDef) and part.name == call.func.attr for part in methods)
        if isinstance(item, ast.ClassDef) and own and ({item.name} == made or _is_self(receiver, item)):
            return True
    return False


def _is_self(node: ast.expr, around: ast.ClassDef) -> bool:
    return last_name(node) == "self" and node in ast.walk(around)


def _beside_its_loader(script: Script, private: ast.Call, given: ast.expr) -> Iterator[Hit]:
    """Training with what make_private returned, on batches that are not its loader's."""
    name = last_name(private.func)
    overridden = "get_train_dataloader" in script.text or any(script.calls("bundle_from_trainer"))
    for call in script.all_calls if not overridden else ():
        trainer = last_name(call.func).endswith("Trainer") and keyword(call, "train_dataset") is not None
        if trainer and call.lineno > private.lineno and _comes_from(script, call, private):
            yield Hit(call, f"{last_name(call.func)} shuffles its training set, and {name} assumes Poisson batches")
    known = script.names.definitions(given)
    if not isinstance(given, ast.Name) or len(known) != 1:  # one that is bound again may be another
        return
    if isinstance(known[0], ast.Call) and keyword(known[0], "batch_sampler") is not None:
        return
    for loop in ast.walk(script.tree):
        if not isinstance(loop, ast.For) or loop.lineno <= private.lineno:
            continue
        source = _unsplit(script, loop.iter)
        if _comes_from(script, source, private):
            continue
        parts = [*ast.walk(source)]
        lengths = [part for part in parts if isinstance(part, ast.Call) and last_name(part.func) == "len"]
        counted = {part for length in lengths for part in ast.walk(length)}
        names = [part for part in parts if isinstance(part, ast.Name) and part.id == given.id and part not in counted]
        read = any(script.names.definitions(name) == known for name in names)
        steps = [part.func.value for part in ast.walk(loop) if _is_step(part)]  # type: ignore[attr-defined]
        if read and any(private in script.names.definitions(item) for item in steps):
            yield Hit(
                loop.iter, f"batches of the loader that {name} was given, not of the Poisson one that it returned"
            )


def _unsplit(script: Script, batches: ast.expr) -> ast.expr:
    """The loader whose batches Opacus's BatchMemoryManager splits up; of other batches, these."""
    for part in ast.walk(batches):
        for made in script.names.definitions(part) if isinstance(part, ast.Name) else ():
            if isinstance(made, ast.Call) and last_name(made.func) == "BatchMemoryManager":
                return keyword(made, "data_loader") or batches
    return batches


def _is_step(node: ast.AST) -> bool:
    """Whether an optimizer's step is called."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "step"


def _comes_from(script: Script, node: ast.AST, call: ast.Call) -> bool:
    """Whether an expression reads what a call returned, by name or through a call that was given it."""
    for part in (item for item in ast.walk(node) if isinstance(item, ast.Name)):
        for definition in script.names.definitions(part):
            inner = ast.walk(definition) if isinstance(definition, ast.Call) and definition is not call else ()
            names = [item for item in inner if isinstance(item, ast.Name)]
            if definition is call or any(call in script.names.definitions(item) for item in names):
                return True
    return False


def _accounting(script: Script) -> str | None:
    """The first thing in a script that assumes Poisson batches and leaves the loader as it is."""
    for call in script.all_calls:
        name = last_name(call.func)
        if name in POISSON_ACCOUNTING and script.names.number(argument(call, "sampling_prob")) != 1:
            return name
        if name == "PrivacyEngine" and any(script.calls("attach")):  # make_private would replace the loader
            return "PrivacyEngine.attach"
    return None


def _shuffling_sampler(call: ast.Call) -> bool:
    sampler = keyword(call, "sampler")
    return isinstance(sampler, ast.Call) and last_name(sampler.func) in SHUFFLING_SAMPLERS


def _keras_fits(script: Script, accounting: str) -> Iterator[Hit]:
    """fit(x, y) of Keras shuffles unless told otherwise."""
    if not any("tensorflow" in name or "keras" in name for name in script.names.imports.values()):
        return
    if any(script.names.value(keyword(call, "poisson_sampling_in_fit")) is True for call in script.all_calls):
        return
    for call in script.calls("fit"):
        arrays = len(call.args) > 1 or keyword(call, "y") is not None
        batched = argument(call, "batch_size") is not None
        shuffled = script.names.value(keyword(call, "shuffle")) is not False
        if arrays and batched and shuffled and not held_out(script, call.func):
            yield Hit(call, f"fit() shuffles its arrays, and {accounting} assumes Poisson batches")


def _find_in_recipe(file: RecipeFile) -> Iterator[Hit]:
    run, claimed = file.recipe.sampling, file.recipe.claimed_sampling
    if run.kind in PASSES and claimed.kind == "poisson":
        place = file.line("claim.sampling", "kind")
        message = f"[claim.sampling] accounts Poisson batches, and [sampling] runs {run.kind} ones"
        yield Hit(place if place > 1 else file.line("claim", "sampling"), message)


RULE = Rule(
    name="shuffled-as-poisson",
    level="warning",
    summary="Shuffled batches accounted as Poisson ones",
    reason="Amplification by Poisson sampling does not hold for shuffled batches: the true epsilon can be several "
    "times the accounted one.",
    source="Chua et al. (2024), How Private are DP-SGD Implementations?, https://arxiv.org/abs/2403.17673",
    fix='Draw Poisson batches, or claim kind = "shuffled" and check that claim with dpaudit verify.',
    in_script=_find,
    in_recipe=_find_in_recipe,
)
