"""A job as it is claimed and enqueued, and the outcomes that end an attempt."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from pool import jsontext

DEFAULT_MAX_ATTEMPTS = 5
#: Deaths of its worker a job may cause before it is dead, whatever its attempts; never reset by a restart.
DEFAULT_MAX_CRASHES = 3


class Status(StrEnum):
    """The four states of a job; docs/lifecycle.md draws the arrows."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    DEAD = "dead"


class Job(NamedTuple):
    """A claimed job. ``worker`` and ``attempts`` together are its lease: every ending is written under both.

    ``payload_text`` is the JSON as stored; ``timeout_seconds`` is the job's own limit, or None for its handler's;
    ``crashes`` counts the workers that died under it.
    """

    id: int
    type: str
    payload_text: str
    attempts: int
    max_attempts: int
    timeout_seconds: float | None
    crashes: int
    run_at: str
    priority: int
    worker: str

    @property
    def payload(self) -> jsontext.Json:
        """The payload's value. Raises ValueError when a stranger stored something that is not JSON."""
        return jsontext.load(self.payload_text)


class NewJob(NamedTuple):
    """A row about to be enqueued, in the order the statement binds it; times are UTC text."""

    type: str
    payload_text: str
    key: str | None
    priority: int
    run_at: str
    max_attempts: int
    timeout_seconds: float | None
    created_at: str


class Enqueued(NamedTuple):
    """The answer to an enqueue: the job's id, and whether it was created now or its key was there already."""

    id: int
    created: bool


class AttemptOutcome(StrEnum):
    """How an attempt that did not complete ended, as the ``attempts`` table records it."""

    FAILED = "failed"
    DISCARDED = "discarded"
    CRASHED = "crashed"
    TIMEOUT = "timeout"
    STALLED = "stalled"
    MEMORY = "memory limit"
    INTERRUPTED = "interrupted"
    LEASE_EXPIRED = "lease expired"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of an attempt that did not complete; text is bounded by whoever collects it.

    ``exit_code`` or ``signal`` tell how its process ended, ``stack`` where it was, ``output`` the last it printed;
    ``peak_memory_bytes`` and ``cpu_seconds`` are those of the whole worker process.
    """

    outcome: AttemptOutcome
    error: str
    ended_at: str
    started_at: str | None = None
    traceback: str | None = None
    exit_code: int | None = None
    signal: str | None = None
    stack: str | None = None
    output: str | None = None
    peak_memory_bytes: int | None = None
    cpu_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Completed:
    """The handler returned; ``result_text`` is its JSON, or None for no result."""

    result_text: str | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The handler raised. ``delay``: seconds until the retry, None for the default; ``permanent``: dead at once;
    ``raised``: the exception's class with its module, empty when it was not the handler that failed."""

    error: str
    traceback: str = ""
    delay: float | None = None
    permanent: bool = False
    raised: str = ""
    output: str = ""
    started_at: str | None = None


@dataclass(frozen=True, slots=True)
class Snoozed:
    """The handler asked to come back in ``delay`` seconds without the attempt being counted."""

    delay: float


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The job was cancelled while it ran, and its handler saw that and ended early."""

    error: str = "cancelled"
    output: str = ""
    started_at: str | None = None


Outcome = Completed | Failed | Snoozed | Cancelled


def retry_delay(attempts: int) -> float:
    """Default seconds until the next try after ``attempts`` tries: attempts² minutes, as the contract states."""
    return min(attempts, 10_000) ** 2 * 60.0
