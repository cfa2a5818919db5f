"""A worker's page of shared memory: what it tells its supervisor about each job, and what it is told.

A message a job would cost both sides a system call; a word in shared memory costs 30 ns and is read only when
somebody needs to know. Each word is eight bytes, aligned, and has one writer: words below ``ORDERS`` are the
worker's, the others the supervisor's. Times are CLOCK_MONOTONIC nanoseconds, which all processes share.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

SIZE = 36 * 1024

# The worker's words.
STATE, VERSION, JOB, ATTEMPT, STARTED, DEADLINE, STALL, MOVED, OUTPUT = range(9)
DONE, FAILED, PONG, TALLY = range(9, 13)
PROGRESS_DONE, PROGRESS_TOTAL = 14, 15  # thousandths
MAX_CRASHES = 16
LATENCY = 20  # 40 buckets: writes whose nanoseconds have that many bits
LATENCY_BUCKETS = 40
LATENCY_SUM = LATENCY + LATENCY_BUCKETS  # nanoseconds of them all
# The supervisor's words.
ORDERS, PING, CANCEL, CONDEMNED, ROOM = 64, 65, 66, 67, 68
# From here on a tally for each job type, in words: its name, how long its runs and its waits took (counts by the bits
# of their microseconds), how its attempts ended, and the microseconds of all runs and of all waits. The last one
# takes the types for which there is no room.
_TALLIES, _TALLY_SIZE, _TALLY_COUNT = 512, 128, 24
_NAME_BYTES = 128
# Behind them the job types that the worker handles, told once: a word with how many bytes, and a JSON list in as many.
_TYPES = _TALLIES + _TALLY_SIZE * _TALLY_COUNT
_TYPES_BYTES = SIZE - 8 * _TYPES - 8
RUN, WAIT, TALLY_DONE, TALLY_FAILED, RUN_SUM, WAIT_SUM = 16, 57, 98, 99, 100, 101
DURATION_BUCKETS = 41
LONGEST = 2**40 - 1
#: Sums start again from 0 above this, the most a word holds: eight million jobs that were due in 1970 get there.
LARGEST_SUM = 2**63 - 1
OTHERS = "(others)"

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

    @classmethod
    def _missing_(cls, value: object) -> State:
        """A job's code that went wild has written over it: a job runs, then, and its limits hold."""
        return cls.BUSY


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
        self._tallies: dict[str, int] = {}

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

    def tally(self, type: str) -> int:
        """The first word of a job type's tally, made on first use. Only the worker calls this."""
        found = self._tallies.get(type)
        if found is None:
            place = min(len(self._tallies), _TALLY_COUNT - 1)
            found = self._tallies[type] = _TALLIES + place * _TALLY_SIZE
            raw = (type if place < _TALLY_COUNT - 1 else OTHERS).encode(errors="replace")[:_NAME_BYTES]
            self._page[found * 8 : found * 8 + len(raw)] = raw
        return found

    def tell_types(self, types: Iterable[str]) -> None:
        """Which job types this worker handles; nothing when their names are too long for the page."""
        told = json.dumps(sorted(types)).encode()
        if len(told) <= _TYPES_BYTES:
            start = 8 * _TYPES + 8
            self._page[start : start + len(told)] = told
            self.words[_TYPES] = len(told)

    def types(self) -> list[str] | None:
        """The same as the supervisor reads it; None when the worker has not told them, or a job's code that went wild
        has written over them."""
        start = 8 * _TYPES + 8
        try:
            told = json.loads(self._page[start : start + self.words[_TYPES]])
        except ValueError:
            return None
        return told if isinstance(told, list) and all(isinstance(each, str) for each in told) else None

    def _name(self, word: int) -> str:
        return bytes(self._page[word * 8 : word * 8 + _NAME_BYTES]).rstrip(b"\0").decode(errors="replace")

    @property
    def type(self) -> str:
        """The type of the job that runs, as far as it fits."""
        return self._name(self.words[TALLY]) if self.words[TALLY] else ""

    def tallies(self) -> dict[str, list[int]]:
        """By job type: the words of its tally from RUN on."""
        found = {}
        for place in range(_TALLY_COUNT):
            word = _TALLIES + place * _TALLY_SIZE
            if not (name := self._name(word)):
                break
            found[name] = self.words[word + RUN : word + WAIT_SUM + 1].tolist()
        return found

    def settled(self) -> tuple[int, int]:
        """Jobs done and attempts failed since the worker began."""
        return self.words[DONE], self.words[FAILED]

    def progress(self) -> tuple[float, float]:
        """How far the current job says it is, and of what (0 for unknown)."""
        return self.words[PROGRESS_DONE] / 1000, self.words[PROGRESS_TOTAL] / 1000

    def latencies(self) -> list[int]:
        """How many writes took so many bits of nanoseconds, since the worker began."""
        return self.words[LATENCY : LATENCY + LATENCY_BUCKETS].tolist()

    def latency_sum(self) -> int:
        """How many nanoseconds all of them took."""
        return self.words[LATENCY_SUM]

    def close(self) -> None:
        """Unmap the page."""
        self.words.release()
        self._page.close()
