"""``pool retry`` and ``archive``: mending by hand, one job or many."""

from __future__ import annotations

import getpass

import click

from pool.cli.base import JOB_ID, database_option, group, json_option, say, say_json
from pool.errors import ExitCode, UsageError
from pool.queue import Queue
from pool.store import Store


@group.command("retry")
@database_option
@json_option
@click.argument("ids", metavar="ID...", type=JOB_ID, nargs=-1)
@click.option("--all-dead", is_flag=True, help="Every dead job.")
@click.option("--dry-run", is_flag=True, help="Only say which.")
def retry(database: str, as_json: bool, ids: tuple[int, ...], all_dead: bool, dry_run: bool) -> int:
    """Queue dead, waiting or archived jobs now, with all their tries."""
    chosen = _chosen(database, ids, all_dead)
    if dry_run:
        return _answer(as_json, "would retry", chosen, [])
    with Queue(database) as queue:
        done = [job_id for job_id in chosen if queue.retry(job_id)]
    missed = sorted(set(chosen) - set(done))
    return _answer(as_json, "queued again", done, missed, "running or done, or there is none")


@group.command("archive")
@database_option
@json_option
@click.argument("ids", metavar="ID...", type=JOB_ID, nargs=-1)
@click.option("--all-dead", is_flag=True, help="Every dead job.")
@click.option("--reason", default="", help="Why; kept with the job.")
@click.option("--dry-run", is_flag=True, help="Only say which.")
def archive(database: str, as_json: bool, ids: tuple[int, ...], all_dead: bool, reason: str, dry_run: bool) -> int:
    """Move jobs out of the queue into the archive; pool retry ID brings one back."""
    chosen = _chosen(database, ids, all_dead)
    if dry_run:
        return _answer(as_json, "would archive", chosen, [])
    with Queue(database) as queue:
        done = [job_id for job_id in chosen if queue.archive(job_id, reason, by=_who())]
    missed = sorted(set(chosen) - set(done))
    return _answer(as_json, "archived", done, missed, "running, or there is none")


def _chosen(database: str, ids: tuple[int, ...], all_dead: bool) -> list[int]:
    if bool(ids) == all_dead:
        raise UsageError("name the jobs by their ids, or give --all-dead")
    store = Store.open(database, create=False)
    try:
        if not all_dead:
            return list(dict.fromkeys(ids))
        return [row["id"] for row in store.rows("list_dead", type=None, limit=-1)]
    finally:
        store.close()


def _answer(as_json: bool, verb: str, done: list[int], missed: list[int], why: str = "") -> int:
    if as_json:
        say_json({verb.replace(" ", "_"): done, "left": missed})
    else:
        say(f"{verb}: {', '.join(map(str, done)) or 'none'}")
        if missed:
            say(f"left as they are ({why}): {', '.join(map(str, missed))}")
    return ExitCode.FAILED if missed else ExitCode.OK


def _who() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"
