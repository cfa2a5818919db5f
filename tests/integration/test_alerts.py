"""Alerts: what died, what waits too long, and how the webhook speaks to whoever listens."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from handlers.webhook import webhook
from pool import Discard, Queue, Retry
from pool.alerts import Alerts
from pool.store import Store
from tests.conftest import StartPool
from tests.support import eventually, lines, rows

NOW = "2030-01-01 12:00:00.000"
BEFORE = "2030-01-01 11:00:00.000"


class Receiver(http.server.BaseHTTPRequestHandler):
    """Answers as it is told, and remembers what came."""

    answers: list[tuple[int, dict[str, str]]]
    bodies: list[Any]

    def do_POST(self) -> None:
        self.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        status, headers = self.answers.pop(0) if self.answers else (200, {})
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(b"heard")

    def log_message(self, *_: object) -> None:
        """Keep the tests' output clean."""


@pytest.fixture
def receiver() -> Iterator[tuple[str, type[Receiver]]]:
    """An URL, and the class that answers there."""
    kind = type("Told", (Receiver,), {"answers": [], "bodies": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/hook", kind
    server.shutdown()
    server.server_close()
    thread.join()


def dead(queue: Queue, type: str = "t", at: str = NOW) -> int:
    """A job that died at an instant."""
    job = queue.enqueue(type)
    store = Store.open(queue.path)
    bound = (at, job.id)
    store.connection.execute("UPDATE jobs SET status = 'dead', last_error = 'why', updated_at = ? WHERE id = ?", bound)
    store.close()
    return job.id


def test_jobs_that_died_are_told_once_however_many_pools_look(queue: Queue, store: Store, database: Path) -> None:
    first = dead(queue)
    second = dead(queue, at="2030-01-01 12:00:01.000")
    pools = [Alerts(on_dead="tell", since=BEFORE) for _ in range(2)]
    for alerts in pools * 2:
        alerts.check(store, "2030-01-01 12:00:02.000")
    (told,) = rows(database, "SELECT * FROM jobs WHERE type = 'tell'")
    payload = json.loads(told["payload"])
    assert (payload["event"], payload["count"]) == ("dead", 2)
    assert [each["id"] for each in payload["jobs"]] == [first, second]
    assert payload["jobs"][0]["error"] == "why"


def test_what_died_before_is_no_news_and_an_alert_that_dies_makes_no_other(
    queue: Queue, store: Store, database: Path
) -> None:
    dead(queue, at=BEFORE)
    dead(queue, type="tell")
    Alerts(on_dead="tell", since=BEFORE).check(store, NOW)
    assert not rows(database, "SELECT * FROM jobs WHERE type = 'tell' AND status = 'queued'")


def test_a_backlog_is_told_when_it_grows_old_and_again_only_after_it_went(
    queue: Queue, store: Store, database: Path
) -> None:
    store.connection.execute("INSERT INTO jobs (type, payload, run_at) VALUES ('t', '{}', ?)", (BEFORE,))
    alerts = Alerts(on_backlog="tell", backlog_age=600)
    for _ in range(3):
        alerts.check(store, NOW)
    (told,) = rows(database, "SELECT * FROM jobs WHERE type = 'tell'")
    assert json.loads(told["payload"])["age_seconds"] == 3600


def test_a_pool_sends_what_died_to_an_url(pool: StartPool, queue: Queue, receiver: tuple[str, type[Receiver]]) -> None:
    url, received = receiver
    job = queue.enqueue("fail", max_attempts=1)
    pool("--on-dead", url)
    body = eventually(lambda: received.bodies)[0]
    assert (body["event"], body["jobs"][0]["id"]) == ("dead", job.id)


def test_a_pool_gives_what_died_to_a_handler(pool: StartPool, queue: Queue, tmp_path: Path) -> None:
    told = tmp_path / "told"
    queue.enqueue("fail", max_attempts=1)
    tell = f"""
@handler("tell")
def tell(event, count, **facts):
    append({str(told)!r}, f"{{event}} {{count}}")
"""
    pool("--on-dead", "tell", handlers=tell)
    assert eventually(lambda: lines(told)) == ["dead 1"]


def test_a_webhook_that_is_taken_says_so(receiver: tuple[str, type[Receiver]]) -> None:
    url, received = receiver
    assert webhook(url, {"a": 1}) == {"status": 200, "text": "heard"}
    assert received.bodies == [{"a": 1}]


@pytest.mark.parametrize("status", [301, 400, 404, 410])
def test_an_answer_that_another_try_cannot_change_is_final(status: int, receiver: tuple[str, type[Receiver]]) -> None:
    url, received = receiver
    received.answers.append((status, {"Location": "/"} if status == 301 else {}))
    with pytest.raises(Discard, match=str(status)):
        webhook(url, {})
    assert len(received.bodies) == 1


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_an_answer_that_may_pass_is_tried_again(status: int, receiver: tuple[str, type[Receiver]]) -> None:
    url, received = receiver
    received.answers.append((status, {}))
    with pytest.raises(OSError, match=str(status)):
        webhook(url, {})


def test_retry_after_is_respected_within_reason(receiver: tuple[str, type[Receiver]]) -> None:
    url, received = receiver
    received.answers.append((503, {"Retry-After": "120"}))
    with pytest.raises(Retry) as raised:
        webhook(url, {})
    assert raised.value.delay == 120


def test_only_http_is_spoken() -> None:
    with pytest.raises(Discard, match="not an http"):
        webhook("file:///etc/passwd")
