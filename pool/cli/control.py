"""``pool cancel``, ``pause``, ``resume``, ``scale`` and ``reload``: orders to running pools, through the database."""

from __future__ import annotations

import time

import click

from pool import audit, mend
from pool.cli.base import JOB_ID, Seconds, database_option, group, json_option, say, say_json
from pool.clock import now_text, utc_text
from pool.errors import ExitCode, UsageError
from pool.settings import MAX_WORKERS
from pool.store import Store


@group.command("cancel", short_help="Cancel jobs, waiting or running.")
@database_option
@json_option
@click.argument("ids", metavar="ID...", type=JOB_ID, nargs=-1, required=True)
def cancel(database: str, as_json: bool, ids: tuple[int, ...]) -> int:
    """Cancel jobs: a waiting one goes to the archive at once, a running one is told to end and, after a grace, ended.

    pool retry ID brings one back.
    """
    store = Store.open(database, create=False)
    answers = mend.cancel(store, list(dict.fromkeys(ids)), audit.who(), now_text())
    left = {job_id: _why_not(store, job_id) for job_id, answer in answers.items() if answer is None}
    store.close()
    if as_json:
        say_json({str(job_id): answer for job_id, answer in answers.items()})
    else:
        words = {"cancelled": "cancelled", "requested": "runs; told to end"}
        for job_id, answer in answers.items():
            say(f"job {job_id}: {words[answer] if answer else left[job_id]}")
    return ExitCode.OK if all(answers.values()) else ExitCode.FAILED


def _why_not(store: Store, job_id: int) -> str:
    if rows := store.rows("job", id=job_id):
        return f"nothing to cancel: it is {rows[0]['status']}"
    return "nothing to cancel: it is in the archive" if store.rows("archived_job", id=job_id) else "there is none such"


@group.command("pause", short_help="No claims by any pool, until pool resume.")
@database_option
@click.option("--reason", default="", help="Why; shown by pool status.")
@click.option("--for", "seconds", type=Seconds(), help="Resume by itself after so long: 10m, 2h.")
def pause(database: str, reason: str, seconds: float | None) -> None:
    """No claims by any pool on the database, until pool resume. Running jobs go on; enqueueing does, too."""
    until = None if seconds is None else utc_text(time.time() + seconds)
    store = Store.open(database, create=False)
    now = now_text()
    with store.transaction():
        store.execute("pause", by=audit.who(), reason=reason or "no reason given", now=now, until=until)
        audit.record(store, now, audit.who(), "pause", 0, detail=reason)
    store.close()
    say(f"paused{f' until {until[:19]} UTC' if until else ''}; pool resume ends it")


@group.command("resume")
@database_option
def resume(database: str) -> None:
    """End a pause."""
    store = Store.open(database, create=False)
    with store.transaction():
        ended = store.execute("resume")
        if ended:
            audit.record(store, now_text(), audit.who(), "resume", 0)
    store.close()
    say(f"resumed (was paused by {ended[0][0]}: {ended[0][1]})" if ended else "nothing was paused")


@group.command("scale")
@database_option
@click.argument("workers", metavar="N", type=click.IntRange(1, MAX_WORKERS))
@click.option("--pool", "pool_id", type=JOB_ID, help="Only this pool (see pool status --json).  [default: each]")
def scale(database: str, workers: int, pool_id: int | None) -> None:
    """Have the running pools keep N workers. Those above it end after their job."""
    told = f"told to keep {workers} {'worker' if workers == 1 else 'workers'}"
    _order(database, "order_scale", told, pool=pool_id, target=workers)


@group.command("reload", short_help="Replace the pools' workers one by one, with fresh code.")
@database_option
@click.option("--pool", "pool_id", type=JOB_ID, help="Only this pool (see pool status --json).  [default: each]")
def reload(database: str, pool_id: int | None) -> None:
    """Have the running pools replace their workers one by one, with fresh code; no capacity is lost meanwhile."""
    _order(database, "order_reload", "told to reload", pool=pool_id, now=now_text())


def _order(database: str, statement: str, said: str, **bound: object) -> None:
    store = Store.open(database, create=False)
    with store.transaction():
        given = store.execute(statement, **bound)
        if given:
            audit.record(store, now_text(), audit.who(), statement.removeprefix("order_"), 0, detail=said)
    store.close()
    if not given:
        raise UsageError(f"no such pool runs on {database}")
    say(f"pool {', '.join(str(row[0]) for row in given)}: {said}")
