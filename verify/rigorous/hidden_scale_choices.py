"""Nodes of a scale that coordinates share, and coordinates that tell it, chosen in floating point: no part of a proof.

A node costs a law of the sum of scores, and there are some 14 sqrt(1 + (moved + gauges)/shape) of them. Gauges are
worth that where the scale is uncertain, and their number is such that they tell it much better than its law does.
"""

import math

import numpy as np

from dpaudit.mechanisms.base import GammaScale, ScaleMixture
from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.pld.gamma_scale import node_error
from dpaudit.verify.pld.scale_mixture_cells import KNOWN_UNCERTAINTY, uncertainty
from dpaudit.verify.rigorous.hidden_scale import SharedScale

MAX_COORDINATES = 16_384
SHARED = {False: (4096, 64.0), True: (MAX_COORDINATES, 128.0)}  # of one scale; the latter times its law's shape
NODES = {False: 400, True: 1000}  # at most, without gauges and with them
LOST = 1e-4  # of delta that may be lost beyond the nodes of a hidden scale, and by summing at them
GAUGES, GAUGE_CELL = 12.0, 3.0  # how much better than its law they tell the scale; a cell, in deviations of their size


def shared_scale(claim: Claim, phase: Phase, law: GammaScale, count: int, *, gauged: bool) -> SharedScale:
    """Nodes and gauges for an event of so many moved coordinates; none lie where the scale hardly ever is.

    Args:
        claim: What may be lost follows from its delta, epsilon and steps.
        phase: The noise.
        law: Of its scale.
        count: How many coordinates are moved.
        gauged: Whether others tell the scale.
    """
    room = (phase.mechanism.dimension or count) - count
    gauges = min(room, math.ceil((GAUGES / uncertainty(law)) ** 2)) if gauged else 0
    spent = sum(one.steps for one in claim.phases) * (1.0 + math.exp(min(claim.epsilon, 30.0)))
    lost = max(LOST * claim.delta / spent, 1e-18)
    low, high = (float(f(np.array(lost))) for f in (law.scale_ppf, law.scale_isf))
    step, order = 1.0, law.shape + count + gauges
    while node_error(order, step) > lost:
        step *= 0.98
    mode, text = law.shape * law.scale, f"{step:.6g}"
    last = math.ceil(math.log(high / mode) / float(text))
    first = max(math.floor(math.log(max(low, 1e-300) / mode) / float(text)), last - NODES[gauged])
    if not gauges:
        return SharedScale(text, (first, last))
    low = max(low, mode * math.exp(first * float(text)))
    cells = math.ceil(math.log(high / low) * math.sqrt(gauges) / GAUGE_CELL)
    return SharedScale(
        text, (first, last), gauges, tuple(f"{float(x):.9g}" for x in gauges / np.geomspace(high, low, cells))
    )


def most_coordinates(claim: Claim, *, gauged: bool) -> int:
    """How many coordinates are worth moving: the more share a scale, the more nodes its law takes."""
    (most, ratio), laws = SHARED[gauged], [phase.mechanism.structure for phase in claim.phases]
    shapes = [law.shape for law in laws if isinstance(law, GammaScale)]
    return min([MAX_COORDINATES, *(min(most, math.ceil(ratio * shape)) for shape in shapes)])


def tells_scale(claim: Claim) -> bool:
    """Whether gauges would tell a scale that all coordinates share better than its law does."""
    found = [phase.mechanism.structure for phase in claim.phases]
    return any(isinstance(law, ScaleMixture) and uncertainty(law) > KNOWN_UNCERTAINTY for law in found)
