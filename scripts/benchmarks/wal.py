"""How large the write-ahead log gets under sustained load, with a long reader, and how soon it is small again."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time

from benchmarks.figures import Section, progress
from benchmarks.options import Options
from benchmarks.running import Place, Pool, place
from pool.store.sqlite import wal_bytes

TITLE = "size of the write-ahead log under load, 2 workers"
LIMIT_MB = 64.0
#: Jobs kept waiting, so that the workers never run dry.
BACKLOG = 100_000
READER_SECONDS, READER_MOST_SECONDS, AFTER_SECONDS = 5.0, 60.0, 15.0


def run(section: Section, options: Options) -> None:
    """So many grouped no-op jobs without a reader; then, under the same load, a transaction held open."""
    jobs = options.size(options.jobs)
    with place() as where, Pool(where, 2):
        progress(f"{jobs:,} jobs without a reader")
        with Load(where, jobs) as load:
            began = time.monotonic()
            most = 0.0
            while load.left() > 0:
                most = max(most, megabytes(where))
                time.sleep(0.02)
            rate = jobs / (time.monotonic() - began)
        section.add(f"{jobs:,} grouped jobs meanwhile", rate, "/s")
        section.add("largest without a reader", most, "MB", at_most=LIMIT_MB)
        progress(f"a reader for {READER_SECONDS:g} s and more under load")
        with Load(where, 2**62):
            most, after = _with_reader(where)
        section.add("largest beside a long reader", most, "MB")
        section.add(f"back to {LIMIT_MB:.0f} MB after it went, under load", after, "s", at_most=5.0)


def _with_reader(where: Place) -> tuple[float, float]:
    """Hold a transaction open until the log has outgrown the limit; its size then, and seconds until it is back."""
    began = time.monotonic()
    with contextlib.closing(sqlite3.connect(where.database, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM pools").fetchall()
        while time.monotonic() - began < READER_SECONDS or (
            megabytes(where) <= LIMIT_MB and time.monotonic() - began < READER_MOST_SECONDS
        ):
            time.sleep(0.05)
        reader.execute("COMMIT")
    went, most = time.monotonic(), megabytes(where)
    while (size := megabytes(where)) > LIMIT_MB and time.monotonic() - went < AFTER_SECONDS:
        most = max(most, size)
        time.sleep(0.01)
    return most, time.monotonic() - went if size <= LIMIT_MB else float("inf")


class Load:
    """Within ``with``, a thread keeps the queue filled until so many jobs were enqueued."""

    def __init__(self, where: Place, jobs: int) -> None:
        self._where = where
        self._jobs = jobs
        self._over = threading.Event()
        self._left = jobs
        self._thread = threading.Thread(target=self._produce)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def left(self) -> int:
        """Jobs that are not done, as of the last look."""
        return self._left

    def _produce(self) -> None:
        enqueued = 0
        with self._where.queue() as queue:
            while not self._over.wait(0.1):
                waiting = int(str(self._where.rows("SELECT count(*) FROM jobs WHERE status = 'queued'")[0][0]))
                self._left = self._jobs - enqueued + waiting
                while waiting < BACKLOG and enqueued < self._jobs:
                    size = min(1000, self._jobs - enqueued)
                    queue.enqueue_many(("noop-grouped",) for _ in range(size))
                    enqueued += size
                    waiting += size


def megabytes(where: Place) -> float:
    """Size of the log file now."""
    return wal_bytes(where.database) / 1e6
