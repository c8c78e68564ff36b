"""The memory in which the convolutional network's gradients of a few records are computed, and all views of it.

A chunk of records is so small that its numbers stay in cache; at that size making a view of a tensor costs as much as
the arithmetic on it. So memory and views are made once for every chunk length, and steps only fill them.

Maps are stored as (record, column, row, channel): a patch is then made of runs of 64 adjacent numbers in either
convolution. Memory is used twice where the first use has ended.
"""

import math

import torch
from torch import Tensor

from dpaudit.mechanisms.learning.architectures import C1, C2, HIDDEN, K1, K2, CNNShape

ALIGNED = 16  # numbers in a cache line: rows that end in a 1 (for the bias) are filled up with zeros to a multiple
relu_backward = torch.ops.aten.threshold_backward.grad_input  # (gradient, outputs, 0, grad_input=): where outputs > 0


def seen_sides(shape: CNNShape) -> tuple[int, int, int]:
    """The sides of the padded image, the first convolution and its pooling, less last lines that reach no output."""
    pool1 = 2 * (shape.conv2 - 1) + K2
    return 2 * pool1 + K1, pool1 + 1, pool1


class Memory:
    """Memory by name for at most so many records; the first records of a name lie at its beginning.

    Args:
        records: At most.
        device: Where.
    """

    def __init__(self, records: int, device: torch.device) -> None:
        self.records, self.device = records, device
        self._kept: dict[str, Tensor] = {}

    def __call__(self, name: str, records: int, *shape: int) -> Tensor:
        """float32 of shape (records, *shape), contiguous; 0 at first, then what its last use left."""
        size = math.prod(shape)
        memory = self._kept.get(name)
        if memory is None or len(memory) < self.records * size:
            memory = self._kept[name] = torch.zeros(self.records * size, device=self.device)
        return memory[: records * size].view(records, *shape)


class MaxPool:
    """The maximum over 2 x 2 places with stride 1, and its backward pass.

    Ties go to the earlier column, then the earlier row, as in torch's MaxPool2d.

    Args:
        maps: What is pooled, (records, columns, rows, channels), contiguous; `backward` overwrites it.
        name: Of its memory.
        half: Name of the memory for the maxima over columns, which others may use between the passes.
        memory: Where all of it is.
    """

    def __init__(self, maps: Tensor, name: str, half: str, memory: Memory) -> None:
        records, columns, rows, channels = maps.shape
        columns, rows = columns - 1, rows - 1
        self.half = memory(half, records, columns, rows + 1, channels)
        self.left = memory(f"left {name}", records, columns, rows + 1, channels)
        self.upper = memory(f"upper {name}", records, columns, rows, channels)
        self.pooled = memory(f"pooled {name}", records, columns, rows, channels)
        self.maps = maps
        self._columns, self._last_column = (maps[:, :-1], maps[:, 1:]), maps[:, -1]
        self._rows, self._last_row = (self.half[:, :, :-1], self.half[:, :, 1:]), self.half[:, :, -1]

    def forward(self) -> None:
        """From `maps` to `pooled`."""
        torch.maximum(*self._columns, out=self.half)
        torch.ge(*self._columns, out=self.left)
        torch.maximum(*self._rows, out=self.pooled)
        torch.ge(*self._rows, out=self.upper)

    def backward(self) -> None:
        """From the gradient at the maxima, in their place in `pooled`, to that at the maps, in `maps`."""
        for gradient, won, (first, second), last in (
            (self.pooled, self.upper, self._rows, self._last_row),
            (self.half, self.left, self._columns, self._last_column),
        ):
            torch.mul(gradient, won, out=first)
            last.zero_()
            second.add_(gradient.sub_(first))


class Workspace:
    """The tensors of one chunk, by their place in the network.

    Args:
        shape: Of the network.
        records: In the chunk.
        memory: Shared by the chunks of all lengths, one of which is in use at a time.
    """

    def __init__(self, shape: CNNShape, records: int, memory: Memory) -> None:
        (side, c1, p1), c2, p2, features, n = seen_sides(shape), shape.conv2, shape.pool2, shape.features, records
        self.around = memory("scratch", n, c2 + 1, c2 + 1, 2, 2 * C2)  # the largest use of this memory comes first
        self.strips = memory("scratch", n, c1 * side * K1)
        self.one_hot = memory("one hot", n, shape.classes)
        self.patches1 = memory("patches 1", n, c1, c1, K1 * K1)
        self.patches1_source = self.strips.as_strided(self.patches1.shape, (c1 * side * K1, side * K1, 2 * K1, 1))
        self.pool1 = MaxPool(memory("maps 1", n, c1, c1, C1), "1", "scratch", memory)
        self.patches2 = memory("patches 2", n, c2, c2, K2, K2 * C1)
        self.patches2_source = self.pool1.pooled.as_strided(
            self.patches2.shape, (p1 * p1 * C1, 2 * p1 * C1, 2 * C1, p1 * C1, 1)
        )
        self.pool2 = MaxPool(memory("maps 2", n, c2, c2, C2), "2", "scratch", memory)
        # inputs of the linear layers end in the 1 that the bias multiplies
        self.inputs3 = memory("inputs 3", n, features + ALIGNED)
        self.inputs4 = memory("inputs 4", n, HIDDEN + ALIGNED)
        self.inputs3[:, features], self.inputs4[:, HIDDEN] = 1, 1
        self.features = self.inputs3.as_strided(self.pool2.pooled.shape, (features + ALIGNED, p2 * C2, C2, 1))
        self.hidden = self.inputs4[:, :HIDDEN]
        self.delta3, self.delta4 = memory("delta 3", n, HIDDEN), memory("delta 4", n, shape.classes)
        self._make_gradient_views(shape, records, memory)

    def _make_gradient_views(self, shape: CNNShape, records: int, memory: Memory) -> None:
        (_, c1, _), c2, n = seen_sides(shape), shape.conv2, records
        # the rows of the two products, and its transposed views by record
        self.rows1, self.rows2 = self.patches1.view(-1, K1 * K1), self.patches2.view(-1, K2 * K2 * C1)
        self.maps1, self.maps2 = self.pool1.maps.view(-1, C1), self.pool2.maps.view(-1, C2)
        self.pooled1, self.pooled2 = self.pool1.pooled.view(n, -1), self.pool2.pooled.view(n, -1)
        self.gradient_features = memory("gradient features", n, shape.features)
        self.delta1, self.delta2 = self.pool1.maps.view(n, -1, C1), self.pool2.maps.view(n, -1, C2)
        self.record_patches1 = self.patches1.view(n, c1 * c1, -1)
        self.record_patches2 = self.patches2.view(n, c2 * c2, -1)
        self.weights1 = memory("weights 1", n, C1, K1 * K1)
        self.weights2 = memory("patches 1", n, C2, K2 * K2 * C1)  # the patches are no longer needed then
        self.flat1, self.flat2 = self.weights1.view(n, -1), self.weights2.view(n, -1)
        self.biases = memory("biases", n, C1 + C2)
        self.bias1, self.bias2 = self.biases[:, :C1], self.biases[:, C1:]
        # what reaches a block of 2 x 2 places below the second convolution: the 2 x 2 outputs around it
        blocks = c2 + 1
        self.bordered = memory("bordered", n, c2 + 2, c2 + 2, C2)  # its border is 0 and stays so
        self.inside = self.bordered[:, 1:-1, 1:-1]
        column, record = (c2 + 2) * C2, (c2 + 2) ** 2 * C2
        self.around_source = self.bordered.as_strided(self.around.shape, (record, column, C2, column, 1))
        self.around_rows = self.around.view(-1, 4 * C2).expand(2, -1, -1)
        below = memory("maps 1", n, 2, blocks, blocks, 2 * C1)  # the two columns of the blocks apart: rows stay whole
        self.below_rows = below.view(2, -1, 2 * C1)
        self.below = below.view(2, n, blocks, -1)
        self.reached = self.pool1.pooled.view(n, blocks, 2, -1).permute(2, 0, 1, 3)
