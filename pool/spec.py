"""A job to be: what a caller says of it, checked and made into the row that is stored."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, TypedDict, cast

from pool import declare, jsontext
from pool.clock import duration, instant, now_text, utc_text
from pool.errors import UsageError
from pool.job import DEFAULT_MAX_ATTEMPTS, NewJob

Durability = Literal["normal", "full"]

#: Seconds (some thirty years) that stand for any longer timeout: a worker counts nanoseconds in 64 bits.
LONGEST_TIMEOUT = 1e9


class EnqueueOptions(TypedDict, total=False):
    """The keyword arguments of :meth:`Queue.enqueue`, for code that collects them first."""

    key: str | None
    priority: int
    delay: float | timedelta | None
    run_at: datetime | None
    max_attempts: int | None
    timeout: float | timedelta | None
    durable: Durability | None


class Spec(NamedTuple):
    """One job for :meth:`Queue.enqueue_many`; the fields mean what they mean for ``enqueue``."""

    type: str
    payload: jsontext.Json = None
    key: str | None = None
    priority: int = 0
    delay: float | timedelta | None = None
    run_at: datetime | None = None
    max_attempts: int | None = None
    timeout: float | timedelta | None = None


def new_job(
    type: str,
    payload: jsontext.Json = None,
    key: str | None = None,
    priority: int = 0,
    delay: float | timedelta | None = None,
    run_at: datetime | None = None,
    max_attempts: int | None = None,
    timeout: float | timedelta | None = None,
) -> NewJob:
    """The row of a job to be, checked. Raises as :meth:`Queue.enqueue` does."""
    now = now_text()
    _check_text(type, "type")
    if key is not None:
        _check_text(key, "key")
    if max_attempts is None:
        max_attempts = _declared_attempts(type)
    elif not isinstance(max_attempts, int) or not 1 <= max_attempts < 2**31 or max_attempts is True:
        raise UsageError(f"max_attempts takes a whole number from 1, not {max_attempts!r}")
    if priority != 0 and (not isinstance(priority, int) or not -(2**31) <= priority < 2**31):
        raise UsageError(f"priority takes a whole number (lower runs first), not {priority!r}")
    if timeout is not None:
        timeout = min(duration(timeout, "timeout"), LONGEST_TIMEOUT)
        if timeout == 0:
            raise UsageError("timeout=0 would end the job at once; leave it out for the handler's own")
    due = now if delay is None and run_at is None else _due(delay, run_at)
    text = "{}" if payload is None else jsontext.dump(payload)
    return NewJob(type, text, key, int(priority), due, max_attempts, timeout, now)


def _due(delay: float | timedelta | None, run_at: datetime | None) -> str:
    if run_at is None:
        return utc_text(time.time() + duration(cast(float, delay)))
    if delay is not None:
        raise UsageError("give delay or run_at, not both")
    return utc_text(instant(run_at))


def _check_text(value: str, name: str) -> None:
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"{name} takes a text that is not blank, not {value!r}")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise UsageError(f"{name}={value!a} holds a lone surrogate, which the database cannot store") from None


def _declared_attempts(type: str) -> int:
    for each in reversed(declare.declared):
        if each.type == type:
            return int(each.max_attempts)
    return DEFAULT_MAX_ATTEMPTS


def from_item(item: Spec | tuple[Any, ...] | Mapping[str, Any]) -> NewJob:
    if isinstance(item, tuple):
        return new_job(*item)
    if isinstance(item, Mapping):
        unknown = set(item) - set(Spec._fields)
        if unknown or "type" not in item:
            raise UsageError(f"a job has the fields {', '.join(Spec._fields)}; got {', '.join(map(str, item))}")
        return new_job(**item)
    raise UsageError(f"enqueue_many takes Spec, tuples or mappings, not {type(item).__name__}")
