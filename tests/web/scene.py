"""A queue as it looks after some busy days, for tests and pictures, and a dashboard in a process of its own."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from pool import audit
from pool.clock import utc_text
from pool.store import Store
from tests.support import environment, eventually

TYPES = ("thumbnail", "webhook", "sitemap", "search_index", "report.monthly", "cleanup")
SECRET = "abc.def.ghi"
TRACEBACK = f"""Traceback (most recent call last):
  File "/srv/app/jobs.py", line 42, in send
    response = client.post(url, headers={{"Authorization": "Bearer {SECRET}"}})
  File "/srv/app/lib/client.py", line 1144, in post
    raise ConnectError(message) from error
ConnectError: [Errno 111] Connection refused"""
ERRORS = (
    "ConnectError: https://hooks.example.com/order: [Errno 111] Connection refused",
    "UnidentifiedImageError: cannot identify image file '/srv/media/2026/11/cat.jpg'",
    "killed by SIGKILL; likely out of memory",
    "timeout: no end within 900 s",
    "KeyError: 'customer_id'",
)
#: What a pool of these pictures runs: jobs that say how far they are until a file is there.
HANDLERS = """
import os, time
from pool import handler


def wait(done, of, ctx):
    ctx.progress(done, of)
    while not os.path.exists("gate"):
        time.sleep(0.02)


@handler("video.transcode")
def transcode(source, done, of, ctx):
    wait(done, of, ctx)


@handler("report.monthly")
def report(source, done, of, ctx):
    wait(done, of, ctx)
"""


def fill(path: Path | str, count: int = 400, now: float | None = None) -> None:
    """Jobs of each state with evidence, a day of minutes, counters, a line in the audit."""
    now = time.time() if now is None else now
    dice = random.Random(4)
    store = Store.open(str(path))
    with store.transaction():
        for number in range(1, count + 1):
            _job(store, dice, number, now)
        _counts(store, dice, now)
    for job_id in (3, 7, 9):
        store.archive(job_id, "anna@web1", "duplicate of an older order", utc_text(now - 600))
    with store.transaction():
        audit.record(store, utc_text(now - 600), "anna@web1", "archive", 3, {"ids": [3, 7, 9]}, "duplicates")
        chosen = {"status": "dead", "type": "webhook"}
        audit.record(store, utc_text(now - 300), "ben@10.0.0.5 (web)", "retry", 41, chosen)
        audit.record(store, utc_text(now - 60), "ben@10.0.0.5 (web)", "scale", 0, {"pool": 1}, "keep 2 workers")
    store.close()


def _job(store: Store, dice: random.Random, number: int, now: float) -> None:
    type, status = dice.choice(TYPES), dice.choices(("queued", "done", "dead"), (3, 10, 1))[0]
    error = dice.choice(ERRORS)
    if number == 4:
        type, status, error = "webhook", "dead", ERRORS[-1]
    dead = status == "dead"
    due = -80_500 if status != "queued" else dice.randint(-240, -5) if number % 5 == 0 else dice.randint(60, 9000)
    failed = dead or dice.random() < 0.1
    attempts, changed = 5 if dead else dice.randint(0, 3), dice.randint(0, 80_000)
    if status == "queued" and not failed and number % 4:
        attempts, changed = 0, 90_000  # as it was enqueued
    store.connection.execute(
        """INSERT INTO jobs (type, payload, status, attempts, run_at, last_error, idempotency_key, created_at,
        updated_at, result) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
        (
            type, json.dumps(_payload(type, number)), status, attempts,
            utc_text(now + due), error if failed else None,
            f"{type}:{number}" if number % 3 == 0 else None, utc_text(now - 90_000),
            utc_text(now - changed), '{"bytes":48213,"format":"WEBP"}' if status == "done" else None,
        ),
    )  # fmt: skip
    for attempt in (1, 2) if failed else ():
        killed = "kill" in error
        store.execute(
            "record_attempt", job_id=number, attempt=attempt, worker="web1:4242:9f3a",
            started_at=utc_text(now - 5000 + attempt), ended_at=utc_text(now - 4990 + attempt),
            outcome="crashed" if killed else "failed", error=error, traceback=None if killed else TRACEBACK,
            exit_code=None, signal="SIGKILL" if killed else None,
            stack='Current thread 0x00007f (most recent call first):\n  File "/srv/app/jobs.py", line 12 in resize'
            if killed else None,
            output="posting order\npassword=hunter2hunter\n", peak_memory_bytes=181 << 20, cpu_seconds=1.21,
        )  # fmt: skip


def _payload(type: str, number: int) -> dict[str, Any]:
    if type == "thumbnail":
        return {"image": f"/srv/media/2026/11/{number}.jpg", "size": 256, "dest": f"/srv/thumbs/{number}.webp"}
    headers = {"Authorization": f"Bearer {SECRET}", "X-Request-Id": f"r-{number}"}
    body = {"order": number, "customer": {"name": "Zoë", "api_key": "k-99"}}
    return {"url": "https://hooks.example.com/order", "headers": headers, "body": body}


def _counts(store: Store, dice: random.Random, now: float) -> None:
    for minute in range(1440):
        for type in TYPES:
            done = int(abs(dice.gauss(30, 12))) * (1 + (minute % 360 < 80))
            failed = 2 if dice.random() < 0.1 else 0
            bound = {"minute": utc_text(now - 60 * minute)[:16], "type": type, "done": done, "failed": failed}
            store.execute("count_minute", **bound)
    for type in TYPES:
        count(store, "done", type, 0, dice.randint(1000, 90_000))
        count(store, "failed", type, 0, dice.randint(1, 900))
        for bits in range(8, 26):
            count(store, "wait", type, bits, 10_000 // (1 + (bits - 13) ** 2))
            count(store, "run", type, bits, 10_000 // (1 + (bits - 18) ** 2))
    for bits in range(14, 27):
        count(store, "write", "", bits, 90_000 // (1 + abs(bits - 17) ** 3))
    count(store, "restarts", "crashed", 0, 3)


def count(store: Store, name: str, label: str, bucket: int, value: int) -> None:
    """Add to a counter, within a transaction."""
    store.execute("count", name=name, label=label, bucket=bucket, value=value)


class Web:
    """``pool web`` in a process of its own, on a free port."""

    def __init__(self, folder: Path, database: Path, *arguments: str, env: dict[str, str] | None = None) -> None:
        self._out = folder / f"web-{len(list(folder.glob('web-*.out')))}.out"
        command = [sys.executable, "-m", "pool", "web", "--db", str(database), "--port", "0", *arguments]
        with open(self._out, "wb") as out:
            self.process = subprocess.Popen(
                command, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                start_new_session=True, env=environment(env),
            )  # fmt: skip
        self.url = eventually(self._said, what="the dashboard's address")

    def _said(self) -> str:
        assert self.process.poll() is None, self.log
        words = [word for word in self.log.split() if word.startswith("http://")]
        return words[0].rstrip("/") if words else ""

    @property
    def log(self) -> str:
        """What it printed so far."""
        return self._out.read_text(errors="replace")

    def stop(self) -> int:
        """Its exit code after a TERM."""
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGTERM)
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the dashboard did not end; its log: {self.log}") from None
