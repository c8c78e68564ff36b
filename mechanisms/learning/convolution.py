"""The convolutional network of the papers (26,010 parameters on 28 x 28 inputs), trained by DP-SGD or DP-FTRL."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpaudit.mechanisms.base import Mechanism
from dpaudit.mechanisms.learning.convolution_gradients import C1, C2, HIDDEN, K1, K2, PAD, ClippedSum, Shape
from dpaudit.mechanisms.learning.dp_ftrl import TreeNoise, public_batch
from dpaudit.mechanisms.learning.noise import Streams
from dpaudit.mechanisms.learning.one_model import clipping, initialised, sample_rows, step_noise, train_each
from dpaudit.mechanisms.learning.schedule import occurrences
from dpaudit.mechanisms.learning.spec import Pool, Progress, TrainedModels, TrainingSpec


def build(inputs: int, classes: int) -> nn.Sequential:
    """The network as a torch module: two convolutions with pooling, two linear layers; takes flat square images.

    Args:
        inputs: Pixels of one image, a square of at least 14 x 14.
        classes: Outputs.

    Raises:
        ValueError: The images are not square, or too small.

    >>> sum(p.numel() for p in build(784, 10).parameters())
    26010
    """
    shape = Shape.of(inputs, classes)
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


@torch.no_grad()
def train(
    spec: TrainingSpec,
    pool: Pool,
    members: NDArray[np.bool_],
    seeds: Sequence[int],
    *,
    device: str = "cpu",
    progress: Progress | None = None,
) -> TrainedModels:
    """Train convolutional networks by DP-SGD or DP-FTRL, one after another.

    Every step: w <- w - learning_rate / expected_batch_size * (clipped sum + noise), with heavy-ball momentum; DP-FTRL
    differs in who is in the batch and in the noise, which is that of a tree of sums.

    Args:
        spec: What to train; its architecture is the "cnn".
        pool: Flat square images with labels.
        members: Who trains which model, shape (models, records).
        seeds: One nonnegative integer per model.
        device: "cpu" or "cuda".
        progress: Called with 1 after every step of every model.

    Raises:
        ValueError: Images that are not square or too small, or a specification that is neither.
    """
    place = torch.device(device)
    architecture = spec.architecture
    with torch.device("meta"):
        shapes = {name: p.shape for name, p in build(architecture.inputs, architecture.classes).named_parameters()}
    sizes = [shape.numel() for shape in shapes.values()]
    x, y = pool.tensors(place)
    places = torch.arange(len(y), device=place)
    _, order, exempt = clipping(spec)
    clipped_sum = ClippedSum(Shape.of(architecture.inputs, architecture.classes), x, y, order, exempt)

    def fit(streams: Streams, mask: Tensor) -> tuple[dict[str, Tensor], list[int], tuple[int, ...]]:
        flat = nn.utils.parameters_to_vector(initialised(spec, streams, place).parameters())
        velocity = torch.zeros_like(flat)
        batch_sizes, used = [], list[Mechanism]()
        tree = TreeNoise(spec.batches) if spec.algorithm == "dp-ftrl" else None
        for step in range(spec.steps):
            mechanism = spec.mechanism_at(step)
            noise = step_noise(spec, mechanism, streams, len(flat), place)
            if tree is None:
                rows = sample_rows(spec, streams, mask)
            else:
                due = public_batch(places, step, spec.batches, mask[None], 1)
                assert due is not None  # it is where everyone is in all batches of all models
                rows, noise = due[0].nonzero().squeeze(1), tree.increment(noise[None])[0]
            noisy = clipped_sum(flat, rows, float(mechanism.clip)) + noise
            velocity.mul_(spec.momentum).add_(noisy, alpha=1 / spec.expected_batch_size)
            flat.sub_(velocity, alpha=spec.learning_rate)
            batch_sizes.append(len(rows))
            used.append(mechanism)
            if progress is not None:
                progress(1)
        counts = occurrences(used).values() if tree is None else [int(tree.entered.max())]
        parts = zip(shapes.items(), flat.split_with_sizes(sizes), strict=True)
        return {name: part.view(shape) for (name, shape), part in parts}, batch_sizes, tuple(counts)

    return train_each(spec, members, seeds, fit, engine="convolution", device=place)
