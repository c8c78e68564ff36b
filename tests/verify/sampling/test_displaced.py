"""Displaced passes: their weights turn means under R into means under F, and what they prove is what exact numerics do.

Each comparison of samples fails by chance with probability at most 1e-6.
"""

from itertools import permutations
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom, norm

from dpaudit.mechanisms import Gaussian, Laplace
from dpaudit.verify.claims import Adjacency, Claim, Phase
from dpaudit.verify.lower import certified_lower
from dpaudit.verify.monte_carlo import monte_carlo_lower
from dpaudit.verify.results import Direction
from dpaudit.verify.samplers import BallsInBins, Sampler, Shuffled
from dpaudit.verify.samplers.base import PassGame
from dpaudit.verify.sampling.displaced import SHARE, DisplacedHistories, displaced_histories, mean_loss
from dpaudit.verify.sampling.histories import PlainHistories, ShiftedPhase, shifted_phases
from dpaudit.verify.sampling.passes import Displacement, displaced_passes


def parts_of(
    sampler: Sampler, mechanism: Any = None, adjacency: Adjacency = "zero-out"
) -> tuple[tuple[ShiftedPhase, ...], Direction]:
    claim = Claim(1.0, 1e-5, (Phase(mechanism or Gaussian(1.5), sampler=sampler),), adjacency)
    direction: Direction = "swap" if adjacency == "replace-one" else "remove"
    return shifted_phases(claim, 1, direction), direction


@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize("mechanism", [Gaussian(1.5), Laplace(1.0)], ids=["gaussian", "laplace"])
@pytest.mark.parametrize("sampler", [Shuffled(4, 3), Shuffled.of(20, 6, 2, last_batch="dropped")], ids=repr)
def test_weighted_means_are_those_of_plain_histories(sampler: Any, mechanism: Any, direction: Direction) -> None:
    """Of 1, and of three events: within five deviations, and not so with the weights of another displacement."""
    parts, _ = parts_of(sampler, mechanism)
    size, moved = 60_000, Displacement(1.4, 0.3) if direction == "remove" else Displacement(0.5, -0.3)
    drawn = DisplacedHistories(parts, direction, (moved,))
    loss, weight = drawn(np.random.default_rng(1), size)
    assert weight.max() <= -np.log(SHARE) + 1e-9
    plain = PlainHistories(parts, direction)(np.random.default_rng(2), size)
    for level in (-np.inf, -0.5, 0.3, 1.0):
        ours, theirs = np.exp(weight) * (loss > level), plain > level
        spread = np.hypot(ours.std(), theirs.std()) / size**0.5 + 1e-12
        assert abs(ours.mean() - theirs.mean()) < 5.0 * spread, level
    assert abs((loss > 0.3).mean() - (plain > 0.3).mean()) > 5.0 / size**0.5


def test_both_densities_are_means_over_all_orders() -> None:
    """Loss and weight of single passes against a plain sum over the orders of three releases."""
    game = PassGame(first=((0.9, (2, 0, 1)), (0.1, (3, 0, 0))), second=((0.9, (2, 1, 0)), (0.1, (3, 0, 0))), passes=1)
    noise, shown = Gaussian(1.3, dimension=1), []

    class Seen:
        """The noise, whose draws are kept."""

        structure, dimension = noise.structure, 1

        def sample(self, rng: np.random.Generator, size: int) -> Any:
            shown.append(noise.sample(rng, size))
            return shown[-1]

        def privacy_loss(self, output: Any, shift: Any) -> Any:
            return noise.privacy_loss(output, shift)

    moved, plain = Displacement(1.7, -0.2), np.zeros(40, dtype=bool)
    import dpaudit.verify.sampling.passes as module

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "with_dimension", lambda mechanism, dimension: mechanism)
        loss, towards = displaced_passes(
            Seen(),
            1.0,
            game,
            moved,
            np.random.default_rng(5),
            plain,
            add=False,  # type: ignore[arg-type]
        )
    outputs = shown[0].reshape(40, 3)  # moved in place, so as they were shown

    def density(slots: Any, step: float, offset: float) -> Any:
        total = np.zeros(40)
        for weight, (zeros, ones, twos) in slots:
            orders = set(permutations((0.0,) * zeros + (1.0,) * ones + (2.0,) * twos))
            for order in orders:
                total += weight / len(orders) * norm.pdf(outputs, np.array(order) * step + offset, 1.3).prod(axis=1)
        return total

    first, second = density(game.first, 1.0, 0.0), density(game.second, 1.0, 0.0)
    np.testing.assert_allclose(loss, np.log(first / second), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(towards, np.log(density(game.first, 1.7, -0.2) / first), rtol=1e-9, atol=1e-9)


def test_a_ray_ends_where_the_mean_loss_is_the_wanted_one() -> None:
    parts, direction = parts_of(Shuffled(10, 40), Gaussian(3.0))
    found = displaced_histories(parts, direction, 5.0, np.random.default_rng(3))
    assert len(found) == 4
    for draw in found:
        assert mean_loss(draw, np.random.default_rng(4)) == pytest.approx(5.0, rel=0.25)
    assert displaced_histories(parts, direction, 0.0, np.random.default_rng(3)) == []  # F's own losses are larger


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampler", "noise", "adjacency"),
    [
        (Shuffled.of(50, 6, 20, last_batch="dropped"), 1.5, "zero-out"),
        (Shuffled(40, 5), 1.0, "replace-one"),
        (BallsInBins(12, 10), 2.0, "add-remove"),
    ],
    ids=repr,
)
def test_a_delta_of_1e_8_is_seen(sampler: Any, noise: float, adjacency: Adjacency) -> None:
    """At confidence 1 - 1e-6 with 8,000 histories, of which plain ones would see nothing below 1e-3."""
    claim = Claim(1.0, 1e-8, (Phase(Gaussian(noise, dimension=1), sampler=sampler),), adjacency)
    truth = float(certified_lower(claim).epsilon(np.array([1e-8]))[0])
    found = monte_carlo_lower(claim, rng=np.random.default_rng(6), samples=8000, confidence=1.0 - 1e-6)
    assert 0.9 * truth < float(found.epsilon(np.array([1e-8]))[0]) < 1.002 * truth


@pytest.mark.slow
def test_displaced_bounds_err_as_often_as_they_may() -> None:
    """Two bounds at an error of 40% in all; the truth is the exact numerics' bound for the same pair.

    More than 29 wrong ones of 40 have probability at most 1e-4, and are what errors of two in three make.
    """
    claim = Claim(4.0, 1e-6, (Phase(Gaussian(2.0, dimension=1), sampler=Shuffled(5, 6)),), "zero-out")
    exact, trials, rng = certified_lower(claim), 40, np.random.default_rng(7)
    truth = float(exact.epsilon(np.array([1e-6]))[0]), float(exact.delta(np.array([4.0]))[0])
    found = [monte_carlo_lower(claim, rng=rng, samples=400, confidence=0.6) for _ in range(trials)]
    bounds = [(float(x.epsilon(np.array([1e-6]))[0]), float(x.delta(np.array([4.0]))[0])) for x in found]
    wrong = sum(epsilon > truth[0] or delta > truth[1] for epsilon, delta in bounds)
    assert 0 < wrong <= int(binom.isf(1e-4, trials, 0.4))
    assert np.median([epsilon for epsilon, _ in bounds]) > 0.85 * truth[0]
