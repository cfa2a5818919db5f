"""The steps by which jobs that ended long ago are deleted, and the file shrinks; how long is pool.policy's."""

from __future__ import annotations

import collections
import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from pool.clock import parse_utc, utc_text
from pool.policy import KEEP_ALL, OUTCOMES, Policy
from pool.store import SQL, Row, Store

__all__ = ["KEEP_ALL", "Place", "Policy", "Swept", "delete", "expired", "run", "shrink", "sweep"]

#: Rows deleted in one transaction at most, and seconds after which it ends even so: a claim waits no longer.
ROWS, HOLD_SECONDS = 500, 0.005
#: Jobs looked at in one step at most, and seconds for it: rows with large payloads take longer to read.
LOOKS, LOOK_SECONDS = 5_000, 0.01
#: Free pages are handed back to the file system while they are more than this share of the file, and this many:
#: below it they are used again anyhow.
FREE_SHARE, FREE_PAGES = 0.25, 4_096
#: Seconds of one such transaction, which is run only while no job is due.
SHRINK_SECONDS = 0.005


class Place(NamedTuple):
    """Where the next step goes on: after this job, and after this archived one."""

    job: int = 0
    archived_at: str = ""
    archived: int = 0


class Swept(NamedTuple):
    """What a step did, where the next one goes on, and whether there is more to do than can wait for the next round."""

    jobs: int
    archived: int
    pages: int
    place: Place
    more: bool


_START = Place()
#: Told within each transaction that deletes how many jobs it has deleted.
Record = Callable[[int], None]


def _no_record(jobs: int) -> None:
    """A pool's own retention is on no record."""


def sweep(store: Store, policy: Policy, now: str, place: Place = _START) -> Swept:
    """One bounded step: look at some thousands of jobs, delete at most ROWS rows of expired ones, shrink the file.

    Call it every few seconds with the place the last one returned, and again after some 50 ms while it says ``more``.
    Several processes may sweep one database: each deletion asks anew, in its transaction, whether the job is expired.

    Args:
        now: UTC text.
        place: where the last step ended; the beginning at first.
    """
    jobs, after, more_jobs = _sweep_jobs(store, policy, now, place.job)
    archived, last, more_archived = _sweep_archive(store, policy, now, place)
    pages = 0 if store.value("due_count", now=now, most=1) else shrink(store)
    return Swept(jobs, archived, pages, Place(after, *last), more_jobs or more_archived or pages > 0)


def run(store: Store, policy: Policy, now: str, progress: Callable[[int], None], record: Record = _no_record) -> int:
    """Delete all that is expired now, in short transactions with pauses; how many jobs.

    Args:
        now: UTC text.
        progress: told after each transaction how many so far.
        record: writes the number of each into the record.
    """
    total, after, more = 0, 0, True
    while after or more:
        began = time.monotonic()
        jobs, after, more = _sweep_jobs(store, policy, now, after, record)
        total += jobs
        progress(total)
        store.tend_wal()
        time.sleep(time.monotonic() - began)
    last, more = ("", 0), True
    while last[0] or more:
        began = time.monotonic()
        jobs, last, more = _sweep_archive(store, policy, now, Place(0, *last), record)
        total += jobs
        progress(total)
        store.tend_wal()
        time.sleep(time.monotonic() - began)
    return total


def expired(store: Store, policy: Policy, now: str) -> collections.Counter[tuple[str, str]]:
    """How many jobs of each type and outcome are expired now; walks the whole table."""
    at = parse_utc(now)
    found: collections.Counter[tuple[str, str]] = collections.Counter()
    for _, type, status, _, updated_at in store.connection.execute(SQL["walk_jobs"], {"after": 0}):
        keep = policy.keep(_text(type), status) if status in OUTCOMES else None
        if keep is not None and updated_at < utc_text(at - keep).encode():
            found[_text(type), status] += 1
    for _, type, archived_at in store.connection.execute(SQL["walk_archive"], {"before": now, "at": "", "after": 0}):
        keep = policy.keep(_text(type), "archive")
        if keep is not None and archived_at < utc_text(at - keep):
            found[_text(type), "archive"] += 1
    return found


def shrink(store: Store, seconds: float = SHRINK_SECONDS) -> int:
    """Hand free pages at the end of the file back to the file system when there are many; how many were.

    Bounded by time, as each costs up to half a millisecond: SQLite searches its list of free pages for it. Nothing
    for a database that was not made by jobpool and has no auto_vacuum (sqlite.org/pragma.html#pragma_auto_vacuum).
    """
    free = int(store.value("free_pages"))
    if free < FREE_PAGES or free < FREE_SHARE * int(store.value("all_pages")) or int(store.value("vacuum_mode")) != 2:
        return 0
    freed, give_up = 0, time.monotonic() + seconds
    with store.transaction():
        # One by one: the sqlite3 module ends a statement without columns after its first step, which frees one page.
        while freed < free and time.monotonic() < give_up:
            store.execute("free_page")
            freed += 1
    return freed


class Acted(NamedTuple):
    """Which jobs a transaction changed, and which of those it was given are left for the next one."""

    done: list[int]
    left: list[int]


def delete(store: Store, ids: list[int], *, archived: bool) -> Acted:
    """Delete jobs and the evidence of their attempts within a transaction, at most ROWS rows or for HOLD_SECONDS.

    Only done and dead jobs go, or with ``archived`` those in the archive.
    """
    statement = "purge_archived" if archived else "purge_job"
    if not archived:
        ids = sorted(_ids(store, "ended_jobs", ids))
    began, rows = time.monotonic(), ROWS
    done: list[int] = []
    for index, job_id in enumerate(ids):
        if done and (rows <= 0 or time.monotonic() - began > HOLD_SECONDS):
            return Acted(done, ids[index:])
        before = store.connection.total_changes
        store.execute("purge_attempts", id=job_id, most=rows)
        rows -= store.connection.total_changes - before
        if rows <= 0:
            return Acted(done, ids[index:])
        store.execute(statement, id=job_id)
        done.append(job_id)
        rows -= 1
    return Acted(done, [])


def _sweep_jobs(
    store: Store, policy: Policy, now: str, after: int, record: Record = _no_record
) -> tuple[int, int, bool]:
    """Walk the jobs by id, as there is no index of ended ones by their end. Jobs are created in the order of their
    ids, so where all seen are younger than any that may go, the walk begins anew."""
    shortest = policy.shortest("done", "dead")
    if shortest is None:
        return 0, 0, False
    at = parse_utc(now)
    youngest = utc_text(at - shortest).encode()
    rows, whole = _look(store, "walk_jobs", {"after": after})
    expired: dict[tuple[str, str], list[int]] = {}
    found, old = 0, False
    for job_id, type, status, created_at, updated_at in rows:
        after = job_id
        old |= created_at < youngest
        keep = policy.keep(_text(type), status) if status in OUTCOMES else None
        if keep is not None and updated_at < (before := utc_text(at - keep)).encode():
            expired.setdefault((status, before), []).append(job_id)
            found += 1
            if found == ROWS:
                whole = False
                break
    if not found:
        return 0, 0 if whole or not old else after, False

    def still() -> list[int]:
        groups = expired.items()
        return sorted(
            job_id
            for (status, before), ids in groups
            for job_id in _ids(store, "still_expired", ids, status=status, before=before)
        )

    with store.transaction():
        done, left = delete(store, still(), archived=False)
        if done:
            record(len(done))
    return len(done), left[0] - 1 if left else 0 if whole else after, bool(left) or not whole


def _sweep_archive(
    store: Store, policy: Policy, now: str, place: Place, record: Record = _no_record
) -> tuple[int, tuple[str, int], bool]:
    """Walk the archived jobs in the order in which they came there."""
    shortest = policy.shortest("archive")
    if shortest is None:
        return 0, ("", 0), False
    at = parse_utc(now)
    bound = {"before": utc_text(at - shortest), "at": place.archived_at, "after": place.archived}
    rows, whole = _look(store, "walk_archive", bound)
    expired: list[int] = []
    last = ("", 0)
    for job_id, type, archived_at in rows:
        keep = policy.keep(_text(type), "archive")
        if keep is not None and archived_at < utc_text(at - keep):
            if len(expired) == ROWS:
                whole = False
                break
            expired.append(job_id)
        last = (archived_at, job_id)
    if not expired:
        return 0, ("", 0) if whole else last, False
    with store.transaction():
        done, left = delete(store, _ids(store, "still_archived", expired, before=bound["before"]), archived=True)
        if done:
            record(len(done))
    if left:
        return len(done), (place.archived_at, place.archived), True
    return len(done), ("", 0) if whole else last, not whole


def _look(store: Store, statement: str, bound: Row) -> tuple[list[tuple[Any, ...]], bool]:
    """Rows until there are enough or it took long enough, and whether these were all.

    The cursor is closed before anything is written: a transaction that began with an old read fails at once."""
    rows: list[tuple[Any, ...]] = []
    give_up = time.monotonic() + LOOK_SECONDS
    cursor = store.connection.execute(SQL[statement], bound)
    try:
        for row in cursor:
            if len(rows) == LOOKS or (rows and time.monotonic() > give_up):
                return rows, False
            rows.append(row)
    finally:
        cursor.close()
    return rows, True


def _text(stored: bytes) -> str:
    """A stranger's type may be anything; it must not stop the walk."""
    return stored.decode("utf-8", "replace")


def _ids(store: Store, statement: str, ids: list[int], **bound: object) -> list[int]:
    return [row[0] for row in store.execute(statement, ids=json.dumps(ids), **bound)]
