"""Runs one job and says how it ended. Knows nothing of the store: recording the outcome is the worker's step."""

from __future__ import annotations

import traceback

from pool import jsontext
from pool.declare import Context, Discard, JobCancelled, Monitor, Retry, Snooze
from pool.errors import PayloadError
from pool.job import Cancelled, Completed, Failed, Job, Outcome, Snoozed
from pool.registry import Handlers

#: Characters of an error's line and of its traceback that are kept; the ends of a longer one are.
ERROR_LIMIT = 2_000
TRACEBACK_LIMIT = 64 * 1024


def run(job: Job, handlers: Handlers, monitor: Monitor) -> Outcome:
    """Call the job's handler. Whatever it raises, SystemExit and KeyboardInterrupt included, becomes an outcome."""
    handler = handlers.get(job.type)
    if handler is None:
        known = ", ".join(sorted(handlers)) or "none"
        return Failed(f"no handler for the type {job.type!r}; this pool has: {known}"[:ERROR_LIMIT])
    try:
        payload = job.payload
    except (ValueError, TypeError) as error:
        return Failed(f"the payload is not JSON: {error}"[:ERROR_LIMIT])
    try:
        extra = {}
        if handler.wants_context:
            extra["ctx"] = Context(job.id, job.type, job.attempts, job.max_attempts, monitor)
        result = handler.function(**payload, **extra) if type(payload) is dict else handler.function(payload, **extra)
        return _COMPLETED if result is None else Completed(jsontext.dump(result, "result"))
    except JobCancelled as cancelled:
        return Cancelled(describe(cancelled))
    except Snooze as snooze:
        return Snoozed(snooze.delay)
    except Discard as discard:
        return Failed(clip(message_of(discard), ERROR_LIMIT), permanent=True, raised=class_of(discard))
    except Retry as retry:
        return Failed(clip(message_of(retry), ERROR_LIMIT), delay=retry.delay, raised=class_of(retry))
    except PayloadError as error:
        return Failed(f"the handler returned what JSON cannot hold: {error}"[:ERROR_LIMIT])
    except BaseException as error:  # a handler may raise anything; the worker lives on
        return Failed(describe(error), traceback=_traceback_of(error), raised=class_of(error))


_COMPLETED = Completed()


def describe(error: BaseException) -> str:
    """``Type: message`` on one line, bounded, whatever the exception's own ``__str__`` does."""
    name = type(error).__qualname__
    message = message_of(error)
    return clip(f"{name}: {message}" if message else name, ERROR_LIMIT)


def message_of(error: BaseException) -> str:
    """The exception's text, storable as UTF-8; a placeholder when its ``__str__`` raises."""
    try:
        text = str(error)
    except BaseException as second:  # it is user code too
        text = f"<its text cannot be had: {type(second).__name__}>"
    return storable(clip(text, ERROR_LIMIT))


def storable(text: str) -> str:
    """The text with what UTF-8 cannot hold (lone surrogates) spelled out."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def clip(text: str, limit: int) -> str:
    """At most ``limit`` characters: the beginning and the end of a longer text, and how much is missing."""
    if len(text) <= limit:
        return text
    head, tail = limit // 3, limit - limit // 3
    return f"{text[:head]}\n… {len(text) - limit} characters left out …\n{text[-tail:]}"


def class_of(error: BaseException) -> str:
    """The exception's class with its module, which Python's own go without."""
    module, name = type(error).__module__, type(error).__qualname__
    return storable(name if module == "builtins" else f"{module}.{name}")


def _traceback_of(error: BaseException) -> str:
    trace = error.__traceback__.tb_next if error.__traceback__ else None  # our own frame says nothing
    try:
        lines = traceback.format_exception(type(error), error, trace, limit=-100)
    except BaseException:  # odd constructors and __str__ break the formatter as well
        lines = [*traceback.format_tb(trace, limit=-100), describe(error)]
    return clip(storable("".join(lines)), TRACEBACK_LIMIT)
