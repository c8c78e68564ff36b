"""Exit statuses, signals that end a command, and what is told of files that cannot be written."""

import errno
import signal
from collections.abc import Callable
from dataclasses import dataclass, field

BAD_INPUT, REFUTED, GAVE_UP, LACKING = 2, 3, 4, 5
_USED_UP = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM, errno.EAGAIN)  # EAGAIN: no more processes
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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
