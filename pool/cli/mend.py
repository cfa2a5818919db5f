"""``pool retry``, ``archive``, ``purge`` and ``audit``: mending by hand, one job or many, and the record of it."""

from __future__ import annotations

import collections
import contextlib
import sys
from collections.abc import Callable
from dataclasses import replace

import click

from pool import audit, mend, retention, selection
from pool.cli import render
from pool.cli.base import JOB_ID, database_option, group, json_option, say, say_json
from pool.cli.choose import Counter, all_dead_option, choosing, ids_argument, many, required
from pool.clock import now_text
from pool.errors import ExitCode, UsageError
from pool.mend import Changed, Order
from pool.retention import KEEP_ALL, Policy
from pool.selection import Selection
from pool.store import Store

#: Jobs shown by a dry run.
EXAMPLES = 10
#: Ids named at most; where more were changed, how many is told instead.
SHOWN = 50
dry_run_option = click.option("--dry-run", is_flag=True, help="Only say how many and show some; change nothing.")


@group.command("retry", short_help="Queue dead, waiting or archived jobs now.")
@database_option
@json_option
@ids_argument
@choosing("queued", "scheduled", "dead", "archive")
@all_dead_option
@dry_run_option
def retry(database: str, as_json: bool, chosen: Selection, dry_run: bool) -> int:
    """Queue dead, waiting or archived jobs now, with all their tries.

    By their ids, or all that are chosen; without --status, of the dead ones.

    \b
    pool retry 17 18
    pool retry --type webhook --error "503" --dry-run
    pool retry --status archive --key "import:2026*"
    pool retry --status scheduled --type webhook     run now what is due later
    """
    task = _Task("retry", "queued again", "running or done", database, as_json, _or_dead(required(chosen)))
    return task.preview() if dry_run else task.run(mend.retry)


@group.command("archive", short_help="Move jobs out of the queue; pool retry brings them back.")
@database_option
@json_option
@ids_argument
@choosing("queued", "scheduled", "done", "dead")
@all_dead_option
@click.option("--reason", default="", help="Why; kept with the job.")
@dry_run_option
def archive(database: str, as_json: bool, chosen: Selection, reason: str, dry_run: bool) -> int:
    """Move jobs out of the queue into the archive; pool retry brings them back.

    By their ids, or all that are chosen; without --status, of the dead ones.

    \b
    pool archive 17 --reason "the customer is gone"
    pool archive --type report --older 30d
    """
    task = _Task("archive", "archived", "running", database, as_json, _or_dead(required(chosen)), reason)
    return task.preview() if dry_run else task.run(mend.archive)


@group.command("purge", short_help="Delete done, dead or archived jobs for good.")
@database_option
@json_option
@ids_argument
@choosing("done", "dead", "archive")
@click.option("--keep", "rules", multiple=True, metavar="RULE", help="By rules instead: done=7d, report.archive=1d.")
@click.option("--yes", is_flag=True, help="Do not ask. Needed where there is no terminal.")
@dry_run_option
def purge(database: str, as_json: bool, chosen: Selection, rules: tuple[str, ...], yes: bool, dry_run: bool) -> int:
    """Delete done, dead or archived jobs for good, with the evidence of their attempts.

    Not without saying which, and none that waits or runs. What a pool deletes by itself needs no purge.

    \b
    pool purge --status done --older 7d --dry-run
    pool purge --status archive --type report --older 0s
    pool purge --keep done=7d --keep thumbnail.done=1d --yes
    """
    task: _Task
    if rules:
        if chosen.facts:
            raise UsageError("--keep says by itself which jobs go; leave out the ids and the other options")
        task = _Retention("purge", "deleted", "", database, as_json, chosen, "keep " + " ".join(rules))
        task.policy = Policy.parse(rules, KEEP_ALL)
    else:
        mend.check_purge(chosen)
        task = _Task("purge", "deleted", "running or queued", database, as_json, required(chosen))
    if dry_run:
        return task.preview()
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError("add --yes to delete without being asked, or --dry-run to see what would go")
        if not click.confirm(f"Delete {many(task.count())} for good?", err=True):
            return ExitCode.FAILED
    return task.run(mend.purge)


@group.command("audit", short_help="Who changed what, newest first.")
@database_option
@json_option
@click.option("--limit", type=click.IntRange(1, 100_000), default=50, show_default=True)
@click.option("--before", type=JOB_ID, default=2**62, help="Only lines before this one.")
def audit_list(database: str, as_json: bool, limit: int, before: int) -> None:
    """Who changed what, newest first: each retry, archive, purge and restore a person asked for."""
    store = Store.open(database, create=False)
    rows = store.rows("audit_list", limit=limit, before=before)
    store.close()
    if as_json:
        say_json(rows)
    else:
        render.audit(rows)


class _Task:
    """One of these commands: what it does to which jobs, and how it tells."""

    def __init__(
        self, action: str, done: str, why_not: str, database: str, as_json: bool, chosen: Selection, reason: str = ""
    ) -> None:
        self._action, self._done, self._why_not = action, done, why_not
        self._database, self._as_json = database, as_json
        self._order = Order(chosen, audit.who(), now_text(), reason)
        self._places = [chosen] if action == "archive" else mend.places(chosen)

    def count(self) -> int:
        """How many jobs are chosen."""
        with self._open() as store:
            return sum(selection.count(store, each, self._order.now) for each in self._places)

    def preview(self) -> int:
        """Say how many would be changed, and show some."""
        chosen, now = self._order.chosen, self._order.now
        with self._open() as store:
            rows = []
            for each in self._places:
                some = selection.page(store, each, now, len(chosen.ids) or EXAMPLES).rows
                rows += [row for row in some if "archived_at" in row or row["status"] in mend.CHANGEABLE[self._action]]
        jobs = len(rows) if chosen.ids else self.count()
        facts = {"action": self._action, "dry_run": True, "filter": chosen.facts, "jobs": jobs, "examples": rows}
        if self._as_json:
            say_json(facts)
        else:
            say(f"{many(jobs)} would be {self._done}{', such as' if jobs > len(rows) else ':' if rows else ''}")
            if rows:
                render.jobs(rows, now)
        return ExitCode.OK

    def run(self, change: Callable[[Store, Order, mend.Progress], Changed]) -> int:
        """Change them, and say what came of it. The exit code: FAILED when some that were named were left."""
        chosen = self._order.chosen
        quiet = self._as_json or not sys.stderr.isatty()
        counter = Counter(self._done, None if quiet else self.count(), quiet)
        with self._open() as store:
            try:
                changed = self._changed(store, change, counter)
            finally:
                counter.clear()
        if changed.taken and not changed.jobs:
            raise UsageError(f"job {changed.taken[0]} cannot leave the archive: another job has its key or its id now")
        if self._as_json:
            facts = {"action": self._action, "dry_run": False, "filter": chosen.facts}
            say_json({**facts, "jobs": changed.jobs, "ids": changed.ids, "left": changed.left})
        else:
            say(f"{self._done}: {_ids(changed.ids) if 0 < len(changed.ids) <= SHOWN else many(changed.jobs)}")
            if changed.left:
                why = "another job has its key now" if changed.taken else "changed meanwhile"
                why = f"{self._why_not}, or there is none" if chosen.ids else why
                say(f"left as they are ({why}): {_ids(changed.left)}")
        return ExitCode.FAILED if changed.taken or (chosen.ids and changed.left) else ExitCode.OK

    def _changed(
        self, store: Store, change: Callable[[Store, Order, mend.Progress], Changed], counter: Counter
    ) -> Changed:
        return change(store, self._order, counter)

    def _open(self) -> contextlib.closing[Store]:
        return contextlib.closing(Store.open(self._database, create=False))


class _Retention(_Task):
    """``purge --keep``: what the rules let go, type by type."""

    policy: Policy

    def count(self) -> int:
        return self._expired().total()

    def preview(self) -> int:
        found = self._expired()
        if self._as_json:
            by_type = [{"type": type, "outcome": outcome, "jobs": jobs} for (type, outcome), jobs in found.items()]
            say_json({"action": "purge", "dry_run": True, "jobs": found.total(), "by_type": by_type})
        else:
            say(f"{many(found.total())} would be deleted")
            for (type, outcome), jobs in sorted(found.items()):
                say(f"  {jobs:>10,}  {render.printable(type)}  {outcome}")
        return ExitCode.OK

    def _expired(self) -> collections.Counter[tuple[str, str]]:
        with self._open() as store:
            return retention.expired(store, self.policy, self._order.now)

    def _changed(
        self, store: Store, change: Callable[[Store, Order, mend.Progress], Changed], counter: Counter
    ) -> Changed:
        return mend.purge_expired(store, self._order, self.policy, counter)


def _or_dead(chosen: Selection) -> Selection:
    return chosen if chosen.ids or chosen.status else replace(chosen, status="dead")


def _ids(ids: list[int]) -> str:
    return ", ".join(map(str, sorted(ids)[:SHOWN])) + (" …" if len(ids) > SHOWN else "")
