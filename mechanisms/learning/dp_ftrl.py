"""DP-FTRL: prefix sums of clipped gradients with tree noise, on batches in a fixed public order, without sampling.

Kairouz et al. (2021), "Practical and Private (Deep) Learning without Sampling or Shuffling", Algorithms 1 and 2; the
tree is that of Chan, Shi and Song (2011), "Private and Continual Release of Statistics". The leaves of a pass are the
clipped sums g_1, ..., g_B of its batches. The sum of the first t of them is released as the sum of one node for every
binary digit 1 of t, each node with its own noise; N_t is the noise in it. Follow-the-regularized-leader with linear
losses moves the weights to w_0 - (learning rate / batch) (g_1 + ... + g_t + N_t), which is gradient descent whose
step t has the noise N_t - N_{t-1}. The node that ends at t with the largest power of two dividing t is the only new
one of that prefix, so a step draws one noise vector; right children enter no prefix and are never released.

A record is in one batch of a pass. It enters the released nodes above its leaf, at most floor(log2 B) + 1 of them (the
first leaf enters that many), in each with the same clipped gradient. Released in order, they are that many unsampled
releases of the mechanism, adaptively composed: given what was released before, later gradients do not depend on the
record. Another pass starts another tree, and its releases are added.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dpaudit.mechanisms.base import Domain

BATCHES = Domain(1, np.inf, (1, 1000), "batches of one pass", closed_low=True, integer=True)


def releases_per_record(steps: int, batches: int) -> int:
    """The most tree nodes that any one record enters: floor(log2 B') + 1 for every pass of B' steps.

    Args:
        steps: T, at least 1; the last pass may be cut short.
        batches: B, the batches of one pass, at least 1.

    Raises:
        TypeError, ValueError: A number is outside its domain.

    >>> releases_per_record(8, 8), releases_per_record(7, 8), releases_per_record(20, 8)
    (4, 3, 11)
    """
    for name, value in (("steps", steps), ("batches", batches)):
        BATCHES.validate(name, value)
    passes, rest = divmod(steps, batches)
    return passes * batches.bit_length() + rest.bit_length()


def public_batch(rows: Tensor, step: int, batches: int, inside: Tensor | None, models: int) -> Tensor | None:
    """Who is in the batch of a step: record i of the pool in batch i mod B of every pass.

    A record's place depends on nothing but its number, so one record more or less moves no other.

    Args:
        rows: Places in the pool, shape (records,).
        step: Of the whole training, from 0.
        batches: B.
        inside: Who trains which model, bool, shape (models, records); None: everyone all.
        models: How many.

    Returns:
        Bool, shape (models, records); None: everyone in all.
    """
    if batches == 1:
        return inside
    due = (rows % batches == step % batches).expand(models, -1)
    return due.clone() if inside is None else due & inside


class TreeNoise:
    """The noise of the prefix sums of some models, step by step, and the count of who entered which node.

    Args:
        batches: B, the leaves of one tree; a step past the last leaf starts another tree.
        entered: For every leaf, how many released nodes lie above it so far; counted, not computed.
    """

    def __init__(self, batches: int) -> None:
        self.entered = np.zeros(batches, dtype=np.int64)
        self._active: dict[int, Tensor] = {}  # noise of the nodes that the last prefix is made of, by level
        self._leaves = 0  # of the present tree

    def increment(self, fresh: Tensor) -> Tensor:
        """N_t - N_{t-1} of the next step: the new node's noise less that of the nodes which it replaces.

        Args:
            fresh: Noise of the new node, shape (models, numbers); not kept.

        Returns:
            The same shape.
        """
        if self._leaves == len(self.entered):
            self._leaves, self._active = 0, {}
        self._leaves += 1
        level = (self._leaves & -self._leaves).bit_length() - 1
        self.entered[self._leaves - 2**level : self._leaves] += 1
        replaced: Sequence[Tensor] = [self._active.pop(below) for below in range(level)]
        self._active[level] = fresh.clone()
        return fresh - torch.stack(list(replaced)).sum(0) if replaced else fresh
