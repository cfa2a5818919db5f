"""The store: one verb for each arrow in a job's life, every ending fenced by the lease it ends."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any, Self, cast

from pool.clock import LATEST, parse_utc, utc_text
from pool.errors import UsageError
from pool.job import (
    AttemptOutcome,
    Cancelled,
    Completed,
    Enqueued,
    Evidence,
    Failed,
    Job,
    NewJob,
    Outcome,
    Snoozed,
    retry_delay,
)
from pool.store.sqlite import DEFAULT_BUSY_SECONDS, checkpoint, connect, sync_wal, wal_bytes
from pool.store.statements import for_rows, load_statements
from pool.store.turn import Alone, Turnstile, Write, turnstile_path

Row = dict[str, Any]
#: Size of the write-ahead log at which an application without a pool moves it into the database.
WAL_BYTES = 8 << 20
#: How many jobs of a type may be claimed in one transaction; 1 for those not named.
Groups = Mapping[str, int]

SQL = load_statements()
#: Jobs that one INSERT of many takes; their values stay below 999, all that SQLite could bind before 3.32.
ROWS = 100


class Store:
    """A connection to the queue's database. Not safe to share between threads without a lock, never across a fork.

    Methods take the time as text (``now``), so that nothing here waits for a clock in a test. Those that end an
    attempt return False, and change nothing, when the lease was lost.
    """

    def __init__(self, connection: sqlite3.Connection, path: str, *, in_line: bool = False) -> None:
        self.connection = connection
        self.path = path
        self._turnstile = None if path == ":memory:" else Turnstile(turnstile_path(path), in_line=in_line)
        self._write = Write(connection, self._turnstile)
        self._alone = Alone(self._turnstile)
        self._execute = connection.execute
        self._checkpointer: sqlite3.Connection | None = None

    @classmethod
    def open(
        cls,
        path: str,
        *,
        busy_seconds: float = DEFAULT_BUSY_SECONDS,
        create: bool = True,
        in_line: bool = False,
    ) -> Self:
        """Open a database, making or migrating its schema first. Raises DatabaseUnusable, see sqlite.connect.

        ``in_line``: wait for the turn in the kernel's line instead of asking again and again. Fair among many, and
        slower among few; for the main thread of a worker alone.
        """
        return cls(connect(path, busy_seconds=busy_seconds, create=create), path, in_line=in_line)

    def close(self) -> None:
        """Close the connections and the turnstile."""
        if self._checkpointer is not None:
            self._checkpointer.close()
        self.connection.close()
        if self._turnstile is not None:
            self._turnstile.close()

    def tend_wal(self) -> None:
        """Checkpoint when the write-ahead log has grown since no pool lives that would; a busy database is left be."""
        if wal_bytes(self.path) >= WAL_BYTES:
            with contextlib.suppress(sqlite3.OperationalError):
                self.checkpoint()

    def checkpoint(self) -> tuple[int, int]:
        """See sqlite.checkpoint; in the turn, over a second connection that stays open from the first time on. The log
        goes to the disk before anybody has to wait for it."""
        if self._checkpointer is None:
            self._checkpointer = connect(self.path, busy_seconds=0.0)
        sync_wal(self.path)
        with self._alone:
            return checkpoint(self.connection, self._checkpointer)

    # enqueue

    def enqueue(
        self,
        job: NewJob,
        *,
        full: bool = False,
        trace_context: str | None = None,
        ring: Callable[[], None] | None = None,
    ) -> Enqueued:
        """Store a job, or find the one that has its key.

        Args:
            full: wait until the disk has it (fsync).
            ring: wakes a worker. Called within the turn, before the job is written: the worker wakes meanwhile and
                asks for its turn behind us, so it sees the job. After the write where that is not so, or lasts.
        """
        if full:
            self._execute("PRAGMA synchronous = FULL")
        try:
            with self._alone as in_turn:
                if ring is not None and in_turn and not full:
                    ring()
                    ring = None
                done = enqueue_on(self.connection, job, trace_context)
            if ring is not None:
                ring()
            return done
        finally:
            if full:
                self._execute("PRAGMA synchronous = NORMAL")

    def enqueue_many(self, jobs: list[NewJob], trace_context: str | None = None) -> int:
        """Store many in one transaction; how many were new."""
        one, rows = SQL["enqueue"], cast(list[tuple[Any, ...]], jobs)
        if trace_context is not None:
            one, rows = SQL["enqueue_traced"], [(*job, trace_context) for job in jobs]
        # An INSERT of many rows takes half the time of as many INSERTs: each of those looks up and writes the last id.
        many, rest = for_rows(one, ROWS), len(rows) - len(rows) % ROWS
        parts = [tuple(chain(*rows[at : at + ROWS])) for at in range(0, rest, ROWS)]
        with self._write:
            before = self.connection.total_changes
            for part in parts:
                self._execute(many, part)
            self.connection.executemany(one, rows[rest:])
            return self.connection.total_changes - before

    # claim, run, settle

    def claim(self, worker: str, now: str) -> Job | None:
        """The best due job, now leased to ``worker``; None when nothing is due."""
        return next(iter(self.claim_group(worker, {}, now)), None)

    def claim_group(self, worker: str, groups: Groups, now: str) -> list[Job]:
        """The best due job, and with it as many of its type as ``groups`` allows, in the order they came due."""
        with self._write:
            rows = self._claim_group(worker, groups, now)
        return [Job._make(row) for row in rows]

    def settle(self, job: Job, outcome: Outcome, now: str) -> bool:
        """Write the end of an attempt. False when the lease was lost."""
        with self._write:
            return self._settle(job, outcome, now)

    def settle_group(
        self, ended: list[tuple[Job, Outcome]], left: list[Job], groups: Groups | None, now: str
    ) -> tuple[int, list[Job]]:
        """Write the ends of attempts, give back what was never begun, and claim the next, in one transaction: half
        the commits of doing one after the other, and less for a group.

        Args:
            ended: at least one.
            left: claimed and never begun; their attempt is not counted.
            groups: as for ``claim_group``; None to claim nothing.

        Returns:
            How many had lost their lease, and the jobs claimed.
        """
        # What needs no lock is done before and after it: others wait for the transaction, not for Python.
        plain, others = ([], ended) if len(ended) == 1 else _completed_plainly(ended, now)
        rows: list[tuple[Any, ...]] = []
        with self._write:
            held = 0
            for bound in plain:
                held += self._execute(SQL["complete_group"], bound).rowcount
            for job, outcome in others:
                held += self._settle(job, outcome, now)
            for job in left:
                self._execute(SQL["release"], {**_lease(job), "now": now})
            if groups is not None:
                rows = self._claim_group(ended[0][0].worker, groups, now)
        return len(ended) - held, [Job._make(row) for row in rows]

    def _claim_group(self, worker: str, groups: Groups, now: str) -> list[tuple[Any, ...]]:
        execute = self._execute
        rows = execute(_NEXT_DUE, (worker, now)).fetchall()
        if not rows:
            return []
        job = Job._make(rows[0])
        if groups and not job.crashes and (size := groups.get(job.type, 1)) > 1:
            group = execute(SQL["next_due_group"], (worker, now, job.priority, size, job.type)).fetchall()
            if group:  # a stranger's row of nonsense, such as crashes that are text, joins no group, not even its own
                execute(SQL["claim_group"], (worker, now, _ids([row[0] for row in group])))
                return group
        execute(_CLAIM, (worker, now, job.id))
        return rows

    def renew(self, job: Job, now: str) -> bool:
        """Keep a lease fresh. False when it was lost."""
        with self._write:
            return self._execute(SQL["renew"], {**_lease(job), "now": now}).rowcount > 0

    def _settle(self, job: Job, outcome: Outcome, now: str) -> bool:
        # rowcount is right for an UPDATE without RETURNING; with one it is not (cpython 101117), so read the rows.
        if type(outcome) is Completed:
            end = (job.id, job.worker, job.attempts, outcome.result_text, now)
            return self._execute(_COMPLETE, end).rowcount > 0
        error = outcome.error if not isinstance(outcome, (Completed, Snoozed)) else None
        ended = Evidence(AttemptOutcome.CANCELLED, error or "cancelled", now)
        if self._end_cancelled(job, ended):
            return True
        if isinstance(outcome, Cancelled):
            outcome = Failed(outcome.error)  # a handler that raised JobCancelled of its own accord
        if isinstance(outcome, Snoozed):
            run_at = _later(now, outcome.delay)
            return self._execute(SQL["snooze"], {**_lease(job), "run_at": run_at, "now": now}).rowcount > 0
        assert isinstance(outcome, Failed)
        delay = retry_delay(job.attempts) if outcome.delay is None else outcome.delay
        bound = {
            **_lease(job),
            "permanent": outcome.permanent,
            "run_at": now if outcome.permanent else _later(now, delay),
            "error": outcome.error,
            "now": now,
        }
        if not self._execute(SQL["fail"], bound).fetchall():
            return False
        kind = AttemptOutcome.DISCARDED if outcome.permanent else AttemptOutcome.FAILED
        evidence = Evidence(
            kind,
            outcome.error,
            now,
            started_at=outcome.started_at,
            traceback=outcome.traceback or None,
            output=outcome.output or None,
        )
        self._record(job, evidence)
        return True

    # endings a supervisor writes for a worker that cannot

    def held_by(self, worker: str) -> list[Job]:
        """What a worker holds."""
        return [Job._make(row) for row in self._execute(SQL["held_by"], {"worker": worker}).fetchall()]

    def crash(self, job: Job, evidence: Evidence, *, max_crashes: int) -> str | None:
        """The worker died under the job: queued at once, or dead when its tries or crash budget are used up.

        Returns the new status, None when the lease was lost."""
        bound = {**_lease(job), "max_crashes": max_crashes, "error": evidence.error, "now": evidence.ended_at}
        with self._write:
            return self._end("crash", job, evidence, bound)

    def fail_for(self, job: Job, evidence: Evidence) -> str | None:
        """The supervisor ended the job (timeout, stall, memory): retried by the default delay, or dead."""
        run_at = _later(evidence.ended_at, retry_delay(job.attempts))
        bound = {
            **_lease(job),
            "permanent": False,
            "run_at": run_at,
            "error": evidence.error,
            "now": evidence.ended_at,
        }
        with self._write:
            return self._end("fail", job, evidence, bound)

    def give_back(self, job: Job, evidence: Evidence | None, now: str, *, at_most: int = 2**31) -> str | None:
        """Back to the queue through no fault of the job, the attempt not counted (``at_most`` times)."""
        bound = {**_lease(job), "at_most": at_most, "error": evidence.error if evidence else None, "now": now}
        with self._write:
            return self._end("give_back", job, evidence, bound)

    def expire(self, job: Job, evidence: Evidence, before: str) -> str | None:
        """End a lease that was not renewed since ``before``; the attempt stays counted."""
        bound = {**_lease(job), "before": before, "error": evidence.error, "now": evidence.ended_at}
        with self._write:
            stale = self._execute(SQL["stale_lease"], {**_lease(job), "before": before}).fetchall()
            return self._end("expire", job, evidence, bound) if stale else None

    def _end(self, statement: str, job: Job, evidence: Evidence | None, bound: Row) -> str | None:
        """Within a transaction: how a supervisor ends an attempt, or its cancelling, which goes before."""
        if self._end_cancelled(job, evidence or Evidence(AttemptOutcome.CANCELLED, "cancelled", str(bound["now"]))):
            return "cancelled"
        rows = self._execute(SQL[statement], bound).fetchall()
        if rows and evidence is not None:
            self._record(job, evidence)
        return str(rows[0][0]) if rows else None

    def _end_cancelled(self, job: Job, evidence: Evidence) -> bool:
        """Move a job to the archive when someone asked to cancel it; within the transaction that ends its attempt."""
        bound = {**_lease(job), "error": evidence.error, "now": evidence.ended_at}
        if not self._execute(SQL["cancelled_copy"], bound).fetchall():
            return False
        self._execute(SQL["cancelled_delete"], _lease(job))
        self._record(job, replace(evidence, outcome=AttemptOutcome.CANCELLED))
        return True

    def _record(self, job: Job, evidence: Evidence) -> None:
        bound = {name: getattr(evidence, name) for name in Evidence.__dataclass_fields__}
        self._execute(
            SQL["record_attempt"],
            {
                **bound,
                "outcome": evidence.outcome.value,
                "job_id": job.id,
                "attempt": job.attempts,
                "worker": job.worker or "nobody",  # a stranger may claim without a name
            },
        )

    # mending by hand

    def requeue(self, job_id: int, now: str) -> bool:
        """Dead, waiting or archived: queued and due now, with all its tries. False when there is none such.

        Raises:
            UsageError: an archived job whose key another job has taken meanwhile.
        """
        with self._write:
            try:
                return self.requeue_within(job_id, now)
            except sqlite3.IntegrityError:
                raise UsageError(
                    f"job {job_id} cannot leave the archive: another job has its key or its id now"
                ) from None

    def requeue_within(self, job_id: int, now: str) -> bool:
        """The same within a transaction of the caller's; raises IntegrityError instead, which leaves that as it was."""
        bound = {"id": job_id, "now": now}
        if self._execute(SQL["requeue"], bound).fetchall():
            return True
        if not self._execute(SQL["unarchive_copy"], bound).fetchall():
            return False
        self._execute(SQL["unarchive_delete"], bound)
        return True

    def run_again(self, job_id: int, now: str) -> bool:
        """Queue a finished job anew. False when it is not done."""
        with self._write:
            return bool(self._execute(SQL["run_again"], {"id": job_id, "now": now}).fetchall())

    def archive(self, job_id: int, by: str, reason: str, now: str) -> bool:
        """Move a job that is not running to the archive. False when there is none such."""
        with self._write:
            return self.archive_within(job_id, by, reason, now)

    def archive_within(self, job_id: int, by: str, reason: str, now: str) -> bool:
        """The same within a transaction of the caller's."""
        bound = {"id": job_id, "by": by, "reason": reason, "now": now}
        if not self._execute(SQL["archive_copy"], bound).fetchall():
            return False
        self._execute(SQL["archive_delete"], bound)
        return True

    def cancel(self, job_id: int, by: str, now: str) -> str | None:
        """Cancel a job: "cancelled" when it was waiting and is in the archive now, "requested" when it runs and its
        supervisor will see to it, None when there is nothing to cancel."""
        with self._write:
            return self.cancel_within(job_id, by, now)

    def cancel_within(self, job_id: int, by: str, now: str) -> str | None:
        """The same within a transaction of the caller's."""
        if self._execute(SQL["queued_status"], {"id": job_id}).fetchall():
            self.archive_within(job_id, by, "cancelled", now)
            return "cancelled"
        rows = self._execute(SQL["request_cancel"], {"id": job_id, "by": by, "now": now}).fetchall()
        return "requested" if rows else None

    # reading

    def rows(self, statement: str, **bound: object) -> list[Row]:
        """A named statement's rows as dictionaries, for views."""
        cursor = self._execute(SQL[statement], bound)
        names = [column[0] for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def value(self, statement: str, **bound: object) -> Any:
        """The first column of a named statement's first row, None when there is none."""
        rows = self._execute(SQL[statement], bound).fetchall()
        return rows[0][0] if rows else None

    def change(self, statement: str, **bound: object) -> list[tuple[Any, ...]]:
        """A named statement run in its own write transaction; the rows it returns."""
        with self._write:
            return self._execute(SQL[statement], bound).fetchall()

    def transaction(self) -> Write:
        """``with store.transaction():`` several changes, through ``store.execute``, that happen all or not at all."""
        return self._write

    def turn(self) -> Alone:
        """``with store.turn():`` nobody who takes turns writes meanwhile; the database itself is free."""
        return self._alone

    def execute(self, statement: str, **bound: object) -> list[tuple[Any, ...]]:
        """A named statement within a transaction of the caller's; the rows it returns."""
        return self._execute(SQL[statement], bound).fetchall()

    def data_version(self) -> int:
        """A number that changes when another connection has committed (sqlite.org/pragma.html#pragma_data_version)."""
        return int(self._execute("PRAGMA data_version").fetchall()[0][0])


_NEXT_DUE = SQL["next_due"]
_CLAIM = SQL["claim"]
_COMPLETE = SQL["complete"]


def enqueue_on(connection: sqlite3.Connection, job: NewJob, trace_context: str | None = None) -> Enqueued:
    """Store a job within whatever transaction the connection is in."""
    cursor = connection.cursor()
    cursor.row_factory = None  # the caller's connection may make dictionaries of rows
    statement, row = (
        (SQL["enqueue"], tuple(job)) if trace_context is None else (SQL["enqueue_traced"], (*job, trace_context))
    )
    while True:
        # The id from lastrowid, not RETURNING, which costs half as much again.
        if cursor.execute(statement, row).rowcount and (created := cursor.lastrowid):
            return Enqueued(created, True)
        rows = cursor.execute(SQL["id_of_key"], {"key": job.key}).fetchall()
        if rows:
            return Enqueued(rows[0][0], False)


def _completed_plainly(
    ended: list[tuple[Job, Outcome]], now: str
) -> tuple[list[tuple[str, str, int, str]], list[tuple[Job, Outcome]]]:
    """Jobs that completed without a result, as the values of ``complete_group`` for each worker and attempt; and the
    others."""
    plain: dict[tuple[str, int], list[int]] = {}
    others = []
    for each in ended:
        job, outcome = each
        if type(outcome) is Completed and outcome.result_text is None:
            plain.setdefault((job.worker, job.attempts), []).append(job.id)
        else:
            others.append(each)
    return [(_ids(ids), worker, attempts, now) for (worker, attempts), ids in plain.items()], others


def _ids(ids: list[int]) -> str:
    """Ids as one value that a statement can bind: a JSON array."""
    return str(ids)


def _lease(job: Job) -> Row:
    return {"id": job.id, "worker": job.worker, "attempts": job.attempts}


def _later(now: str, seconds: float) -> str:
    return utc_text(min(parse_utc(now) + seconds, LATEST))


__all__ = ["SQL", "Evidence", "Row", "Store", "enqueue_on"]
