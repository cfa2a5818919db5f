"""Five hundred hostile requests: no answer is a server's error, no byte comes back unescaped, nothing changes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import quote

from tests.support import rows
from tests.web.conftest import HERE, MakeClient

MARKS = (
    "<script>alert(1)</script>", "\"><img src=x onerror=alert(1)>", "'-alert(1)-'", "{{7*7}}", "${7*7}", "%s%n",
    "</textarea><script>", "javascript:alert(1)", "<!--", "]]>", "a\u202eb", "\u2066x\u2069",
    "\u200b", "\x1b[2J", "\x07",
    "\x00", "\x7f", "\x85", "\ufeff", "\ud7ff", "\U0010ffff", "\r\nSet-Cookie: a=b", "'; DROP TABLE jobs; --", "%", "_",
    "\\", "A" * 3000, "é" * 900, "😀", "..", "../../etc/passwd",
)  # fmt: skip
IDS = (
    "0", "-1", "01", "+1", "1.0", "1e3", "0x1", "1_000", "١", "²", "9223372036854775807", "9223372036854775808",
    "9" * 30,
    "9" * 5000, "NaN", "null", "true", " 1", "1 ", "1%00", "1;2", "1/..", "..%2f..%2fetc%2fpasswd", "*", "~",
)  # fmt: skip
CURSORS = (
    "x", "-1", "1@", "@1", "1@x", "9" * 40, "9223372036854775808@2020", "1@" + "9" * 500, "1@<b>",
    "1@2020-01-01 00:00:00",
    "1@%", "\x00", "1@\x00", "¹@x", "1@'--",
)  # fmt: skip
METHODS = ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND", "FOO", "HEAD")
GETS = (
    "/",
    "/jobs",
    "/jobs/1",
    "/jobs/1/edit",
    "/scheduled",
    "/dead",
    "/archive",
    "/audit",
    "/bulk",
    "/find",
    "/metrics",
    "/healthz",
)
POSTS = (
    "/jobs/1/retry", "/jobs/1/archive", "/jobs/1/cancel", "/jobs/1/edit", "/bulk", "/pause", "/resume",
    "/pools/1/scale", "/pools/1/reload",
)  # fmt: skip
BODIES: tuple[tuple[str, bytes], ...] = (
    ("application/json", b'{"form_token": "x"}'), ("text/plain", b"form_token=x"),
    ("multipart/form-data; boundary=x", b"--x"),
    ("application/x-www-form-urlencoded", b"\xff\xfe"), ("application/x-www-form-urlencoded", b"%ff%fe=%c3%28"),
    ("application/x-www-form-urlencoded", b"a=1&" * 5000), ("application/x-www-form-urlencoded", b"&;=;&"),
    ("application/x-www-form-urlencoded", b"x" * (2 << 20)), ("", b"form_token"),
)  # fmt: skip


PATHS = (
    "/static/../routes.py", "/static/%2e%2e/routes.py", "/static/..%2froutes.py", "/static/", "/static/pool.css/", "//",
    "//evil.example/", "/jobs//1", "/jobs/1/", "/%00", "/%ff", "/static/%00pool.css", "/login", "/logout",
)  # fmt: skip
HEADERS = (
    ("Accept", "\xff"), ("Authorization", "Bearer \xe9"), ("Authorization", "Bearer"), ("Content-Length", "-1"),
    ("X-Forwarded-For", "1.1.1.1"), ("Range", "bytes=0-1"), ("If-None-Match", "*"),
)  # fmt: skip


class Hostile(NamedTuple):
    """A request nobody means well with."""

    method: str
    path: str
    headers: Mapping[str, str] = MappingProxyType({})
    body: bytes | None = None
    with_token: bool = False
    fields: Mapping[str, str] = MappingProxyType({})


def hostile() -> Iterator[Hostile]:
    """Markup and odd characters in every filter, ids and cursors that are none, paths, methods, bodies, headers."""
    for mark, name in itertools.product(MARKS, ("type", "key", "error", "status", "older", "id")):
        yield Hostile("GET", f"/jobs?{name}={quote(mark.encode('utf-8', 'surrogatepass'))}")
    for mark in MARKS:
        yield Hostile("GET", f"/find?q={quote(mark.encode('utf-8', 'surrogatepass'))}")
        yield Hostile("GET", f"/bulk?action={quote(mark)}&status=dead")
        yield Hostile("GET", f"/dead?after={quote(mark)}")
        yield Hostile("GET", f"/{quote(mark)}")
    for job in IDS:
        yield Hostile("GET", f"/jobs/{quote(job, safe='%')}")
        yield Hostile("POST", f"/jobs/{quote(job, safe='%')}/archive", with_token=True)
        yield Hostile("POST", f"/pools/{quote(job, safe='%')}/scale", with_token=True, fields={"workers": job})
        yield Hostile("GET", f"/jobs?id={quote(job)}")
        yield Hostile("GET", f"/audit?before={quote(job)}")
    for cursor, path in itertools.product(CURSORS, ("/jobs", "/dead", "/jobs?status=queued", "/scheduled", "/archive")):
        yield Hostile("GET", f"{path}{'&' if '?' in path else '?'}after={quote(cursor)}")
    for method, path in itertools.product(METHODS, GETS):
        yield Hostile(method, path)
    for path in POSTS:
        yield Hostile("GET", path)
        yield Hostile("POST", path)
        yield Hostile("POST", path, {"Origin": "http://evil.example"}, with_token=True)
        yield Hostile("POST", path, {"Host": "evil.example"}, with_token=True)
        yield Hostile("POST", path, {"Sec-Fetch-Site": "cross-site"}, with_token=True)
        for kind, body in BODIES:
            yield Hostile("POST", path, {"Content-Type": kind} if kind else {}, body)
    for path in PATHS:
        yield Hostile("GET", path)
    for cookie in ("=", "a", "jobpool=\x01", '"', "x" * 9000, "a=b; " * 500, "jobpool_=é"):
        yield Hostile("GET", "/", {"Cookie": cookie})
    for name, value in HEADERS:
        yield Hostile("GET", "/jobs", {name: value})


def state(database: Path) -> list[Any]:
    return [rows(database, f"SELECT * FROM {table}") for table in ("jobs", "jobs_archive", "audit", "pauses", "pools")]


def test_five_hundred_hostile_requests_harm_nothing(client: MakeClient, filled: Path) -> None:
    browser, before = client(), state(filled)
    token, asked = browser.form_token("/"), 0
    for each in hostile():
        headers = {name: value.encode("utf-8", "surrogateescape") for name, value in each.headers.items()}
        data: Any = {**each.fields, "form_token": token} if each.with_token else None
        answer = browser.request(
            each.method, HERE + each.path, headers=headers, content=each.body, data=data, follow_redirects=False
        )
        asked += 1
        assert answer.status_code < 500, (each, answer.text)
        assert "content-security-policy" in answer.headers, each
        text = answer.text
        assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2066-\u2069]", text), each
        if answer.headers.get("content-type", "").startswith("text/html"):
            assert not re.search(r"<script>|<img|onerror=alert\(1\)>|</textarea><script", text), each
        assert "\n" not in answer.headers.get("location", "") and "evil" not in answer.headers.get("location", "")
        assert not answer.headers.get("location", "").startswith("//")
    assert asked >= 500
    assert state(filled) == before


def test_hostile_text_in_jobs_is_harmless_on_every_page(client: MakeClient, store: Any, database: Path) -> None:
    for number, mark in enumerate(MARKS, start=1):
        store.connection.execute(
            """INSERT INTO jobs (type, payload, status, last_error, idempotency_key, result, locked_by)
            VALUES (:mark, json_object(:mark, :mark), 'dead', :mark, :mark || :number, :mark, :mark)""",
            {"mark": mark.encode("utf-8", "replace").decode(), "number": number},
        )
        for name in ("traceback", "stack", "output", "error", "outcome", "worker"):
            store.connection.execute(
                "INSERT INTO attempts (job_id, attempt, worker, ended_at, outcome) VALUES (?, 1, ?, ?, ?)",
                (number, mark, mark, mark),
            )
            store.connection.execute(f"UPDATE attempts SET {name} = ? WHERE id = last_insert_rowid()", (mark,))
    browser = client()
    for number, mark in enumerate(MARKS, start=1):
        store.connection.execute(
            """INSERT INTO jobs (type, payload, attempts, run_at, last_error, idempotency_key)
            VALUES (:mark, '{}', 1, '2999-01-01 ' || :mark, :mark, 'later' || :mark || :number)""",
            {"mark": mark.encode("utf-8", "replace").decode(), "number": number},
        )
    paths = [
        "/",
        "/jobs",
        "/scheduled",
        "/scheduled?after=1@2998",
        "/bulk?action=retry&status=scheduled",
        "/dead",
        "/metrics",
        "/bulk?action=retry&status=dead",
    ]
    paths += [f"/jobs/{number}{tail}" for number in range(1, len(MARKS) + 1) for tail in ("", "/edit")]
    for path in paths:
        answer = browser.get(path)
        assert answer.status_code < 500, path
        if path != "/metrics":
            text = answer.text
            assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2066-\u2069]", text), path
            assert not re.search(r"<script>|<img|</textarea><script", text), path
            assert text.count("<script") == 1
