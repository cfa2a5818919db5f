"""``pool top``: the queue while it works, as a view that refreshes."""

from __future__ import annotations

import time

import click
from rich.console import Console
from rich.live import Live

from pool.cli import render
from pool.cli.base import Seconds, database_option, group
from pool.status import status
from pool.store import Store


@group.command("top", short_help="What pool status shows, refreshed until Ctrl-C.")
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
