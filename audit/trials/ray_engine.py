"""Blocks on a Ray cluster: tasks return scores and write nothing, so any worker and any node may die.

The cluster is the one that RAY_ADDRESS names or that runs on this machine (`ray start`); else one of this machine's
cores is started, and lives as long as this process: an audit trains many lists of models, and a start takes seconds.
Its nodes need the same dpaudit, and the user's own files under the same paths.
"""

import logging
import os
import resource
import signal
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from dpaudit.audit.exit_status import ENDING
from dpaudit.audit.inputs.files import InputError
from dpaudit.audit.trials.blocks import Block, OutOfTimeError, Place, Scores, TrialSetup, train_block
from dpaudit.audit.trials.local_engine import MOST_DEATHS, Pending, WorkersDiedError, seconds_until

LEAST_PROCESSES = 100  # with 30 Ray aborts, with 45 it hangs; with 90 it says that it did not start


def train_blocks(
    setup: TrialSetup, pending: Pending, *, count: int, workers: int, deadline: float | None
) -> Generator[tuple[Place, Scores], None, None]:
    """Train blocks in any order on the cluster: see `local_engine.train_blocks`.

    Args:
        setup, pending, count, deadline: As there.
        workers: Of no account: the cluster has as many as it has cores, or GPUs.

    Raises:
        OutOfTimeError, WorkersDiedError: As there; the latter also where Ray does not start.
        InputError: RAY_ADDRESS names no cluster.
    """
    _start()
    core = "GPU" if setup.device == "cuda" else "CPU"
    task = ray.remote(**{f"num_{core.lower()}s": 1}, max_retries=MOST_DEATHS)(train_block)
    flying: dict[Any, tuple[Place, Block]] = {}
    try:
        shared = ray.put(setup)
        deaths = 0
        while True:
            room = 2 * max(1, int(ray.cluster_resources().get(core, 1))) - len(flying)
            for _, (place, block) in zip(range(room), pending, strict=False):
                flying[task.remote(shared, block)] = place, block
            if not flying:
                return
            reference = _first_done(list(flying), deadline)
            place, block = flying.pop(reference)
            try:
                scores = ray.get(reference)
            except RayTaskError as error:  # of ours or of the user's code
                raise error.cause from None
            except RayError as error:  # a worker or a node is gone, after the retries of Ray's own
                deaths += 1
                if deaths == MOST_DEATHS:
                    raise WorkersDiedError(f"{deaths} tasks on the Ray cluster died: {type(error).__name__}") from error
                flying[task.remote(shared, block)] = place, block
                continue
            deaths = 0
            yield place, scores
    finally:
        for reference in flying:
            ray.cancel(reference, force=True)


def _start() -> None:
    if ray.is_initialized():
        return
    _may_start()
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's 15 starves workers beside anything else
    try:
        with _signals_as_they_were():
            ray.init(logging_level=logging.ERROR, log_to_driver=False)
    except Exception as error:  # Ray raises this very class where its node does not come up in time
        address = os.environ.get("RAY_ADDRESS")
        if address:
            raise InputError(f"Expected RAY_ADDRESS={address!r} to name a Ray cluster that runs: {error}") from error
        raise WorkersDiedError(f"Ray did not start: {' '.join(str(error).split())}") from error


def _may_start() -> None:
    """Refuse to start Ray where so few processes are allowed that it would abort this one, or wait without end."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    limited = os.getuid() != 0 and limit != resource.RLIM_INFINITY  # root may start more than the limit
    if limited and limit < LEAST_PROCESSES and os.environ.get("RAY_ADDRESS") in (None, "", "local"):
        raise WorkersDiedError(
            f"Ray was not started: {limit} processes and threads are allowed here (ulimit -u), of which it needs at "
            f"least {LEAST_PROCESSES}; RAY_ADDRESS may name a cluster that runs"
        )


@contextmanager
def _signals_as_they_were() -> Iterator[None]:
    """Ray puts handlers of its own in the place of SIGTERM's: sys.exit(15) at its start, later a dump of the stack."""
    before = {number: signal.getsignal(number) for number in ENDING}
    try:
        yield
    except SystemExit:
        raise KeyboardInterrupt from None
    finally:
        if threading.current_thread() is threading.main_thread():  # no other may
            for number, handler in before.items():
                if handler is not None:
                    signal.signal(number, handler)


def _first_done(references: list[Any], deadline: float | None) -> Any:
    done, _ = ray.wait(references, num_returns=1, timeout=seconds_until(deadline))
    if not done:
        raise OutOfTimeError
    return done[0]
