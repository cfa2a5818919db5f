"""What a supervisor hands a worker at exec: an argument, and numbered descriptors."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

from pool.runner import storable

#: Descriptors the supervisor hands over at exec, after standard input, output and error.
SLOT_FD, WAKE_FD, NOTIFY_FD, DUMP_FD, OUTPUT_FD, DOORBELL_FD = SHARED_FDS = 3, 4, 5, 6, 7, 8

#: Bytes of a handler's output kept with a failed attempt.
OUTPUT_LIMIT = 64 * 1024


@dataclass(frozen=True, slots=True)
class Assignment:
    """What the supervisor tells a worker at exec, as one JSON argument."""

    database: str
    pool: int
    number: int
    token: str
    parent: int
    folder: str
    entry_points: tuple[str, ...]
    modules: tuple[str, ...]
    max_jobs: int = 0
    nice: int = 0
    pin: bool = False
    crowded: bool = False

    @classmethod
    def parse(cls, text: str) -> Assignment:
        """Read what ``json.dumps(asdict(assignment))`` wrote."""
        fields = json.loads(text)
        return cls(**{**fields, "entry_points": tuple(fields["entry_points"]), "modules": tuple(fields["modules"])})


def read_output(fd: int, start: int) -> str:
    """The last of what was written to an output file from ``start`` on, at most OUTPUT_LIMIT bytes."""
    size = os.fstat(fd).st_size
    begin = max(start, size - OUTPUT_LIMIT)
    return storable(os.pread(fd, OUTPUT_LIMIT, begin).decode("utf-8", "backslashreplace")) if size > begin else ""
