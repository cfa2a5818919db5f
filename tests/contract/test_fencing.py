"""Endings are fenced by the lease: whoever lost it changes nothing, in whatever order two connections meet."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pool import Queue, maintenance, process
from pool.clock import now_text, utc_text
from pool.job import AttemptOutcome, Cancelled, Completed, Failed, Job, NewJob, Outcome, Snoozed
from pool.maintenance import Death
from pool.store import Evidence, Store
from tests.support import row, rows

NOW, LATER, MUCH_LATER = (utc_text(1_900_000_000 + seconds) for seconds in (0, 700, 1400))
EVIDENCE = Evidence(AttemptOutcome.LEASE_EXPIRED, "expired", LATER)


@pytest.fixture
def other(store: Store, database: Path) -> Iterator[Store]:
    """A second connection to the same database."""
    opened = Store.open(str(database))
    yield opened
    opened.close()


@pytest.fixture
def job(store: Store) -> Job:
    """A job that worker one holds."""
    store.enqueue(NewJob("t", "{}", None, 0, NOW, 5, None, NOW))
    claimed = store.claim("one", NOW)
    assert claimed is not None
    return claimed


#: A lease that no row ever had.
NOBODYS = Job._make("nobody's" if name == "worker" else 0 for name in Job._fields)

ENDINGS: dict[str, Callable[[Store, Job], object]] = {
    "complete": lambda store, job: store.settle(job, Completed("1"), MUCH_LATER),
    "fail": lambda store, job: store.settle(job, Failed("late"), MUCH_LATER),
    "discard": lambda store, job: store.settle(job, Failed("late", permanent=True), MUCH_LATER),
    "snooze": lambda store, job: store.settle(job, Snoozed(1.0), MUCH_LATER),
    "cancelled": lambda store, job: store.settle(job, Cancelled("late"), MUCH_LATER),
    "settle in a group": lambda store, job: not store.settle_group([(job, Completed("1"))] * 2, [], None, LATER)[0],
    "complete in a group": lambda store, job: (
        store.settle_group([(job, Completed()), (NOBODYS, Completed())], [], None, LATER)[0] - 2
    ),
    "release": lambda store, job: store.settle_group([(NOBODYS, Completed())], [job], None, LATER)[0] - 1,
    "renew": lambda store, job: store.renew(job, MUCH_LATER),
    "crash": lambda store, job: store.crash(job, EVIDENCE, max_crashes=3),
    "time out": lambda store, job: store.fail_for(job, EVIDENCE),
    "give back": lambda store, job: store.give_back(job, EVIDENCE, MUCH_LATER),
    "expire": lambda store, job: store.expire(job, EVIDENCE, MUCH_LATER),
}


@pytest.mark.parametrize("name", ENDINGS)
@pytest.mark.parametrize(
    "state",
    [
        "queued",
        "running again",
        "running under the same name",
        "running with the same attempt",
        "done",
        "dead",
        "archived",
    ],
)
def test_who_lost_the_lease_changes_nothing(
    name: str, state: str, store: Store, other: Store, job: Job, database: Path
) -> None:
    if state == "running with the same attempt":
        assert other.give_back(job, None, LATER)
    else:
        assert maintenance.expire_leases(other, LATER, 600.0)
    if state != "queued":
        again = other.claim("one" if "same name" in state else "two", LATER)
        assert again is not None
        if state in ("done", "archived"):
            other.settle(again, Completed(None), LATER)
        if state == "dead":
            other.settle(again, Failed("x", permanent=True), LATER)
        if state == "archived":
            other.archive(job.id, "me", "", LATER)
    before = [rows(database, f"SELECT * FROM {table}") for table in ("jobs", "jobs_archive", "attempts")]
    assert not ENDINGS[name](store, job)
    assert [rows(database, f"SELECT * FROM {table}") for table in ("jobs", "jobs_archive", "attempts")] == before


def test_a_late_completion_does_not_keep_its_worker_from_the_next_job(store: Store, other: Store, job: Job) -> None:
    maintenance.expire_leases(other, LATER, 600.0)
    lost, (following,) = store.settle_group([(job, Completed(None))], [], {}, LATER)
    assert lost == 1
    assert (following.id, following.attempts) == (job.id, 2)


class Pausing(Store):
    """A store whose ``rows`` lets another act after it has read and before anything is written."""

    between: Callable[[], object]

    def rows(self, statement: str, **bound: object) -> list[dict[str, object]]:
        found = super().rows(statement, **bound)
        if statement == "stale_leases":
            self.between()
        return found


@pytest.fixture
def pausing(store: Store, database: Path) -> Iterator[Pausing]:
    """A reaper that can be stopped between reading and writing."""
    opened = Pausing.open(str(database))
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (Completed("1"), "done"),
        (Failed("x", permanent=True), "dead"),
        (Snoozed(5.0), "queued"),
        (Failed("x"), "queued"),
    ],
)
def test_a_job_that_ends_while_the_reaper_pauses_stays_as_it_ended(
    outcome: Outcome, status: str, store: Store, pausing: Pausing, job: Job, database: Path
) -> None:
    pausing.between = lambda: store.settle(job, outcome, LATER)
    assert maintenance.expire_leases(pausing, LATER, 600.0) == []
    found = row(database)
    assert found["status"] == status and found["updated_at"] == LATER
    assert "renewed" not in (found["last_error"] or "")


def test_a_lease_renewed_while_the_reaper_pauses_holds(
    store: Store, pausing: Pausing, job: Job, database: Path
) -> None:
    pausing.between = lambda: store.renew(job, LATER)
    assert maintenance.expire_leases(pausing, LATER, 600.0) == []
    assert store.settle(job, Completed(None), LATER)


def test_a_job_that_another_holds_by_the_time_the_reaper_writes_is_left_alone(
    store: Store, other: Store, pausing: Pausing, job: Job, database: Path
) -> None:
    def between() -> None:
        other.expire(job, EVIDENCE, LATER)
        assert other.claim("two", NOW)  # with an old lease of its own

    pausing.between = between
    assert maintenance.expire_leases(pausing, LATER, 600.0) == []
    assert (row(database)["locked_by"], row(database)["attempts"]) == ("two", 2)


def test_two_reapers_end_a_lease_once(store: Store, other: Store, pausing: Pausing, job: Job, database: Path) -> None:
    pausing.between = lambda: maintenance.expire_leases(other, LATER, 600.0)
    assert maintenance.expire_leases(pausing, LATER, 600.0) == []
    assert row(database)["attempts"] == 1
    assert [each["outcome"] for each in rows(database, "SELECT * FROM attempts")] == ["lease expired"]


def test_a_done_job_stays_done_whatever_its_dead_worker_s_pool_does_then(
    store: Store, job: Job, database: Path
) -> None:
    assert store.settle(job, Completed("1"), NOW)
    death = Death("one", job.id, job.attempts, None, Evidence(AttemptOutcome.CRASHED, "killed", LATER))
    assert maintenance.settle_death(store, death) == []
    assert row(database)["status"] == "done" and rows(database, "SELECT * FROM attempts") == []


def register(store: Store, pool_start: int, worker_start: int, worker: str = "one") -> int:
    """A pool and its worker on record, each alive if its start time is this process's own."""
    me = process.this_process()._asdict()
    ((pool_id,),) = store.change(
        "register_pool", **(me | {"start_time": pool_start}), now=NOW, state="running", target=1, exclusive=False
    )
    del me["host"]
    store.change(
        "register_worker", **(me | {"start_time": worker_start}), identity=worker, pool=pool_id, number=1, now=NOW
    )
    return int(pool_id)


def test_the_jobs_of_a_dead_pool_are_adopted_with_the_attempt_given_back(
    store: Store, job: Job, database: Path
) -> None:
    register(store, 1, 1)
    (ended,) = maintenance.adopt(store, LATER, None).jobs
    assert (ended.job_id, ended.status) == (job.id, "queued")
    found = row(database)
    assert (found["attempts"], found["interruptions"], found["crashes"], found["last_error"]) == (0, 1, 0, None)
    assert rows(database, "SELECT * FROM workers") == rows(database, "SELECT * FROM pools") == []


def test_what_a_dead_worker_s_job_started_is_ended_before_the_job_is_given_back(
    store: Store, job: Job, database: Path
) -> None:
    register(store, 1, 1)
    seen: list[tuple[list[str], str]] = []
    maintenance.adopt(store, LATER, None, lambda tokens: seen.append((tokens, row(database)["status"])))
    assert seen == [([job.worker.rpartition(":")[2]], "running")]
    assert row(database)["status"] == "queued"


def test_a_job_that_takes_its_pool_down_again_and_again_ends_dead(store: Store, database: Path) -> None:
    store.enqueue(NewJob("t", "{}", None, 0, NOW, 2, None, NOW))
    told = []
    while (claimed := store.claim("one", NOW)) and len(told) < 20:
        register(store, 1, 1)
        (ended,) = maintenance.adopt(store, NOW, None).jobs
        told.append(ended.event("job adopted").name)
    assert claimed is None and row(database)["status"] == "dead"
    rounds = maintenance.MAX_INTERRUPTIONS + 2
    assert told == ["job adopted"] * (rounds - 1) + ["job dead"]
    assert row(database)["last_error"] == f"its pool died while it ran; interrupted {rounds} times"


def test_a_worker_that_dies_under_a_living_pool_is_left_to_that_pool_s_supervisor(
    store: Store, job: Job, database: Path
) -> None:
    """Only its supervisor knows how it ended; adopted by another, a crash would not be charged to the job."""
    alive = process.this_process().start_time
    register(store, alive, worker_start=1)
    assert maintenance.adopt(store, LATER, None).jobs == []
    assert row(database)["status"] == "running"
    death = Death("one", job.id, job.attempts, None, Evidence(AttemptOutcome.CRASHED, "killed", LATER))
    assert [each.status for each in maintenance.settle_death(store, death)] == ["queued"]
    assert (row(database)["crashes"], row(database)["attempts"]) == (1, 1)


def test_the_lease_of_a_process_that_is_alive_does_not_end_by_age(store: Store, job: Job) -> None:
    alive = process.this_process().start_time
    register(store, alive, alive)
    assert maintenance.adopt(store, LATER, None).jobs == []
    assert maintenance.expire_leases(store, MUCH_LATER, 600.0) == []


def test_a_later_process_with_the_pid_of_a_dead_worker_does_not_keep_its_lease_alive(store: Store, job: Job) -> None:
    register(store, 1, 1)  # this process's pid, another start time
    assert len(maintenance.adopt(store, LATER, None).jobs) == 1


def test_a_worker_in_another_pid_namespace_is_judged_by_age_alone(store: Store, job: Job) -> None:
    me = process.this_process()._asdict() | {"pid_namespace": "pid:[1]", "pid": 4_194_303}
    del me["host"]
    store.change("register_worker", **me, identity="one", pool=1, number=1, now=NOW)
    assert maintenance.adopt(store, LATER, None).jobs == []
    assert len(maintenance.expire_leases(store, LATER, 600.0)) == 1


def test_a_worker_of_an_earlier_boot_of_this_machine_is_dead_and_one_of_another_machine_is_not(
    store: Store, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_machine", lambda: "this-machine")
    me = process.this_process()._asdict() | {"boot_id": "earlier"}
    del me["host"]
    store.change("register_worker", **(me | {"machine": "other"}), identity="one", pool=1, number=1, now=NOW)
    assert maintenance.adopt(store, LATER, None).jobs == []
    store.change("forget_worker", identity="one")
    store.change("register_worker", **(me | {"machine": "this-machine"}), identity="one", pool=1, number=1, now=NOW)
    assert len(maintenance.adopt(store, LATER, None).jobs) == 1


@pytest.mark.parametrize("hidden_from", ["it", "us"])
def test_a_hidden_boot_id_proves_nobody_dead(hidden_from: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with ProcSubset=pid in a unit of systemd: this very process would be taken for one of an earlier boot."""
    monkeypatch.setattr(process, "_machine", lambda: "this-machine")
    me = process.this_process()
    if hidden_from == "it":
        me = me._replace(boot_id="")
    else:
        monkeypatch.setattr(process, "boot_id", lambda: "")
    assert not process.is_provably_dead(me)


def test_a_queue_whose_lease_was_lost_says_so_and_drops_the_result(
    queue: Queue, store: Store, database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    queue.enqueue("t")
    job = queue.claim()
    assert job is not None
    assert store.expire(job, EVIDENCE, MUCH_LATER)
    with caplog.at_level(logging.WARNING):
        assert not queue.complete(job, {"late": True})
        assert not queue.fail(job, "late")
        assert not queue.renew(job)
    assert f"job {job.id}: its lease was lost" in caplog.text
    assert row(database)["result"] is None and row(database)["status"] == "queued"


# cancelling


def test_a_job_cancelled_while_it_runs_goes_to_the_archive_when_it_ends(store: Store, job: Job, database: Path) -> None:
    assert store.cancel(job.id, "me", NOW) == "requested"
    assert store.settle(job, Failed("stopped early"), LATER)
    assert rows(database) == []
    (archived,) = rows(database, "SELECT * FROM jobs_archive")
    assert archived["locked_by"] is None and archived["archived_at"] == LATER
    assert [each["outcome"] for each in rows(database, "SELECT * FROM attempts")] == ["cancelled"]


def test_a_job_that_completes_before_it_hears_of_its_cancelling_is_done(store: Store, job: Job, database: Path) -> None:
    store.cancel(job.id, "me", NOW)
    assert store.settle(job, Completed("1"), LATER)
    assert row(database)["status"] == "done"


@pytest.mark.parametrize("ending", ["run again", "retry"])
def test_a_job_queued_anew_is_not_cancelled_by_an_order_from_before(
    ending: str, store: Store, job: Job, database: Path
) -> None:
    store.cancel(job.id, "me", NOW)
    if ending == "run again":
        store.settle(job, Completed("1"), LATER)
        assert store.run_again(job.id, LATER)
    else:
        store.settle(job, Failed("x"), LATER)
        assert store.requeue(job.id, LATER)
    again = store.claim("two", LATER)
    assert again is not None
    assert store.settle(again, Failed("no luck"), MUCH_LATER)
    assert row(database)["status"] == "queued"


def test_now_is_text_that_sorts_with_the_leases(store: Store) -> None:
    assert NOW < LATER < MUCH_LATER and len(now_text()) == len(NOW)


def test_a_pool_that_cannot_be_seen_is_forgotten_when_it_was_silent_for_a_lease(store: Store) -> None:
    me = process.this_process()
    here = me.pid_namespace
    gone = 4_194_303  # above every pid: provably dead, and so a matter for adopt, which returns what it held
    for namespace, pid, seen in (("pid:[1]", 1, NOW), ("pid:[2]", 1, LATER), (here, me.pid, NOW), (here, gone, NOW)):
        bound = {**me._asdict(), "pid_namespace": namespace, "pid": pid}
        store.change("register_pool", **bound, now=seen, state="running", target=1, exclusive=0)
    maintenance.forget_silent_pools(store, LATER, None, 600.0)
    assert [(row["pid_namespace"], row["pid"]) for row in store.rows("pools")] == [
        ("pid:[2]", 1), (here, me.pid), (here, gone),
    ]  # fmt: skip
