"""Whole subsampled histories drawn through the mechanisms' own samplers: the certified bound is below the truth."""

import math

import numpy as np
import pytest
from scipy.stats import beta as beta_law

from dpaudit.mechanisms import GammaPLRV, GammaPLRVIID, GeneralizedGaussian, Laplace, Product
from dpaudit.mechanisms.base import Mechanism
from dpaudit.verify.claims import Claim
from dpaudit.verify.lower.families import equal, feasible
from dpaudit.verify.lower.histories import history_points, shifted_phase

SIDE = 1e-6  # error probability of each of the four one-sided Clopper-Pearson bounds of a case
DRAWS = 100_000

TWO_LEVELS = [[0.85, 1], [0.4, 5]]  # norms 0.977 for p = 3 and, with five times 0.2, 0.960 for p = 2
CASES: list[tuple[Mechanism, int | list[list[float]], float, int, str]] = [
    (Laplace(1.0, dimension=8), 5, 0.3, 4, "remove"),
    (Laplace(1.0, dimension=8), 5, 0.3, 4, "add"),
    (GammaPLRVIID(3.0, 0.4, dimension=6), 6, 0.5, 3, "remove"),
    (GeneralizedGaussian(3.0, 1.6, clip_norm=3.0, dimension=10), 10, 0.4, 5, "remove"),
    (GeneralizedGaussian(1.5, 1.2, clip_norm=1.5, dimension=3), 1, 0.4, 5, "add"),
    (GeneralizedGaussian(3.0, 1.6, clip_norm=3.0, dimension=10), TWO_LEVELS, 0.4, 5, "remove"),
    (Laplace(1.0, dimension=6), [[0.85, 1], [0.2, 5]], 0.5, 3, "add"),
    (GammaPLRV(3.0, 0.4, dimension=24), 18, 0.5, 2, "remove"),
    (Product(12.0, dimension=12), 1, 0.4, 2, "remove"),
]


def total_losses(
    mechanism: Mechanism, shift: np.ndarray, q: float, steps: int, with_record: bool, rng: np.random.Generator
) -> np.ndarray:
    """Sum over the steps of log((1 - q) Q + q P)/Q at outputs drawn with, or without, the record in the data."""
    total = np.zeros(DRAWS)
    for _ in range(steps):
        moved = with_record & (rng.random(DRAWS) < q)
        output = mechanism.sample(rng, DRAWS) + moved[:, None] * shift
        loss = mechanism.privacy_loss(output, shift)
        total += np.logaddexp(math.log1p(-q), math.log(q) + loss)
    return total


ROWS = [pytest.param(*row, marks=pytest.mark.slow) if isinstance(row[0], GammaPLRV) else row for row in CASES]


@pytest.mark.slow
@pytest.mark.parametrize(("mechanism", "count", "q", "steps", "direction"), ROWS)
def test_the_certified_delta_is_below_the_sampled_one_and_near_it(
    mechanism: Mechanism, count: int | list[list[float]], q: float, steps: int, direction: str
) -> None:
    """delta(eps) = P(L > eps) - e^eps Q(L > eps) exactly; each probability from a fixed event and fresh draws."""
    epsilon = 0.4
    moved = equal(mechanism, count) if isinstance(count, int) else feasible(mechanism, count, "two-level")
    shift = np.zeros(mechanism.dimension or 1)
    shift[: moved.coordinates] = np.repeat(*zip(*moved.groups, strict=True))
    rng = np.random.default_rng(2024)
    sign = 1.0 if direction == "remove" else -1.0
    first = sign * total_losses(mechanism, shift, q, steps, direction == "remove", rng)
    second = sign * total_losses(mechanism, shift, q, steps, direction == "add", rng)
    hits = [int((losses > epsilon).sum()) for losses in (first, second)]
    low = [beta_law.ppf(SIDE, h, DRAWS - h + 1) for h in hits]
    high = [beta_law.isf(SIDE, h + 1, DRAWS - h) for h in hits]
    claim = Claim.single(mechanism, epsilon=epsilon, delta=1e-3, steps=steps, sampling_prob=q)
    points = history_points([shifted_phase(claim, claim.phases[0], moved)], direction, claim)
    found = points.delta(np.array([epsilon]))[0]
    assert found <= high[0] - math.exp(epsilon) * low[1]
    assert found >= 0.9 * (low[0] - math.exp(epsilon) * high[1])
    assert found > 0.01
