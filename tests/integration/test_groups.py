"""Groups: jobs far below a millisecond share transactions, and a crash costs no more than their group."""

from __future__ import annotations

from pathlib import Path

from pool import Queue
from tests.conftest import StartPool
from tests.support import eventually, lines, row, rows

HANDLERS = """
@handler("tiny", group=8, max_crashes=2)
def tiny(path, number, deadly=False):
    append(path, str(number))
    if deadly:
        os.abort()

@handler("slow", group=8)
def slow(path, number):
    append(path, str(number))
    time.sleep(0.02)

@handler("odd", group=8)
def odd(number):
    if number % 3 == 1:
        raise RuntimeError(f"number {number}")
    if number % 3 == 2:
        raise Snooze(3600)
"""


def test_every_job_of_a_group_runs_once_and_is_done(
    pool: StartPool, queue: Queue, database: Path, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    queue.enqueue_many(("tiny", {"path": str(notes), "number": number}) for number in range(500))
    assert pool("--drain", handlers=HANDLERS, workers=3).wait() == 0
    assert sorted(map(int, lines(notes))) == list(range(500))
    assert {(each["status"], each["attempts"]) for each in rows(database)} == {("done", 1)}


def test_a_crash_charges_only_the_job_that_ran_and_runs_at_most_its_group_again(
    pool: StartPool, queue: Queue, database: Path, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    jobs = [queue.enqueue("tiny", {"path": str(notes), "number": n, "deadly": n == 4}).id for n in range(20)]
    pool("--drain", handlers=HANDLERS).wait()
    found = {each["id"]: each for each in rows(database)}
    deadly = found.pop(jobs[4])
    assert (deadly["status"], deadly["crashes"]) == ("dead", 2)
    assert {(each["status"], each["attempts"], each["crashes"]) for each in found.values()} == {("done", 1, 0)}
    runs = lines(notes)
    assert set(runs) == {str(number) for number in range(20)}
    assert runs.count("4") == 2
    assert len(runs) <= 20 + 1 + 2 * 7  # the deadly one's second run, and twice the rest of a group
    assert {each["outcome"] for each in rows(database, "SELECT * FROM attempts")} == {"crashed"}


def test_a_suspect_runs_in_no_group(pool: StartPool, queue: Queue, database: Path, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    queue.enqueue_many(("tiny", {"path": str(notes), "number": n, "deadly": n == 2}) for n in range(6))
    pool("--drain", handlers=HANDLERS).wait()
    # Its second try takes nobody with it: everyone else ran at most twice, once before and once after the first crash.
    assert all(lines(notes).count(str(number)) <= 2 for number in range(6))
    assert row(database, 3)["status"] == "dead"


def test_a_group_whose_time_is_up_gives_back_what_it_has_not_begun(
    pool: StartPool, queue: Queue, database: Path, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    queue.enqueue_many(("slow", {"path": str(notes), "number": number}) for number in range(12))
    assert pool("--drain", handlers=HANDLERS, workers=4).wait() == 0
    assert sorted(map(int, lines(notes))) == list(range(12))
    assert {(each["status"], each["attempts"]) for each in rows(database)} == {("done", 1)}


def test_each_job_of_a_group_ends_in_its_own_way(pool: StartPool, queue: Queue, database: Path) -> None:
    queue.enqueue_many(("odd", {"number": number}, None, 0, None, None, 1) for number in range(9))
    pool("--drain", handlers=HANDLERS).wait()
    ends = [(each["status"], each["attempts"]) for each in rows(database)]
    assert ends == [("done", 1), ("dead", 1), ("queued", 0)] * 3


def test_a_group_takes_no_job_of_another_type_or_priority(
    pool: StartPool, queue: Queue, database: Path, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    for number in range(6):
        queue.enqueue("tiny", {"path": str(notes), "number": number}, priority=number % 2)
        queue.enqueue("note", {"path": str(tmp_path / "others"), "line": str(number)})
    pool(handlers=HANDLERS)
    eventually(lambda: {each["status"] for each in rows(database)} == {"done"})
    assert lines(notes) == ["0", "2", "4", "1", "3", "5"]
