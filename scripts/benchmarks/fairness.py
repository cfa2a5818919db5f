"""How long a writer may wait for its turn: eight saturated workers, and a stranger's plain INSERTs beside them; first
as SQLite does it by itself, then with each of our rules added.

The workers are the store's own loop without handlers, so that nothing but the database is waited for; there are more
of them than processors, so the scheduler's slices are part of every wait.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
import time
from array import array
from typing import NamedTuple

from benchmarks.figures import Section, alternate, percentile, progress
from benchmarks.growth import fill, work_off
from benchmarks.options import Options
from benchmarks.running import SCRIPTS, Place, place
from pool import slot
from pool.clock import now_text
from pool.job import Completed, NewJob
from pool.slot import Slot
from pool.store import Store
from pool.store.sqlite import checkpoint, connect, sync_wal, wal_bytes
from pool.supervisor.sweeps import ROOM_EVERY_SECONDS, ROOM_SECONDS

WORKERS = 8
TITLE = f"waits for the write lock, {WORKERS} saturated workers and a foreign producer"
#: Jobs a second that are sure to be more than are worked off.
PLENTY = 60_000
#: What two workers do between two checkpoints.
CHECKPOINT_JOBS = 2_500


class Rules(NamedTuple):
    """Which of our rules are kept: turns on the lock file, held PASSIVE checkpoints, room for strangers."""

    turns: bool
    checkpoints: bool
    room: bool


BEFORE = {
    "busy_timeout, automatic checkpoints": Rules(False, False, False),
    "turns, automatic checkpoints": Rules(True, False, False),
    "turns, held checkpoints": Rules(True, True, False),
}
OURS = Rules(True, True, True)


def run(section: Section, options: Options) -> None:
    """One long look at ours, shorter ones at what we had without; a worst case is no median."""
    seconds = options.seconds / 10 if options.quick else options.seconds
    for name, rules in BEFORE.items():
        found = _look(seconds / 3, rules)
        workers = [wait for each in found.waits[:-1] for wait in each]
        section.add(f"before ({name}): workers together", len(workers) / (seconds / 3), "/s")
        section.add(f"before ({name}): complete and claim, worst", max(workers), "ms")
        section.add(
            f"before ({name}): a stranger's INSERT, worst of {len(found.waits[-1]):,}", max(found.waits[-1]), "ms"
        )
        section.add(f"before ({name}): largest log", found.log / 1e6, "MB")
    waits, log = _look(seconds, OURS)
    workers = [wait for each in waits[:-1] for wait in each]
    section.add(f"{WORKERS} workers together", len(workers) / seconds, "/s")
    section.add("least busy worker : busiest", min(map(len, waits[:-1])) / max(map(len, waits[:-1])), "x")
    for name, found, most in (("complete and claim", workers, 100.0), ("a stranger's INSERT", waits[-1], 250.0)):
        section.add(f"{name}, p50", percentile(found, 0.5), "ms")
        section.add(f"{name}, p99", percentile(found, 0.99), "ms")
        section.add(f"{name}, worst of {len(found):,}", max(found), "ms", at_most=most)
    section.add("largest log", log / 1e6, "MB")
    _add_checkpoint(section, options)


def _add_checkpoint(section: Section, options: Options) -> None:
    """How long a checkpoint keeps everybody waiting, when the disk has the log before and when it has not."""
    progress(f"{2 * options.reps} checkpoints after {CHECKPOINT_JOBS:,} jobs each")
    with place() as where:
        store = Store.open(where.database)
        other = connect(where.database)
        with contextlib.closing(store), contextlib.closing(other):
            now = now_text()
            jobs = 2 * options.reps * CHECKPOINT_JOBS
            store.enqueue_many([NewJob("noop", "{}", None, 0, now, 5, None, now)] * jobs)
            store.checkpoint()

            def held(synced: bool) -> float:
                work_off(store, CHECKPOINT_JOBS)
                if synced:
                    sync_wal(where.database)
                began = time.perf_counter()
                checkpoint(store.connection, other)
                return (time.perf_counter() - began) * 1e3

            found = alternate(options.reps, {"before": lambda: held(False), "ours": lambda: held(True)})
    name = f"a checkpoint of {CHECKPOINT_JOBS:,} jobs, lock held"
    section.add(f"before (log synced under the lock): {name}", found["before"], "ms")
    section.add(name, found["ours"], "ms")


class Looked(NamedTuple):
    """Milliseconds of each write, by each worker and last by the stranger; the most bytes of the log."""

    waits: list[array[float]]
    log: int


def _look(seconds: float, rules: Rules) -> Looked:
    with place() as where:
        progress(f"making {int(seconds * PLENTY):,} jobs")
        Store.open(where.database).close()
        with contextlib.closing(sqlite3.connect(where.database, isolation_level=None)) as connection:
            fill(connection, int(seconds * PLENTY), "queued")
        progress(f"{WORKERS} workers and a producer for {seconds:.0f} s")
        return _contend(where, seconds, rules)


def _contend(where: Place, seconds: float, rules: Rules) -> Looked:
    """We do what a supervisor does meanwhile."""
    roles = [*map(str, range(WORKERS)), "producer"]
    started = []
    store = Store.open(where.database)
    page = Slot.create_fd()
    room = Slot(page)
    try:
        for role in roles:
            command = [sys.executable, "-m", "benchmarks.fairness", where.database, role, str(seconds)]
            command += ["".join("ny"[kept] for kept in rules), str(page)]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            started.append(subprocess.Popen(command, cwd=SCRIPTS, pass_fds=[page], **pipes))  # type: ignore[call-overload]
        for each in started:
            assert each.stdout is not None
            each.stdout.readline()
        for each in started:
            assert each.stdin is not None
            each.stdin.close()
        until, log = time.monotonic() + seconds, 0
        while time.monotonic() < until:
            time.sleep(ROOM_EVERY_SECONDS)
            if rules.checkpoints:
                with contextlib.suppress(sqlite3.OperationalError):
                    store.checkpoint()
            if rules.room:
                room.words[slot.ROOM] = time.monotonic_ns() + int(ROOM_SECONDS * 1e9)
                with store.turn():
                    time.sleep(max(0.0, (room.words[slot.ROOM] - time.monotonic_ns()) / 1e9))
            log = max(log, wal_bytes(where.database))
        for each in started:
            each.wait(60)
    finally:
        for each in started:
            if each.poll() is None:
                each.kill()
            each.wait()
        store.close()
        room.close()
        os.close(page)
    return Looked([_waits(f"{where.database}.{role}") for role in roles], log)


def _waits(path: str) -> array[float]:
    found = array("d")
    with open(path, "rb") as file:
        found.frombytes(file.read())
    return found


def _work(database: str, role: str, seconds: float, rules: Rules, page: int) -> array[float]:
    if rules.turns:
        store = Store.open(database, in_line=True)  # as where there are more workers than processors
    else:
        store = Store(connect(database), ":memory:")  # what is in memory takes no turns
    if not rules.checkpoints:
        store.connection.execute("PRAGMA wal_autocheckpoint = 1000")
    waits, room = array("d"), Slot(page).words
    _go()
    jobs = store.claim_group(f"bench:{role}:fairness", {}, now_text())
    until = time.monotonic() + seconds
    while time.monotonic() < until and jobs:
        began = time.perf_counter()
        if (ends := room[slot.ROOM] - time.monotonic_ns()) > 0:
            time.sleep(ends / 1e9)
        _, jobs = store.settle_group([(jobs[0], Completed())], [], {}, now_text())
        waits.append((time.perf_counter() - began) * 1e3)
    return waits


def _produce(database: str, seconds: float) -> array[float]:
    connection = sqlite3.connect(database, timeout=30, isolation_level=None)
    waits = array("d")
    _go()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.perf_counter()
        connection.execute("INSERT INTO jobs (type, payload) VALUES ('noop', '{}')")
        waits.append((time.perf_counter() - began) * 1e3)
        time.sleep(0.005)
    return waits


def _go() -> None:
    os.write(1, b"ready\n")
    sys.stdin.read()


def main() -> None:
    """One of the contending processes."""
    database, role, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    rules = Rules(*(kept == "y" for kept in sys.argv[4]))
    waits = (
        _produce(database, seconds) if role == "producer" else _work(database, role, seconds, rules, int(sys.argv[5]))
    )
    with open(f"{database}.{role}", "wb") as file:
        file.write(waits.tobytes())


if __name__ == "__main__":
    main()
