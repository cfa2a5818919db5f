"""What a pool does for all jobs now and then: when each step is due, and what it tells of it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from pool import holders, maintenance, retention
from pool.alerts import Alerts
from pool.clock import now_text
from pool.errors import DatabaseLost
from pool.events import ERROR, INFO, WARNING, Emit, Event
from pool.maintenance import LOW_SPACE_BYTES, WAL_ALARM_BYTES, WAL_WARNING_BYTES
from pool.policy import Policy
from pool.retention import Place
from pool.settings import PoolSettings
from pool.store import Store
from pool.store.sqlite import wal_bytes
from pool.store.turn import turnstile_path
from pool.supervisor.strays import await_end, end_marked

CHECKPOINT_SECONDS = 0.1
WATCH_SECONDS = 1.0
SWEEP_SECONDS = 5.0
RETAIN_SECONDS = 30.0
#: Strangers get that long, that often, for that long after one was seen; see Sweeps._leave_room.
ROOM_SECONDS, ROOM_EVERY_SECONDS, STRANGER_SECONDS = 0.03, 0.1, 5.0
#: Jobs a second below which the database is free nine tenths of the time, so that nobody needs room made for him.
ROOM_RATE = 1000


class Owner(Protocol):
    """What the sweeps ask and tell; all in the database thread."""

    def living(self) -> tuple[str, ...]: ...
    def saturated(self) -> bool: ...
    def settled(self) -> int: ...
    def leave_room(self, until: int) -> None: ...
    def look_again(self) -> None: ...
    def lost(self, error: DatabaseLost) -> None: ...


@dataclass(slots=True)
class Sweep:
    """A step that is taken every so many seconds; ``at`` is when it is due, monotonic."""

    step: Callable[[], None]
    every: float
    at: float = 0.0


class Sweeps:
    """The steps and what they remember from one time to the next. ``dirty``: something was committed since the last
    checkpoint; ``low_space``: why claims are paused, empty when there is space."""

    def __init__(
        self, store: Store, settings: PoolSettings, pool_id: int, alerts: Alerts, owner: Owner, emit: Emit
    ) -> None:
        self.dirty = True
        self.low_space = ""
        self.next = 0.0  # monotonic seconds at which a step is due
        self._stranger_at = float("-inf")
        self._settled, self._settled_at = 0, 0.0
        self._tokens: list[str] = []  # of dead workers, whose strays were looked for once
        self._store = store
        self._settings = settings
        self._pool_id = pool_id
        self._alerts = alerts
        self._owner = owner
        self._emit = emit
        self._inode = _inode(settings.database)
        self._wal_level = 0
        self._ahead = time.time() - time.monotonic()
        self._leapt: list[tuple[float, float]] = []
        self._policy, self._place = Policy.parse(settings.keep), Place()
        self._steps = [
            Sweep(self._checkpoint, CHECKPOINT_SECONDS),
            Sweep(self._leave_room, ROOM_EVERY_SECONDS),
            Sweep(self._watch_file, WATCH_SECONDS),
            Sweep(self._reap, SWEEP_SECONDS),
            Sweep(self._alert, SWEEP_SECONDS),
            Sweep(self._renew, settings.lease / 4),
            Sweep(self._retain, RETAIN_SECONDS),
        ]

    def due(self, now: float) -> Iterator[Callable[[], None]]:
        """The steps that are due; each is put off to its next time as it is yielded."""
        for sweep in self._steps:
            if now >= sweep.at:
                sweep.at = now + sweep.every
                yield sweep.step
        self.next = min(sweep.at for sweep in self._steps)

    def last(self) -> None:
        """The last checkpoint, at the pool's end."""
        self._store.checkpoint()

    def adopt(self) -> None:
        """Return the jobs of provably dead pools, and end what those jobs left running."""
        adopted = maintenance.adopt(self._store, now_text(), self._pool_id, self._end_marked)
        # Once more the next time: a process in the middle of exec shows no environment, and so no mark.
        again, self._tokens = self._tokens, adopted.tokens
        self._end_marked(again)
        for each in adopted.jobs:
            self._emit(each.event("job adopted", INFO))
        if adopted.jobs:
            self._owner.look_again()

    def _end_marked(self, tokens: list[str]) -> None:
        strays = end_marked(tokens)
        for each in strays:
            facts = {"pid": each.pid, "detail": "left behind by a job of a dead pool"}
            self._emit(Event("stray ended", WARNING, facts))
        await_end(strays)

    def _reap(self) -> None:
        now = now_text()
        self.adopt()
        lease = self._settings.lease + self._leaps()
        maintenance.forget_silent_pools(self._store, now, self._pool_id, lease)
        ended = maintenance.expire_leases(self._store, now, lease)
        for each in ended:
            self._emit(each.event())
        if ended:
            self._owner.look_again()

    def _leave_room(self) -> None:
        """Let strangers write beside workers that keep the database busy.

        A producer that takes no turns sleeps 1 to 25 ms between its first tries (SQLite's busy handler) and finds the
        lock taken each time. So, while such producers are about, nobody of ours writes for a stretch as long as those
        pauses: our workers are told, and the turn keeps out whoever else takes turns."""
        now, settled = time.monotonic(), self._owner.settled()
        rate = (settled - self._settled) / (now - self._settled_at)
        self._settled, self._settled_at = settled, now
        if rate >= ROOM_RATE and self._owner.saturated() and self._strangers_are_about(now):
            until = time.monotonic_ns() + int(ROOM_SECONDS * 1e9)
            self._owner.leave_room(until)
            with self._store.turn():
                time.sleep(max(0.0, (until - time.monotonic_ns()) / 1e9))

    def _strangers_are_about(self, now: float) -> bool:
        """Whether somebody has the database open who takes no turns, or made a job lately (his times have no
        milliseconds); the latter tells of those in other containers."""
        newest = self._store.value("newest_created_at")
        if isinstance(newest, str) and len(newest) == len("2030-01-01 00:00:00"):
            self._stranger_at = now
        if now - self._stranger_at < STRANGER_SECONDS:
            return True
        ours = (int(identity.rsplit(":", 2)[1]) for identity in self._owner.living())
        path = self._settings.database
        return bool(holders.strangers(path, turnstile_path(path), ours))

    def _alert(self) -> None:
        self._alerts.check(self._store, now_text())

    def _retain(self) -> None:
        """Delete what ended long ago, some at a time; nothing while the clock may be wrong."""
        if self._leaps():
            return
        swept = retention.sweep(self._store, self._policy, now_text(), self._place)
        self._place = swept.place
        if swept.more:
            next(each for each in self._steps if each.step == self._retain).at = time.monotonic() + 0.05

    def _leaps(self) -> float:
        """Seconds the wall clock leapt ahead of the monotonic one within a lease: no lease is stale because of them."""
        now = time.monotonic()
        ahead = time.time() - now
        if ahead - self._ahead > 1:
            self._leapt.append((now, ahead - self._ahead))
        self._ahead = ahead
        self._leapt = [leap for leap in self._leapt if now - leap[0] <= self._settings.lease]
        return sum(seconds for _, seconds in self._leapt)

    def _renew(self) -> None:
        maintenance.renew_leases(self._store, self._owner.living(), now_text())

    def _checkpoint(self) -> None:
        if not self.dirty:
            return
        self.dirty = False
        frames, moved = self._store.checkpoint()
        if moved < frames:
            self.dirty = True  # a reader still needs the rest
        size = wal_bytes(self._settings.database)
        level = (size > WAL_WARNING_BYTES) + (size > WAL_ALARM_BYTES)
        if level > self._wal_level:
            why = "a reader holds a transaction open" if moved < frames else "a burst of writes"
            facts = {"bytes": size, "detail": f"{why}; the file grows until that ends"}
            self._emit(Event("write-ahead log is large", ERROR if level == 2 else WARNING, facts))
        self._wal_level = level

    def _watch_file(self) -> None:
        path = self._settings.database
        if _inode(path) != self._inode:
            error = DatabaseLost(f"{path} was replaced or deleted while the pool ran; nothing more is written to it")
            self._owner.lost(error)
        free = os.statvfs(os.path.dirname(os.path.abspath(path)))
        low = free.f_bavail * free.f_frsize < LOW_SPACE_BYTES
        reason = f"less than {LOW_SPACE_BYTES >> 20} MB free beside {path}" if low else ""
        if reason != self.low_space:
            self.low_space = reason
            self._owner.look_again()


def _inode(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
