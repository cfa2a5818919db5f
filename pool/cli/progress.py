"""A pool that works off what is due, with a progress bar, and the summary that follows."""

from __future__ import annotations

import collections
import json
import os
import sqlite3
import sys
import threading
import time
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from pool.cli.base import say, say_json
from pool.cli.log import LogWriter
from pool.cli.render import duration, printable
from pool.clock import now_text
from pool.errors import ExitCode
from pool.settings import PoolSettings
from pool.store import Store
from pool.supervisor import Supervisor

REFRESH_SECONDS = 0.2
#: In a pipe there is no bar, but a line this often.
LINE_SECONDS = 10.0


class Outcome(NamedTuple):
    """What a run did: jobs done, attempts failed, seconds it took."""

    done: int
    failed: int
    seconds: float


def work_off(settings: PoolSettings, *, quiet: bool) -> Outcome:
    """Run a pool until nothing is left that could run, or until it is interrupted."""
    began = time.monotonic()
    with LogWriter(quiet=True) as emit:
        supervisor = Supervisor(settings, emit)
        with _Bar(settings.database, quiet):
            supervisor.run()
    return Outcome(*supervisor.counts, time.monotonic() - began)


class _Bar:
    """Watches the queue from a thread of its own with a connection of its own; the pool's loop knows nothing of it."""

    def __init__(self, database: str, quiet: bool) -> None:
        self._database = database
        self._quiet = quiet
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="progress", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(2)

    def _watch(self) -> None:
        if self._quiet:
            return
        store = Store.open(self._database)
        try:
            if sys.stderr.isatty():
                self._draw(store)
            else:
                self._lines(store)
        finally:
            store.close()

    def _draw(self, store: Store) -> None:
        columns = (
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=False),
        )
        began, total = time.monotonic(), 0
        with Progress(*columns, console=Console(stderr=True), refresh_per_second=8) as progress:
            task = progress.add_task("jobs", total=None, rate="")
            over = False
            while True:
                left = _left(store)
                if left is not None:
                    total = max(total, left)
                    rate = (total - left) / (time.monotonic() - began)
                    progress.update(task, total=total, completed=total - left, rate=f"{rate:.1f} jobs/s")
                if over:
                    return
                over = self._over.wait(REFRESH_SECONDS)

    def _lines(self, store: Store) -> None:
        total = _left(store) or 0
        while not self._over.wait(LINE_SECONDS):
            left = _left(store) or 0
            print(f"{total - left} of {total} done", file=sys.stderr, flush=True)


def _left(store: Store) -> int | None:
    """Jobs due or running; None while the database does not answer."""
    try:
        return int(store.value("due_count", now=now_text(), most=2**62)) + int(store.value("count_running"))
    except sqlite3.Error:
        return None


def summarize(database: str, keys: list[str], dest: str, outcome: Outcome, *, unit: str, as_json: bool) -> int:
    """Say what became of the jobs with these keys; the exit code: OK only when every one is done."""
    store = Store.open(database)
    rows = [
        row
        for start in range(0, len(keys), 5000)
        for row in store.rows("by_keys", keys=json.dumps(keys[start : start + 5000]))
    ]
    store.close()
    counts = collections.Counter(row["status"] for row in rows)
    failed = [row for row in rows if row["status"] == "dead" or (row["status"] == "queued" and row["last_error"])]
    left = len(rows) - counts["done"] - len(failed)
    rate = outcome.done / outcome.seconds if outcome.seconds else 0.0
    if as_json:
        say_json(_facts(counts["done"], failed, left, outcome, rate, dest))
    else:
        say(
            f"\n{counts['done']} done ({outcome.done} now, {rate:.1f} {unit}/s in {duration(outcome.seconds)}), "
            f"{len(failed)} failed{f', {left} left' if left else ''}"
        )
        for row in failed[:50]:
            why = (row["last_error"] or "").partition("\n")[0]
            state = "dead" if row["status"] == "dead" else f"tries again at {row['run_at'][:19]} UTC"
            say(f"  {printable(_source(row))}: {printable(why)} ({state}, job {row['id']})")
        if len(failed) > 50:
            say(f"  … and {len(failed) - 50} more: pool list --status dead --db {database}")
        say(f"results in {os.path.abspath(dest)}")
        if left:
            say("the same command goes on where this one stopped")
    return ExitCode.FAILED if failed or left else ExitCode.OK


def _facts(
    done: int, failed: list[dict[str, Any]], left: int, outcome: Outcome, rate: float, dest: str
) -> dict[str, Any]:
    reasons = [{"id": r["id"], "source": _source(r), "status": r["status"], "error": r["last_error"]} for r in failed]
    return {
        "done": done,
        "done_now": outcome.done,
        "failed": reasons,
        "left": left,
        "seconds": round(outcome.seconds, 3),
        "per_second": round(rate, 2),
        "dest": os.path.abspath(dest),
    }


def _source(row: dict[str, Any]) -> str:
    try:
        return str(json.loads(row["payload"]).get("source"))
    except (ValueError, AttributeError):
        return str(row["payload"])
