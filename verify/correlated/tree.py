"""Binary-tree strategies: every row of C is a node of a tree over consecutive steps, the sum of its leaves.

The leaves of a tree are steps; a node of level l is an aligned block of 2^l of them, and is released once its last leaf
is known, if that comes before the end of its tree. "prefix" nodes are those that sums of the first t leaves are made
of, one for every binary 1 of t: the blocks of even number, left children (Chan, Shi and Song 2011; Kairouz et al. 2021,
Algorithm 1, without Honaker's estimates). One of them ends at every step, so C is square and lower triangular. "all"
nodes are what Honaker's estimates use (Kairouz et al. 2021, Appendix D). C has entries 0 and 1, G_ij counts the nodes
above both i and j and is not negative, so sens^2 is the largest sum over nodes of (participations below)^2: integers,
and exact for a given pattern.

Fixed orders are single patterns. For separations, `tree_states` is exact; where participations are so many that it
would take too long, or some pattern meets the least of these upper bounds, that one is taken:

- By rows (`patterns`): G_ij does not grow as j moves away from i on either side, a block that contains i and j
  containing what is between. So v_i takes j = i +- b, i +- 2b, ..., those with the smallest common block first. With
  i in block h of level l, that is the level below the first common one, and j in its sibling, whose number of multiples
  of b is counted: O(n log n) for all v_i.
- By nodes: let T_l(c) be at least the largest sum over the nodes strictly inside a block of level l for c
  participations below it, of which there can be ceil(2^l / b). Two halves with a and c - a give T_{l+1}(c) = max_a
  T_l(a) + a^2 + T_l(c - a) (+ (c - a)^2 with "all" nodes); it is an upper bound since the separation of steps in
  different halves is ignored, and exact for b = 1. A tree of n leaves is a row of blocks, the binary digits of n, all
  of them released; nothing larger is.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from dpaudit.mechanisms.base import Array, Domain, keep_as_python_numbers
from dpaudit.mechanisms.numerics import UNIT
from dpaudit.verify.correlated.participation import Participation
from dpaudit.verify.correlated.patterns import Sensitivity, Steps, between, heaviest
from dpaudit.verify.correlated.tree_states import TooMuchWork, TreeStates

Nodes = Literal["prefix", "all"]
RESTART = Domain(1, 10**9, (1, 1000), "leaves of a tree", closed_low=True, integer=True)


@dataclass(frozen=True)
class Tree:
    """Noise on the nodes of binary trees over consecutive steps.

    Args:
        restart: Steps of a tree, after which another one begins; None: one tree over all steps.
        nodes: "prefix": those that prefix sums are made of. "all": every complete node, for Honaker's estimates.

    Raises:
        TypeError, ValueError: A field is outside its domain.
    """

    name: ClassVar[str] = "tree"
    restart: int | None = None
    nodes: Nodes = "prefix"

    def __post_init__(self) -> None:
        keep_as_python_numbers(self)
        if self.restart is not None:
            RESTART.validate("restart", self.restart)
        if self.nodes not in get_args(Nodes):
            raise ValueError(f"Expected nodes={self.nodes!r} to be 'prefix' or 'all'.")

    def over(self, steps: int) -> "Forest":
        """The trees over so many steps."""
        return Forest(steps, min(self.restart or steps, steps), self.nodes == "all")


@dataclass(frozen=True)
class Forest:
    """Trees over consecutive steps.

    Args:
        steps: n.
        leaves: Of a tree; the last one may have fewer.
        every: Whether all complete nodes are released, or those of prefix sums.
    """

    steps: int
    leaves: int
    every: bool

    @cached_property
    def levels(self) -> int:
        """Levels of the largest complete block, and one more."""
        return self.leaves.bit_length()

    @cached_property
    def above(self) -> Array:
        """Released nodes of level >= l above each leaf, integers of shape (levels + 1, n)."""
        step = np.arange(self.steps)
        counts = np.zeros((self.levels + 1, self.steps))
        for level in reversed(range(self.levels)):
            counts[level] = counts[level + 1] + self.released(step, level)
        return counts

    def place(self, step: Steps) -> tuple[Steps, Steps]:
        """Each step's place in its tree, and the leaves of that tree."""
        inside = step % self.leaves
        return inside, np.minimum(self.leaves, self.steps - (step - inside))

    def released(self, step: Steps, level: int) -> NDArray[np.bool_]:
        """Whether the block of this level around each step is released."""
        inside, leaves = self.place(step)
        block = inside >> level
        return np.asarray((((block + 1) << level) <= leaves) & (self.every | (block % 2 == 0)))

    @cached_property
    def nodes_above(self) -> Array:
        """Released nodes above each leaf, integers of shape (n,)."""
        step, count = np.arange(self.steps), np.zeros(self.steps)
        for level in range(self.levels):
            count += self.released(step, level)
        return count

    def below(self, pattern: Steps) -> list[NDArray[np.int64]]:
        """How many steps of a pattern are below every released node that has any, level by level."""
        found = []
        inside, _ = self.place(pattern)
        for level in range(self.levels):
            kept = self.released(pattern, level)
            key = (pattern - inside)[kept] + ((inside[kept] >> level) << level)  # the block's first step
            found.append(np.unique(key, return_counts=True)[1].astype(np.int64))
        return found

    def square(self, pattern: Steps) -> float:
        """|C u|^2 of equal contributions to these steps: an integer."""
        return float(sum(int((counts**2).sum()) for counts in self.below(pattern)))

    def row_weights(self, separation: int, times: int) -> Array:
        """v_i of every step."""
        step = np.arange(self.steps)
        inside, leaves = self.place(step)
        weights, left = self.above[0].copy(), np.full(self.steps, times - 1)
        for level in range(self.levels):
            first = ((inside >> level) ^ 1) << level  # of the sibling
            last = np.minimum(first + (1 << level), leaves) - 1
            near = np.where(first > inside, first - inside, inside - last)
            far = np.where(first > inside, last - inside, inside - first)
            count = np.where(last >= first, far // separation - (near - 1) // separation, 0)
            count = np.minimum(np.maximum(count, 0), left)
            weights += count * self.above[level + 1]
            left -= count
        return np.asarray(weights)

    def by_nodes(self, separation: int, times: int) -> float:
        """The bound by nodes."""
        full = self._tree(self.leaves, separation, times)
        count, rest = divmod(self.steps, self.leaves)
        total = self._tree(rest, separation, times)
        while count:
            if count % 2:
                total = _joined(total, full, times)
            full, count = _joined(full, full, times), count // 2
        return float(total.max())

    def _tree(self, leaves: int, separation: int, times: int) -> Array:
        """The largest sums over a tree's nodes, by the number of participations."""
        inner, total = np.zeros(min(1, times) + 1), np.zeros(1)
        for level in range(leaves.bit_length()):
            whole = inner + np.arange(len(inner)) ** 2.0
            if leaves >> level & 1:
                total = _joined(total, whole, min(times, -(-leaves // separation)))
            most = min(times, -(-(2 << level) // separation))
            inner = _joined(whole, whole if self.every else inner, most)
        return total


def _joined(first: Array, second: Array, most: int) -> Array:
    """max_a first(a) + second(c - a) for c up to `most`."""
    if len(first) > len(second):
        first, second = second, first
    joined = np.full(min(len(first) + len(second) - 1, most + 1), -np.inf)
    for count, value in enumerate(first[: len(joined)]):
        part = joined[count : count + len(second)]
        np.maximum(part, value + second[: len(part)], out=part)
    return joined


def tree_sensitivity(tree: Tree, steps: int, participation: Participation) -> Sensitivity:
    """sens of a tree strategy: exact unless participations are very many.

    Args:
        tree: The strategy.
        steps: n.
        participation: The schema, without sampling.
    """
    forest = tree.over(steps)
    apart, times = participation.spacing(steps)
    if participation.kind == "fixed-order":
        orders = [np.arange(start, steps, apart, dtype=np.int64) for start in range(min(apart, steps))]
        squares = [forest.square(order) for order in orders]
        best = int(np.argmax(squares))
        return between(squares[best], squares[best], orders[best], 4 * UNIT, whole=True)  # integers, exact below 2^53
    rows, pattern = heaviest(forest.row_weights(apart, times), apart, times)
    candidates = [np.arange(times, dtype=np.int64) * apart, pattern]
    squares = [forest.square(candidate) for candidate in candidates]
    best = int(np.argmax(squares))
    lower, upper, shown = squares[best], min(rows, forest.by_nodes(apart, times)), candidates[best]
    if lower < upper and apart > 1:  # with 1 the bound by nodes is exact
        try:
            upper = float(TreeStates(apart, times).largest(steps, forest.leaves, forest.every))
        except TooMuchWork:
            return between(lower, upper, shown, 4 * UNIT, whole=True)
    return between(upper, upper, shown if lower == upper else shown[:0], 4 * UNIT, whole=True)
