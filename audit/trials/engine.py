"""Trials: lists of models, trained block by block by an engine, their scores kept in a store."""

import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from secrets import token_hex
from typing import Any, Literal

import numpy as np

from dpaudit.audit.exit_status import keep_what_is_done
from dpaudit.audit.inputs.files import InputError
from dpaudit.audit.inputs.sources import Stage
from dpaudit.audit.trials import local_engine
from dpaudit.audit.trials.blocks import (
    Block,
    OutOfTimeError,
    Place,
    Score,
    Scores,
    Trainer,
    TrainingError,
    Trial,
    TrialSetup,
    block_keys,
    cut,
    setup_key,
    trial_seed,
)
from dpaudit.audit.trials.keys import NoSourceError, evidence_key, fingerprint
from dpaudit.audit.trials.local_engine import Pace, Pending, WorkersDiedError
from dpaudit.audit.trials.store import StorageError, TrialStore
from dpaudit.mechanisms.learning.training import train

__all__ = [
    "EngineName",
    "Score",
    "Scores",
    "Trainer",
    "Trial",
    "TrialRunner",
    "TrialSetup",
    "no_progress",
    "trial_seed",
]

EngineName = Literal["local", "ray"]

DISPUTED = (
    "Files of the store hold different scores of the same models, and those of one file were taken: equal arguments "
    "did not give equal models where they were trained, or a file was changed."
)


FEWEST = 4  # models that are trained again
AGREEING = 0.1  # of the spread of the scores: what the same models may differ by, from one machine to another
CHANGED = (
    "Expected the training loop to give the same models again whose scores were kept: it does not. What it reads "
    "besides its own text has changed (a configuration file, the environment), or it draws without its seed. --fresh "
    "trains anew."
)
UNSEEDED = (
    "Expected the training loop to give equal models for equal arguments: a few that were trained twice differ. "
    "Everything random in a model must come from its seed, and nothing may be kept from one call to the next."
)


def no_progress(what: str, total: int) -> Callable[[int], None]:
    """A `Stage` that shows nothing."""
    return lambda done: None


def _engine(name: EngineName, pace: Pace) -> Callable[..., Generator[tuple[Place, Scores], None, None]]:
    if name == "local":
        return partial(local_engine.train_blocks, pace=pace)
    try:
        from dpaudit.audit.trials import ray_engine  # seconds, and an optional dependency
    except ModuleNotFoundError as error:
        raise InputError(
            f"Expected engine={name!r} to be installed (pip install 'dpaudit[cluster]'): {error}."
        ) from None
    return ray_engine.train_blocks


@dataclass
class TrialRunner:
    """Where the trials of an audit are kept, how many train at once and until when, and why they ended early.

    Args:
        store: Where finished blocks are kept and looked up.
        workers: Processes at most.
        engine: "local", or "ray": on a cluster.
        deadline: `time.monotonic()` value at which training ends.
        stage: Told what begins and how long it is; returns the function told of progress.
        share: (i, n): blocks i, i + n, ... of every list are trained first, and after them what no other process has
            finished.
        concludes: Whether verdicts follow: else no look is counted.
        trained: How many models were trained here.
        control_cut: Whether a positive control ended with its share of the time, before it had all its models.
        stopped: Why fewer models were trained than asked for: "" (none), "budget", "interrupted", or a sentence. Once
            stopped, no more are trained.
        notes: What a reader of the result must know of the trials, in sentences.
    """

    store: TrialStore = field(default_factory=lambda: TrialStore(None))
    workers: int = 1
    engine: EngineName = "local"
    deadline: float | None = None
    stage: Stage = no_progress
    share: tuple[int, int] = (1, 1)
    concludes: bool = True
    trained: int = 0
    control_cut: bool = False
    stopped: str = ""
    notes: list[str] = field(default_factory=list)
    _own: set[str] = field(default_factory=set, repr=False)
    _confirmed: bool = field(default=False, repr=False)
    _pace: Pace = field(default_factory=Pace, repr=False)

    def run(self, setup: TrialSetup, *lists: Sequence[Trial], what: str = "Training models") -> tuple[Scores, ...]:
        """Train and score the models of some lists of trials, or as many as the deadline and the user allow.

        Every list is cut into blocks, and the blocks of the lists take turns. Stopping early by the clock is
        independent of the scores, so bounds stay valid for what was done.

        Args:
            setup: How to train and score.
            lists: Members and seed of every model; the two arms of a game are two lists.
            what: What progress is shown as.

        Returns:
            For each list the scores of its first models, shape (models,) or (models, k), equally many of lists of the
            same length.

        Raises:
            InputError: A user's loop does not give the models again whose scores were kept.
        """
        blocks = cut(setup.block, lists)
        store, base = self._identified(setup)
        keys = block_keys(base, blocks)
        advance = self.stage(what, sum(map(len, lists)))
        done: dict[Place, Scores] = {}

        def known(place: Place) -> bool:
            if (scores := store.get(keys[place], models=len(blocks[place]))) is not None:
                done[place] = scores
                advance(len(scores))
            return place in done

        try:
            store.refresh()
            waiting = {place for place in blocks if not known(place)}
        except StorageError as error:
            self.stopped, waiting = str(error.strerror), set()
        # what other processes have finished meanwhile is not trained again
        pending = ((place, blocks[place]) for place in self._in_turn(list(blocks), waiting) if not known(place))

        def keep(place: Place, scores: Scores) -> None:
            done[place] = scores
            self.trained += len(scores)
            self._own.add(keys[place])
            advance(len(scores))
            store.put(keys[place], scores)

        if setup.trainer is not train:
            kept = {place: blocks[place] for place in done if keys[place] not in self._own}
            self._confirm(setup, kept, done)
        if waiting and not self.stopped:
            self._train(setup, pending, len(waiting), keep)
        if setup.trainer is not train and not self.stopped:
            self._confirm(setup, {place: blocks[place] for place in done}, done, fault=UNSEEDED)
            self._all_are_there()
        if store.disputed and DISPUTED not in self.notes:
            self.notes.append(DISPUTED)
        unfinished = min((start for start, which in blocks if (start, which) not in done), default=math.inf)
        parts = [
            [done[place] for place in blocks if place[0] < unfinished and place[1] == i] for i in range(len(lists))
        ]
        return tuple(np.concatenate(part) if part else np.empty(0) for part in parts)

    def look(
        self, game: Mapping[str, Any], setup: TrialSetup, *lists: Sequence[Trial], trials: int, count: bool = True
    ) -> int:
        """Count a look at the first `trials` models of some lists, before a verdict from them: see `TrialStore.look`.

        Trials of code that nothing identifies are new evidence each time.

        Args:
            game: What is attacked and how, its seed included: what `evidence_key` tells evidence by.
            setup, lists: As `run`. How long the lists are does not matter: they are known by their first models.
            trials: How many models of each list there are scores of.
            count: Whether it is counted, by a runner that concludes; else it is only said which look it would be.
        """
        _, base = self._identified(setup)
        first = {(which, which): list(trials)[:1] for which, trials in enumerate(lists)}
        scores = fingerprint({"first blocks": sorted(block_keys(base, first).values())}) if base else token_hex()
        return self.look_at(game, f"{trials} {scores}", count=count)

    def look_at(self, game: Mapping[str, Any], evidence: str, *, count: bool = True) -> int:
        """Count a look at evidence that is not only trials, such as fair coins: see `TrialStore.look`."""
        return self.store.look(evidence_key(game), evidence, count=count and self.concludes)

    def _identified(self, setup: TrialSetup) -> tuple[TrialStore, str]:
        """The store for these trials and the key of the setup: memory alone for code that nothing identifies."""
        try:
            return self.store, setup_key(setup)
        except NoSourceError as error:
            note = (
                f"Trials were kept in memory alone, for {error}; a trainer_id of the trainer would tell versions apart."
            )
            if note not in self.notes:
                self.notes.append(note)
            return TrialStore(None), ""

    def _in_turn(self, places: list[Place], waiting: set[Place]) -> Iterator[Place]:
        """The own share first, then from the end what others have not finished; nothing after the deadline."""
        own, shares = self.share
        mine = [place for place in places[own - 1 :: shares] if place in waiting]
        others = waiting.difference(mine)
        theirs = [place for place in reversed(places) if place in others]
        for place in mine + theirs:
            self.store.refresh()
            if self.deadline is not None and time.monotonic() >= self.deadline:
                raise OutOfTimeError
            yield place

    def _all_are_there(self) -> None:
        """The clock ended nothing but models that were trained twice."""
        self.stopped = "" if self.stopped == "budget" else self.stopped

    def _confirm(
        self, setup: TrialSetup, kept: Mapping[Place, Block], done: Mapping[Place, Scores], *, fault: str = CHANGED
    ) -> None:
        """Train a few models of a user's loop again whose scores are known; once, as all are of the same text."""
        if self._confirmed or self.stopped or sum(map(len, kept.values())) < FEWEST:
            return
        chosen = dict[Place, Block]()
        for place in sorted(kept, key=lambda place: (-len(kept[place]), place)):
            if sum(map(len, chosen.values())) < FEWEST:
                chosen[place] = kept[place]
        again: dict[Place, Scores] = {}
        self._train(setup, iter(chosen.items()), len(chosen), again.__setitem__)
        if len(again) < len(chosen):  # the clock, or the loop itself, ended it
            return
        self._confirmed = True
        spread = np.concatenate([done[place] for place in kept]).std(axis=0)
        apart = np.concatenate([np.abs(again[place] - done[place]) for place in chosen])
        if not (np.median(apart, axis=0) <= AGREEING * spread).all():
            raise InputError(fault)

    def _train(self, setup: TrialSetup, pending: Pending, count: int, keep: Callable[[Place, Scores], None]) -> None:
        """Keep the results of the engine, until all are there or something ends it: then `stopped` says what."""
        train_blocks = _engine(self.engine, self._pace)
        keep_what_is_done()
        results = train_blocks(setup, pending, count=count, workers=self.workers, deadline=self.deadline)
        try:
            with closing(results):
                for place, scores in results:
                    keep(place, scores)
        except KeyboardInterrupt:
            self.stopped = "interrupted"
        except OutOfTimeError:
            self.stopped = "budget"
        except StorageError as error:
            self.stopped = str(error.strerror)
        except (TrainingError, WorkersDiedError) as error:
            self.stopped = str(error)
