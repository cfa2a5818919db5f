"""The options by which a person chooses jobs, the same for each command that takes them."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

import click

from pool.cli.base import JOB_ID, Seconds
from pool.errors import UsageError
from pool.selection import STATUSES, Selection

F = TypeVar("F", bound=Callable[..., Any])


def choosing(*statuses: str) -> Callable[[F], F]:
    """Options that make up a Selection, passed to the command as ``chosen``; its ``ids`` and ``all_dead`` are part of
    it where the command takes them."""

    def decorate(command: F) -> F:
        @functools.wraps(command)
        def call(*args: Any, **given: Any) -> Any:
            named = {name: given.pop(name) for name in ("status", "type", "key", "error", "older", "newer")}
            ids = tuple(dict.fromkeys(given.pop("ids", ())))
            if given.pop("all_dead", False):
                if ids or named["status"] not in (None, "dead"):
                    raise UsageError("--all-dead chooses the dead jobs; leave out the ids, or --status")
                named["status"] = "dead"
            return command(*args, chosen=Selection(**named, ids=ids).checked(), **given)

        options = [
            click.option("--status", type=click.Choice(statuses or STATUSES), help="Only these."),
            click.option("--type", metavar="TYPE", help="Only this type."),
            click.option("--key", metavar="KEY", help="Only this idempotency key; KEY* for all that begin so."),
            click.option("--error", metavar="TEXT", help="Only with this text in the last error."),
            click.option(
                "--older", type=Seconds(), metavar="AGE", help="Only last changed longer ago: 90, 10m, 2h, 7d."
            ),
            click.option("--newer", type=Seconds(), metavar="AGE", help="Only last changed more recently."),
        ]
        decorated: Any = call
        for option in reversed(options):
            decorated = option(decorated)
        result: F = decorated
        return result

    return decorate


def ids_argument(command: F) -> F:
    """``ID...``, instead of options that choose."""
    return click.argument("ids", metavar="[ID]...", type=JOB_ID, nargs=-1)(command)


def all_dead_option(command: F) -> F:
    """``--all-dead``, the usual choice."""
    return click.option("--all-dead", is_flag=True, help="Every dead job: --status dead.")(command)


def required(chosen: Selection) -> Selection:
    """The same, for a command that changes jobs. Raises UsageError for none chosen, and for ids and options at once."""
    if bool(chosen.ids) == bool(set(chosen.facts) - {"ids"}):
        raise UsageError("name the jobs by their ids, or choose them: --all-dead, or --status dead --type TYPE")
    return chosen


def many(jobs: int) -> str:
    """``1 job``, ``1,234 jobs``."""
    return f"{jobs:,} job" if jobs == 1 else f"{jobs:,} jobs"


class Counter:
    """A line on a terminal with how many of how many are changed; nothing in a pipe, or with ``--json``."""

    def __init__(self, verb: str, total: int | None, quiet: bool) -> None:
        self._verb = verb
        self._of = "" if total is None else f" of {total:,}"
        self._shown = not quiet and sys.stderr.isatty()
        self._at = 0.0

    def __call__(self, done: int) -> None:
        """Called after each transaction."""
        if self._shown and time.monotonic() - self._at > 0.1:
            self._at = time.monotonic()
            print(f"\r{self._verb} {done:,}{self._of}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Take the line away."""
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
