"""Which network of a recipe a torch module is: one of the named ones, or what a user's own file builds."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from dpaudit.audit.frameworks.records import FIRST, Records
from dpaudit.audit.inputs.files import InputError
from dpaudit.audit.inputs.networks import build_architecture, parameter_shapes
from dpaudit.audit.inputs.recipe_tables import ArchitectureTable
from dpaudit.mechanisms.learning.architectures import build_module
from dpaudit.mechanisms.learning.spec import Architecture

WRAPPERS = ("_module", "_orig_mod")  # of Opacus and of torch.compile
HINT = (
    "Give architecture='my_model.py:build', a function build(inputs, classes) that returns such a module for flat "
    "rows; without it the claim alone can be checked (claim_from_opacus, then dpaudit.check): no attack can retrain."
)


@dataclass(frozen=True)
class NamedNetwork:
    """A module as a recipe names it.

    Args:
        architecture: What the recipe's [architecture] builds for these records.
        table: [architecture].
        state: The module's trained weights under the names of that architecture, float32.
    """

    architecture: Architecture
    table: ArchitectureTable
    state: dict[str, Tensor]


def unwrapped(module: nn.Module) -> nn.Module:
    """The user's own module inside the wrappers of Opacus, torch.compile and distributed training."""
    while True:
        wrappers = (*WRAPPERS, "module") if "DataParallel" in type(module).__name__ else WRAPPERS
        inner = next((module._modules[name] for name in wrappers if module._modules.get(name) is not None), None)
        if inner is None:
            return module
        module = inner


def name_network(module: nn.Module, records: Records, architecture: str | None, folder: Path) -> NamedNetwork:
    """The recipe's name for a module, found by computing with it: its outputs at random weights must be the same.

    Args:
        module: Trained, perhaps wrapped.
        records: That it reads, in their own shape.
        architecture: "my_model.py:build", or None where a named network will do.
        folder: Where the path of that file begins.

    Raises:
        InputError: The module is no named network, or not what the file builds; the message says what can be done.
    """
    inner = unwrapped(module)
    trained = {name: weight for name, weight in inner.named_parameters() if weight.requires_grad}
    inputs, classes = records.x.shape[1], records.classes
    tables = _tables(inner, [tuple(weight.shape) for weight in trained.values()]) if architecture is None else iter(
        [ArchitectureTable(name=architecture)]
    )  # fmt: skip
    if not trained:
        raise InputError(
            f"Expected weights of the module ({type(inner).__name__}) to be trained, not all frozen: return what was "
            "trained, or a copy with requires_grad_()."
        )
    difference = "it has other weights, or is frozen in part"
    for table in tables:
        built = build_architecture(table, inputs, classes, folder)
        if [*parameter_shapes(built).values()] != [tuple(weight.shape) for weight in trained.values()]:
            continue
        difference = _difference(inner, build_module(built), records, list(trained))
        if not difference:
            state = zip(parameter_shapes(built), trained.values(), strict=True)
            return NamedNetwork(built, table, {name: weight.detach().cpu().float() for name, weight in state})
    if architecture is not None:
        raise InputError(f"architecture: Expected {architecture} to build the network that was trained: {difference}.")
    raise InputError(
        f"Expected the module ({type(inner).__name__}) to be one of linear, fnn and cnn: {difference}. {HINT}"
    )


def _tables(module: nn.Module, shapes: list[tuple[int, ...]]) -> Iterator[ArchitectureTable]:
    """The named networks that may have weights of these shapes."""
    if any(not weight.requires_grad for weight in module.parameters()) or not shapes:
        return
    if len(shapes) <= 2:
        yield ArchitectureTable(name="linear", kwargs={} if len(shapes) == 2 else {"bias": False})
    elif all(len(shape) in (1, 2) for shape in shapes):
        widths = [shape[0] for shape in shapes if len(shape) == 2]
        yield ArchitectureTable(name="fnn", kwargs={"hidden": widths[0] if len(widths) == 2 else widths[:-1]})
    elif any(len(shape) == 4 for shape in shapes):
        yield ArchitectureTable(name="cnn")


def _difference(theirs: nn.Module, ours: nn.Module, records: Records, names: list[str]) -> str:
    """What tells two networks with weights of the same shapes apart, in words; "" if nothing does.

    Both compute with the same random weights, as in training, so that layers without weights are compared too. Outputs
    that differ by a constant are the same to a cross-entropy, such as logits and their log-softmax.
    """
    generator = torch.Generator().manual_seed(0)
    own = dict(theirs.named_parameters())
    device = own[names[0]].device
    weights = [torch.randn(own[name].shape, generator=generator) / own[name].shape[-1] ** 0.5 for name in names]
    scale = 1.0 + float(records.x[:FIRST].std())
    flat = torch.from_numpy(records.x[:FIRST].copy())
    if not records.whole:
        flat = flat + scale * torch.randn(flat.shape, generator=generator)
    shaped = (flat.long() if records.whole else flat).reshape(-1, *records.shape)
    was_training = theirs.training
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            theirs.train()
            given = {name: weight.to(device) for name, weight in zip(names, weights, strict=True)}
            first = _outputs(theirs, given, shaped.to(device), records).cpu()
            our_names = [name for name, weight in ours.named_parameters() if weight.requires_grad]
            second = _outputs(ours.train(), dict(zip(our_names, weights, strict=True)), flat)
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]} (records are flat rows there)"
    finally:
        theirs.train(was_training)
    if first.shape != second.shape:
        return f"outputs of shape {tuple(first.shape)}, not {tuple(second.shape)}"
    if not torch.allclose(first.log_softmax(1), second.log_softmax(1), rtol=1e-3, atol=1e-4):
        return "with the same trained weights its outputs are others"
    return ""


def _outputs(module: nn.Module, weights: Mapping[str, Tensor], x: Tensor, records: Records | None = None) -> Tensor:
    """A module's logits with other weights, dropout the same at every call; `outputs.logits` of one of transformers."""
    torch.manual_seed(0)
    named = records is not None and records.key != ""
    inputs: tuple[Tensor, ...] = () if named else (x,)
    keywords: dict[str, Tensor] = {}
    if named and records is not None:
        masks = {name: torch.as_tensor(value).to(x.device) for name, value in records.others.items()}
        keywords = {records.key: x, **masks}
    made: Any = functional_call(module, dict(weights), inputs, keywords)
    logits: Tensor = getattr(made, "logits", made)
    return logits
