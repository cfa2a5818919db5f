"""Processes die: workers under a job, supervisors above their workers, and what becomes of the jobs."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pool import Queue
from pool.clock import now_text
from pool.doorbell import Listener
from pool.errors import PoolError
from pool.job import AttemptOutcome, Evidence
from pool.maintenance import Death
from pool.process import become_subreaper
from pool.settings import PoolSettings
from pool.supervisor.child import Exit
from pool.supervisor.database import Database, Look
from pool.supervisor.fleet import Fleet
from pool.supervisor.loop import Loop
from pool.supervisor.orders import Orders
from tests.support import Pool, eventually, lines, row, rows, settled, state_of, stranger, title_of

StartPool = Callable[..., Pool]

DEATHS = """
@handler("kill", max_crashes=2)
def kill(number): os.kill(os.getpid(), number)

@handler("leave", max_crashes=2)
def leave(code): os._exit(code)

@handler("hang", timeout=0.3)
def hang():
    deepest_frame()

def deepest_frame():
    while True:
        try:
            time.sleep(600)
        except BaseException:
            pass
"""


def start_hold(queue: Queue, tmp_path: Path, **options: Any) -> Path:
    gate = tmp_path / "gate"
    queue.enqueue("hold", {"started": str(tmp_path / "started"), "gate": str(gate)}, **options)
    return gate


def started(tmp_path: Path, times: int = 1) -> int:
    return int(eventually(lambda: lines(tmp_path / "started")[times - 1 : times])[0])


def attempts(database: Path) -> list[dict[str, object]]:
    return rows(database, "SELECT * FROM attempts ORDER BY id")


@pytest.mark.parametrize("whole_group", [False, True])
def test_a_job_whose_worker_is_killed_runs_again_and_the_worker_is_replaced(
    whole_group: bool, pool: StartPool, queue: Queue, database: Path, tmp_path: Path
) -> None:
    gate = start_hold(queue, tmp_path)
    running = pool().ready()
    pid = started(tmp_path)
    os.killpg(pid, signal.SIGKILL) if whole_group else os.kill(pid, signal.SIGKILL)
    again = started(tmp_path, 2)
    assert again != pid and (row(database)["attempts"], row(database)["crashes"]) == (2, 1)
    assert row(database)["locked_by"].split(":")[1] == str(again)
    (attempt,) = attempts(database)
    assert (attempt["attempt"], attempt["outcome"], attempt["signal"]) == (1, "crashed", "SIGKILL")
    assert attempt["error"] == "killed by SIGKILL"
    gate.touch()
    eventually(lambda: settled(database, done=1))
    assert running.stop() == 0


def test_three_undisturbed_when_one_of_four_is_killed(
    pool: StartPool, queue: Queue, database: Path, tmp_path: Path
) -> None:
    for _ in range(4):
        gate = start_hold(queue, tmp_path)
    running = pool(workers=4).ready(4)
    eventually(lambda: len(lines(tmp_path / "started")) == 4)
    os.kill(started(tmp_path), signal.SIGKILL)
    started(tmp_path, 5)
    assert sorted(each["crashes"] for each in rows(database)) == [0, 0, 0, 1]
    gate.touch()
    eventually(lambda: settled(database, done=4))
    assert len(attempts(database)) == 1 and running.stop() == 0


@pytest.mark.parametrize(
    ("type", "payload", "code", "name", "error"),
    [
        ("kill", {"number": 9}, None, "SIGKILL", "killed by SIGKILL"),
        ("kill", {"number": 11}, None, "SIGSEGV", "killed by SIGSEGV"),
        ("leave", {"code": 3}, 3, None, "exit code 3"),
        ("leave", {"code": 0}, 0, None, "exit code 0 in the middle of a job"),
    ],
)
def test_a_job_that_kills_its_worker_is_dead_after_its_crash_budget_and_the_others_run(
    type: str,
    payload: object,
    code: int | None,
    name: str | None,
    error: str,
    pool: StartPool,
    queue: Queue,
    database: Path,
) -> None:
    queue.enqueue(type, payload)
    queue.enqueue_many([("echo", {"n": n}) for n in range(20)])
    running = pool(handlers=DEATHS)
    eventually(lambda: settled(database, done=20, dead=1))
    assert (row(database)["attempts"], row(database)["crashes"]) == (2, 2)
    assert row(database)["last_error"] == f"{error}; crash 2 of at most 2"
    eventually(lambda: f"job dead job=1 status=dead: {error}" in running.err)
    assert [(each["outcome"], each["exit_code"], each["signal"]) for each in attempts(database)] == [
        ("crashed", code, name)
    ] * 2
    if name == "SIGSEGV":
        assert "in kill" in str(attempts(database)[0]["stack"])
    assert running.stop() == 0


def test_a_crash_budget_outlives_the_pool(pool: StartPool, queue: Queue, database: Path, tmp_path: Path) -> None:
    start_hold(queue, tmp_path, max_attempts=20)
    for life in (1, 2, 3):
        running = pool()
        os.kill(started(tmp_path, life * 2 - 1 if life > 1 else 1), signal.SIGKILL)
        eventually(lambda life=life: row(database)["crashes"] == life)  # type: ignore[misc]
        if life < 3:
            started(tmp_path, life * 2)
        running.end()
    eventually(lambda: row(database)["status"] == "dead")


def test_a_job_over_its_time_is_ended_with_the_stack_of_where_it_hung(
    pool: StartPool, queue: Queue, database: Path
) -> None:
    queue.enqueue("hang", max_attempts=1)
    queue.enqueue("echo")
    running = pool(handlers=DEATHS)
    eventually(lambda: settled(database, done=1, dead=1))
    (attempt,) = attempts(database)
    assert (attempt["outcome"], attempt["signal"]) == ("timeout", "SIGKILL")
    assert "timeout after 0.3 s" in str(attempt["error"]) and "in deepest_frame" in str(attempt["stack"])
    assert running.stop() == 0


def test_a_worker_that_is_killed_while_idle_is_replaced_and_no_job_is_blamed(
    pool: StartPool, queue: Queue, database: Path
) -> None:
    running = pool().ready()
    (pid,) = running.workers().values()
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: running.workers() and pid not in running.workers().values())
    queue.enqueue("echo")
    eventually(lambda: settled(database, done=1))
    assert row(database)["crashes"] == 0 and attempts(database) == []


def test_a_job_held_by_an_idle_worker_at_its_death_is_given_back(pool: StartPool, queue: Queue, database: Path) -> None:
    """As if it died between the claim's commit and the job's first step."""
    running = pool().ready()
    (identity,) = (each["identity"] for each in rows(database, "SELECT identity FROM workers"))
    with stranger(database) as sql:
        sql.execute(
            """INSERT INTO jobs (type, payload, status, attempts, locked_by, locked_at)
            VALUES ('echo', '{}', 'running', 1, ?, CURRENT_TIMESTAMP)""",
            (identity,),
        )
    os.kill(int(identity.split(":")[1]), signal.SIGKILL)
    eventually(lambda: settled(database, done=1))
    assert (row(database)["attempts"], row(database)["crashes"]) == (1, 0)
    assert running.stop() == 0


# the supervisor


def test_no_worker_outlives_its_supervisor_and_the_next_pool_adopts_their_jobs(
    pool: StartPool, queue: Queue, database: Path, tmp_path: Path
) -> None:
    gate = start_hold(queue, tmp_path)
    first = pool(workers=2).ready(2)
    pid = started(tmp_path)
    workers = first.children()
    first.signal(signal.SIGKILL)
    first.wait()
    eventually(lambda: all(state_of(each) in ("", "Z") for each in workers), 5)
    assert row(database)["status"] == "running"
    second = pool().ready()
    assert started(tmp_path, 2) != pid
    assert (row(database)["attempts"], row(database)["crashes"], row(database)["interruptions"]) == (1, 0, 1)
    assert [each["outcome"] for each in attempts(database)] == ["interrupted"]
    assert "job adopted" in second.err
    gate.touch()
    eventually(lambda: settled(database, done=1))
    assert second.stop() == 0


def test_workers_die_with_their_supervisor_even_while_c_code_holds_the_gil(
    pool: StartPool, queue: Queue, database: Path, tmp_path: Path
) -> None:
    source = """
@handler("gil")
def gil(started):
    append(started, str(os.getpid()))
    sum(range(10**12))
"""
    queue.enqueue("gil", {"started": str(tmp_path / "started")})
    running = pool(handlers=source)
    pid = started(tmp_path)
    running.signal(signal.SIGKILL)
    running.wait()
    eventually(lambda: state_of(pid) in ("", "Z"), 5)


def test_another_pool_that_is_there_already_takes_over_from_a_dead_one(
    pool: StartPool, queue: Queue, database: Path, tmp_path: Path
) -> None:
    gate = start_hold(queue, tmp_path)
    first = pool().ready()
    started(tmp_path)
    second = pool().ready()
    first.end()
    started(tmp_path, 2)
    gate.touch()
    eventually(lambda: settled(database, done=1))
    assert row(database)["interruptions"] == 1 and second.stop() == 0


def test_a_stopped_tree_goes_on_where_it_was(pool: StartPool, queue: Queue, database: Path, tmp_path: Path) -> None:
    gate = start_hold(queue, tmp_path)
    running = pool(workers=2).ready(2)
    pid = started(tmp_path)
    everyone = [running.pid, *running.children()]
    for each in everyone:
        os.kill(each, signal.SIGSTOP)
    eventually(lambda: all(state_of(each) == "T" for each in everyone))
    for each in reversed(everyone):
        os.kill(each, signal.SIGCONT)
    queue.enqueue("echo")
    eventually(lambda: row(database, 2)["status"] == "done")
    gate.touch()
    eventually(lambda: settled(database, done=2))
    assert lines(tmp_path / "started") == [str(pid)] and running.stop() == 0


def test_workers_that_somebody_stopped_keep_no_job_waiting(
    pool: StartPool, queue: Queue, database: Path, tmp_path: Path
) -> None:
    running = pool(workers=6).ready(6)
    workers = set(running.workers().values())
    for number, living in enumerate([*workers, *workers], 1):
        eventually(lambda: all(title_of(pid).endswith(" idle") and state_of(pid) == "S" for pid in workers))
        for pid in workers - {living}:
            os.kill(pid, signal.SIGSTOP)
        queue.enqueue("note", {"path": str(tmp_path / "notes")})
        try:  # sooner than an idle worker looks by itself
            eventually(lambda number=number: settled(database, done=number), 3)  # type: ignore[misc]
        finally:
            for pid in workers - {living}:
                os.kill(pid, signal.SIGCONT)
    assert running.stop() == 0


# what jobs leave behind, and what they inherit


@pytest.mark.parametrize("how", ["sleep 600 & sleep 600 &", "setsid sleep 600 & setsid setsid sleep 600 &"])
def test_processes_a_job_leaves_behind_end_with_its_worker(
    how: str, pool: StartPool, queue: Queue, database: Path, tmp_path: Path
) -> None:
    source = """
@handler("litter")
def litter(how, pids):
    subprocess.run(["sh", "-c", how + ' sleep 0.1'])
    found = subprocess.run(["pgrep", "-x", "sleep"], capture_output=True, text=True).stdout.split()
    mark = ("JOBPOOL_WORKER=" + os.environ["JOBPOOL_WORKER"]).encode()
    for pid in found:
        try:
            if mark in open(f"/proc/{pid}/environ", "rb").read().split(b"\\0"):
                append(pids, pid)
        except OSError:
            pass
"""
    queue.enqueue("litter", {"how": how, "pids": str(tmp_path / "pids")})
    running = pool(handlers=source).ready()
    eventually(lambda: settled(database, done=1))
    left = [int(line) for line in lines(tmp_path / "pids")]
    assert len(left) == 2
    (worker,) = running.workers().values()
    os.kill(worker, signal.SIGKILL)
    eventually(lambda: all(state_of(pid) == "" for pid in left))


def test_a_job_runs_again_only_when_all_its_programs_started_is_gone(
    pool: StartPool, queue: Queue, database: Path, tmp_path: Path
) -> None:
    """A program in a session of its own, as whoever wants to end it with all its children starts it."""
    source = """
@handler("build")
def build(pids, alive):
    if os.path.exists(pids):
        for pid in open(pids).read().split():
            try:
                if ") Z " not in open(f"/proc/{pid}/stat").read():
                    append(alive, pid)
            except OSError:
                pass
        return
    shell = "setsid sh -c 'sleep 600 & echo $! >>$0; wait' $0 & echo $! >>$0; sleep 600 & echo $! >>$0; wait"
    subprocess.run(["sh", "-c", shell, pids], start_new_session=True)
"""
    pids = tmp_path / "pids"
    queue.enqueue("build", {"pids": str(pids), "alive": str(tmp_path / "alive")})
    running = pool(workers=2, handlers=source).ready(2)
    eventually(lambda: len(lines(pids)) == 3)
    os.kill(int(row(database)["locked_by"].split(":")[1]), signal.SIGKILL)
    eventually(lambda: settled(database, done=1))
    assert lines(tmp_path / "alive") == []
    assert running.stop() == 0


INHERIT = """
LOOK = '''
import json, os
fds = {}
for fd in os.listdir("/proc/self/fd"):
    try:
        fds[fd] = os.readlink("/proc/self/fd/" + fd)
    except OSError:
        pass  # the listing's own
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({"fds": fds, "blocked": int(status["SigBlk"], 16), "ignored": int(status["SigIgn"], 16)}))
'''

@handler("look")
def look():
    import json
    command = [sys.executable, "-I", "-c", LOOK]
    said = subprocess.run(command, capture_output=True, text=True, close_fds=False, check=True).stdout
    return {**json.loads(said), "modules": sorted(sys.modules), "path": sys.path, "cwd": os.getcwd()}
"""


def test_a_job_s_programs_inherit_nothing_of_ours(
    pool: StartPool, queue: Queue, database: Path, tmp_path: Path
) -> None:
    secret = os.open(tmp_path / "secret", os.O_CREAT | os.O_RDWR)
    former = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGALRM})
    try:
        running = pool(handlers=INHERIT, pass_fds=[secret])
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)
        os.close(secret)
    queue.enqueue("look")
    eventually(lambda: settled(database, done=1))
    found = json.loads(row(database)["result"])
    assert set(found["fds"]) == {"0", "1", "2"}, found["fds"]
    assert found["fds"]["0"] == "/dev/null"
    assert found["blocked"] == 0
    ignored = {number for number in range(1, 65) if found["ignored"] >> (number - 1) & 1}
    # Python ignores the two in the program that looks; glibc's posix_spawn does it to its own, 32 and 33.
    assert ignored <= {signal.SIGPIPE, signal.SIGXFSZ, 32, 33}
    (worker,) = running.children()
    assert str(tmp_path / "secret") not in [os.readlink(each) for each in Path(f"/proc/{worker}/fd").iterdir()]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_process_a_job_forks_ends_by_a_signal_like_any_other(
    number: signal.Signals, pool: StartPool, queue: Queue, database: Path
) -> None:
    """As ``multiprocessing.Process.terminate`` expects; a worker's own ways with signals are not inherited."""
    source = """
@handler("fork", timeout=10)
def fork(number):
    if (pid := os.fork()) == 0:
        time.sleep(600)
        os._exit(0)
    os.kill(pid, number)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""
    queue.enqueue("fork", {"number": number}, max_attempts=1)
    running = pool(handlers=source)
    eventually(lambda: row(database)["status"] in ("done", "dead"))
    assert row(database)["result"] == str(-number), row(database)["last_error"]
    assert running.stop() == 0


def test_a_worker_imports_nothing_of_the_command_line(
    pool: StartPool, queue: Queue, database: Path, tmp_path: Path
) -> None:
    queue.enqueue("look")
    pool(handlers=INHERIT)
    eventually(lambda: settled(database, done=1))
    found = json.loads(row(database)["result"])
    names = {name.partition(".")[0] for name in found["modules"]}
    assert not names & {"click", "rich", "psutil", "PIL", "importlib_metadata", "asyncio", "multiprocessing"}
    assert not {name for name in found["modules"] if name.startswith(("pool.cli", "pool.supervisor"))}
    assert found["cwd"] == str(tmp_path) and found["path"][0] == str(tmp_path)


# the database


@pytest.mark.parametrize("moment", ["claim", "settle"])
def test_a_database_that_another_locks_for_seconds_ends_nobody(
    moment: str, pool: StartPool, queue: Queue, database: Path, tmp_path: Path
) -> None:
    gate = start_hold(queue, tmp_path)
    if moment == "claim":
        gate.touch()
        with stranger(database) as sql:
            sql.execute("UPDATE jobs SET run_at = '9999-01-01'")
    running = pool().ready()
    (worker,) = running.workers().values()
    if moment == "settle":
        started(tmp_path)
    with stranger(database) as sql:
        if moment == "claim":
            sql.execute("UPDATE jobs SET run_at = '2020-01-01'")
        sql.execute("BEGIN IMMEDIATE")
        gate.touch()
        eventually(lambda: "locked" in running.err, what="a complaint about the lock")
        assert row(database)["status"] == ("queued" if moment == "claim" else "running")
        assert running.process.poll() is None and list(running.workers().values()) == [worker]
        sql.execute("ROLLBACK")
    eventually(lambda: settled(database, done=1))
    assert (row(database)["attempts"], row(database)["result"]) == (1, '"held"')
    assert len(lines(tmp_path / "started")) == 1 and list(running.workers().values()) == [worker]
    assert running.stop() == 0


def test_a_pool_starts_on_a_database_that_another_locks(pool: StartPool, queue: Queue, database: Path) -> None:
    queue.enqueue("echo")
    with stranger(database) as sql:
        sql.execute("BEGIN IMMEDIATE")
        running = pool()
        eventually(lambda: running.err or running.process.poll() is not None)
        assert running.process.poll() is None, running.err
        sql.execute("ROLLBACK")
    eventually(lambda: settled(database, done=1))


def test_a_pool_that_is_told_to_end_leaves_to_the_next_one_what_a_locked_database_refuses(
    pool: StartPool, queue: Queue, database: Path, tmp_path: Path
) -> None:
    gate = start_hold(queue, tmp_path)
    running = pool().ready()
    started(tmp_path)
    with stranger(database) as sql:
        sql.execute("BEGIN IMMEDIATE")
        os.kill(running.workers()[1], signal.SIGKILL)
        eventually(lambda: "locked" in running.err, what="a complaint about the lock")
        assert running.stop() == 0
        assert row(database)["status"] == "running"
        sql.execute("ROLLBACK")
    gate.touch()
    following = pool().ready()
    eventually(lambda: settled(database, done=1))
    assert following.stop() == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change its user")
def test_a_worker_whose_job_changed_its_user_ends_after_its_supervisor(
    pool: StartPool, queue: Queue, database: Path, tmp_path: Path
) -> None:
    source = """
@handler("nobody")
def nobody(path):
    os.seteuid(65534)
    os.seteuid(0)
    append(path, str(os.getpid()))
"""
    queue.enqueue("nobody", {"path": str(tmp_path / "ran")})
    running = pool(workers=1, handlers=source).ready()
    worker = int(eventually(lambda: lines(tmp_path / "ran"))[0])
    eventually(lambda: settled(database, done=1))
    running.process.kill()
    running.process.wait()
    queue.enqueue("nobody", {"path": str(tmp_path / "ran")})
    eventually(lambda: state_of(worker) in ("", "Z"), what="the worker's end")
    assert len(lines(tmp_path / "ran")) == 1


class Told:
    """A fleet's owner that only keeps what it is told."""

    def __init__(self) -> None:
        self.ready = 0
        self.deaths: list[Death] = []
        self.boot_failures: list[object] = []

    def worker_ready(self) -> None:
        self.ready += 1

    def worker_died(self, death: Death, await_end: Callable[[], None]) -> None:
        self.deaths.append(death)

    def boot_failed(self, exit: Exit, output: str) -> None:
        self.boot_failures.append((exit, output))


class Idle:
    """A database thread's owner without workers."""

    def has_idle(self) -> bool:
        return False

    def settled(self) -> int:
        return 0

    def look(self) -> Look:
        return Look(0, (), False)

    def wake(self, due: int) -> None: ...
    def leave_room(self, until: int) -> None: ...
    def obey(self, orders: Orders) -> None: ...
    def drained(self) -> None: ...
    def kept_from_writing(self, pid: int) -> None: ...
    def fail(self, error: PoolError) -> None: ...


def test_a_job_goes_back_only_once_what_it_started_has_ended(queue: Queue, database: Path) -> None:
    queue.enqueue("t")
    claimed = queue.claim("dead")
    assert claimed is not None
    evidence = Evidence(AttemptOutcome.CRASHED, "killed by SIGKILL", now_text())
    asked, gone, settled_too = threading.Event(), threading.Event(), threading.Event()

    def await_end() -> None:
        asked.set()
        assert gone.wait(20)

    thread = Database(PoolSettings(str(database)).checked(), Idle(), lambda action: action(), lambda event: None)
    thread.start()
    try:
        death = Death("dead", claimed.id, claimed.attempts, None, evidence)
        thread.settle_death(death, await_end, lambda ended: settled_too.set())
        assert asked.wait(20)
        assert row(database)["status"] == "running"
        gone.set()
        assert settled_too.wait(20)
        assert row(database)["status"] == "queued"
    finally:
        gone.set()
        thread.stop(20)


def test_a_worker_that_died_under_its_first_job_before_it_was_seen_ready_did_start_well(
    tasks: Callable[[str], Path], queue: Queue, database: Path, tmp_path: Path
) -> None:
    """Its death may be met first, on the way of another's; with the exit code of handlers that cannot be imported."""
    become_subreaper()
    tasks("""
@handler("three")
def three(): os._exit(3)
""")
    queue.enqueue("three")
    settings = PoolSettings(str(database), workers=1, modules=("tasks",), folder=str(tmp_path)).checked()
    told, loop, doorbell = Told(), Loop(), Listener(str(database))
    fleet = Fleet(settings, 1, doorbell.fileno(), loop, told, lambda event: None)
    try:
        fleet.scale(1)
        (first,) = fleet.children.values()
        eventually(lambda: state_of(first.pid) == "Z")
        fleet.reap_strangers()  # the loop was never turned: nobody has looked whether it was ready
        assert told.boot_failures == [] and told.ready == 1
        assert [death.evidence.exit_code for death in told.deaths] == [3]
    finally:
        fleet.drain(time.monotonic())
        fleet.end_all(time.monotonic())
        eventually(lambda: fleet.reap_strangers() or not fleet.children)
        fleet.close()
        loop.close()
        doorbell.close()


def test_a_death_the_database_refuses_to_settle_holds_up_no_other(
    pool: StartPool, queue: Queue, database: Path, tmp_path: Path
) -> None:
    for number in (1, 2):
        queue.enqueue("hold", {"started": str(tmp_path / f"started{number}"), "gate": str(tmp_path / "gate")})
    running = pool(workers=2).ready(2)
    pids = [int(eventually(lambda n=n: lines(tmp_path / f"started{n}"))[0]) for n in (1, 2)]  # type: ignore[misc]
    with stranger(database) as sql:
        sql.execute("""CREATE TRIGGER refuse BEFORE UPDATE ON jobs WHEN old.id = 1 AND new.status = 'queued'
            BEGIN SELECT raise(ABORT, 'not this one'); END""")
        os.kill(pids[0], signal.SIGKILL)
        eventually(lambda: "not this one" in running.err, what="a complaint about the trigger")
        os.kill(pids[1], signal.SIGKILL)
        eventually(lambda: row(database, 2)["crashes"] == 1)
        assert row(database, 1)["crashes"] == 0
        sql.execute("DROP TRIGGER refuse")
    eventually(lambda: row(database, 1)["crashes"] == 1)
    (tmp_path / "gate").touch()
    eventually(lambda: settled(database, done=2))


@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_a_database_that_vanishes_under_a_pool_stops_it_loudly(
    how: str, pool: StartPool, queue: Queue, database: Path
) -> None:
    running = pool().ready()
    if how == "replaced":
        with Queue(database.parent / "other.db") as other:
            other.enqueue("echo")
        os.rename(database.parent / "other.db", database)
    else:
        database.unlink()
    assert running.wait() == 5
    (error,) = [line for line in running.err.splitlines() if line.startswith("error: ")]
    assert str(database) in error
    if how == "replaced":
        assert settled(database, queued=1)


def test_a_handler_that_opens_and_closes_the_database_file_loses_nothing(
    pool: StartPool, queue: Queue, database: Path, tmp_path: Path
) -> None:
    """Closing any descriptor of the file drops a process's locks on it (POSIX); the supervisor's keep the log."""
    source = """
@handler("careless")
def careless(database):
    open(database, "rb").close()
"""
    running = pool(handlers=source, workers=2).ready(2)
    queue.enqueue_many([("careless", {"database": str(database)})] * 300)

    def all_done() -> bool:
        with stranger(database) as sql:  # an outside reader that comes and goes
            return bool(sql.execute("SELECT count(*) FROM jobs WHERE status = 'done'").fetchone()[0] == 300)

    eventually(all_done)
    assert running.stop() == 0
    assert settled(database, done=300)
    assert rows(database, "PRAGMA integrity_check") == [{"integrity_check": "ok"}]
