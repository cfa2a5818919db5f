"""The supervisor: one loop that spawns workers, watches them through pidfds, and decides what a signal means."""

from __future__ import annotations

import collections
import functools
import os
import selectors
import signal
import time
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any

import setproctitle

from pool import process, registry, slot
from pool.clock import now_text, utc_text
from pool.errors import DatabaseUnusable, ExitCode, GaveUp, HandlersError, PoolError
from pool.events import ERROR, INFO, WARNING, Emit, Event
from pool.job import DEFAULT_MAX_CRASHES, AttemptOutcome
from pool.maintenance import Death, Reaped
from pool.settings import MAX_WORKERS, PoolSettings
from pool.slot import State
from pool.store import Evidence
from pool.supervisor.bounds import GIVE_UP_SECONDS, PING_SECONDS, RestartBudget, next_deadline, overdue
from pool.supervisor.child import Child, Exit
from pool.supervisor.database import Callbacks, Database, Look
from pool.supervisor.signals import Signals
from pool.supervisor.strays import end_strays
from pool.worker import Assignment

#: How often the loop looks at its workers while one is busy, and while all are idle.
TICK_SECONDS, IDLE_TICK_SECONDS, LADDER_TICK_SECONDS = 0.05, 0.5, 0.005
REPORT_SECONDS = 5.0
#: A gap between two looks longer than this means that we were stopped or starved: deadlines move by it.
GAP_SECONDS = 1.0
EXIT_SECONDS = 5.0


class PoolState(StrEnum):
    """Where a pool is in its life."""

    STARTING = "starting"
    RUNNING = "running"
    DEGRADED = "degraded"
    STOPPING = "stopping"


class Supervisor:
    """A pool: ``run()`` it in the main thread. Imports no handler, runs no job, never waits for the database."""

    def __init__(self, settings: PoolSettings, emit: Emit) -> None:
        self._settings = settings = settings.checked()
        self._emit = emit
        self._target = settings.workers
        self._state = PoolState.STARTING
        self._children: dict[int, Child] = {}  # by pid
        self._spawn_at: dict[int, float] = {}  # worker number -> when to spawn it
        self._unsettled = 0
        self._budget = RestartBudget()
        self._settled = [0, 0]  # done, failed by workers that have ended
        self._restarts: collections.Counter[str] = collections.Counter()
        self._selector = selectors.DefaultSelector()
        self._posted: collections.deque[Callable[[], None]] = collections.deque()
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._notify = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._paused = ""
        self._kill_at = float("inf")
        self._error: PoolError | None = None
        self._ever_ready = False
        self._ready_at = 0.0
        self._looked_at = 0.0
        self._reported_at = 0.0
        self._was_busy = False

    # the life of a pool

    def run(self) -> ExitCode:
        """Run the pool until a signal, ``--drain``, or an error that more workers would not mend ends it.

        Returns OK, or FAILED when a draining pool saw attempts fail.

        Raises:
            HandlersError, DatabaseUnusable, DatabaseLost, GaveUp: why the pool had to end; jobs are safe.
        """
        with Signals() as signals:
            self._start()
            self._watch(signals.fileno(), lambda: self._on_signals(signals.take()))
            try:
                while self._children or self._unsettled or self._state != PoolState.STOPPING:
                    self._turn()
            finally:
                self._close()
        if self._error is not None:
            raise self._error
        return ExitCode.FAILED if self._settings.drain and self._settled[1] else ExitCode.OK

    @property
    def counts(self) -> tuple[int, int]:
        """Jobs done and attempts failed since the pool began."""
        living = [child.slot.settled() for child in list(self._children.values())]
        return self._settled[0] + sum(each[0] for each in living), self._settled[1] + sum(each[1] for each in living)

    def _start(self) -> None:
        _close_on_exec()
        process.become_subreaper()
        self._entry_points = tuple(registry.entry_points())
        callbacks = Callbacks(
            self._look, self._wake, self._cancel, self._drained, self._pause, self._fail, self._take_orders
        )
        self._database = Database(self._settings, callbacks, self._post, self._emit)
        self._title()
        for each in self._database.adopt():
            self._emit(Event("job adopted", INFO, {"job": each.job_id, "status": each.status, "detail": each.why}))
        self._watch(self._event, self._run_posted)
        self._watch(self._notify, self._on_notify)
        self._ready_at = time.monotonic()
        facts = {"database": self._settings.database, "workers": self._target, "pid": os.getpid()}
        self._emit(Event("pool started", INFO, facts))
        self._spawn_at = dict.fromkeys(range(1, self._target + 1), 0.0)
        self._spawn_due()
        self._database.start()

    def _turn(self) -> None:
        for key, _ in self._selector.select(self._pause_before_next()):
            key.data()
        now = time.monotonic()
        if self._looked_at and now - self._looked_at > GAP_SECONDS:
            self._forgive(now - self._looked_at)
        self._looked_at = now
        self._was_busy = False
        for child in list(self._children.values()):
            self._look_at(child, now)
        self._spawn_due()
        if now >= self._kill_at:
            self._kill_at = float("inf")
            self._kill_all()
        if now - self._reported_at >= REPORT_SECONDS:
            self._report()
        if self._state != PoolState.STOPPING and now - self._ready_at > GIVE_UP_SECONDS and not self._any_ready():
            self._fail(GaveUp(f"no worker became ready for {GIVE_UP_SECONDS / 60:g} minutes; see the errors above"))

    def _close(self) -> None:
        for child in self._children.values():
            child.end("the supervisor failed", 0, dump=False)
        self._end_strays()
        self._database.stop(EXIT_SECONDS)
        self._selector.close()
        for fd in (self._event, self._notify):
            os.close(fd)
        self._emit(Event("pool ended", INFO, dict(zip(("done", "failed"), self._settled, strict=True))))

    # workers

    def _spawn_due(self) -> None:
        now = time.monotonic()
        for number in [number for number, at in self._spawn_at.items() if at <= now]:
            del self._spawn_at[number]
            if self._state != PoolState.STOPPING and number <= self._target:
                self._spawn(number)

    def _spawn(self, number: int) -> None:
        settings = self._settings
        assignment = Assignment(
            os.path.abspath(settings.database),
            self._database.pool_id,
            number,
            process.mint_token(),
            os.getpid(),
            settings.folder,
            self._entry_points,
            settings.modules,
        )
        try:
            child = Child(assignment, dict(os.environ), self._notify)
        except OSError as error:  # no process, descriptor or memory to be had: a death before birth
            self._emit(Event("cannot spawn", ERROR, {"worker": number, "detail": str(error)}))
            self._spawn_at[number] = time.monotonic() + max(1.0, self._budget.died(number, time.monotonic(), 0, 0))
            return
        if self._paused:
            child.order(slot.PAUSE)
        self._children[child.pid] = child
        self._watch(child.pidfd, functools.partial(self._on_exit, child))

    def _look_at(self, child: Child, now: float) -> None:
        if text := child.new_output():
            self._emit(Event("output", INFO, {"worker": child.number, "detail": text.rstrip("\n")}))
        if child.ladder is not None:
            child.climb(now)
            return
        seen = child.seen()
        self._was_busy |= seen.state == State.BUSY
        silent = 0.0
        if seen.state in (State.IDLE, State.PAUSED):
            if not child.answered:
                silent = now - child.pinged_at
            elif now - child.pinged_at >= PING_SECONDS:
                child.ping(now)
        reason = overdue(seen, now, child.spawned_at, silent)
        if reason is not None:
            self._emit(Event("ending", WARNING, {"worker": child.number, "job": seen.job_id or None, "detail": reason}))
            child.end(reason, now)

    def _on_exit(self, child: Child) -> None:
        """A worker ended: read how, give its jobs to the database thread to settle, and replace it."""
        if child.pid not in self._children:
            return  # SIGCHLD told us first
        exit = child.reap()
        if exit is None:
            return
        self._selector.unregister(child.pidfd)
        del self._children[child.pid]
        if text := child.rest_of_output():
            self._emit(Event("output", INFO, {"worker": child.number, "detail": text.rstrip("\n")}))
        settled = child.slot.settled()
        self._settled = [self._settled[0] + settled[0], self._settled[1] + settled[1]]
        seen = child.seen()
        under_job = seen.state in (State.BUSY, State.SETTLING)
        death = _death_of(child, exit, self._kill_at)
        clean = seen.state == State.BYE and exit.code == 0
        if not clean:
            job = seen.job_id if under_job else None
            facts = {"worker": child.number, "pid": child.pid, "job": job, "detail": death.evidence.error}
            self._emit(Event("worker died", WARNING, facts))
            self._restarts[death.killed_for or (str(exit) if under_job else "idle or boot")] += 1
        self._unsettled += 1
        if under_job and death.killed_for is None:
            self._settled[1] += 1
        self._database.settle_death(death, self._on_settled)
        self._end_strays()
        self._replace(child, exit, explained=clean or under_job, settled=sum(settled))
        child.close()

    def _replace(self, child: Child, exit: Exit, *, explained: bool, settled: int) -> None:
        if self._state == PoolState.STOPPING or child.number > self._target:
            return
        if not child.ready and not self._ever_ready and exit.code in (ExitCode.HANDLERS, ExitCode.DATABASE):
            kind = HandlersError if exit.code == ExitCode.HANDLERS else DatabaseUnusable
            lines = [line for line in child.output().splitlines() if line.startswith("error: ")]
            self._fail(kind(lines[-1].removeprefix("error: ") if lines else f"worker {child.number}: {exit}"))
            return
        now = time.monotonic()
        delay = 0.0 if explained else self._budget.died(child.number, now, now - child.spawned_at, settled)
        self._spawn_at[child.number] = now + delay
        if self._budget.is_degraded(now) and self._state == PoolState.RUNNING:
            self._change(PoolState.DEGRADED, "workers keep dying with no job to blame; one is tried every 30 s")
        self._spawn_due()

    def _on_settled(self, ended: list[Reaped]) -> None:
        self._unsettled -= 1
        for each in ended:
            self._emit(Event("job returned", WARNING, {"job": each.job_id, "status": each.status, "detail": each.why}))

    def _on_notify(self) -> None:
        os.eventfd_read(self._notify)
        for child in self._children.values():
            if not child.ready and child.state != State.BOOT:
                child.ready = self._ever_ready = True
                self._ready_at = child.pinged_at = time.monotonic()
                self._emit(Event("worker ready", INFO, {"worker": child.number, "pid": child.pid}))
                if self._state == PoolState.STARTING or not self._budget.is_degraded(self._ready_at):
                    self._change(PoolState.RUNNING)

    def _any_ready(self) -> bool:
        if ready := any(child.ready for child in self._children.values()):
            self._ready_at = time.monotonic()
        return ready

    def _end_strays(self) -> None:
        living = set(self._children)
        tokens = {child.identity.rpartition(":")[2] for child in self._children.values()}
        for pid in end_strays(living, living, tokens):
            self._emit(Event("stray ended", WARNING, {"pid": pid, "detail": "a process that a job left behind"}))

    # signals

    def _on_signals(self, signals: Iterable[signal.Signals]) -> None:
        for number in signals:
            if number in (signal.SIGTERM, signal.SIGINT):
                self._stop(f"got {number.name}", now=self._state == PoolState.STOPPING)
            elif number == signal.SIGQUIT:
                self._stop("got SIGQUIT", now=True)
            elif number == signal.SIGCHLD:
                self._reap_strangers()

    def _stop(self, why: str, *, now: bool = False) -> None:
        """Drain: no new claims, the grace period for what runs; or, the second time, end it now."""
        if self._state != PoolState.STOPPING:
            grace = 0.0 if now else self._settings.grace
            self._change(PoolState.STOPPING, f"{why}; running jobs get {grace:g} s" if grace else why)
            self._kill_at = time.monotonic() + grace
            for child in self._children.values():
                child.retire()
                if not child.ready:
                    child.end(str(AttemptOutcome.INTERRUPTED), time.monotonic(), dump=False)
        if now:
            self._kill_at = time.monotonic()

    def _kill_all(self) -> None:
        for child in self._children.values():
            child.end(f"{AttemptOutcome.INTERRUPTED}: its pool ended", time.monotonic(), dump=False)

    def _reap_strangers(self) -> None:
        """Reap orphans that became our children; our workers are reaped through their pidfds alone."""
        while True:
            try:
                info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if info is None:
                return
            child = self._children.get(info.si_pid)
            if child is not None:
                self._on_exit(child)
            else:
                os.waitpid(info.si_pid, os.WNOHANG)

    # called by the database thread, through _post; _look reads and is called from that thread itself

    def _look(self) -> Look:
        children = list(self._children.values())
        states = [child.state for child in children if child.ladder is None]
        idle = states.count(State.IDLE)
        settled = not self._unsettled and idle == len(children) and bool(children)
        return Look(idle, tuple(child.identity for child in children), settled)

    def _wake(self, due: int) -> None:
        self._was_busy = True  # look soon: a job with a short deadline may begin
        for child in self._children.values():
            if due <= 0:
                return
            if child.state == State.IDLE and not child.retiring:
                child.wake()
                due -= 1

    def _cancel(self, requests: list[tuple[int, int, str]]) -> None:
        for job_id, _, identity in requests:
            for child in self._children.values():
                if child.identity == identity:
                    child.slot.words[slot.CANCEL] = job_id

    def _drained(self) -> None:
        if self._state != PoolState.STOPPING:
            self._stop("nothing is left that could run")

    def _pause(self, reason: str) -> None:
        self._paused = reason
        for child in self._children.values():
            child.order(slot.PAUSE, bool(reason))
        self._emit(Event("claims paused" if reason else "claims resumed", WARNING, {"detail": reason or None}))

    def _fail(self, error: PoolError) -> None:
        if self._error is None:
            self._error = error
            self._stop(str(error), now=True)

    def _take_orders(self, target: int | None, reload_requested_at: str | None) -> None:
        if target is not None and target != self._target:
            self._target = min(max(1, target), MAX_WORKERS)

    # the loop's own

    def _watch(self, fd: int, action: Callable[[], None]) -> None:
        self._selector.register(fd, selectors.EVENT_READ, action)

    def _post(self, action: Callable[[], None]) -> None:
        self._posted.append(action)
        os.eventfd_write(self._event, 1)

    def _run_posted(self) -> None:
        os.eventfd_read(self._event)
        while self._posted:
            self._posted.popleft()()

    def _pause_before_next(self) -> float:
        if any(child.ladder and not child.ladder.killed for child in self._children.values()):
            return LADDER_TICK_SECONDS
        now = time.monotonic()
        wait = TICK_SECONDS if self._was_busy or self._state == PoolState.STOPPING else IDLE_TICK_SECONDS
        until = [self._kill_at, *self._spawn_at.values()]
        if self._was_busy:
            until += [next_deadline(child.seen()) for child in self._children.values() if not child.ladder]
        return max(0.0, min(wait, min(until) - now))

    def _forgive(self, gap: float) -> None:
        """We did not run for a while (SIGSTOP of the whole tree, a starved host): nobody is overdue because of that."""
        self._emit(Event("supervisor was held up", WARNING, {"seconds": round(gap, 1)}))
        for child in self._children.values():
            child.forgive(gap)
        self._ready_at += gap

    def _change(self, state: PoolState, why: str | None = None) -> None:
        if state == self._state:
            return
        self._state = state
        level = WARNING if state == PoolState.DEGRADED else INFO
        self._emit(Event(f"pool {state}", level, {"detail": why}))
        self._title()
        self._report()

    def _title(self) -> None:
        name = os.path.basename(self._settings.database)
        setproctitle.setproctitle(f"pool: supervisor {name} {self._target} workers ({self._state})")

    def _report(self) -> None:
        self._reported_at = time.monotonic()
        done, failed = self.counts
        latencies = [sum(each) for each in zip(*(c.slot.latencies() for c in self._children.values()), strict=True)]
        facts: dict[str, Any] = {
            "done": done,
            "failed": failed,
            "restarts": dict(self._restarts),
            "paused": self._paused,
            "write_latency_ns_by_bits": latencies,
            "workers": [_worker_facts(child) for child in self._children.values()],
        }
        self._database.report(self._state, self._target, facts)


def _worker_facts(child: Child) -> dict[str, Any]:
    seen = child.seen()
    busy = seen.state == State.BUSY
    return {
        "number": child.number,
        "pid": child.pid,
        "identity": child.identity,
        "state": seen.state.name.lower(),
        "job": seen.job_id if busy else None,
        "type": child.slot.type if busy else None,
        "since": _wall(seen.started) if busy else None,
        "done": child.slot.settled()[0],
        "failed": child.slot.settled()[1],
    }


def _death_of(child: Child, exit: Exit, kill_at: float) -> Death:
    """What is known of a worker's end, read from its slot, its exit, and what it left in its files."""
    seen = child.seen()
    ladder = child.ladder
    killed_for: AttemptOutcome | None = None
    error = str(exit)
    if ladder is not None:
        error = ladder.reason
        killed_for = next((each for each in AttemptOutcome if ladder.reason.startswith(each)), None)
        if (ladder.job_id, ladder.attempt) != (seen.job_id, seen.attempt):
            killed_for = AttemptOutcome.INTERRUPTED  # it went on to another job in the last moment
    elif exit.code == 0:
        error = "exit code 0 in the middle of a job"
    busy = seen.state in (State.BUSY, State.SETTLING)
    stack = child.stack()
    evidence = Evidence(
        killed_for or AttemptOutcome.CRASHED,
        error,
        now_text(),
        started_at=_wall(seen.started) if busy else None,
        exit_code=exit.code,
        signal=exit.signal,
        stack=stack or None,
        output=child.output(seen.output) or None,
        peak_memory_bytes=exit.peak_memory_bytes,
        cpu_seconds=exit.cpu_seconds,
    )
    max_crashes = child.slot.words[slot.MAX_CRASHES] or DEFAULT_MAX_CRASHES
    job = (seen.job_id, seen.attempt) if busy else (0, 0)
    return Death(child.identity, *job, killed_for, evidence, max_crashes)


def _wall(monotonic_ns: int) -> str:
    return utc_text(time.time() - (time.monotonic_ns() - monotonic_ns) / 1e9)


def _close_on_exec() -> None:
    """What we inherited stays ours: a worker, and so a job, gets no descriptor of whoever started the pool."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            try:
                os.set_inheritable(int(name), False)
            except OSError:
                continue  # the listing's own
