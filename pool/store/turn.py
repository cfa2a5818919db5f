"""The write transaction every change goes through, and the turn that writers take for it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sqlite3
import time
from types import FrameType, TracebackType

#: How long a writer waits for its turn before it goes on without: the turn is for fairness, not for correctness.
TURN_SECONDS = 2.0
#: Times a writer asks in a row, a microsecond each: longer than a group of 32 takes (some 200), so as to be there when
#: it ends; asleep just then, it leaves the database idle. Fewer before it waits in the kernel's line: there are more
#: writers than processors, and asking takes those from the others.
TRIES, TRIES_BEFORE_LINE = 300, 20


def turnstile_path(path: str) -> str:
    """Where the writers of a database take turns: a file beside it, whatever links lead there, as its log is."""
    return os.path.realpath(path) + "-turn"


class Turnstile:
    """A kernel file lock around each write transaction, because SQLite's own waiting is unfair.

    SQLite's busy handler sleeps up to 100 ms between tries, so one that waits long loses to newcomers for
    seconds; flock(2) lets waiters in at a finer grain and is released by the kernel when its holder dies.
    """

    def __init__(self, path: str, *, in_line: bool = False) -> None:
        self._fd = -1
        self._in_line = in_line
        with contextlib.suppress(OSError):
            # Reading is enough for flock(2), so a file made by another user serves too.
            self._fd = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)

    def enter(self) -> bool:
        """Wait for the turn; False when it did not come in time (or there is no lock file) and none is held."""
        fd = self._fd
        if fd < 0:
            return False
        flock, block = fcntl.flock, fcntl.LOCK_EX | fcntl.LOCK_NB
        give_up = 0.0
        while True:
            for _ in range(TRIES_BEFORE_LINE if self._in_line else TRIES):
                try:
                    flock(fd, block)
                    return True
                except BlockingIOError:
                    os.sched_yield()
                except OSError:
                    return False
            if self._in_line:
                return _wait_in_line(fd)
            now = time.monotonic()
            give_up = give_up or now + TURN_SECONDS
            if now >= give_up:
                return False
            time.sleep(0.0002)

    def leave(self) -> None:
        """Let the next one in."""
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the lock file; it stays where it is, since removing it would split those who wait."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class _Late(BaseException):
    """The turn did not come in time."""


def _late(signum: int, frame: FrameType | None) -> None:
    raise _Late


def _wait_in_line(fd: int) -> bool:
    """Block in the kernel's line, first come, first served, at most TURN_SECONDS; for a main thread alone, as it needs
    SIGALRM to end the wait. Whatever a job does with that signal and its timer is put back as it was."""
    former = signal.signal(signal.SIGALRM, _late)
    left, every = signal.setitimer(signal.ITIMER_REAL, TURN_SECONDS)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        return True
    except (_Late, OSError):
        fcntl.flock(fd, fcntl.LOCK_UN)  # it may have come in the very moment of the signal
        return False
    finally:
        signal.setitimer(signal.ITIMER_REAL, left, every)
        signal.signal(signal.SIGALRM, former)


class Alone:
    """``with Alone(...)``: a single statement in the turn, as its own transaction (autocommit)."""

    __slots__ = ("_turn", "_turnstile")

    def __init__(self, turnstile: Turnstile | None) -> None:
        self._turnstile = turnstile
        self._turn = False

    def __enter__(self) -> bool:
        """Whether it is our turn, so that whoever takes turns sees what we write, or comes before it."""
        if self._turnstile is not None:
            self._turn = self._turnstile.enter()
        return self._turn

    def __exit__(self, *_: object) -> None:
        if self._turn and self._turnstile is not None:
            self._turn = False
            self._turnstile.leave()


class Write:
    """``with Write(...)``: one BEGIN IMMEDIATE … COMMIT within the turn; rolled back when the body raises.

    Never a deferred BEGIN: one that reads and then writes after another's commit fails at once, whatever the
    busy timeout (sqlite.org/isolation.html, SQLITE_BUSY_SNAPSHOT).
    """

    __slots__ = ("_connection", "_turn", "_turnstile")

    def __init__(self, connection: sqlite3.Connection, turnstile: Turnstile | None) -> None:
        self._connection = connection
        self._turnstile = turnstile
        self._turn = False

    def __enter__(self) -> None:
        if self._turnstile is not None:
            self._turn = self._turnstile.enter()
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        except BaseException:
            self._leave()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        connection = self._connection
        try:
            if kind is None:
                connection.execute("COMMIT")
        finally:
            # SQLITE_FULL and some I/O errors have rolled back already; a second ROLLBACK would hide their cause.
            if connection.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
            self._leave()

    def _leave(self) -> None:
        if self._turn and self._turnstile is not None:
            self._turn = False
            self._turnstile.leave()
