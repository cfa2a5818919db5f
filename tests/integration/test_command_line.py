"""The command line as a user types it: what each command says, and how each wrong input is refused."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pool import Queue, cli
from pool.clock import now_text
from tests.conftest import Command
from tests.support import environment, row, rows, stranger

ASCII = {"PYTHONIOENCODING": "ascii", "LANG": "C", "LC_ALL": "C"}
COMMANDS = [
    "run",
    "enqueue",
    "map",
    "status",
    "list",
    "show",
    "retry",
    "archive",
    "cancel",
    "pause",
    "resume",
    "scale",
    "reload",
]
STATUS_KEYS = {
    "queued", "running", "done", "dead", "oldest_run_at", "oldest_age_s", "last_errors", "queue_depth",
    "in_progress_count", "retry_rate", "db_write_latency_p99_ms", "workers",
}  # fmt: skip


@pytest.fixture
def mixed(queue: Queue, database: Path) -> Queue:
    """A queue with a job in each state: 1 done, 2 dead, 3 running, 4 queued, 5 queued for later, 6 archived."""
    for _ in range(3):
        queue.enqueue("t", {"a": 1})
    done, dead, _ = queue.claim(), queue.claim(), queue.claim()
    assert done is not None and dead is not None
    queue.complete(done, "result")
    with stranger(database) as sql:
        sql.execute("UPDATE jobs SET max_attempts = 1 WHERE id = 2")
    queue.fail(dead, "no luck [bold]\x1b[31m here")
    queue.enqueue("t", key="a-key")
    queue.enqueue("later", delay=3600)
    queue.enqueue("old")
    queue.archive(6, "because")
    return queue


# help and typos


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_every_command_explains_itself_on_any_terminal(name: str, command: Command) -> None:
    said = command(*name.split(), "--help", env=ASCII).ok().out
    assert said.startswith("Usage: ") and said.isascii()


def test_the_version_is_told(command: Command) -> None:
    assert command("--version").ok().out.startswith("pool, version ")


def test_without_a_command_the_help_is_shown(command: Command) -> None:
    said = command().ok().out
    assert "\nCommands:\n" in said
    assert "..." not in said.partition("\nCommands:\n")[2]  # each line is whole


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["lst"], 2, ["No such command 'lst'", "Did you mean 'list'?"]),
        (["enqeue", "t"], 2, ["'enqueue'"]),
        (["xyzzy"], 2, ["No such command"]),
        (["run", "--workrs", "2"], 2, ["--workrs", "--workers"]),
        (["list", "--status", "failed"], 2, ["'failed'", "queued", "dead"]),
        (["run", "--workers", "0"], 2, ["--workers", "at least 1"]),
        (["run", "--workers", "-1"], 2, ["--workers"]),
        (["run", "--workers", "many"], 2, ["--workers", "many"]),
        (["run", "--workers", "100000"], 2, ["--workers", "1024"]),
        (["run", "--lease", "0.5"], 2, ["--lease", "0.5"]),
        (["run", "--grace", "soon"], 2, ["--grace", "soon", "1.5s"]),
        (["run", "--handlers", "not/a/module"], 2, ["--handlers", "not/a/module"]),
        (["enqueue"], 2, ["type"]),
        (["enqueue", ""], 2, ["type"]),
        (["enqueue", "t", "{not json"], 2, ["the payload is not JSON"]),
        (["enqueue", "t", "NaN"], 2, ["NaN"]),
        (["enqueue", "t", "1e999"], 2, ["payload is inf"]),
        (["enqueue", "t", '{"a": [1, 1e999]}'], 2, ["payload.a[1]"]),
        (["enqueue", "t", "[" * 5000], 2, ["nested too deeply"]),
        (["enqueue", "t", "[" * 5000 + "]" * 5000], 2, ["nested too deeply"]),
        (["enqueue", "t", "@missing.json"], 2, ["missing.json"]),
        (["enqueue", "t", "@."], 2, ["cannot read ."]),
        (["enqueue", "t", "--delay", "soon"], 2, ["--delay", "'soon'", "10m"]),
        (["enqueue", "t", "--delay", "-5"], 2, ["--delay", "-5"]),
        (["enqueue", "t", "--at", "2026-12-01 08:00"], 2, ["--at", "no time zone", "+01:00"]),
        (["enqueue", "t", "--at", "noon"], 2, ["--at", "'noon'"]),
        (["enqueue", "t", "--at", "2026-12-01T08:00Z", "--delay", "5"], 2, ["not both"]),
        (["enqueue", "t", "--timeout", "0"], 2, ["timeout"]),
        (["enqueue", "t", "--max-attempts", "0"], 2, ["max_attempts"]),
        (["enqueue", "t", "--max-attempts", "9" * 30], 2, ["max_attempts"]),
        (["enqueue", "t", "--priority", "9" * 30], 2, ["priority"]),
        (["enqueue", "t", "--priority", "high"], 2, ["--priority", "high"]),
        (["enqueue", "t", "--key", ""], 2, ["key"]),
        (["enqueue", "t", "{}", "extra"], 2, ["extra"]),
        (["enqueue", "t", "--jsonl", "missing.jsonl"], 2, ["missing.jsonl"]),
        (["enqueue", "--jsonl", "-", "--priority", "5"], 2, ["each line carries its own"]),
        (["enqueue", "--jsonl", "-", "--delay", "0"], 2, ["each line carries its own"]),
        (["enqueue", "--jsonl", "-", "--key", "k"], 2, ["each line carries its own"]),
        (["show"], 2, ["ID"]),
        (["show", "one"], 2, ["'one'"]),
        (["show", "99"], 2, ["there is no job 99 in jobs.db"]),
        (["show", "9" * 30], 2, ["9" * 30]),
        (["list", "--limit", "0"], 2, ["--limit"]),
        (["list", "--limit", "9" * 30], 2, ["--limit"]),
        (["list", "--before", "9" * 30], 2, ["--before"]),
        (["retry"], 2, ["--all-dead"]),
        (["retry", "1", "--all-dead"], 2, ["--all-dead"]),
        (["retry", "9" * 30], 2, ["9" * 30]),
        (["archive"], 2, ["--all-dead"]),
        (["archive", "9" * 30], 2, ["9" * 30]),
        (["cancel"], 2, ["ID"]),
        (["cancel", "9" * 30], 2, ["9" * 30]),
        (["scale", "0"], 2, ["0"]),
        (["scale", "2"], 2, ["no such pool runs on jobs.db"]),
        (["reload"], 2, ["no such pool runs on jobs.db"]),
        (["pause", "--for", "ever"], 2, ["--for", "'ever'"]),
        (["map", "t"], 2, ["SOURCE"]),
        (["map", "t", "."], 2, ["--dest"]),
        (["status", "--db"], 2, ["--db"]),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else "",
)
def test_wrong_input_is_one_line_that_says_what_and_changes_nothing(
    arguments: list[str], code: int, words: list[str], command: Command, queue: Queue, database: Path
) -> None:
    command(*arguments).refused(code, *words)
    assert rows(database) == []


def test_bytes_that_are_not_utf_8_are_refused_wherever_they_come_from(
    command: Command, queue: Queue, database: Path, tmp_path: Path
) -> None:
    bad = os.fsdecode(b"\xff")
    command("enqueue", bad).refused(2, "type")
    command("enqueue", "t", "--key", bad).refused(2, "key")
    command("enqueue", "t", f'"{bad}"').refused(2)
    command("enqueue", "t", "-", stdin=b'"\xff"').refused(2)
    command("enqueue", "--jsonl", "-", stdin=b'{"type": "t", "payload": "\xff"}\n').refused(2)
    (tmp_path / "bad.jsonl").write_bytes(b'{"type": "t"}\n{"type": "\xff"}\n')
    command("enqueue", "--jsonl", "bad.jsonl").refused(2, "bad.jsonl")
    (tmp_path / "bad.json").write_bytes(b'"\xff"')
    command("enqueue", "t", "@bad.json").refused(2, "bad.json")
    command("list", "--type", bad).refused(2)
    assert rows(database) == []


# enqueue


def test_enqueue_says_the_id_and_a_known_key_again(command: Command, database: Path) -> None:
    assert command("enqueue", "t", '{"a": "é"}', "--key", "k").ok().out == "job 1 queued\n"
    assert command("enqueue", "t", "--key", "k").ok().out == "job 1 was there already\n"
    assert command("enqueue", "t", "--key", "k", "--json").ok().json() == {"id": 1, "created": False}
    assert row(database)["payload"] == '{"a":"é"}'


def test_a_payload_comes_from_the_argument_a_file_or_standard_input(
    command: Command, database: Path, tmp_path: Path
) -> None:
    (tmp_path / "payload.json").write_text('{"from": "file"}')
    command("enqueue", "t").ok()
    command("enqueue", "t", "@payload.json").ok()
    command("enqueue", "t", "-", stdin="[1, 2]").ok()
    command("enqueue", "t", "null").ok()
    command("enqueue", "t", "1" * 10_000).ok()
    stored = [each["payload"] for each in rows(database)]
    assert stored[:3] == ["{}", '{"from":"file"}', "[1,2]"] and stored[4] == "1" * 10_000


def test_options_reach_the_job(command: Command, database: Path) -> None:
    command(
        "enqueue", "t", "--priority", "-2", "--max-attempts", "3", "--timeout", "1.5m", "--at", "2036-12-01T09:00+01:00"
    ).ok()
    found = row(database)
    assert (found["priority"], found["max_attempts"], found["timeout_seconds"]) == (-2, 3, 90.0)
    assert found["run_at"] == "2036-12-01 08:00:00.000"


def test_many_jobs_come_from_lines_of_a_file_or_of_standard_input(
    command: Command, database: Path, tmp_path: Path
) -> None:
    lines = [{"type": "a", "payload": {"n": 1}, "key": "k"}, {"type": "b", "delay": 60}, {"type": "a", "key": "k"}]
    lines.append({"type": "c", "run_at": "2036-12-01T09:00+01:00"})
    text = "\n\n".join(map(json.dumps, lines))
    (tmp_path / "jobs.jsonl").write_text(text)
    assert command("enqueue", "--jsonl", "jobs.jsonl").ok().out == "3 jobs queued, 1 were there already\n"
    assert command("enqueue", "--jsonl", "-", "--json", stdin=text).ok().json() == {"read": 4, "created": 2}
    assert row(database, 1)["payload"] == '{"n":1}'
    assert "2036-12-01 08:00:00.000" in {each["run_at"] for each in rows(database)}


def test_bare_payloads_are_lines_when_the_type_is_given(command: Command, database: Path) -> None:
    command("enqueue", "t", "--jsonl", "-", stdin='{"a": 1}\n[2]\n"3"\n').ok()
    assert [(each["type"], each["payload"]) for each in rows(database)] == [
        ("t", '{"a":1}'),
        ("t", "[2]"),
        ("t", '"3"'),
    ]


@pytest.mark.parametrize(
    "line",
    [
        "{not json",
        "[1]",
        '{"payload": 1}',
        '{"type": "t", "typo": 1}',
        '{"type": "t", "run_at": "noon"}',
        '{"type": "t", "run_at": "2026-12-01T08:00"}',
        '{"type": "t", "delay": "10m"}',
        '{"type": "t", "priority": "high"}',
        '{"type": "t", "payload": 1e999}',
        '{"type": ""}',
        '{"type": "t", "key": 5}',
    ],
)
def test_a_bad_line_is_named_by_its_number(line: str, command: Command, database: Path) -> None:
    text = f'{{"type": "t"}}\n\n{line}\n{{"type": "t"}}\n'
    command("enqueue", "--jsonl", "-", stdin=text).refused(2, "line 3", "nothing is stored")
    assert rows(database) == []


def test_a_line_that_is_no_json_says_at_which_column(command: Command) -> None:
    command("enqueue", "t", "--jsonl", "-", stdin='{"a": 1}\n{"a": 1\n').refused(2, "line 2: not JSON", "column 8;")


def test_the_database_comes_from_the_option_before_the_environment(command: Command, tmp_path: Path) -> None:
    here, there = tmp_path / "here.db", tmp_path / "there.db"
    command("enqueue", "t", env={"POOL_DB": str(there)}).ok()
    command("enqueue", "t", "--db", "here.db", env={"POOL_DB": str(there)}).ok()
    command("enqueue", "t").ok()
    assert [len(rows(path)) for path in (here, there, tmp_path / "jobs.db")] == [1, 1, 1]


# reading


def test_status_tells_every_documented_fact_to_programs(mixed: Queue, command: Command) -> None:
    found = command("status", "--json").ok().json()
    assert found.keys() >= STATUS_KEYS
    counts = {key: found[key] for key in ("queued", "running", "done", "dead", "queue_depth", "in_progress_count")}
    assert counts == {"queued": 2, "running": 1, "done": 1, "dead": 1, "queue_depth": 1, "in_progress_count": 1}
    assert found["oldest_run_at"] == mixed.get(4)["run_at"]  # type: ignore[index]
    assert 0 <= found["oldest_age_s"] < 60 and found["workers"] == [] and 0 <= found["retry_rate"] <= 1
    assert found["db_write_latency_p99_ms"] is None
    (error,) = found["last_errors"]
    assert (error["job_id"], error["type"], error["attempt"], error["outcome"]) == (2, "t", 1, "failed")


def test_the_last_errors_of_a_status_leave_out_what_was_stopped_by_hand(
    mixed: Queue, database: Path, command: Command
) -> None:
    with stranger(database) as connection:
        connection.execute("UPDATE attempts SET outcome = 'interrupted'")
    assert command("status", "--json").ok().json()["last_errors"] == []


def test_an_empty_queue_has_a_status_too(queue: Queue, command: Command) -> None:
    found = command("status", "--json").ok().json()
    assert (found["queued"], found["oldest_run_at"], found["oldest_age_s"], found["last_errors"]) == (0, None, None, [])
    assert "none is running" in command("status").ok().out


@pytest.mark.parametrize(
    ("status", "ids"),
    [
        ("queued", [4, 5]),
        ("scheduled", [5]),
        ("running", [3]),
        ("done", [1]),
        ("dead", [2]),
        ("archive", [6]),
        ("", [5, 4, 3, 2, 1]),
    ],
)
def test_list_shows_the_jobs_of_each_status(status: str, ids: list[int], mixed: Queue, command: Command) -> None:
    chosen = ["--status", status] if status else []
    assert [each["id"] for each in command("list", "--json", *chosen).ok().json()] == ids
    assert all(f"{each}" in command("list", *chosen).ok().out for each in ids[:1])


def test_an_archived_job_is_shown_as_archived_whatever_it_was_before(mixed: Queue, command: Command) -> None:
    (line,) = command("list", "--status", "archive").ok().out.splitlines()[1:]
    assert line.split()[:3] == ["6", "old", "archived"]
    assert "archived (was queued)" in command("show", "6").ok().out


def test_scheduled_jobs_are_run_now_all_at_once(mixed: Queue, command: Command, database: Path) -> None:
    chosen = ("retry", "--status", "scheduled")
    assert "1 job would be queued again" in command(*chosen, "--dry-run").ok().out
    waits = row(database, 4)
    assert "queued again: 5" in command(*chosen).ok().out
    assert (row(database, 4), row(database, 5)["run_at"] <= now_text()) == (waits, True)


def test_list_is_narrowed_by_type_limit_and_id(mixed: Queue, command: Command) -> None:
    def ids(*arguments: str) -> list[int]:
        return [each["id"] for each in command("list", "--json", *arguments).ok().json()]

    assert ids("--type", "later") == [5] and ids("--type", "nothing") == []
    assert ids("--limit", "2") == [5, 4] and ids("--before", "4", "--limit", "2") == [3, 2]


def test_show_tells_the_whole_story_of_a_job(mixed: Queue, command: Command) -> None:
    found = command("show", "2", "--json").ok().json()
    assert (found["id"], found["status"], found["payload"], found["attempts"]) == (2, "dead", '{"a":1}', 1)
    (attempt,) = found["failed_attempts"]
    assert (attempt["attempt"], attempt["outcome"]) == (1, "failed")
    assert command("show", "6", "--json").ok().json()["archive_reason"] == "because"
    said = command("show", "2").ok().out
    assert "no luck [bold]\\x1b[31m here" in said and "\x1b" not in said


# mending


def test_retry_and_archive_say_which_jobs_they_left_alone_and_exit_1(
    mixed: Queue, command: Command, database: Path
) -> None:
    answer = command("retry", "1", "2", "3", "99", "2")
    assert answer.code == 1 and answer.err == "" and "2" in answer.out and "1, 3, 99" in answer.out
    assert row(database, 2)["status"] == "queued"
    answer = command("archive", "1", "3", "--reason", "tidy", "--json")
    assert answer.code == 1 and set(answer.json()["left"]) == {3}
    assert command("show", "1", "--json").ok().json()["archive_reason"] == "tidy"
    assert command("retry", "1").ok()


def test_a_dry_run_changes_nothing(mixed: Queue, command: Command, database: Path) -> None:
    before = rows(database)
    assert "2" in command("retry", "--all-dead", "--dry-run").ok().out
    assert "2" in command("archive", "--all-dead", "--dry-run").ok().out
    assert rows(database) == before
    assert "2" in command("retry", "--all-dead").ok().out
    assert row(database, 2)["status"] == "queued"
    command("retry", "--all-dead").ok()  # none left is no error


def test_cancel_archives_what_waits_and_orders_what_runs_to_end(mixed: Queue, command: Command, database: Path) -> None:
    command("cancel", "4", "3").ok()
    refused = command("cancel", "1", "4", "99")
    assert refused.code == 1 and refused.out.splitlines() == [
        f"job 1: nothing to cancel: it is {row(database, 1)['status']}",
        "job 4: nothing to cancel: it is in the archive",
        "job 99: there is none such",
    ]
    assert row(database, 3)["cancel_requested_at"] and mixed.get(4)["archive_reason"] == "cancelled"  # type: ignore[index]


def test_an_archived_job_whose_key_is_taken_again_stays_there(queue: Queue, command: Command) -> None:
    queue.enqueue("t", key="k")
    queue.archive(1)
    queue.enqueue("t", key="k")
    command("retry", "1").refused(2, "job 1 cannot leave the archive")


# odd data and odd terminals


@pytest.mark.parametrize(
    "arguments", [["status"], ["list"], ["show", "1"], ["list", "--json"], ["show", "1", "--json"]]
)
def test_emoji_in_type_and_error_reach_an_ascii_terminal_spelled_out(
    arguments: list[str], queue: Queue, command: Command
) -> None:
    queue.enqueue("imäge-🙂", {"é": "🙂"}, key="ключ")
    job = queue.claim()
    assert job is not None and queue.fail(job, "💥 …")
    said = command(*arguments, env=ASCII).ok().out
    assert said.isascii() and ("U0001f642" in said or "ud83d" in said or arguments == ["status"])


def test_an_empty_queue_reaches_an_ascii_terminal(queue: Queue, command: Command) -> None:
    for arguments in (["status"], ["list"], ["enqueue", "🙂"], ["enqueue", "🙂", "--json"], ["resume"]):
        assert command(*arguments, env=ASCII).ok().out.isascii()


def test_one_corrupt_row_hides_no_other(queue: Queue, command: Command, database: Path) -> None:
    """What a stranger may have stored: a type that is no text, text that is not UTF-8, times that are no times."""
    queue.enqueue("good", {"a": 1})
    with stranger(database) as sql:
        sql.execute("INSERT INTO jobs (type, payload) VALUES (CAST(x'ff' AS TEXT), CAST(x'fe' AS TEXT))")
        sql.execute("INSERT INTO jobs (type, payload) VALUES (x'ff', x'fe')")
        sql.execute("INSERT INTO jobs (type, payload, run_at, locked_at) VALUES ('t', 'x', 'soon', 'x')")
        sql.execute("INSERT INTO jobs (type, payload, run_at, created_at) VALUES (5, 6, 7, x'00')")
        sql.execute("UPDATE jobs SET status = 'dead', last_error = CAST(x'ff' AS TEXT) WHERE id = 3")
    for arguments in (["status"], ["list"], *(["show", str(n)] for n in range(1, 6))):
        command(*arguments).ok()
        command(*arguments, "--json").ok().json()
    assert len(command("list", "--json").json()) == 5


def pipe_to(script: str, tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    line = f'"{sys.executable}" -m pool {" ".join(arguments)} | {script}; echo "${{PIPESTATUS[0]}}" >&2'
    return subprocess.run(
        ["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, timeout=60, env=environment()
    )


@pytest.mark.parametrize(
    "arguments", [["list", "--json"], ["list", "--limit", "10000"], ["status"], ["show", "1"], ["--help"]]
)
def test_a_reader_that_goes_away_is_no_error(arguments: list[str], queue: Queue, tmp_path: Path) -> None:
    queue.enqueue_many([("t", {"text": "x" * 200})] * 3_000)
    for script in ("head -c 1 > /dev/null", "true"):
        done = pipe_to(script, tmp_path, *arguments)
        assert done.stderr == "0\n"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_no_obstacle(closed: str, queue: Queue, tmp_path: Path, database: Path) -> None:
    """As some init scripts start their daemons."""
    for command in ("enqueue unknown", "status", "run --workers 1 --drain"):
        line = f'"{sys.executable}" -m pool {command} {closed}'
        done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, timeout=60, env=environment())
        assert (done.returncode, b"Traceback" in done.stderr) == (1 if "run" in command else 0, False), done.stderr
    assert "no handler" in row(database)["last_error"]


def test_a_full_disk_under_standard_output_is_an_error_not_a_success(queue: Queue, tmp_path: Path) -> None:
    queue.enqueue("t")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "pool", "list"],
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
    assert done.returncode == 1 and done.stderr == "error: [Errno 28] No space left on device\n"


def test_a_locked_database_can_be_read(queue: Queue, command: Command, database: Path) -> None:
    with stranger(database) as sql:
        sql.execute("BEGIN IMMEDIATE")
        for name in ("status", "list"):
            command(name, "--json").ok().json()


def test_a_write_that_waits_too_long_for_another_is_refused_in_one_line(
    queue: Queue, database: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    impatient = functools.partial(Queue, busy_seconds=0.1)
    monkeypatch.setattr("pool.cli.enqueue.Queue", impatient)
    monkeypatch.setattr(sys, "argv", ["pool", "enqueue", "t", "--db", str(database)])
    with stranger(database) as sql:
        sql.execute("BEGIN IMMEDIATE")
        assert cli.main() == 4
    said = capsys.readouterr()
    assert (said.out, said.err.count("error: "), said.err.count("\n")) == (
        "",
        1,
        1,
    ) and "database is locked" in said.err


def test_status_is_one_moment_however_busy_the_queue_is(queue: Queue, database: Path) -> None:
    """Counts read one after the other while jobs move would not add up."""
    from pool.status import status
    from pool.store import Store

    class Moving(Store):
        def value(self, statement: str, **bound: object) -> Any:
            found = super().value(statement, **bound)
            queue.enqueue("meanwhile")
            return found

    store = Moving.open(str(database))
    queue.enqueue("t")
    found = status(store)
    store.close()
    assert (found["queued"], found["done"], found["dead"]) == (1, 0, 0)
