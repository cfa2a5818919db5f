"""What people change: each change happens once, is on record, and none without a form of ours."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pool import Queue, Spec
from pool.clock import now_text
from pool.store import Store
from tests.support import eventually, row, rows, statuses
from tests.web import scene
from tests.web.conftest import HERE, MakeClient


def kill(store: Store, job_id: int, error: str = "no luck") -> None:
    store.connection.execute(
        "UPDATE jobs SET status = 'dead', attempts = 5, last_error = ? WHERE id = ?", (error, job_id)
    )


def record(database: Path) -> list[tuple[Any, ...]]:
    return [(each["by"], each["action"], each["jobs"]) for each in rows(database, "SELECT * FROM audit ORDER BY id")]


ME = "local@127.0.0.1 (web)"


def test_a_dead_job_is_retried(client: MakeClient, store: Store, queue: Queue, database: Path) -> None:
    queue.enqueue("t")
    kill(store, 1)
    answer = client().submit("/jobs/1/retry", page="/jobs/1")
    assert "is queued again" in answer.text and answer.url.path == "/jobs/1"
    assert row(database)["status"] == "queued" and row(database)["attempts"] == 0
    assert record(database) == [(ME, "retry", 1)]


def test_a_note_is_shown_once(client: MakeClient, store: Store, queue: Queue) -> None:
    queue.enqueue("t")
    kill(store, 1)
    browser = client()
    assert "is queued again" in browser.submit("/jobs/1/retry", page="/jobs/1").text
    assert "is queued again" not in browser.get("/jobs/1").text


def test_what_cannot_be_retried_is_said_and_left(client: MakeClient, queue: Queue, database: Path) -> None:
    queue.enqueue("t")
    browser = client()
    token = browser.form_token()
    queue.claim()
    answer = browser.post("/jobs/1/retry", data={"form_token": token})
    assert "Nothing changed" in answer.text
    assert row(database)["status"] == "running" and record(database) == []


def test_a_job_is_archived_with_a_reason_and_comes_back(client: MakeClient, queue: Queue, database: Path) -> None:
    queue.enqueue("t", key="k")
    browser = client()
    assert "archived" in browser.submit("/jobs/1/archive", page="/jobs/1", reason="twice").text
    assert rows(database, "SELECT archived_by, archive_reason FROM jobs_archive") == [
        {"archived_by": ME, "archive_reason": "twice"}
    ]
    assert "is queued again" in browser.submit("/jobs/1/retry", page="/jobs/1").text
    assert statuses(database) == {"queued": 1}
    assert record(database) == [(ME, "archive", 1), (ME, "retry", 1)]


def test_a_waiting_job_is_cancelled_at_once_and_a_running_one_is_asked(
    client: MakeClient, queue: Queue, database: Path
) -> None:
    queue.enqueue("t")
    queue.enqueue("t")
    queue.claim()
    browser = client()
    assert "told to end" in browser.submit("/jobs/1/cancel", page="/jobs/1").text
    assert "in the archive" in browser.submit("/jobs/2/cancel", page="/jobs/2").text
    assert row(database)["cancel_requested_by"] == ME
    assert "Nothing to cancel" in browser.submit("/jobs/2/cancel", page="/jobs/2").text
    assert record(database) == [(ME, "cancel", 1), (ME, "cancel", 1)]  # what changed nothing is not on record


def edit_fields(text: str) -> dict[str, str]:
    import html

    fields = dict(re.findall(r'name="(seen|priority|max_attempts)"[^>]* value="([^"]*)"', text))
    return {**fields, "payload": html.unescape(re.search(r"<textarea[^>]*>(.*)</textarea>", text, re.S)[1])}  # type: ignore[index]


def test_an_edited_payload_keeps_the_secrets_that_were_hidden(
    client: MakeClient, store: Store, queue: Queue, database: Path
) -> None:
    payload = {
        "url": "https://u:pw123@x.example", "auth": {"password": "geheim"},
        "calls": [{"n": 1, "token": "a"}, {"n": 2, "token": "b"}],
    }  # fmt: skip
    queue.enqueue("t", payload)
    kill(store, 1)
    browser = client()
    fields = edit_fields(browser.get("/jobs/1/edit").text)
    assert "geheim" not in fields["payload"] and "pw123" not in fields["payload"]
    edited = json.loads(fields["payload"])
    edited["calls"].pop(0)
    edited["new"] = "é\u202e"
    answer = browser.submit(
        "/jobs/1/edit", page="/jobs/1", **{**fields, "payload": json.dumps(edited), "priority": "-3"}
    )
    assert "Saved" in answer.text
    found = row(database)
    assert json.loads(found["payload"]) == {**payload, "calls": [{"n": 2, "token": "b"}], "new": "é\u202e"}
    assert (found["status"], found["attempts"], found["priority"]) == ("queued", 0, -3)
    assert record(database) == [(ME, "edit", 1)]
    assert "geheim" not in rows(database, "SELECT * FROM audit")[0]["detail"]


def test_a_payload_that_was_not_touched_stays_byte_for_byte(client: MakeClient, store: Store, database: Path) -> None:
    odd = '{"n": 1.0e5,  "password": "x", "big": ' + "7" * 5000 + "}"
    store.connection.execute("INSERT INTO jobs (type, payload) VALUES ('t', ?)", (odd,))
    browser = client()
    fields = edit_fields(browser.get("/jobs/1/edit").text)
    assert "Saved" in browser.submit("/jobs/1/edit", page="/jobs/1", **fields).text
    assert row(database)["payload"] == odd


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"payload": "{"}, "Expecting"),
        ({"payload": '{"note": "••••••••"}'}, "nothing was masked"),
        ({"payload": '{"password": "x", "pins": [{"token": "••••••••"}]}'}, "cannot be told"),
        ({"payload": "[" * 100_000}, "nested too deeply"),
        ({"payload": '{"a": NaN}'}, "NaN"),
        ({"priority": "9" * 30}, "priority takes"),
        ({"max_attempts": "0"}, "max_attempts takes"),
        ({"seen": "2020-01-01 00:00:00"}, "somebody else"),
    ],
)
def test_an_edit_that_cannot_be_is_explained_and_changes_nothing(
    change: dict[str, str], said: str, client: MakeClient, queue: Queue, database: Path
) -> None:
    queue.enqueue("t", {"password": "x", "pins": [{"token": "1"}, {"token": "2"}]})
    before = row(database)
    browser = client()
    fields = edit_fields(browser.get("/jobs/1/edit").text)
    answer = browser.submit("/jobs/1/edit", page="/jobs/1", **{**fields, **change})
    assert answer.status_code == 400 and said in answer.text
    assert row(database) == before and record(database) == []


def test_many_are_counted_before_they_are_changed(client: MakeClient, filled: Path) -> None:
    dead = len(rows(filled, "SELECT id FROM jobs WHERE status = 'dead'"))
    browser = client()
    before = statuses(filled)
    text = browser.get("/bulk?action=retry&status=dead").text
    assert f"Retry {dead} jobs" in text and "Nothing is changed yet" in text
    assert statuses(filled) == before
    answer = browser.submit("/bulk", action="retry", status="dead")
    assert f"{dead} queued again" in answer.text and answer.url.path == "/audit"
    assert "dead" not in statuses(filled)
    assert record(filled)[-1] == (ME, "retry", dead)


def test_only_the_chosen_ones_of_many_are_changed(client: MakeClient, queue: Queue, database: Path) -> None:
    queue.enqueue_many(Spec("t") for _ in range(5))
    browser = client()
    assert "Archive 2 jobs" in browser.get("/bulk?action=archive&id=2&id=4").text
    browser.submit("/bulk", action="archive", id=["2", "4"], reason="gone")
    assert [each["id"] for each in rows(database)] == [1, 3, 5]


@pytest.mark.parametrize(
    "fields",
    [{}, {"action": "purge", "status": "dead"}, {"action": "retry"}, {"action": "retry", "status": "done"},
     {"action": "archive", "status": "running"}, {"action": "archive", "status": "archive"}],
)  # fmt: skip
def test_a_change_of_many_needs_a_choice_that_makes_sense(
    fields: dict[str, str], client: MakeClient, filled: Path
) -> None:
    before = statuses(filled)
    browser = client()
    assert browser.get("/bulk", params=fields).status_code == 400
    assert browser.submit("/bulk", **fields).status_code == 400
    assert statuses(filled) == before


def test_pausing_and_resuming_is_on_record(client: MakeClient, database: Path) -> None:
    browser = client()
    assert "Paused" in browser.submit("/pause", reason="release", **{"for": "10m"}).text
    (pause,) = rows(database, "SELECT * FROM pauses")
    assert pause["by"] == ME and pause["reason"] == "release" and pause["until"] > pause["at"]
    assert "Resumed" in browser.submit("/resume").text
    assert rows(database, "SELECT * FROM pauses") == []
    assert record(database) == [(ME, "pause", 0), (ME, "resume", 0)]


def test_a_running_pool_obeys_the_dashboard(client: MakeClient, pool: Any, database: Path, tmp_path: Path) -> None:
    running = pool(workers=1).ready()
    browser = client()
    pool_id = eventually(lambda: rows(database, "SELECT id FROM pools"))[0]["id"]
    eventually(lambda: f"/pools/{pool_id}/scale" in browser.get("/").text)
    assert "told to keep 2 workers" in browser.submit(f"/pools/{pool_id}/scale", workers="2").text
    running.ready(2)
    old = set(running.workers().values())
    assert "told to reload" in browser.submit(f"/pools/{pool_id}/reload").text
    eventually(lambda: len(running.workers()) == 2 and not old & set(running.workers().values()))
    with Queue(database) as queue:
        queue.enqueue("hold", {"started": f"{tmp_path}/started", "gate": f"{tmp_path}/gate"})
    eventually(lambda: re.search(r'<span class="state busy">busy</span>.*?href="/jobs/1"', browser.get("/").text, re.S))
    eventually(lambda: "on worker" in browser.get("/jobs/1").text)
    assert browser.get("/readyz").status_code == 200
    (tmp_path / "gate").touch()
    eventually(lambda: "done" in browser.get("/jobs/1").text)


def test_a_pool_that_is_gone_is_said_to_be(client: MakeClient, database: Path) -> None:
    assert "no pool 7" in client().submit("/pools/7/scale", workers="3").text
    assert record(database) == []


def test_a_form_without_its_token_changes_nothing(client: MakeClient, filled: Path) -> None:
    browser, before = client(), rows(filled)
    for token in (None, "", "x", "é", client().form_token("/")):  # the last is another session's
        data = {"reason": "x"} if token is None else {"form_token": token}
        for path in ("/jobs/1/archive", "/pause", "/bulk", "/pools/1/scale"):
            assert browser.post(path, data=data).status_code == 403
    assert rows(filled) == before


def test_a_read_only_dashboard_shows_no_form_and_refuses_every_change(client: MakeClient, filled: Path) -> None:
    token = client().form_token("/")
    browser, before = client(read_only=True), (rows(filled), record(filled))
    for path in ("/", "/jobs", "/dead", "/jobs/4", "/archive"):
        text = browser.get(path).text
        assert 'method="post"' not in text and "read-only" in text
    for path in ("/jobs/1/retry", "/jobs/1/edit", "/bulk", "/pause", "/resume", "/pools/1/reload"):
        assert browser.post(path, data={"form_token": token}, headers={"Origin": HERE}).status_code == 403
    assert browser.get("/bulk?action=retry&status=dead").status_code == 403
    assert (rows(filled), record(filled)) == before


def test_the_audit_page_shows_what_was_done_from_anywhere(client: MakeClient, store: Store, database: Path) -> None:
    scene.fill(database)
    with store.transaction():
        for number in range(60):
            store.execute(
                "audit", at=now_text(), by=f"<b>{number}</b>", action="retry", jobs=1, filter="not json", detail="d"
            )
    browser = client()
    text = browser.get("/audit").text
    assert "&lt;b&gt;59&lt;/b&gt;" in text and "<b>59" not in text
    older = browser.get(re.search(r'href="([^"]+)" rel="next"', text)[1]).text  # type: ignore[index]
    assert "anna@web1" in older and "webhook" in older


def test_a_scheduled_job_is_run_now_and_the_list_is_shown_again(client: MakeClient, database: Path) -> None:
    with Queue(database) as queue:
        queue.enqueue("t", delay=3600)
        queue.enqueue("u", delay=3600)
    answer = client().submit("/jobs/1/retry", page="/scheduled", next="/scheduled?type=t")
    assert answer.url.path == "/scheduled" and "Job 1 is queued again" in answer.text
    assert row(database, 1)["run_at"] <= now_text() < row(database, 2)["run_at"]
    assert record(database) == [(ME, "retry", 1)]
    browser = client()
    for elsewhere in ("//evil.example", "https://evil.example", "/\\evil"):
        data = {"form_token": browser.form_token("/jobs/2"), "next": elsewhere}
        answer = browser.post("/jobs/2/retry", data=data, headers={"Origin": HERE}, follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (303, "/")


def test_all_scheduled_jobs_are_counted_before_they_are_run_now(client: MakeClient, database: Path) -> None:
    with Queue(database) as queue:
        queue.enqueue_many(Spec("t", delay=3600.0) for _ in range(5))
        queue.enqueue("u", delay=3600)
        queue.enqueue("t", key="due")
    due = row(database, 7)
    browser = client()
    text = browser.get("/bulk?action=retry&status=scheduled&type=t").text
    assert "Run 5 jobs now?" in text and len(rows(database, "SELECT * FROM audit")) == 0
    answer = browser.submit("/bulk", action="retry", status="scheduled", type="t", reason="release")
    assert "5 queued again" in answer.text
    ready = rows(database, "SELECT id FROM jobs WHERE run_at <= ? ORDER BY id", now_text())
    assert [each["id"] for each in ready] == [1, 2, 3, 4, 5, 7] and row(database, 7) == due
    (line,) = rows(database, "SELECT action, jobs, filter, detail FROM audit")
    assert (line["action"], line["jobs"], line["detail"]) == ("retry", 5, "release")
    assert json.loads(line["filter"]) == {"status": "scheduled", "type": "t"}
