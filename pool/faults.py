"""Injection points in a pool's processes, armed by an environment variable that pool.testing writes.

Only a process that finds the variable imports this file; elsewhere a point costs a comparison with None.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

#: ``point=every`` pairs, comma-separated, for kills; ``clock=FILE`` for a wall clock that the file shifts.
VARIABLE = "JOBPOOL_FAULTS"

#: Leased and not begun; done and not written; written and nobody told.
POINTS = ("claim", "before_settle", "after_settle")


def arm() -> Callable[[str], None]:
    """Read the variable, shift this process's clock if it says so, and return what to call at each point."""
    pairs = dict(part.split("=", 1) for part in os.environ[VARIABLE].split(",") if part)
    if path := pairs.pop("clock", ""):
        _shift_clock(path)
    every = {name: int(number) for name, number in pairs.items()}
    counts = {name: int.from_bytes(os.urandom(4), "big") % number for name, number in every.items()}

    def reach(point: str) -> None:
        if point in every:
            counts[point] += 1
            if counts[point] >= every[point]:
                os.kill(os.getpid(), signal.SIGKILL)

    return reach


def _shift_clock(path: str) -> None:
    """Make ``time.time`` answer with the seconds in the file added, as read at each call; ``freeze AT`` stops it."""
    real = time.time
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def shifted() -> float:
        text = os.pread(fd, 64, 0).decode().strip()
        if text.startswith("freeze"):
            return float(text.split()[1])
        return real() + float(text or 0)

    time.time = shifted
