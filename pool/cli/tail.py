"""``pool tail``: what happens in a queue, as lines that follow it."""

from __future__ import annotations

import collections
import json
import select
import sqlite3
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import click

from pool.cli import render
from pool.cli.base import database_option, group, json_option, say
from pool.cli.choose import many
from pool.clock import now_text
from pool.follow import Follower
from pool.job import AttemptOutcome
from pool.store import Store

#: How an attempt can end.
OUTCOMES = ("done", *(each.value for each in AttemptOutcome))
#: Lines on completions, enqueues and starts within a second; what is more is told as a number.
LINES_A_SECOND = 200
LOOK_SECONDS, IDLE_LOOK_SECONDS = 0.1, 0.5


@group.command("tail", short_help="What happens, as it happens.")
@database_option
@json_option
@click.option(
    "-n", "--lines", type=click.IntRange(0, 10_000), default=10, show_default=True, help="How many to begin with."
)
@click.option("--no-follow", is_flag=True, help="End after those.")
@click.option("--type", metavar="TYPE", help="Only jobs of this type.")
@click.option(
    "--outcome",
    "outcomes",
    type=click.Choice(OUTCOMES),
    multiple=True,
    metavar="OUTCOME",
    help=f"Only attempts that ended so; may be repeated: {', '.join(OUTCOMES)}.",
)
@click.option("--all", "everything", is_flag=True, help="Also what is enqueued and what starts.")
def tail(database: str, as_json: bool, lines: int, no_follow: bool, everything: bool, **only: Any) -> None:
    """What happens, as it happens: jobs done, attempts that failed, crashed or hung, what people changed.

    It only reads. Failures and people's changes are all shown. Of completions up to 200 a second are, and the number of
    the others; where thousands complete between two looks, ten a second, it says that there may be more. A start is
    shown with --all if the job still runs at the next look. Completions from before the command are looked for
    among the newest jobs alone. With --type or --outcome, people's changes are left out.

    \b
    pool tail
    pool tail --type webhook --outcome failed --outcome timeout
    pool tail --json | jq -c 'select(.outcome == "done" and .seconds > 10)'
    """  # fmt: skip
    store = Store.open(database, create=False)
    try:
        for event in _events(store, lines, not no_follow, everything, _Chosen(**only)):
            if as_json:
                print(json.dumps(event, default=_text), flush=True)
            else:
                say(str(render.printable(_line(event))))
                sys.stdout.flush()
    except KeyboardInterrupt:
        return
    finally:
        store.close()


class _Chosen(NamedTuple):
    """Which events are shown."""

    type: str | None
    outcomes: tuple[str, ...]

    def admits(self, event: dict[str, Any]) -> bool:
        """Whether it is one of them."""
        if self.type is not None and event.get("type") != self.type:
            return False
        return not self.outcomes or event.get("outcome") in self.outcomes


def _events(store: Store, lines: int, follow: bool, everything: bool, chosen: _Chosen) -> Iterator[dict[str, Any]]:
    """The last events, oldest first, then new ones as they are committed."""
    follower = Follower(store, everything=everything)
    version = store.data_version()
    if lines:
        yield from [each for each in follower.last(max(lines, 1_000)) if chosen.admits(each)][-lines:]
    pace = _Pace()
    gone = select.poll()
    gone.register(sys.stdout, 0)
    looked_at = time.monotonic()
    while follow:
        if gone.poll(LOOK_SECONDS * 1000):
            raise BrokenPipeError  # whoever read this has ended, as ``| head`` does
        try:
            # Also when nothing was committed: jobs that become due meanwhile may complete within one pause.
            if (now := store.data_version()) != version or time.monotonic() - looked_at >= IDLE_LOOK_SECONDS:
                version, looked_at = now, time.monotonic()
                seen = follower.look()
                yield from pace.of([each for each in seen.events if chosen.admits(each)], seen.missed)
        except sqlite3.OperationalError as error:
            print(f"database not ready: {error}", file=sys.stderr)
        yield from pace.rest()


class _Pace:
    """Lets through so many ordinary events a second and counts the others."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._began = time.monotonic()
        self._shown = 0
        self._left: collections.Counter[str] = collections.Counter()
        self._missed = False

    def of(self, events: list[dict[str, Any]], missed: bool) -> Iterator[dict[str, Any]]:
        """Those to show now."""
        self._missed |= missed
        for event in events:
            kind = event.get("outcome") or event["event"]
            if kind not in ("done", "enqueued", "started"):
                yield event
            elif self._shown < LINES_A_SECOND:
                self._shown += 1
                yield event
            else:
                self._left[kind] += 1

    def rest(self) -> Iterator[dict[str, Any]]:
        """What was left out, at the end of a second."""
        if time.monotonic() - self._began < 1:
            return
        if self._left or self._missed:
            counts = {kind: self._left[kind] for kind in ("done", "enqueued", "started")}
            yield {"event": "more", "at": now_text(), **counts, "at_least": self._missed}
        self._begin()


def _text(value: object) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def _line(event: dict[str, Any]) -> str:
    at = str(event["at"])[:19]
    if event["event"] == "more":
        said = ", ".join(f"{event[kind]:,} more {kind}" for kind in ("done", "enqueued", "started") if event[kind])
        return f"{at}  … {said or 'more done'} in this second{', and maybe others' if event['at_least'] else ''}"
    if event["event"] == "changed":
        jobs = f" {many(event['jobs'])}" if event["jobs"] else ""
        return f"{at}  {event['by']}: {event['action']}{jobs} {event['detail']}".rstrip()
    head = f"{at}  #{event['job_id']} {event['type']}"
    if event["event"] == "enqueued":
        later = event["run_at"] is not None and str(event["run_at"]) > str(event["at"])
        return f"{head} enqueued{' for ' + str(event['run_at'])[:19] if later else ''}"
    head += f" attempt {event['attempt']}: "
    if event["event"] == "started":
        return f"{head}started by {event['worker']}"
    if event["outcome"] == "done":
        return head + ("done" if event["seconds"] is None else f"done in {event['seconds']:.3g} s")
    return f"{head}{event['outcome']}: {(event['error'] or '').partition(chr(10))[0]}"
