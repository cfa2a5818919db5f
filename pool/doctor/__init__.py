"""Looks at everything around a queue that is known to go wrong, and says what to do. Changes nothing, anywhere."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Mapping
from typing import TypeVar

from pool.doctor import database, files, machine, queue
from pool.doctor.finding import Finding, InsideCheck, Level, Opened, OutsideCheck, Subject, fail, ok, warn
from pool.errors import DatabaseUnusable
from pool.restore import open_to_read
from pool.store.sqlite import spelled_out

__all__ = ["Finding", "Level", "examine"]

OUTSIDE: tuple[OutsideCheck, ...] = (*files.CHECKS, *machine.CHECKS)
INSIDE: tuple[InsideCheck, ...] = (*database.CHECKS, *queue.CHECKS)

T = TypeVar("T")


def examine(
    path: str, now: str, environment: Mapping[str, str], variables: frozenset[str], *, full: bool = False
) -> list[Finding]:
    """All findings, those of the machine first. Never raises for what it finds; a check that cannot tell says so.

    Args:
        path: the database file, which need not exist or be one.
        now: UTC text.
        environment: the environment variables, such as ``os.environ``.
        variables: the names of those beginning with ``POOL_`` that mean something.
        full: check every index entry against its row, too.
    """
    subject = Subject(os.path.realpath(path), now, environment, variables, full)
    found = [_ask(check, subject) for check in OUTSIDE]
    log = subject.path + "-wal"
    unused = not os.path.exists(log)
    inside = _inside(subject)
    if unused and os.path.exists(log):
        # It was read as one that nobody has open, and somebody has opened it meanwhile: what was seen proves nothing.
        inside = _inside(subject)
    return found + inside


def _inside(subject: Subject) -> list[Finding]:
    try:
        with open_to_read(subject.path) as connection:
            connection.text_factory = spelled_out
            opened = Opened(subject, connection, os.path.exists(subject.path + "-wal"))
            return [ok("open", "it can be opened and read"), *(_ask(check, opened) for check in INSIDE)]
    except DatabaseUnusable as error:
        return [fail("open", str(error), "see the findings above; or restore a backup: pool restore SOURCE --force")]


def _ask(check: Callable[[T], Finding], of: T) -> Finding:
    try:
        return check(of)
    except (sqlite3.Error, OSError, ValueError, TypeError, LookupError) as error:
        name = check.__name__.replace("_", " ")
        return warn(name, f"cannot tell: {type(error).__name__}: {error}", "see whether other findings explain it")
