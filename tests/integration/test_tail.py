"""``pool tail`` tells what happens as it happens, by reading alone, and says when it cannot tell all of it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pool import Queue, Spec
from pool.clock import now_text
from pool.follow import FEWEST, Follower
from pool.job import Completed, Failed
from pool.store import Store
from tests.conftest import Command, StartPool
from tests.support import environment, eventually, lines, stranger

StartTail = Callable[..., "Tail"]


class Tail:
    """``pool tail`` in a process of its own that writes into a file."""

    def __init__(self, folder: Path, database: Path, *arguments: str) -> None:
        self._out, self._err = folder / "tail.out", folder / "tail.err"
        with open(self._out, "wb") as out, open(self._err, "wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pool", "tail", "--db", str(database), *arguments],
                cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment(),
            )  # fmt: skip

    def events(self, **wanted: Any) -> list[dict[str, Any]]:
        """What it has told so far, with these values."""
        assert self.process.poll() is None, self._err.read_text()
        found = [json.loads(line) for line in self._out.read_text().splitlines(keepends=True) if line.endswith("\n")]
        return [each for each in found if all(each.get(name) == value for name, value in wanted.items())]

    def interrupt(self) -> tuple[int, str]:
        """Its exit code after a Ctrl-C, and what it said on standard error."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(20), self._err.read_text()


@pytest.fixture
def tail(pool: StartPool, tmp_path: Path, database: Path) -> Iterator[StartTail]:
    """``tail("--type", "x")``: a ``pool tail --json`` that has begun to follow. It ends before the test's pools do."""
    started: list[Tail] = []

    def start(*arguments: str) -> Tail:
        with Queue(database) as queue:
            queue.enqueue("first", delay=9e6)
        store = Store.open(str(database))
        with store.transaction():
            store.execute("audit", at=now_text(), by="a", action="first", jobs=0, filter="{}", detail="")
        store.close()
        made = Tail(tmp_path, database, "--json", *arguments)
        started.append(made)
        return made

    yield start
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
        each.process.wait()


def test_it_tells_of_completions_failures_and_what_people_do(
    tail: StartTail, pool: StartPool, database: Path, tmp_path: Path, command: Command
) -> None:
    following = tail()
    eventually(lambda: following.events(event="changed", action="first"))
    pool(workers=2).ready(2)
    with Queue(database) as queue:
        note = queue.enqueue("note", {"path": f"{tmp_path}/notes"}).id
        bad = queue.enqueue("fail", max_attempts=1).id
        held = queue.enqueue("hold", {"started": f"{tmp_path}/started", "gate": f"{tmp_path}/gate"}).id
    (done,) = eventually(lambda: following.events(job_id=note))
    assert (done["event"], done["outcome"], done["type"], done["attempt"]) == ("ended", "done", "note", 1)
    (failed,) = eventually(lambda: following.events(job_id=bad))
    assert (failed["outcome"], failed["error"]) == ("failed", "RuntimeError: no luck")
    eventually(lambda: lines(tmp_path / "started"))
    command("retry", "--db", str(database), str(bad)).ok()
    assert eventually(lambda: following.events(action="retry"))[0]["jobs"] == 1
    (tmp_path / "gate").touch()
    (ended,) = eventually(lambda: following.events(job_id=held))
    assert ended["outcome"] == "done"
    assert following.interrupt() == (0, "")


def test_with_all_it_tells_what_is_enqueued_and_what_starts(
    tail: StartTail, pool: StartPool, database: Path, tmp_path: Path
) -> None:
    following = tail("--all")
    eventually(lambda: following.events(action="first"))
    pool().ready()
    with Queue(database) as queue:
        job = queue.enqueue("hold", {"started": f"{tmp_path}/started", "gate": f"{tmp_path}/gate"}).id
        queue.enqueue("later", delay=3600)
    eventually(lambda: len(following.events(job_id=job)) >= 2)
    eventually(lambda: following.events(type="later", event="enqueued"))
    (tmp_path / "gate").touch()
    eventually(lambda: following.events(job_id=job, outcome="done"))
    found = following.events(job_id=job)
    assert [each["event"] for each in found] == ["enqueued", "started", "ended"]
    assert found[1]["worker"] == found[2]["worker"] and found[2]["seconds"] >= 0


def test_it_shows_only_what_is_asked_for(tail: StartTail, pool: StartPool, database: Path, tmp_path: Path) -> None:
    following = tail("--type", "fail", "--outcome", "failed")
    pool().ready()
    with Queue(database) as queue:
        queue.enqueue("note", {"path": f"{tmp_path}/notes"})
        queue.enqueue_many(Spec("fail", max_attempts=1) for _ in range(2))
    eventually(lambda: len(following.events()) == 2)
    assert {each["type"] for each in following.events()} == {"fail"}


def test_it_begins_with_the_last_events_of_each_kind(store: Store, database: Path, command: Command) -> None:
    with Queue(database) as queue:
        queue.enqueue_many(Spec("t") for _ in range(6))
    for number in range(4):
        job = store.claim("me", now_text())
        assert job is not None
        store.settle(job, Completed("null") if number % 2 else Failed("no luck", permanent=True), now_text())
    said = command("tail", "--db", str(database), "--no-follow", "-n", "3").ok().out.splitlines()
    assert [line[21:] for line in said] == [
        "#2 t attempt 1: done", "#3 t attempt 1: discarded: no luck", "#4 t attempt 1: done"
    ]  # fmt: skip
    only = command("tail", "--db", str(database), "--no-follow", "--outcome", "done", "--json").ok().out.splitlines()
    assert [json.loads(line)["job_id"] for line in only] == [2, 4]


def test_it_ends_when_nobody_reads_any_more(database: Path, queue: Queue) -> None:
    queue.enqueue("t")
    process = subprocess.Popen(
        [sys.executable, "-m", "pool", "tail", "--db", str(database)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(),
    )  # fmt: skip
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.wait(20) == 0
    assert process.stderr.read() == b""
    process.stderr.close()


@pytest.mark.parametrize("count", [1, FEWEST - 1, 3 * FEWEST])
def test_what_completes_between_two_looks_is_found_or_said_to_be_missed(
    count: int, store: Store, database: Path
) -> None:
    other = Store.open(str(database))
    with Queue(database) as queue:
        queue.enqueue_many(Spec("t", priority=number % 3) for number in range(2 * count))
    follower = Follower(other)
    for _ in range(count):
        job = store.claim("me", now_text())
        assert job is not None
        assert store.settle(job, Completed("null"), now_text())
    seen = follower.look()
    assert all(each["outcome"] == "done" for each in seen.events)
    assert len({each["job_id"] for each in seen.events}) == len(seen.events) == min(count, FEWEST)
    assert seen.missed == (count > FEWEST)
    assert follower.look() == ([], False)
    for _ in range(count):
        job = store.claim("me", now_text())
        assert job is not None
        assert store.settle(job, Completed("null"), now_text())
    seen = follower.look()
    assert len(seen.events) == count or seen.missed
    assert other.connection.total_changes == 0
    other.close()


def test_a_job_that_became_due_meanwhile_and_one_that_was_enqueued_are_found(store: Store, database: Path) -> None:
    queue = Queue(database)
    due = queue.enqueue("soon", delay=1).id
    other = Store.open(str(database))
    follower = Follower(other)
    new = queue.enqueue("new").id
    for _ in range(2):
        job = eventually(lambda: store.claim("me", now_text()))
        store.settle(job, Completed("null"), now_text())
    assert {each["job_id"] for each in follower.look().events} == {due, new}
    queue.close()
    other.close()


def test_a_stranger_s_completion_that_says_no_time_is_told_now(store: Store, database: Path) -> None:
    with stranger(database) as connection:
        connection.execute("INSERT INTO jobs (type, payload, updated_at) VALUES ('t', '{}', '2020-01-01 00:00:00')")
        follower, before = Follower(store), now_text()
        connection.execute("UPDATE jobs SET status = 'done'")
    (event,) = follower.look().events
    assert event["outcome"] == "done" and event["at"] >= before
