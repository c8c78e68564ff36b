"""Exit statuses, signals that end a command, and what is told of files that cannot be written."""

import errno
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import NoReturn

BAD_INPUT, REFUTED, GAVE_UP, LACKING = 2, 3, 4, 5
_USED_UP = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM, errno.EAGAIN)  # EAGAIN: no more processes
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Let nothing end what takes seconds and loses hours: a result that is put together and written.

    Python takes signals in its main thread alone.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_LOADING_SECONDS = 10.0  # after which a module that still loads is interrupted
NOTHING_KEPT = "interrupted before anything was done that can be kept: the same command starts again"


class _Interruption:
    """A handler of signals that raises KeyboardInterrupt, but in no module that is loading.

    It would leave NumPy half loaded, which no later import can mend, and packages that catch everything would lose it.
    There it ends the command at once, or, where something is kept, is sent again a moment later.

    Attributes:
        keeping: An interruption is met where what was done is told.
    """

    def __init__(self) -> None:
        self.keeping = False
        self._since: float | None = None
        self._again: threading.Timer | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        self._since = self._since or now
        if _loading(frame) and not self.keeping:
            _end_at_once()
        if _loading(frame) and now - self._since < _LOADING_SECONDS:
            if self._again is not None and self._again.is_alive():
                return
            with suppress(RuntimeError):  # no more threads are allowed
                self._again = _sent_again(number)
                return
        self._since = self._again = None
        raise KeyboardInterrupt


_interruption = _Interruption()


def keep_what_is_done() -> None:
    """From now on an interruption waits for a module that is loading: the caller tells what was done before it."""
    _interruption.keeping = True


def _end_at_once() -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # it is in use
            stream.flush()
    with suppress(OSError):
        line = f"dpaudit: {NOTHING_KEPT}\n".encode()
        os.write(2, b"\r\x1b[K\x1b[?25h" + line if os.isatty(2) else line)  # in place of a bar, which hid the cursor
    os._exit(GAVE_UP)


def _loading(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib."):
            return True
        frame = frame.f_back
    return False


def _sent_again(number: int) -> threading.Timer:
    """Send this process a signal in a tenth of a second."""
    timer = threading.Timer(0.1, os.kill, (os.getpid(), number))
    timer.daemon = True
    timer.start()
    return timer


def end_by_signals() -> None:
    """Let signals end this process as Ctrl-C does, and the processes that a user's code forks as the system does.

    Python forgets in a new process a signal that came before the process could look at it: `terminate` right after
    `start` was lost, and `join` waited without end. So they are held back while a process forks.
    """
    _interruption.keeping = False
    handled = [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]  # nohup
    for number in handled:
        signal.signal(number, _interruption)
    forking = threading.local()

    def mask(how: int, which: Iterable[int]) -> set[int]:
        while True:
            try:
                return signal.pthread_sigmask(how, which)
            except KeyboardInterrupt:  # Python drops it here: again, a moment later
                _sent_again(handled[0])

    def hold() -> None:
        forking.mask = mask(signal.SIG_BLOCK, ())
        mask(signal.SIG_BLOCK, ENDING)

    def release() -> None:
        mask(signal.SIG_SETMASK, forking.mask)

    def begin() -> None:
        for number in handled:
            if signal.getsignal(number) is _interruption:  # and none of the user's own
                signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        release()

    os.register_at_fork(before=hold, after_in_parent=release, after_in_child=begin)


def os_reason(error: OSError) -> str:
    """What the system refused, and for which file."""
    text = error.strerror or " ".join(map(str, error.args))
    name = error.filename2 or error.filename  # of two, the first is a temporary one
    return f"{text}: {name}" if name else text


def os_status(error: OSError) -> int:
    """Gave up where a disk, a quota, memory or a limit is used up; else what was asked for cannot be done."""
    return GAVE_UP if error.errno in _USED_UP else BAD_INPUT


@dataclass
class Lost:
    """Around what is written: what cannot be is told, and what was found is told all the same."""

    warn: Callable[[str], None]
    statuses: list[int] = field(default_factory=list)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, OSError):
            return False
        self.warn(f"dpaudit: {os_reason(error)}")
        self.statuses.append(os_status(error))
        return True
