"""Reads how a worker ended, with which job at hand, and why: from its slot, its exit and what it left in its files."""

from __future__ import annotations

import time

from pool import slot
from pool.clock import now_text, utc_text
from pool.job import DEFAULT_MAX_CRASHES, AttemptOutcome
from pool.maintenance import Death
from pool.slot import State
from pool.store import Evidence
from pool.supervisor.child import Child, Exit


def death_of(child: Child, exit: Exit, *, out_of_memory: bool) -> Death:
    """What is known of a worker's end.

    Args:
        child: reaped, its slot and files still open.
        exit: how its process ended.
        out_of_memory: whether the kernel's count of such kills rose; only then do we say that it was that.
    """
    seen = child.seen()
    busy = seen.state in (State.BUSY, State.SETTLING)
    ladder = child.ladder
    killed_for: AttemptOutcome | None = None
    error = str(exit)
    if ladder is not None:
        error = ladder.reason
        killed_for = ladder.outcome
        if (ladder.job_id, ladder.attempt) != (seen.job_id, seen.attempt):
            killed_for = AttemptOutcome.INTERRUPTED  # it had gone on to another job when the signal came
    elif exit.signal == "SIGKILL" and out_of_memory:
        error = f"{exit}, likely out of memory (the kernel's count of such kills rose)"
    elif exit.code == 0:
        error = "exit code 0 in the middle of a job"
    evidence = Evidence(
        killed_for or AttemptOutcome.CRASHED,
        error,
        now_text(),
        started_at=wall(seen.started) if busy else None,
        exit_code=exit.code,
        signal=exit.signal,
        stack=child.stack() or None,
        output=child.output(seen.output) or None,
        peak_memory_bytes=exit.peak_memory_bytes,
        cpu_seconds=exit.cpu_seconds,
    )
    job = (seen.job_id, seen.attempt) if busy else (0, 0)
    return Death(child.identity, *job, killed_for, evidence, child.slot.words[slot.MAX_CRASHES] or DEFAULT_MAX_CRASHES)


def wall(monotonic_ns: int) -> str:
    """A monotonic time as UTC text, by the wall clock of now."""
    return utc_text(time.time() - (time.monotonic_ns() - monotonic_ns) / 1e9)
