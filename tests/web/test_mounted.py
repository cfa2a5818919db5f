"""The dashboard within a real Django and a real Flask, as docs/dashboard.md says: real servers, real HTTP."""

from __future__ import annotations

import http.client
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

import pytest

from tests.support import environment, eventually, row, rows

DOCS = Path(__file__).parents[2] / "docs" / "dashboard.md"
SETTINGS = """
SECRET_KEY = "not a secret"
ALLOWED_HOSTS = ["127.0.0.1"]
ROOT_URLCONF = "mysite.urls"
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions"]
MIDDLEWARE = ["django.contrib.sessions.middleware.SessionMiddleware",
              "django.middleware.csrf.CsrfViewMiddleware",
              "django.contrib.auth.middleware.AuthenticationMiddleware"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "site.db"}}
USE_TZ = True
"""
URLS = """
from django.http import HttpResponse
from django.urls import path

urlpatterns = [path("", lambda request: HttpResponse("Django's own page"))]
"""
#: Prints the session cookie of a member of the staff and of somebody else.
USERS = """
import os
os.environ["DJANGO_SETTINGS_MODULE"] = "mysite.settings"
import django
django.setup()
from django.conf import settings
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client
call_command("migrate", verbosity=0)
settings.ALLOWED_HOSTS.append("testserver")
for name, is_staff in (("zoë~1", True), ("mallory", False)):
    user = User(username=name, is_staff=is_staff)
    user.save()
    client = Client()
    client.force_login(user)
    print(client.cookies["sessionid"].value)
"""
FLASK = """
from flask import Flask, session

app = Flask(__name__)
app.secret_key = "not a secret"


@app.route("/")
def home():
    return "Flask's own page"


@app.route("/login/<name>")
def login(name):
    session["editor" if name != "mallory" else "reader"] = name
    return "welcome"
"""
#: Serves a WSGI application with the standard library's server, which checks little and adds nothing.
WSGI = """
import sys
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIServer, make_server
from {module} import application


class Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


server = make_server("127.0.0.1", 0, application, Server)
print(f"running on http://127.0.0.1:{{server.server_port}}", file=sys.stderr, flush=True)
server.serve_forever()
"""


class Answer(NamedTuple):
    """What a server said."""

    code: int
    headers: dict[str, str]
    text: str


class Site:
    """A site with the dashboard in it; ``staff`` and ``other`` are the cookies of people who have signed in."""

    def __init__(self, port: int, staff: str, other: str) -> None:
        self.port, self.staff, self.other = port, staff, other

    def ask(self, path: str, cookie: str = "", data: dict[str, str] | None = None, **headers: str) -> Answer:
        """One request over a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        sent = {"Cookie": cookie, "Host": f"127.0.0.1:{self.port}", **headers}
        if data is not None:
            sent["Content-Type"] = "application/x-www-form-urlencoded"
        body = None if data is None else urlencode(data)
        connection.request("GET" if data is None else "POST", path, body, sent)
        answer = connection.getresponse()
        found = Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read().decode())
        connection.close()
        return found


def documented(name: str) -> str:
    """The file of that name in the documentation."""
    found = re.search(rf"```python\n(# {re.escape(name)}\n.*?)```", DOCS.read_text(), re.DOTALL)
    assert found, name
    return found[1].replace("www.example.com", "127.0.0.1")


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., int]]:
    """``serve("-m", "uvicorn", ...)``: a server in the test's folder; its port."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str) -> int:
        log = tmp_path / "server.log"
        with open(log, "wb") as err:
            command = [sys.executable, *arguments]
            started.append(
                subprocess.Popen(command, cwd=tmp_path, stdout=err, stderr=err, env=environment({"PYTHONPATH": "."}))
            )

        def said() -> int:
            assert started[-1].poll() is None, log.read_text()
            found = re.search(r"http://127\.0\.0\.1:(\d+)", log.read_text())
            return int(found[1]) if found else 0

        return eventually(said, what="the server's port")

    yield start
    for each in started:
        each.terminate()
        with suppress(subprocess.TimeoutExpired):
            each.wait(10)
        each.kill()
        each.wait()


@pytest.fixture(params=["django asgi", "django wsgi", "flask"])
def site(request: pytest.FixtureRequest, tmp_path: Path, filled: Path, serve: Callable[..., int]) -> Site:
    """Each of the sites of the documentation."""
    user = environment({"PYTHONPATH": "."})
    if request.param == "flask":
        (tmp_path / "site_of_mine.py").write_text(FLASK)
        (tmp_path / "wsgi.py").write_text(documented("wsgi.py"))
        made = Site(serve("-c", WSGI.format(module="wsgi")), "", "")
        made.staff, made.other = (
            made.ask(f"/login/{name}").headers["set-cookie"].partition(";")[0] for name in ("zo%C3%AB~1", "mallory")
        )
        return made
    folder = tmp_path / "mysite"
    folder.mkdir()
    for name, text in (("__init__", ""), ("settings", SETTINGS), ("urls", URLS)):
        (folder / f"{name}.py").write_text(text)
    for name in ("board", "asgi", "wsgi"):
        (folder / f"{name}.py").write_text(documented(f"mysite/{name}.py"))
    users = subprocess.run(
        [sys.executable, "-c", USERS], cwd=tmp_path, capture_output=True, text=True, env=user
    )  # fmt: skip
    assert users.returncode == 0, users.stderr
    staff, other = (f"sessionid={each}" for each in users.stdout.split())
    if request.param == "django wsgi":
        return Site(serve("-c", WSGI.format(module="mysite.wsgi")), staff, other)
    return Site(serve("-m", "uvicorn", "mysite.asgi:application", "--port", "0"), staff, other)


def test_the_dashboard_works_within_a_site(site: Site, filled: Path) -> None:
    assert "own page" in site.ask("/").text
    assert site.ask("/jobs/").code == site.ask("/jobs/", site.other).code == site.ask("/jobs/metrics").code == 403
    assert site.ask("/jobs/", site.staff, Host="evil.example").code == 400
    bare = site.ask("/jobs", site.staff)
    assert (bare.code, bare.headers["location"]) == (303, "/jobs/")

    first = site.ask("/jobs/", site.staff)
    assert first.code == 200 and "default-src 'none'" in first.headers["content-security-policy"]
    links = set(re.findall(r'(?:href|src|action|formaction)="([^"#]+)"', first.text))
    assert len(links) > 10 and all(each.startswith("/jobs/") for each in links), links
    kinds = {}
    for link in links - {each for each in links if re.search("/(pause|resume|scale|reload|find)$", each)}:
        answer = site.ask(link.replace("&amp;", "&"), site.staff)
        assert answer.code == 200, link
        kinds[answer.headers["content-type"].partition(";")[0]] = answer
    assert {"text/html", "text/css", "text/javascript", "image/svg+xml"} <= kinds.keys()
    assert site.ask("/jobs/healthz").code == 200


def test_changes_are_made_in_the_name_of_who_is_signed_in_to_the_site(site: Site, filled: Path) -> None:
    page = site.ask("/jobs/jobs/4", site.staff)
    (mine,) = re.findall(r"(jobpool_\w+=[^;]+); Path=/jobs;", page.headers["set-cookie"])
    token = re.search(r'name="form_token" value="([^"]+)"', page.text)
    assert token
    cookie, data, before = f"{site.staff}; {mine}", {"form_token": token[1], "reason": "r"}, row(filled, 4)
    here = f"http://127.0.0.1:{site.port}"
    for wrong in (
        site.ask("/jobs/jobs/4/archive", cookie, {"reason": "r"}, Origin=here),
        site.ask("/jobs/jobs/4/archive", site.staff, data, Origin=here),
        site.ask("/jobs/jobs/4/archive", f"{site.other}; {mine}", data, Origin=here),
        site.ask("/jobs/jobs/4/archive", cookie, data, Origin="http://evil.example"),
    ):
        assert wrong.code == 403
    assert row(filled, 4) == before
    done = site.ask("/jobs/jobs/4/archive", cookie, data, Origin=here)
    assert (done.code, done.headers["location"]) == (303, "/jobs/jobs/4")
    note = done.headers["set-cookie"].partition(";")[0]
    assert "Moved to the archive" in site.ask("/jobs/jobs/4", f"{cookie}; {note}").text
    assert rows(filled, "SELECT by, action FROM audit ORDER BY id DESC LIMIT 1") == [
        {"by": "zoë~1@127.0.0.1 (web)", "action": "archive"}
    ]


def test_under_asgi_tabs_are_told_of_changes(site: Site, request: pytest.FixtureRequest) -> None:
    if request.node.callspec.params["site"] != "django asgi":
        assert site.ask("/jobs/events", site.staff).code == 404
        return
    connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=30)
    connection.request("GET", "/jobs/events", headers={"Cookie": site.staff})
    answer = connection.getresponse()
    assert b"retry" in answer.readline() and b"hello" in answer.readline()
    connection.close()
