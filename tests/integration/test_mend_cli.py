"""Finding and mending jobs from the command line: lists, bulk changes with a dry run, purge, and who did what."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pool import Queue, mend
from pool.clock import now_text
from pool.mend import Order
from pool.selection import Selection
from pool.store import Store
from tests.conftest import Command
from tests.support import environment, eventually, row, rows, stranger

SELECT_IDS = "SELECT id FROM jobs ORDER BY id"


@pytest.fixture
def mixed(queue: Queue, database: Path) -> Queue:
    """Jobs 1–20: of each four one is queued, one done, one dead with a 503, one archived; every fifth is a report."""
    with stranger(database) as sql:
        for number in range(1, 21):
            status = ("queued", "done", "dead", "dead")[number % 4]
            sql.execute(
                """INSERT INTO jobs (type, payload, status, idempotency_key, last_error, updated_at)
                VALUES (?, '{}', ?, ?, ?, ?)""",
                (
                    "report" if number % 5 == 0 else "webhook",
                    status,
                    f"import:2026:{number:02d}",
                    "HTTP 503 from the shop" if status == "dead" else None,
                    "2026-01-01 00:00:00" if number <= 10 else now_text(),
                ),
            )
    for number in range(3, 21, 4):
        assert queue.archive(number, "looked at")
    return queue


def statuses(database: Path) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for each in rows(database):
        found.setdefault(each["status"], []).append(each["id"])
    found["archive"] = [each["id"] for each in rows(database, "SELECT id FROM jobs_archive ORDER BY id")]
    return found


BEFORE = {
    "done": [1, 5, 9, 13, 17],
    "dead": [2, 6, 10, 14, 18],
    "queued": [4, 8, 12, 16, 20],
    "archive": [3, 7, 11, 15, 19],
}


def only(command: Command, *arguments: str) -> list[int]:
    return [each["id"] for each in command("list", "--json", *arguments).ok().json()]


# list


@pytest.mark.parametrize(
    ("arguments", "ids"),
    [
        (["--status", "dead"], {2, 6, 10, 14, 18}),
        (["--status", "dead", "--older", "1d"], {2, 6, 10}),
        (["--status", "dead", "--newer", "1h"], {14, 18}),
        (["--type", "report"], {5, 10, 20}),
        (["--type", "report", "--status", "archive"], {15}),
        (["--key", "import:2026:07", "--status", "archive"], {7}),
        (["--key", "import:2026:0*"], {1, 2, 4, 5, 6, 8, 9}),
        (["--error", "http 503", "--type", "webhook"], {2, 6, 14, 18}),
        (["--error", "50_"], set()),
        (["--key", "*", "--limit", "3"], {20, 18, 17}),
    ],
)
def test_list_finds_jobs_by_what_a_person_knows_of_them(
    arguments: list[str], ids: set[int], mixed: Queue, command: Command
) -> None:
    assert set(only(command, *arguments)) == ids


def test_a_list_says_how_to_get_its_next_page(mixed: Queue, command: Command) -> None:
    for chosen, expected in ((["--status", "dead"], BEFORE["dead"]), ([], [*range(1, 21)])):
        seen: list[int] = []
        place: list[str] = []
        for _ in range(12):
            said = command("list", *chosen, "--limit", "2", *place).ok().out
            seen += [int(each) for each in re.findall(r"^ *(\d+) ", said, re.MULTILINE)]
            more = re.search(r"^more: --before (.+)$", said, re.MULTILINE)
            if more is None:
                break
            place = ["--before", more[1].strip("'")]
        assert sorted(seen) == sorted(set(expected) - set(BEFORE["archive"]))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--before", "x"], ["--before", "ID@TIME"]),
        (["--before", "7", "--status", "dead"], ["--before", "ID@TIME"]),
        (["--older", "1d", "--newer", "1h"], ["--older", "--newer"]),
        (["--older", "soon"], ["--older", "7d"]),
        (["--newer", "9" * 400], ["newer"]),
        (["--key", ""], ["key"]),
        (["--error", os.fsdecode(b"\xff")], ["error"]),
    ],
)
def test_a_list_that_can_never_be_is_refused(
    arguments: list[str], words: list[str], mixed: Queue, command: Command
) -> None:
    command("list", *arguments).refused(2, *words)


def test_a_table_in_a_pipe_is_not_cut(queue: Queue, command: Command) -> None:
    queue.enqueue("t", key="k" * 300)
    said = command("list").ok().out
    assert "k" * 300 in said and not re.search(r" $", said, re.MULTILINE)


# retry and archive


def test_retry_takes_the_dead_ones_that_are_chosen(mixed: Queue, command: Command, database: Path) -> None:
    said = command("retry", "--type", "webhook", "--error", "503").ok().out
    assert said == "queued again: 2, 6, 14, 18\n"
    found = statuses(database)
    assert found["dead"] == [10] and found["archive"] == BEFORE["archive"] and found["done"] == BEFORE["done"]


def test_retry_brings_archived_jobs_back(mixed: Queue, command: Command, database: Path) -> None:
    command("retry", "--status", "archive", "--key", "import:2026:0*").ok()
    assert statuses(database)["archive"] == [11, 15, 19] and row(database, 3)["status"] == "queued"
    assert row(database, 3)["last_error"] == "HTTP 503 from the shop"


def test_retry_of_queued_jobs_makes_them_due_now(queue: Queue, command: Command, database: Path) -> None:
    queue.enqueue("later", delay=3600)
    command("retry", "--status", "queued", "--type", "later").ok()
    assert row(database)["run_at"] <= now_text()


def test_a_queued_job_is_retried_once_although_it_is_due_at_another_time_then(queue: Queue, command: Command) -> None:
    queue.enqueue_many([("t", None, None, 0, delay) for delay in (0, 60, 3600)] * 400)
    assert command("retry", "--status", "queued").ok().out == "queued again: 1,200 jobs\n"


def test_archive_takes_the_dead_ones_and_an_undo_brings_them_back(
    mixed: Queue, command: Command, database: Path
) -> None:
    assert command("archive", "--type", "webhook", "--reason", "shop is closed", "--json").ok().json() == {
        "action": "archive", "dry_run": False, "filter": {"status": "dead", "type": "webhook"},
        "jobs": 4, "ids": [18, 14, 6, 2], "left": [],
    }  # fmt: skip
    archived = rows(database, "SELECT * FROM jobs_archive WHERE id = 2")[0]
    assert archived["archive_reason"] == "shop is closed" and archived["archived_by"].endswith(
        f"@{os.uname().nodename}"
    )
    command("retry", "2", "6", "14", "18").ok()
    assert set(statuses(database)["queued"]) >= {2, 6, 14, 18}


def test_a_dry_run_counts_and_shows_examples_and_changes_nothing(
    mixed: Queue, command: Command, database: Path
) -> None:
    mixed.enqueue_many([("t", None)] * 30)
    before = rows(database)
    said = command("archive", "--status", "queued", "--type", "t", "--dry-run").ok().out
    assert said.startswith("30 jobs would be archived, such as\n") and said.count("\n") == 12
    found = command("retry", "--type", "webhook", "--dry-run", "--json").ok().json()
    assert (found["jobs"], found["dry_run"], len(found["examples"])) == (4, True, 4)
    by_id = command("purge", "1", "2", "3", "4", "99", "--dry-run", "--json").ok().json()
    assert (by_id["jobs"], sorted(each["id"] for each in by_id["examples"])) == (3, [1, 2, 3])
    assert command("archive", "3", "4", "--dry-run").ok().out.startswith("1 job would be archived:\n")  # 3 is there
    assert rows(database) == before and command("audit", "--json").ok().json() == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["retry"], ["--all-dead", "--status dead"]),
        (["retry", "1", "--type", "t"], ["ids"]),
        (["retry", "1", "--all-dead"], ["--all-dead"]),
        (["retry", "--all-dead", "--status", "queued"], ["--all-dead", "--status"]),
        (["retry", "--status", "done"], ["'done'", "archive"]),
        (["archive", "--status", "running"], ["'running'"]),
        (["archive", "--status", "archive"], ["'archive'"]),
        (["purge", "--status", "queued", "--older", "1d"], ["'queued'"]),
        (["purge", "--yes"], ["--status"]),
        (["purge", "--type", "t", "--yes"], ["--status"]),
        (["purge", "--status", "done", "--yes"], ["--older 30d"]),
        (["purge", "--status", "done", "--older", "1d"], ["--yes", "--dry-run"]),
        (["purge", "1"], ["--yes", "--dry-run"]),
        (["purge", "--keep", "done=soon", "--yes"], ["'soon'"]),
        (["purge", "--keep", "done=1d", "--status", "done", "--yes"], ["--keep"]),
    ],
    ids=" ".join,
)
def test_what_would_be_a_slip_is_refused_and_changes_nothing(
    arguments: list[str], words: list[str], mixed: Queue, command: Command, database: Path
) -> None:
    command(*arguments).refused(2, *words)
    assert statuses(database) == BEFORE


def test_many_jobs_are_told_by_their_number(queue: Queue, command: Command, database: Path) -> None:
    queue.enqueue_many([("t", None)] * 1_234)
    assert command("archive", "--status", "queued", "--type", "t").ok().out == "archived: 1,234 jobs\n"
    assert command("retry", "--status", "archive", "--type", "t").ok().out == "queued again: 1,234 jobs\n"
    assert len(rows(database, SELECT_IDS)) == 1_234


def test_a_retry_wakes_an_idle_pool(queue: Queue, command: Command, tmp_path: Path, pool) -> None:  # type: ignore[no-untyped-def]
    queue.enqueue("note", {"path": str(tmp_path / "out"), "line": "done"}, delay=3600)
    pool().ready()
    command("retry", "1").ok()
    eventually((tmp_path / "out").exists, what="the job that was waiting for an hour")


def test_a_job_that_changed_while_it_was_chosen_is_left_alone(
    store: Store, queue: Queue, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between finding the dead jobs and archiving them somebody retries one: it is queued and stays."""
    with stranger(database) as sql:
        sql.executemany("INSERT INTO jobs (type, payload, status) VALUES (?, '{}', 'dead')", [("t",)] * 3)
    real = mend.selection.walk

    def meanwhile(*arguments: object) -> Iterator[list[int]]:
        for ids in real(*arguments):  # type: ignore[arg-type]
            queue.retry(2)
            yield ids

    monkeypatch.setattr("pool.selection.walk", meanwhile)
    changed = mend.archive(store, Order(Selection(status="dead"), "me", now_text()))
    assert (changed.jobs, sorted(changed.ids), changed.left) == (2, [1, 3], [2])
    assert row(database, 2)["status"] == "queued"


def test_archived_jobs_whose_key_is_taken_again_stay_and_the_others_come_back(
    queue: Queue, command: Command, database: Path
) -> None:
    for key in ("a", "b"):
        queue.enqueue("t", key=key)
    command("archive", "--status", "queued", "--type", "t").ok()
    queue.enqueue("t", key="a")
    answer = command("retry", "--status", "archive", "--type", "t")
    assert answer.code == 1 and answer.out == "queued again: 2\nleft as they are (another job has its key now): 1\n"
    assert [each["id"] for each in rows(database, SELECT_IDS)] == [2, 3]


# purge


def test_purge_deletes_what_is_chosen_with_its_evidence(mixed: Queue, command: Command, database: Path) -> None:
    with stranger(database) as sql:
        insert = "INSERT INTO attempts (job_id, attempt, worker, ended_at, outcome) VALUES (?, 1, 'w', '', 'failed')"
        sql.executemany(insert, [(number,) for number in range(1, 21)])
    assert command("purge", "--status", "dead", "--older", "1d", "--yes").ok().out == "deleted: 2, 6, 10\n"
    assert command("purge", "--status", "archive", "--type", "webhook", "--older", "0s", "--yes").ok()
    found = statuses(database)
    assert (found["dead"], found["archive"], found["queued"]) == ([14, 18], [15], BEFORE["queued"])
    evidence = {each["job_id"] for each in rows(database, "SELECT job_id FROM attempts")}
    assert evidence == {*found["dead"], *found["archive"], *found["queued"], *found["done"]}


def test_purge_by_ids_leaves_what_waits_or_runs(mixed: Queue, command: Command, database: Path) -> None:
    answer = command("purge", "1", "2", "3", "4", "99", "--yes")
    assert answer.code == 1
    assert answer.out == "deleted: 1, 2, 3\nleft as they are (running or queued, or there is none): 4, 99\n"
    assert row(database, 4)["status"] == "queued"


def test_purge_by_rules_deletes_only_what_a_rule_names(mixed: Queue, command: Command, database: Path) -> None:
    found = command("purge", "--keep", "done=1d", "--keep", "report.done=never", "--dry-run", "--json").ok().json()
    assert (found["jobs"], found["by_type"]) == (2, [{"type": "webhook", "outcome": "done", "jobs": 2}])
    assert (
        "2 jobs would be deleted"
        in command("purge", "--keep", "done=1d", "--keep", "report.done=never", "--dry-run").ok().out
    )
    assert command("purge", "--keep", "done=1d", "--keep", "report.done=never", "--yes").ok().out == "deleted: 2 jobs\n"
    assert statuses(database) == {**BEFORE, "done": [5, 13, 17]}


# at a terminal


@contextlib.contextmanager
def at_a_terminal(folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The command with a terminal for its standard streams; its end of it to read and write."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "pool", *arguments],
        cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs, env=environment({"TERM": "xterm", "COLUMNS": "100"}),
    )  # fmt: skip
    os.close(theirs)
    try:
        yield process, ours
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        os.close(ours)


def read_until(fd: int, word: str) -> str:
    said = b""
    while word.encode() not in said:
        try:
            more = os.read(fd, 4096)
        except OSError:  # the other end is closed
            break
        said += more
    assert word.encode() in said, said
    return said.decode()


def rest_of(fd: int) -> str:
    said = b""
    with contextlib.suppress(OSError):
        while more := os.read(fd, 4096):
            said += more
    return said.decode()


@pytest.mark.parametrize(("answer", "code", "dead"), [("y", 0, []), ("n", 1, BEFORE["dead"]), ("", 1, BEFORE["dead"])])
def test_purge_asks_at_a_terminal(
    answer: str, code: int, dead: list[int], mixed: Queue, database: Path, tmp_path: Path
) -> None:
    with at_a_terminal(tmp_path, "purge", "--status", "dead", "--older", "0s") as (process, terminal):
        assert "Delete 5 jobs for good?" in read_until(terminal, "[y/N]")
        os.write(terminal, f"{answer}\n".encode())
        rest_of(terminal)
        assert process.wait(20) == code
    assert statuses(database).get("dead", []) == dead


def test_a_change_of_many_jobs_shows_how_far_it_is_at_a_terminal(queue: Queue, tmp_path: Path) -> None:
    queue.enqueue_many([("t", None)] * 5_000)
    with at_a_terminal(tmp_path, "archive", "--status", "queued", "--type", "t") as (process, terminal):
        said = rest_of(terminal)
        assert process.wait(20) == 0
    assert re.search(r"archived [\d,]+ of 5,000", said) and "archived: 5,000 jobs" in said


# the record


def test_each_change_of_a_person_is_on_record(mixed: Queue, command: Command) -> None:
    command("retry", "--type", "webhook", "--error", "503").ok()
    command("archive", "1", "2", "--reason", "tidy 🙂").ok()
    command("purge", "--status", "archive", "--older", "0s", "--yes").ok()
    command("purge", "--keep", "done=0s", "--yes").ok()
    lines = command("audit", "--json").ok().json()
    assert [(each["action"], each["jobs"], json.loads(each["filter"]), each["detail"]) for each in reversed(lines)] == [
        ("retry", 4, {"status": "dead", "type": "webhook", "error": "503"}, ""),
        ("archive", 2, {"ids": [1, 2]}, "tidy 🙂"),
        ("purge", 7, {"status": "archive", "older": 0.0}, ""),
        ("purge", 4, {}, "keep done=0s"),
    ]
    assert all(each["by"].endswith(f"@{os.uname().nodename}") and each["at"] <= now_text() for each in lines)
    said = command("audit", "--limit", "2").ok().out
    assert said.count("purge") == 2 and "retry" not in said
    assert command("audit", "--before", "2", "--json").ok().json()[0]["action"] == "retry"


def test_who_it_was_cannot_be_changed_by_the_environment(mixed: Queue, command: Command) -> None:
    command("retry", "2", env={"USER": "mallory", "LOGNAME": "mallory", "LNAME": "mallory"}).ok()
    assert "mallory" not in command("audit").ok().out


def test_under_sudo_the_caller_is_named_too(mixed: Queue, command: Command) -> None:
    command("retry", "2", env={"SUDO_USER": "anna"}).ok()
    assert ("(sudo by anna)@" in command("audit").ok().out) == (os.getuid() == 0)  # anyone else only claims it


def test_a_change_killed_on_its_way_is_on_record_as_far_as_it_came(
    queue: Queue, database: Path, tmp_path: Path
) -> None:
    queue.enqueue_many([("t", None)] * 30_000)
    arguments = [sys.executable, "-m", "pool", "archive", "--status", "queued", "--type", "t"]
    process = subprocess.Popen(arguments, cwd=tmp_path, stdout=subprocess.DEVNULL, env=environment())
    try:
        eventually(
            lambda: (
                rows(database, "SELECT jobs FROM audit")[0]["jobs"] > 500
                if rows(database, "SELECT 1 FROM audit")
                else 0
            )
        )
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    (line,) = rows(database, "SELECT * FROM audit")
    (archived,) = rows(database, "SELECT count(*) AS n FROM jobs_archive")
    assert line["jobs"] == archived["n"] > 0 and len(rows(database, SELECT_IDS)) + archived["n"] == 30_000


def test_an_interrupted_change_ends_with_a_word_and_what_is_done_stays_done(
    queue: Queue, database: Path, tmp_path: Path
) -> None:
    queue.enqueue_many([("t", None)] * 30_000)
    arguments = [sys.executable, "-m", "pool", "archive", "--status", "queued", "--type", "t"]
    process = subprocess.Popen(
        arguments, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    )
    eventually(lambda: rows(database, "SELECT * FROM audit"))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    (line,) = rows(database, "SELECT * FROM audit")
    (archived,) = rows(database, "SELECT count(*) AS n FROM jobs_archive")
    if process.returncode:  # it may have been done before the signal came
        assert (process.returncode, out, err) == (1, b"", b"\nerror: interrupted\n")
    assert line["jobs"] == archived["n"] > 0


# completion


COMPLETIONS = {
    "bash": "complete -o nosort -F _pool_completion pool",
    "zsh": "#compdef pool",
    "fish": "complete --no-files --command pool",
}


@pytest.mark.parametrize(("shell", "words"), COMPLETIONS.items(), ids=COMPLETIONS)
def test_each_shell_gets_its_completion(shell: str, words: str, command: Command) -> None:
    assert words in command("completion", shell).ok().out


def test_bash_completes_commands_and_options(command: Command, tmp_path: Path) -> None:
    (tmp_path / "complete.sh").write_text(command("completion", "bash").ok().out)
    script = (
        ". ./complete.sh; COMP_WORDS=(pool re); COMP_CWORD=1; _pool_completion pool re pool; echo ${COMPREPLY[@]}; "
        "COMPREPLY=(); COMP_WORDS=(pool retry --all-d); COMP_CWORD=2; _pool_completion pool --all-d retry; "
        "echo ${COMPREPLY[@]}"
    )
    bash = shutil.which("bash")
    assert bash is not None
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # where pip puts the command
    done = subprocess.run(
        [bash, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60, env=environment({"PATH": path})
    )
    first, second = done.stdout.splitlines()
    assert {"restore", "retry", "resume", "reload"} <= set(first.split()) and second.split() == ["--all-dead"], (
        done.stderr
    )


def test_help_shows_examples_for_each_command_of_care(command: Command) -> None:
    for name in ("list", "show", "retry", "archive", "purge", "backup", "restore", "doctor", "completion"):
        assert f"\n  pool {name} " in command(name, "--help").ok().out.replace(
            "\n  pool doctor\n", "\n  pool doctor \n"
        )
