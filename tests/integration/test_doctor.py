"""The doctor: each thing that is known to go wrong is found, told with what to do, and left as it is."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pool import Queue, process
from pool.clock import now_text, utc_text
from pool.doctor import Finding, Level, examine, files, machine
from pool.doctor.finding import Subject, size, span
from pool.doctor.machine import _cgroup
from pool.store import Store
from tests.conftest import Command, StartPool
from tests.support import environment, eventually, rows, stranger

VARIABLES = frozenset({"POOL_DB", "POOL_TOKEN"})
HOUR = 3600.0


def findings(
    database: Path, *, now: str = "", env: dict[str, str] | None = None, full: bool = False
) -> dict[str, Finding]:
    found = examine(str(database), now or now_text(), env or {}, VARIABLES, full=full)
    assert len({each.name for each in found}) == len(found)
    return {each.name: each for each in found}


def bad(found: dict[str, Finding]) -> dict[str, Finding]:
    return {name: each for name, each in found.items() if each.level != Level.OK}


def only_bad(found: dict[str, Finding], name: str, level: Level, *words: str) -> None:
    assert set(bad(found)) == {name}, bad(found)
    each = found[name]
    assert each.level == level and each.todo
    for word in words:
        assert word in each.what + each.todo, each


def ago(seconds: float) -> str:
    return utc_text(time.time() - seconds)


def put(database: Path, **columns: Any) -> None:
    """A row, whatever a stranger may store."""
    names = {"type": "t", "payload": "{}", **columns}
    with stranger(database) as sql:
        marks = ", ".join("?" * len(names))
        sql.execute(f"INSERT INTO jobs ({', '.join(names)}) VALUES ({marks})", list(names.values()))


def seen_in(folder: Path) -> dict[str, tuple[int, int, str]]:
    """Every file's size, time and content."""
    return {
        each.name: (each.stat().st_size, each.stat().st_mtime_ns, hashlib.sha256(each.read_bytes()).hexdigest())
        for each in folder.iterdir()
        if each.is_file()
    }


# all is well, and nothing is changed


def test_a_healthy_queue_has_no_finding(queue: Queue, database: Path) -> None:
    queue.enqueue("t", delay=60)
    found = findings(database)
    assert bad(found) == {} and len(found) > 15
    assert bad(findings(database, full=True)) == {}
    queue.close()
    assert bad(findings(database)) == {}


@pytest.mark.parametrize("state", ["closed", "open", "killed", "damaged", "no database", "restored"])
def test_the_doctor_changes_nothing(state: str, database: Path, tmp_path: Path) -> None:
    if state == "no database":
        database.write_text("only a text")
    else:
        queue = Queue(database)
        queue.enqueue_many([("t", {"text": "x" * 500})] * 100)
        if state == "killed":  # its log and shared memory are there, and nobody has them open
            kept = {suffix: Path(f"{database}{suffix}").read_bytes() for suffix in ("", "-wal", "-shm")}
            queue.close()
            for suffix, content in kept.items():
                Path(f"{database}{suffix}").write_bytes(content)
        elif state != "open":
            queue.close()
    if state == "damaged":
        with open(database, "r+b") as file:
            file.seek(20_000)
            file.write(os.urandom(20_000))
    if state == "restored":
        with stranger(database) as sql:
            sql.execute("PRAGMA journal_mode = DELETE")
    before = seen_in(tmp_path)
    findings(database, full=True)
    after = seen_in(tmp_path)
    for name in before.keys() | after.keys():
        if not name.endswith("-shm"):  # shared memory: read marks, no data; it is made anew by whoever comes first
            assert before.get(name) == after.get(name), name
    assert before.keys() == after.keys()
    if state == "open":
        queue.close()


def test_it_looks_at_a_queue_at_work(database: Path, pool: StartPool, queue: Queue, tmp_path: Path) -> None:
    queue.enqueue("hold", {"started": str(tmp_path / "started"), "gate": str(tmp_path / "gate")})
    running = pool().ready()
    eventually((tmp_path / "started").exists)
    found = findings(database)
    assert bad(found) == {}
    assert f"pid {running.pid}" in found["pools"].what and "1 running" in found["leases"].what
    (tmp_path / "gate").touch()


# what cannot be opened


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "does not exist"),
        (b"only a text, no database", "not a database"),
        (b"SQLite format 3\0" + bytes(range(200)) * 30, "cannot be read"),
    ],
)
def test_what_is_no_database_fails_and_says_why(content: bytes | None, words: str, database: Path) -> None:
    if content is not None:
        database.write_bytes(content)
    failed = [each for each in findings(database).values() if each.level == Level.FAIL]
    assert failed and any(words in each.what for each in failed) and all(each.todo for each in failed)


def test_a_folder_and_a_missing_folder_are_named(tmp_path: Path) -> None:
    assert findings(tmp_path)["file"].what == f"{tmp_path} is not a file"
    assert "does not exist" in findings(tmp_path / "no/jobs.db")["file"].what


def test_an_empty_file_and_a_stranger_s_database_have_no_schema(database: Path) -> None:
    database.touch()
    assert findings(database)["schema"].level == Level.FAIL
    with stranger(database) as sql:
        sql.execute("CREATE TABLE posts (id INTEGER)")
    found = findings(database)
    assert found["schema"].level == Level.FAIL and "no jobpool tables" in found["schema"].what


def test_damage_is_found(queue: Queue, database: Path) -> None:
    queue.enqueue_many([("t", {"text": "x" * 500})] * 200)
    queue.close()
    with open(database, "r+b") as file:
        file.seek(60_000)
        file.write(os.urandom(30_000))
    failed = {name for name, each in findings(database).items() if each.level == Level.FAIL}
    assert failed & {"open", "integrity"}


def test_full_finds_an_index_that_disagrees_with_its_table(queue: Queue, database: Path) -> None:
    queue.enqueue_many([("t", None)] * 3)
    with stranger(database) as sql:  # the index of types forgets what it held
        sql.execute("PRAGMA writable_schema = ON")
        sql.execute(
            "UPDATE sqlite_schema SET sql = 'CREATE INDEX jobs_type ON jobs (payload)' WHERE name = 'jobs_type'"
        )
    queue.close()
    assert findings(database)["integrity"].level == Level.OK
    found = findings(database, full=True)["integrity"]
    assert found.level == Level.FAIL and "jobs_type" in found.what


# the schema


def test_a_newer_schema_fails_and_an_older_one_is_told(queue: Queue, database: Path) -> None:
    for version, level in ((99, Level.FAIL), (1, Level.WARN)):
        with stranger(database) as sql:
            sql.execute("UPDATE jobpool_schema SET version = ?", (version,))
        found = findings(database)["schema"]
        assert found.level == level and str(version) in found.what


def test_a_lost_index_is_told_with_the_statement_that_makes_it(queue: Queue, database: Path) -> None:
    with stranger(database) as sql:
        sql.execute("DROP INDEX jobs_claim")
    found = findings(database)
    assert set(bad(found)) == {"schema", "plans"}
    assert found["schema"].level == Level.WARN and "CREATE INDEX jobs_claim" in found["schema"].todo
    with stranger(database) as sql:
        sql.execute(found["schema"].todo.removeprefix("run in SQLite: "))
    assert bad(findings(database)) == {}


def test_a_lost_column_fails(queue: Queue, database: Path) -> None:
    with stranger(database) as sql:
        sql.execute("ALTER TABLE jobs DROP COLUMN result")
    found = findings(database)["schema"]
    assert found.level == Level.FAIL and "jobs lacks result" in found.what


def test_a_file_half_empty_is_told(queue: Queue, database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pool.doctor.database.FREE_PAGES", 10)
    queue.enqueue_many([("t", {"text": "x" * 500})] * 500)
    with stranger(database) as sql:
        sql.execute("DELETE FROM jobs")
    only_bad(findings(database), "free pages", Level.WARN, "VACUUM")


# the jobs


def test_a_clock_that_was_set_back_is_told(queue: Queue, database: Path) -> None:
    queue.enqueue("t", delay=10 * HOUR)
    only_bad(findings(database, now=ago(3 * HOUR)), "clock", Level.WARN, "3 h ahead", "NTP")


@pytest.mark.parametrize(
    "text", ["2030-01-01T12:00:00", "2030-01-01 12:00", "soon", "1800000000", "", "2030-01-01 12:00:00Z"]
)
def test_a_time_that_sorts_as_another_is_told(text: str, queue: Queue, database: Path) -> None:
    put(database, run_at=text)
    found = bad(findings(database))
    assert "times" in found and "1 (" in found["times"].what and "YYYY-MM-DD" in found["times"].todo


def test_a_time_in_a_year_that_nobody_meant_is_told(queue: Queue, database: Path) -> None:
    queue.enqueue("t", delay=60_000 * 1_000)
    only_bad(findings(database), "times", Level.WARN, "more than a year", "milliseconds")


def test_a_running_job_that_nobody_renews_is_told(queue: Queue, database: Path) -> None:
    put(database, status="running", locked_by="go-worker", locked_at=ago(HOUR), attempts=1)
    only_bad(findings(database), "leases", Level.WARN, "1 running", "go-worker", "pool run")


def test_a_running_job_of_a_dead_worker_is_told_at_once(
    database: Path, pool: StartPool, queue: Queue, tmp_path: Path
) -> None:
    queue.enqueue("hold", {"started": str(tmp_path / "started"), "gate": str(tmp_path / "gate")})
    killed = pool().ready()
    eventually((tmp_path / "started").exists)
    killed.signal(signal.SIGKILL)
    killed.wait()
    eventually(lambda: not killed.children())
    found = eventually(lambda: f if "leases" in bad(f := findings(database)) else None)
    assert set(bad(found)) == {"leases", "pools"}
    assert "dead workers" in found["leases"].what and f"pid {killed.pid}" in found["pools"].what


def test_due_jobs_that_nobody_works_on_are_told(queue: Queue, database: Path) -> None:
    queue.enqueue("t")
    only_bad(findings(database), "pools", Level.WARN, "1 jobs are due", "pool run")


def test_a_backlog_of_hours_is_told(queue: Queue, database: Path) -> None:
    put(database, run_at=ago(5 * HOUR))
    found = bad(findings(database))
    assert set(found) == {"pools", "backlog"} and "5 h" in found["backlog"].what


def test_a_pause_is_told_with_who_and_why(queue: Queue, database: Path, command: Command) -> None:
    command("pause", "--reason", "moving house").ok()
    only_bad(findings(database), "pools", Level.WARN, "moving house", "pool resume")


def living_pool(database: Path, report: dict[str, Any]) -> None:
    me = process.this_process()
    with contextlib.closing(Store.open(str(database))) as store:
        bound = {**me._asdict(), "state": "running", "target": 1, "now": now_text(), "exclusive": False}
        store.change("register_pool", **bound)
        store.connection.execute("UPDATE pools SET report = ?", (json.dumps(report),))


def test_a_type_that_no_living_pool_handles_is_told(queue: Queue, database: Path) -> None:
    queue.enqueue("handled")
    queue.enqueue("tpyo")
    living_pool(database, {"types": ["handled"]})
    only_bad(findings(database), "types", Level.WARN, "'tpyo'", "--handlers")


def test_a_real_pool_tells_its_types_and_what_was_probably_meant(
    queue: Queue, database: Path, pool: StartPool, command: Command
) -> None:
    queue.enqueue("note", {"path": "x"}, delay=HOUR)
    queue.enqueue("ehco", delay=HOUR)
    queue.enqueue("unlike anything", delay=HOUR)
    running = pool(workers=2, handlers="").ready(2)

    def types() -> list[str]:
        return json.loads(rows(database, "SELECT report FROM pools")[0]["report"]).get("types") or []

    told = eventually(types)
    assert {"note", "hold", "fail", "echo"} <= set(told) and told == sorted(set(told))
    finding = findings(database)["types"]
    assert finding.level == Level.WARN and "'ehco', 'unlike anything'" in finding.what
    assert "did you mean 'echo' instead of 'ehco'?" in finding.todo and "--handlers" in finding.todo
    (database.parent / "tasks.py").open("a").write("\n\n@handler('ehco')\ndef ehco():\n    pass\n")
    running.signal(signal.SIGHUP)
    eventually(lambda: "ehco" in types(), what="the types after a reload")
    assert findings(database)["types"].what.endswith("handles: 'unlike anything'")
    command("cancel", "--db", str(database), "3").ok()
    assert findings(database)["types"].level == Level.OK


def test_jobs_that_failed_for_want_of_a_handler_are_told(queue: Queue, database: Path, pool: StartPool) -> None:
    queue.enqueue("tpyo")
    pool().ready()
    found = eventually(lambda: f if "types" in bad(f := findings(database)) else None)
    assert "'tpyo' (1)" in found["types"].what


# the files


def test_a_large_log_is_told_with_who_reads_it(queue: Queue, database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "WAL_WARNING_BYTES", 100_000)
    script = (
        "import sys, sqlite3; c = sqlite3.connect(sys.argv[1], isolation_level=None); c.execute('BEGIN'); "
        "print(c.execute('SELECT count(*) FROM jobs').fetchone(), flush=True); sys.stdin.readline()"
    )
    queue.enqueue("t", delay=60)
    with subprocess.Popen(
        [sys.executable, "-c", script, str(database)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as reader:
        assert reader.stdout is not None
        reader.stdout.readline()
        queue.enqueue_many([("t", {"text": "x" * 500}, None, 0, 60)] * 1_000)
        only_bad(findings(database), "log", Level.WARN, f"process {reader.pid}")
        monkeypatch.setattr(files, "WAL_ALARM_BYTES", 200_000)
        only_bad(findings(database), "log", Level.FAIL, f"process {reader.pid}")
        reader.communicate("\n")
    only_bad(findings(database), "log", Level.FAIL, "pool run")


def as_another(database: Path) -> dict[str, Any]:
    """What the doctor says to a user whose files these are not; as any user but root."""
    script = (
        "import os, sys, json; from pool.doctor import examine; from pool.clock import now_text\n"
        "import pool.cli\n"
        "if os.getuid() == 0: os.setgroups([]); os.setgid(54321); os.setuid(54321)\n"
        "print(json.dumps([f._asdict() for f in examine(sys.argv[1], now_text(), {}, frozenset())]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(database)], capture_output=True, text=True, check=True, env=environment()
    )
    return {each["name"]: each for each in json.loads(done.stdout)}


@pytest.fixture
def open_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder that any user may write in; its parents, too, can be entered."""
    changed = []
    for parent in (tmp_path, *tmp_path.parents):
        if parent.stat().st_uid == os.getuid() and parent.stat().st_mode & 0o711 != 0o711:
            changed.append((parent, parent.stat().st_mode))
            parent.chmod(0o711)
    tmp_path.chmod(0o777)
    yield tmp_path
    for parent, mode in changed:
        parent.chmod(mode)


def test_a_file_that_this_user_may_not_use_is_named_with_its_owner(open_folder: Path, database: Path) -> None:
    with Queue(database) as queue:
        queue.enqueue("t")
        for suffix in ("", "-wal", "-shm"):
            os.chmod(f"{database}{suffix}", 0o400 if os.getuid() == 0 else 0o000)
        found = as_another(database)["permissions"]
    assert found["level"] == "fail" and str(database) in found["what"] and "mode 0" in found["what"]


def test_files_of_two_owners_are_told(queue: Queue, database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue.enqueue("t", delay=60)
    real = os.stat

    def stat(path: Any, **more: Any) -> Any:
        found = real(path, **more)
        if not str(path).endswith("-shm"):
            return found
        return os.stat_result((*found[:4], 12_345, *found[5:]))

    monkeypatch.setattr(files.os, "stat", stat)
    found = files.permissions(Subject(str(database), now_text(), {}, VARIABLES, False))
    assert found.level == Level.WARN and "jobs.db-shm of uid 12345" in found.what


@pytest.mark.parametrize(
    ("kind", "level"),
    [
        ("ext4", Level.OK),
        ("btrfs", Level.OK),
        ("nfs4", Level.FAIL),
        ("cifs", Level.FAIL),
        ("fuse.sshfs", Level.FAIL),
        ("9p", Level.WARN),
        ("virtiofs", Level.WARN),
        ("tmpfs", Level.WARN),
        ("overlay", Level.WARN),
        ("fuse.rclone", Level.WARN),
    ],
)
def test_each_file_system_is_judged(kind: str, level: Level, monkeypatch: pytest.MonkeyPatch, database: Path) -> None:
    monkeypatch.setattr(files, "mount_of", lambda folder: ("/data", kind))
    found = files.file_system(Subject(str(database), now_text(), {}, VARIABLES, False))
    assert found.level == level and kind in found.what


def test_the_innermost_and_latest_mount_counts(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "1 0 8:1 / / rw - ext4 /dev/sda rw\n"
        "2 1 0:50 / /srv rw,relatime shared:1 - nfs4 host:/srv rw\n"
        "3 2 0:51 / /srv/with\\040a\\040space rw - tmpfs tmpfs rw\n"
        "4 1 0:52 / /srv rw - xfs /dev/sdb rw\n"
    )
    for folder, expected in (
        ("/srv/x", ("/srv", "xfs")),
        ("/srv", ("/srv", "xfs")),
        ("/srvx", ("/", "ext4")),
        ("/srv/with a space/deep", ("/srv/with a space", "tmpfs")),
    ):
        assert files.mount_of(folder, str(mounts)) == expected


@pytest.mark.parametrize(
    ("free", "inodes", "level"),
    [(1 << 20, 9_999, Level.FAIL), (100 << 20, 9_999, Level.WARN), (1 << 30, 9, Level.WARN)],
)
def test_little_space_is_told(
    free: int, inodes: int, level: Level, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.statvfs

    def statvfs(path: str) -> os.statvfs_result:
        found = list(real(path))
        found[0] = found[1] = 1
        found[4], found[5], found[7] = free, 10_000, inodes
        return os.statvfs_result(found)

    monkeypatch.setattr(files.os, "statvfs", statvfs)
    found = files.space(Subject(str(database), now_text(), {}, VARIABLES, False))
    assert found.level == level and found.todo


@pytest.mark.parametrize(
    ("version", "race"),
    [
        ((3, 40, 1), True), ((3, 44, 5), True), ((3, 44, 6), False), ((3, 45, 0), True), ((3, 50, 6), True),
        ((3, 50, 7), False), ((3, 51, 2), True), ((3, 51, 3), False), ((3, 52, 0), False), ((3, 6, 23), False),
    ],
)  # fmt: skip
def test_the_libraries_with_the_checkpoint_race_are_known(version: tuple[int, ...], race: bool) -> None:
    assert files.has_reset_race(version) == race


def test_an_old_library_fails(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))
    assert files.library(Subject(str(database), "", {}, VARIABLES, False)).level == Level.FAIL


# the machine


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"POOL_BD": "x"}, "did you mean POOL_DB?"),
        ({"POOL_WORKERS": "4"}, "known are POOL_DB, POOL_TOKEN"),
        ({"JOBPOOL_FAULTS": "claim=1"}, "on purpose"),
    ],
)
def test_a_variable_that_means_nothing_is_told(env: dict[str, str], words: str, queue: Queue, database: Path) -> None:
    only_bad(findings(database, env=env), "environment", Level.WARN, words)


def test_variables_of_others_are_not_looked_at(queue: Queue, database: Path) -> None:
    found = findings(database, env={"POOL_DB": "x.db", "POOLSIDE": "1", "PATH": "/bin"})
    assert bad(found) == {} and found["environment"].what == "POOL_DB=x.db"


@pytest.mark.parametrize(
    ("which", "value", "words"),
    [("RLIMIT_NOFILE", 64, "ulimit -n"), ("RLIMIT_NPROC", 10, "ulimit -u"), ("RLIMIT_AS", 128 << 20, "memory")],
)
def test_a_tight_limit_is_told(which: str, value: int, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = resource.getrlimit
    monkeypatch.setattr(
        machine.resource,
        "getrlimit",
        lambda asked: (value, value) if asked == getattr(resource, which) else real(asked),
    )
    found = machine.limits(Subject("", "", {}, VARIABLES, False))
    assert found.level == Level.WARN and words in found.todo


def test_the_least_limit_of_a_cgroup_and_those_above_it_counts(tmp_path: Path) -> None:
    for path, content in (("memory.max", "max"), ("a/memory.max", "1000"), ("a/b/memory.max", "5000")):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content + "\n")
    (tmp_path / "membership").write_text("0::/a/b\n")
    assert _cgroup("memory", "memory.max", root=str(tmp_path), membership=str(tmp_path / "membership")) == 1000
    (tmp_path / "memory/x").mkdir(parents=True)
    (tmp_path / "memory/x/memory.limit_in_bytes").write_text("700")
    (tmp_path / "membership").write_text("4:memory:/x\n3:cpu:/y\n0::/a/b\n")
    names = ("memory.max", "memory.limit_in_bytes")
    assert _cgroup("memory", *names, root=str(tmp_path), membership=str(tmp_path / "membership")) == 700


def test_a_check_that_cannot_tell_says_so_and_stops_no_other(
    queue: Queue, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(path: str) -> Any:
        raise PermissionError(13, "hidden", "/proc/x")

    monkeypatch.setattr(files.os, "statvfs", broken)
    only_bad(findings(database), "space", Level.WARN, "cannot tell", "/proc/x")


def test_a_stranger_s_odd_rows_end_no_check(queue: Queue, database: Path) -> None:
    with stranger(database) as sql:
        for value in ("CAST(x'ff' AS TEXT)", "x'00'", "'soon'", "5"):
            columns = ("type", "payload", "run_at", "updated_at", "last_error")
            sql.execute(f"INSERT INTO jobs ({', '.join(columns)}) VALUES ({', '.join([value] * len(columns))})")
    assert len(findings(database)) == len(findings(database, full=True)) > 15


# as a command


def test_the_command_exits_1_only_when_something_fails(queue: Queue, database: Path, command: Command) -> None:
    queue.enqueue("t")
    said = command("doctor").ok().out
    assert "warn  pools" in said and "→ pool run" in said
    found = command("doctor", "--json").ok().json()
    assert {"name", "level", "what", "todo"} == set(found[0]) and {each["level"] for each in found} == {"ok", "warn"}
    with stranger(database) as sql:
        sql.execute("UPDATE jobpool_schema SET version = 99")
    answer = command("doctor", "--full")
    assert answer.code == 1 and "fail  schema" in answer.out and answer.err == ""
    assert command("doctor", "--db", "missing.db", "--json").code == 1


def test_the_command_knows_the_variables_of_all_commands(queue: Queue, command: Command) -> None:
    said = command("doctor", env={"POOL_BD": "x"}).ok().out
    assert "did you mean POOL_DB?" in said


@pytest.mark.parametrize(
    ("value", "words"),
    [(0, "0 bytes"), (9_999, "9,999 bytes"), (20_480, "20 kB"), (3 << 30, "3,072 MB"), (1 << 50, "1,048,576 GB")],
)
def test_sizes_are_told_in_words(value: int, words: str) -> None:
    assert size(value) == words


@pytest.mark.parametrize(("seconds", "words"), [(5, "5 s"), (600, "10 min"), (7_200, "2 h"), (864_000, "10 days")])
def test_spans_are_told_in_words(seconds: float, words: str) -> None:
    assert span(seconds) == words
