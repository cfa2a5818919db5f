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
from typing import Any, NamedTuple, Protocol

from pool import holders, maintenance, process
from pool.alerts import Alerts
from pool.clock import now_text, utc_text
from pool.doorbell import Listener
from pool.errors import DatabaseLost, ExclusiveRefused, PoolError
from pool.events import ERROR, WARNING, Emit, Event
from pool.maintenance import Death, Reaped
from pool.settings import PoolSettings
from pool.store import Store
from pool.store.sqlite import is_locked, is_transient, spelled_out
from pool.supervisor.orders import OrderBook, Orders, instant
from pool.supervisor.sweeps import Sweeps
from pool.supervisor.tally import Increments
from pool.supervisor.walwatch import WalWatch

BUSY_SECONDS = 1.0
#: How soon a commit of a writer who does not ring is noticed; each look costs some 20 µs.
LOOK_SECONDS = 0.010
#: The same where writes to the log are heard: a net under that, and the pauses between the looks after one.
HEARD_LOOK_SECONDS = 0.05
SOON_SECONDS = (0.008, 0.004, 0.002, 0.001, 0.0003)
BUSY_LOOK_SECONDS = 0.1
#: When to look whether jobs that workers were woken for still wait.
AGAIN_SECONDS = 0.1
#: A ring comes shortly before its commit, and may have been taken from a worker that is idle by then.
RANG_SECONDS = 0.002
DRAIN_LOOK_SECONDS = 0.02
MINUTES_SECONDS = 86400.0


class Look(NamedTuple):
    """What the thread asks of the loop when something was committed: how many idle, and who holds jobs for us."""

    idle: int
    identities: tuple[str, ...]
    settled: bool  # no worker is at work, and none has died unsettled


class Owner(Protocol):
    """What the thread tells its supervisor: the first five within this thread, the others in the loop's."""

    def has_idle(self) -> bool: ...
    def settled(self) -> int: ...
    def look(self) -> Look: ...
    def wake(self, due: int) -> None: ...
    def leave_room(self, until: int) -> None: ...
    def obey(self, orders: Orders) -> None: ...
    def drained(self) -> None: ...
    def kept_from_writing(self, pid: int) -> None: ...
    def fail(self, error: PoolError) -> None: ...


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
        self._requests: collections.deque[Callable[[Store], None]] = collections.deque()
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.doorbell = Listener(settings.database)
        self._stopping = False
        self._version = -1
        self._next_due = float("inf")
        self._looked_at = 0.0
        self._unready = ""
        self._watched = False
        self._looks: list[float] = []  # pauses before the next looks, last first
        self.pool_id = self._register()
        self._orders = OrderBook(self._store, self.pool_id)
        self._alerts = Alerts(
            settings.on_dead, settings.on_degraded, settings.on_backlog, settings.backlog_age, now_text()
        )
        self._sweeps = Sweeps(self._store, settings, self.pool_id, self._alerts, self, emit)

    # for the loop

    def adopt(self) -> None:
        """Return the jobs of provably dead pools; called before the thread starts and the first worker is spawned."""
        self._sweeps.adopt()

    def settle_death(self, death: Death, await_end: Callable[[], None], then: Callable[[list[Reaped]], None]) -> None:
        """Return what a dead worker held, after ``await_end``, which may take a moment; ``then`` is called in the
        loop's thread with what became of it."""

        def request(store: Store) -> None:
            await_end()
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
        try:
            self._live()
        except BaseException as error:
            # Without this thread nothing would be settled, and the pool would look well.
            self._post(functools.partial(self._owner.fail, PoolError(f"the database thread ended: {error!r}")))
            raise

    def _live(self) -> None:
        poll = select.poll()
        poll.register(self._event, select.POLLIN)
        watch = WalWatch(self._settings.database)
        self._watched = watch.fileno() >= 0
        listens = answers = False
        while not (self._stopping and not self._requests):
            if self._requests:
                self._work_off()
            idle = self._owner.has_idle() or self._settings.drain
            if listens != (self._watched and idle and not self._looks):
                # Not while others work (each of their commits would be heard), nor between the looks below.
                listens = not listens
                poll.register(watch.fileno(), select.POLLIN) if listens else poll.unregister(watch.fileno())
            if answers != (not idle or not self._watched):
                # Not while workers idle: it wakes one of them, and the log tells what else there is to do.
                answers = not answers
                bell = self.doorbell.fileno()
                poll.register(bell, select.POLLIN) if answers else poll.unregister(bell)
            rang = False
            if poll.poll(max(0.0, self._pause(idle) * 1000)):
                rang = answers and self.doorbell.hush()
                if rang:
                    self._looks = [RANG_SECONDS]
                if listens and watch.hush():
                    self._looks = [*SOON_SECONDS]
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._event)
            self._sweep(self._notice, rang)
            now = time.monotonic()
            if now >= self._sweeps.next:
                for step in self._sweeps.due(now):
                    self._sweep(step)
        watch.close()
        self._sweep(self._sweeps.last)
        self.doorbell.close()
        self._store.close()

    def _pause(self, idle: bool) -> float:
        if self._requests:
            return 0.05  # the one in front was refused: not at once again
        if self._looks:
            return self._looks.pop()
        if not idle:
            return BUSY_LOOK_SECONDS
        every = HEARD_LOOK_SECONDS if self._watched and not self._settings.drain else LOOK_SECONDS
        return min(every, max(self._next_due - time.time(), 0.001))

    def _work_off(self) -> None:
        while self._requests:
            try:
                self._requests[0](self._store)
            except sqlite3.Error as error:
                self._complain("database not ready", WARNING, self._cause(error))
                if not self._stopping and not is_transient(error):
                    self._requests.rotate(-1)  # it may never work; the others need not wait for it
                if self._stopping:
                    time.sleep(0.05)
                return
            self._requests.popleft()
            self._unready = ""

    def _sweep(self, step: Callable[..., None], *arguments: object) -> None:
        try:
            step(*arguments)
        except sqlite3.OperationalError as error:
            self._complain(f"{step.__name__.strip('_')} postponed", WARNING, self._cause(error))
        except Exception as error:
            self._complain(f"{step.__name__.strip('_')} failed", ERROR, repr(error))

    def _cause(self, error: sqlite3.Error) -> str:
        """The error, and who causes it, when that is a process that was stopped in the middle of a write."""
        if is_locked(error):
            holder = holders.writer(self._settings.database)
            if holder is not None and process.is_stopped(holder.pid):
                self._post(functools.partial(self._owner.kept_from_writing, holder.pid))
                return f"{error} by {holder}, which was stopped, as by SIGSTOP"
        return str(error)

    def _complain(self, name: str, level: str, detail: str) -> None:
        """Once for each fault, however often it comes while nothing else succeeds."""
        if detail != self._unready:
            self._unready = detail
            self._emit(Event(name, level, {"detail": detail}))

    # for the sweeps

    def living(self) -> tuple[str, ...]:
        """Who holds jobs for this pool."""
        return self._owner.look().identities

    def saturated(self) -> bool:
        """Whether every worker is at work, so that nothing but our own restraint lets others write."""
        return not self._owner.has_idle()

    def settled(self) -> int:
        """Attempts that workers have settled."""
        return self._owner.settled()

    def leave_room(self, until: int) -> None:
        """No worker of ours begins a write before then, in monotonic nanoseconds."""
        self._owner.leave_room(until)

    def look_again(self) -> None:
        """A sweep returned jobs to the queue, or changed whether claims are paused."""
        self._look()

    def lost(self, error: DatabaseLost) -> None:
        """The database file is no longer ours."""
        self._post(functools.partial(self._owner.fail, error))

    # what was committed

    def _notice(self, rang: bool) -> None:
        """See whether anything was committed, or became due, and wake as many workers as there are due jobs."""
        version = self._store.data_version()
        changed = version != self._version
        if changed:
            self._version = version
            self._sweeps.dirty = True
        now = time.time()
        ending = self._settings.drain and now - self._looked_at >= DRAIN_LOOK_SECONDS
        if changed or rang or now >= min(self._next_due, self._orders.next_at) or ending:
            self._looked_at = now
            self._look()

    def _look(self) -> None:
        look = self._owner.look()
        store = self._store
        now = now_text()
        if look.idle:
            due = store.value("due_count", now=now, most=look.idle)
            if due:
                self._owner.wake(due)
            following = store.value("next_run_at", now=now)
            self._next_due = instant(following) if following else float("inf")
            if due and not self._orders.paused:  # again soon, lest those that were woken are stopped
                self._next_due = min(self._next_due, time.time() + AGAIN_SECONDS)
        if orders := self._orders.fresh(now, self._sweeps.low_space):
            self._post(functools.partial(self._owner.obey, orders))
        if self._settings.drain and look.settled and not self._requests:
            self._see_whether_drained(look, now)

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
