"""The state machine as a property: any order of events, by any workers, keeps what the contract says of a job."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pool import maintenance, process
from pool.clock import utc_text
from pool.job import AttemptOutcome, Completed, Failed, Job, NewJob, Outcome, Snoozed
from pool.maintenance import MAX_INTERRUPTIONS, Death
from pool.store import Evidence, Store

START = 1_900_000_000
LEASE = 60
MAX_CRASHES = 2
#: A worker of a living process of ours, a stranger nobody can see into, and one that is provably dead.
ALIVE, STRANGER, GONE = "here:1:alive", "elsewhere:1:stranger", "here:1:gone"
WORKERS = st.sampled_from([ALIVE, STRANGER, GONE])
DELAYS = st.sampled_from([0, 0, 0, 5, 100])
ENDS = ["done", "done with a result", "fail", "fail", "discard", "snooze"]
EVENTS = [*ENDS, "crash", "crash", "time out", "give back", "renew", "expire"]
DEATHS = {"crash": None, "time out": AttemptOutcome.TIMEOUT, "interrupted": AttemptOutcome.INTERRUPTED}
SWEEPS = [None, None, "reap", "adopt", *DEATHS]
SIZES = st.integers(1, 3)
#: Which of the leases, or of the jobs: the first half are the current ones, so that most events meet something.
PICKS = st.integers(0, 15)


@dataclass(frozen=True)
class Expected:
    """What a row must say."""

    max_attempts: int
    priority: int
    run_at: int
    key: str | None
    place: str = "jobs"
    status: str = "queued"
    attempts: int = 0
    crashes: int = 0
    interruptions: int = 0
    worker: str | None = None
    locked_at: int | None = None
    cancelling: bool = False


class Life(RuleBasedStateMachine):
    """Rules are the events; ``self.jobs`` is the model of what each has to leave behind."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        path = os.path.join(self.folder.name, "jobs.db")
        self.store = Store.open(path)
        self.reader = sqlite3.connect(path, isolation_level=None)
        self.reader.row_factory = sqlite3.Row
        self.time = START
        self.jobs: dict[int, Expected] = {}
        self.leases: list[Job] = []
        self.highest = 0
        self._register(ALIVE, process.this_process().start_time)

    def teardown(self) -> None:
        self.reader.close()
        self.store.close()
        self.folder.cleanup()

    def _register(self, identity: str, start_time: int) -> None:
        me = process.this_process()._asdict() | {"start_time": start_time}
        del me["host"]
        self.store.change("register_worker", identity=identity, pool=99, number=1, now=self.now, **me)

    @property
    def now(self) -> str:
        return utc_text(self.time)

    def rows(self, sql: str) -> list[sqlite3.Row]:
        return self.reader.execute(sql).fetchall()

    # the model

    def holds(self, lease: Job) -> bool:
        job = self.jobs[lease.id]
        return (job.place, job.status, job.worker, job.attempts) == ("jobs", "running", lease.worker, lease.attempts)

    def held_by(self, worker: str) -> set[int]:
        return {i for i, j in self.jobs.items() if (j.place, j.status, j.worker) == ("jobs", "running", worker)}

    def pick_lease(self, number: int) -> Job:
        """A lease that holds, if there is one, for half the numbers; any there ever was for the others."""
        held = [lease for lease in self.leases if self.holds(lease)]
        chosen = held if held and number % 2 else self.leases
        return chosen[-1 - number // 2 % len(chosen)]

    def pick_job(self, number: int) -> int:
        return sorted(self.jobs)[-1 - number % len(self.jobs)]

    def change(self, job_id: int, **fields: Any) -> None:
        self.jobs[job_id] = replace(self.jobs[job_id], **fields)

    def release(self, job_id: int, **fields: Any) -> None:
        """The lease ends: to the archive when someone asked to cancel, else as the fields say."""
        if self.jobs[job_id].cancelling and fields["status"] != "done":
            fields = {"place": "archive"}
        self.change(job_id, worker=None, locked_at=None, **fields)

    def retry_or_dead(self, job_id: int, **fields: Any) -> None:
        job = self.jobs[job_id]
        self.release(job_id, status="dead" if job.attempts >= job.max_attempts else "queued", **fields)

    def crashed(self, job_id: int) -> None:
        crashes = self.jobs[job_id].crashes + 1
        if crashes >= MAX_CRASHES:
            self.release(job_id, status="dead", crashes=crashes)
        else:
            self.retry_or_dead(job_id, crashes=crashes)

    def timed_out(self, job_id: int) -> None:
        self.retry_or_dead(job_id, run_at=self.time + 60 * self.jobs[job_id].attempts ** 2)

    def given_back(self, job_id: int, at_most: int) -> None:
        job = self.jobs[job_id]
        counted = job.interruptions >= at_most
        status = "dead" if counted and job.attempts >= job.max_attempts else "queued"
        self.release(job_id, status=status, attempts=job.attempts - (not counted), interruptions=job.interruptions + 1)

    def outcome(self, lease: Job, kind: str, delay: int) -> Outcome:
        """An outcome, and the model after it, when the lease still holds."""
        held = self.holds(lease)
        if kind.startswith("done"):
            if held:
                self.release(lease.id, status="done")
            return Completed("1" if "result" in kind else None)
        if kind == "snooze":
            if held:
                attempts = lease.attempts if self.jobs[lease.id].cancelling else lease.attempts - 1
                self.release(lease.id, status="queued", run_at=self.time + delay, attempts=attempts)
            return Snoozed(delay)
        if held and kind == "discard":
            self.release(lease.id, status="dead", run_at=self.time)
        elif held:
            self.retry_or_dead(lease.id, run_at=self.time + delay)
        return Failed("no luck", delay=delay, permanent=kind == "discard")

    def due(self) -> list[int]:
        """Ids of the due jobs, the best first."""
        due = [
            (j.priority, j.run_at, i)
            for i, j in self.jobs.items()
            if (j.place, j.status) == ("jobs", "queued") and j.run_at <= self.time
        ]
        return [each[2] for each in sorted(due)]

    def claimed(self, jobs: list[Job], worker: str, size: int) -> None:
        """Check that the best due jobs were claimed, a group only of those nobody suspects, and enter their leases."""
        best = self.due()[:1]
        if best and not self.jobs[best[0]].crashes:
            following = [i for i in self.due()[1:] if self.jobs[i].priority == self.jobs[best[0]].priority]
            best += [i for i in following[: size - 1] if not self.jobs[i].crashes]
        assert [job.id for job in jobs] == best
        for job in jobs:
            attempts = self.jobs[job.id].attempts + 1
            self.change(job.id, status="running", worker=worker, locked_at=self.time, attempts=attempts)
            assert (job.worker, job.attempts) == (worker, attempts)
            self.leases.append(job)

    # events

    @initialize()
    def begin(self) -> None:
        for _ in range(2):
            self.enqueue(None, 0, 0, 3)
        self.claim(STRANGER, 1)

    @rule(
        key=st.sampled_from([None, None, "a", "b"]),
        delay=DELAYS,
        priority=st.sampled_from([0, 0, 0, 1, -1]),
        most=st.integers(1, 4),
    )
    def enqueue(self, key: str | None, delay: int, priority: int, most: int) -> None:
        holder = next((i for i, j in self.jobs.items() if key and (j.key, j.place) == (key, "jobs")), None)
        run_at = self.time + delay
        done = self.store.enqueue(NewJob("t", "{}", key, priority, utc_text(run_at), most, None, self.now))
        assert done.created == (holder is None)
        if holder is not None:
            assert done.id == holder
            return
        assert done.id > self.highest, "an id was used again"
        self.highest = done.id
        self.jobs[done.id] = Expected(most, priority, run_at, key)

    @rule(worker=WORKERS, size=SIZES)
    def claim(self, worker: str, size: int) -> None:
        """The best due job, or a group; there is always one, or most claims would find nothing."""
        if not self.due():
            self.enqueue(None, 0, 0, 3)
        if size == 1:
            job = self.store.claim(worker, self.now)
            self.claimed([job] if job else [], worker, 1)
        else:
            self.claimed(self.store.claim_group(worker, {"t": size}, self.now), worker, size)

    @precondition(lambda self: self.leases)
    @rule(
        pick=PICKS,
        other=PICKS,
        kinds=st.tuples(st.sampled_from(ENDS), st.sampled_from([*ENDS, "done", None])),
        delay=DELAYS,
        size=SIZES,
    )
    def settle_group(self, pick: int, other: int, kinds: tuple[str, str | None], delay: int, size: int) -> None:
        """Ends and claims in one transaction; the second job of the group ended as well, or was never begun."""
        first, second = self.pick_lease(pick), self.pick_lease(other)
        both = [first] if first.id == second.id else [first, second]
        ended = both if kinds[1] else both[:1]
        lost = sum(not self.holds(lease) for lease in ended)
        outcomes = [(lease, self.outcome(lease, kind or "", delay)) for lease, kind in zip(ended, kinds, strict=False)]
        left = both[len(ended) :]
        for lease in left:
            if self.holds(lease):
                self.change(lease.id, status="queued", attempts=lease.attempts - 1, worker=None, locked_at=None)
        were_lost, jobs = self.store.settle_group(outcomes, left, {"t": size}, self.now)
        assert were_lost == lost
        self.claimed(jobs, first.worker, size)

    def evidence(self, kind: AttemptOutcome) -> Evidence:
        return Evidence(kind, "what happened", self.now)

    @precondition(lambda self: self.leases)
    @rule(pick=PICKS, event=st.sampled_from(EVENTS), delay=DELAYS, age=st.sampled_from([0, 1, 59, 60, 61]))
    def a_lease_is_used(self, pick: int, event: str, delay: int, age: int) -> None:
        """By its worker, by that one's supervisor, or by a reaper; held or lost meanwhile."""
        lease = self.pick_lease(pick)
        held = self.holds(lease)
        if event == "renew":
            assert self.store.renew(lease, self.now) == held
            if held:
                self.change(lease.id, locked_at=self.time)
        elif event == "crash":
            status = self.store.crash(lease, self.evidence(AttemptOutcome.CRASHED), max_crashes=MAX_CRASHES)
            assert (status is not None) == held
            if held:
                self.crashed(lease.id)
        elif event == "time out":
            assert (self.store.fail_for(lease, self.evidence(AttemptOutcome.TIMEOUT)) is not None) == held
            if held:
                self.timed_out(lease.id)
        elif event == "give back":
            status = self.store.give_back(lease, self.evidence(AttemptOutcome.INTERRUPTED), self.now, at_most=delay % 3)
            assert (status is not None) == held
            if held:
                self.given_back(lease.id, delay % 3)
        elif event == "expire":
            self.expire(lease, age)
        else:
            assert self.store.settle(lease, self.outcome(lease, event, delay), self.now) == held

    def expire(self, lease: Job, age: int) -> None:
        locked_at = self.jobs[lease.id].locked_at
        old = self.holds(lease) and locked_at is not None and locked_at < self.time - age
        before = utc_text(self.time - age)
        assert (self.store.expire(lease, self.evidence(AttemptOutcome.LEASE_EXPIRED), before) is not None) == old
        if old:
            self.retry_or_dead(lease.id)

    @rule(
        seconds=st.sampled_from([0, 1, 10, 59, 60, 61, 130]), worker=WORKERS, pick=PICKS, sweep=st.sampled_from(SWEEPS)
    )
    def time_passes(self, seconds: int, worker: str, pick: int, sweep: str | None) -> None:
        self.time += seconds
        if sweep == "reap":
            self.reap()
        elif sweep == "adopt":
            self.adopt()
        elif sweep is not None:
            self.worker_dies(worker, pick, DEATHS[sweep])

    def reap(self) -> None:
        running = {i: j for i, j in self.jobs.items() if (j.place, j.status) == ("jobs", "running")}
        stale = {
            i
            for i, j in running.items()
            if j.worker != ALIVE and j.locked_at is not None and j.locked_at < self.time - LEASE
        }
        assert {each.job_id for each in maintenance.expire_leases(self.store, self.now, LEASE)} == stale
        for job_id in stale:
            self.retry_or_dead(job_id)

    def adopt(self) -> None:
        self._register(GONE, 1)
        held = self.held_by(GONE)
        assert {each.job_id for each in maintenance.adopt(self.store, self.now, None).jobs} == held
        for job_id in held:
            self.given_back(job_id, MAX_INTERRUPTIONS)

    def worker_dies(self, worker: str, pick: int, kind: AttemptOutcome | None) -> None:
        held = sorted(self.held_by(worker))
        at_hand = held[pick % len(held)] if held and pick else 0
        attempt = self.jobs[at_hand].attempts if at_hand else 0
        death = Death(worker, at_hand, attempt, kind, self.evidence(kind or AttemptOutcome.CRASHED), MAX_CRASHES)
        assert {each.job_id for each in maintenance.settle_death(self.store, death)} == set(held)
        for job_id in held:
            if job_id != at_hand or kind == AttemptOutcome.INTERRUPTED:
                self.given_back(job_id, 2**31)
            elif kind is None:
                self.crashed(job_id)
            else:
                self.timed_out(job_id)
        if worker == ALIVE:
            self._register(ALIVE, process.this_process().start_time)

    @precondition(lambda self: self.jobs)
    @rule(pick=PICKS, action=st.sampled_from(["retry", "retry", "run again", "archive", "cancel"]))
    def a_person_acts(self, pick: int, action: str) -> None:
        job_id = self.pick_job(pick)
        actions = {"retry": self.retry, "run again": self.run_again, "archive": self.archive, "cancel": self.cancel}
        actions[action](job_id, self.jobs[job_id])

    def retry(self, job_id: int, job: Expected) -> None:
        taken = any((j.key, j.place) == (job.key, "jobs") for j in self.jobs.values() if j.key)
        if job.place == "archive" and taken:
            return  # its key is another's now; test_queue.py says what happens then
        possible = job.place == "archive" or job.status in ("queued", "dead")
        assert self.store.requeue(job_id, self.now) == possible
        if possible:
            self.jobs[job_id] = Expected(job.max_attempts, job.priority, self.time, job.key)

    def run_again(self, job_id: int, job: Expected) -> None:
        possible = (job.place, job.status) == ("jobs", "done")
        assert self.store.run_again(job_id, self.now) == possible
        if possible:
            self.jobs[job_id] = Expected(job.max_attempts, job.priority, self.time, job.key)

    def archive(self, job_id: int, job: Expected) -> None:
        possible = job.place == "jobs" and job.status != "running"
        assert self.store.archive(job_id, "test", "because", self.now) == possible
        if possible:
            self.change(job_id, place="archive")

    def cancel(self, job_id: int, job: Expected) -> None:
        wanted = {("jobs", "queued"): "cancelled", ("jobs", "running"): "requested"}.get((job.place, job.status))
        assert self.store.cancel(job_id, "test", self.now) == wanted
        if wanted == "cancelled":
            self.change(job_id, place="archive")
        elif wanted == "requested":
            self.change(job_id, cancelling=True)

    # what always holds

    @invariant()
    def the_tables_say_what_the_model_says(self) -> None:
        archived = {row["id"] for row in self.rows("SELECT id FROM jobs_archive")}
        assert archived == {i for i, j in self.jobs.items() if j.place == "archive"}
        found = {row["id"]: row for row in self.rows("SELECT * FROM jobs")}
        expected = {i: j for i, j in self.jobs.items() if j.place == "jobs"}
        assert found.keys() == expected.keys()
        columns = (
            "status",
            "attempts",
            "run_at",
            "locked_by",
            "locked_at",
            "crashes",
            "interruptions",
            "idempotency_key",
        )
        for job_id, job in expected.items():
            locked_at = None if job.locked_at is None else utc_text(job.locked_at)
            said = (job.status, job.attempts, utc_text(job.run_at), job.worker, locked_at, job.crashes)
            assert tuple(found[job_id][name] for name in columns) == (*said, job.interruptions, job.key)

    @invariant()
    def a_job_is_locked_exactly_while_it_runs_and_never_has_more_attempts_than_it_may(self) -> None:
        wrong = """SELECT * FROM jobs WHERE (status = 'running') <> (locked_by IS NOT NULL)
                   OR (locked_by IS NULL) <> (locked_at IS NULL) OR attempts NOT BETWEEN 0 AND max_attempts
                   OR (status = 'running' AND attempts < 1) OR (status = 'queued' AND attempts >= max_attempts)"""
        assert self.rows(wrong) == []

    @invariant()
    def every_dead_job_has_the_evidence_of_how_it_died(self) -> None:
        lost = """SELECT id FROM jobs WHERE status = 'dead'
                  AND NOT EXISTS (SELECT 1 FROM attempts WHERE job_id = jobs.id)"""
        assert self.rows(lost) == []


TestLife = pytest.mark.timeout(600)(Life.TestCase)
TestLife.settings = settings(
    max_examples=150, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)
