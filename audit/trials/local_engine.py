"""Blocks on this machine: the first here, and the rest in worker processes where that pays, one torch thread each."""

import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from multiprocessing import resource_tracker

from joblib.externals import loky
from joblib.externals.loky.backend import resource_tracker as loky_tracker

from dpaudit.audit.exit_status import ENDING
from dpaudit.audit.trials.blocks import Block, OutOfTimeError, Place, Scores, TrialSetup, train_block
from dpaudit.mechanisms.learning.training import train

SERIAL_SECONDS = 6.0  # starting workers takes a few seconds, which shorter work does not repay
HANDING_SECONDS = 5.0  # that loky's thread may take to take up a block, on a busy machine
FAR = 20.0  # times what a block of a user's loop takes: nearer to the deadline none is trained in this process
LOOK_SECONDS = 5.0  # between looks whether loky's thread still runs
LOKY_THREAD = "ExecutorManagerThread"
MOST_DEATHS = 3  # of workers, one after another without a finished block between them
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")

Pending = Iterator[tuple[Place, Block]]


class WorkersDiedError(RuntimeError):
    """Worker processes were killed again and again, as happens where memory runs out, or none could be started."""


@dataclass
class Pace:
    """How fast a user's own loop is, from one list of blocks to the next.

    Args:
        seconds: What a model of the last block took.
    """

    seconds: float = math.inf


def train_blocks(
    setup: TrialSetup, pending: Pending, *, count: int, workers: int, deadline: float | None, pace: Pace
) -> Generator[tuple[Place, Scores], None, None]:
    """Train blocks in any order.

    Args:
        setup: How.
        pending: The blocks; each is asked for when there is room for it.
        count: How many there are.
        workers: Processes at most.
        deadline: `time.monotonic()` value at which everything ends, inside a block too.
        pace: Of the loop; what is measured is noted there.

    Raises:
        OutOfTimeError: The deadline passed.
        WorkersDiedError: The last few workers were killed before they finished anything, or none could be started.
    """
    workers = workers if setup.device == "cpu" else 1
    began, done, own = time.monotonic(), 0, setup.trainer is not train
    while deadline is None or not own or _is_far(deadline, pace.seconds * setup.block):
        if (item := next(pending, None)) is None:
            return
        place, block = item
        with ended_at(deadline if own else None):
            scores, seconds = _timed(setup, block, deadline)
        pace.seconds = seconds if own else pace.seconds
        yield place, scores
        done += 1
        if workers > 1 and (time.monotonic() - began) / done * (count - done) > SERIAL_SECONDS:
            break
    yield from _in_workers(setup, pending, min(workers, count), deadline, pace)


def _timed(setup: TrialSetup, block: Block, deadline: float | None = None) -> tuple[Scores, float]:
    """The scores of a block, and what a model took."""
    began = time.monotonic()
    scores = train_block(setup, block, deadline)
    return scores, (time.monotonic() - began) / len(block)


def _is_far(deadline: float, seconds: float) -> bool:
    """Whether a user's loop, which need not look at the clock, may train a block here: else where it can be killed.

    A worker takes seconds to start, and a pilot has many short lists of blocks.
    """
    here = threading.current_thread() is threading.main_thread()  # whom alarms interrupt
    return here and time.monotonic() + FAR * seconds < deadline


@contextmanager
def ended_at(deadline: float | None) -> Iterator[None]:
    """Inside, an alarm ends at the deadline what does not look at the clock, though it takes far longer than before.

    Raises:
        OutOfTimeError: It did.
    """
    if deadline is None:
        yield
        return
    rung: list[int] = []
    over: list[bool] = []

    def ring(number: int, frame: object) -> None:
        rung.append(number)
        if not over:
            raise OutOfTimeError

    began, handler = time.monotonic(), signal.signal(signal.SIGALRM, ring)
    seconds = max(seconds_until(deadline) or 0.0, 1e-3)
    left, again = signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)  # a loop may catch the first
    try:
        try:
            yield
        finally:  # an alarm until here leaves a second for what follows
            over.append(True)
    except BaseException:
        if rung:  # whatever the loop made of it
            raise OutOfTimeError from None
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, handler)
        if left:  # of a timer that was set before
            signal.setitimer(signal.ITIMER_REAL, max(left - (time.monotonic() - began), 1e-3), again)


def _in_workers(
    setup: TrialSetup, pending: Pending, workers: int, deadline: float | None, pace: Pace
) -> Iterator[tuple[Place, Scores]]:
    unfinished: dict[Place, Block] = {}
    deaths = 0
    while first := next(pending, None) if not unfinished else next(iter(unfinished.items())):
        unfinished.setdefault(*first)
        try:
            for place, scores, seconds in _until_a_worker_dies(setup, pending, unfinished, workers, deadline):
                deaths, pace.seconds = 0, seconds
                yield place, scores
        except loky.BrokenProcessPool as error:
            deaths += 1
            if deaths == MOST_DEATHS:
                raise WorkersDiedError(
                    f"{deaths} workers in a row were killed before they finished a block; is there enough memory?"
                ) from error


def _until_a_worker_dies(
    setup: TrialSetup, pending: Pending, unfinished: dict[Place, Block], workers: int, deadline: float | None
) -> Iterator[tuple[Place, Scores, float]]:
    """Results of the unfinished and of the pending blocks; `unfinished` holds what was handed out."""
    begin = setup, os.getpid(), multiprocessing.get_start_method(allow_none=True)
    executor = loky.ProcessPoolExecutor(workers, initializer=_begin, initargs=begin, env=ONE_THREAD)
    flying: dict[loky.Future, Place] = {}
    waiting = chain(list(unfinished.items()), pending)
    try:
        while True:
            while len(flying) < 2 * workers and (item := next(waiting, None)) is not None:
                unfinished.setdefault(*item)
                _submit(executor, item, flying)
            if not flying:
                return
            for future in _finished(flying, deadline):
                (scores, seconds), place = future.result(), flying.pop(future)
                del unfinished[place]
                yield place, scores, seconds
    finally:
        try:
            _handed_to_workers(flying)
        finally:
            with suppress(RuntimeError):  # its thread did not start
                executor.shutdown(wait=True, kill_workers=True)


def _submit(executor: loky.ProcessPoolExecutor, item: tuple[Place, Block], flying: dict[loky.Future, Place]) -> None:
    """Hand a block out, and take note of it before Ctrl-C is let through."""
    place, block = item
    try:
        with workers_start_undisturbed():
            flying[executor.submit(_train, block)] = place
    except loky.BrokenProcessPool:
        raise
    except (OSError, RuntimeError) as error:
        raise WorkersDiedError(f"no worker could be started: {error}; are so many processes allowed?") from error


def _finished(flying: Iterable[loky.Future], deadline: float | None) -> set[loky.Future]:
    """The blocks that are done, as soon as one is; loky's thread can end where no more threads are allowed."""
    while True:
        left = seconds_until(deadline)
        patience = LOOK_SECONDS if left is None else min(left, LOOK_SECONDS)
        finished, _ = loky.wait(flying, timeout=patience, return_when=loky.FIRST_COMPLETED)
        if finished:
            return set(finished)
        if left is not None and left <= LOOK_SECONDS:
            raise OutOfTimeError
        if not any(thread.name == LOKY_THREAD for thread in threading.enumerate()):
            raise WorkersDiedError("no worker could be started; are so many processes allowed?")


def seconds_until(deadline: float | None) -> float | None:
    """How long to wait at most, which a system takes no number for beyond its own largest; None without a deadline."""
    return None if deadline is None else min(max(0.0, deadline - time.monotonic()), threading.TIMEOUT_MAX)


def _handed_to_workers(flying: Iterable[loky.Future]) -> None:
    """Wait until loky's thread has taken up every block, a moment after it was submitted.

    Where the workers are killed before, the thread looks for a block that is gone already, and prints a KeyError.
    """
    patience = time.monotonic() + HANDING_SECONDS
    while not all(future.running() or future.done() for future in flying) and time.monotonic() < patience:
        time.sleep(0.005)


@contextmanager
def workers_start_undisturbed() -> Iterator[None]:
    """Ctrl-C waits here until what is inside is done, and never reaches the processes that are started inside.

    It goes to the whole process group. A worker is a new interpreter, which imports for a second or two before its
    initializer can ignore it: until then it must be blocked, and what is blocked stays so from the parent through exec.
    Trackers of resources, where they are started meanwhile, would unblock it again, so they are started before. Here it
    is taken note of, for a start that breaks off leaves a worker half told what to do, which it prints on stdout; so
    are SIGTERM and SIGHUP, which end the command as Ctrl-C does.
    """
    if threading.current_thread() is not threading.main_thread():  # to which Python hands all signals
        yield
        return
    resource_tracker.ensure_running()
    loky_tracker.ensure_running()
    pressed: list[int] = []
    handled = (number for number in ENDING if signal.getsignal(number) not in (signal.SIG_DFL, signal.SIG_IGN, None))
    before = {number: signal.signal(number, lambda number, frame: pressed.append(number)) for number in handled}
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for number, handler in before.items():
            signal.signal(number, handler)
        if pressed:
            signal.raise_signal(pressed[0])


def _begin(setup: TrialSetup, parent: int, start_method: str | None) -> None:
    """What a worker does first; the parent decides what becomes of Ctrl-C."""
    global _setup
    # loky's, the default here, cannot start the processes of a user's own loop, such as those of a DataLoader
    multiprocessing.set_start_method(start_method, force=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    with suppress(RuntimeError):  # no more threads are allowed
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    os.environ.update(ONE_THREAD)
    sys.stdout = sys.stderr  # what a user's loop prints is no result
    _setup = setup


def _end_with(parent: int) -> None:
    """A parent that is killed tells its workers nothing: they would wait for the next block for good."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _train(block: Block) -> tuple[Scores, float]:
    return _timed(_setup, block)


_setup: TrialSetup
