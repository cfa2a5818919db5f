"""Turns and rings: an enqueue wakes a worker while it writes, and never one that would look too early."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pool import Queue
from pool.clock import now_text
from pool.doorbell import Listener
from pool.job import NewJob
from pool.store import Store
from pool.store.turn import turnstile_path
from tests.support import rows


def job() -> NewJob:
    now = now_text()
    return NewJob("t", "{}", None, 0, now, 5, None, now)


def may_take_the_turn(database: Path) -> bool:
    turn = os.open(turnstile_path(str(database)), os.O_RDONLY)
    try:
        fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(turn)


def test_whoever_is_woken_before_the_job_is_there_has_to_wait_for_it(store: Store, database: Path) -> None:
    seen: list[object] = []
    store.enqueue(job(), ring=lambda: seen.append((may_take_the_turn(database), len(rows(database)))))
    assert seen == [(False, 0)]
    assert may_take_the_turn(database) and len(rows(database)) == 1


@contextlib.contextmanager
def no_turns(database: Path) -> Iterator[Store]:
    os.mkdir(turnstile_path(str(database)))
    with contextlib.closing(Store.open(str(database))) as store:
        yield store


@contextlib.contextmanager
def a_turn_that_does_not_come(database: Path) -> Iterator[Store]:
    with contextlib.closing(Store.open(str(database))) as store, open(turnstile_path(str(database))) as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        yield store


@pytest.mark.parametrize("kept_by", [no_turns, a_turn_that_does_not_come])
def test_out_of_turn_nobody_is_woken_before_the_job_is_there(
    kept_by: Callable[[Path], contextlib.AbstractContextManager[Store]], database: Path
) -> None:
    seen: list[int] = []
    with kept_by(database) as store:
        store.enqueue(job(), ring=lambda: seen.append(len(rows(database))))
    assert seen == [1]


def test_nobody_is_woken_to_wait_for_a_disk(store: Store, database: Path) -> None:
    seen: list[object] = []
    store.enqueue(job(), full=True, ring=lambda: seen.append(len(rows(database))))
    assert seen == [1]


def test_a_job_that_is_due_rings_and_a_later_one_does_not(queue: Queue, database: Path) -> None:
    listener = Listener(str(database))
    try:
        queue.enqueue("t", delay=60)
        assert not listener.hush()
        queue.enqueue("t")
        assert listener.hush()
        queue.enqueue_many([("t",)])
        assert listener.hush()
    finally:
        listener.close()


def test_whoever_opens_a_link_to_the_file_takes_the_same_turns(store: Store, database: Path, tmp_path: Path) -> None:
    link = tmp_path / "elsewhere.db"
    link.symlink_to(database)
    seen: list[bool] = []
    with contextlib.closing(Store.open(str(link))) as other:
        other.enqueue(job(), ring=lambda: seen.append(may_take_the_turn(database)))
    assert seen == [False] and len(rows(database)) == 1
