"""How long ended jobs are kept, and that deleting them, and shrinking the file, is bounded and loses nothing else."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from pool import Queue, UsageError, retention
from pool.clock import LATEST, parse_utc, utc_text
from pool.policy import KEEP_ALL, Policy
from pool.retention import Place, Swept, delete, expired, run, shrink, sweep
from pool.store import Store
from tests.support import rows, stranger

DAY = 86_400.0
NOW = "2030-06-01 12:00:00.000"
NEVER = Policy(dict(KEEP_ALL))


def days_ago(days: float) -> str:
    return utc_text(parse_utc(NOW) - days * DAY)


def put(database: Path, status: str, days: float, type: str = "t", count: int = 1, payload: str = "{}") -> None:
    """Jobs that were created and ended so long ago."""
    with stranger(database) as sql:
        sql.executemany(
            "INSERT INTO jobs (type, payload, status, created_at, updated_at, run_at) VALUES (?, ?, ?, ?4, ?4, ?4)",
            [(type, payload, status, days_ago(days))] * count,
        )


def archive_all(store: Store, days: float) -> None:
    """Move every job to the archive, so long ago."""
    for row in rows(store.path):
        store.archive(row["id"], "me", "", days_ago(days))


def left(database: Path) -> list[int]:
    return [row["id"] for row in rows(database, "SELECT id FROM jobs ORDER BY id")]


def swept(store: Store, policy: Policy, rounds: int = 50, now: str = NOW) -> list[Swept]:
    """So many steps, each going on where the last ended, as a pool's database thread takes them."""
    steps = []
    place = Place()
    for _ in range(rounds):
        steps.append(sweep(store, policy, now, place))
        place = steps[-1].place
    return steps


# the rules


@pytest.mark.parametrize(
    ("rules", "type", "outcome", "seconds"),
    [
        ([], "t", "done", 7 * DAY),
        ([], "t", "dead", None),
        ([], "t", "archive", 90 * DAY),
        (["done=1d"], "t", "done", DAY),
        (["done=never"], "t", "done", None),
        (["dead=4w"], "t", "dead", 28 * DAY),
        (["thumbnail.done=12h"], "thumbnail", "done", 12 * 3600.0),
        (["thumbnail.done=12h"], "t", "done", 7 * DAY),
        (["a.b=c.done=90s"], "a.b=c", "done", 90.0),
        (["t.done=0s", "done=1.5h"], "t", "done", 0.0),
        (["done=1d", "done=2d"], "t", "done", 2 * DAY),
        ([f"done={'9' * 400}w"], "t", "done", LATEST),
        ([" t.archive=never "], "t", "archive", None),
    ],
)
def test_rules_say_how_long_jobs_of_a_type_are_kept(
    rules: list[str], type: str, outcome: str, seconds: float | None
) -> None:
    assert Policy.parse(rules).keep(type, outcome) == seconds


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("done", "done=7d"),
        ("=7d", "done=7d"),
        ("done=", "12h"),
        ("done=7", "12h"),
        ("done=-1d", "12h"),
        ("done=soon", "'soon'"),
        ("doen=7d", "did you mean 'done'?"),
        ("t.queued=7d", "not 'queued'"),
    ],
)
def test_a_rule_that_says_nothing_is_refused_with_one_that_would(rule: str, words: str) -> None:
    with pytest.raises(UsageError) as refused:
        Policy.parse([rule])
    assert repr(rule) in str(refused.value) and words in str(refused.value)


def test_all_wrong_rules_are_told_at_once() -> None:
    with pytest.raises(UsageError, match=r"doen.*dead=soon"):
        Policy.parse(["doen=7d", "done=1d", "dead=soon"])


# one sweep after the other


def test_what_ended_long_ago_goes_and_everything_else_stays(store: Store, database: Path) -> None:
    for status in ("done", "dead", "queued", "running"):
        for days in (1, 8, 400):
            put(database, status, days)
    swept(store, Policy())
    kept = [(row["status"], row["created_at"]) for row in rows(database)]
    assert kept == [("done", days_ago(1))] + [
        (status, days_ago(days)) for status in ("dead", "queued", "running") for days in (1, 8, 400)
    ]


def test_each_type_and_outcome_has_its_own_time(store: Store, database: Path) -> None:
    put(database, "done", 2, "thumbnail")
    put(database, "done", 2, "report")
    put(database, "dead", 40, "thumbnail")
    put(database, "dead", 40, "report")
    swept(store, Policy.parse(["thumbnail.done=1d", "dead=30d", "report.dead=never"]))
    assert [(row["type"], row["status"]) for row in rows(database)] == [("report", "done"), ("report", "dead")]


def test_the_archive_is_kept_by_when_a_job_came_there(store: Store, database: Path) -> None:
    put(database, "dead", 500, "old", count=2)
    archive_all(store, 91)
    put(database, "dead", 500, "young", count=2)
    archive_all(store, 89)
    put(database, "dead", 500, "kept")
    archive_all(store, 400)
    swept(store, Policy.parse(["kept.archive=never"]))
    assert [row["type"] for row in rows(database, "SELECT * FROM jobs_archive ORDER BY id")] == [
        "young",
        "young",
        "kept",
    ]


def test_the_evidence_of_attempts_goes_with_its_job_and_no_other(store: Store, database: Path) -> None:
    put(database, "done", 8)
    put(database, "done", 1)
    put(database, "dead", 91)
    with stranger(database) as sql:
        sql.execute(
            "INSERT INTO attempts (job_id, attempt, worker, ended_at, outcome) SELECT 1 + i % 3, i, 'w', '', 'failed' "
            "FROM (WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 29) SELECT i FROM n)"
        )
    store.archive(3, "me", "", days_ago(91))
    swept(store, Policy())
    assert left(database) == [2] and rows(database, "SELECT * FROM jobs_archive") == []
    assert {row["job_id"] for row in rows(database, "SELECT job_id FROM attempts")} == {2}


def test_a_job_queued_anew_in_the_middle_of_a_sweep_stays(
    store: Store, queue: Queue, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between reading which are expired and deleting them, somebody retries one and archives another's twin."""
    put(database, "dead", 40, count=3)
    real = retention._look

    def meanwhile(*arguments: object) -> object:
        found = real(*arguments)  # type: ignore[arg-type]
        queue.retry(2)
        return found

    monkeypatch.setattr(retention, "_look", meanwhile)
    sweep(store, Policy.parse(["dead=30d"]), NOW)
    assert left(database) == [2] and rows(database)[0]["status"] == "queued"


def test_two_sweepers_delete_each_job_once(store: Store, database: Path) -> None:
    put(database, "done", 8, count=3_000)
    second = Store.open(str(database))
    counts = [0, 0]

    def work(which: int, of: Store) -> None:
        counts[which] = sum(step.jobs for step in swept(of, Policy()))

    threads = [threading.Thread(target=work, args=each) for each in enumerate((store, second))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    second.close()
    assert left(database) == [] and sum(counts) >= 3_000  # one may find what the other has just deleted


def test_a_step_is_bounded_and_says_where_to_go_on(store: Store, database: Path) -> None:
    put(database, "done", 8, count=1_200)
    first = sweep(store, Policy(), NOW)
    assert 0 < first.jobs <= retention.ROWS and first.more and first.place.job > 0
    steps = swept(store, Policy())
    assert left(database) == [] and not steps[-1].more and steps[-1].place == Place()


def test_a_job_with_more_evidence_than_a_transaction_takes_goes_all_the_same(
    store: Store, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(database, "done", 8, count=3)
    with stranger(database) as sql:
        insert = "INSERT INTO attempts (job_id, attempt, worker, ended_at, outcome) VALUES (2, ?, 'w', '', 'failed')"
        sql.executemany(insert, [(number,) for number in range(50)])
    monkeypatch.setattr(retention, "ROWS", 20)
    for step in swept(store, Policy()):
        assert step.jobs <= 20
    assert left(database) == [] and rows(database, "SELECT * FROM attempts") == []


def test_kept_jobs_in_front_do_not_hide_expired_ones_behind(
    store: Store, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(database, "dead", 100, count=50)
    put(database, "done", 100, count=5)
    put(database, "done", 1, count=50)
    put(database, "done", 100, count=1)  # a stranger's, out of order
    monkeypatch.setattr(retention, "LOOKS", 10)
    steps = swept(store, Policy())
    assert sum(step.jobs for step in steps) >= 5
    # Behind a stretch of young ones the walk begins anew: what is out of order waits until that stretch has aged.
    swept(store, Policy(), now=utc_text(parse_utc(NOW) + 7 * DAY))
    assert {row["status"] for row in rows(database)} == {"dead"}


def test_large_payloads_end_a_look_by_time_and_not_the_walk(
    store: Store, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(database, "done", 8, count=20, payload="x" * 20_000)
    monkeypatch.setattr(retention, "LOOK_SECONDS", 0.0)
    swept(store, Policy())
    assert left(database) == []


def test_a_stranger_s_odd_rows_do_not_stop_the_walk(store: Store, database: Path) -> None:
    with stranger(database) as sql:
        for value in ("CAST(x'ff' AS TEXT)", "x'00'", "'soon'", "5"):
            sql.execute(
                f"INSERT INTO jobs (type, payload, status, created_at, updated_at) "
                f"VALUES ({value}, {value}, 'done', {value}, {value})"
            )
    put(database, "done", 8)
    swept(store, Policy())
    assert 5 not in left(database)


def test_a_time_longer_than_there_are_years_keeps_all(store: Store, database: Path) -> None:
    put(database, "done", 9_000)
    assert swept(store, Policy.parse([f"done={'9' * 400}w"]))[0].jobs == 0


def test_nothing_is_looked_at_where_all_is_kept(store: Store, database: Path) -> None:
    put(database, "done", 400, count=3)
    assert sweep(store, NEVER, NOW) == Swept(0, 0, 0, Place(), False) and len(left(database)) == 3


# all at once


def test_run_deletes_all_that_is_expired_and_tells_how_far_it_is(store: Store, database: Path) -> None:
    put(database, "done", 8, count=1_100)
    put(database, "dead", 8, count=3)
    archive_all_dead = [row["id"] for row in rows(database) if row["status"] == "dead"]
    for job_id in archive_all_dead:
        store.archive(job_id, "me", "", days_ago(91))
    told: list[int] = []
    assert expired(store, Policy(), NOW) == {("t", "done"): 1_100, ("t", "archive"): 3}
    assert run(store, Policy(), NOW, told.append) == 1_103
    assert told == sorted(told) and told[-1] == 1_103 and left(database) == []


def test_delete_takes_only_what_has_ended(store: Store, database: Path) -> None:
    for status in ("done", "dead", "queued", "running"):
        put(database, status, 8)
    with store.transaction():
        assert delete(store, [4, 3, 2, 1], archived=False) == ([1, 2], [])
    assert left(database) == [3, 4]


def test_a_claim_gets_its_turn_while_thousands_are_deleted(store: Store, queue: Queue, database: Path) -> None:
    put(database, "done", 8, count=5_000)
    queue.enqueue_many([("waiting", None)] * 200)
    claimed: list[int] = []

    def delete_all() -> None:
        other = Store.open(str(database))
        run(other, Policy(), NOW, lambda jobs: None)
        other.close()

    thread = threading.Thread(target=delete_all)
    thread.start()
    while thread.is_alive() and len(claimed) < 200:
        job = queue.claim()
        assert job is not None
        claimed.append(len(left(database)))
    thread.join()
    assert len(set(claimed)) > 3  # the table grew smaller between one claim and the next


# the file


def emptied(store: Store, database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database most of which is free, and a bound that lets it shrink."""
    monkeypatch.setattr(retention, "FREE_PAGES", 50)
    put(database, "done", 8, count=2_000, payload="x" * 500)
    put(database, "dead", 8)
    run(store, Policy(), NOW, lambda jobs: None)
    store.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def test_the_file_shrinks_step_by_step_while_nothing_is_due(
    store: Store, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    emptied(store, database, monkeypatch)
    before = os.stat(database).st_size
    free = store.value("free_pages")
    step = sweep(store, Policy(), NOW)
    assert step.pages > 0 and step.more and store.value("free_pages") == free - step.pages
    while shrink(store):
        pass
    store.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    assert os.stat(database).st_size < before / 4
    assert store.connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_the_file_is_left_alone_while_a_job_is_due_or_little_is_free(
    store: Store, queue: Queue, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    emptied(store, database, monkeypatch)
    queue.enqueue("t")
    assert sweep(store, Policy(), NOW).pages == 0
    monkeypatch.setattr(retention, "FREE_PAGES", 1_000_000)
    assert shrink(store) == 0


def test_a_file_that_a_stranger_made_without_auto_vacuum_is_left_alone(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stranger(database) as sql:
        sql.execute("CREATE TABLE posts (id INTEGER PRIMARY KEY)")
    store = Store.open(str(database))
    emptied(store, database, monkeypatch)
    assert store.value("vacuum_mode") == 0 and shrink(store) == 0
    store.close()
