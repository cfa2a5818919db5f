"""What pages show: the state of the queue, jobs by filters, one job with its evidence, and no secret."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from pool import Queue, Spec
from pool.clock import now_text, utc_text
from pool.store import Store
from pool.web import reading
from pool.web.reading import Looks, Stores
from tests.support import eventually, rows, stranger
from tests.web import scene
from tests.web.conftest import MakeClient

PAGES = (
    "/",
    "/?span=day",
    "/jobs",
    "/scheduled",
    "/dead",
    "/archive",
    "/audit",
    "/jobs/1",
    "/jobs/3",
    "/bulk?action=retry&status=dead",
)


@pytest.mark.parametrize("path", PAGES)
def test_every_page_answers_on_a_full_and_on_an_empty_queue(path: str, client: MakeClient, database: Path) -> None:
    empty = client().get(path)
    assert empty.status_code == (404 if re.fullmatch(r"/jobs/\d+", path) else 200)
    scene.fill(database)
    full = client().get(path)
    assert full.status_code == 200
    assert full.headers["content-type"] == "text/html; charset=utf-8"
    assert "<h1" in full.text and "</html>" in full.text


def test_the_overview_tells_what_waits_runs_and_died(client: MakeClient, filled: Path) -> None:
    text = client().get("/").text
    counts = {each["status"]: each["n"] for each in rows(filled, "SELECT status, count(*) n FROM jobs GROUP BY 1")}
    for status in ("queued", "done"):
        assert f"{counts[status]} {status}" in text
    assert f"<dd>{counts['dead']}</dd>" in text
    assert "No pool is running" in text
    assert "jobs done" in text and "webhook" in text
    assert rows(filled, "SELECT error FROM attempts ORDER BY id DESC LIMIT 1")[0]["error"].split(":")[0] in text


def test_the_overview_shows_a_pause_and_its_reason(client: MakeClient, store: Store) -> None:
    store.change("pause", by="anna", reason="disk is <full>", now=now_text(), until=None)
    text = client().get("/").text
    assert "Paused" in text and "by anna" in text and "disk is &lt;full&gt;" in text


@pytest.mark.parametrize(
    ("query", "condition"),
    [
        ("status=dead", "status = 'dead'"),
        ("status=queued", "status = 'queued'"),
        ("type=webhook&status=dead", "type = 'webhook' AND status = 'dead'"),
        ("key=webhook:*", "idempotency_key GLOB 'webhook:*'"),
        ("error=customer_id&status=dead", "last_error LIKE '%customer\\_id%' ESCAPE '\\' AND status = 'dead'"),
        ("id=4&id=5", "id IN (4, 5)"),
    ],
)
def test_a_list_holds_the_jobs_its_filters_choose(query: str, condition: str, client: MakeClient, filled: Path) -> None:
    browser, found, path = client(), [], f"/jobs?{query}"
    while path:
        text = browser.get(path).text
        found += [int(each) for each in re.findall(r'href="/jobs/(\d+)"', text)]
        following = re.search(r'href="([^"]+)" rel="next"', text)
        path = following[1].replace("&amp;", "&") if following else ""
    wanted = [each["id"] for each in rows(filled, f"SELECT id FROM jobs WHERE {condition} ORDER BY id")]
    assert sorted(found) == wanted and len(set(found)) == len(found)


def test_a_page_of_a_list_goes_on_where_the_one_before_ended(client: MakeClient, database: Path) -> None:
    with Queue(database) as queue:
        queue.enqueue_many(Spec("t") for _ in range(120))
    browser = client()
    first = browser.get("/jobs").text
    with Queue(database) as queue:
        queue.enqueue_many(Spec("t") for _ in range(7))  # newer ones do not shift the second page
    second = browser.get(re.search(r'href="([^"]+)" rel="next"', first)[1].replace("&amp;", "&")).text  # type: ignore[index]
    assert re.findall(r'value="(\d+)" aria-label="job', second) == [str(each) for each in range(70, 20, -1)]


def test_the_search_box_finds_a_number_and_a_text(client: MakeClient, filled: Path) -> None:
    browser = client()
    assert browser.get("/find?q=%2312", follow_redirects=False).headers["location"] == "/jobs/12"
    assert browser.get("/find?q=12", follow_redirects=False).headers["location"] == "/jobs/12"
    assert "ConnectError" in browser.get("/find?q=refused").text


def test_a_job_shows_its_evidence_and_no_secret(client: MakeClient, filled: Path) -> None:
    text = client().get("/jobs/4").text
    assert "KeyError: &#39;customer_id&#39;" in text and "Traceback (most recent call last)" in text
    assert "peak memory 181 MB" in text and "Zoë" in text and "X-Request-Id" in text
    for secret in (scene.SECRET, "k-99", "hunter2"):
        assert secret not in text
    assert text.count("••••••••") >= 4


def test_names_to_mask_can_be_added(client: MakeClient, queue: Queue) -> None:
    queue.enqueue("t", {"iban": "DE00 1234", "list": [{"my-IBAN": 7}], "size": 3})
    text = client(mask=("iban",)).get("/jobs/1").text
    assert "DE00" not in text and ": 7" not in text and "&#34;size&#34;: 3" in text


def test_an_archived_job_says_who_put_it_away_and_why(client: MakeClient, filled: Path) -> None:
    text = client().get("/jobs/3").text
    assert "archived" in text and "anna@web1" in text and "duplicate of an older order" in text
    assert "duplicate of an older order" in client().get("/archive").text


def test_a_job_that_is_not_there_is_said_to_be_missing(client: MakeClient) -> None:
    answer = client().get("/jobs/99")
    assert answer.status_code == 404 and "there is no job 99" in answer.text


def test_rows_that_no_program_of_ours_wrote_are_shown_too(client: MakeClient, database: Path) -> None:
    browser = client()
    with stranger(database) as connection:
        connection.execute("INSERT INTO jobs (type, payload) VALUES ('broken', '{\"a\": ')")
        connection.execute("INSERT INTO jobs (type, payload) VALUES (CAST(x'ff66' AS TEXT), CAST(x'c328' AS TEXT))")
        connection.execute("INSERT INTO jobs (type, payload, run_at, updated_at) VALUES (x'00ff', x'00ff', 'soon', 7)")
        connection.execute(
            "INSERT INTO jobs (type, payload, last_error) VALUES ('deep', ?, ?)", ("[" * 5000, "x" * 10**6)
        )
        connection.execute("INSERT INTO jobs (type, payload) VALUES ('deeper', ?)", ("[" * 600 + "]" * 600,))
        connection.execute("INSERT INTO jobs (type, payload) VALUES ('huge', ?)", ("9" * 10_000,))
        large = '{"token": "' + "x" * 3_000_000 + '"}'
        connection.execute("INSERT INTO jobs (type, payload, result) VALUES ('large', ?, ?)", (large, large))
    for path in ("/", "/jobs", "/jobs?status=queued", *(f"/jobs/{each}" for each in range(1, 8))):
        answer = browser.get(path)
        assert answer.status_code == 200, path
        assert len(answer.content) < 500_000
    assert "\\xff" in browser.get("/jobs/2").text
    assert "9" * 10_000 in browser.get("/jobs/6").text
    assert "too many to show" in browser.get("/jobs/7").text and "Edit" not in browser.get("/jobs/7").text


def test_what_would_turn_or_hide_text_is_spelled_out(client: MakeClient, queue: Queue) -> None:
    queue.enqueue("gpj\u202eexe", {"a\u200bb": "\x1b[31m\u2066<script>"})
    browser = client()
    for path in ("/jobs", "/jobs/1", "/jobs/1/edit", "/jobs?type=gpj%E2%80%AEexe"):
        text = browser.get(path).text
        assert not re.search("[\u200b\u202e\u2066\x1b]", text), path
        assert "<script>" not in text.replace("<script src=", ""), path
    assert "gpj" in browser.get("/jobs?type=gpj%E2%80%AEexe").text


def test_a_database_that_was_replaced_is_shown_as_it_is_now(client: MakeClient, database: Path, tmp_path: Path) -> None:
    with Queue(database) as queue:
        queue.enqueue("old")
    browser = client()
    assert "old" in browser.get("/jobs").text
    other = tmp_path / "other.db"
    with Queue(other) as queue:
        queue.enqueue("restored")
    for suffix in ("-wal", "-shm"):
        Path(f"{database}{suffix}").unlink(missing_ok=True)
    other.replace(database)
    assert "restored" in browser.get("/jobs").text


def test_a_database_that_is_gone_is_said_to_be(client: MakeClient, database: Path) -> None:
    browser = client()
    database.unlink()
    answer = browser.get("/jobs")
    assert answer.status_code == 503 and "No such file" in answer.text


def test_ages_are_counted_from_now(client: MakeClient, store: Store) -> None:
    at = utc_text(time.time() - 3 * 3600)
    with store.transaction():
        store.connection.execute("INSERT INTO jobs (type, payload, run_at) VALUES ('t', '{}', ?)", (at,))
    text = client().get("/").text
    assert "3 h" in text


def test_a_job_s_page_shows_the_trace_it_belongs_to(client: MakeClient, store: Store) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    with stranger(store.path) as sql:
        for context in (f"00-{trace}-00f067aa0ba902b7-01", "garbage", b"\xff"):
            sql.execute("INSERT INTO jobs (type, payload, trace_context) VALUES ('t', '{}', ?)", (context,))
    pages = [client().get(f"/jobs/{number}").text for number in (1, 2, 3)]
    assert f"<dt>Trace</dt><dd>{trace}</dd>" in pages[0]
    assert not any("Trace</dt>" in page for page in pages[1:])


def test_scheduled_jobs_come_by_when_they_are_due_with_why(client: MakeClient, queue: Queue, store: Store) -> None:
    queue.enqueue("now")
    queue.enqueue("week", delay=7 * 86_400)
    queue.enqueue("minutes", delay=1_200)
    queue.enqueue("hours", delay=5 * 3_600)
    later = utc_text(time.time() + 3_000)
    store.connection.execute(
        "UPDATE jobs SET attempts = 2, last_error = 'no <luck>' || char(10) || 'more', run_at = ? WHERE id = 1",
        (later,),
    )
    store.connection.execute("UPDATE jobs SET updated_at = ? WHERE type = 'hours'", (utc_text(time.time() + 1),))
    text = client().get("/scheduled").text
    assert re.findall(r'<th scope="row">(\w+)</th>', text) == ["minutes", "now", "hours", "week"]
    assert re.findall(r"<dt>([\w ]+)</dt><dd>([\d,]+)</dd>", text) == [
        ("Within an hour", "2"), ("Within a day", "3"), ("In all", "4")
    ]  # fmt: skip
    assert "no &lt;luck&gt;" in text and later[:19] in text and "in 50 min" in text
    assert text.count("delayed when it was enqueued") == 2 and "put off" in text.partition("<tbody>")[2]
    filtered = client().get("/scheduled?type=week").text
    assert re.findall(r'<th scope="row">(\w+)</th>', filtered) == ["week"] and "Within an hour" not in filtered


def test_a_page_of_scheduled_jobs_is_followed_by_the_next(client: MakeClient, queue: Queue) -> None:
    queue.enqueue_many(Spec("t", delay=60.0 + (number * 37) % 120) for number in range(120))
    browser, path, seen = client(), "/scheduled", []
    while path:
        text = browser.get(path).text
        seen += re.findall(r'id="j(\d+)"', text)
        following = re.search(r'href="([^"]+)" rel="next"', text)
        path = following[1].replace("&amp;", "&") if following else ""
    wanted = [str(each["id"]) for each in rows(queue.path, "SELECT id FROM jobs ORDER BY run_at, id")]
    assert seen == wanted


def test_nobody_waits_for_a_look_where_one_was_good_a_moment_ago(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, exact = threading.Event(), reading.status

    def slow(*arguments: Any) -> dict[str, Any]:
        assert gate.wait(20)
        return exact(*arguments)

    monkeypatch.setattr(reading, "status", slow)
    looks = Looks(Stores(store.path))
    first = looks.get(exact=False)
    looks.good_until = time.monotonic() - 1
    assert looks.get(exact=False) is first
    gate.set()
    eventually(lambda: looks.taken == 2)
    second = looks.get(exact=False)
    assert second is not first
    looks.forget()  # what was changed here is to be seen at once
    assert looks.get(exact=False) is not second
