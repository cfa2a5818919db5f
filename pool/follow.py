"""What happens in a queue, told as it is committed, by reading alone: no index, no trigger and no write serves this.

Failed attempts and people's changes are rows of their own. Of a completion there is only the job's row, and no index
leads to those that changed last. So each look remembers which jobs may complete next (those that run, and those that
will be claimed next) and the following look asks what became of them, and of the jobs enqueued since.
"""

from __future__ import annotations

import json
import time
from typing import Any, NamedTuple

from pool.clock import now_text, parse_utc, utc_text
from pool.selection import reading
from pool.store import Row, Store

#: How many of those that are claimed next are remembered: more while each look finds most of them gone.
FEWEST, MOST = 1024, 8192
#: Jobs that become due within this many seconds may have run before the next look.
AHEAD_SECONDS = 2.0
#: Among so many jobs before the newest, and before the next to be claimed, the last completions are looked for.
BACK = 1_000


class Seen(NamedTuple):
    """What happened between two looks, in the order in which it did; ``missed``: more jobs may have completed.

    Each event has the keys ``event`` (``ended``, ``changed``, ``enqueued``, ``started``) and ``at``; of a job also
    ``job_id``, ``type``, ``attempt``, ``worker``; one that ended ``outcome``, ``error`` and, where it was seen to run,
    ``seconds``; a change by a person what the record has of it.
    """

    events: list[Row]
    missed: bool


class Follower:
    """Follows one queue from its present state on. ``everything``: also what was enqueued and what started."""

    def __init__(self, store: Store, *, everything: bool = False) -> None:
        self._store = store
        self._everything = everything
        self._most = self._asked = FEWEST
        self._looked_at = now_text()
        with reading(store):
            self._after = store.rows("tail_ends")[0]
            self._last_id = store.value("last_id")
            self._running, self._next = self._coming()
            self._begin = self._last_id, next(iter(self._next), 0)

    def last(self, count: int) -> list[Row]:
        """The last events before it began to follow; completions as far as they are among the newest jobs."""
        store = self._store
        with reading(store):
            found = [_attempt(row) for row in store.rows("tail_attempts_last", limit=count)]
            found += [_change(row) for row in store.rows("tail_audit_last", limit=count)]
            done = {
                row["id"]: row for before in self._begin for row in store.rows("tail_done_last", id=before, back=BACK)
            }
            found += [_done(row, row["updated_at"], None) for row in done.values()]
        return sorted(found, key=_at)[-count:] if count else []

    def look(self) -> Seen:
        """What was committed since the last look."""
        store, since, now = self._store, self._looked_at[:19], now_text()
        with reading(store):
            found = [_attempt(row) for row in store.rows("tail_attempts", after=self._after["attempts"])]
            found += [_change(row) for row in store.rows("tail_audit", after=self._after["audit"])]
            self._after = store.rows("tail_ends")[0]
            new = store.rows("tail_new", after=self._last_id, everything=self._everything, most=MOST)
            self._last_id = store.value("last_id")
            former, coming, asked = self._running, self._next, self._asked
            known = json.dumps([*{job_id for job_id, _ in former} | coming.keys()])
            done = store.rows("tail_done", ids=known) + [row for row in new if row["status"] == "done"]
            self._running, self._next = self._coming()
        if self._everything:
            found += [_enqueued(row) for row in new]
            found += [_started(row) for key, row in self._running.items() if key not in former]
        for row in done:
            # A stranger's completion need not say when it was; then it was now.
            at = row["updated_at"] if str(row["updated_at"]) >= since else now
            found.append(_done(row, at, former.get((row["id"], row["attempts"]))))
        left = len(coming.keys() & self._next)
        gone = len(coming) == asked and not left
        if len(coming) == asked and 2 * left < asked:
            self._most = min(self._most * 2, MOST)
        elif 8 * left > 7 * len(coming):
            self._most = max(self._most // 2, FEWEST)
        self._looked_at = now
        return Seen(sorted(found, key=_at), gone or len(new) == MOST)

    def _coming(self) -> tuple[dict[tuple[int, int], Row], dict[int, None]]:
        running = self._store.rows("tail_running", most=MOST)
        soon = utc_text(time.time() + AHEAD_SECONDS)
        self._asked = self._most
        coming = self._store.rows("tail_next", now=soon, most=self._asked)
        return {(row["id"], row["attempts"]): row for row in running}, {row["id"]: None for row in coming}


def _at(event: Row) -> tuple[str, int]:
    return str(event["at"]), event.get("job_id", 0)


def _attempt(row: Row) -> Row:
    return {"event": "ended", **row}


def _change(row: Row) -> Row:
    return {"event": "changed", **row}


def _job(event: str, row: Row, at: Any, worker: Any) -> Row:
    return {
        "event": event, "at": at, "job_id": row["id"], "type": row["type"], "attempt": row["attempts"], "worker": worker
    }  # fmt: skip


def _done(row: Row, at: Any, ran: Row | None) -> Row:
    seconds = None
    if ran is not None:
        try:
            seconds = round(max(0.0, parse_utc(at) - parse_utc(ran["locked_at"])), 3)
        except (ValueError, TypeError, AttributeError):
            seconds = None  # a stranger's text that is no time
    worker = ran["locked_by"] if ran is not None else None
    return {**_job("ended", row, at, worker), "outcome": "done", "error": None, "seconds": seconds}


def _enqueued(row: Row) -> Row:
    run_at = row["run_at"] if row["attempts"] == 0 else None  # a retry has moved it
    return {**_job("enqueued", row, row["created_at"], None), "attempt": 0, "run_at": run_at}


def _started(row: Row) -> Row:
    return _job("started", row, row["locked_at"], row["locked_by"])
