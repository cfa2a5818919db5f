"""The write-ahead log goes into the database without keeping anyone waiting for a disk."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from pathlib import Path

import pytest

from pool import Queue
from pool.store import Store
from pool.store.turn import turnstile_path
from tests.support import rows


def test_while_a_checkpoint_waits_for_the_disk_everybody_may_write(
    queue: Queue, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.enqueue("t")
    wrote = []

    def slow_disk(fd: int) -> None:
        assert os.path.samestat(os.fstat(fd), os.stat(f"{database}-wal"))
        with sqlite3.connect(database, timeout=0, isolation_level=None) as other:
            other.execute("INSERT INTO jobs (type, payload) VALUES ('u', '{}')")
        other.close()
        turn = os.open(turnstile_path(str(database)), os.O_RDONLY)
        fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(turn)
        wrote.append(fd)

    monkeypatch.setattr(os, "fdatasync", slow_disk)
    store = Store.open(str(database))
    frames, moved = store.checkpoint()
    store.close()
    assert wrote and frames == moved > 0
    assert [row["type"] for row in rows(database)] == ["t", "u"]


def test_a_disk_that_cannot_sync_the_log_ahead_of_time_leaves_that_to_the_checkpoint(
    queue: Queue, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.enqueue("t")

    def failing_disk(fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", failing_disk)
    store = Store.open(str(database))
    frames, moved = store.checkpoint()
    store.close()
    assert frames == moved > 0
