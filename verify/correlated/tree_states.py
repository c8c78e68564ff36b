"""The exact sensitivity of binary trees under a separation of participations, where they are few.

What is outside a block sees of the participations inside only how many there are, how many steps lie before the first
and how many after the last. For a block, c participations and a value v of the nodes inside it, let

    reach_v(a) = the most steps after the last participation, of patterns of value at least v whose first one has at
                 least a steps before it,

cut at m = b - 1, beyond which no step is in anybody's way, and -1 where there is no such pattern. Two neighbouring
blocks, the first with c_1 and v_1, may be joined if the steps between, after the last participation of the one and
before the first of the other, are at least m. As more of them never hurt,

    reach_{v_1 + v_2}(a) = reach_{v_2}(m - reach_{v_1}(a)),

and an empty block adds its steps before or after. So all blocks are found level by level, and values whose reach is
that of a larger one are dropped. Every value is that of a pattern, so the largest is sens^2 itself. (Kairouz et al.
2021, Appendix D.2, have the same recursion, over every number of steps between.)
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Whole = NDArray[np.int64]
Reach = NDArray[np.int32]
States = tuple[Whole, Reach]  # values, falling, and the reach of each, shape (values, b)
MOST_WORK, CALL = 200_000_000, 2000  # numbers to gather: some seconds; how many one call costs as much as

MOST_HELD = 20_000_000  # numbers at once
MOST_TIMES = 1000  # participations, whose pairs are gone through at every level


@dataclass(frozen=True)
class Block:
    """Consecutive steps and what patterns inside them are worth.

    Args:
        size: Steps.
        states: Of one participation, of two, and so on.
    """

    size: int
    states: tuple[States, ...]

    def with_node(self) -> "Block":
        """The block with its own node released: as many more as participations, squared."""
        return Block(self.size, tuple((values + (c + 1) ** 2, reach) for c, (values, reach) in enumerate(self.states)))


class TooMuchWork(Exception):
    """More states than it is worth to go through."""


class TreeStates:
    """The joining of blocks.

    Args:
        separation: b.
        times: k.
    """

    def __init__(self, separation: int, times: int) -> None:
        self._most, self._cut, self._work = times, separation - 1, 0

    def largest(self, steps: int, leaves: int, every: bool) -> int:
        """sens^2 of the trees, exactly.

        Args:
            steps: n.
            leaves: Of a tree.
            every: Whether all complete nodes are released.

        Raises:
            TooMuchWork: There are too many states.
        """
        if self._most > MOST_TIMES:
            raise TooMuchWork
        count, rest = divmod(steps, leaves)
        whole, total = self._tree(leaves, every), self._tree(rest, every)
        while count:  # copies of one tree, in any grouping
            if count % 2:
                total = self.joined(whole, total)
            whole, count = (self.joined(whole, whole), count // 2) if count > 1 else (whole, 0)
        return max(int(values[0]) for values, _ in total.states)

    def _tree(self, leaves: int, every: bool) -> Block:
        """A row of blocks that are the binary digits of its leaves, the largest first."""
        first = np.full((1, self._cut + 1), -1, dtype=np.int32)
        first[0, 0] = 0
        block, total = Block(1, ((np.zeros(1, dtype=np.int64), first),)), Block(0, ())
        for level in range(leaves.bit_length()):
            released = block.with_node()
            if leaves >> level & 1:
                total = self.joined(released, total)
            if leaves >> (level + 1):
                block = self.joined(released, released if every else block)
        return total

    def joined(self, first: Block, second: Block) -> Block:
        """The block of two neighbours."""
        size = first.size + second.size
        most = min(self._most, -(-size // (self._cut + 1)))
        return Block(size, tuple(self._states(first, second, count) for count in range(1, most + 1)))

    def _states(self, first: Block, second: Block, count: int) -> States:
        parts, cut, held = [], self._cut, 0
        if count <= len(first.states):
            values, reach = first.states[count - 1]
            parts.append((values, np.where(reach >= 0, np.minimum(reach + second.size, cut), -1)))
        if count <= len(second.states):
            values, reach = second.states[count - 1]
            parts.append((values, reach[:, np.maximum(np.arange(cut + 1) - first.size, 0)]))
        for one in range(max(1, count - len(second.states)), min(count - 1, len(first.states)) + 1):
            (values, reach), (others, further) = first.states[one - 1], second.states[count - one - 1]
            self._work += len(others) * reach.size + CALL
            held += len(others) * reach.size
            if self._work > MOST_WORK or held > MOST_HELD:
                raise TooMuchWork
            joined = np.where(reach >= 0, further[:, cut - np.maximum(reach, 0)], -1)  # others, values, steps before
            parts.append(((others[:, None] + values).ravel(), joined.reshape(-1, cut + 1)))
        return _kept(np.concatenate([values for values, _ in parts]), np.concatenate([reach for _, reach in parts]))


def _kept(values: Whole, reach: Reach) -> States:
    """The states that no other is as good as, by falling value."""
    order = np.argsort(-values, kind="stable")
    values, reach = values[order], np.maximum.accumulate(reach[order], axis=0)
    last = np.append(values[1:] != values[:-1], True)
    values, reach = values[last], reach[last]
    further = np.append(True, (reach[1:] > reach[:-1]).any(axis=1)) & (reach[:, 0] >= 0)
    return values[further], reach[further]
