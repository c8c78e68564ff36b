"""How privacy libraries spell things: packages, functions with their parameters, names, data sets and their sizes."""

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dpaudit.audit.lint.names import Number, keyword, last_name

if TYPE_CHECKING:
    from dpaudit.audit.lint.script import Script

# parameters in their order, of functions that take them by position
SIGNATURES: dict[str, tuple[str, ...]] = {
    "compute_rdp": ("sampling_prob", "noise_multiplier", "steps", "orders"),
    "compute_dp_sgd_privacy": ("records", "batch_size", "noise_multiplier", "epochs", "delta"),
    "compute_dp_sgd_privacy_statement": ("records", "batch_size", "epochs", "noise_multiplier", "delta"),
    "compute_eps_poisson": ("epochs", "noise_multiplier", "records", "batch_size", "delta"),
    "compute_eps_uniform": ("epochs", "noise_multiplier", "records", "batch_size", "delta"),
    "compute_mu_poisson": ("epochs", "noise_multiplier", "records", "batch_size"),
    "compute_mu_uniform": ("epochs", "noise_multiplier", "records", "batch_size"),
    "GaussianDpEvent": ("noise_multiplier",),
    "PoissonSampledDpEvent": ("sampling_prob", "event"),
    "SelfComposedDpEvent": ("event", "steps"),
    "dpsgd_event": ("noise_multiplier", "steps", "sampling_prob"),
}
# an epsilon of privacy by its name alone
PRIVACY_EPSILONS = (
    "target_epsilon", "target_eps", "privacy_epsilon", "privacy_eps", "dp_epsilon", "dp_eps", "epsilon_dp", "eps_dp",
    "epsilon_budget", "eps_budget", "privacy_budget",
)  # fmt: skip
SPELLINGS: dict[str, tuple[str, ...]] = {
    "sampling_prob": ("sampling_prob", "sampling_probability", "sample_rate", "sampling_rate", "q"),
    "noise_multiplier": ("noise_multiplier", "noise_multi", "sigma", "noise_level"),
    "steps": ("steps", "num_steps", "iterations", "count", "num_iterations", "num_updates"),
    "epochs": ("epochs", "epoch", "num_epochs"),
    "records": ("records", "n", "number_of_examples", "sample_size", "num_examples", "train_size", "dataset_size"),
    "batch_size": ("batch_size", "batch", "expected_batch_size"),
    "delta": ("delta", "target_delta"),
    "epsilon": ("epsilon", "eps", *PRIVACY_EPSILONS),
}
# what assumes that every record enters every batch independently
POISSON_ACCOUNTING = (
    "compute_rdp", "compute_dp_sgd_privacy", "compute_dp_sgd_privacy_statement", "PoissonSampledDpEvent",
    "compute_eps_poisson", "compute_mu_poisson", "dpsgd_event", "RDPAccountant", "PRVAccountant", "DPKerasConfig",
    "DpsgdTrainingAccountant", "DpsgdTrainingUserConfig",
    "OpacusDPTrainer",
)  # fmt: skip
CALIBRATION = (
    "make_private_with_epsilon", "get_noise_multiplier", "calibrate", "calibrate_dp_mechanism", "compute_noise",
    "calibrate_noise_multiplier", "find_noise_multiplier", "get_sigma", "get_sigma_from_rdp",
)  # fmt: skip
# what answers with the epsilon that was spent
SPENT = (
    "get_epsilon", "get_privacy_spent", "get_epsilon_and_optimal_order", "compute_dp_sgd_privacy",
    "compute_dp_sgd_privacy_statement", "compute_eps_poisson", "compute_eps_uniform", "compute_epsilon",
)  # fmt: skip
PRIVATE_TRAINING = ("make_private", "make_private_with_epsilon", "PrivacyEngine", "OpacusDPTrainer")

TRAINING_RECORDS = {
    "mnist": 60_000, "fashionmnist": 60_000, "fashion_mnist": 60_000, "kmnist": 60_000, "cifar10": 50_000,
    "cifar100": 50_000, "svhn": 73_257, "svhn_cropped": 73_257, "imagenet2012": 1_281_167, "imdb": 25_000,
    "imdb_reviews": 25_000, "digits": 1797, "breast_cancer": 569,
}  # fmt: skip
LOADS_NAMED = ("load", "load_dataset", "builder")  # tfds.load("mnist"), datasets.load_dataset("imdb")
REGROUPS = (
    "ConcatDataset", "ChainDataset", "concatenate_datasets", "interleave_datasets", "concatenate", "cat", "Subset",
    "random_split", "train_test_split", "take", "skip", "select",
)  # fmt: skip
SIZE_NAMES = re.compile(
    r"(n|num|number_of)_(train(ing)?_?)?(examples|samples|records|data|points|train|images)"
    r"|(train(ing)?|data|dataset)_(set_)?size|N|n_train|num_train|records",
    re.IGNORECASE,
)
CLIP_NAMES = re.compile(
    r"(max_)?(per_sample_)?(l2_)?(grad(ient)?_)?(norm_clip|clip(ping)?(_?norm|_bound)?|max_grad_norm|grad_norm)|C|clip_?\w*"
)
HELD_OUT = re.compile(r"test|valid|\bval|_val|eval|dev_|holdout|held_out", re.IGNORECASE)


def argument(call: ast.Call, name: str) -> ast.expr | None:
    """The argument of a call that means this, by keyword in any spelling, or by position."""
    given = keyword(call, *SPELLINGS.get(name, (name,)))
    order = SIGNATURES.get(last_name(call.func), ())
    if given is not None or name not in order or order.index(name) >= len(call.args):
        return given
    return call.args[order.index(name)]


def is_clip(node: ast.AST) -> bool:
    """Whether a name is that of a clipping norm.

    >>> is_clip(ast.parse("args.max_grad_norm", mode="eval").body)
    True
    """
    return CLIP_NAMES.fullmatch(last_name(node)) is not None


def held_out(script: "Script", node: ast.AST) -> bool:
    """Whether an expression belongs to data that is not trained on, by the names around it in its statement."""
    return _named_held_out(script, node) or any(
        HELD_OUT.search(part.value) is not None
        for part in ast.walk(node)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    )


def _named_held_out(script: "Script", node: ast.AST) -> bool:
    """Whether what an expression is bound to, or the function that it stands in, is named after held-out data."""
    current: ast.AST | None = node
    while current is not None and not isinstance(current, ast.stmt):
        current = script.names.parents.get(current)
    if isinstance(current, ast.Assign) and any(
        all(HELD_OUT.search(ast.unparse(part)) for part in _receivers(script, target, current.value, node))
        for target in current.targets
    ):
        return True
    function = next(script.names.scopes(node))
    return isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)) and bool(HELD_OUT.search(function.name))


def _receivers(script: "Script", target: ast.expr, value: ast.expr, node: ast.AST) -> list[ast.expr]:
    """The parts of a target that get some of what a node of the value gives: both of `train, test = load()`."""
    if not isinstance(target, (ast.Tuple, ast.List)):
        return [target]
    if isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts):
        around = {node}
        while (parent := script.names.parents.get(node)) is not None and parent is not value:
            around.add(node := parent)
        pairs = zip(target.elts, value.elts, strict=True)
        return [part for part, given in pairs if given in around] or target.elts
    return [part for part in target.elts if last_name(part).strip("_")] or target.elts


def data_loaders(script: "Script") -> Iterator[ast.Call]:
    """PyTorch data loaders of records that may be trained on."""
    return (call for call in script.calls("DataLoader") if not held_out(script, call))


def shuffles(script: "Script") -> Iterator[ast.Call]:
    """Shuffles of a tf.data or grain pipeline: methods with a buffer size, of records that may be trained on."""
    for call in script.calls("shuffle"):
        chained = isinstance(call.func, ast.Attribute)
        buffered = bool(call.args) or keyword(call, "buffer_size") is not None
        size = call.args[0] if call.args else keyword(call, "buffer_size")
        random_module = chained and script.names.dotted(call.func).split(".")[0] in ("random", "numpy", "np", "jax")
        numeric = isinstance(size, (ast.BinOp, ast.Call)) or script.names.number(size) is not None
        if chained and buffered and numeric and not random_module and not held_out(script, call):
            yield call


def buffer_size(script: "Script", call: ast.Call) -> Number | None:
    """The buffer of such a shuffle, None where it is no constant."""
    return script.names.number(call.args[0] if call.args else keyword(call, "buffer_size"))


def records(script: "Script") -> int | None:
    """How many records are trained on, where every place of the script that says so says the same; else None.

    Of data sets that are put together or cut to pieces their names do not say it.
    """
    names = script.names
    sizes: set[Number | None] = set()
    loaded = {call: name for call in script.all_calls if (name := _loads(script, call)) is not None}
    added = any(isinstance(names.parents.get(call), ast.BinOp) for call in loaded)  # MNIST(...) + MNIST(...)
    regrouped = added or any(_regroups(script, call, {*loaded}) for call in script.calls(*REGROUPS))
    if not regrouped:
        sizes.update(TRAINING_RECORDS[name] for name in loaded.values())
    for call in script.all_calls:
        if last_name(call.func) in SIGNATURES:
            sizes.add(names.number(argument(call, "records")))
            rate = argument(call, "sampling_prob")
            quotient = isinstance(rate, ast.BinOp) and isinstance(rate.op, ast.Div)
            sizes.add(names.number(rate.right) if quotient else None)  # type: ignore[union-attr]
    for node in ast.walk(script.tree):
        if isinstance(node, (ast.Name, ast.Attribute)) and SIZE_NAMES.fullmatch(last_name(node)):
            sizes.add(names.number(node))
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and "batch" in last_name(node.left).lower():
            sizes.add(names.number(node.right))
    known = {int(size) for size in sizes if size is not None and size >= 100}
    return known.pop() if len(known) == 1 else None


def _regroups(script: "Script", call: ast.Call, loaded: set[ast.Call]) -> bool:
    """Whether a call of REGROUPS puts records together that may be trained on, or takes some of them."""
    arrays = script.names.dotted(call.func).split(".")[0] in ("numpy", "np", "jax", "jnp", "torch")
    if arrays and last_name(call.func) in ("take", "concatenate", "cat"):  # of predictions and colours too
        return "train" in ast.unparse(call).lower() or _made_of(script, call, loaded)
    return not held_out(script, call) or _cuts(script, call)


def _made_of(script: "Script", node: ast.AST, loaded: set[ast.Call]) -> bool:
    """Whether an expression has a loaded data set in it, by names that are not those of held-out data."""
    waiting, seen = [node], {node}
    while waiting:
        for part in ast.walk(waiting.pop()):
            if part in loaded:
                return True
            if isinstance(part, ast.Name) and not HELD_OUT.search(part.id):
                new = {item for item in script.names.definitions(part) if item is not None} - seen
                seen |= new
                waiting += new
    return False


def _cuts(script: "Script", call: ast.Call) -> bool:
    """Whether several names get parts of it: train, test = random_split(...)."""
    parent = script.names.parents.get(call)
    return isinstance(parent, ast.Assign) and any(
        isinstance(target, (ast.Tuple, ast.List)) for target in parent.targets
    )


def _is_training_part(script: "Script", part: ast.expr) -> bool:
    """Whether what a call says of the part that it loads may be the whole training set: `True`, "train", or a name."""
    several = part.elts if isinstance(part, (ast.List, ast.Tuple)) else [part]
    known = {script.names.value(item) for item in several}
    return None in known or "train" in known or True in known


def _loads(script: "Script", call: ast.Call) -> str | None:
    """Which of TRAINING_RECORDS a call loads by name: datasets.MNIST(...), mnist.load_data(), load("mnist")."""
    name = last_name(call.func)
    second = call.args[1] if len(call.args) > 1 and name not in LOADS_NAMED else None  # there it is a configuration's
    stated = [part for part in (keyword(call, "train"), keyword(call, "split"), second) if part is not None]
    if not all(_is_training_part(script, part) for part in stated):
        return None
    if _named_held_out(script, call) or (not stated and held_out(script, call)):
        return None
    if name == "load_data" and isinstance(call.func, ast.Attribute):
        found = last_name(call.func.value)
    elif name in LOADS_NAMED:
        given = script.names.value(call.args[0] if call.args else keyword(call, "name"))
        found = str(given).split("/")[0]
    else:
        found = name if "datasets" in script.names.dotted(call.func) else ""
    return found.lower() if found.lower() in TRAINING_RECORDS else None
