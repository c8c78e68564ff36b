"""The named networks: their modules, the shapes of their parameters, and which of them the ensemble engine trains."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from dpaudit.mechanisms.learning.spec import Architecture

HIDDEN = 32


def _linear(inputs: int, classes: int, *, bias: bool = True) -> nn.Module:
    return nn.Linear(inputs, classes, bias=bias)


def _fnn(inputs: int, classes: int, *, hidden: int = HIDDEN) -> nn.Module:
    if hidden < 1:
        raise ValueError(f"Expected hidden={hidden!r} >= 1.")
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes))


def _logistic(inputs: int, classes: int) -> nn.Module:
    if classes != 2:
        raise ValueError(f"Expected classes={classes} to be 2 for architecture 'logistic'.")
    return nn.Linear(inputs, 1, bias=False)


def _cnn(inputs: int, classes: int) -> nn.Module:
    from dpaudit.mechanisms.learning import convolution

    return convolution.build(inputs, classes)


BUILDERS: dict[str, Callable[..., nn.Module]] = {"linear": _linear, "fnn": _fnn, "logistic": _logistic, "cnn": _cnn}
DENSE = ("linear", "fnn")  # linear layers with ReLU between them: what the ensemble engine trains


def build_module(architecture: Architecture) -> nn.Module:
    """The network as a torch module, into which a trained model's state dict can be loaded.

    "linear" is nn.Linear, "fnn" nn.Sequential(Linear, ReLU, Linear), "logistic" the weights of a two-class logistic
    regression (one output: the logit of class 1), "cnn" the papers' convolutional network.

    Args:
        architecture: A named one, or one with `build`.

    Raises:
        ValueError: Unknown name, or arguments the network does not take.

    >>> list(build_module(Architecture("fnn", 4, 3, {"hidden": 5})).state_dict())
    ['0.weight', '0.bias', '2.weight', '2.bias']
    """
    build: Callable[..., Any] | None = architecture.build or BUILDERS.get(architecture.name)
    if build is None:
        raise ValueError(f"Expected architecture={architecture.name!r} to be one of {', '.join(sorted(BUILDERS))}.")
    try:
        module: nn.Module = build(architecture.inputs, architecture.classes, **architecture.kwargs)
    except TypeError as error:
        raise ValueError(f"Expected kwargs of architecture={architecture.name!r} to fit it: {error}.") from error
    return module


def parameter_shapes(architecture: Architecture) -> dict[str, tuple[int, ...]]:
    """Name and shape of every trained parameter, in torch's order: the order of the noise vector.

    Args:
        architecture: A named one takes no memory here; a user's own is built, from a fixed random state.
    """
    if architecture.build is None:
        with torch.device("meta"):
            module = build_module(architecture)
    else:
        with torch.random.fork_rng(devices=[]):
            module = build_module(architecture)
    return {name: tuple(p.shape) for name, p in module.named_parameters() if p.requires_grad}


def parameter_count(architecture: Architecture) -> int:
    """How many numbers are released: the dimension of the mechanism.

    >>> parameter_count(Architecture("linear", 784, 10)), parameter_count(Architecture("fnn", 784, 10))
    (7850, 25450)
    """
    return sum(int(torch.Size(shape).numel()) for shape in parameter_shapes(architecture).values())


def dense_layers(architecture: Architecture) -> tuple[list[tuple[int, int]], bool]:
    """(inputs, outputs) of every layer of a network of linear layers, and whether they have biases.

    Args:
        architecture: One of `DENSE`.
    """
    shapes = parameter_shapes(architecture)
    layers = [(shape[1], shape[0]) for shape in shapes.values() if len(shape) == 2]
    return layers, len(shapes) > len(layers)
