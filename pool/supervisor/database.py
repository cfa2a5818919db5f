"""The supervisor's database thread: whatever may wait for a lock or a disk happens here, never in its loop."""

from __future__ import annotations

import collections
import contextlib
import functools
import json
import os
import select
import sqlite3
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from pool import maintenance, process, retention
from pool.alerts import Alerts
from pool.clock import now_text, parse_utc, utc_text
from pool.doorbell import Listener
from pool.errors import DatabaseLost, ExclusiveRefused, PoolError
from pool.events import ERROR, INFO, WARNING, Emit, Event
from pool.maintenance import Death, Reaped
from pool.policy import Policy
from pool.retention import Place
from pool.settings import PoolSettings
from pool.store import Store
from pool.store.sqlite import checkpoint, connect, spelled_out, wal_bytes
from pool.supervisor.strays import end_marked
from pool.supervisor.tally import Increments

BUSY_SECONDS = 1.0
#: How soon a commit of a writer who does not ring is noticed; each look costs some 20 µs.
LOOK_SECONDS = 0.008
BUSY_LOOK_SECONDS = 0.1
DRAIN_LOOK_SECONDS = 0.02
CHECKPOINT_SECONDS = 0.1
SWEEP_SECONDS = 5.0
RETAIN_SECONDS = 30.0
MINUTES_SECONDS = 86400.0
WATCH_SECONDS = 1.0
WAL_WARNING_BYTES, WAL_ALARM_BYTES = 64 << 20, 512 << 20
#: Free space below which no job is claimed, so that the ends of running ones still fit.
LOW_SPACE_BYTES = 8 << 20


class Look(NamedTuple):
    """What the thread asks of the loop when something was committed: how many idle, and who holds jobs for us."""

    idle: int
    identities: tuple[str, ...]
    settled: bool  # no worker is at work, and none has died unsettled


class Orders(NamedTuple):
    """What people asked of this pool through the database."""

    target: int | None
    reload: bool
    pause: str  # why claims are paused, empty when they are not
    cancels: tuple[tuple[int, str], ...]  # job, worker


class Owner(Protocol):
    """What the thread tells its supervisor; each is called in the loop's thread, except ``look``, which only reads."""

    def look(self) -> Look: ...
    def wake(self, due: int) -> None: ...
    def obey(self, orders: Orders) -> None: ...
    def drained(self) -> None: ...
    def fail(self, error: PoolError) -> None: ...


@dataclass(slots=True)
class Sweep:
    """A step that is taken every so many seconds; ``at`` is when it is due, monotonic."""

    step: Callable[[], None]
    every: float
    at: float = 0.0


class Database(threading.Thread):
    """Runs requests in order, each again and again until the database takes it, and the sweeps between them.

    Its connection is also the pool's guardian: a handler that opens and closes the database file in a worker
    drops that process's locks (sqlite.org/howtocorrupt.html, section 2.2), and the WAL survives because this
    process, which runs no user code, keeps its own.
    """

    def __init__(
        self, settings: PoolSettings, owner: Owner, post: Callable[[Callable[[], None]], None], emit: Emit
    ) -> None:
        super().__init__(name="database", daemon=True)
        self._settings = settings
        self._owner = owner
        self._post = post
        self._emit = emit
        self._store = Store.open(settings.database, busy_seconds=BUSY_SECONDS)
        self._store.connection.text_factory = spelled_out  # no stranger's text ends a sweep
        self._checkpointer = connect(settings.database, busy_seconds=BUSY_SECONDS)
        self._inode = _inode(settings.database)
        self._requests: collections.deque[Callable[[Store], None]] = collections.deque()
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._doorbell = Listener(settings.database)
        self._stopping = False
        self._version = -1
        self._dirty = True
        self._next_due = float("inf")
        self._looked_at = 0.0
        self._wal_level = 0
        self._low_space = ""
        self._ahead = time.time() - time.monotonic()
        self._leapt: list[tuple[float, float]] = []
        self._reload_at: str | None = None
        self._next_order = float("inf")
        self._passed = Orders(None, False, "", ())
        self.pool_id = self._register()
        self._policy, self._place = Policy.parse(settings.keep), Place()
        self._alerts = Alerts(
            settings.on_dead, settings.on_degraded, settings.on_backlog, settings.backlog_age, now_text()
        )
        self._sweeps = [
            Sweep(self._checkpoint, CHECKPOINT_SECONDS),
            Sweep(self._watch_file, WATCH_SECONDS),
            Sweep(self._reap, SWEEP_SECONDS),
            Sweep(self._alert, SWEEP_SECONDS),
            Sweep(self._renew, settings.lease / 4),
            Sweep(self._retain, RETAIN_SECONDS),
        ]

    # for the loop

    def adopt(self) -> None:
        """Return the jobs of provably dead pools, and end what those jobs left running.

        Called before the thread starts and the first worker is spawned, and by the thread now and then."""
        adopted = maintenance.adopt(self._store, now_text(), self.pool_id)
        for pid in end_marked(adopted.tokens):
            self._emit(Event("stray ended", WARNING, {"pid": pid, "detail": "left behind by a job of a dead pool"}))
        for each in adopted.jobs:
            self._emit(Event("job adopted", INFO, {"job": each.job_id, "status": each.status, "detail": each.why}))
        if adopted.jobs:
            self._look()

    def settle_death(self, death: Death, then: Callable[[list[Reaped]], None]) -> None:
        """Return what a dead worker held; ``then`` is called in the loop's thread with what became of it."""

        def request(store: Store) -> None:
            ended = maintenance.settle_death(store, death)
            self._post(functools.partial(then, ended))
            self._look()

        self._submit(request)

    def report(self, state: str, target: int, facts: dict[str, Any]) -> None:
        """Write the pool's account of itself."""

        def request(store: Store) -> None:
            bound = {"pool": self.pool_id, "now": now_text(), "state": state, "target": target}
            store.change("report_pool", **bound, report=json.dumps(facts))

        self._submit(request)

    def degraded(self, why: str) -> None:
        """Tell whoever asked to be told."""
        self._submit(lambda store: self._alerts.degraded(store, now_text(), why))

    def count(self, increments: Increments) -> None:
        """Add what the workers counted to the counters that outlive every pool."""

        def request(store: Store) -> None:
            minute = now_text()[:16]
            with store.transaction():
                for (name, label, bucket), value in increments.items():
                    store.execute("count", name=name, label=label, bucket=bucket, value=value)
                    if name in ("done", "failed"):
                        counts = {"done": 0, "failed": 0, name: value}
                        store.execute("count_minute", minute=minute, type=label, **counts)
                store.execute("forget_minutes", before=utc_text(time.time() - MINUTES_SECONDS)[:16])

        if increments:
            self._submit(request)

    def stop(self, seconds: float) -> None:
        """Finish the requests, forget the pool, and end; whatever a locked database holds up is left to adoption."""

        def request(store: Store) -> None:
            store.change("forget_pool", pool=self.pool_id)

        self._submit(request)
        self._stopping = True
        os.eventfd_write(self._event, 1)
        self.join(seconds)

    def _submit(self, request: Callable[[Store], None]) -> None:
        self._requests.append(request)
        os.eventfd_write(self._event, 1)

    # the thread

    def run(self) -> None:
        """Requests first, then the sweeps that are due, then sleep until something happens."""
        poll = select.poll()
        for fd in (self._event, self._doorbell.fileno()):
            poll.register(fd, select.POLLIN)
        while not (self._stopping and not self._requests):
            self._work_off()
            idle = self._owner.look().idle > 0 or self._settings.drain
            poll.poll(max(0.0, self._pause(idle) * 1000))
            rang = self._doorbell.hush()
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._event)
            self._sweep(self._notice, rang)
            now = time.monotonic()
            for sweep in self._sweeps:
                if now >= sweep.at:
                    sweep.at = now + sweep.every
                    self._sweep(sweep.step)
        self._checkpoint_last()

    def _pause(self, idle: bool) -> float:
        if self._requests:
            return 0.05  # the one in front was refused: not at once again
        due = self._next_due - time.time() if idle else BUSY_LOOK_SECONDS
        return min(LOOK_SECONDS if idle else BUSY_LOOK_SECONDS, max(due, 0.001))

    def _work_off(self) -> None:
        while self._requests:
            try:
                self._requests[0](self._store)
            except sqlite3.Error as error:
                if not self._stopping:
                    self._emit(Event("database not ready", WARNING, {"detail": str(error)}))
                else:
                    time.sleep(0.05)
                return
            self._requests.popleft()

    def _sweep(self, step: Callable[..., None], *arguments: object) -> None:
        try:
            step(*arguments)
        except sqlite3.OperationalError as error:
            self._emit(Event("sweep postponed", WARNING, {"sweep": step.__name__.strip("_"), "detail": str(error)}))
        except Exception as error:
            self._emit(Event("sweep failed", ERROR, {"sweep": step.__name__.strip("_"), "detail": repr(error)}))

    # the sweeps

    def _notice(self, rang: bool) -> None:
        """See whether anything was committed, or became due, and wake as many workers as there are due jobs."""
        version = self._store.data_version()
        changed = version != self._version
        if changed:
            self._version = version
            self._dirty = True
        now = time.time()
        ending = self._settings.drain and now - self._looked_at >= DRAIN_LOOK_SECONDS
        if changed or rang or now >= min(self._next_due, self._next_order) or ending:
            self._looked_at = now
            self._look()

    def _look(self) -> None:
        look = self._owner.look()
        store = self._store
        now = now_text()
        if look.idle:
            due = store.value("due_count", now=now, most=look.idle)
            if due:
                self._post(functools.partial(self._owner.wake, due))
            following = store.value("next_run_at", now=now)
            self._next_due = _instant(following) if following else float("inf")
        self._pass_orders(now)
        if self._settings.drain and look.settled and not self._requests:
            self._see_whether_drained(look, now)

    def _pass_orders(self, now: str) -> None:
        store = self._store
        own = store.rows("pool_orders", pool=self.pool_id)
        target = own[0]["wanted_target"] if own else None
        reload_at = own[0]["reload_requested_at"] if own else None
        if target is not None:
            store.change("target_taken", pool=self.pool_id, target=target)
        pause = store.rows("current_pause", now=now)
        reason = self._low_space or (f"paused by {pause[0]['by']}: {pause[0]['reason']}" if pause else "")
        cancels = tuple((row["id"], row["locked_by"]) for row in store.rows("cancel_requests"))
        self._next_order = _instant(pause[0]["until"]) if pause and pause[0]["until"] else float("inf")
        orders = Orders(target, reload_at != self._reload_at, reason, cancels)
        self._reload_at = reload_at
        if orders != self._passed or cancels:
            self._passed = orders._replace(target=None, reload=False)
            self._post(functools.partial(self._owner.obey, orders))

    def _see_whether_drained(self, look: Look, now: str) -> None:
        """In one snapshot: between two, a job could go from running to queued unseen."""
        execute = self._store.connection.execute
        execute("BEGIN")
        try:
            left = self._store.value("due_count", now=now, most=1)
            held = {row["locked_by"] for row in self._store.rows("holders")}
        finally:
            execute("COMMIT")
        if not left and not held & set(look.identities):
            self._post(self._owner.drained)

    def _reap(self) -> None:
        now = now_text()
        self.adopt()
        lease = self._settings.lease + self._leaps()
        maintenance.forget_silent_pools(self._store, now, self.pool_id, lease)
        ended = maintenance.expire_leases(self._store, now, lease)
        for each in ended:
            self._emit(Event("job returned", WARNING, {"job": each.job_id, "status": each.status, "detail": each.why}))
        if ended:
            self._look()

    def _alert(self) -> None:
        self._alerts.check(self._store, now_text())

    def _retain(self) -> None:
        """Delete what ended long ago, some at a time, so that no claim waits for it."""
        swept = retention.sweep(self._store, self._policy, now_text(), self._place)
        self._place = swept.place
        if swept.more:
            next(each for each in self._sweeps if each.step == self._retain).at = time.monotonic() + 0.05

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
        maintenance.renew_leases(self._store, self._owner.look().identities, now_text())

    def _checkpoint(self) -> None:
        if not self._dirty:
            return
        self._dirty = False
        frames, moved = checkpoint(self._store.connection, self._checkpointer)
        if moved < frames:
            self._dirty = True  # a reader still needs the rest
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
            self._post(functools.partial(self._owner.fail, error))
        free = os.statvfs(os.path.dirname(os.path.abspath(path)))
        low = free.f_bavail * free.f_frsize < LOW_SPACE_BYTES
        reason = f"less than {LOW_SPACE_BYTES >> 20} MB free beside {path}" if low else ""
        if reason != self._low_space:
            self._low_space = reason
            self._look()

    def _checkpoint_last(self) -> None:
        try:
            checkpoint(self._store.connection, self._checkpointer)
        except sqlite3.Error as error:
            self._emit(Event("no last checkpoint", INFO, {"detail": str(error)}))
        self._doorbell.close()
        self._checkpointer.close()
        self._store.close()

    def _register(self) -> int:
        me = process.this_process()._asdict()
        store, exclusive = self._store, self._settings.exclusive
        maintenance.forget_silent_pools(store, now_text(), None, self._settings.lease)
        bound = {"now": now_text(), "state": "starting", "target": self._settings.workers, "exclusive": exclusive}
        with store.transaction():
            for row in store.rows("pools"):
                if (exclusive or row["exclusive"]) and not process.is_provably_dead(process.of_row(row)):
                    which = "--exclusive" if exclusive else "it is exclusive"
                    raise ExclusiveRefused(
                        f"a pool runs on {store.path} already ({row['host']} pid {row['pid']}; {which})"
                    )
            return int(store.execute("register_pool", **me, **bound)[0][0])


def _inode(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _instant(text: str) -> float:
    try:
        return parse_utc(text)
    except ValueError:
        return float("inf")  # a stranger's text that is no time sorts after every time
