"""``pool status``, ``list`` and ``show``: what a person looks at first."""

from __future__ import annotations

import time
from typing import Any

import click

from pool.cli import render
from pool.cli.base import JOB_ID, database_option, group, json_option, say_json
from pool.clock import now_text
from pool.errors import UsageError
from pool.status import status as gather
from pool.store import Store

STATUSES = ("queued", "running", "done", "dead", "archive")


@group.command("status")
@database_option
@json_option
def status(database: str, as_json: bool) -> None:
    """How the queue is: depth, age of the oldest, running, done, dead, workers, the last errors."""
    store = Store.open(database, create=False)
    found = gather(store)
    store.close()
    if as_json:
        say_json(found)
    else:
        render.status(database, found)


@group.command("list")
@database_option
@json_option
@click.option("--status", "wanted", type=click.Choice(STATUSES), help="Only these.  [default: all, newest first]")
@click.option("--type", "type", metavar="TYPE", help="Only this type.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=50, show_default=True)
@click.option(
    "--before", type=JOB_ID, default=2**62, help="Only ids below this one, to page through what is newest first."
)
def list_jobs(database: str, as_json: bool, wanted: str | None, type: str | None, limit: int, before: int) -> None:
    """Jobs, newest first (queued ones by when they are due)."""
    store = Store.open(database, create=False)
    statement = f"list_{wanted or 'all'}"
    bound: dict[str, Any] = {"type": type, "limit": limit}
    if wanted in (None, "done", "archive"):
        bound["before"] = before
    rows = store.rows(statement, **bound)
    store.close()
    if as_json:
        say_json(rows)
    else:
        render.jobs(rows, now_text())


@group.command("show")
@database_option
@json_option
@click.argument("job_id", metavar="ID", type=JOB_ID)
def show(database: str, as_json: bool, job_id: int) -> None:
    """One job: payload, state, and every attempt that failed with its traceback, stack and output."""
    store = Store.open(database, create=False)
    rows = store.rows("job", id=job_id) or store.rows("archived_job", id=job_id)
    attempts = store.rows("job_attempts", id=job_id)
    store.close()
    if not rows:
        raise UsageError(f"there is no job {job_id} in {database}")
    if as_json:
        say_json({**rows[0], "failed_attempts": attempts})
    else:
        render.job(rows[0], attempts, time.time())
