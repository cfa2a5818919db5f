"""What the subcommands share: the group, the database option, and the forms in which people write times and values."""

from __future__ import annotations

import difflib
import importlib
import json
import re
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

import click

from pool import __version__
from pool.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgt])i?)?b?")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)?")


#: Which module defines a command, in the order of the help. Only what is asked for is imported: a supervisor starts
#: in half the time without the tables and the dashboard.
COMMANDS = {
    "run": "pool.cli.run",
    "map": "pool.cli.map",
    "enqueue": "pool.cli.enqueue",
    "status": "pool.cli.inspect",
    "list": "pool.cli.inspect",
    "show": "pool.cli.inspect",
    "top": "pool.cli.watch",
    "tail": "pool.cli.tail",
    "retry": "pool.cli.mend",
    "archive": "pool.cli.mend",
    "cancel": "pool.cli.control",
    "pause": "pool.cli.control",
    "resume": "pool.cli.control",
    "scale": "pool.cli.control",
    "reload": "pool.cli.control",
    "purge": "pool.cli.mend",
    "backup": "pool.cli.care",
    "restore": "pool.cli.care",
    "doctor": "pool.cli.care",
    "audit": "pool.cli.mend",
    "web": "pool.web.command",
    "metrics": "pool.web.command",
    "completion": "pool.cli.care",
}


class _Group(click.Group):
    """Imports a command when it is asked for, and suggests the one that was probably meant."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in COMMANDS:
            importlib.import_module(COMMANDS[cmd_name])
        return super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = difflib.get_close_matches(args[0], COMMANDS, 1)
            if near and "Did you mean" not in error.message:
                raise click.UsageError(f"{error.message} Did you mean {near[0]!r}?", ctx) from None
            raise


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="pool")
def group() -> None:
    """A durable job queue and a supervised pool of worker processes, from one SQLite file.

    \b
    pool map thumbnail photos --dest thumbs --run    thumbnails of a folder, with progress
    pool run                                         work off jobs.db until Ctrl-C
    pool status                                      is all well?
    """


def database_option(command: F) -> F:
    """``--db PATH``, also from POOL_DB."""
    return click.option(
        "--db",
        "database",
        envvar="POOL_DB",
        default="jobs.db",
        show_default=True,
        metavar="PATH",
        help="The queue's SQLite file; also from POOL_DB.",
    )(command)


def json_option(command: F) -> F:
    """``--json`` for programs."""
    return click.option("--json", "as_json", is_flag=True, help="JSON for programs.")(command)


class Seconds(click.ParamType[float]):
    """A duration such as ``90``, ``1.5s``, ``10m``, ``2h`` or ``7d``; a plain number is seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, (int, float)):
            return float(value)
        match = _DURATION.fullmatch(value.strip().lower())
        if not match:
            self.fail(f"{value!r} is not a duration; write 90, 1.5s, 10m, 2h or 7d", param, ctx)
        return float(match[1]) * _UNITS[match[2] or "s"]


class Size(click.ParamType[int]):
    """An amount of memory such as ``500M`` or ``2G``; a plain number is bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = _SIZE.fullmatch(value.strip().lower())
        if not match:
            self.fail(f"{value!r} is not a size; write 500M or 2G", param, ctx)
        return int(float(match[1]) * 1024 ** "kmgt".index(match[2]) * 1024 if match[2] else float(match[1]))


class Instant(click.ParamType[datetime]):
    """An instant such as ``2026-12-01T09:00+01:00`` or ``2026-12-01 08:00Z``; without a zone it is refused."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            at = datetime.fromisoformat(value.strip())
        except ValueError:
            self.fail(f"{value!r} is not a time; write 2026-12-01T09:00+01:00 or 2026-12-01T08:00Z", param, ctx)
        if at.utcoffset() is None:
            self.fail(f"{value!r} has no time zone; add Z for UTC, or an offset such as +01:00", param, ctx)
        return at


def parse_settings(pairs: tuple[str, ...]) -> dict[str, Any]:
    """``key=value`` pairs; a value that is JSON (a number, true, null, a list) is that, any other is a string."""
    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UsageError(f"--set takes key=value, not {pair!r}")
        if key in found:
            raise UsageError(f"--set {key} is given twice")
        try:
            found[key] = json.loads(value)
        except ValueError:
            found[key] = value
    return found


#: A job's id as SQLite can hold it.
JOB_ID = click.IntRange(1, 2**63 - 1)


def say(text: str) -> None:
    """A line on standard output; what the terminal's encoding lacks is spelled out, not an error."""
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding))


def say_json(value: Any) -> None:
    """One JSON document on standard output, ASCII so that any pipe carries it."""
    print(json.dumps(value, indent=2 if sys.stdout.isatty() else None, default=str))
