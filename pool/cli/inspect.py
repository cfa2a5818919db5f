"""``pool status``, ``list`` and ``show``: what a person looks at first."""

from __future__ import annotations

import shlex
import time

import click

from pool.cli import render
from pool.cli.base import JOB_ID, database_option, group, json_option, say, say_json
from pool.cli.choose import choosing
from pool.clock import now_text
from pool.errors import UsageError
from pool.selection import Cursor, Selection, page, reading
from pool.status import status as gather
from pool.store import Store
from pool.tracecontext import trace_id


@group.command("status", short_help="Whether all is well: depth, oldest, workers, last errors.")
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


@group.command("list", short_help="Jobs by status, type, key, error or age.")
@database_option
@json_option
@choosing()
@click.option("--limit", type=click.IntRange(1, 100_000), default=50, show_default=True)
@click.option("--before", metavar="PLACE", help="The next page: what the page before said, an ID or ID@TIME.")
def list_jobs(database: str, as_json: bool, chosen: Selection, limit: int, before: str | None) -> None:
    """Jobs, newest first: queued ones by when they are due, dead and archived ones by when they became that.

    Scheduled ones are those of the queued ones that are due later.

    \b
    pool list --status dead --type webhook --error timeout
    pool list --key "import:2026*" --newer 1h
    pool list --status archive --json | jq .[].id
    """
    store = Store.open(database, create=False)
    try:
        found = page(store, chosen, now_text(), limit, None if before is None else Cursor.parse(before))
    except UsageError as error:
        raise UsageError(f"--before: {error}") from None
    finally:
        store.close()
    if as_json:
        say_json(found.rows)
        return
    render.jobs(found.rows, now_text())
    if found.next is not None:
        say(f"more: --before {shlex.quote(str(found.next))}")


@group.command("show", short_help="One job, and why its attempts failed.")
@database_option
@json_option
@click.argument("job_id", metavar="ID", type=JOB_ID)
def show(database: str, as_json: bool, job_id: int) -> None:
    """One job: payload, state, and every attempt that failed with its traceback, stack and output.

    \b
    pool show 17
    pool show 17 --json | jq -r .failed_attempts[-1].traceback
    """
    store = Store.open(database, create=False)
    with reading(store):
        rows = store.rows("job", id=job_id) or store.rows("archived_job", id=job_id)
        attempts = store.rows("job_attempts", id=job_id)
    store.close()
    if not rows:
        raise UsageError(f"there is no job {job_id} in {database}")
    found = {**rows[0], "trace_id": trace_id(rows[0]["trace_context"])}
    if as_json:
        say_json({**found, "failed_attempts": attempts})
    else:
        render.job(found, attempts, time.time())
