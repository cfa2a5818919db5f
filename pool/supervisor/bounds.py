"""How long a worker may stay in a state, and how often it may die: pure functions of what was seen and when."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from pool.job import AttemptOutcome
from pool.slot import Snapshot, State

BOOT_SECONDS = 30.0
SETTLE_SECONDS = 60.0
PING_SECONDS = 10.0
SILENT_SECONDS = 30.0

#: Seconds before a slot's worker is replaced, by how many died in a row without a job to blame.
RESTART_DELAYS = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
STEADY_SECONDS = 60.0
DEGRADED_DEATHS, DEGRADED_WINDOW, PROBE_SECONDS = 5, 60.0, 30.0
GIVE_UP_SECONDS = 300.0


class Overdue(NamedTuple):
    """Why a worker has to be ended, and what the attempt at hand ends as (None: as a crash)."""

    reason: str
    outcome: AttemptOutcome | None = None


def overdue(seen: Snapshot, now: float, since: float, silent: float) -> Overdue | None:
    """Whether a worker has to be ended now.

    Args:
        seen: what it says it is doing.
        now: monotonic seconds.
        since: when it was spawned.
        silent: seconds its last ping has gone unanswered, 0 for none.
    """
    now_ns = int(now * 1e9)
    if seen.state == State.BOOT and now - since > BOOT_SECONDS:
        return Overdue(f"not ready after {BOOT_SECONDS:.0f} s")
    if seen.state == State.BUSY:
        if seen.deadline and now_ns >= seen.deadline:
            return Overdue(f"timeout after {(seen.deadline - seen.started) / 1e9:.3g} s", AttemptOutcome.TIMEOUT)
        if seen.stall and now_ns - seen.moved >= seen.stall:
            return Overdue(f"stalled: no progress for {seen.stall / 1e9:.3g} s", AttemptOutcome.STALLED)
    if seen.state == State.SETTLING and now_ns - seen.moved > SETTLE_SECONDS * 1e9:
        return Overdue(f"stuck for {SETTLE_SECONDS:.0f} s while its result was written")
    if seen.state in (State.IDLE, State.PAUSED) and silent > SILENT_SECONDS:
        return Overdue(f"silent for {SILENT_SECONDS:.0f} s while idle")
    return None


def next_deadline(seen: Snapshot) -> float:
    """Monotonic seconds at which ``overdue`` could next say something of a busy worker; infinity for never."""
    times = [seen.deadline] if seen.deadline else []
    if seen.stall:
        times.append(seen.moved + seen.stall)
    return min(times) / 1e9 if seen.state == State.BUSY and times else float("inf")


@dataclass(slots=True)
class RestartBudget:
    """Deaths of workers that no job explains.

    Per number they lengthen the pause before its next worker, until one completes a job or lives for a minute. In all
    they make the pool DEGRADED, but only while nothing gets done: where jobs complete, workers can work, and whoever
    kills idle ones (an operator, an experiment) must not stop the others.
    """

    _in_a_row: dict[int, int] = field(default_factory=dict)
    _deaths: deque[float] = field(default_factory=deque)
    _settled_in_all: int = 0

    def died(
        self,
        number: int,
        now: float,
        lived: float,
        settled: int,
        settled_in_all: int = 0,
        *,
        from_outside: bool = False,
    ) -> float:
        """Record a death; seconds to wait before that number's next worker.

        Args:
            number: the worker's.
            now: monotonic seconds.
            lived: seconds it lived.
            settled: attempts it settled.
            settled_in_all: attempts the pool settled since it began.
            from_outside: somebody sent it SIGKILL, and it was not the kernel for want of memory: no fault of the
                worker's, so a short pause is enough.
        """
        if from_outside:
            return RESTART_DELAYS[min(1, self._in_a_row.get(number, 0))]
        if settled or lived >= STEADY_SECONDS:
            self._in_a_row[number] = 0
        if settled_in_all > self._settled_in_all:
            self._settled_in_all = settled_in_all
            self._deaths.clear()
        count = self._in_a_row.get(number, 0)
        self._in_a_row[number] = count + 1
        self._deaths.append(now)
        if self.is_degraded(now):
            return PROBE_SECONDS
        return RESTART_DELAYS[min(count, len(RESTART_DELAYS) - 1)]

    def is_degraded(self, now: float) -> bool:
        """Whether so many died lately that only a probe now and then makes sense."""
        while self._deaths and now - self._deaths[0] > DEGRADED_WINDOW:
            self._deaths.popleft()
        return len(self._deaths) > DEGRADED_DEATHS
