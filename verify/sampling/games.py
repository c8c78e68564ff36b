"""Games of whole histories: which releases show a record, what the others contribute, and the likelihood ratio.

`Sampler.games` are laws of one pass. Here they are told of the releases of a training: which of them make up a pass,
and what the batches as drawn (`Sampler.draw`) show of either neighbour. No bound follows from this file: a score need
not be the best one, and whoever plays counts what happened.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpaudit.mechanisms.base import Array, Mechanism, with_dimension
from dpaudit.verify.claims import Phase
from dpaudit.verify.samplers import (
    BufferedShuffle,
    Deterministic,
    PassGame,
    Sampler,
    Shuffled,
    TruncatedPoisson,
    WithoutReplacement,
)
from dpaudit.verify.sampling.passes import log_likelihood_ratios


@dataclass(frozen=True)
class HistoryGame:
    """Two neighbours that differ in one record, told apart by all releases along the record's contribution.

    Args:
        game: Laws of a pass.
        releases: Which releases make up a pass, shape (passes, repeats, places); those of one order are added up.
        opposed: Whether all other records contribute -1 each; else nothing.
        swapped: Whether the record is replaced by its opposite, and `game` is of either one against nothing.
    """

    game: PassGame
    releases: NDArray[np.int_]
    opposed: bool = False
    swapped: bool = False

    @property
    def contributions(self) -> tuple[int, int]:
        """Of the record with it and without it, counted from what stands in its place if all places are the others'."""
        if self.swapped:
            return 1, -1
        slots = [slots for _, slots in (*self.game.first, *self.game.second)]
        if not self.opposed:
            return 1, 0
        return 2, int(any(ones for _, ones, _ in slots))

    def scores(self, noise: Mechanism, step: float, outputs: Array) -> Array:
        """log P/Q of each history, P with the record, under the laws of the game; shape (histories,).

        Args:
            noise: Of a release; its law along every line of that length is that of one coordinate.
            step: Length of a contribution.
            outputs: What each release showed along the line, counted from that of places which are all the others',
                shape (histories, releases).
        """
        noise, seen = with_dimension(noise, 1), outputs[:, self.releases]
        passes = seen.reshape(-1, *seen.shape[2:])
        losses = log_likelihood_ratios(noise, step, self.game, passes)
        if self.swapped:  # noise is symmetric
            losses = losses - log_likelihood_ratios(noise, step, self.game, -passes)
        return np.asarray(losses.reshape(len(outputs), -1).sum(axis=1))


def history_games(phase: Phase, *, replace_one: bool) -> list[HistoryGame]:
    """The ways for the others to contribute, the best known one first; [] where the sampler has none.

    Args:
        phase: Its noise and its sampler, or a Poisson rate.
        replace_one: The record is replaced by its opposite; else by a ghost that contributes nothing.
    """
    sampler = phase.sampler
    match sampler:
        case None if phase.sampling_kind in ("none", "poisson"):
            return [_poisson(phase.sampling_prob, np.arange(phase.steps), swapped=replace_one)]
        case None:
            return []
        case Deterministic():
            return [_poisson(1.0, np.arange(sampler.epochs) * sampler.batches, swapped=replace_one)]
        case TruncatedPoisson():
            return _cut_batches(sampler, replace_one=replace_one)
    games = [(game, False) for game in sampler.games(replace_one=replace_one)]
    if replace_one and not games:
        games = [(game, True) for game in sampler.games(replace_one=False)]
    return [
        HistoryGame(
            game=game,
            releases=_releases(sampler, game),
            opposed=any(twos for _, (_, _, twos) in game.first),
            swapped=swapped,
        )
        for game, swapped in games
    ]


def public_sizes(sampler: Sampler, records: int) -> NDArray[np.int_]:
    """Sizes of the batches of an `opposed` game, which everybody knows; the largest ones where batches are cut."""
    if isinstance(sampler, TruncatedPoisson):
        return np.full(sampler.steps, sampler.max_batch)
    return np.array([len(batch) for batch in sampler.draw(np.random.default_rng(0), records)])


def _poisson(rate: float, releases: NDArray[np.int_], *, swapped: bool) -> HistoryGame:
    """Silent others, and the record in each of these releases by a coin."""
    absent = ((1.0 - rate, (1, 0, 0)),) if rate < 1 else ()
    game = PassGame((*absent, (rate, (0, 1, 0))), ((1.0, (1, 0, 0)),), len(releases))
    return HistoryGame(game, releases.reshape(-1, 1, 1), swapped=swapped)


def _cut_batches(sampler: TruncatedPoisson, *, replace_one: bool) -> list[HistoryGame]:
    """Silent others; and opposed ones where a cut is the rule: all batches are then as large, as if drawn that way."""
    releases = np.arange(sampler.steps)
    silent = _poisson(sampler.kept_rate, releases, swapped=replace_one)
    share = sampler.max_batch / sampler.records
    if share >= sampler.prob:
        return [silent]
    game = WithoutReplacement(share, sampler.steps).games(replace_one=replace_one)[0]
    return [silent, HistoryGame(game, releases.reshape(-1, 1, 1), opposed=True)]


def _releases(sampler: Sampler, game: PassGame) -> NDArray[np.int_]:
    """The releases of every pass of a game."""
    places = sum(game.first[0][1])
    if isinstance(sampler, Shuffled | BufferedShuffle):
        starts: Sequence[int] = sampler.whole_starts
    else:
        starts = range(0, sampler.steps, places)
    table = np.array([start + np.arange(places) for start in starts])
    return table[None] if game.passes == 1 else table[:, None]
