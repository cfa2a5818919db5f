"""What has to be done for all jobs now and then: the reaper, adoption, leases.

Each is a guarded UPDATE, so several pools may do them at once, and none needs a leader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from pool import process
from pool.clock import parse_utc, utc_text
from pool.events import WARNING, Event
from pool.job import DEFAULT_MAX_CRASHES, AttemptOutcome, Job
from pool.process import Process
from pool.store import Evidence, Store

#: How often a job may be handed back because its pool died, before that counts as its own crash.
MAX_INTERRUPTIONS = 5
#: Sizes of the write-ahead log of which a pool's log and the doctor tell.
WAL_WARNING_BYTES, WAL_ALARM_BYTES = 64 << 20, 512 << 20
#: Free space below which no job is claimed, so that the ends of running ones still fit.
LOW_SPACE_BYTES = 8 << 20


class Reaped(NamedTuple):
    """A job that a sweep ended the lease of, and what became of it."""

    job_id: int
    worker: str
    status: str
    why: str

    def event(self, name: str = "job returned", level: str = WARNING) -> Event:
        """What a pool says of it: the name when it is queued again, that it is dead otherwise."""
        facts = {"job": self.job_id, "status": self.status, "detail": self.why}
        return Event("job dead", WARNING, facts) if self.status == "dead" else Event(name, level, facts)


class Death(NamedTuple):
    """What a supervisor knows of a worker that ended: who, with which job at hand, and by whose decision.

    ``killed_for`` is the outcome for which the supervisor itself ended it while that job ran, None when it died
    by itself. ``evidence`` is that of the job at hand.
    """

    identity: str
    job_id: int
    attempt: int
    killed_for: AttemptOutcome | None
    evidence: Evidence
    max_crashes: int = DEFAULT_MAX_CRASHES


def settle_death(store: Store, death: Death) -> list[Reaped]:
    """Return what a dead worker held: the job it ran by its outcome, others (never begun) with their attempt back."""
    ended = []
    for job in store.held_by(death.identity):
        at_hand = (job.id, job.attempts) == (death.job_id, death.attempt)
        if not at_hand or death.killed_for == AttemptOutcome.INTERRUPTED:
            evidence = death.evidence if at_hand else None
            status = store.give_back(job, evidence, death.evidence.ended_at)
        elif death.killed_for is None:
            status = store.crash(job, death.evidence, max_crashes=death.max_crashes)
        else:
            status = store.fail_for(job, death.evidence)
        if status is not None:
            ended.append(Reaped(job.id, job.worker, status, death.evidence.error))
    store.change("forget_worker", identity=death.identity)
    return ended


class Adopted(NamedTuple):
    """Jobs returned, and the tokens of the dead workers that held them or left processes behind."""

    jobs: list[Reaped]
    tokens: list[str]


def adopt(
    store: Store, now: str, own_pool: int | None, end_strays: Callable[[list[str]], None] = lambda tokens: None
) -> Adopted:
    """Return the jobs of workers that are provably dead on this kernel, at once, and forget their pools.

    ``end_strays`` is called first, with the tokens of those workers: what their jobs left running must not meet the
    next run.

    The dead workers of a living pool, such as ``own_pool``, are left to its supervisor: only that one knows how they
    ended, and has to charge the job for it.
    """
    ended: list[Reaped] = []
    pools = store.rows("pools")
    dead_pools = {row["id"] for row in pools if process.is_provably_dead(process.of_row(row))} - {own_pool}
    living_pools = {row["id"] for row in pools} - dead_pools | {own_pool}
    dead = [
        row
        for row in store.rows("workers")
        if row["pool_id"] not in living_pools and process.is_provably_dead(process.of_row(row))
    ]
    if tokens := [str(row["identity"]).rpartition(":")[2] for row in dead]:
        end_strays(tokens)
    for row in dead:
        for job in store.held_by(row["identity"]):
            ended += _hand_back(store, job, now)
        store.change("forget_worker", identity=row["identity"])
    for pool in dead_pools:
        store.change("forget_pool", pool=pool)
    return Adopted(ended, tokens)


def forget_silent_pools(store: Store, now: str, own_pool: int | None, lease: float) -> None:
    """Take off the record the pools that we cannot see (another container, another host) and that said nothing for a
    lease. What their workers held comes back by its own lease. Those that are provably dead are left to ``adopt``."""
    before = utc_text(parse_utc(now) - lease)
    for row in store.rows("pools"):
        who = process.of_row(row)
        visible = process.is_provably_dead(who) or _is_alive_here(who)
        if row["id"] != own_pool and row["seen_at"] < before and not visible:
            store.change("forget_workers_of", pool=row["id"])
            store.change("forget_pool", pool=row["id"])


def _hand_back(store: Store, job: Job, now: str) -> list[Reaped]:
    error = "its pool died while it ran"
    evidence = Evidence(AttemptOutcome.INTERRUPTED, error, now)
    status = store.give_back(job, evidence, now, at_most=MAX_INTERRUPTIONS)
    return [] if status is None else [Reaped(job.id, job.worker, status, error)]


def expire_leases(store: Store, now: str, lease: float) -> list[Reaped]:
    """End leases older than ``lease`` seconds, except those of processes this kernel says are alive."""
    before = utc_text(parse_utc(now) - lease)
    rows = store.rows("stale_leases", before=before)
    if not rows:
        return []
    alive = {row["identity"] for row in store.rows("workers") if _is_alive_here(process.of_row(row))}
    ended = []
    for row in rows:
        job = Job._make(list(row.values())[:10])
        if job.worker in alive:
            continue
        error = f"the lease of {job.worker or 'nobody'} was not renewed since {row['locked_at']}"
        evidence = Evidence(AttemptOutcome.LEASE_EXPIRED, error, now, started_at=row["locked_at"])
        if status := store.expire(job, evidence, before):
            ended.append(Reaped(job.id, job.worker, status, error))
    return ended


def renew_leases(store: Store, identities: Iterable[str], now: str) -> None:
    """Keep fresh the leases of living workers."""
    for identity in identities:
        store.change("renew_held", worker=identity, now=now)


def _is_alive_here(other: Process) -> bool:
    me = process.this_process()
    same_view = (other.boot_id, other.pid_namespace) == (me.boot_id, me.pid_namespace)
    return same_view and process.start_time(other.pid) == other.start_time
