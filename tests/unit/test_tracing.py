"""The spans themselves: their names, kinds, parents and attributes, and how each end of an attempt looks."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from pool import Discard, PayloadError, Queue, Retry, Snooze, hooks, tracing
from pool.declare import Handler, JobCancelled
from pool.job import Job
from pool.runner import run
from pool.testing import Still
from pool.tracecontext import trace_id
from tests.support import row, rows

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CONTEXT = f"00-{TRACE}-{PARENT}-01"


class Spans:
    """What was exported, and the provider behind it."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def all(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()

    def one(self) -> Any:
        (span,) = self.all()
        return span


@pytest.fixture
def spans() -> Iterator[Spans]:
    """Tracing switched on in this process."""
    made = Spans()
    tracing.instrument(made.provider)
    yield made
    tracing.uninstrument()


def context_in(span: ReadableSpan) -> str:
    """A span's context as a job carries it."""
    context = span.context
    assert context is not None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


# enqueue


def test_an_enqueue_is_a_producer_span_whose_context_the_job_carries(
    spans: Spans, queue: Queue, database: Path
) -> None:
    queue.enqueue("resize")
    span = spans.one()
    assert (span.name, span.kind, span.status.status_code) == ("enqueue resize", SpanKind.PRODUCER, StatusCode.UNSET)
    assert dict(span.attributes) == {
        "messaging.system": "jobpool",
        "messaging.operation.name": "enqueue",
        "messaging.operation.type": "send",
        "messaging.destination.name": "resize",
        "messaging.message.id": "1",
        "jobpool.job.created": True,
    }
    assert span.instrumentation_scope.name == "jobpool"
    assert row(database)["trace_context"] == context_in(span)


def test_an_enqueue_continues_the_trace_it_is_made_in_with_its_tracestate(
    spans: Spans, queue: Queue, database: Path
) -> None:
    state = "congo=t61rcWkgMzE"
    with spans.provider.get_tracer("app").start_as_current_span(
        "request", context=tracing.context_of(f"{CONTEXT} {state}")
    ) as request:
        queue.enqueue("t")
    (span, _) = spans.all()
    assert span.parent == request.get_span_context()
    assert row(database)["trace_context"] == f"{context_in(span)} {state}"
    assert trace_id(row(database)["trace_context"]) == TRACE


def test_an_enqueue_of_a_key_that_is_there_says_so_and_leaves_that_job_its_trace(
    spans: Spans, queue: Queue, database: Path
) -> None:
    for _ in range(2):
        queue.enqueue("t", key="k")
    first, second = spans.all()
    assert first.attributes and first.attributes["jobpool.job.created"] is True
    assert second.attributes and second.attributes["jobpool.job.created"] is False
    assert second.attributes["messaging.message.id"] == "1"
    assert row(database)["trace_context"] == context_in(first)


def test_a_job_in_the_caller_s_own_transaction_carries_a_trace_as_well(
    spans: Spans, queue: Queue, database: Path
) -> None:
    connection = sqlite3.connect(database, isolation_level=None)
    for end in ("ROLLBACK", "COMMIT"):
        connection.execute("BEGIN IMMEDIATE")
        queue.enqueue("t", connection=connection)
        connection.execute(end)
    connection.close()
    assert [each["trace_context"] for each in rows(database)] == [context_in(spans.all()[1])]


def test_a_batch_is_one_span_that_all_its_jobs_carry(spans: Spans, queue: Queue, database: Path) -> None:
    queue.enqueue("t", key="k")
    assert queue.enqueue_many([("t", None, "k"), *[("t", n) for n in range(8)]], chunk=3) == 8
    span = spans.all()[1]
    assert (span.name, span.kind) == ("enqueue", SpanKind.PRODUCER)
    assert span.attributes is not None
    assert span.attributes["messaging.batch.message_count"] == 9 and span.attributes["jobpool.jobs.created"] == 8
    assert span.attributes["messaging.destination.name"] == "t"
    assert {each["trace_context"] for each in rows(database)[1:]} == {context_in(span)}


def test_a_batch_of_several_types_names_no_destination(spans: Spans, queue: Queue) -> None:
    queue.enqueue_many([("a",), ("b",)])
    assert "messaging.destination.name" not in spans.one().attributes


def test_a_batch_that_breaks_off_is_an_error_and_raises_as_ever(spans: Spans, queue: Queue) -> None:
    with pytest.raises(PayloadError):
        queue.enqueue_many([("t",), ("t", {1: 2})])
    span = spans.one()
    assert span.status.status_code == StatusCode.ERROR
    assert span.attributes["error.type"] == "pool.errors.PayloadError"


def test_an_enqueue_that_fails_is_an_error_and_raises_as_ever(spans: Spans, queue: Queue, database: Path) -> None:
    connection = sqlite3.connect(":memory:")
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        queue.enqueue("t", connection=connection)
    connection.close()
    span = spans.one()
    assert span.status.status_code == StatusCode.ERROR
    assert span.attributes["error.type"] == "sqlite3.OperationalError"
    assert [each.name for each in span.events] == ["exception"]


def test_what_is_not_sampled_is_still_carried_so_that_the_worker_does_not_sample_it_either(
    queue: Queue, database: Path
) -> None:
    tracing.instrument(TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False))
    try:
        queue.enqueue("t")
    finally:
        tracing.uninstrument()
    carried = row(database)["trace_context"]
    assert trace_id(carried) and int(carried.rpartition("-")[2], 16) & 1 == 0


def test_without_an_sdk_the_context_of_the_caller_is_carried_or_none(queue: Queue, database: Path) -> None:
    tracing.instrument(trace.NoOpTracerProvider())
    try:
        queue.enqueue("t")
        with trace.use_span(trace.get_current_span(tracing.context_of(CONTEXT))):
            queue.enqueue("t")
    finally:
        tracing.uninstrument()
    assert [each["trace_context"] for each in rows(database)] == [None, CONTEXT]


def test_after_uninstrument_nothing_is_traced(spans: Spans, queue: Queue, database: Path) -> None:
    tracing.uninstrument()
    queue.enqueue("t")
    assert not spans.all() and row(database)["trace_context"] is None


# an attempt


def process(function: Any, trace_context: object = CONTEXT, **odd: Any) -> object:
    """Run a function as the handler of a job's third attempt of five, as a worker that traces does."""
    handler = Handler(function, "t")
    job = Job(7, "t", "{}", 3, 5, None, 1, "2026-01-01 00:00:00", 0, "web1:42:9f3a")._replace(**odd)
    assert hooks.tracer is not None
    return hooks.tracer.process(job, trace_context, 1.5, lambda job: run(job, {"t": handler}, Still()))


def test_an_attempt_is_a_consumer_span_and_the_child_of_what_the_job_carries(spans: Spans) -> None:
    process(lambda: 3)
    span = spans.one()
    assert (span.name, span.kind, span.status.status_code) == ("process t", SpanKind.CONSUMER, StatusCode.UNSET)
    assert f"{span.context.trace_id:032x}" == TRACE
    assert f"{span.parent.span_id:016x}" == PARENT and span.parent.is_remote
    assert [each.context for each in span.links] == [span.parent]
    assert dict(span.attributes) == {
        "messaging.system": "jobpool",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "t",
        "messaging.message.id": "7",
        "messaging.client.id": "web1:42:9f3a",
        "jobpool.job.attempt": 3,
        "jobpool.job.crashes": 1,
        "jobpool.job.wait_seconds": 1.5,
        "jobpool.job.outcome": "done",
    }


def raising(error: BaseException) -> Any:
    def function() -> None:
        raise error

    return function


class OddError(Exception):
    """An exception whose text cannot be had."""

    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize(
    ("error", "max_attempts", "outcome", "status", "description", "kind"),
    [
        (RuntimeError("no luck"), 5, "retry", "ERROR", "RuntimeError: no luck", "RuntimeError"),
        (SystemExit(3), 5, "retry", "ERROR", "SystemExit: 3", "SystemExit"),
        (RuntimeError("no luck"), 3, "dead", "ERROR", "RuntimeError: no luck", "RuntimeError"),
        (RuntimeError("no luck"), "five", "retry", "ERROR", "RuntimeError: no luck", "RuntimeError"),
        (Retry(5, "later"), 5, "retry", "ERROR", "later", "pool.declare.Retry"),
        (Discard("never"), 5, "discarded", "ERROR", "never", "pool.declare.Discard"),
        (Snooze(60), 5, "snoozed", "UNSET", None, None),
        (JobCancelled("stop"), 5, "cancelled", "UNSET", None, None),
        (
            OddError(), 5, "retry", "ERROR", "OddError: <its text cannot be had: ValueError>",
            "tests.unit.test_tracing.OddError",
        ),
    ],
)  # fmt: skip
def test_each_end_of_an_attempt_is_told(
    error: BaseException, max_attempts: object, outcome: str, status: str, description: str, kind: str, spans: Spans
) -> None:
    process(raising(error), max_attempts=max_attempts)
    span = spans.one()
    assert span.attributes["jobpool.job.outcome"] == outcome
    assert (span.status.status_code.name, span.status.description) == (status, description)
    assert span.attributes.get("error.type") == kind
    assert [each.attributes["exception.type"] for each in span.events] == ([kind] if kind else [])


def test_an_exception_is_recorded_with_its_message_and_where_it_was_raised(spans: Spans) -> None:
    process(raising(ValueError("a: b\nc")))
    (event,) = spans.one().events
    assert (event.name, event.attributes["exception.message"]) == ("exception", "a: b\nc")
    assert "in function\n    raise error" in event.attributes["exception.stacktrace"]


def test_a_failure_without_an_exception_is_an_error_of_no_type(spans: Spans) -> None:
    process(lambda: 3, payload_text="{")
    span = spans.one()
    assert span.status.description.startswith("the payload is not JSON")
    assert (span.attributes["error.type"], span.events) == ("_OTHER", ())


def test_spans_of_a_handler_are_children_and_what_it_enqueues_goes_on_in_the_trace(
    spans: Spans, queue: Queue, database: Path
) -> None:
    def function() -> None:
        with spans.provider.get_tracer("app").start_as_current_span("decode"):
            queue.enqueue("next")

    process(function)
    enqueue, decode, attempt = spans.all()
    assert decode.parent == attempt.context and enqueue.parent == decode.context
    assert trace_id(row(database)["trace_context"]) == TRACE


@pytest.mark.parametrize(
    "garbage",
    [
        None, "", " ", "garbage", 7, b"\xff", f"00-{'0' * 32}-{PARENT}-01", f"ff-{TRACE}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-01-more", f"00-{TRACE.upper()}-{PARENT}-01", "é" * 10_000, "\x00",
    ],
    ids=lambda value: repr(value)[:40],
)  # fmt: skip
def test_a_context_that_is_none_is_ignored_and_the_attempt_begins_a_trace(garbage: object, spans: Spans) -> None:
    process(lambda: 3, garbage)
    span = spans.one()
    assert span.parent is None and not span.links and span.attributes["jobpool.job.outcome"] == "done"


@pytest.mark.parametrize(
    "state", ["", "=", "a=\x00", "é=1", "a" * 10_000, "a=1,a=2"], ids=lambda value: repr(value)[:9]
)
def test_a_tracestate_that_is_none_does_not_harm_the_trace(state: str, spans: Spans) -> None:
    process(lambda: 3, f"{CONTEXT} {state}")
    assert f"{spans.one().context.trace_id:032x}" == TRACE


def test_what_a_handler_leaves_attached_does_not_reach_the_next_job(spans: Spans) -> None:
    def function() -> None:
        from opentelemetry.context import attach

        attach(trace.set_span_in_context(spans.provider.get_tracer("app").start_span("forgotten")))

    process(function, None)
    process(lambda: 3, None)
    first, second = spans.all()
    assert first.context and second.context and second.parent is None
    assert first.context.trace_id != second.context.trace_id
