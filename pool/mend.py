"""Changes a person asks for: many jobs at once, in short transactions with pauses, each change on record."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from pool import audit, retention, selection
from pool.doorbell import Caller
from pool.errors import UsageError
from pool.selection import Selection
from pool.store import Store

#: Jobs in one transaction at most, and seconds after which it ends even so; the pause after it is as long.
BATCH, HOLD_SECONDS = 500, 0.02

#: Told after each transaction how many jobs are changed so far.
Progress = Callable[[int], None]


class Order(NamedTuple):
    """Which jobs a person wants changed, who it is, when (UTC text), and why."""

    chosen: Selection
    by: str
    now: str
    reason: str = ""


class Changed(NamedTuple):
    """How many jobs were changed and which, where that is known; which were not although they were named or chosen;
    and which of those cannot leave the archive because another job has their key now."""

    jobs: int
    ids: list[int]
    left: list[int]
    taken: list[int]


#: In which states jobs outside the archive can be changed so.
CHANGEABLE = {"retry": ("queued", "dead"), "archive": ("queued", "done", "dead"), "purge": ("done", "dead")}


def retry(store: Store, order: Order, progress: Progress | None = None) -> Changed:
    """Queue dead, waiting or archived jobs now, with all their tries.

    Left are those that run or are done, and archived ones whose key another job has taken meanwhile.

    Raises:
        UsageError: a selection of done or running jobs.
    """
    if order.chosen.status in ("done", "running"):
        raise UsageError(f"jobs that are {order.chosen.status} cannot be retried: choose queued, dead or archived ones")
    taken: list[int] = []

    def one(job_id: int) -> bool:
        try:
            return store.requeue_within(job_id, order.now)
        except sqlite3.IntegrityError:
            taken.append(job_id)  # its key, or its id, is another job's now; only this statement is undone
            return False

    changed = _Change(store, order, "retry", progress).run(places(order.chosen), _one_by_one(one))
    bell = Caller(store.path)
    bell.ring()
    bell.close()
    return changed._replace(taken=taken)


def archive(store: Store, order: Order, progress: Progress | None = None) -> Changed:
    """Move jobs that are not running to the archive; ``retry`` brings them back.

    Raises:
        UsageError: a selection of running or archived jobs.
    """
    if order.chosen.status in ("running", "archive"):
        raise UsageError(f"jobs of status {order.chosen.status} cannot be archived; pool cancel ends running ones")

    def one(job_id: int) -> bool:
        return store.archive_within(job_id, order.by, order.reason, order.now)

    return _Change(store, order, "archive", progress).run([order.chosen], _one_by_one(one))


def cancel(store: Store, ids: Sequence[int], by: str, now: str) -> dict[int, str | None]:
    """Cancel jobs; what became of each, as Store.cancel says it. Each transaction has its own line in the record."""
    answers: dict[int, str | None] = {}
    left = list(ids)
    while left:
        began = time.monotonic()
        seen: list[int] = []
        with store.transaction():
            while left and time.monotonic() - began < HOLD_SECONDS and len(seen) < BATCH:
                seen.append(left.pop(0))
                answers[seen[-1]] = store.cancel_within(seen[-1], by, now)
            if cancelled := [job_id for job_id in seen if answers[job_id]]:
                audit.record(store, now, by, "cancel", len(cancelled), {"ids": cancelled})
        if left:
            time.sleep(time.monotonic() - began)
    return answers


def purge(store: Store, order: Order, progress: Progress | None = None) -> Changed:
    """Delete done, dead or archived jobs and the evidence of their attempts, for good.

    Raises:
        UsageError: see check_purge.
    """
    check_purge(order.chosen)

    def act(ids: list[int], of: Selection) -> retention.Acted:
        return retention.delete(store, ids, archived=of.status == "archive")

    return _Change(store, order, "purge", progress).run(places(order.chosen), act)


def purge_expired(store: Store, order: Order, policy: retention.Policy, progress: Progress) -> Changed:
    """Delete all that a retention policy lets go; the order says who wants it and, as its reason, the rules."""
    with store.transaction():
        line = audit.record(store, order.now, order.by, "purge", 0, detail=order.reason)
    counted = retention.run(store, policy, order.now, progress, lambda jobs: audit.add(store, line, jobs))
    return Changed(counted, [], [], [])


def check_purge(chosen: Selection) -> None:
    """Raises UsageError for jobs that have not ended, and for a selection so wide that it must be a slip."""
    if not chosen.ids and chosen.status not in ("done", "dead", "archive"):
        raise UsageError("say which with --status done, dead or archive: only jobs that have ended can be purged")
    if not set(chosen.facts) - {"status"}:
        raise UsageError("say more than the status, such as --older 30d; --older 0s means all of them")


def places(chosen: Selection) -> list[Selection]:
    """Where to look: jobs named by their ids may be in the queue or in the archive."""
    return [chosen, replace(chosen, status="archive")] if chosen.ids and chosen.status is None else [chosen]


#: Changes the jobs with these ids within a transaction, until time is up: what came of it.
_Act = Callable[[list[int], Selection], retention.Acted]


def _one_by_one(one: Callable[[int], bool]) -> _Act:
    def act(ids: list[int], of: Selection) -> retention.Acted:
        began = time.monotonic()
        done: list[int] = []
        for index, job_id in enumerate(ids):
            if index and time.monotonic() - began > HOLD_SECONDS:
                return retention.Acted(done, ids[index:])
            if one(job_id):
                done.append(job_id)
        return retention.Acted(done, [])

    return act


class _Change:
    """A change that takes several transactions, and its line of the record, which each of them counts up."""

    def __init__(self, store: Store, order: Order, action: str, progress: Progress | None) -> None:
        self._store = store
        self._order = order
        self._action = action
        self._progress = progress
        self._line = 0
        self._done: list[int] = []
        self._seen: set[int] = set()
        self._refused: set[int] = set()

    def run(self, chosen: list[Selection], act: _Act) -> Changed:
        order = self._order
        self._refused |= set(order.chosen.ids)
        for each in chosen:
            for found in selection.walk(self._store, each, order.now, BATCH):
                # A retried job that waited is due now, and so comes again where the walk goes by when they are due.
                ids = [job_id for job_id in found if job_id not in self._seen]
                self._seen.update(ids)
                self._refused.update(ids)
                while ids:
                    ids = self._step(each, ids, act)
        return Changed(len(self._done), self._done, sorted(self._refused), [])

    def _step(self, of: Selection, ids: list[int], act: _Act) -> list[int]:
        """One transaction, in which the jobs are asked for anew: somebody else may have changed them meanwhile."""
        began = time.monotonic()
        with self._store.transaction():
            done, left = act(selection.still(self._store, of, self._order.now, ids), of)
            self._count(len(done))
        self._refused -= set(done)
        self._done += done
        if self._progress is not None:
            self._progress(len(self._done))
        self._store.tend_wal()
        time.sleep(time.monotonic() - began)
        return left

    def _count(self, jobs: int) -> None:
        order = self._order
        if self._line:
            audit.add(self._store, self._line, jobs)
        elif jobs:
            self._line = audit.record(
                self._store, order.now, order.by, self._action, jobs, order.chosen.facts, order.reason
            )
