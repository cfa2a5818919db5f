"""``pool web`` as a person starts it: where it listens, whom it lets in, how it ends, what it makes of broken HTTP."""

from __future__ import annotations

import contextlib
import http.client
import re
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from pool import Queue
from pool.status import FEW_DUE, GLANCE
from tests.support import eventually, rows, statuses, stranger
from tests.web.scene import Web

TOKEN = {"POOL_WEB_TOKEN": "correct horse battery"}
StartWeb = Callable[..., Web]


@pytest.fixture
def web(tmp_path: Path, filled: Path) -> Iterator[StartWeb]:
    """``web("--read-only")``: a real dashboard, which has ended at the end."""
    started: list[Web] = []

    def start(*arguments: str, env: dict[str, str] | None = None) -> Web:
        started.append(Web(tmp_path, filled, *arguments, env=env))
        return started[-1]

    yield start
    for each in started:
        each.stop()


def connect(web: Web, host: str = "127.0.0.1") -> http.client.HTTPConnection:
    return http.client.HTTPConnection(host, urlsplit(web.url).port, timeout=20)


def get(web: Web, path: str, **headers: str) -> tuple[int, str]:
    connection = connect(web)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    found = answer.status, answer.read().decode()
    connection.close()
    return found


def test_it_says_where_it_is_and_ends_at_once_with_an_open_stream(web: StartWeb) -> None:
    running = web()
    assert get(running, "/jobs")[0] == 200
    stream = connect(running)
    stream.request("GET", "/events")
    answer = stream.getresponse()
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert b"hello" in answer.readline() + answer.readline()
    assert running.stop() == 0
    stream.close()
    assert "Traceback" not in running.log and "rror" not in running.log, running.log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_right_after_the_start_is_not_lost(number: signal.Signals, web: StartWeb) -> None:
    running = web()  # it has said its address, and may not serve yet
    running.process.send_signal(number)
    assert running.process.wait(60) == 0, running.log


def test_of_a_long_queue_the_first_page_says_at_least_and_tells_its_tab_to_look_again(
    web: StartWeb, filled: Path
) -> None:
    more = GLANCE + 5_000
    with stranger(filled) as connection:
        connection.execute(
            """WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
            INSERT INTO jobs (type, payload) SELECT 't', '{}' FROM n""",
            (more,),
        )
    counts = statuses(filled)
    running = web()
    first = get(running, "/")[1]
    assert f"≥ </span>{FEW_DUE:,}</dd>" in first.replace("&#8239;", " ").replace("\u202f", " ")
    assert f"{counts['queued']:,} queued" not in first
    stream = connect(running)
    stream.request("GET", "/events")
    answer = stream.getresponse()
    eventually(lambda: answer.readline().startswith(b"event: changed"))
    stream.close()
    second = get(running, "/")[1]
    assert "≥" not in second and f"{counts['queued']:,} queued" in second and f"{counts['done']:,} done" in second


def test_metrics_are_exact_at_first_sight(web: StartWeb, filled: Path) -> None:
    with stranger(filled) as connection:
        connection.execute(
            """WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
            INSERT INTO jobs (type, payload) SELECT 't', '{}' FROM n""",
            (GLANCE + 5_000,),
        )
    running = web()
    assert "≥" in get(running, "/")[1]
    assert f'jobpool_jobs{{status="queued"}} {float(statuses(filled)["queued"])}' in get(running, "/metrics")[1]


def test_an_open_stream_tells_of_a_change(web: StartWeb, filled: Path) -> None:
    stream = connect(web())
    stream.request("GET", "/events")
    answer = stream.getresponse()
    while answer.readline().strip() != b"":
        pass
    with Queue(filled) as queue:
        queue.enqueue("t")
    eventually(lambda: answer.readline().startswith(b"event: changed"))
    stream.close()


def test_it_listens_on_this_machine_alone(web: StartWeb) -> None:
    running = web()
    own = socket.gethostbyname(socket.gethostname())
    if not own.startswith("127."):
        with pytest.raises(OSError):
            socket.create_connection((own, urlsplit(running.url).port or 0), timeout=2)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_it_refuses_to_be_open_to_others_without_a_token(host: str, command: Callable[..., Any], filled: Path) -> None:
    command("web", "--db", str(filled), "--host", host).refused(2, "--token-file", "POOL_WEB_TOKEN")
    command("web", "--db", str(filled), "--allow-host", "jobs.example").refused(2, "tokens")
    short = command("web", "--db", str(filled), "--host", host, env={"POOL_WEB_TOKEN": "short"})
    short.refused(2, "at least 12")


def test_wrong_input_is_one_line(command: Callable[..., Any], filled: Path, tmp_path: Path) -> None:
    command("web", "--db", str(tmp_path / "none.db")).refused(4, "none.db")
    command("web", "--db", str(filled), "--token-file", str(tmp_path / "none")).refused(2, "none")
    command("web", "--db", str(filled), "--host", "no.such.host.invalid", env=TOKEN).refused(2, "cannot listen")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command("web", "--db", str(filled), "--port", port).refused(2, "in use", "--port")


def test_others_get_in_with_a_token_by_any_address_of_the_machine(web: StartWeb, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("anna:correct horse battery\n")
    running = web("--host", "0.0.0.0", "--token-file", str(tokens))
    bearer = {"Authorization": "Bearer correct horse battery"}
    assert get(running, "/jobs")[0] == 401
    assert get(running, "/jobs", **bearer)[0] == 200
    assert get(running, "/jobs", Host="10.1.2.3:80", **bearer)[0] == 200
    assert get(running, "/jobs", Host="evil.example", **bearer)[0] == 400
    assert "correct horse" not in running.log


def test_a_proxy_s_word_is_believed_only_when_asked_to(web: StartWeb, filled: Path) -> None:
    for arguments, address in ((), "127.0.0.1"), (("--behind-proxy",), "198.51.100.7"):
        running = web(*arguments, env=TOKEN)
        connection = connect(running)
        headers = {
            "Authorization": "Bearer correct horse battery", "X-Forwarded-For": "198.51.100.7",
            "Content-Type": "application/x-www-form-urlencoded",
        }  # fmt: skip
        connection.request("POST", "/pause", "reason=r", headers)
        assert connection.getresponse().status == 303
        connection.close()
        assert rows(filled, "SELECT by FROM audit ORDER BY id DESC LIMIT 1")[0]["by"] == f"token@{address} (web)"


RAW = (
    b"GET /../../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /static/../routes.py HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /static/%2e%2e/routes.py HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET http://evil.example/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /\xff\xfe\x00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /jobs?type=%ff%c3%28&after=%00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.0\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
    b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"POST /pause HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /pause HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
    b"POST /pause HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n"
    b"Content-Length: 3000000\r\n\r\n" + b"a" * 2_000_000,
    b"GET /events HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: eA==\r\nSec-WebSocket-Version: 13\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"\r\n\r\n\r\n",
    b"A" * 70_000,
)  # fmt: skip


def test_broken_http_is_refused_and_the_next_request_is_served(web: StartWeb, filled: Path) -> None:
    running, before = web(), rows(filled)
    for raw in RAW:
        with socket.create_connection(("127.0.0.1", urlsplit(running.url).port or 0), timeout=20) as client:
            try:
                client.sendall(raw)
                if not raw.startswith(b"GET /events"):
                    with contextlib.suppress(OSError):  # ENOTCONN: it has hung up already
                        client.shutdown(socket.SHUT_WR)
                head = client.recv(4096)
            except (ConnectionResetError, BrokenPipeError):
                head = b""
        code = re.match(rb"HTTP/1\.[01] (\d+)", head)
        assert not head or (code and int(code[1]) < 500), (raw[:80], head[:200])
        assert b"root:" not in head and b"def build" not in head
    assert get(running, "/healthz")[0] == 200
    assert rows(filled) == before and rows(filled, "SELECT * FROM pauses") == []
    assert "Traceback" not in running.log, running.log
