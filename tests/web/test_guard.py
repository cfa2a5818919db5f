"""Who is let in: hosts, origins, tokens, sessions, and what the browser is told to forbid."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from pool import Queue, UsageError
from pool.web import app, wsgi
from pool.web.guard import host_name
from pool.web.session import SESSION_SECONDS, TRIES, Sessions
from pool.web.settings import WebSettings, parse_tokens
from tests.support import rows
from tests.web.conftest import HERE, MakeClient

TOKENS = {"anna": "correct horse battery", "ben": "staple of the horse"}
HTML = {"Accept": "text/html"}


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8090", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", "",
             "localhost@evil.example", "[::1", "localhost:80:80", "localhost:x", "0.0.0.0"],
)  # fmt: skip
def test_a_name_that_is_not_ours_is_refused(host: str, client: MakeClient) -> None:
    answer = client().get("/", headers={"Host": host})
    assert answer.status_code == 400 and "--allow-host" in answer.text


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "localhost.", "127.0.0.1:8090", "[::1]:8090"])
def test_the_names_of_this_machine_are_ours(host: str, client: MakeClient) -> None:
    assert client().get("/", headers={"Host": host}).status_code == 200


def test_a_name_can_be_allowed_once_there_are_tokens(client: MakeClient) -> None:
    browser = client(hosts=("jobs.example",), tokens=TOKENS)
    assert browser.get("/login", headers={"Host": "jobs.example"}).status_code == 200
    assert browser.get("/login", headers={"Host": "other.example"}).status_code == 400


@pytest.mark.parametrize(
    "options",
    [{"hosts": ("jobs.example",)}, {"hosts": ("*",)}, {"addresses": True}, {"tokens": {"anna": "short"}},
     {"tokens": {"a b": "long enough it is"}}, {"tokens": {"a": "the same, the same", "b": "the same, the same"}},
     {"ready_age": 0}],
)  # fmt: skip
def test_a_dashboard_open_to_strangers_is_not_built(options: dict[str, Any], database: Path) -> None:
    with pytest.raises(UsageError):
        app(str(database), **options)


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": "http://localhost:1"}, {"Origin": ""},
     {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Sec-Fetch-Site": "none"},
     {"Origin": HERE, "Sec-Fetch-Site": "cross-site"}],
)  # fmt: skip
def test_a_change_from_another_site_is_refused_even_with_the_right_token(
    headers: dict[str, str], client: MakeClient, queue: Queue, database: Path
) -> None:
    queue.enqueue("t")
    browser = client()
    data = {"form_token": browser.form_token()}
    assert browser.post("/jobs/1/archive", data=data, headers=headers).status_code == 403
    assert len(rows(database)) == 1
    fine = {"Origin": HERE, "Sec-Fetch-Site": "same-origin"}
    assert browser.post("/jobs/1/archive", data=data, headers=fine).status_code == 200
    assert len(rows(database)) == 0


@pytest.mark.parametrize("path", ["/", "/jobs/99", "/static/pool.css", "/healthz", "/metrics", "/nope", "/login"])
def test_every_answer_forbids_what_no_page_of_ours_needs(path: str, client: MakeClient) -> None:
    for answer in (client().get(path), client().get(path, headers={"Host": "evil.example"})):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy and "http" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "same-origin"
        assert "server" not in answer.headers


def test_pages_hold_no_inline_script_or_style_and_fetch_nothing_from_elsewhere(
    client: MakeClient, filled: Path
) -> None:
    import re

    browser = client()
    for path in ("/", "/jobs", "/jobs/1", "/dead", "/archive", "/audit", "/bulk?action=retry&status=dead"):
        text = browser.get(path).text
        assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", text), path
        assert re.findall(r"<script[^>]*>(.*?)</script>", text, re.S) == [""]
        assert not re.search(r"(?:src|href|action)=\"(?:https?:)?//", text), path
    for name in ("pool.css", "live.js", "icon.svg"):
        assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org)", browser.get(f"/static/{name}").text)


def test_without_a_token_nothing_is_shown(client: MakeClient, filled: Path) -> None:
    browser = client(tokens=TOKENS)
    for path in ("/", "/jobs", "/jobs/1", "/metrics", "/events", "/audit", "/find?q=1", "/nope"):
        answer = browser.get(path, headers=HTML, follow_redirects=False)
        assert answer.status_code == 303 and answer.headers["location"].startswith("/login?next=")
        assert browser.get(path).status_code == 401
    assert browser.post("/pause", data={"x": "y"}).status_code == 401
    assert browser.get("/healthz").json() == {"status": "ok", "database": "readable"}
    assert "jobs" not in browser.get("/readyz").text


def test_a_token_opens_a_session_under_its_name(client: MakeClient, queue: Queue, database: Path) -> None:
    queue.enqueue("t")
    browser = client(tokens=TOKENS)
    assert browser.get("/jobs/1", headers=HTML).url.path == "/login"
    wrong = browser.post("/login", data={"token": "wrong", "next": "/jobs/1"})
    assert wrong.status_code == 403 and "not a token" in wrong.text
    answer = browser.post("/login", data={"token": TOKENS["anna"], "next": "/jobs/1"}, follow_redirects=False)
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and TOKENS["anna"] not in cookie
    assert answer.headers["location"] == "/jobs/1"
    assert browser.submit("/jobs/1/archive", page="/jobs/1").status_code == 200
    assert rows(database, "SELECT by FROM audit") == [{"by": "anna@127.0.0.1 (web)"}]
    browser.post("/logout", data={"form_token": browser.form_token("/")})
    assert browser.get("/jobs/1").status_code == 401


@pytest.mark.parametrize(
    "there",
    ["https://evil.example/", "//evil.example", "/\\evil.example", "\\\\evil", "javascript:x", "/\t/evil.example",
     "/jobs\r\nX: y"],
)  # fmt: skip
def test_signing_in_leads_nowhere_else(there: str, client: MakeClient) -> None:
    browser = client(tokens=TOKENS)
    answer = browser.post("/login", data={"token": TOKENS["ben"], "next": there}, follow_redirects=False)
    assert answer.headers["location"] == "/"


def test_a_program_brings_its_token_with_each_request(client: MakeClient, queue: Queue, database: Path) -> None:
    queue.enqueue("t")
    browser = client(tokens=TOKENS)
    bearer = {"Authorization": f"Bearer {TOKENS['ben']}"}
    assert "jobpool_jobs" in browser.get("/metrics", headers=bearer).text
    assert browser.get("/metrics", headers={"Authorization": "Bearer nonsense"}).status_code == 401
    assert browser.get("/metrics", headers={"Authorization": "Basic YTpi"}).status_code == 401
    assert browser.post("/jobs/1/archive", data={"reason": "r"}, headers=bearer).status_code == 200
    assert rows(database, "SELECT by FROM audit") == [{"by": "ben@127.0.0.1 (web)"}]


def test_guessing_is_slowed_down(client: MakeClient) -> None:
    browser = client(tokens=TOKENS)
    for number in range(TRIES):
        assert browser.post("/login", data={"token": f"guess {number}"}).status_code == 403
    assert browser.post("/login", data={"token": TOKENS["anna"]}).status_code == 429
    assert browser.get("/", headers={"Authorization": f"Bearer {TOKENS['anna']}"}).status_code == 429


def test_a_session_cannot_be_forged_or_outlive_its_time_or_token(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = WebSettings("jobs.db", tokens=TOKENS)
    sessions = Sessions(settings)
    cookie = sessions.begin("anna").cookie
    assert Sessions(settings).read(cookie) is not None, "another process of the same dashboard"
    assert Sessions(WebSettings("jobs.db", tokens={"anna": "another token of hers"})).read(cookie) is None
    for forged in (
        cookie.replace("anna", "ben"),
        cookie[:-1] + ("A" if cookie[-1] != "A" else "B"),
        "",
        "~~~",
        "é~1~x~y",
    ):
        assert sessions.read(forged) is None
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + SESSION_SECONDS + 2)
    assert sessions.read(cookie) is None


def test_a_forged_note_is_not_shown(client: MakeClient) -> None:
    browser = client()
    browser.get("/")
    (name,) = [name for name in browser.cookies if name.startswith("jobpool_")]
    browser.cookies.set(f"{name}_note", "PGI-aGk8L2I-~AAAA")
    assert 'class="note"' not in browser.get("/").text


def test_token_files_are_read_line_by_line() -> None:
    text = "# people\nanna:correct horse battery\n\n  http://odd token: yes \n"
    assert parse_tokens(text, "f") == {"anna": "correct horse battery", "http": "//odd token: yes"}
    assert parse_tokens("just-a-token-1", "f") == {"token": "just-a-token-1"}
    for wrong in ("", "# nobody", "a:1\na:2"):
        with pytest.raises(UsageError):
            parse_tokens(wrong, "f")


@pytest.mark.parametrize(
    ("header", "name"),
    [("a.b:1", "a.b"), ("[::1]:8", "::1"), ("[::1]", "::1"), ("A", "a"), (":1", None), ("[::1]x", None), ("", None)],
)
def test_host_headers_are_read(header: str, name: str | None) -> None:
    assert host_name(header) == name


def test_mounted_in_an_application_its_links_and_cookies_stay_below_it(filled: Path) -> None:
    def authenticate(scope: Any) -> str | None:
        return dict(scope["headers"]).get(b"x-user", b"").decode() or None

    inner = app(str(filled), authenticate=authenticate, hosts=("testserver",))
    outer = Starlette(routes=[Mount("/ops/jobs board", inner)])
    with TestClient(outer) as browser:
        assert browser.get("/ops/jobs%20board/").status_code == 403
        me = {"x-user": "carla"}
        answer = browser.get("/ops/jobs%20board/", headers=me)
        assert answer.status_code == 200 and 'href="/ops/jobs%20board/jobs"' in answer.text
        assert "Path=/ops/jobs%20board;" in answer.headers["set-cookie"]
        assert 'name="action" value="archive"' not in browser.get("/ops/jobs%20board/archive", headers=me).text


def test_mounted_changes_are_made_in_the_application_s_user_name(filled: Path) -> None:
    import re

    inner = app(str(filled), authenticate=lambda scope: "carla", hosts=("testserver",))
    outer = Starlette(routes=[Mount("/board", inner)])
    with TestClient(outer) as browser:
        token = re.search(r'name="form_token" value="([^"]+)"', browser.get("/board/").text)
        assert token
        answer = browser.post("/board/pause", data={"form_token": token[1], "reason": "r"})
        assert answer.url.path == "/board/" and "Paused" in answer.text
    assert rows(filled, "SELECT by FROM pauses")[0]["by"].startswith("carla@")


def test_a_wsgi_server_serves_it_too(filled: Path) -> None:
    from io import BytesIO

    started: list[Any] = []
    environ = {
        "REQUEST_METHOD": "GET", "PATH_INFO": "/jobs", "SCRIPT_NAME": "/jobs", "QUERY_STRING": "status=dead",
        "SERVER_NAME": "localhost", "SERVER_PORT": "80", "SERVER_PROTOCOL": "HTTP/1.1", "HTTP_HOST": "localhost",
        "wsgi.url_scheme": "http", "wsgi.input": BytesIO(), "wsgi.version": (1, 0), "REMOTE_ADDR": "127.0.0.1",
    }  # fmt: skip
    body = b"".join(wsgi(str(filled))(environ, lambda *given: started.append(given)))
    assert started[0][0].startswith("200") and b'data-events=""' in body
    assert b'href="/jobs/jobs/4"' in body and b'href="/jobs/dead"' in body
