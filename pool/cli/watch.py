"""``pool top`` and ``pool tail``: the queue while it works, as a view that refreshes and as lines that follow."""

from __future__ import annotations

import json
import sqlite3
import sys
import time
from collections.abc import Iterator
from typing import Any

import click
from rich.console import Console
from rich.live import Live

from pool.cli import render
from pool.cli.base import Seconds, database_option, group, json_option, say
from pool.status import status
from pool.store import Store


@group.command("top")
@database_option
@click.option("--every", type=Seconds(), default=1, show_default=True, help="Seconds between two looks.")
def top(database: str, every: float) -> None:
    """What pool status shows, refreshed until Ctrl-C."""
    store = Store.open(database, create=False)
    console = Console(highlight=False)
    try:
        if not console.is_terminal:
            render.status(database, status(store))
            return
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(render.status_view(database, status(store)), refresh=True)
                time.sleep(max(0.1, every))
    except KeyboardInterrupt:
        return
    finally:
        store.close()


@group.command("tail")
@database_option
@json_option
@click.option("--lines", type=click.IntRange(0, 10_000), default=10, show_default=True, help="How many to begin with.")
@click.option("--no-follow", is_flag=True, help="End after those.")
def tail(database: str, as_json: bool, lines: int, no_follow: bool) -> None:
    """Attempts that failed, crashed, hung or were cancelled, and what people changed, as it happens.

    \b
    pool tail
    pool tail --json | jq -c 'select(.outcome == "timeout")'
    """
    store = Store.open(database, create=False)
    try:
        for event in _events(store, lines, not no_follow):
            if as_json:
                print(json.dumps(event), flush=True)
            else:
                say(str(render.printable(_line(event))))
                sys.stdout.flush()
    except KeyboardInterrupt:
        return
    finally:
        store.close()


def _events(store: Store, lines: int, follow: bool) -> Iterator[dict[str, Any]]:
    """The newest events, oldest first, then new ones as they are committed."""
    attempts = store.rows("tail_attempts_last", limit=lines)[::-1]
    changes = store.rows("tail_audit_last", limit=lines)[::-1]
    after = store.rows("tail_ends")[0]
    version = -1
    if lines:
        yield from sorted(attempts + changes, key=lambda event: str(event["at"]))[-lines:]
    while follow:
        try:
            if (now := store.data_version()) != version:
                version = now
                new = store.rows("tail_attempts", after=after["attempts"])
                new_changes = store.rows("tail_audit", after=after["audit"])
                after["attempts"] = new[-1]["id"] if new else after["attempts"]
                after["audit"] = new_changes[-1]["id"] if new_changes else after["audit"]
                yield from sorted(new + new_changes, key=lambda event: str(event["at"]))
        except sqlite3.OperationalError as error:
            print(f"database not ready: {error}", file=sys.stderr)
        time.sleep(0.1)


def _line(event: dict[str, Any]) -> str:
    at = event["at"][:19]
    if "action" in event:
        jobs = f" {event['jobs']} jobs" if event["jobs"] else ""
        return f"{at}  {event['by']}: {event['action']}{jobs} {event['detail']}".rstrip()
    error = (event["error"] or "").partition("\n")[0]
    return f"{at}  #{event['job_id']} {event['type']} attempt {event['attempt']}: {event['outcome']}: {error}"
