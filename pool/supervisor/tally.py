"""What the workers counted, as increments for the database: read from their slots, lost for nobody's death."""

from __future__ import annotations

import collections

from pool import slot
from pool.supervisor.child import Child

#: (name, label, bucket) -> increment, as the ``counters`` table keeps them.
Increments = collections.Counter[tuple[str, str, int]]

_RUNS = range(slot.DURATION_BUCKETS)
_WAITS = range(slot.WAIT - slot.RUN, slot.WAIT - slot.RUN + slot.DURATION_BUCKETS)
#: What stands behind those, from TALLY_DONE on.
_OTHERS = ("done", "failed", "run_us", "wait_us")


class Tally:
    """Collects from children until it is taken; each count is taken once, whenever its worker ends."""

    def __init__(self) -> None:
        self._fresh: Increments = collections.Counter()
        self._seen: dict[int, dict[tuple[str, str, int], int]] = {}

    def collect(self, child: Child) -> None:
        """Add what a worker counted since the last look at it."""
        now, seen = _counts(child), self._seen.get(child.pid, {})
        for key, value in now.items():
            if more := (value - seen.get(key, 0)) & slot.LARGEST_SUM:  # a sum may have begun anew from 0
                self._fresh[key] += more
        self._seen[child.pid] = now

    def bury(self, child: Child, cause: str | None, failed: bool) -> None:
        """The last look at a worker that ended; ``cause`` when it died, ``failed`` when an attempt died with it."""
        self.collect(child)
        del self._seen[child.pid]
        if cause is not None:
            self._fresh["restarts", cause, 0] += 1
        if failed:
            self._fresh["failed", child.slot.type, 0] += 1

    def take(self) -> Increments:
        """What came together since the last call."""
        fresh, self._fresh = self._fresh, collections.Counter()
        return fresh


def _counts(child: Child) -> dict[tuple[str, str, int], int]:
    found: dict[tuple[str, str, int], int] = {}
    for type, words in child.slot.tallies().items():
        for name, places in (("run", _RUNS), ("wait", _WAITS)):
            for bucket, place in enumerate(places):
                if words[place]:
                    found[name, type, bucket] = words[place]
        for name, count in zip(_OTHERS, words[slot.TALLY_DONE - slot.RUN :], strict=True):
            found[name, type, 0] = count
    for bits, count in enumerate(child.slot.latencies()):
        if count:
            found["write", "", bits] = count
    found["write_ns", "", 0] = child.slot.latency_sum()
    return found
