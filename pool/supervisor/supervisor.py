"""The supervisor: the life of a pool from start to exit, and what signals and orders mean to it."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any, TypeVar

import setproctitle

from pool import process
from pool.errors import DatabaseUnusable, ExitCode, GaveUp, HandlersError, PoolError
from pool.events import INFO, WARNING, Emit, Event
from pool.maintenance import Death, Reaped
from pool.runner import storable
from pool.settings import MAX_WORKERS, PoolSettings
from pool.slot import State
from pool.store.sqlite import is_transient
from pool.supervisor.bounds import GIVE_UP_SECONDS
from pool.supervisor.child import Child, Exit
from pool.supervisor.database import Database, Look
from pool.supervisor.death import wall
from pool.supervisor.fleet import Fleet, living
from pool.supervisor.loop import Loop
from pool.supervisor.orders import Orders
from pool.supervisor.signals import Signals
from pool.supervisor.systemd import Notifier
from pool.worker import faults_armed

#: How often the loop looks at its workers while one is busy, and while all are idle.
TICK_SECONDS, IDLE_TICK_SECONDS = 0.05, 0.5
REPORT_SECONDS, CHANGED_REPORT_SECONDS = 5.0, 0.5
#: A gap between two looks longer than this means that we were stopped or starved: deadlines move by it.
GAP_SECONDS = 1.5
#: How long a pool without workers waits for a database that refuses what is left to write, and then for its thread.
EXIT_SECONDS = 5.0
#: How long a pool waits at its start for a database that is locked or has no space.
START_SECONDS = 60.0
ENDING = frozenset((signal.SIGTERM, signal.SIGINT, signal.SIGQUIT))

T = TypeVar("T")


class PoolState(StrEnum):
    """Where a pool is in its life."""

    STARTING = "starting"
    RUNNING = "running"
    DEGRADED = "degraded"
    RELOADING = "reloading"
    STOPPING = "stopping"


class Supervisor:
    """A pool: ``run()`` it in the main thread. Imports no handler, runs no job, never waits for the database."""

    def __init__(self, settings: PoolSettings, emit: Emit) -> None:
        self._settings = settings.checked()
        self._emit = emit
        self._state = PoolState.STARTING
        self._unsettled = 0
        self._stop_at = float("inf")
        self._error: PoolError | None = None
        self._ready_at = self._looked_at = self._reported_at = self._manned_at = 0.0
        self._reported: object = None
        self._is_drained = False
        self._fleet: Fleet | None = None
        self._systemd = Notifier()
        faults_armed()  # a test may move our clock

    def run(self) -> ExitCode:
        """Run the pool until a signal, ``--drain``, or an error that more workers would not mend ends it.

        Returns OK, or FAILED when a draining pool saw attempts fail or was told to end before nothing was left.

        Raises:
            HandlersError, DatabaseUnusable, DatabaseLost, ExclusiveRefused, GaveUp: why it had to end; no job is lost.
        """
        with Signals() as signals:
            self._loop = Loop()
            self._loop.watch(signals.fileno(), lambda: self._on_signals(signals.take()))
            fleet = self._start()
            try:
                while self._state != PoolState.STOPPING or fleet.children or self._is_settling():
                    self._turn(fleet)
            finally:
                self._close(fleet)
        if self._error is not None:
            raise self._error
        unfinished = self._settings.drain and (fleet.failed or not self._is_drained)
        return ExitCode.FAILED if unfinished else ExitCode.OK

    @property
    def counts(self) -> tuple[int, int]:
        """Jobs done and attempts failed since the pool began. Safe from any thread."""
        return self._fleet.counts if self._fleet is not None else (0, 0)

    @property
    def state(self) -> PoolState:
        """Where the pool is in its life. Safe from any thread."""
        return self._state

    # the life of a pool

    def _start(self) -> Fleet:
        _close_on_exec()
        process.become_subreaper()
        self._database = self._patiently(lambda: Database(self._settings, self, self._loop.post, self._emit))
        self._patiently(self._database.adopt)
        database = self._database
        self._fleet = fleet = Fleet(
            self._settings, database.pool_id, database.doorbell.fileno(), self._loop, self, self._emit
        )
        facts = {"database": self._settings.database, "workers": fleet.target, "pid": os.getpid()}
        self._emit(Event("pool started", INFO, facts))
        self._ready_at = time.monotonic()
        self._title()
        if self._state != PoolState.STOPPING:
            fleet.scale(fleet.target)
        self._database.start()
        return fleet

    def _patiently(self, step: Callable[[], T]) -> T:
        """A first step that the database may refuse for a while: it is locked, or its disk is full."""
        give_up = time.monotonic() + START_SECONDS
        told = False
        while True:
            try:
                return step()
            except (sqlite3.OperationalError, DatabaseUnusable) as error:
                if not is_transient(error) or time.monotonic() > give_up or self._state == PoolState.STOPPING:
                    raise
                if not told:
                    told = True
                    self._emit(Event("database not ready", WARNING, {"detail": f"{error}; trying again"}))
                self._loop.turn(0.2)

    def _turn(self, fleet: Fleet) -> None:
        self._loop.turn(self._pause_before_next(fleet))
        now = time.monotonic()
        if self._looked_at and now - self._looked_at > GAP_SECONDS:
            # SIGSTOP of the whole tree, or a starved host.
            self._emit(Event("supervisor was held up", WARNING, {"seconds": round(now - self._looked_at, 1)}))
            fleet.forgive(now - self._looked_at)
            self._ready_at += now - self._looked_at
        self._looked_at = now
        if fleet.children:
            self._manned_at = now
        self._systemd.ping(now)
        fleet.look(now)
        self._see_state(fleet, now)
        if now >= self._stop_at:
            self._stop_at = float("inf")
            fleet.end_all(now)
        if now - self._reported_at >= (REPORT_SECONDS if self._reported == fleet.signature else CHANGED_REPORT_SECONDS):
            self._report()

    def _see_state(self, fleet: Fleet, now: float) -> None:
        if any(child.ready for child in fleet.children.values()):
            self._ready_at = now
        if self._state == PoolState.STOPPING:
            return
        if now - self._ready_at > GIVE_UP_SECONDS:
            self.fail(GaveUp(f"no worker became ready for {GIVE_UP_SECONDS / 60:g} minutes; see the errors above"))
        elif fleet.budget.is_degraded(now):
            self._change(PoolState.DEGRADED, "workers keep dying with no job to blame; one is tried every 30 s")
        elif fleet.is_reloading:
            self._change(PoolState.RELOADING)
        elif fleet.ever_ready:
            self._change(PoolState.RUNNING)

    def _is_settling(self) -> bool:
        """Whether deaths are still to be settled; what the database refuses for EXIT_SECONDS after its last worker
        has ended is left to the pool that starts next."""
        return self._unsettled > 0 and time.monotonic() - self._manned_at < EXIT_SECONDS

    def _pause_before_next(self, fleet: Fleet) -> float:
        now = time.monotonic()
        tick = TICK_SECONDS if fleet.busy or self._state == PoolState.STOPPING else IDLE_TICK_SECONDS
        return max(0.0, min(tick, fleet.next_look(now) - now, self._stop_at - now))

    def _close(self, fleet: Fleet) -> None:
        for child in list(fleet.children.values()):  # only after an error in the loop itself
            child.end("its supervisor failed", 0, dump=False)
        fleet.end_strays()
        self._database.count(fleet.tally.take())
        self._database.stop(EXIT_SECONDS)
        fleet.reap_strangers()
        fleet.close()
        self._loop.close()
        done, failed = self.counts
        self._emit(Event("pool ended", INFO, {"done": done, "failed": failed}))

    def _change(self, state: PoolState, why: str | None = None) -> None:
        if state == self._state:
            return
        if PoolState.RELOADING in (state, self._state) and state != PoolState.STOPPING:
            self._systemd.reloading() if state == PoolState.RELOADING else self._systemd.ready()
        elif state == PoolState.RUNNING:
            self._systemd.ready()
        elif state == PoolState.STOPPING:
            self._systemd.stopping()
        if state == PoolState.DEGRADED:
            self._database.degraded(why or "")
        self._state = state
        self._emit(Event(f"pool {state}", WARNING if state == PoolState.DEGRADED else INFO, {"detail": why}))
        self._title()
        self._report()

    def _stop(self, why: str, *, now: bool = False) -> None:
        """Drain: no new claims, the grace period for what runs; or, the second time, end it now."""
        assert self._fleet is not None
        at = time.monotonic()
        grace = 0.0 if now else self._settings.grace
        if self._state != PoolState.STOPPING:
            busy = any(child.state == State.BUSY for child in self._fleet.children.values())
            if grace and busy:
                why = f"{why}; running jobs get {grace:g} s, a second signal ends them now"
            self._change(PoolState.STOPPING, why)
            self._stop_at = at + grace
            self._fleet.drain(at)
        elif now:
            self._stop_at = at

    # signals

    def _on_signals(self, signals: Iterable[signal.Signals]) -> None:
        fleet = self._fleet
        if fleet is None:
            if not ENDING.isdisjoint(signals):
                self._state = PoolState.STOPPING  # before the first worker: nothing to drain
            return
        for number in signals:
            if number in (signal.SIGTERM, signal.SIGINT):
                self._stop(f"got {number.name}", now=self._state == PoolState.STOPPING)
            elif number == signal.SIGQUIT:
                self._stop("got SIGQUIT", now=True)
            elif number == signal.SIGCHLD:
                fleet.reap_strangers()
            elif number == signal.SIGUSR2:
                for child in fleet.children.values():
                    child.show_stack()
            elif self._state == PoolState.STOPPING:
                continue
            elif number == signal.SIGHUP:
                fleet.reload()
            elif number == signal.SIGTTIN:
                fleet.scale(min(fleet.target + 1, MAX_WORKERS))
            elif number == signal.SIGTTOU:
                fleet.scale(max(fleet.target - 1, 1))

    # from the fleet

    def worker_ready(self) -> None:
        """The pool runs once its first worker is ready."""
        assert self._fleet is not None
        self._see_state(self._fleet, time.monotonic())

    def worker_died(self, death: Death, await_end: Callable[[], None]) -> None:
        """Have its jobs settled, once what they started has ended."""
        self._unsettled += 1
        self._database.settle_death(death, await_end, self._on_settled)

    def _on_settled(self, ended: list[Reaped]) -> None:
        self._unsettled -= 1
        for each in ended:
            self._emit(each.event())

    def boot_failed(self, exit: Exit, output: str) -> None:
        """A fault that every worker would have, before any was ready, ends the pool at once."""
        if exit.code in (ExitCode.HANDLERS, ExitCode.DATABASE):
            kind = HandlersError if exit.code == ExitCode.HANDLERS else DatabaseUnusable
            lines = [line for line in output.splitlines() if line.startswith("error: ")]
            self.fail(kind(lines[-1].removeprefix("error: ") if lines else f"a worker ended at its start: {exit}"))

    # from the database thread: what is asked often within it, the others through the loop

    def has_idle(self) -> bool:
        """Whether any worker waits for a job. Called in the database thread, often."""
        return self._fleet is not None and any(child.is_idle for child in living(self._fleet.children))

    def settled(self) -> int:
        """Attempts that workers have settled. Called in the database thread; only reads."""
        return sum(self.counts)

    def look(self) -> Look:
        """What the database thread needs to know of the workers. Called in that thread; only reads."""
        if self._fleet is None:
            return Look(0, (), False)
        children = list(self._fleet.children.values())
        idle = sum(child.is_idle for child in living(self._fleet.children))
        settled = not self._unsettled and idle == len(children) and bool(children)
        return Look(idle, tuple(child.identity for child in children), settled)

    def wake(self, due: int) -> None:
        """So many jobs are due. Called in the database thread."""
        if self._fleet is not None:
            self._fleet.wake(due)
            self._loop.post(self._fleet.expect_work)

    def leave_room(self, until: int) -> None:
        """Strangers are to write. Called in the database thread."""
        if self._fleet is not None:
            self._fleet.leave_room(until)

    def obey(self, orders: Orders) -> None:
        """Orders that people gave through the database."""
        fleet = self._fleet
        if fleet is None or self._state == PoolState.STOPPING:
            return
        if orders.target is not None:
            fleet.scale(min(max(1, orders.target), MAX_WORKERS))
            self._title()
        if orders.reload:
            fleet.reload()
        fleet.pause(orders.pause)
        now = time.monotonic()
        for job_id, identity in orders.cancels:
            fleet.cancel(job_id, identity, now)

    def drained(self) -> None:
        """Nothing is left that could run."""
        if self._state != PoolState.STOPPING and not self._unsettled:
            self._is_drained = True
            self._stop("nothing is left that could run")

    def kept_from_writing(self, pid: int) -> None:
        """A process was stopped in the middle of a write, and nobody else can."""
        if self._fleet is not None:
            self._fleet.end_stopped_writer(pid, time.monotonic())

    def fail(self, error: PoolError) -> None:
        """End the pool because of an error; the first one is what ``run`` raises."""
        if self._error is None:
            self._error = error
        self._stop(str(error), now=True)

    # what it shows of itself

    def _title(self) -> None:
        assert self._fleet is not None
        name = storable(os.path.basename(self._settings.database))
        state = "" if self._state == PoolState.RUNNING else f" ({self._state})"
        setproctitle.setproctitle(f"pool: supervisor {name} {self._fleet.target} workers{state}")

    def _report(self) -> None:
        fleet = self._fleet
        assert fleet is not None
        self._reported_at = time.monotonic()
        self._reported = fleet.signature
        children = list(fleet.children.values())
        done, failed = fleet.counts
        facts: dict[str, Any] = {
            "done": done,
            "failed": failed,
            "restarts": dict(fleet.restarts),
            "paused": fleet.paused,
            "types": fleet.types,
            "write_latency_ns_by_bits": [
                sum(each) for each in zip(*(c.slot.latencies() for c in children), strict=True)
            ],
            "workers": [_worker_facts(child) for child in children],
        }
        self._systemd.status(f"{self._state}: {fleet.target} workers, {done} done, {failed} failed")
        for child in children:
            fleet.tally.collect(child)
        self._database.report(self._state, fleet.target, facts)
        self._database.count(fleet.tally.take())


def _worker_facts(child: Child) -> dict[str, Any]:
    seen = child.slot.snapshot()
    busy = seen.state == State.BUSY
    done, failed = child.slot.settled()
    progress, total = child.slot.progress()
    return {
        "number": child.number,
        "pid": child.pid,
        "identity": child.identity,
        "state": "draining" if child.retiring else seen.state.name.lower(),
        "job": seen.job_id if busy else None,
        "type": child.slot.type if busy else None,
        "since": wall(seen.started) if busy else None,
        "progress": [progress, total] if busy and (progress or total) else None,
        "memory_bytes": child.usage.memory_bytes,
        "cpu_seconds": child.usage.cpu_seconds,
        "done": done,
        "failed": failed,
    }


def _close_on_exec() -> None:
    """What we inherited stays ours: a worker, and so a job, gets no descriptor of whoever started the pool."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            try:
                os.set_inheritable(int(name), False)
            except OSError:
                continue  # the listing's own
