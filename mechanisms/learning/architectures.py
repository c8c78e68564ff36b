"""The named networks: their modules, the shapes of their parameters, and which of them the ensemble engine trains."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from dpaudit.mechanisms.learning.spec import Architecture
from dpaudit.mechanisms.learning.text_networks import BagOfEmbeddings, TransformerEncoder

HIDDEN = 32  # units of the hidden layer, of "fnn" where nothing else is said
C1, K1, PAD = 16, 8, 3  # first convolution of "cnn": channels, kernel, padding; stride 2
C2, K2 = 32, 4  # second convolution of "cnn": channels, kernel; stride 2
SMALLEST_SIDE = 14  # of images for "cnn": below it nothing is left after the second pooling


@dataclass(frozen=True)
class CNNShape:
    """Sides of the square maps of "cnn": input, first convolution, second convolution, its pooling."""

    side: int
    conv1: int
    conv2: int
    pool2: int
    classes: int

    @classmethod
    def of(cls, inputs: int, classes: int) -> "CNNShape":
        """The sides for images of `inputs` pixels.

        Raises:
            ValueError: The images are not square, or too small.
        """
        side = math.isqrt(inputs)
        if side * side != inputs or side < SMALLEST_SIDE:
            raise ValueError(
                f"Expected inputs={inputs} to be the square of an integer >= {SMALLEST_SIDE} (flat images)."
            )
        conv1 = (side + 2 * PAD - K1) // 2 + 1
        conv2 = (conv1 - 1 - K2) // 2 + 1
        return cls(side, conv1, conv2, conv2 - 1, classes)

    @property
    def features(self) -> int:
        """Numbers that enter the first linear layer."""
        return C2 * self.pool2**2


def _fnn(inputs: int, classes: int, *, hidden: int | Sequence[int] = HIDDEN) -> nn.Module:
    widths = [hidden] if isinstance(hidden, int) else list(hidden)
    if not widths or min(widths) < 1:
        raise ValueError(f"Expected hidden={hidden!r} >= 1.")
    layers = [
        part for fan_in, fan_out in pairwise([inputs, *widths]) for part in (nn.Linear(fan_in, fan_out), nn.ReLU())
    ]
    return nn.Sequential(*layers, nn.Linear(widths[-1], classes))


def _logistic(inputs: int, classes: int) -> nn.Module:
    if classes != 2:
        raise ValueError(f"Expected classes={classes} to be 2 for architecture 'logistic'.")
    return nn.Linear(inputs, 1, bias=False)


def cnn(inputs: int, classes: int) -> nn.Sequential:
    """The convolutional network of the papers: two convolutions with pooling, two linear layers; flat square images.

    Args:
        inputs: Pixels of one image, a square of at least 14 x 14.
        classes: Outputs.

    Raises:
        ValueError: The images are not square, or too small.

    >>> sum(p.numel() for p in cnn(784, 10).parameters())
    26010
    """
    shape = CNNShape.of(inputs, classes)
    return nn.Sequential(
        nn.Unflatten(1, (1, shape.side, shape.side)),
        nn.Conv2d(1, C1, K1, stride=2, padding=PAD),
        nn.ReLU(),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(C1, C2, K2, stride=2),
        nn.ReLU(),
        nn.MaxPool2d(2, stride=1),
        nn.Flatten(),
        nn.Linear(shape.features, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, classes),
    )


TEXT_NETWORKS: dict[str, Callable[..., nn.Module]] = {  # they read token ids, and are trained through Opacus
    "bag-of-embeddings": BagOfEmbeddings,
    "transformer": TransformerEncoder,
}
BUILDERS: dict[str, Callable[..., nn.Module]] = {
    "linear": nn.Linear, "fnn": _fnn, "logistic": _logistic, "cnn": cnn, **TEXT_NETWORKS,
}  # fmt: skip
DENSE_NETWORKS = ("linear", "fnn")  # linear layers with ReLU between them: what the ensemble engine trains


def through_opacus(architecture: Architecture) -> bool:
    """Whether Opacus computes its per-record gradients: a user's own module, or one that reads token ids."""
    return architecture.build is not None or architecture.name in TEXT_NETWORKS


def build_module(architecture: Architecture) -> nn.Module:
    """The network as a torch module, into which a trained model's state dict can be loaded.

    "linear" is nn.Linear, "fnn" nn.Sequential(Linear, ReLU, ..., Linear), "logistic" the weights of a two-class
    logistic regression (one output: the logit of class 1), "cnn" the papers' convolutional network; for
    "bag-of-embeddings" and "transformer" see `text_networks`.

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


def weight_count(architecture: Architecture) -> int:
    """How many of the released numbers are weights, of two and more dimensions, and not biases.

    >>> weight_count(Architecture("linear", 784, 10))
    7840
    """
    return sum(int(torch.Size(shape).numel()) for shape in parameter_shapes(architecture).values() if len(shape) > 1)


def dense_layers(architecture: Architecture) -> tuple[list[tuple[int, int]], bool]:
    """(inputs, outputs) of every layer of a network of linear layers, and whether they have biases.

    Args:
        architecture: One of `DENSE_NETWORKS`.
    """
    shapes = parameter_shapes(architecture)
    layers = [(shape[1], shape[0]) for shape in shapes.values() if len(shape) == 2]
    return layers, len(shapes) > len(layers)
