"""A worker process as its supervisor holds it: how it is spawned, looked at, ended and reaped."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import threading
import time
from dataclasses import dataclass
from typing import NamedTuple

from pool import process, slot
from pool.assignment import OUTPUT_LIMIT, Assignment, read_output
from pool.job import AttemptOutcome
from pool.slot import Slot, Snapshot, State
from pool.supervisor.spawn import spawn
from pool.supervisor.usage import Usage

#: Seconds to wait for a stack dump; faulthandler writes it in well under a millisecond.
DUMP_SECONDS = 0.2
_STACK_LIMIT = 64 * 1024
_PUNCH_HOLE = 0x02 | 0x01  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, linux/falloc.h


class Exit(NamedTuple):
    """How a process ended: an exit code or a signal's name, its peak memory in bytes, its CPU time in seconds."""

    code: int | None
    signal: str | None
    peak_memory_bytes: int
    cpu_seconds: float

    def __str__(self) -> str:
        return f"killed by {self.signal}" if self.signal else f"exit code {self.code}"


@dataclass(slots=True)
class Ladder:
    """Where the ending of a child stands: the stack is asked for, then comes SIGKILL."""

    reason: str
    outcome: AttemptOutcome | None
    job_id: int
    attempt: int
    asked_at: float
    dump_size: int
    killed: bool = False


class Child:
    """One worker process, its pidfd and the memory shared with it."""

    def __init__(self, assignment: Assignment, environment: dict[str, str], notify_fd: int, doorbell_fd: int) -> None:
        self.number = assignment.number
        self.spawned_at = time.monotonic()
        self.ready = False
        self.retiring = False
        self.replaces: Child | None = None
        self.cancel_at: dict[int, float] = {}  # job -> when its grace after a cancel ends
        self.ladder: Ladder | None = None
        self.pinged_at = 0.0
        self.retire_at = float("inf")
        self.usage = Usage()
        self._slack: tuple[int, int, int] = (0, 0, 0)  # job, attempt, nanoseconds its deadlines move
        self._guard, self._closed = threading.Lock(), False
        self._forwarded = 0
        self._shown: int | None = None  # where a dump that was asked for begins
        self._punched = 0
        self._output = os.memfd_create("pool-output")
        self._dump = os.memfd_create("pool-dump")
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        page = Slot.create_fd()
        for fd in (self._output, self._dump):
            fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND)
        try:
            shared = page, self._wake, notify_fd, self._dump, self._output, doorbell_fd
            self.pid = spawn(assignment, environment, shared)
            self.pidfd = os.pidfd_open(self.pid)
            self.slot = Slot(page)
        finally:
            os.close(page)
        self.identity = process.identity(self.pid, assignment.token)

    @property
    def is_idle(self) -> bool:
        """Whether it waits for a job; False once it is closed. Safe from another thread."""
        with self._guard:
            return not self._closed and self.slot.words[slot.STATE] == State.IDLE

    def settled(self) -> tuple[int, int]:
        """Jobs done and attempts failed since it began; none once it is closed. Safe from another thread."""
        with self._guard:
            return (0, 0) if self._closed else self.slot.settled()

    @property
    def state(self) -> State:
        """What the worker last said of itself."""
        return State(self.slot.words[slot.STATE])

    def seen(self) -> Snapshot:
        """What it says it is doing, with the slack its job was given."""
        seen = self.slot.snapshot()
        job_id, attempt, slack = self._slack
        if slack and (seen.job_id, seen.attempt) == (job_id, attempt):
            seen = seen._replace(deadline=seen.deadline and seen.deadline + slack, moved=seen.moved + slack)
        return seen

    def forgive(self, gap: float) -> None:
        """Move its deadlines by the seconds in which nobody could run."""
        seen = self.slot.snapshot()
        former = self._slack[2] if self._slack[:2] == (seen.job_id, seen.attempt) else 0
        self._slack = (seen.job_id, seen.attempt, former + int(gap * 1e9))
        self.spawned_at += gap
        self.pinged_at += gap

    # what it is told

    def wake(self) -> None:
        """Make an idle worker look for a job and at its orders. Safe from another thread: never writes into a
        descriptor that was closed and given to something else meanwhile."""
        with self._guard, contextlib.suppress(BlockingIOError):
            if not self._closed:
                os.eventfd_write(self._wake, 1)

    def order(self, bits: int, given: bool = True) -> None:
        """Set or clear orders (slot.DRAIN, slot.PAUSE)."""
        words = self.slot.words
        words[slot.ORDERS] = words[slot.ORDERS] | bits if given else words[slot.ORDERS] & ~bits
        self.wake()

    def leave_room(self, until: int) -> None:
        """Have it begin no write before an instant, in monotonic nanoseconds. Safe from another thread."""
        with self._guard:
            if not self._closed:
                self.slot.words[slot.ROOM] = until

    def retire(self) -> None:
        """Let it end after its current job."""
        self.retiring = True
        self.order(slot.DRAIN)

    def cancel(self, job_id: int, deadline: float) -> None:
        """Tell its job that it is cancelled; from ``deadline`` (monotonic seconds) on it is to be ended."""
        if job_id not in self.cancel_at:
            self.cancel_at = {job_id: deadline}
            self.slot.words[slot.CANCEL] = job_id

    def ping(self, now: float) -> None:
        """Ask for a sign of life; an idle worker answers within two seconds."""
        self.pinged_at = now
        self.slot.words[slot.PING] += 1
        self.wake()

    @property
    def answered(self) -> bool:
        """Whether the last ping was answered."""
        return bool(self.slot.words[slot.PONG] == self.slot.words[slot.PING])

    # the kill ladder: ask for the stack, kill the group, read the exit, kill the group again, reap

    def end(self, reason: str, now: float, *, outcome: AttemptOutcome | None = None, dump: bool = True) -> None:
        """Begin to end it. No polite TERM: a stopped process, or C code that holds the GIL, ignores that.

        ``outcome`` is what its attempt ends as; None counts as a crash."""
        if self.ladder is not None:
            return
        seen = self.seen()
        if process.is_stopped(self.pid):
            reason += " (it was stopped, as by SIGSTOP)"
            dump = False
        self.slot.words[slot.CONDEMNED] = seen.job_id
        self.ladder = Ladder(reason, outcome, seen.job_id, seen.attempt, now, -1)
        if dump:
            self._signal(signal.SIGUSR2)
        else:
            self._kill()

    def climb(self, now: float) -> None:
        """Take the next step of the ladder once the dump is there, or late."""
        ladder = self.ladder
        if ladder is None or ladder.killed:
            return
        size = os.fstat(self._dump).st_size
        if (size > 0 and size == ladder.dump_size) or now - ladder.asked_at >= DUMP_SECONDS:
            self._kill()
        ladder.dump_size = size

    def _kill(self) -> None:
        assert self.ladder is not None
        self.ladder.killed = True
        self._signal(signal.SIGKILL)
        self._kill_group()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)

    def _kill_group(self) -> None:
        """Safe only while the child is not reaped: until then its pid, and so its group's id, cannot be reused."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def reap(self) -> Exit | None:
        """Its exit, and the end of its group; None while it lives. The zombie pins the group until the end."""
        if os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return None
        self._kill_group()
        _, status, usage = os.wait4(self.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        name = signal.Signals(-code).name if code < 0 and -code in signal.valid_signals() else None
        if code < 0 and name is None:
            name = f"signal {-code}"
        return Exit(None if code < 0 else code, name, usage.ru_maxrss * 1024, round(usage.ru_utime + usage.ru_stime, 6))

    def show_stack(self) -> None:
        """Have it write its stacks; they appear among its output."""
        self._shown = os.fstat(self._dump).st_size
        self._signal(signal.SIGUSR2)

    # what it printed

    def stack(self) -> str:
        """What faulthandler wrote: the stacks asked for, or those of a fatal signal."""
        return os.pread(self._dump, _STACK_LIMIT, 0).decode(errors="replace")

    def output(self, start: int = 0) -> str:
        """The last it printed, from a byte of its output on."""
        return read_output(self._output, start)

    def new_output(self) -> str:
        """What it printed since the last call, and no more than a bounded part of a flood."""
        if self._shown is not None and (size := os.fstat(self._dump).st_size) > self._shown:
            start, self._shown = self._shown, None
            return os.pread(self._dump, size - start, start).decode(errors="replace")
        size = os.fstat(self._output).st_size
        if size == self._forwarded:
            return ""
        start = max(self._forwarded, size - OUTPUT_LIMIT)
        data = os.pread(self._output, size - start, start)
        whole = size if self.state == State.BYE else start + data.rfind(b"\n") + 1
        if whole <= start:
            whole = start if len(data) < OUTPUT_LIMIT else size
        self._forwarded = whole
        self._drop_until(size - OUTPUT_LIMIT)
        return data[: whole - start].decode(errors="replace")

    def rest_of_output(self) -> str:
        """What is left of its output after its end, a last line without a newline included."""
        size = os.fstat(self._output).st_size
        start = max(self._forwarded, size - OUTPUT_LIMIT)
        self._forwarded = size
        return os.pread(self._output, size - start, start).decode(errors="replace")

    def _drop_until(self, end: int) -> None:
        """Give back the memory of output nobody can ask for any more; the offsets stay as they are."""
        end &= ~0xFFFF
        if end > self._punched:
            _libc.fallocate(self._output, _PUNCH_HOLE, ctypes.c_long(0), ctypes.c_long(end))
            self._punched = end

    def close(self) -> None:
        """Give back every descriptor; the process must have been reaped."""
        with self._guard:
            self._closed = True
            self.slot.close()
            for fd in (self.pidfd, self._wake, self._dump, self._output):
                os.close(fd)


_libc = ctypes.CDLL(None, use_errno=True)
