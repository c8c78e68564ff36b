"""gg: the scale of generalized Gaussian noise by a search over its own accountant, and by the valid bound."""

from dpaudit.verify.accountants.base import Accountant
from dpaudit.verify.accountants.published_adapter import Published
from dpaudit.verify.calibration.costs import Target
from dpaudit.verify.calibration.noise import Calibration, calibrate


def compare_scales(
    target: Target, *, beta: float, dimension: int, clip: float = 1.0
) -> tuple[Calibration, Calibration]:
    """The least sigma for a beta, l_beta clipping (gg, Section B.4), by Section B.2 and by the valid bound.

    B.2 accounts one coordinate whatever the dimension, which is wrong for every beta but 1 and 2.

    Args:
        target: What is to be met.
        beta: Power of the noise, at least 1; also the clipping norm.
        dimension: Coordinates.
        clip: l_beta bound on a contribution.

    Returns:
        (by Section B.2, by the valid bound); the verdict of each is what it really costs.

    Raises:
        TypeError, ValueError: A value outside its domain.
        InfeasibleError: No scale meets the target.
    """
    table = {
        "name": "generalized-gaussian", "beta": beta, "clip": clip, "clip_norm": beta, "dimension": dimension,
    }  # fmt: skip

    def search(accountant: Accountant | None) -> Calibration:
        return calibrate(
            table, epsilon=target.epsilon, delta=target.delta, steps=target.steps,
            sampling_prob=target.sampling_prob, adjacency=target.adjacency, accountant=accountant,
        )  # fmt: skip

    return search(Published("gg-b.2")), search(None)
