"""OpenTelemetry traces from enqueue to handler. Nothing here is imported until somebody traces.

The names follow OpenTelemetry's semantic conventions for messaging spans, version 1.44.0, status Development
(opentelemetry.io/docs/specs/semconv/messaging/messaging-spans). A job's type is the destination, its id the message's.
Version 1.45.0 renames messaging.system to messaging.system.name; the schema's URL in each span tells which is meant.

- ``Queue.enqueue`` is a "send" span of kind PRODUCER, whose context the job carries. ``enqueue_many`` is one as well,
  for all of its jobs: the conventions would rather have a "create" span for each, and a batch may be of a million.
- An attempt is a "process" span of kind CONSUMER around the handler. The context that the job carries is its parent,
  as the conventions allow where a message is processed by itself and within no other span: one trace holds a job,
  its attempts and what they enqueue. It links to that context, too, as the conventions demand.
- Our own attributes begin with ``jobpool.``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

try:
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanKind, StatusCode, TracerProvider
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise ImportError(f"pool.tracing needs OpenTelemetry ({error}): pip install 'jobpool[traces]'") from None

import pool
from pool import hooks
from pool.job import Cancelled, Completed, Enqueued, Failed, Job, NewJob, Outcome, Snoozed
from pool.runner import class_of

_SCHEMA = "https://opentelemetry.io/schemas/1.44.0"


def instrument(tracer_provider: TracerProvider | None = None) -> None:
    """Trace what this process enqueues from now on and, in a worker, the jobs it runs.

    In a worker it has to come while the handlers' modules are imported. Calling it again replaces the provider.

    Args:
        tracer_provider: where spans go; by default the global one, which may be set later as well.
    """
    hooks.tracer = JobTracer(trace.get_tracer("jobpool", pool.__version__, tracer_provider, _SCHEMA))


def uninstrument() -> None:
    """Trace no more enqueues. A worker that has begun to trace goes on."""
    hooks.tracer = None


class Instrumentor:
    """What ``opentelemetry-instrument`` finds through our entry point, and calls in each process it starts."""

    def instrument(self, **options: Any) -> None:
        """See :func:`instrument`."""
        instrument(options.get("tracer_provider"))

    def uninstrument(self, **options: Any) -> None:
        """See :func:`uninstrument`."""
        uninstrument()


class JobTracer:
    """Makes the spans; see :class:`pool.hooks.Tracer`."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer

    def enqueue(self, type: str, store: Callable[[str | None], Enqueued]) -> Enqueued:
        """Store a job within a span. ``store`` takes the trace context that the job is to carry."""
        with self._sending(f"enqueue {type}", {"messaging.destination.name": type}) as span:
            try:
                done = store(carried())
            except BaseException as error:
                span.set_attribute("error.type", class_of(error))
                raise
            span.set_attribute("messaging.message.id", str(done.id))
            span.set_attribute("jobpool.job.created", done.created)
            return done

    def enqueue_many(self, jobs: Iterator[NewJob], store: Callable[[Iterator[NewJob], str | None], int]) -> int:
        """Store jobs within one span. ``store`` takes them, and the trace context that each of them is to carry."""
        count, types = 0, set()

        def counted() -> Iterator[NewJob]:
            nonlocal count
            for job in jobs:
                count += 1
                types.add(job.type)
                yield job

        with self._sending("enqueue", {}) as span:
            try:
                created = store(counted(), carried())
            except BaseException as error:
                span.set_attribute("error.type", class_of(error))
                raise
            finally:
                span.set_attribute("messaging.batch.message_count", count)
            if len(types) == 1:
                span.set_attribute("messaging.destination.name", *types)
            span.set_attribute("jobpool.jobs.created", created)
            return created

    def process(self, job: Job, trace_context: object, waited: float, run: Callable[[Job], Outcome]) -> Outcome:
        """Run a job within a span.

        Args:
            job: the job; a stranger may have written anything into its row.
            trace_context: what it carries; anything that is no trace context is ignored.
            waited: seconds from when it was due.
            run: runs it, and returns how that ended.
        """
        parent = context_of(trace_context)
        creation = trace.get_current_span(parent).get_span_context()
        attributes: dict[str, str | int | float] = {
            "messaging.system": "jobpool",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": str(job.type),
            "messaging.message.id": str(job.id),
            "messaging.client.id": str(job.worker),
            "jobpool.job.attempt": job.attempts,
            "jobpool.job.crashes": job.crashes,
            "jobpool.job.wait_seconds": waited,
        }
        with self._tracer.start_as_current_span(
            f"process {job.type}",
            context=parent,
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=[Link(creation)] if creation.is_valid else [],
        ) as span:
            outcome = run(job)
            _say_how_it_ended(span, job, outcome)
            return outcome

    def _sending(self, name: str, attributes: dict[str, str]) -> AbstractContextManager[Span]:
        attributes = {
            "messaging.system": "jobpool",
            "messaging.operation.name": "enqueue",
            "messaging.operation.type": "send",
            **attributes,
        }
        return self._tracer.start_as_current_span(name, kind=SpanKind.PRODUCER, attributes=attributes)


_propagator = TraceContextTextMapPropagator()


def carried() -> str | None:
    """The current context as a job carries it, None when there is none: the traceparent of W3C Trace Context, and
    behind a space the tracestate where there is one."""
    headers: dict[str, str] = {}
    _propagator.inject(headers)
    return " ".join(filter(None, map(headers.get, ("traceparent", "tracestate")))) or None


def context_of(trace_context: object) -> Context:
    """The context that a job carries; an empty one, and so a trace of its own, for anything that is none."""
    if not isinstance(trace_context, str):
        return Context()
    traceparent, _, tracestate = trace_context.partition(" ")
    headers = {"traceparent": traceparent, "tracestate": tracestate}
    return _propagator.extract(headers, Context())


def _say_how_it_ended(span: Span, job: Job, outcome: Outcome) -> None:
    """An attempt that failed is an error, whether it is tried again or not. One that was snoozed or cancelled is
    none: what was asked for happened."""
    span.set_attribute("jobpool.job.outcome", _word_for(job, outcome))
    if not isinstance(outcome, Failed):
        return
    span.set_attribute("error.type", outcome.raised or "_OTHER")
    span.set_status(StatusCode.ERROR, outcome.error)
    if outcome.raised:
        message = outcome.error.partition(": ")[2] if outcome.traceback else outcome.error
        event = {"exception.type": outcome.raised, "exception.message": message}
        span.add_event("exception", event | ({"exception.stacktrace": outcome.traceback} if outcome.traceback else {}))


def _word_for(job: Job, outcome: Outcome) -> str:
    if isinstance(outcome, Completed):
        return "done"
    if isinstance(outcome, Snoozed):
        return "snoozed"
    if isinstance(outcome, Cancelled):
        return "cancelled"
    if outcome.permanent:
        return "discarded"
    # A stranger may have stored a text, which no number of attempts reaches.
    return "dead" if isinstance(job.max_attempts, (int, float)) and job.attempts >= job.max_attempts else "retry"
