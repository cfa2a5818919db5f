"""Putting a backup in a database's place: checked first, whole or not at all, and with the old file kept aside."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass

from pool import holders, process
from pool.backup import Partial, check_space, compact, copy, count, size_of, uri, verify
from pool.clock import parse_utc
from pool.errors import DatabaseUnusable, UsageError
from pool.job import AttemptOutcome
from pool.store import SQL, Row
from pool.store.sqlite import connect, plain_connect
from pool.store.turn import Write

#: A pool that this kernel cannot see, in another container or on another host, counts as alive for so many seconds
#: after it last reported, which it does every few.
UNSEEN_SECONDS = 600.0
#: Ids to skip where nobody can say which were given out after the backup was taken: none may be used twice.
SKIPPED_IDS = 1_000_000


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore did: the database, where the one before it is now, how many running jobs were returned to the
    queue, and the jobs by status."""

    path: str
    kept: str | None
    returned: int
    seconds: float
    jobs: dict[str, int]


def restore(source: str, database: str, by: str, now: str, *, force: bool = False) -> Restored:
    """Put a backup in the place of a database.

    Jobs that ran when the backup was taken are returned to the queue with the attempt given back, for whoever held
    them belongs to another life of the file. As always, a job runs at least once: those that ended after the backup
    was taken run again. What was enqueued after it is not in it.

    Args:
        source: the backup; it is only read.
        database: the file to put it at.
        by: who, for the record.
        now: UTC text.
        force: whether an existing database is replaced; it is kept under another name.

    Raises:
        UsageError: the database exists and ``force`` is false, or is in use by a living pool or any other process.
        DatabaseUnusable: the backup is damaged, not jobpool's, or of a newer jobpool.
    """
    began = time.monotonic()
    database = os.path.realpath(database)  # a link stays one; its file is replaced
    there = os.path.lexists(database)
    if there and os.path.exists(source) and os.path.samefile(source, database):
        raise UsageError(f"{source} is the database itself; name a backup of it")
    if there and not force:
        raise UsageError(f"{database} exists; add --force to replace it (it is kept aside), or name another with --db")
    if there:
        refuse_in_use(database, now)
    with Partial(database) as partial:
        with open_to_read(source) as backup:
            verify(backup, source)
            check_space(database, size_of(backup))
            copy(backup, partial.path)
        returned, jobs = _make_ready(partial.path, source, by, now, _last_id(database) if there else None)
        if there:
            refuse_in_use(database, now)
        with _alone(database) if there else contextlib.nullcontext():
            kept, gap = _set_aside(database, now)
            partial.publish(like=os.stat(kept or source), replace=not gap)
    return Restored(database, kept, returned, round(time.monotonic() - began, 3), jobs)


@contextlib.contextmanager
def open_to_read(path: str) -> Iterator[sqlite3.Connection]:
    """A connection that changes nothing, on disk or beside it, not even a log file.

    Where no log is beside the file, nobody has it open, and it is read as one that cannot change
    (sqlite.org/uri.html, "immutable"): a read-only connection in WAL mode would leave a -wal and a -shm behind.

    Raises:
        DatabaseUnusable: no such file, or SQLite cannot open it.
    """
    if not os.path.isfile(path):
        raise DatabaseUnusable(f"{path}: no such file")
    beside = (os.path.realpath(path) + suffix for suffix in ("-wal", "-journal"))
    options = "mode=ro" if any(map(os.path.exists, beside)) else "mode=ro&immutable=1"
    try:
        connection = plain_connect(uri(path, options), uri=True, isolation_level=None, timeout=30)
        with contextlib.closing(connection):
            connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
            yield connection
    except sqlite3.Error as error:
        raise DatabaseUnusable(f"{path} cannot be read: {error}") from error


def refuse_in_use(database: str, now: str) -> None:
    """Raises UsageError naming the pool, worker or other process that has the database open, or may have."""
    if holders.is_open_here(database):
        raise UsageError(f"this process has {database} open itself; close it first")
    for each in holders.holders(database):
        raise UsageError(f"{each} has {database} open; stop it first")
    if holders.is_open_elsewhere(database):
        raise UsageError(f"a process outside this container has {database} open; stop it first")
    try:
        with open_to_read(database) as old:
            pools, workers = (_rows(old, name) for name in ("pools", "workers"))
    except DatabaseUnusable:
        return  # damaged, which may be why a backup is restored; the kernel's locks have said that nobody has it
    for row in pools:
        _refuse_living(database, row, f"a pool on {row['host']}, pid {row['pid']},", row["seen_at"], now)
    for row in workers:
        _refuse_living(database, row, f"worker {row['identity']}", None, now)


def _refuse_living(database: str, row: Row, what: str, seen_at: str | None, now: str) -> None:
    other, me = process.of_row(row), process.this_process()
    if process.is_provably_dead(other):
        return
    if (other.boot_id, other.pid_namespace) == (me.boot_id, me.pid_namespace):
        raise UsageError(f"{what} works on {database}; stop it first")
    if seen_at is not None and parse_utc(now) - parse_utc(seen_at) < UNSEEN_SECONDS:
        raise UsageError(f"{what} reported to {database} at {seen_at}; stop it, or wait until it is long silent")


def _rows(connection: sqlite3.Connection, statement: str) -> list[Row]:
    cursor = connection.execute(SQL[statement])
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def _make_ready(path: str, source: str, by: str, now: str, last_id: int | None) -> tuple[int, dict[str, int]]:
    """Bring the copy up to date and free it of the processes of its former life: (running jobs returned, counts)."""
    with contextlib.closing(connect(path, create=False)) as made:
        execute = made.execute
        with Write(made, None):
            error = "it ran when the backup was taken that is restored now"
            bound = {"now": now, "error": error, "outcome": AttemptOutcome.INTERRUPTED.value}
            execute(SQL["restored_attempts"], bound)
            returned = len(execute(SQL["restore_running"], {"now": now}).fetchall())
            execute(SQL["forget_pools"])
            execute(SQL["forget_workers"])
            own = int(execute(SQL["last_id"]).fetchall()[0][0])
            next_id = {"id": own + SKIPPED_IDS if last_id is None else max(own, last_id)}
            execute(SQL["begin_last_id"], next_id)
            execute(SQL["raise_last_id"], next_id)
            line = {"at": now, "by": by, "action": "restore", "jobs": returned, "filter": "{}", "detail": source}
            execute(SQL["audit"], line).fetchall()
        faults = execute("PRAGMA quick_check(1)").fetchall()
        if faults != [("ok",)]:
            raise DatabaseUnusable(f"{path}: the copy is damaged ({faults[0][0]}); check the disk and try again")
        jobs = count(made, path)
        execute("PRAGMA journal_mode = DELETE")
    return returned, jobs


def _last_id(database: str) -> int | None:
    """The highest id the old database gave out; None when it cannot say."""
    try:
        with open_to_read(database) as old:
            return int(old.execute(SQL["last_id"]).fetchall()[0][0])
    except DatabaseUnusable:
        return None


@contextlib.contextmanager
def _alone(database: str) -> Iterator[None]:
    """Hold the old database so that nobody else can open it meanwhile, its log moved into it and removed.

    A log left behind would be played into the new file. Where the old one is too damaged for that, it is set aside
    together with its log."""
    connection = plain_connect(uri(database, "mode=rw"), uri=True, isolation_level=None, timeout=2)
    with contextlib.closing(connection):
        try:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            connection.execute("PRAGMA journal_mode = DELETE").fetchall()
            connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.DatabaseError as error:
            if "locked" in str(error):
                raise UsageError(f"another process has just opened {database}; stop it first") from None
        yield


def _set_aside(database: str, now: str) -> tuple[str | None, bool]:
    """Give the old file a second name, and move what is left of its log there, too: (that name, whether the old one
    had to be given up for it, as some file systems know no hard links)."""
    base = f"{database}.before-restore-{compact(now)}"
    kept = next(name for number in range(1, 1000) if not _taken(name := base if number == 1 else f"{base}-{number}"))
    there, gap = os.path.lexists(database), True
    if there:
        try:
            os.link(database, kept)
            gap = False
        except OSError:
            os.rename(database, kept)
    if os.path.exists(database + "-wal"):
        os.rename(database + "-wal", kept + "-wal")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(database + "-shm")
    return (kept if there else None), gap


def _taken(path: str) -> bool:
    return os.path.lexists(path) or os.path.lexists(path + "-wal")
