"""Privacy losses of passes in a random order, drawn plainly: release by release, with the exact likelihood ratio.

Nothing is convolved and no statistic chosen: the ratio of a mixture over orders is a mean over orders, of which the
elementary symmetric polynomials of the releases' likelihood ratios are what is needed.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

from dpaudit.mechanisms.base import Array, Mechanism, NormalCoordinates, with_dimension
from dpaudit.verify.samplers.base import PassGame, Slots


@dataclass(frozen=True)
class Displacement:
    """Where releases are drawn instead: every contribution `stretch` times as long, all centres moved by `offset`.

    Args:
        stretch: Factor on each contribution.
        offset: Of every release of a pass, in contributions.
    """

    stretch: float = 1.0
    offset: float = 0.0


def pass_losses(
    mechanism: Mechanism, length: float, game: PassGame, rng: np.random.Generator, size: int, *, add: bool
) -> Array:
    """log P/Q of `size` passes drawn from the first law, or log Q/P of passes drawn from the second one.

    Args:
        mechanism: The noise of a release.
        length: One contribution along its line.
        game: Both laws.
        rng: Source of randomness.
        size: Passes.
        add: Draw from the second law, without the record.
    """
    noise, step, outputs = _drawn(mechanism, length, game, rng, np.ones(size), add=add)
    loss = log_likelihood_ratios(noise, step, game, outputs)
    return -loss if add else loss


def displaced_passes(
    mechanism: Mechanism,
    length: float,
    game: PassGame,
    displacement: Displacement,
    rng: np.random.Generator,
    plain: NDArray[np.bool_],
    *,
    add: bool,
) -> tuple[Array, Array]:
    """Losses as `pass_losses` has them, of passes drawn from F where `plain`, else from G; and log dG/dF there.

    F is the law that `pass_losses` draws from, and G the displaced one.

    Args:
        mechanism: The noise of a release.
        length: One contribution along its line.
        game: Both laws.
        displacement: G.
        rng: Source of randomness.
        plain: Which passes are drawn from F, shape (passes,).
        add: F is the second law, without the record.
    """
    noise, step, outputs = _drawn(mechanism, length, game, rng, np.where(plain, 1.0, displacement.stretch), add=add)
    moved = step * displacement.offset
    outputs += np.where(plain, 0.0, moved)[:, None]
    ratios = _ratios(noise, step, outputs)
    first, second = _log_ratio(ratios, game.first), _log_ratio(ratios, game.second)
    law = game.second if add else game.first
    stretched = _log_ratio(_ratios(noise, step * displacement.stretch, outputs - moved), law)
    everywhere = noise.privacy_loss(outputs.reshape(-1, 1), np.array([moved])).reshape(outputs.shape).sum(axis=1)
    return (second - first if add else first - second), stretched + everywhere - (second if add else first)


def _drawn(
    mechanism: Mechanism, length: float, game: PassGame, rng: np.random.Generator, stretch: Array, *, add: bool
) -> tuple[Mechanism, float, Array]:
    """The noise of one coordinate, a contribution, and what passes showed whose contributions are so much longer."""
    step = length * (game.stretch if isinstance(mechanism.structure, NormalCoordinates) else 1.0)
    noise, law = with_dimension(mechanism, 1), game.second if add else game.first
    size, releases = len(stretch), sum(law[0][1])
    outputs = noise.sample(rng, size * releases).reshape(size, releases)
    which = rng.choice(len(law), size, p=[weight for weight, _ in law])
    centre = step * stretch[:, None]
    for index, (_, (_, ones, twos)) in enumerate(law):  # the order is uniform, and no law depends on it
        rows = which == index
        outputs[rows, :ones] += centre[rows]
        outputs[rows, ones : ones + twos] += 2.0 * centre[rows]
    return noise, step, outputs


def log_likelihood_ratios(noise: Mechanism, step: float, game: PassGame, outputs: Array) -> Array:
    """log P/Q of each pass, P the first law of a game and Q the second, shape (passes,).

    Args:
        noise: Of one coordinate.
        step: One contribution: stretched as the game says, or not where repeats are told one by one.
        game: Both laws.
        outputs: What the releases of each pass showed along the line, shape (passes, releases), or (passes, repeats,
            releases) where one order serves several.
    """
    ratios = _ratios(noise, step, outputs)
    if outputs.ndim == 3:
        ratios = {k: logs.sum(axis=1) for k, logs in ratios.items()}
    return _log_ratio(ratios, game.first) - _log_ratio(ratios, game.second)


def _ratios(noise: Mechanism, step: float, outputs: Array) -> dict[int, Array]:
    """log of the density around one and around two contributions, over that around 0."""
    flat = outputs.reshape(-1, 1)
    return {k: noise.privacy_loss(flat, np.array([k * step])).reshape(outputs.shape) for k in (1, 2)}


def _log_ratio(ratios: dict[int, Array], slots: Slots) -> Array:
    """log of a law's density over that of noise around 0 in every release."""
    parts = []
    for weight, (_, ones, twos) in slots:
        if ones and twos:
            raise ValueError(f"Expected releases around one number of contributions, not {ones} and {twos} around two.")
        value = _log_mean_product(ratios[1 if ones else 2], ones or twos) if ones or twos else 0.0
        parts.append(math.log(weight) + value * np.ones(len(ratios[1])))
    return np.asarray(logsumexp(parts, axis=0))


def _log_mean_product(logs: Array, count: int) -> Array:
    """log of the mean, over all sets of so many columns, of the product of e^logs; shape (rows,).

    >>> _log_mean_product(np.log([[1.0, 2.0, 3.0]]), 2).round(6)  # (2 + 3 + 6)/3
    array([1.299283])
    """
    columns = logs.shape[1]
    sums = np.full((count + 1, len(logs)), -np.inf)
    sums[0] = 0.0
    if count == 1:
        return np.asarray(logsumexp(logs, axis=1) - math.log(columns))
    for column in logs.T:
        sums[1:] = np.logaddexp(sums[1:], sums[:-1] + column)
    return np.asarray(sums[count] - (gammaln(columns + 1) - gammaln(count + 1) - gammaln(columns - count + 1)))
