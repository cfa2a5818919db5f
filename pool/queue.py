"""The queue as applications meet it: enqueue from anywhere, claim and end jobs by hand, mend what failed."""

from __future__ import annotations

import itertools
import logging
import os
import sqlite3
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Self

from pool import doorbell, hooks, jsontext, process
from pool.clock import duration, now_text
from pool.errors import UsageError
from pool.job import Completed, Enqueued, Failed, Job, NewJob
from pool.runner import ERROR_LIMIT, clip, describe, storable
from pool.spec import Durability, Spec, from_item, new_job
from pool.store import Store, enqueue_on
from pool.store.sqlite import DEFAULT_BUSY_SECONDS

log = logging.getLogger("pool")

#: Rows in one transaction of enqueue_many: far past the point where a commit's cost matters, and short enough
#: (some 20 ms) that nobody waits long for the lock.
CHUNK = 5_000
#: Writes between two looks at the size of the write-ahead log.
TEND_EVERY = 256


class Queue:
    """A durable queue in one SQLite file. Safe to share between threads, and to use on both sides of a fork: its file
    is closed before and opened anew after. Do the same with connections of your own (sqlite.org/howtocorrupt.html).

    Args:
        path: the database file, made on first use.
        durable: ``"normal"`` survives the death of any process; ``"full"`` also a power cut, at the price of
            an fsync for each enqueue (sqlite.org/pragma.html#pragma_synchronous).
        busy_seconds: how long a call waits while another process holds the database.

    Raises:
        DatabaseUnusable: see the message; it names the file and, for permissions, the owner.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durable: Durability = "normal",
        busy_seconds: float = DEFAULT_BUSY_SECONDS,
    ) -> None:
        self.path = os.fsdecode(path)
        self._file = self.path if self.path == ":memory:" else os.path.abspath(self.path)
        self._durable = _checked_durability(durable)
        self._busy_seconds = busy_seconds
        self._lock = threading.RLock()
        self._store: Store | None = None
        self._closed = False
        self._pid = 0
        self._writes = 0
        self._opened()
        _queues.add(self)

    def _opened(self) -> Store:
        """The store, opened anew on both sides of a fork: no SQLite handle may cross one."""
        pid = os.getpid()
        if self._closed:
            raise sqlite3.ProgrammingError(f"this queue on {self.path} is closed")
        if self._pid != pid:
            if self._store is not None and self._file != ":memory:":
                # A fork that ran no hooks of Python's. Closing the parent's handle here could harm the parent.
                _abandoned.append(self._store)
                self._store = None
            self._worker = process.identity(pid, process.mint_token())
            self._pid = pid
        if self._store is None:
            self._store = Store.open(self._file, busy_seconds=self._busy_seconds)
            self._doorbell = doorbell.Caller(self._file)
        return self._store

    def _shut(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None
            self._doorbell.close()

    def close(self) -> None:
        """Close the database. The queue cannot be used afterwards."""
        with self._lock:
            self._shut()
            self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # enqueue

    def enqueue(
        self,
        type: str,
        payload: jsontext.Json = None,
        *,
        key: str | None = None,
        priority: int = 0,
        delay: float | timedelta | None = None,
        run_at: datetime | None = None,
        max_attempts: int | None = None,
        timeout: float | timedelta | None = None,
        durable: Durability | None = None,
        connection: sqlite3.Connection | None = None,
    ) -> Enqueued:
        """Store a job.

        Args:
            type: the job type; a handler of that type will run it.
            payload: JSON. An object becomes the handler's keyword arguments, any other value its single argument.
            key: an idempotency key; a second enqueue of it creates nothing and returns the first job's id.
            priority: lower numbers run first, as with nice(1).
            delay: seconds, or a timedelta, until it may run. Not together with ``run_at``.
            run_at: an aware datetime from which it may run.
            max_attempts: tries before it is dead; by default the handler's, where it is known here, or 5.
            timeout: seconds, or a timedelta, one attempt may take; by default the handler's.
            durable: for this job alone, see :class:`Queue`.
            connection: a connection of your own to the same file, in a transaction of your own: the job is
                there when, and only when, you commit.

        Raises:
            PayloadError: what JSON cannot hold; the message names the place.
            UsageError: any other argument that can never work, such as a naive datetime.
            sqlite3.OperationalError: another process held the database for longer than ``busy_seconds``.
        """
        job = new_job(type, payload, key, priority, delay, run_at, max_attempts, timeout)
        if hooks.tracer is not None:
            return hooks.tracer.enqueue(job.type, partial(self._put, job, durable, connection))
        return self._put(job, durable, connection)

    def _put(
        self,
        job: NewJob,
        durable: Durability | None,
        connection: sqlite3.Connection | None,
        trace_context: str | None = None,
    ) -> Enqueued:
        if connection is not None:
            if durable is not None:
                raise UsageError("durable is your connection's own when you pass one: set PRAGMA synchronous on it")
            return enqueue_on(connection, job, trace_context)
        full = (self._durable if durable is None else _checked_durability(durable)) == "full"
        with self._lock:
            store = self._opened()
            ring = self._doorbell.ring if job.run_at <= job.created_at else None
            done = store.enqueue(job, full=full, trace_context=trace_context, ring=ring)
            self._tend(1)
        return done

    def enqueue_many(self, jobs: Iterable[Spec | tuple[Any, ...] | Mapping[str, Any]], *, chunk: int = CHUNK) -> int:
        """Store many jobs, each a :class:`Spec`, its leading fields as a tuple, or its fields as a mapping.

        Takes an iterator of any length, ``chunk`` rows in a transaction. Returns how many were new (a key that
        is there already creates nothing). A bad item raises; the chunks before it are stored, its own is not.
        """
        if chunk < 1:
            raise UsageError(f"chunk takes a whole number from 1, not {chunk!r}")
        rows = (from_item(job) for job in jobs)
        if hooks.tracer is not None:
            return hooks.tracer.enqueue_many(rows, partial(self._put_many, chunk))
        return self._put_many(chunk, rows)

    def _put_many(self, chunk: int, rows: Iterator[NewJob], trace_context: str | None = None) -> int:
        created = 0
        for part in _chunks(rows, chunk):
            with self._lock:
                created += self._opened().enqueue_many(part, trace_context)
                self._doorbell.ring()
                self._tend(TEND_EVERY)
        return created

    def _tend(self, writes: int) -> None:
        self._writes += writes
        if self._writes >= TEND_EVERY:
            self._writes = 0
            self._opened().tend_wal()

    # by hand

    def claim(self, worker: str | None = None) -> Job | None:
        """Lease the best due job, for consumption without a pool; None when nothing is due.

        The lease lasts ten minutes unless :meth:`renew` keeps it fresh; a pool on the same database returns the
        job to the queue after that. ``worker`` must be unique to the life of the process; by default it is.
        """
        with self._lock:
            return self._opened().claim(worker or self._worker, now_text())

    def complete(self, job: Job, result: jsontext.Json = None) -> bool:
        """Mark a claimed job done. False, and nothing changed, when its lease was lost meanwhile."""
        text = None if result is None else jsontext.dump(result, "result")
        with self._lock:
            return _warn_if_lost(job, self._opened().settle(job, Completed(text), now_text()))

    def fail(self, job: Job, error: str | BaseException, *, delay: float | timedelta | None = None) -> bool:
        """Record a failed attempt: retried after ``delay`` (attempts² minutes by default), or dead when used up."""
        line = clip(storable(error), ERROR_LIMIT) if isinstance(error, str) else describe(error)
        outcome = Failed(line, delay=None if delay is None else duration(delay))
        with self._lock:
            return _warn_if_lost(job, self._opened().settle(job, outcome, now_text()))

    def renew(self, job: Job) -> bool:
        """Keep the lease of a long job fresh. False when it was lost: stop working on it."""
        with self._lock:
            return self._opened().renew(job, now_text())

    # mending

    def retry(self, job_id: int) -> bool:
        """Queue a dead, waiting or archived job now, with all its tries. False when there is no such job."""
        with self._lock:
            done = self._opened().requeue(job_id, now_text())
            self._doorbell.ring()
        return done

    def archive(self, job_id: int, reason: str = "", *, by: str | None = None) -> bool:
        """Move a job that is not running out of the queue, into the archive; ``retry`` brings it back."""
        with self._lock:
            return self._opened().archive(job_id, by or self._worker, reason, now_text())

    def cancel(self, job_id: int, *, by: str | None = None) -> str | None:
        """Cancel a job: into the archive at once while it waits; while it runs, its handler is told
        (``ctx.cancelled``) and, after the pool's grace, ended, C code included.

        Returns "cancelled", "requested" (it runs), or None when there is nothing to cancel.
        """
        with self._lock:
            return self._opened().cancel(job_id, by or self._worker, now_text())

    def get(self, job_id: int) -> dict[str, Any] | None:
        """A job's row, from the queue or the archive, with its columns as keys; None when there is none."""
        with self._lock:
            store = self._opened()
            rows = store.rows("job", id=job_id) or store.rows("archived_job", id=job_id)
        return rows[0] if rows else None


#: Stores of a forked child's parent, kept so that nothing closes them.
_abandoned: list[Store] = []
_queues: weakref.WeakSet[Queue] = weakref.WeakSet()
_forking: list[Queue] = []


def _before_fork() -> None:
    """Close every queue's file, with no thread in the middle of a call.

    A child that inherits an open file inherits SQLite's belief that its locks are held, and they are not: once the
    parent closes its own, the log is deleted under the child, whose commits are lost (sqlite.org/howtocorrupt.html,
    section 2.6). A connection of the child's own does not help: it shares what SQLite knows of the file.
    """
    _forking.extend(_queues)
    for queue in _forking:
        queue._lock.acquire()
        if queue._file != ":memory:":
            queue._shut()


def _after_fork_in_parent() -> None:
    while _forking:
        _forking.pop()._lock.release()


def _after_fork_in_child() -> None:
    """The locks may be held by threads that do not exist here."""
    _forking.clear()
    for queue in _queues:
        queue._lock = threading.RLock()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


def _chunks(rows: Iterator[NewJob], size: int) -> Iterator[list[NewJob]]:
    while part := list(itertools.islice(rows, size)):
        yield part


def _checked_durability(value: Durability) -> Durability:
    if value not in ("normal", "full"):
        raise UsageError(f'durable takes "normal" or "full", not {value!r}')
    return value


def _warn_if_lost(job: Job, held: bool) -> bool:
    if not held:
        log.warning("job %d: its lease was lost (%s, attempt %d); nothing changed", job.id, job.worker, job.attempts)
    return held
