"""l_p norms of tensors, as clipping needs them: never 0 where there is something to clip."""

import math

import torch
from torch import Tensor


def lp_norm(values: Tensor, order: float, dim: int) -> Tensor:
    """(sum |v|^p)^(1/p) along one dimension, without underflow at large p.

    Args:
        values: Any shape.
        order: p in [1, inf].
        dim: The dimension that is summed.
    """
    if order == 2:
        return values.square().sum(dim).sqrt_()
    size = values.abs()
    if order == 1:
        return size.sum(dim)
    largest = size.amax(dim)
    if math.isinf(order):
        return largest
    # |v|^p of small entries underflows at large p, and a norm that comes out as 0 would leave the record unclipped
    unit = size.div_(largest.clamp_min(torch.finfo(values.dtype).tiny).unsqueeze(dim))
    return largest * unit.pow_(order).sum(dim).pow_(1 / order)


def row_norms(values: Tensor, order: float) -> Tensor:
    """The l_p norm of every row, (sum_j |v_ij|^p)^(1/p).

    Args:
        values: Shape (rows, columns), rows adjacent in memory: torch then has a fused l2 norm.
        order: p in [1, inf].

    Returns:
        Shape (rows,).
    """
    norms: Tensor = torch.linalg.vector_norm(values, dim=1) if order == 2 else lp_norm(values, order, 1)
    return norms
