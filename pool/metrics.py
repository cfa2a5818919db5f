"""The queue's metrics for Prometheus. They are read from the database, which outlives every process and is shared by
all of them, so counters never go back and no pool has to be asked."""

from __future__ import annotations

import collections
import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from pool.clock import now_text
from pool.status import status
from pool.store import Store
from pool.store.sqlite import wal_bytes

#: Of what ``render`` returns.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: Bits of microseconds at which the buckets of durations end (256 µs … 19 h), the same for all types so that they add.
DURATION_BITS = tuple(range(8, 37, 2))
#: Bits of nanoseconds at which those of writes end (4 µs … 17 s).
WRITE_BITS = tuple(range(12, 35, 2))

Counters = Mapping[str, Mapping[str, Mapping[int, int]]]


class Facts(NamedTuple):
    """What the metrics are made of: pool.status, the counters by name, label and bucket, and the rest."""

    status: Mapping[str, Any]
    counters: Counters
    paused: bool
    wal_bytes: int
    database_bytes: int


def read(store: Store) -> Facts:
    """Read them from the database."""
    counters: dict[str, dict[str, dict[int, int]]] = {}
    for row in store.rows("web_counters"):
        counters.setdefault(row["name"], {}).setdefault(row["label"], {})[row["bucket"]] = row["value"]
    paused = bool(store.rows("current_pause", now=now_text()))
    return Facts(status(store), counters, paused, wal_bytes(store.path), os.stat(store.path).st_size)


def render(facts: Facts) -> bytes:
    """The Prometheus text format, to be served as CONTENT_TYPE."""
    registry = CollectorRegistry()
    registry.register(_Queue(facts))
    return generate_latest(registry)


class _Queue(Collector):
    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def collect(self) -> Iterator[Metric]:
        yield from _queue(self._facts)
        yield from _work(self._facts.counters)
        yield from _pools(self._facts.status)


def _queue(facts: Facts) -> Iterator[Metric]:
    found = facts.status
    jobs = GaugeMetricFamily("jobpool_jobs", "Jobs in the queue by status.", labels=["status"])
    for name in ("queued", "running", "done", "dead"):
        jobs.add_metric([name], found[name])
    yield jobs
    yield GaugeMetricFamily("jobpool_queue_due", "Queued jobs that are due now.", found["queue_depth"])
    age = found["oldest_age_s"] or 0.0
    yield GaugeMetricFamily("jobpool_oldest_age_seconds", "Age of the oldest due job; 0 when none is due.", age)
    yield GaugeMetricFamily("jobpool_paused", "1 while claims are paused.", int(facts.paused))
    yield GaugeMetricFamily("jobpool_database_bytes", "Size of the database file.", facts.database_bytes)
    yield GaugeMetricFamily("jobpool_wal_bytes", "Size of the write-ahead log.", facts.wal_bytes)


def _work(counters: Counters) -> Iterator[Metric]:
    done = CounterMetricFamily("jobpool_jobs_done", "Jobs done, ever, by type.", labels=["type"])
    failed = CounterMetricFamily("jobpool_attempts_failed", "Attempts failed, ever, by type.", labels=["type"])
    restarts = CounterMetricFamily("jobpool_restarts", "Workers that died, by cause.", labels=["cause"])
    for name, family in (("done", done), ("failed", failed), ("restarts", restarts)):
        for label, buckets in counters.get(name, {}).items():
            family.add_metric([label], sum(buckets.values()))
        yield family
    wait = HistogramMetricFamily("jobpool_wait_seconds", "From when a job was due to when it began.", labels=["type"])
    run = HistogramMetricFamily("jobpool_run_seconds", "How long an attempt ran.", labels=["type"])
    for name, histogram in (("wait", wait), ("run", run)):
        for label, buckets in counters.get(name, {}).items():
            histogram.add_metric(
                [label], *_cumulative(buckets, _sum(counters, f"{name}_us", label), DURATION_BITS, 1e6)
            )
        yield histogram
    write = HistogramMetricFamily(
        "jobpool_db_write_seconds", "Workers' write transactions, waiting for the lock included.", labels=[]
    )
    buckets = counters.get("write", {}).get("", {})
    write.add_metric([], *_cumulative(buckets, _sum(counters, "write_ns", ""), WRITE_BITS, 1e9))
    yield write


def _pools(found: Mapping[str, Any]) -> Iterator[Metric]:
    pools = GaugeMetricFamily("jobpool_pools", "Pools by state; dead ones whose process is gone.", labels=["state"])
    states = collections.Counter(each["state"] if each["alive"] else "dead" for each in found["pools"])
    for state in ("starting", "running", "degraded", "reloading", "stopping", "dead"):
        pools.add_metric([state], states[state])
    yield pools
    workers = GaugeMetricFamily("jobpool_workers", "Workers of living pools by state.", labels=["state"])
    at_work = collections.Counter(each["state"] for each in found["workers"])
    for state in ("boot", "idle", "busy", "settling", "paused", "draining", "bye"):
        workers.add_metric([state], at_work[state])
    yield workers
    memory = GaugeMetricFamily(
        "jobpool_worker_memory_bytes", "Memory of each worker, by its pid.", labels=["number", "pid"]
    )
    for each in found["workers"]:
        memory.add_metric([str(each["number"]), str(each["pid"])], each.get("memory_bytes") or 0)
    yield memory


def _sum(counters: Counters, name: str, label: str) -> int:
    return counters.get(name, {}).get(label, {}).get(0, 0)


def _cumulative(
    counted: Mapping[int, int], total: int, ends: tuple[int, ...], per_second: float
) -> tuple[list[tuple[str, float]], float]:
    """Counts by bits as cumulative buckets with their upper ends in seconds, and their sum.

    The sum is kept between the least and the most that the counts allow. A worker may be killed between counting a
    duration and adding it, and a pool of an older version counts without adding. All three only grow, and so does what
    lies between."""
    buckets = [(repr(2**end / per_second), float(sum(n for bits, n in counted.items() if bits <= end))) for end in ends]
    buckets.append(("+Inf", float(sum(counted.values()))))
    least = sum(n * 2 ** (bits - 1) for bits, n in counted.items() if bits > 0)
    most = sum(n * (2**bits - 1) for bits, n in counted.items())
    return buckets, min(max(total, least), most) / per_second
