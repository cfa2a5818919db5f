"""Enqueueing through ``Queue`` against bare sqlite3: into a table with one index, and into our own by plain SQL."""

from __future__ import annotations

import contextlib
import sqlite3
import time

from benchmarks import floors
from benchmarks.figures import Section, alternate, progress
from benchmarks.options import Options
from benchmarks.running import place

TITLE = "jobs enqueued a second by one process, no pool at work"


def run(section: Section, options: Options) -> None:
    """One at a time, each its own durable transaction, and many in a few."""
    one, many = options.size(10_000), options.size(200_000)
    progress(f"{one} one by one and {many} in bulk, ours and bare")
    found = alternate(
        options.reps,
        {
            "one": lambda: _one(one),
            "bare one": lambda: floors.enqueue_one(one),
            "plain one": lambda: _plain(one, 1),
            "many": lambda: _many(many),
            "bare many": lambda: floors.enqueue_many(many),
            "plain many": lambda: _plain(many, 1000),
        },
    )
    section.add("Queue.enqueue", found["one"], "/s")
    section.add("bare INSERT, a transaction each", found["bare one"], "/s")
    section.ratio("Queue.enqueue : bare", found["one"], found["bare one"], at_least=0.75)
    section.ratio("Queue.enqueue : plain INSERT into the same table", found["one"], found["plain one"])
    section.add("Queue.enqueue_many", found["many"], "/s")
    section.add("bare executemany, 1,000 a transaction", found["bare many"], "/s")
    section.ratio("Queue.enqueue_many : bare", found["many"], found["bare many"], at_least=0.6)
    section.ratio("Queue.enqueue_many : plain executemany into the same table", found["many"], found["plain many"])


def _one(count: int) -> float:
    with place() as where, where.queue() as queue:
        began = time.perf_counter()
        for _ in range(count):
            queue.enqueue("noop")
        return count / (time.perf_counter() - began)


def _many(count: int) -> float:
    with place() as where, where.queue() as queue:
        began = time.perf_counter()
        queue.enqueue_many(("noop",) for _ in range(count))
        return count / (time.perf_counter() - began)


def _plain(count: int, chunk: int) -> float:
    """The contract's own INSERT by plain sqlite3 into our table, ``chunk`` in a transaction."""
    insert = (
        "INSERT INTO jobs (type, payload, idempotency_key) VALUES (?, ?, ?) ON CONFLICT (idempotency_key) DO NOTHING"
    )
    with place() as where:
        where.queue().close()
        with contextlib.closing(sqlite3.connect(where.database, timeout=30, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = NORMAL")
            began = time.perf_counter()
            for _ in range(0, count, chunk):
                connection.execute("BEGIN IMMEDIATE")
                if chunk == 1:
                    connection.execute(insert, ("noop", "{}", None))
                else:
                    connection.executemany(insert, [("noop", "{}", None)] * chunk)
                connection.execute("COMMIT")
            return count / (time.perf_counter() - began)
