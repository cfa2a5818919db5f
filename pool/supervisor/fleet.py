"""The workers of a pool: spawned, watched, replaced, reloaded, scaled, and ended, from the supervisor's loop."""

from __future__ import annotations

import collections
import functools
import os
import random
import time
from collections.abc import Callable
from typing import Protocol

from pool import cpus, process, registry, slot
from pool.assignment import Assignment
from pool.events import ERROR, INFO, WARNING, Emit, Event
from pool.job import AttemptOutcome
from pool.maintenance import Death
from pool.settings import PoolSettings
from pool.slot import State
from pool.supervisor.bounds import PING_SECONDS, Overdue, RestartBudget, next_deadline, overdue
from pool.supervisor.child import Child, Exit
from pool.supervisor.death import death_of
from pool.supervisor.loop import Loop
from pool.supervisor.spawn import environment
from pool.supervisor.strays import Stray, await_end, end_strays
from pool.supervisor.tally import Tally
from pool.supervisor.usage import oom_kills, usage_of_tree

WEIGH_SECONDS = 1.0


class Owner(Protocol):
    """What the fleet tells the pool it belongs to."""

    def worker_ready(self) -> None: ...
    def worker_died(self, death: Death, await_end: Callable[[], None]) -> None: ...
    def boot_failed(self, exit: Exit, output: str) -> None: ...


class Fleet:
    """Worker processes by pid. Each has a number; two share one only while a reload replaces the older."""

    def __init__(
        self, settings: PoolSettings, pool_id: int, doorbell_fd: int, loop: Loop, owner: Owner, emit: Emit
    ) -> None:
        self.target = settings.workers
        self.children: dict[int, Child] = {}
        self.budget = RestartBudget()
        self.restarts: collections.Counter[str] = collections.Counter()
        self.tally = Tally()
        self.done = self.failed = 0  # by workers that have ended
        self.busy = False
        self.ever_ready = False
        self.stopping = False
        self.paused = ""
        self._settings = settings
        self._pool_id = pool_id
        self._doorbell_fd = doorbell_fd
        self._loop = loop
        self._owner = owner
        self._emit = emit
        self._entry_points = tuple(registry.entry_points())
        self._environment = environment(settings)
        self._spawn_at: dict[int, float] = {}
        self._reloading: collections.deque[Child] = collections.deque()
        self._oom_kills = oom_kills()
        self._weighed_at = 0.0
        self._first_woken = 0
        self._notify = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        loop.watch(self._notify, self._on_notify)

    # what the pool asks of it

    def scale(self, target: int) -> None:
        """Have so many workers: new ones are spawned, those above end after their job."""
        if target != self.target:
            self._emit(Event("scaled", INFO, {"workers": target, "before": self.target}))
        self.target = target
        numbers = {child.number for child in self.children.values() if not child.retiring}
        for number in range(1, target + 1):
            if number not in numbers:
                self._spawn_at.setdefault(number, 0.0)
        for child in self.children.values():
            if child.number > target and not child.retiring:
                child.retire()
        self._spawn_due()

    def reload(self) -> None:
        """Replace every worker, one by one, each new one ready before its old one drains."""
        if self.is_reloading:
            self._reloading.extend(child for child in self.children.values() if child not in self._reloading)
            return
        self._entry_points = tuple(registry.entry_points())
        self._reloading.extend(child for child in self.children.values() if not child.retiring)
        self._replace_next()

    @property
    def is_reloading(self) -> bool:
        """Whether a reload is under way."""
        return bool(self._reloading) or any(child.replaces for child in self.children.values())

    def look(self, now: float) -> None:
        """Look at each worker once: output, bounds, memory, age; and spawn what is due."""
        self.busy = False
        weigh = now - self._weighed_at >= WEIGH_SECONDS
        if weigh:
            self._weighed_at = now
        for child in list(self.children.values()):
            self._forward_output(child, child.new_output())
            if child.ladder is not None:
                child.climb(now)
                continue
            if reason := self._overdue(child, now):
                seen = child.seen()
                facts = {"worker": child.number, "job": seen.job_id or None, "detail": reason.reason}
                self._emit(Event("ending", WARNING, facts))
                child.end(reason.reason, now, outcome=reason.outcome)
            elif weigh:
                self._weigh(child, now)
        self._spawn_due()

    def next_look(self, now: float) -> float:
        """Monotonic seconds of the next time that something may be due; infinity when nothing is known of."""
        times = [*self._spawn_at.values()]
        for child in self.children.values():
            if child.ladder is not None:
                times.append(now + 0.005 if not child.ladder.killed else float("inf"))
            else:
                times += [next_deadline(child.seen()), *child.cancel_at.values()]
        return min(times, default=float("inf"))

    def wake(self, due: int) -> None:
        """Wake as many idle workers as there are due jobs, beginning with another one each time: one that somebody
        stopped must not keep a job waiting. Called from the database thread, which saves a hop."""
        idle = [child for child in living(self.children) if child.is_idle and not child.retiring]
        for turn in range(min(due, len(idle))):
            idle[(self._first_woken + turn) % len(idle)].wake()
        self._first_woken += 1

    def leave_room(self, until: int) -> None:
        """No worker begins a write before an instant, in monotonic nanoseconds. Called from the database thread."""
        for child in living(self.children):
            child.leave_room(until)

    def expect_work(self) -> None:
        """Look again soon: a job with a short deadline may have begun."""
        self.busy = True

    def pause(self, reason: str) -> None:
        """No claims while there is a reason; running jobs go on."""
        if reason == self.paused:
            return
        self.paused = reason
        for child in self.children.values():
            child.order(slot.PAUSE, bool(reason))
        self._emit(Event("claims paused" if reason else "claims resumed", WARNING, {"detail": reason or None}))

    def cancel(self, job_id: int, identity: str, now: float) -> None:
        """Tell a running job that it is cancelled."""
        for child in self.children.values():
            if child.identity == identity:
                child.cancel(job_id, now + self._settings.cancel_grace)

    def drain(self, now: float) -> None:
        """Let every worker end after its job."""
        self.stopping = True
        self._spawn_at.clear()
        self._reloading.clear()
        for child in self.children.values():
            child.retire()
            if not child.ready:
                child.end("its pool ended", now, outcome=AttemptOutcome.INTERRUPTED, dump=False)

    def end_all(self, now: float) -> None:
        """End what is left; unfinished jobs go back with the attempt not counted."""
        for child in self.children.values():
            child.end("its pool ended", now, outcome=AttemptOutcome.INTERRUPTED, dump=False)

    def end_stopped_writer(self, pid: int, now: float) -> None:
        """End a worker that was stopped in the middle of a write, for nobody can write until it goes on. Not while it
        runs a job: then its deadline alone decides."""
        child = self.children.get(pid)
        if child is not None and child.state != State.BUSY and process.is_stopped(pid):
            child.end("it kept everybody from writing", now, outcome=AttemptOutcome.INTERRUPTED)

    def forgive(self, gap: float) -> None:
        """Nobody is overdue because of seconds in which nobody could run."""
        for child in self.children.values():
            child.forgive(gap)

    def end_strays(self, besides: Child | None = None) -> list[Stray]:
        """Kill what jobs of ended workers left behind; those of ``besides``, which has just ended, too."""
        left = [child for child in self.children.values() if child is not besides]
        living = {child.pid for child in left}
        tokens = {child.identity.rpartition(":")[2] for child in left}
        if ended := end_strays(living, living, tokens):
            facts = {"pids": ",".join(str(each.pid) for each in ended), "detail": "processes that a job left behind"}
            self._emit(Event("strays ended", WARNING, facts))
        return ended

    def reap_strangers(self) -> None:
        """Reap orphans that became our children; workers are reaped in ``_on_exit`` alone, for their exit status."""
        while True:
            try:
                info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if info is None:
                return
            if child := self.children.get(info.si_pid):
                self._on_exit(child)
            else:
                os.waitpid(info.si_pid, os.WNOHANG)

    @property
    def counts(self) -> tuple[int, int]:
        """Jobs done and attempts failed since the pool began."""
        living = [child.settled() for child in list(self.children.values())]
        return self.done + sum(each[0] for each in living), self.failed + sum(each[1] for each in living)

    @property
    def signature(self) -> object:
        """Differs when there is something new to report."""
        states = tuple(
            (child.pid, child.ready, child.retiring, child.slot.snapshot()[:2]) for child in self.children.values()
        )
        return (self.counts, self.target, self.paused, states)

    @property
    def types(self) -> list[str] | None:
        """The job types its ready workers handle; None while that is not known."""
        told = [child.slot.types() for child in self.children.values() if child.ready]
        found = {type for types in told if types is not None for type in types}
        return sorted(found) if told and None not in told else None

    def close(self) -> None:
        """Close what the fleet itself holds; its workers must have ended."""
        os.close(self._notify)

    # spawn

    def _spawn_due(self) -> None:
        now = time.monotonic()
        for number in [number for number, at in self._spawn_at.items() if at <= now]:
            del self._spawn_at[number]
            if not self.stopping and number <= self.target:
                self._spawn(number)

    def _spawn(self, number: int) -> Child | None:
        settings = self._settings
        assignment = Assignment(
            os.path.abspath(settings.database),
            self._pool_id,
            number,
            process.mint_token(),
            os.getpid(),
            settings.folder,
            self._entry_points,
            settings.modules,
            settings.max_jobs and settings.max_jobs + random.randint(0, settings.max_jobs // 10),
            settings.nice,
            settings.pin,
            self.target > cpus.available(),
        )
        try:
            child = Child(assignment, self._environment, self._notify, self._doorbell_fd)
        except OSError as error:  # no process, descriptor or memory to be had: a death before birth
            self._emit(Event("cannot spawn", ERROR, {"worker": number, "detail": str(error)}))
            now = time.monotonic()
            self._spawn_at[number] = now + max(1.0, self.budget.died(number, now, 0, 0, 0))
            return None
        if settings.max_age:
            child.retire_at = child.spawned_at + settings.max_age * random.uniform(1.0, 1.1)
        if self.paused:
            child.order(slot.PAUSE)
        self.children[child.pid] = child
        self._loop.watch(child.pidfd, functools.partial(self._on_exit, child))
        return child

    def _on_notify(self) -> None:
        os.eventfd_read(self._notify)
        for child in list(self.children.values()):
            self._see_whether_ready(child)

    def _see_whether_ready(self, child: Child) -> None:
        if child.ready or child.state == State.BOOT:
            return
        child.ready = self.ever_ready = True
        child.pinged_at = time.monotonic()
        self._emit(Event("worker ready", INFO, {"worker": child.number, "pid": child.pid}))
        if child.replaces is not None:
            child.replaces.retire()
            child.replaces = None
            self._replace_next()
        self._owner.worker_ready()

    def _replace_next(self) -> None:
        while self._reloading and not self.stopping:
            old = self._reloading.popleft()
            if old.pid in self.children and not old.retiring and old.number <= self.target:
                if new := self._spawn(old.number):
                    new.replaces = old
                return

    # watch

    def _overdue(self, child: Child, now: float) -> Overdue | None:
        seen = child.seen()
        self.busy |= seen.state == State.BUSY
        silent = 0.0
        if seen.state in (State.IDLE, State.PAUSED):
            if not child.answered:
                silent = now - child.pinged_at
            elif now - child.pinged_at >= PING_SECONDS:
                child.ping(now)
        ends = child.cancel_at.get(seen.job_id)
        if ends is not None and seen.state == State.BUSY and now >= ends:
            return Overdue("cancelled", AttemptOutcome.CANCELLED)
        if seen.state != State.BUSY and child.cancel_at:
            child.cancel_at = {}
        if now >= child.retire_at and not child.retiring:
            self._emit(Event("recycled", INFO, {"worker": child.number, "detail": "it reached its age"}))
            child.retire()
        return overdue(seen, now, child.spawned_at, silent)

    def _weigh(self, child: Child, now: float) -> None:
        soft, hard = self._settings.soft_memory, self._settings.hard_memory
        child.usage = usage_of_tree(child.pid)
        held = child.usage.memory_bytes
        if hard and held > hard and child.state == State.BUSY:
            reason = f"memory limit: {held >> 20} MB of {hard >> 20} MB"
            self._emit(Event("ending", WARNING, {"worker": child.number, "job": child.seen().job_id, "detail": reason}))
            child.end(reason, now, outcome=AttemptOutcome.MEMORY)
        elif soft and held > soft and not child.retiring:
            detail = f"it holds {held >> 20} MB of {soft >> 20} MB"
            self._emit(Event("recycled", INFO, {"worker": child.number, "detail": detail}))
            child.retire()

    def _forward_output(self, child: Child, text: str) -> None:
        if text:
            self._emit(Event("output", INFO, {"worker": child.number, "detail": text.rstrip("\n")}))

    # exit

    def _on_exit(self, child: Child) -> None:
        """A worker ended: read how, have its jobs settled, and replace it."""
        if child.pid not in self.children or (exit := child.reap()) is None:
            return
        self._loop.unwatch(child.pidfd)
        # It may have died under its first job before we saw it ready: that is no fault of its start.
        self._see_whether_ready(child)
        self._forward_output(child, child.rest_of_output())
        kills = oom_kills()
        death = death_of(child, exit, out_of_memory=kills > self._oom_kills)
        # Strays first: once the worker is off the record, nobody could tell whose they are, should we be killed here.
        strays = self.end_strays(besides=child)
        # Before it leaves the fleet: at no moment is its job held by nobody that the database thread knows of.
        self._owner.worker_died(death, functools.partial(await_end, strays, child.pid))
        del self.children[child.pid]
        from_outside = exit.signal == "SIGKILL" and child.ladder is None and kills == self._oom_kills
        self._oom_kills = kills
        seen = child.slot.snapshot()
        under_job = seen.state in (State.BUSY, State.SETTLING)
        clean = seen.state == State.BYE and exit.code == 0
        done, failed = child.slot.settled()
        self.done += done
        attempt_died = under_job and death.killed_for not in (AttemptOutcome.INTERRUPTED, AttemptOutcome.CANCELLED)
        self.failed += failed + attempt_died
        cause = str(death.killed_for or (exit if under_job else "idle or boot"))
        self.tally.bury(child, None if clean else cause, attempt_died)
        if not clean:
            facts = {"worker": child.number, "pid": child.pid, "job": seen.job_id if under_job else None}
            self._emit(Event("worker died", WARNING, {**facts, "detail": death.evidence.error}))
            self.restarts[cause] += 1
        self._succeed(child, exit, explained=clean or under_job, from_outside=from_outside)
        child.close()

    def _succeed(self, child: Child, exit: Exit, *, explained: bool, from_outside: bool) -> None:
        """See to it that the number of a worker that ended has a worker again."""
        if self.stopping:
            return
        if child.replaces is not None and not child.ready:
            self._emit(
                Event("reload failed", ERROR, {"detail": f"the old workers go on; the new one: {_why(child, exit)}"})
            )
            self._reloading.clear()
            return
        if not child.ready and not self.ever_ready:
            self._owner.boot_failed(exit, child.output())
        for other in self.children.values():
            if other.replaces is child:
                other.replaces = None
                self._replace_next()
            if other.number == child.number and not other.retiring:
                return
        if child.number > self.target or self.stopping:
            return
        now = time.monotonic()
        lived, settled = now - child.spawned_at, sum(child.slot.settled())
        delay = 0.0
        if not explained:
            done = sum(self.counts)
            delay = self.budget.died(child.number, now, lived, settled, done, from_outside=from_outside)
        self._spawn_at.setdefault(child.number, now + delay)
        self._spawn_due()


def _why(child: Child, exit: Exit) -> str:
    errors = [line for line in child.output().splitlines() if line.startswith("error: ")]
    return errors[-1] if errors else str(exit)


def living(children: dict[int, Child]) -> list[Child]:
    """Those that are not being ended; from another thread, a moment's view."""
    return [child for child in list(children.values()) if child.ladder is None]
