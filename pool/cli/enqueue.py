"""``pool enqueue``: jobs from the command line, one or a stream of them."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from typing import IO, Any

import click

from pool import jsontext
from pool.cli.base import Instant, Seconds, database_option, group, json_option, say, say_json
from pool.errors import UsageError
from pool.queue import CHUNK, Queue
from pool.spec import Spec


@group.command("enqueue")
@database_option
@json_option
@click.argument("type", required=False)
@click.argument("payload", required=False)
@click.option("--key", help="Idempotency key: a second enqueue of it creates nothing.")
@click.option("--priority", type=int, default=0, show_default=True, help="Lower numbers run first.")
@click.option("--delay", type=Seconds(), help="Not before that long from now: 90, 10m, 2h.")
@click.option("--at", "run_at", type=Instant(), help="Not before that instant: 2026-12-01T09:00+01:00.")
@click.option("--max-attempts", type=int, help="Tries before it is dead.  [default: 5]")
@click.option("--timeout", type=Seconds(), help="Limit of one attempt.  [default: the handler's]")
@click.option(
    "--jsonl",
    type=click.File("r", encoding="utf-8"),
    metavar="FILE",
    help="Many: a JSON object a line (type, payload, key ...), or bare payloads with TYPE given; - is standard input.",
)
def enqueue(
    database: str,
    as_json: bool,
    type: str | None,
    payload: str | None,
    key: str | None,
    priority: int,
    delay: float | None,
    run_at: datetime | None,
    max_attempts: int | None,
    timeout: float | None,
    jsonl: IO[str] | None,
) -> None:
    """Store a job. The payload is JSON, @FILE, or - for standard input.

    \b
    pool enqueue thumbnail '{"source": "a.jpg", "dest": "b.jpg"}' --key post:42:thumb
    pool enqueue report @payload.json --delay 10m
    pool enqueue --jsonl jobs.jsonl
    """
    if jsonl is not None:
        given = (payload, key, delay, run_at, max_attempts, timeout, priority or None)
        if any(each is not None for each in given):
            raise UsageError("with --jsonl, each line carries its own payload and options")
        with Queue(database) as queue:
            _enqueue_lines(queue, jsonl, type, as_json)
        return
    if type is None:
        raise UsageError("name the job's type, as in: pool enqueue thumbnail '{...}'; or give --jsonl FILE")
    value = _payload(payload)
    with Queue(database) as queue:
        job = queue.enqueue(
            type,
            value,
            key=key,
            priority=priority,
            delay=delay,
            run_at=run_at,
            max_attempts=max_attempts,
            timeout=timeout,
        )
    if as_json:
        say_json({"id": job.id, "created": job.created})
    else:
        say(f"job {job.id} {'queued' if job.created else 'was there already'}")


def _payload(text: str | None) -> jsontext.Json:
    if text is None:
        return {}
    source = "the payload"
    if text == "-":
        text, source = sys.stdin.read(), "standard input"
    elif text.startswith("@"):
        source = text[1:]
        try:
            with open(source, encoding="utf-8") as file:
                text = file.read()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot read {source}: {error}") from None
    try:
        return jsontext.load(text)
    except ValueError as error:
        raise UsageError(f"{source} is not JSON: {error}") from None


def _enqueue_lines(queue: Queue, file: IO[str], type: str | None, as_json: bool) -> None:
    progress = _Progress(as_json)
    lines = _Lines(file)
    try:
        created = queue.enqueue_many(progress.over(_specs(lines, type)))
    except ValueError as error:  # a line's own, or of a value in it
        stored = "nothing is stored" if progress.count < CHUNK else f"the chunks of {CHUNK:,} before it are stored"
        raise UsageError(f"{file.name}, line {lines.number}: {error}; {stored}") from None
    finally:
        progress.clear()
    if as_json:
        say_json({"read": progress.count, "created": created})
    else:
        there = progress.count - created
        say(f"{created} jobs queued" + (f", {there} were there already" if there else ""))


class _Lines:
    """The lines of a file, and the number of the one that was taken last."""

    def __init__(self, file: IO[str]) -> None:
        self.number = 0
        self._file = file

    def __iter__(self) -> Iterator[str]:
        while True:
            self.number += 1
            if not (line := self._file.readline()):
                return
            if line.strip():
                yield line


def _specs(lines: _Lines, type: str | None) -> Iterator[dict[str, Any]]:
    for line in lines:
        value = _value(line)
        if type is not None:
            yield {"type": type, "payload": value}
            continue
        if not isinstance(value, dict) or "type" not in value:
            raise ValueError('a line is an object with at least "type"')
        if isinstance(value.get("run_at"), str):
            value["run_at"] = datetime.fromisoformat(value["run_at"])
        if unknown := set(value) - set(Spec._fields):
            raise ValueError(f"unknown field {sorted(unknown)[0]!r}; a job has {', '.join(Spec._fields)}")
        yield value


def _value(line: str) -> jsontext.Json:
    try:
        return jsontext.load(line.rstrip("\n"))
    except json.JSONDecodeError as error:  # its own text counts lines from ours
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from None


class _Progress:
    """A line on a terminal with how many were read; nothing in a pipe."""

    def __init__(self, quiet: bool) -> None:
        self.count = 0
        self._shown = not quiet and sys.stderr.isatty()
        self._at = time.monotonic()

    def over(self, items: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for item in items:
            self.count += 1
            if self._shown and self.count % 1000 == 0 and time.monotonic() - self._at > 0.2:
                self._at = time.monotonic()
                print(f"\r{self.count:,} jobs read", end="", file=sys.stderr, flush=True)
            yield item

    def clear(self) -> None:
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
