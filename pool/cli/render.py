"""Tables and texts for people; the only file, with progress.py, that knows rich."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from pool.cli.base import say
from pool.clock import parse_utc

if TYPE_CHECKING:
    from pool.doctor import Finding

_COLOURS = {"queued": "cyan", "running": "yellow", "done": "green", "dead": "red"}
_LEVELS = {"ok": "green", "warn": "yellow", "fail": "bold red"}


#: Columns of a table that goes into a pipe: there is no edge to cut it at.
_WIDE = 4_000


def _console() -> Console:
    wide = None if sys.stdout.isatty() else _WIDE
    return Console(highlight=False, soft_wrap=False, width=wide)


def printable(text: object) -> Text:
    """A stranger's text as it is: no markup, and control characters spelled out, so it cannot drive a terminal."""
    return Text("".join(c if c.isprintable() or c in "\n" else repr(c)[1:-1] for c in str(text)))


def status(database: str, found: dict[str, Any]) -> None:
    """The answer to "is all well?", worst news in red."""
    _console().print(status_view(database, found))


def status_view(database: str, found: dict[str, Any]) -> Group:
    """What ``pool status`` prints and ``pool top`` shows again and again."""
    parts: list[RenderableType] = [_counts(database, found)]
    if found["workers"]:
        parts += ["", _workers(found["workers"])]
    if found["last_errors"]:
        parts += ["", "last errors", _errors(found["last_errors"])]
    return Group(*parts)


def _counts(database: str, found: dict[str, Any]) -> Table:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_row("database", printable(database))
    for name in ("queued", "running", "done", "dead"):
        value = Text(f"{found[name]:,}", style=_COLOURS[name] if found[name] else "")
        if name == "queued" and found["queued"] != found["queue_depth"]:
            value.append(f"  ({found['queue_depth']:,} due now)", style="dim")
        table.add_row(name, value)
    oldest = found["oldest_run_at"]
    table.add_row("oldest run_at", printable(f"{oldest} UTC  ({_ago(found['oldest_age_s'])})") if oldest else Text("–"))
    table.add_row("retry rate", f"{found['retry_rate']:.1%}")
    if found["db_write_latency_p99_ms"] is not None:
        table.add_row("write p99", f"{found['db_write_latency_p99_ms']:g} ms")
    for pool in found["pools"]:
        where, workers = f"{pool['host']} pid {pool['pid']}", "worker" if pool["target"] == 1 else "workers"
        style = "red" if pool["state"] == "degraded" or not pool["alive"] else ""
        alive = f"{where}: {pool['state']}, {pool['target']} {workers}"
        shown = printable(alive if pool["alive"] else f"{where}: dead; what it ran comes back with the next: pool run")
        shown.stylize(style)
        table.add_row("pool", shown)
        if pool["paused"]:
            table.add_row("", Text.assemble((f"claims are paused: {pool['paused']}", "yellow")))
    if not found["pools"]:
        style = "yellow" if found["queue_depth"] else ""
        table.add_row("pool", Text("none is running; start one with: pool run", style=style))
    return table


def _workers(workers: list[dict[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("worker", "pid", "state", "done", "failed", "memory", "CPU", "job"):
        numeric = name in ("pid", "done", "failed", "memory", "CPU")
        table.add_column(name, justify="right" if numeric else "left", no_wrap=True, overflow="ellipsis")
    for each in workers:
        job = printable(f"#{each['job']} {each['type']}") if each["job"] else Text("")
        if each.get("progress"):
            done, total = each["progress"]
            job.append(f"  {done:g} of {total:g}" if total else f"  {done:g}", style="cyan")
        memory = f"{each['memory_bytes'] >> 20} MB" if each.get("memory_bytes") else ""
        cpu = f"{each['cpu_seconds']:.1f} s" if each.get("cpu_seconds") else ""
        numbers = (f"{each['done']:,}", f"{each['failed']:,}", memory, cpu)
        table.add_row(str(each["number"]), str(each["pid"]), each["state"], *numbers, job)
    return table


def _errors(errors: list[dict[str, Any]]) -> Table:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(no_wrap=True, style="dim", justify="right")
    table.add_column(no_wrap=True, overflow="ellipsis")
    for each in errors:
        said = _first_line(each["error"])
        outcome = "" if said.startswith(each["outcome"]) else f"{each['outcome']}: "
        what = printable(f"{each['type']}  {outcome}{said}")
        table.add_row(each["ended_at"][:19], f"#{each['job_id']}", what)
    return table


def jobs(rows: list[dict[str, Any]], now: str) -> None:
    """Jobs as a table."""
    console = _console()
    if not rows:
        console.print("no such jobs")
        return
    table = _table("id", "type", "status", "tries", "run at (UTC)", "key", "last error")
    for row in rows:
        archived = row.get("archived_at") is not None  # its status is the one it had before
        later = not archived and row["status"] == "queued" and str(row["run_at"]) > now
        status = "archived" if archived else row["status"]
        table.add_row(
            str(row["id"]),
            printable(row["type"]),
            Text(status + (" (later)" if later else ""), style=_COLOURS.get(status, "")),
            f"{row['attempts']}/{row['max_attempts']}",
            printable(str(row["run_at"])[:19]),
            printable(row["idempotency_key"] or ""),
            printable(_first_line(row["last_error"])),
        )
    _show(console, table)


def audit(rows: list[dict[str, Any]]) -> None:
    """Who changed what."""
    console = _console()
    if not rows:
        console.print("nobody has changed anything")
        return
    table = _table("id", "at (UTC)", "by", "action", "jobs", "which", "why")
    for row in rows:
        chosen = " ".join(f"{name}={value}" for name, value in json.loads(row["filter"]).items())
        said = (row["at"][:19], row["by"], row["action"], f"{row['jobs']:,}", chosen, row["detail"])
        table.add_row(str(row["id"]), *map(printable, said))
    _show(console, table)


def findings(found: list[Finding]) -> None:
    """What the doctor says, and what to do about it below each."""
    console = _console()
    table = _table("", "", "", header=False)
    for each in found:
        what = printable(each.what)
        if each.todo:
            what.append_text(Text("\n→ ", style="bold")).append_text(printable(each.todo))
        table.add_row(Text(each.level, style=_LEVELS[each.level]), each.name, what)
    _show(console, table)


def _show(console: Console, table: Table) -> None:
    """A pipe gets no blanks behind the lines."""
    if console.width < _WIDE:
        console.print(table)
        return
    with console.capture() as captured:
        console.print(table)
    say("\n".join(line.rstrip() for line in captured.get().rstrip("\n").split("\n")))


def _table(*names: str, header: bool = True) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", show_header=header)
    for name in names:
        right = name in ("id", "jobs")
        table.add_column(
            name, no_wrap=header, overflow="ellipsis" if header else "fold", justify="right" if right else "left"
        )
    return table


def job(row: dict[str, Any], attempts: list[dict[str, Any]], at: float) -> None:
    """One job whole, for a person who wants to know why."""
    console = _console()
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for key, value in row.items():
        if value not in (None, "", 0) or key in ("attempts", "priority"):
            archived = key == "status" and row.get("archived_at") is not None
            table.add_row(key.replace("_", " "), printable(f"archived (was {value})" if archived else value))
    console.print(table)
    for each in attempts:
        console.print()
        took = _took(each["started_at"], each["ended_at"])
        head = f"attempt {each['attempt']}: {each['outcome']}{took}, by {each['worker']}, ended {each['ended_at'][:19]}"
        console.print(printable(head), style="bold")
        console.print(printable(each["error"] or ""))
        cost = [f"exit code {each['exit_code']}" if each["exit_code"] is not None else "", each["signal"] or ""]
        if each["peak_memory_bytes"]:
            cost += [f"peak memory {each['peak_memory_bytes'] / 2**20:.0f} MB", f"CPU {each['cpu_seconds']:.2f} s"]
        if any(cost):
            console.print(printable(", ".join(filter(None, cost))), style="dim")
        for name in ("traceback", "stack", "output"):
            if each[name] and str(each[name]).rstrip() != each["error"]:
                console.print(f"{name}:", style="dim")
                console.print(printable(str(each[name]).rstrip()))


def _took(started: str | None, ended: str) -> str:
    try:
        return f" after {parse_utc(ended) - parse_utc(started):.1f} s" if started else ""
    except ValueError:
        return ""


def _first_line(text: object) -> str:
    return str(text or "").strip().partition("\n")[0]


def _ago(seconds: float | None) -> str:
    if seconds is None:
        return "not a time"
    for limit, unit, size in ((120, "s", 1), (7200, "min", 60), (172800, "h", 3600)):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit} old" if seconds else "not due yet"
    return f"{seconds / 86400:.0f} days old"


def duration(seconds: float) -> str:
    """``7 s``, ``3:05`` or ``2:03:04``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    return time.strftime("%-M:%S" if seconds < 3600 else "%-H:%M:%S", time.gmtime(seconds))
