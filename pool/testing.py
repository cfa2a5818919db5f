"""For users' tests: run jobs in the test's own process, and hurt a pool on purpose at the moments that matter.

``run_inline`` needs no pool. The injection points work in the worker processes of a real pool started with the
environment :func:`faults` returns, so a test can show that its handlers survive what production will do to them.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import Any

from pool import clock as times
from pool import declare, jsontext, registry
from pool.errors import UsageError
from pool.faults import POINTS, VARIABLE
from pool.job import Completed, Job, Outcome
from pool.queue import Queue
from pool.runner import run
from pool.store import Store


class Still:
    """A monitor for jobs without a pool: remembers progress, says ``cancelled`` when told to."""

    def __init__(self, cancelled: bool = False) -> None:
        self.seen: list[tuple[float, float]] = []
        self.is_cancelled = cancelled

    def progress(self, done: float, total: float) -> None:
        """Remember how far the job said it was."""
        self.seen.append((done, total))

    def cancelled(self) -> bool:
        """Whether the job is cancelled."""
        return self.is_cancelled


def run_inline(queue: Queue, *, at: float | None = None, limit: int = 1000) -> list[tuple[Job, Outcome]]:
    """Claim and run due jobs in this process, as a worker would, until none is due; what was run, in order.

    Handlers are those declared in this process. Exceptions become outcomes as in a pool; look at them, or at the
    queue. No timeout is enforced: there is no supervisor.

    Args:
        queue: the queue.
        at: seconds since the epoch to take for now, so that delayed jobs and retries are due without waiting.
        limit: stop after so many jobs, for handlers that enqueue without end.
    """
    now = times.utc_text(time.time() if at is None else at)
    handlers = registry.by_type(declare.declared)
    store = Store.open(queue.path)
    done: list[tuple[Job, Outcome]] = []
    try:
        while len(done) < limit and (job := store.claim(f"inline:{os.getpid()}:test", now)) is not None:
            outcome = run(job, handlers, Still())
            store.settle(job, outcome, now)
            done.append((job, outcome))
    finally:
        store.close()
    return done


def result_of(outcome: Outcome) -> Any:
    """What a completed job's handler returned. Raises AssertionError, with the error, for another outcome."""
    assert isinstance(outcome, Completed), outcome
    return None if outcome.result_text is None else jsontext.load(outcome.result_text)


def faults(*, clock: Clock | None = None, **every: int) -> dict[str, str]:
    """The environment that makes a pool's workers kill themselves: ``faults(claim=50)`` at every 50th claim.

    Points: ``claim`` (leased, not begun), ``before_settle`` (done, not written), ``after_settle`` (written, the
    supervisor not told). Each worker life counts from a random start. ``clock`` gives the pool's processes, its
    supervisor included, a wall clock that the test moves.

    Raises:
        UsageError: an unknown point, or a number below 1.
    """
    pairs = []
    for name, number in every.items():
        if name not in POINTS or number < 1:
            raise UsageError(f"faults takes {', '.join(POINTS)}, each with a number from 1, not {name}={number!r}")
        pairs.append(f"{name}={number}")
    if clock is not None:
        pairs.append(f"clock={clock.path}")
    return {VARIABLE: ",".join(pairs)}


class Clock:
    """A wall clock for a pool under test, moved by writing a small file at ``path``."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.step(0)

    def step(self, seconds: float) -> None:
        """Run so far ahead of (or behind) the real clock from now on."""
        self._write(repr(float(seconds)))

    def freeze(self, at: float | None = None) -> None:
        """Stand still at an instant, seconds since the epoch; by default now."""
        self._write(f"freeze {time.time() if at is None else at!r}")

    def _write(self, text: str) -> None:
        data = text.ljust(63).encode() + b"\n"
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.pwrite(fd, data, 0)  # in place and at once: readers hold the file open
        finally:
            os.close(fd)


@contextlib.contextmanager
def full_disk(folder: str, *, at_most: int = 512 << 20) -> Iterator[None]:
    """Within the block, the file system of ``folder`` has no space left. Meant for a small tmpfs of your own.

    Raises:
        UsageError: more than ``at_most`` bytes are free, so that a slip does not fill a real disk.
    """
    free = os.statvfs(folder)
    if free.f_bavail * free.f_frsize > at_most:
        raise UsageError(f"{folder}: more than {at_most >> 20} MB free; mount a small tmpfs there, or raise at_most")
    filler = os.path.join(folder, ".filler")
    try:
        with open(filler, "wb", buffering=0) as file:
            for size in (1 << 20, 4096, 1):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(b"\0" * size)
        yield
    finally:
        os.unlink(filler)
