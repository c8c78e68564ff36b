"""Poisson batches: every record in them with probability q, independently; drawn as the gaps between those who are.

Coins B_1, B_2, ... that fall 1 with probability q, independently, and the gaps between their ones determine each other,
and those gaps are independent with P(gap > k) = (1 - q)^k. So independent gaps of this law give independent coins, and
the first N coins are the batch: about N q numbers are drawn for it in place of N.

A gap is 1 + floor(E / r) with E = -log(1 - U), U uniform on [0, 1), and r = -log(1 - q), for E >= k r holds with
probability e^(-k r). U is a multiple of 2^-53, and E and r are rounded in float64: every P(gap > k) is within 2^-51 of
(1 - q)^k, where a coin in float32 has q to within 2^-24.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def draws(q: float, records: int) -> int:
    """Gaps drawn at a time: so many that the end is passed but for one batch in ten thousand.

    Args:
        q: Rate, in (0, 1).
        records: N.

    >>> draws(0.1, 1000)
    144
    """
    return math.ceil(records * q + 4 * math.sqrt(records * q) + 4)


def places(generators: Sequence[torch.Generator], q: float, records: int) -> Tensor:
    """The records of one Poisson batch for every generator, which alone decides on it.

    Args:
        generators: All of one device.
        q: Rate, in (0, 1).
        records: N.

    Returns:
        int64, shape (generators, any), on their device: rows that ascend, ended by one or more N.

    >>> batch = places([torch.Generator().manual_seed(1)], 0.5, 6)[0]
    >>> batch[batch < 6]
    tensor([0, 1, 2, 3, 5])
    """
    device = generators[0].device
    ends = torch.zeros(len(generators), 1, dtype=torch.float64, device=device)
    while bool((short := ends[:, -1] <= records).any()):
        # a gap of 1 for every 0: rows past the end stay there
        uniform = torch.zeros(len(generators), draws(q, records), dtype=torch.float64, device=device)
        for generator, row, unfinished in zip(generators, uniform.unbind(), short.tolist(), strict=True):
            if unfinished:
                row.uniform_(generator=generator)
        gaps = uniform.neg_().log1p_().div_(math.log1p(-q)).floor_().add_(1)
        ends = torch.cat([ends, ends[:, -1:] + gaps.cumsum_(1)], dim=1)
    return ends[:, 1:].sub_(1).clamp_max_(records).long()
