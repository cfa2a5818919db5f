"""The queue's health in numbers, for people, programs and metrics alike."""

from __future__ import annotations

import json
import time
from typing import Any, NamedTuple

from pool.clock import parse_utc, utc_text
from pool.process import is_provably_dead, of_row
from pool.selection import reading
from pool.store import Store

#: Below so many due jobs they are counted themselves, from there on those that are not due yet.
FEW_DUE = 10_000
#: Entries that a glance counts at most, at some 0.1 µs each.
GLANCE = 100_000


def status(store: Store, at: float | None = None) -> dict[str, Any]:
    """The queue's state as JSON-able values.

    Keys: ``queued`` (waiting, future ones included), ``running``, ``done``, ``dead``; ``oldest_run_at`` and its
    age ``oldest_age_s`` (0 when it is in the future; None when nothing waits); ``last_errors``; ``queue_depth``
    (due now); ``in_progress_count``; ``retry_rate`` (share of the attempts ended by the pools at work that
    failed); ``db_write_latency_p99_ms`` (waiting for the lock included, as the workers measured it); ``workers``;
    ``pools``.
    """
    at = time.time() if at is None else at
    with reading(store):
        return _status(store, at, _Counts(*(store.value(f"count_{name}") for name in ("queued", "dead"))))


def glance(store: Store, at: float) -> tuple[dict[str, Any], dict[str, str]]:
    """The same in little time however long the queue is, for it counts no further than GLANCE entries; and which of
    its counts are bounds therefore: ``{"queued": "≥", "done": "≤"}``, empty when all are exact."""
    with reading(store):
        dead = store.value("count_dead_to", most=GLANCE)
        queued = store.value("count_queued_to", most=GLANCE - dead)
        counts = _Counts(queued, dead, more_dead=dead == GLANCE, more_queued=queued == GLANCE - dead)
        found = _status(store, at, counts)
    signs = {}
    if counts.more_dead:
        signs["dead"] = "≥"
    if counts.more_queued:
        signs["queued"] = "≥"
        if found["queue_depth"] >= FEW_DUE:
            signs["queue_depth"] = "≥"
    if signs:
        signs["done"] = "≤"
    return found, signs


class _Counts(NamedTuple):
    """How many wait and are dead, and whether there may be more than that."""

    queued: int
    dead: int
    more_queued: bool = False
    more_dead: bool = False


def _status(store: Store, at: float, counts: _Counts) -> dict[str, Any]:
    dead, running = counts.dead, store.value("count_running")
    due = store.value("due_count", now=utc_text(at), most=FEW_DUE)
    queued = max(counts.queued, due)
    if due == FEW_DUE and not counts.more_queued:
        due = queued - store.value("count_future", now=utc_text(at))
    oldest = store.value("oldest_run_at")
    pools = [_pool(row) for row in store.rows("pools")]
    living = [pool for pool in pools if pool["alive"]]
    done_here = sum(pool["report"].get("done", 0) for pool in living)
    failed_here = sum(pool["report"].get("failed", 0) for pool in living)
    return {
        "queued": queued,
        "running": running,
        "done": store.value("count_all") - queued - running - dead,
        "dead": dead,
        "oldest_run_at": oldest,
        "oldest_age_s": None if oldest is None else _age(oldest, at),
        "queue_depth": due,
        "in_progress_count": running,
        "retry_rate": round(failed_here / (done_here + failed_here), 4) if done_here + failed_here else 0.0,
        "db_write_latency_p99_ms": _p99_ms([pool["report"].get("write_latency_ns_by_bits") for pool in living]),
        "workers": [worker for pool in living for worker in pool["report"].get("workers", [])],
        "pools": [{key: value for key, value in pool.items() if key != "report"} for pool in pools],
        "last_errors": store.rows("last_errors", limit=5),
    }


def _pool(row: dict[str, Any]) -> dict[str, Any]:
    report = json.loads(row["report"])
    shown = {key: row[key] for key in ("id", "host", "pid", "state", "target", "started_at", "seen_at")}
    return {
        **shown,
        "alive": not is_provably_dead(of_row(row)),
        "paused": report.get("paused", ""),
        "restarts": report.get("restarts", {}),
        "report": report,
    }


def _age(text: str, at: float) -> float | None:
    try:
        return max(0.0, round(at - parse_utc(text), 3))
    except ValueError:
        return None  # a stranger's text that is no time


def _p99_ms(histograms: list[list[int] | None]) -> float | None:
    """The 99th percentile of writes counted by the bits of their nanoseconds: the upper end of its bucket."""
    total = [sum(counts) for counts in zip(*(each for each in histograms if each), strict=True)]
    wanted = 0.99 * sum(total)
    seen = 0
    for bits, count in enumerate(total):
        seen += count
        if count and seen >= wanted:
            return round(float(2**bits) / 1e6, 3)
    return None
