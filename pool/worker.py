"""One worker process: claims jobs for itself, runs them one at a time, and writes their ends under their leases."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import sqlite3
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import ParamSpec, TypeVar

import setproctitle

from pool import hooks, process, slot
from pool.assignment import DOORBELL_FD, NOTIFY_FD, OUTPUT_FD, WAKE_FD, Assignment, read_output
from pool.clock import now_text, parse_utc, utc_text
from pool.failures import FailureLog
from pool.job import DEFAULT_MAX_CRASHES, Cancelled, Completed, Failed, Job, Outcome
from pool.registry import Handlers
from pool.runner import describe, run
from pool.slot import Slot, State
from pool.store import Store
from pool.store.sqlite import spelled_out

#: Seconds a worker waits for the database before it looks at its orders again.
BUSY_SECONDS = 2.0
#: An idle worker looks for itself this often, should no wake-up reach it.
IDLE_SECONDS = 5.0
#: How long a group of jobs runs before its ends are written and what is not begun goes back.
GROUP_NANOSECONDS = 10_000_000
_BACKOFF_LIMIT = 1.0
#: Seconds beyond which a limit is none; what a word can hold ends somewhat later.
FOREVER = 1e9

log = logging.getLogger("pool.worker")

A = ParamSpec("A")
T = TypeVar("T")


class Worker:
    """The loop ``claim -> run -> settle``, and what it tells its supervisor through the slot.

    It holds one job at a time, or a group where a handler asked for groups: the ends of a group and the claim of the
    next share a transaction.
    """

    def __init__(self, assignment: Assignment, slot: Slot, store: Store, handlers: Handlers, identity: str) -> None:
        self.identity = identity
        self._pid = os.getpid()
        self._parent = assignment.parent
        self._title = f"pool: worker {assignment.number}"
        self._slot = slot
        self._words = slot.words
        self._store = store
        self._handlers = handlers
        self._groups = {each.type: each.group for each in handlers.values() if each.group > 1}
        self._run: Callable[[Job], Outcome] = self._run_untraced
        if hooks.tracer is not None:
            self._run = partial(self._run_traced, hooks.tracer)
        self._draining = False
        self._unsure = False
        self._jobs_left = assignment.max_jobs or float("inf")
        self._saw_cancel = False
        self._failures = FailureLog(log)
        self._reach = faults_armed()
        self._orders, self._doorbell = select.epoll(), select.epoll()
        for poll in (self._orders, self._doorbell):
            poll.register(WAKE_FD, select.EPOLLIN)
        # Exclusive: of all idle workers a ring wakes one (epoll_ctl(2)), without a detour by way of the supervisor.
        self._doorbell.register(DOORBELL_FD, select.EPOLLIN | select.EPOLLEXCLUSIVE)

    def drain(self) -> None:
        """End after the current job. Called from a signal handler: records, and wakes the loop."""
        self._draining = True
        os.eventfd_write(WAKE_FD, 1)

    def work(self) -> None:
        """Work until told to stop."""
        reach = self._reach
        self._say(State.IDLE)
        jobs = self._next()
        while jobs:
            if reach is not None:
                reach("claim")
            ended = self._run_group(jobs)
            if reach is not None:
                reach("before_settle")
            following = self._settle(ended, jobs[len(ended) :])
            if reach is not None:
                reach("after_settle")
            jobs = following or self._next()
        self._say(State.BYE)

    def progress(self, done: float, total: float) -> None:
        """See Context.progress."""
        words = self._words
        words[slot.PROGRESS_DONE] = int(done * 1000)
        words[slot.PROGRESS_TOTAL] = int(total * 1000)
        words[slot.MOVED] = time.monotonic_ns()

    def cancelled(self) -> bool:
        """See Context.cancelled."""
        told = bool(self._words[slot.CANCEL] == self._words[slot.JOB])
        self._saw_cancel |= told
        return told

    # claim

    def _stopping(self) -> bool:
        # Without its parent, too: the kernel forgets to kill with it a process that changed its user (prctl(2)).
        return self._draining or bool(self._words[slot.ORDERS] & slot.DRAIN) or os.getppid() != self._parent

    def _may_claim(self) -> bool:
        return not self._words[slot.ORDERS] & slot.PAUSE and not self._stopping()

    def _next(self) -> list[Job]:
        """The next jobs, waited for; none when told to stop.

        The state says IDLE before the last look, so that a job committed in between finds a worker to wake."""
        words = self._words
        setproctitle.setproctitle(f"{self._title} idle")
        self._failures.rest()
        backoff = 0.02
        while not self._stopping():
            words[slot.STATE] = State.IDLE
            wait, wakes = IDLE_SECONDS, self._orders
            if self._may_claim():
                wakes = self._doorbell
                try:
                    if jobs := self._claim():
                        return jobs
                    backoff = 0.02
                except sqlite3.Error as error:
                    self._unsure = True
                    if "decode" in str(error):
                        # A stranger's text that is not UTF-8: read it spelled out, and that job fails with a reason.
                        self._store.connection.text_factory = spelled_out
                        continue
                    self._say(State.PAUSED)
                    log.warning("cannot claim: %s; waiting", error)
                    wait = backoff = min(backoff * 2, _BACKOFF_LIMIT)
                    wakes = self._orders
            self._wait(wakes, wait)
        return []

    def _claim(self) -> list[Job]:
        if self._unsure:
            # A COMMIT that failed may have been written all the same; what it claimed is ours and not to be forgotten.
            held = self._store.held_by(self.identity)
            self._unsure = False
            if held:
                return held
        return self._timed(self._store.claim_group, self.identity, self._groups, now_text())

    def _wait(self, wakes: select.epoll, seconds: float) -> None:
        for fd, _ in wakes.poll(seconds):
            with contextlib.suppress(BlockingIOError):  # another worker was quicker
                os.read(fd, 8)
        self._words[slot.PONG] = self._words[slot.PING]

    # run

    def _run_group(self, jobs: list[Job]) -> list[tuple[Job, Outcome]]:
        """Run one after another; those not begun when the group's time is up are left out."""
        ended = [(jobs[0], self._run(jobs[0]))]
        self._jobs_left -= len(jobs)
        if self._jobs_left <= 0:
            self._draining = True
        if len(jobs) > 1:
            until = self._words[slot.STARTED] + GROUP_NANOSECONDS
            for job in jobs[1:]:
                if time.monotonic_ns() >= until:
                    break
                ended.append((job, self._run(job)))
        return ended

    def _run_traced(self, tracer: hooks.Tracer, job: Job) -> Outcome:
        try:
            trace_context = self._store.value("trace_context", id=job.id)
        except sqlite3.Error:
            trace_context = None  # bytes that are no text, or an ailing disk: no reason not to run a job
        return tracer.process(job, trace_context, waited(job.run_at, 0) / 1e6, self._run_untraced)

    def _run_untraced(self, job: Job) -> Outcome:
        words = self._words
        try:
            tally, started, suspect = self._begin(job)
        except (TypeError, ValueError, OverflowError, AttributeError) as error:
            # Written by a stranger, such as a timeout that is text; SQLite's columns hold anything.
            words[slot.MOVED] = time.monotonic_ns()
            words[slot.FAILED] += 1
            return Failed(f"the job's row makes no sense: {describe(error)}")
        if suspect:
            with process.first_for_the_oom_killer():
                outcome = run(job, self._handlers, self)
        else:
            outcome = run(job, self._handlers, self)
        if os.getpid() != self._pid:
            os._exit(0)  # the handler forked and forgot to end the child: it must not go on as a second worker
        while words[slot.CONDEMNED] == job.id:
            # The supervisor is ending this attempt. Its request for the stack interrupts system calls, so C code
            # that hung may have returned as if all were well; that must not count.
            time.sleep(1)
        words[slot.MOVED] = moved = time.monotonic_ns()
        words[slot.STATE] = State.SETTLING
        ran = (moved - started) // 1000
        if ran > slot.LONGEST:
            ran = slot.LONGEST
        wait = waited(job.run_at, ran)
        words[tally + slot.RUN + ran.bit_length()] += 1
        words[tally + slot.RUN_SUM] += ran
        words[tally + slot.WAIT + wait.bit_length()] += 1
        words[tally + slot.WAIT_SUM] = (words[tally + slot.WAIT_SUM] + wait) & slot.LARGEST_SUM
        if type(outcome) is Completed and not self._saw_cancel:
            words[slot.DONE] += 1
            words[tally + slot.TALLY_DONE] += 1
            return outcome
        return self._with_evidence(outcome, started, tally)

    def _begin(self, job: Job) -> tuple[int, int, bool]:
        """Write into the slot what begins; the tally's word, the time, and whether the job is on its last try after
        crashes. Raises what a row of nonsense makes it raise, before anything is written."""
        words = self._words
        handler = self._handlers.get(job.type)
        timeout, stall, max_crashes = job.timeout_seconds, None, DEFAULT_MAX_CRASHES
        if handler is not None:
            timeout = handler.timeout if timeout is None else timeout
            stall, max_crashes = handler.stall_timeout, handler.max_crashes
        limit = int(min(timeout, FOREVER) * 1e9) if timeout is not None else 0
        suspect = job.crashes > 0 and job.crashes + 1 >= max_crashes
        tally = self._slot.tally(job.type)
        setproctitle.setproctitle(f"{self._title} {job.type} #{job.id}")
        self._saw_cancel = False
        started = time.monotonic_ns()
        words[slot.VERSION] += 1
        words[slot.JOB] = job.id
        words[slot.ATTEMPT] = job.attempts
        words[slot.STARTED] = words[slot.MOVED] = started
        words[slot.DEADLINE] = started + limit if limit else 0
        words[slot.STALL] = int(min(stall, FOREVER) * 1e9) if stall else 0
        words[slot.MAX_CRASHES] = max_crashes
        words[slot.TALLY] = tally
        words[slot.PROGRESS_DONE] = words[slot.PROGRESS_TOTAL] = 0
        words[slot.OUTPUT] = os.lseek(OUTPUT_FD, 0, os.SEEK_END)
        words[slot.STATE] = State.BUSY
        words[slot.VERSION] += 1
        return tally, started, suspect

    def _with_evidence(self, outcome: Outcome, started: int, tally: int) -> Outcome:
        """The outcome of an attempt that did not simply complete, with what its handler printed."""
        if self._saw_cancel and isinstance(outcome, Completed):
            outcome = Cancelled("cancelled; its handler ended early")
        if not isinstance(outcome, (Failed, Cancelled)):
            return outcome
        self._words[slot.FAILED] += isinstance(outcome, Failed)
        self._words[tally + slot.TALLY_FAILED] += 1
        if outcome.error.startswith("MemoryError"):
            self._draining = True  # what is left of this process is not to be trusted
        _flush()
        began = utc_text(time.time() - (time.monotonic_ns() - started) / 1e9)
        return replace(outcome, started_at=began, output=read_output(OUTPUT_FD, self._words[slot.OUTPUT]))

    # settle

    def _settle(self, ended: list[tuple[Job, Outcome]], left: list[Job]) -> list[Job]:
        """Write the jobs' ends and claim the next in one transaction, and go on trying until it is written.

        A full disk may have room for the ends and not for the claim, so after an error the ends go alone."""
        fused, backoff = self._may_claim(), 0.02
        while True:
            try:
                groups = self._groups if fused else None
                lost, following = self._timed(self._store.settle_group, ended, left, groups, now_text())
                for job, outcome in ended:
                    if isinstance(outcome, Failed) and not lost:
                        self._failures.tell(job, outcome)
                if lost:
                    which = f"job {ended[0][0].id}" if len(ended) == 1 else f"{lost} of {len(ended)} jobs"
                    log.warning("%s: the lease was lost while it ran; the result is dropped", which)
                return following
            except sqlite3.Error as error:
                log.warning("job %d: its end cannot be written yet: %s; trying again", ended[0][0].id, error)
                fused, self._unsure = False, True
                self._words[slot.MOVED] = time.monotonic_ns()
                time.sleep(backoff)
                backoff = min(backoff * 2, _BACKOFF_LIMIT)

    def _timed(self, verb: Callable[A, T], *args: A.args, **kwargs: A.kwargs) -> T:
        began = time.monotonic_ns()
        if (until := self._words[slot.ROOM]) > began:
            time.sleep((until - began) / 1e9)  # strangers' turn
        result = verb(*args, **kwargs)
        took = time.monotonic_ns() - began
        bits, words = took.bit_length(), self._words
        words[slot.LATENCY + (bits if bits < slot.LATENCY_BUCKETS else slot.LATENCY_BUCKETS - 1)] += 1
        words[slot.LATENCY_SUM] += took
        return result

    def _say(self, state: State) -> None:
        self._words[slot.STATE] = state
        os.eventfd_write(NOTIFY_FD, 1)


_due: tuple[str, float] = ("", 0.0)


def waited(run_at: str, ran: int) -> int:
    """Microseconds from a job's due time to its start, ``ran`` of them ago; 0 when a stranger's text is no time."""
    global _due
    try:
        if _due[0] != run_at[:19]:
            _due = (run_at[:19], parse_utc(run_at[:19]))
        due = _due[1] + (float(run_at[19:]) if len(run_at) == 23 else 0.0)
    except (TypeError, ValueError):
        return 0
    wait = int((time.time() - due) * 1e6) - ran
    return 0 if wait < 0 else wait if wait < slot.LONGEST else slot.LONGEST


def faults_armed() -> Callable[[str], None] | None:
    """The injection points of pool.testing, None unless a test armed them."""
    if "JOBPOOL_FAULTS" not in os.environ:
        return None
    from pool.faults import arm

    return arm()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            continue  # a handler closed or replaced it
