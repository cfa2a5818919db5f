"""A worker's page of shared memory: what it tells its supervisor about each job, and what it is told.

A message a job would cost both sides a system call; a word in shared memory costs 30 ns and is read only when
somebody needs to know. Each word is eight bytes, aligned, and has one writer: words below ``ORDERS`` are the
worker's, the others the supervisor's. Times are CLOCK_MONOTONIC nanoseconds, which all processes share.
"""

from __future__ import annotations

import mmap
import os
from enum import IntEnum
from typing import NamedTuple

SIZE = 4096

# The worker's words.
STATE, VERSION, JOB, ATTEMPT, STARTED, DEADLINE, STALL, MOVED, OUTPUT = range(9)
DONE, FAILED, PONG = 9, 10, 11
PROGRESS_DONE, PROGRESS_TOTAL = 14, 15  # thousandths
MAX_CRASHES = 16
LATENCY = 20  # 40 buckets: writes whose nanoseconds have that many bits
LATENCY_BUCKETS = 40
# The supervisor's words.
ORDERS, PING, CANCEL, CONDEMNED = 64, 65, 66, 67
# Bytes: the type of the current job, for titles and the live views.
_TYPE, _TYPE_SIZE = 1024, 128

#: Bits of ORDERS.
DRAIN = 1
PAUSE = 2


class State(IntEnum):
    """Where a worker is; pool.supervisor bounds how long it may stay there."""

    BOOT = 0
    IDLE = 1
    BUSY = 2
    SETTLING = 3
    PAUSED = 4
    BYE = 5


class Snapshot(NamedTuple):
    """One consistent look at what a worker is doing; times in monotonic nanoseconds, 0 for none."""

    state: State
    job_id: int
    attempt: int
    started: int
    deadline: int
    stall: int
    moved: int
    output: int


class Slot:
    """The page, mapped in both processes; ``words`` is indexed by the names above."""

    def __init__(self, fd: int) -> None:
        self._page = mmap.mmap(fd, SIZE)
        self.words = memoryview(self._page).cast("q")

    @staticmethod
    def create_fd() -> int:
        """A new, zeroed page to map here and hand to a worker."""
        fd = os.memfd_create("pool-slot", os.MFD_CLOEXEC)
        os.ftruncate(fd, SIZE)
        return fd

    def snapshot(self) -> Snapshot:
        """What the worker is doing. Taken again when the worker began another job in the middle of the look."""
        words = self.words
        for _ in range(20):
            version = words[VERSION]
            seen = Snapshot(State(words[STATE]), *words[JOB : OUTPUT + 1].tolist())
            if not version & 1 and words[VERSION] == version:
                break
        return seen

    @property
    def type(self) -> str:
        """The type of the job that runs, as far as it fits."""
        return bytes(self._page[_TYPE : _TYPE + _TYPE_SIZE]).rstrip(b"\0").decode(errors="replace")

    @type.setter
    def type(self, value: str) -> None:
        raw = value.encode(errors="replace")[:_TYPE_SIZE]
        self._page[_TYPE : _TYPE + _TYPE_SIZE] = raw.ljust(_TYPE_SIZE, b"\0")

    def settled(self) -> tuple[int, int]:
        """Jobs done and attempts failed since the worker began."""
        return self.words[DONE], self.words[FAILED]

    def progress(self) -> tuple[float, float]:
        """How far the current job says it is, and of what (0 for unknown)."""
        return self.words[PROGRESS_DONE] / 1000, self.words[PROGRESS_TOTAL] / 1000

    def latencies(self) -> list[int]:
        """How many writes took so many bits of nanoseconds, since the worker began."""
        return self.words[LATENCY : LATENCY + LATENCY_BUCKETS].tolist()

    def close(self) -> None:
        """Unmap the page."""
        self.words.release()
        self._page.close()
