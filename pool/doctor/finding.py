"""What a check says, and what it is given to look at."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from pool.clock import parse_utc
from pool.store import SQL, Row


class Level(StrEnum):
    """How bad it is: ``warn`` may matter, ``fail`` does and needs a person."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Finding(NamedTuple):
    """One check's answer: its name, how bad it is, what was found, and what to do about it ("" for nothing)."""

    name: str
    level: Level
    what: str
    todo: str = ""


def ok(name: str, what: str) -> Finding:
    """All is well."""
    return Finding(name, Level.OK, what)


def warn(name: str, what: str, todo: str) -> Finding:
    """It may matter."""
    return Finding(name, Level.WARN, what, todo)


def fail(name: str, what: str, todo: str) -> Finding:
    """It does matter."""
    return Finding(name, Level.FAIL, what, todo)


@dataclass(frozen=True, slots=True)
class Subject:
    """What is examined.

    Attributes:
        path: the database, with links followed.
        now: UTC text.
        environment: the environment variables.
        variables: the names of those beginning with POOL_ that mean something.
        full: whether everything is read that can be, however long it takes.
    """

    path: str
    now: str
    environment: Mapping[str, str]
    variables: frozenset[str]
    full: bool

    @property
    def at(self) -> float:
        """The present in seconds since the epoch."""
        return parse_utc(self.now)


@dataclass(frozen=True, slots=True)
class Opened:
    """A database that could be opened, for reading alone; ``logged`` where a log is beside it, as while it is used."""

    subject: Subject
    connection: sqlite3.Connection
    logged: bool

    def rows(self, statement: str, **bound: object) -> list[Row]:
        """A named statement's rows as dictionaries."""
        cursor = self.connection.execute(SQL[statement], bound)
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def value(self, statement: str, **bound: object) -> Any:
        """The first column of a named statement's first row; None when there is none."""
        rows = self.connection.execute(SQL[statement], bound).fetchall()
        return rows[0][0] if rows else None

    def pragma(self, name: str) -> Any:
        """What a pragma says."""
        return self.connection.execute(f"PRAGMA {name}").fetchall()[0][0]


OutsideCheck = Callable[[Subject], Finding]
InsideCheck = Callable[[Opened], Finding]


def size(bytes: float) -> str:
    """``310 MB``, for people."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if bytes < 10_000 or unit == "GB":
            return f"{bytes:,.0f} {unit}"
        bytes /= 1024
    raise AssertionError


def span(seconds: float) -> str:
    """``3 min``, for people."""
    for limit, unit, length in ((120, "s", 1), (7200, "min", 60), (172_800, "h", 3600)):
        if seconds < limit:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds / 86_400:.0f} days"
