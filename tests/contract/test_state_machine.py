"""The state machine as a property: any order of events, by any workers, keeps what the contract says of a job."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, precondition, rule

from pool import maintenance, process
from pool.clock import utc_text
from pool.job import AttemptOutcome, Completed, Failed, Job, NewJob, Outcome, Snoozed
from pool.maintenance import MAX_INTERRUPTIONS, Death
from pool.store import Evidence, Store
from tests.support import rows

START = 1_900_000_000
LEASE = 60
MAX_CRASHES = 2
#: A worker of a living process of ours, a stranger nobody can see into, and one that is provably dead.
ALIVE, STRANGER, GONE = "here:1:alive", "elsewhere:1:stranger", "here:1:gone"
WORKERS = st.sampled_from([ALIVE, STRANGER, GONE])
DELAYS = st.integers(0, 100)
KINDS = st.sampled_from(["done", "done", "fail", "discard", "snooze"])
SIZES = st.integers(1, 3)


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

    leases: Bundle[Job] = Bundle("leases")
    ids: Bundle[int] = Bundle("ids")

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.folder.name, "jobs.db")
        self.store = Store.open(self.path)
        self.time = START
        self.jobs: dict[int, Expected] = {}
        self.highest = 0
        me = process.this_process()
        self._register(ALIVE, me.start_time)

    def teardown(self) -> None:
        self.store.close()
        self.folder.cleanup()

    def _register(self, identity: str, start_time: int) -> None:
        me = process.this_process()._asdict() | {"start_time": start_time}
        del me["host"]
        self.store.change("register_worker", identity=identity, pool=99, number=1, now=self.now, **me)

    @property
    def now(self) -> str:
        return utc_text(self.time)

    def holds(self, lease: Job) -> bool:
        job = self.jobs[lease.id]
        return (job.place, job.status, job.worker, job.attempts) == ("jobs", "running", lease.worker, lease.attempts)

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

    # events

    @rule(
        target=ids,
        key=st.sampled_from([None, None, "a", "b"]),
        delay=DELAYS,
        priority=st.integers(-1, 1),
        most=st.integers(1, 3),
    )
    def enqueue(self, key: str | None, delay: int, priority: int, most: int) -> int:
        holder = next((i for i, j in self.jobs.items() if key and (j.key, j.place) == (key, "jobs")), None)
        run_at = self.time + delay
        done = self.store.enqueue(NewJob("t", "{}", key, priority, utc_text(run_at), most, None, self.now))
        assert done.created == (holder is None)
        if holder is not None:
            assert done.id == holder
        else:
            assert done.id > self.highest, "an id was used again"
            self.highest = done.id
            self.jobs[done.id] = Expected(most, priority, run_at, key)
        return done.id

    @rule(seconds=st.integers(1, 90))
    def time_passes(self, seconds: int) -> None:
        self.time += seconds

    def due(self) -> list[int]:
        """Ids of the due jobs, the best first."""
        due = [
            (j.priority, j.run_at, i)
            for i, j in self.jobs.items()
            if (j.place, j.status) == ("jobs", "queued") and j.run_at <= self.time
        ]
        return [each[2] for each in sorted(due)]

    def claimed(self, jobs: list[Job], worker: str, size: int) -> Any:
        """Check that the best due jobs were claimed, a group only of those nobody suspects, and enter their leases."""
        best = self.due()[:1]
        if best and not self.jobs[best[0]].crashes:
            following = [i for i in self.due()[1:] if self.jobs[i].priority == self.jobs[best[0]].priority]
            best += sorted(i for i in following[: size - 1] if not self.jobs[i].crashes)
        assert [job.id for job in jobs] == best
        for job in jobs:
            attempts = self.jobs[job.id].attempts + 1
            self.change(job.id, status="running", worker=worker, locked_at=self.time, attempts=attempts)
            assert (job.worker, job.attempts) == (worker, attempts)
        return multiple(*jobs)

    @rule(target=leases, worker=WORKERS)
    def claim(self, worker: str) -> Any:
        job = self.store.claim(worker, self.now)
        return self.claimed([job] if job else [], worker, 1)

    @rule(target=leases, worker=WORKERS, size=SIZES)
    def claim_group(self, worker: str, size: int) -> Any:
        return self.claimed(self.store.claim_group(worker, {"t": size}, self.now), worker, size)

    def outcome(self, lease: Job, kind: str, delay: int) -> Outcome:
        """An outcome, and the model after it, when the lease still holds."""
        held = self.holds(lease)
        if kind == "done":
            if held:
                self.release(lease.id, status="done", cancelling=self.jobs[lease.id].cancelling)
            return Completed("1")
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

    @rule(lease=leases, kind=KINDS, delay=DELAYS)
    def settle(self, lease: Job, kind: str, delay: int) -> None:
        held = self.holds(lease)
        assert self.store.settle(lease, self.outcome(lease, kind, delay), self.now) == held

    @rule(
        target=leases,
        ended=leases,
        other=leases,
        kind=KINDS,
        others=KINDS,
        begun=st.booleans(),
        delay=DELAYS,
        size=SIZES,
    )
    def settle_group(self, ended: Job, other: Job, kind: str, others: str, begun: bool, delay: int, size: int) -> Any:
        """Ends and claims in one transaction; the other job of the group ended as well, or was never begun."""
        both = [ended] if ended.id == other.id else [ended, other]
        lost = sum(not self.holds(lease) for lease in (both if begun else both[:1]))
        outcomes = [(ended, self.outcome(ended, kind, delay))]
        if begun and both[1:]:
            outcomes.append((other, self.outcome(other, others, delay)))
        left = [] if begun else both[1:]
        for lease in left:
            if self.holds(lease):
                self.change(lease.id, status="queued", attempts=lease.attempts - 1, worker=None, locked_at=None)
        were_lost, jobs = self.store.settle_group(outcomes, left, {"t": size}, self.now)
        assert were_lost == lost
        return self.claimed(jobs, ended.worker, size)

    def evidence(self, kind: AttemptOutcome) -> Evidence:
        return Evidence(kind, "what happened", self.now)

    def crashed(self, job_id: int) -> None:
        crashes = self.jobs[job_id].crashes + 1
        if crashes >= MAX_CRASHES:
            self.release(job_id, status="dead", crashes=crashes)
        else:
            self.retry_or_dead(job_id, crashes=crashes)

    def given_back(self, job_id: int, at_most: int) -> None:
        job = self.jobs[job_id]
        counted = job.interruptions >= at_most
        status = "dead" if counted and job.attempts >= job.max_attempts else "queued"
        self.release(job_id, status=status, attempts=job.attempts - (not counted), interruptions=job.interruptions + 1)

    @rule(lease=leases)
    def crash(self, lease: Job) -> None:
        held = self.holds(lease)
        status = self.store.crash(lease, self.evidence(AttemptOutcome.CRASHED), max_crashes=MAX_CRASHES)
        assert (status is not None) == held
        if held:
            self.crashed(lease.id)

    @rule(lease=leases)
    def time_out(self, lease: Job) -> None:
        held = self.holds(lease)
        assert (self.store.fail_for(lease, self.evidence(AttemptOutcome.TIMEOUT)) is not None) == held
        if held:
            self.retry_or_dead(lease.id, run_at=self.time + 60 * lease.attempts**2)

    @rule(lease=leases, at_most=st.integers(0, 2))
    def give_back(self, lease: Job, at_most: int) -> None:
        held = self.holds(lease)
        evidence = self.evidence(AttemptOutcome.INTERRUPTED)
        assert (self.store.give_back(lease, evidence, self.now, at_most=at_most) is not None) == held
        if held:
            self.given_back(lease.id, at_most)

    @rule(lease=leases)
    def renew(self, lease: Job) -> None:
        held = self.holds(lease)
        assert self.store.renew(lease, self.now) == held
        if held:
            self.change(lease.id, locked_at=self.time)

    @rule(lease=leases, age=st.integers(0, 120))
    def expire(self, lease: Job, age: int) -> None:
        locked_at = self.jobs[lease.id].locked_at
        old = self.holds(lease) and locked_at is not None and locked_at < self.time - age
        before = utc_text(self.time - age)
        assert (self.store.expire(lease, self.evidence(AttemptOutcome.LEASE_EXPIRED), before) is not None) == old
        if old:
            self.retry_or_dead(lease.id)

    # sweeps

    @rule()
    def reap(self) -> None:
        stale = {
            i for i, j in self.jobs.items()
            if j.status == "running" and j.place == "jobs" and j.worker != ALIVE
            and j.locked_at is not None and j.locked_at < self.time - LEASE
        }  # fmt: skip
        assert {each.job_id for each in maintenance.expire_leases(self.store, self.now, LEASE)} == stale
        for job_id in stale:
            self.retry_or_dead(job_id)

    def held_by(self, worker: str) -> set[int]:
        return {i for i, j in self.jobs.items() if (j.place, j.status, j.worker) == ("jobs", "running", worker)}

    @rule()
    def adopt(self) -> None:
        self._register(GONE, 1)
        held = self.held_by(GONE)
        assert {each.job_id for each in maintenance.adopt(self.store, self.now, None).jobs} == held
        for job_id in held:
            self.given_back(job_id, MAX_INTERRUPTIONS)

    @rule(
        worker=WORKERS,
        number=st.integers(0, 3),
        kind=st.sampled_from([None, AttemptOutcome.TIMEOUT, AttemptOutcome.INTERRUPTED]),
    )
    def worker_dies(self, worker: str, number: int, kind: AttemptOutcome | None) -> None:
        held = sorted(self.held_by(worker))
        at_hand = held[number % len(held)] if held and number else 0
        attempt = self.jobs[at_hand].attempts if at_hand else 0
        death = Death(worker, at_hand, attempt, kind, self.evidence(kind or AttemptOutcome.CRASHED), MAX_CRASHES)
        assert {each.job_id for each in maintenance.settle_death(self.store, death)} == set(held)
        for job_id in held:
            if job_id != at_hand or kind == AttemptOutcome.INTERRUPTED:
                self.given_back(job_id, 2**31)
            elif kind is None:
                self.crashed(job_id)
            else:
                self.retry_or_dead(job_id, run_at=self.time + 60 * attempt**2)
        if worker == ALIVE:
            self._register(ALIVE, process.this_process().start_time)

    # by hand

    @precondition(lambda self: self.jobs)
    @rule(job_id=ids)
    def retry(self, job_id: int) -> None:
        job = self.jobs[job_id]
        if job.place == "archive":
            if any((j.key, j.place) == (job.key, "jobs") for j in self.jobs.values() if j.key):
                return  # its key is another's now; test_archive.py says what happens then
            assert self.store.requeue(job_id, self.now)
            self.jobs[job_id] = Expected(job.max_attempts, job.priority, self.time, job.key)
            return
        possible = job.status in ("queued", "dead")
        assert self.store.requeue(job_id, self.now) == possible
        if possible:
            self.jobs[job_id] = Expected(job.max_attempts, job.priority, self.time, job.key)

    @rule(job_id=ids)
    def run_again(self, job_id: int) -> None:
        job = self.jobs[job_id]
        possible = (job.place, job.status) == ("jobs", "done")
        assert self.store.run_again(job_id, self.now) == possible
        if possible:
            self.jobs[job_id] = Expected(job.max_attempts, job.priority, self.time, job.key)

    @rule(job_id=ids)
    def archive(self, job_id: int) -> None:
        job = self.jobs[job_id]
        possible = job.place == "jobs" and job.status != "running"
        assert self.store.archive(job_id, "test", "because", self.now) == possible
        if possible:
            self.change(job_id, place="archive")

    @rule(job_id=ids)
    def cancel(self, job_id: int) -> None:
        job = self.jobs[job_id]
        wanted = {("jobs", "queued"): "cancelled", ("jobs", "running"): "requested"}.get((job.place, job.status))
        assert self.store.cancel(job_id, "test", self.now) == wanted
        if wanted == "cancelled":
            self.change(job_id, place="archive")
        elif wanted == "requested":
            self.change(job_id, cancelling=True)

    # what always holds

    @invariant()
    def the_tables_say_what_the_model_says(self) -> None:
        for place in ("jobs", "jobs_archive"):
            found = {each["id"]: each for each in rows(self.path, f"SELECT * FROM {place}")}
            expected = {i: j for i, j in self.jobs.items() if j.place == place.removeprefix("jobs_")}
            assert found.keys() == expected.keys()
            for job_id, job in expected.items() if place == "jobs" else ():
                row = found[job_id]
                assert {
                    "status": row["status"], "attempts": row["attempts"], "run_at": row["run_at"],
                    "locked_by": row["locked_by"], "locked_at": row["locked_at"], "crashes": row["crashes"],
                    "interruptions": row["interruptions"], "key": row["idempotency_key"],
                } == {
                    "status": job.status, "attempts": job.attempts, "run_at": utc_text(job.run_at),
                    "locked_by": job.worker, "locked_at": None if job.locked_at is None else utc_text(job.locked_at),
                    "crashes": job.crashes, "interruptions": job.interruptions, "key": job.key,
                }  # fmt: skip

    @invariant()
    def a_job_is_locked_exactly_while_it_runs_and_never_has_more_attempts_than_it_may(self) -> None:
        wrong = """SELECT * FROM jobs WHERE (status = 'running') <> (locked_by IS NOT NULL)
                   OR (locked_by IS NULL) <> (locked_at IS NULL) OR attempts NOT BETWEEN 0 AND max_attempts
                   OR (status = 'running' AND attempts < 1) OR (status = 'queued' AND attempts >= max_attempts)"""
        assert rows(self.path, wrong) == []

    @invariant()
    def every_failed_attempt_has_its_evidence(self) -> None:
        lost = """SELECT id FROM jobs WHERE status = 'dead'
                  AND NOT EXISTS (SELECT 1 FROM attempts WHERE job_id = jobs.id)"""
        assert rows(self.path, lost) == []


TestLife = Life.TestCase
TestLife.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
