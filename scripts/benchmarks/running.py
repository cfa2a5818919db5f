"""What the benchmarks share to run real pools: a folder with a queue and a log, and `pool run`."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple, Self, TypeVar

from pool import Queue

SCRIPTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
T = TypeVar("T")

#: Seconds in which whatever a benchmark waits for must have happened.
PATIENCE = 120.0


class Line(NamedTuple):
    """What a handler told: see jobs.tell."""

    word: str
    pid: int
    at: int


class Place:
    """A folder of its own for one measurement: a database, and the log that handlers append to."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.database = os.path.join(folder, "jobs.db")
        self.log = os.path.join(folder, "log")

    def queue(self) -> Queue:
        """The queue; close it, or use it in a ``with``."""
        return Queue(self.database)

    def lines(self) -> list[Line]:
        """What was told so far."""
        try:
            with open(self.log, encoding="ascii") as file:
                parts = [line.split() for line in file if line.endswith("\n")]
        except FileNotFoundError:
            return []
        return [Line(word, int(pid), int(at)) for word, pid, at in parts]

    def wait_for(self, word: str, count: int = 1) -> list[Line]:
        """The lines with a word, once there are so many."""
        return until(lambda: _enough([line for line in self.lines() if line.word == word], count), f"{count} {word}")

    def rows(self, sql: str) -> list[tuple[object, ...]]:
        """Read the database over a connection of its own."""
        with contextlib.closing(sqlite3.connect(self.database, timeout=30)) as connection:
            return connection.execute(sql).fetchall()


def _enough(found: list[Line], count: int) -> list[Line]:
    return found if len(found) >= count else []


@contextlib.contextmanager
def place() -> Iterator[Place]:
    """A temporary folder for a measurement, removed at the end; TMPDIR says where."""
    folder = tempfile.mkdtemp(prefix="pool-bench-")
    try:
        yield Place(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def until(fact: Callable[[], T], what: str, seconds: float = PATIENCE, pause: float = 0.005) -> T:
    """Wait until ``fact()`` is true and return it. Raises TimeoutError that names it."""
    give_up = time.monotonic() + seconds
    while not (value := fact()):
        if time.monotonic() > give_up:
            raise TimeoutError(f"not within {seconds:g} s: {what}")
        time.sleep(pause)
    return value


def environment(log: str) -> dict[str, str]:
    """Ours for a pool: its handlers' log, and where to find them."""
    kept = {name: value for name, value in os.environ.items() if name not in ("POOL_DB", "JOBPOOL_WORKER")}
    paths = [SCRIPTS, *filter(None, [kept.get("PYTHONPATH")])]
    return {**kept, "BENCH_LOG": log, "PYTHONPATH": os.pathsep.join(paths)}


class Pool:
    """A ``pool run`` in a session of its own; within ``with`` it is ready, after it, it is gone."""

    def __init__(self, where: Place, workers: int, *options: str) -> None:
        self.where = where
        self.workers = workers
        self._error = os.path.join(where.folder, "pool.err")
        arguments = [
            "run",
            "--db",
            where.database,
            "--workers",
            str(workers),
            "--handlers",
            "benchmarks.jobs",
            *options,
        ]
        with open(self._error, "ab") as error:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pool", *arguments],
                cwd=where.folder,
                stdin=subprocess.DEVNULL,
                stdout=error,
                stderr=error,
                start_new_session=True,
                env=environment(where.log),
            )
        self.pid = self.process.pid

    def __enter__(self) -> Self:
        try:
            self.ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGQUIT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(10)
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def ready(self) -> None:
        """Wait until all its workers are. Raises RuntimeError, with its log, when it ended."""

        def fact() -> bool:
            if self.process.poll() is not None:
                with open(self._error, encoding="utf-8", errors="replace") as file:
                    raise RuntimeError(f"the pool ended: {file.read()[-2000:]}")
            return len(self.children()) >= self.workers

        until(fact, f"{self.workers} workers ready")

    def children(self) -> list[int]:
        """Pids of the workers that are ready, as their titles tell."""
        with contextlib.suppress(OSError), open(f"/proc/{self.pid}/task/{self.pid}/children", encoding="ascii") as file:
            pids = [int(word) for word in file.read().split()]
            return [pid for pid in pids if re.match(rb"pool: worker \d+ (?!boot)", _title(pid))]
        return []


def gone(pid: int) -> Callable[[], int]:
    """Call the result to wait until a process is gone; it returns when that was, in monotonic nanoseconds."""
    fd = os.pidfd_open(pid)

    def wait() -> int:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        ended = poll.poll(PATIENCE * 1000)
        now = time.monotonic_ns()
        os.close(fd)
        if not ended:
            raise TimeoutError(f"process {pid} is still there")
        return now

    return wait


def _title(pid: int) -> bytes:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read().replace(b"\0", b" ")
    return b""
