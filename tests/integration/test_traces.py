"""Traces from a process that enqueues to the worker that runs the job, with OpenTelemetry's own SDK in both."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pool import Queue
from pool.tracecontext import trace_id
from tests.conftest import Command, StartPool
from tests.support import environment, eventually, lines, row, rows, settled, stranger

#: Handlers with an SDK that writes each span as a line. It is batched for a minute: what is there sooner was flushed.
HANDLERS = """
import pool.tracing
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
from pool import JobCancelled, Queue

provider = TracerProvider()
exporter = ConsoleSpanExporter(out=open("spans", "a"), formatter=lambda span: span.to_json(indent=None) + "\\n")
provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=60_000))
trace.set_tracer_provider(provider)
pool.tracing.instrument()


@handler("twice")
def twice(ctx):
    if ctx.attempt == 1:
        raise Retry(0, "not yet") from RuntimeError("no luck")


@handler("discard")
def discard(): raise Discard("never")

@handler("snooze")
def snooze(): raise Snooze(3600)

@handler("cancel")
def cancel(): raise JobCancelled("stop")

@handler("chain")
def chain():
    with trace.get_tracer("app").start_as_current_span("decode"), Queue("jobs.db") as queue:
        queue.enqueue("note", {"path": "noted"})

@handler("small", group=10)
def small(): pass

@handler("await_cancel")
def await_cancel(ctx):
    append("started", str(os.getpid()))
    while not ctx.cancelled:
        time.sleep(0.01)
"""
#: Enqueues in a process of its own, with an SDK of its own.
ENQUEUE = """
import sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
import pool.tracing
trace.set_tracer_provider(TracerProvider())
pool.tracing.instrument()
with pool.Queue("jobs.db") as queue:
    for type in sys.argv[1:]:
        queue.enqueue(type)
"""
#: What OpenTelemetry's SDK is told by environment variables: spans go to a worker's output, so to the pool's log.
CONSOLE = {"OTEL_TRACES_EXPORTER": "console", "OTEL_METRICS_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"}
CONTEXT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

Enqueue = Callable[..., None]


@pytest.fixture
def enqueue(tmp_path: Path) -> Enqueue:
    """``enqueue("t", "t")``: jobs from a process that traces."""

    def run(*types: str) -> None:
        command = [sys.executable, "-c", ENQUEUE, *types]
        subprocess.run(command, cwd=tmp_path, check=True, timeout=60, env=environment())

    return run


def spans_in(folder: Path, name: str = "") -> list[dict[str, Any]]:
    """The spans that were exported, or those of a name, as they began."""
    found = [json.loads(line) for line in lines(folder / "spans")]
    return sorted((each for each in found if name in ("", each["name"])), key=lambda each: str(each["start_time"]))


def job_of(span: dict[str, Any]) -> int:
    return int(span["attributes"]["messaging.message.id"])


def span_id(trace_context: str) -> str:
    return f"0x{trace_context.split('-')[2]}"


def test_a_job_is_traced_from_the_process_that_enqueued_it_to_its_worker_and_to_the_jobs_it_makes(
    pool: StartPool, enqueue: Enqueue, database: Path, tmp_path: Path
) -> None:
    enqueue("chain")
    running = pool(handlers=HANDLERS)
    eventually(lambda: settled(database, done=2))
    assert running.stop() == 0
    first, second = rows(database)
    (attempt,), (decode,), (sent,), (following,) = (
        spans_in(tmp_path, name) for name in ("process chain", "decode", "enqueue note", "process note")
    )
    assert attempt["kind"] == "SpanKind.CONSUMER" and attempt["attributes"]["jobpool.job.outcome"] == "done"
    assert re.fullmatch(r"[^:]+:\d+:[0-9a-f]+", attempt["attributes"]["messaging.client.id"])
    assert 0 <= attempt["attributes"]["jobpool.job.wait_seconds"] < 60
    assert attempt["parent_id"] == attempt["links"][0]["context"]["span_id"] == span_id(first["trace_context"])
    assert decode["parent_id"] == attempt["context"]["span_id"] and sent["parent_id"] == decode["context"]["span_id"]
    assert following["parent_id"] == sent["context"]["span_id"] == span_id(second["trace_context"])
    traces = {each["context"]["trace_id"] for each in spans_in(tmp_path)}
    assert traces == {f"0x{trace_id(first['trace_context'])}"} == {f"0x{trace_id(second['trace_context'])}"}


def test_a_retry_is_a_second_span_in_the_same_trace(
    pool: StartPool, enqueue: Enqueue, database: Path, tmp_path: Path
) -> None:
    enqueue("twice")
    running = pool(handlers=HANDLERS)
    eventually(lambda: settled(database, done=1))
    assert running.stop() == 0
    first, second = spans_in(tmp_path)
    assert [each["attributes"]["jobpool.job.attempt"] for each in (first, second)] == [1, 2]
    assert first["parent_id"] == second["parent_id"] == span_id(row(database)["trace_context"])
    assert (first["status"], second["status"]) == (
        {"status_code": "ERROR", "description": "not yet"},
        {"status_code": "UNSET"},
    )


def test_each_outcome_is_told(pool: StartPool, enqueue: Enqueue, database: Path, tmp_path: Path) -> None:
    enqueue("fail", "discard", "snooze", "cancel", "nobody's")
    running = pool("--drain", handlers=HANDLERS)
    assert running.wait() == 1
    found = {each["name"].removeprefix("process "): each for each in spans_in(tmp_path)}
    told = {
        type: (each["attributes"]["jobpool.job.outcome"], each["status"]["status_code"], len(each["events"]))
        for type, each in found.items()
    }
    assert told == {
        "fail": ("retry", "ERROR", 1),
        "discard": ("discarded", "ERROR", 1),
        "snooze": ("snoozed", "UNSET", 0),
        "cancel": ("cancelled", "UNSET", 0),
        "nobody's": ("retry", "ERROR", 0),
    }
    (event,) = found["fail"]["events"]
    assert event["attributes"]["exception.message"] == "no luck"
    assert (
        event["attributes"]["exception.stacktrace"] == rows(database, "SELECT traceback FROM attempts")[0]["traceback"]
    )


def test_a_job_that_ends_because_it_was_cancelled_is_told_as_that(
    pool: StartPool, enqueue: Enqueue, queue: Queue, tmp_path: Path
) -> None:
    enqueue("await_cancel")
    running = pool(handlers=HANDLERS)
    eventually(lambda: lines(tmp_path / "started"))
    assert queue.cancel(1) == "requested"
    eventually(lambda: rows(queue.path, "SELECT * FROM jobs_archive"))
    assert running.stop() == 0
    (span,) = spans_in(tmp_path)
    assert (span["attributes"]["jobpool.job.outcome"], span["status"]["status_code"]) == ("cancelled", "UNSET")


def test_jobs_of_a_group_have_a_span_each_in_the_traces_they_carry(
    pool: StartPool, enqueue: Enqueue, database: Path, tmp_path: Path
) -> None:
    enqueue(*["small"] * 20)
    running = pool(handlers=HANDLERS)
    eventually(lambda: settled(database, done=20))
    assert running.stop() == 0
    carried = {each["id"]: span_id(each["trace_context"]) for each in rows(database)}
    assert {job_of(span): span["parent_id"] for span in spans_in(tmp_path)} == carried


def test_strangers_contexts_are_taken_up_and_their_garbage_is_ignored(
    pool: StartPool, database: Path, queue: Queue, tmp_path: Path
) -> None:
    values = [
        f"'{CONTEXT} congo=t61'",
        "NULL",
        "'garbage'",
        "7",
        "x'ff00'",
        "CAST(x'ff' AS TEXT)",
        f"upper('{CONTEXT}')",
    ]
    with stranger(database) as sql:
        for value in values:
            sql.execute(f"INSERT INTO jobs (type, payload, trace_context) VALUES ('chain', '{{}}', {value})")
    running = pool(handlers=HANDLERS)
    eventually(lambda: settled(database, done=2 * len(values)))
    assert running.stop() == 0
    parents = {job_of(span): span["parent_id"] for span in spans_in(tmp_path, "process chain")}
    assert parents == {1: span_id(CONTEXT), **dict.fromkeys(range(2, len(values) + 1))}
    (noted,) = [
        context
        for each in rows(database, "SELECT trace_context FROM jobs WHERE type = 'note'")
        if trace_id(context := each["trace_context"]) == trace_id(CONTEXT)
    ]
    assert noted.endswith(" congo=t61")


def test_a_worker_that_is_replaced_in_good_order_has_sent_its_spans(
    pool: StartPool, enqueue: Enqueue, database: Path, tmp_path: Path
) -> None:
    running = pool("--max-jobs", "1", handlers=HANDLERS).ready()
    enqueue("small")
    eventually(lambda: spans_in(tmp_path, "process small"))
    assert running.process.poll() is None and running.stop() == 0


def test_an_attempt_whose_worker_is_killed_has_no_span_and_the_next_one_says_so(
    pool: StartPool, enqueue: Enqueue, database: Path, tmp_path: Path
) -> None:
    enqueue("await_cancel")
    running = pool(handlers=HANDLERS)
    os.kill(int(eventually(lambda: lines(tmp_path / "started"))[0]), signal.SIGKILL)
    eventually(lambda: len(lines(tmp_path / "started")) == 2)
    with Queue(database) as queue:
        queue.cancel(1)
        eventually(lambda: rows(database, "SELECT * FROM jobs_archive"))
    assert running.stop() == 0
    (span,) = spans_in(tmp_path)
    attributes = span["attributes"]
    assert (attributes["jobpool.job.attempt"], attributes["jobpool.job.crashes"]) == (2, 1)
    (archived,) = rows(database, "SELECT trace_context FROM jobs_archive")
    assert span["parent_id"] == span_id(archived["trace_context"])


# switched on from outside


def names_in(log: str) -> list[str]:
    """The names of the spans in a log, sorted."""
    return sorted(re.findall(r'"name": "([^"]+)",\s+\S+ \S+ \|\s+"context"', log))


#: A handler whose own SQLite statements an instrumentation of sqlite3 traces; ours, it must not.
APPLICATION = """
import sqlite3
from pool import Queue

@handler("chain")
def chain():
    sqlite3.connect("app.db").cursor().execute("CREATE TABLE t (a)")
    with Queue("jobs.db") as queue:
        queue.enqueue("echo")
"""
EXPECTED = ["CREATE", "enqueue echo", "process chain", "process echo"]


def test_with_the_option_the_workers_are_instrumented(
    pool: StartPool, queue: Queue, database: Path, tmp_path: Path
) -> None:
    with stranger(database) as sql:
        sql.execute("INSERT INTO jobs (type, payload, trace_context) VALUES ('chain', '{}', ?)", (CONTEXT,))
    running = pool("--traces", handlers=APPLICATION, env=CONSOLE)
    eventually(lambda: settled(database, done=2))
    assert running.stop() == 0
    assert names_in(running.err) == EXPECTED
    assert set(re.findall(r'"trace_id": "0x(\w+)"', running.err)) == {trace_id(CONTEXT)}


def test_under_opentelemetry_instrument_the_workers_are_instrumented_and_find_our_handlers(
    tmp_path: Path, tasks: Callable[..., Path], queue: Queue, database: Path
) -> None:
    """The command puts the working folder into PYTHONPATH, where the user's handlers.py would hide ours."""
    tasks(APPLICATION, name="handlers")
    queue.enqueue("chain")
    queue.enqueue("thumbnail", {"source": "none.jpg", "dest": "none.png"})
    instrument = Path(sys.executable).with_name("opentelemetry-instrument")
    command = [instrument, sys.executable, "-m", "pool", "run", "--handlers", "handlers", "--workers", "1", "--drain"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(CONSOLE), capture_output=True, text=True, timeout=60, check=False
    )
    assert names_in(done.stderr) == sorted([*EXPECTED, "process thumbnail"]), done.stderr
    assert "no handler" not in row(database, 2)["last_error"]


def test_under_opentelemetry_instrument_an_application_s_enqueues_are_traced(tmp_path: Path, database: Path) -> None:
    script = "import pool; queue = pool.Queue('jobs.db'); queue.enqueue('t')"
    instrument = Path(sys.executable).with_name("opentelemetry-instrument")
    done = subprocess.run(
        [instrument, sys.executable, "-c", script],
        cwd=tmp_path, env=environment(CONSOLE), capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert re.findall(r'"name": "([^"]+)"', done.stdout) == ["enqueue t"]
    assert f"0x{trace_id(row(database)['trace_context'])}" in done.stdout


# switched off, or not there


def test_a_worker_that_does_not_trace_imports_nothing_of_it(pool: StartPool, queue: Queue, database: Path) -> None:
    source = """
@handler("loaded")
def loaded(): return [name for name in sys.modules if name.startswith(("opentelemetry", "pool.tracing"))]
"""
    with stranger(database) as sql:
        sql.execute("INSERT INTO jobs (type, payload, trace_context) VALUES ('loaded', '{}', ?)", (CONTEXT,))
    running = pool(handlers=source)
    eventually(lambda: settled(database, done=1))
    assert row(database)["result"] == "[]" and running.stop() == 0


@pytest.fixture
def missing(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine without OpenTelemetry."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "opentelemetry":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
"""
    )
    return {"PYTHONPATH": str(folder)}


def test_without_opentelemetry_the_option_says_what_to_install(command: Command, missing: dict[str, str]) -> None:
    command("run", "--traces", env=missing).refused(2, "--traces", "pip install 'jobpool[traces]' opentelemetry-distro")


def test_without_opentelemetry_the_module_says_what_to_install(
    command: Command, missing: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "tasks.py").write_text("import pool.tracing")
    done = command("run", "--handlers", "tasks", "--workers", "1", env=missing)
    assert done.code == 3
    assert re.search(r"^error: .*pool\.tracing needs OpenTelemetry.*pip install 'jobpool\[traces\]'$", done.err, re.M)


def test_without_opentelemetry_all_else_works(command: Command, missing: dict[str, str], database: Path) -> None:
    command("enqueue", "nobody's", env=missing).ok()
    assert command("run", "--drain", "--workers", "1", env=missing).code == 1
    assert "no handler" in row(database)["last_error"]
