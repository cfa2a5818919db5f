"""Who watches jobs come and go: nobody, until ``pool.tracing.instrument()`` puts itself here.

Applications and workers look at ``tracer`` and find None: that look is all that traces cost where nobody traces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from pool.job import Enqueued, Job, NewJob, Outcome


class Tracer(Protocol):
    """Wraps what is done to jobs, and calls it; what it is handed does the work."""

    def enqueue(self, type: str, store: Callable[[str | None], Enqueued]) -> Enqueued: ...
    def enqueue_many(self, jobs: Iterator[NewJob], store: Callable[[Iterator[NewJob], str | None], int]) -> int: ...
    def process(self, job: Job, trace_context: object, waited: float, run: Callable[[Job], Outcome]) -> Outcome: ...


tracer: Tracer | None = None
