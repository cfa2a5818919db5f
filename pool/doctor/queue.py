"""Checks of the jobs and of who works on them."""

from __future__ import annotations

import collections
import difflib
import json
from collections.abc import Iterable
from typing import Any

from pool import process
from pool.clock import parse_utc, utc_text
from pool.doctor.finding import Finding, InsideCheck, Opened, ok, span, warn
from pool.store import Row

#: A row so much younger than now was written by another clock, or by this one before it was set back.
_CLOCK_SECONDS = 5.0
#: The lease of a holder that cannot be seen (pool run --lease).
_LEASE_SECONDS = 600.0
_OLD_SECONDS = 3600.0
_FAR_SECONDS = 366 * 86_400.0
_TYPES, _FAILED = 1_000, 10_000
#: Types named at most.
_NAMED = 5


def clock(opened: Opened) -> Finding:
    """Whether rows are younger than now."""
    newest = opened.value("newest_change")
    if newest is None:
        return ok("clock", "no row to compare it with")
    ahead = parse_utc(newest) - opened.subject.at
    if ahead > _CLOCK_SECONDS:
        return warn(
            "clock",
            f"the newest row is {span(ahead)} ahead of this clock ({newest} UTC)",
            "the clock was set back, or another host's is wrong: jobs become due late until then; check NTP",
        )
    return ok("clock", f"the newest row is {span(max(-ahead, 0))} old")


def times(opened: Opened) -> Finding:
    """Whether queued jobs can become due when they should: a text in another form sorts as another time."""
    odd = opened.rows("odd_run_at")
    if odd:
        shown = ", ".join(f"{row['id']} ({row['run_at']!r:.40})" for row in odd[:3])
        many = f"{len(odd)} or more" if len(odd) == 100 else len(odd)
        form = "YYYY-MM-DD HH:MM:SS in UTC"
        return warn("times", f"{many} queued jobs have a run_at that is not {form}: {shown}", f"write it as {form}")
    far = opened.value("count_due_after", after=utc_text(opened.subject.at + _FAR_SECONDS))
    if far:
        return warn("times", f"{far} queued jobs are due in more than a year", "was a delay given in milliseconds?")
    return ok("times", "every queued job has a time that can come")


def leases(opened: Opened) -> Finding:
    """Whether running jobs have a holder that lives."""
    held = opened.rows("holders")
    dead = {row["identity"] for row in opened.rows("workers") if process.is_provably_dead(process.of_row(row))}
    before = utc_text(opened.subject.at - _LEASE_SECONDS)
    lost = [row for row in held if row["locked_by"] in dead]
    stale = [row for row in held if row not in lost and (row["oldest"] is None or row["oldest"] < before)]
    todo = "nothing while a pool runs; else start one, which returns them: pool run"
    if lost:
        jobs = sum(row["jobs"] for row in lost)
        return warn("leases", f"{jobs} running jobs belong to dead workers, such as {lost[0]['locked_by']}", todo)
    if stale:
        jobs = sum(row["jobs"] for row in stale)
        said = f"{jobs} running jobs have a lease older than {span(_LEASE_SECONDS)}, such as {stale[0]['locked_by']}'s"
        return warn("leases", said, todo)
    return ok("leases", f"{sum(row['jobs'] for row in held)} running jobs, each with a holder not known to be dead")


def pools(opened: Opened) -> Finding:
    """Whether somebody works."""
    rows = opened.rows("pools")
    dead, living = _by_life(rows)
    due = int(opened.value("due_count", now=opened.subject.now, most=1_000_000))
    pause = opened.rows("current_pause", now=opened.subject.now)
    if pause:
        said = f"paused by {pause[0]['by']} since {pause[0]['at']} UTC: {pause[0]['reason']}"
        return warn("pools", said, "pool resume, when that is over")
    if dead:
        said = f"{len(dead)} pools on record are dead, such as pid {dead[0]['pid']} on {dead[0]['host']}"
        return warn("pools", said, "nothing while another runs; else start one, which takes over its jobs: pool run")
    if not living:
        if due:
            return warn("pools", f"none runs, and {due:,} jobs are due", "pool run")
        return ok("pools", "none runs, and nothing is due")
    said = ", ".join(f"pid {row['pid']} on {row['host']}: {row['state']}, {row['target']} workers" for row in living)
    if any(row["state"] == "degraded" for row in living):
        return warn("pools", said, "workers keep dying with no job to blame; see the pool's log")
    return ok("pools", said)


def backlog(opened: Opened) -> Finding:
    """How long the oldest due job has waited."""
    oldest = opened.value("oldest_run_at")
    if oldest is None or oldest > opened.subject.now:
        return ok("backlog", "nothing waits")
    age = opened.subject.at - parse_utc(oldest)
    said = f"the oldest due job has waited {span(age)}"
    if age > _OLD_SECONDS:
        _, living = _by_life(opened.rows("pools"))
        todo = "more workers (pool scale N), or jobs of a better priority keep coming" if living else "pool run"
        return warn("backlog", said, todo)
    return ok("backlog", said)


def types(opened: Opened) -> Finding:
    """Whether somebody handles each type that waits, as far as pools say which they handle, or failures tell."""
    _, living = _by_life(opened.rows("pools"))
    told = [json.loads(row["report"]).get("types") for row in living]
    known = sorted({name for types in told for name in types or ()})
    rows = opened.rows("unhandled_types", error="no handler for the type %", limit=_FAILED)
    failed = collections.Counter(str(row["type"]) for row in rows)
    if failed:
        said = ", ".join(f"{name!r} ({jobs})" for name, jobs in failed.most_common(_NAMED))
        return warn("types", f"jobs failed because no pool handles their type: {said}", _todo(failed, known))
    waiting = [row["type"] for row in opened.rows("queued_types", limit=_TYPES)]
    if not living or None in told:
        return ok("types", f"{len(waiting)} types in the table; no job failed for want of a handler")
    lost = [name for name in waiting if name not in known and opened.value("has_queued", type=name)]
    if lost:
        said = ", ".join(f"{name!r}" for name in lost[:_NAMED]) + (", …" if len(lost) > _NAMED else "")
        return warn("types", f"queued jobs are of a type that no living pool handles: {said}", _todo(lost, known))
    return ok("types", f"all of {len(waiting)} are handled")


def _todo(lost: Iterable[str], known: list[str]) -> str:
    """What to do about types that nobody handles: a handler, or the name that was probably meant."""
    meant = {name: difflib.get_close_matches(name, known, 1) for name in list(lost)[:_NAMED]}
    guesses = [f"{near[0]!r} instead of {name!r}" for name, near in meant.items() if near]
    return "pool run --handlers MODULE" + (f"; or did you mean {', '.join(guesses)}?" if guesses else "")


CHECKS: tuple[InsideCheck, ...] = (clock, times, leases, pools, backlog, types)


def _by_life(rows: list[Row]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    dead = [row for row in rows if process.is_provably_dead(process.of_row(row))]
    return dead, [row for row in rows if row not in dead]
