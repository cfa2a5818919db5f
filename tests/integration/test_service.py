"""A pool as a service: what it tells systemd, what it does as PID 1, and what its options make of its workers."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pool import Queue
from tests.conftest import StartPool
from tests.support import environment, eventually, lines, row, rows, state_of


@pytest.fixture
def manager(tmp_path: Path) -> socket.socket:
    """A service manager's side of sd_notify(3)."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listening.bind(str(tmp_path / "notify"))
    listening.settimeout(20)
    return listening


def told(manager: socket.socket, word: str) -> str:
    """The next message that contains a word."""
    while True:
        message = manager.recv(4096).decode()
        if word in message:
            return message


def test_systemd_hears_of_ready_status_reload_watchdog_and_stopping(
    manager: socket.socket, pool: StartPool, queue: Queue, tmp_path: Path
) -> None:
    with manager:
        running = pool(env={"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "400000"})
        told(manager, "READY=1")
        told(manager, "STATUS=running: 1 workers")
        told(manager, "WATCHDOG=1")
        told(manager, "WATCHDOG=1")
        running.signal(signal.SIGHUP)
        assert "MONOTONIC_USEC=" in told(manager, "RELOADING=1")
        told(manager, "READY=1")
        running.signal(signal.SIGTERM)
        told(manager, "STOPPING=1")
        assert running.wait() == 0


def test_a_job_cannot_speak_for_the_service(pool: StartPool, queue: Queue, tmp_path: Path) -> None:
    told_by = tmp_path / "environment"
    tell = """
@handler("tell")
def tell(path):
    append(path, str(sorted(name for name in os.environ if name in ("NOTIFY_SOCKET", "WATCHDOG_USEC"))))
"""
    queue.enqueue("tell", {"path": str(told_by)})
    pool(env={"NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": "30000000"}, handlers=tell)
    assert eventually(lambda: lines(told_by)) == ["[]"]


def can_unshare() -> bool:
    """Whether this user may make a pid namespace: as root, or with user namespaces allowed."""
    return not subprocess.run([*UNSHARE, "true"], capture_output=True).returncode


UNSHARE = ["unshare", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), "--pid", "--fork", "--mount-proc"]


def test_as_pid_1_it_reaps_what_jobs_leave_behind_and_drains_on_term(
    queue: Queue, database: Path, tmp_path: Path
) -> None:
    if not can_unshare():
        return  # this kernel lets only root make a pid namespace; there the test runs
    (tmp_path / "tasks.py").write_text(
        "import subprocess\nfrom pool import handler\n"
        "@handler('orphan')\n"
        "def orphan():\n    subprocess.run(['sh', '-c', '(sleep 0.05; true) & exit 0'], check=True)\n"
    )
    for _ in range(20):
        queue.enqueue("orphan")
    command = [*UNSHARE, sys.executable, "-m", "pool", "run", "--db", str(database), "--handlers", "tasks"]
    with open(tmp_path / "log", "wb") as log:
        outer = subprocess.Popen(
            [*command, "--workers", "1"],
            cwd=tmp_path,
            stdout=log,
            stderr=log,
            env=environment(),
            start_new_session=True,
        )
    try:
        eventually(lambda: {each["status"] for each in rows(database)} == {"done"})
        inner = rows(database, "SELECT * FROM pools")[0]
        assert inner["pid"] == 1
        (first,) = [int(pid) for pid in Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()]

        def zombies() -> list[int]:
            children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
            return [int(pid) for pid in children if state_of(int(pid)) == "Z"]

        eventually(lambda: not zombies())
        os.kill(first, signal.SIGTERM)
        assert outer.wait(20) == 0
    finally:
        if outer.poll() is None:
            os.killpg(outer.pid, signal.SIGKILL)
            outer.wait()


TELL = """
@handler("tell")
def tell(path):
    append(path, " ".join([str(os.nice(0)), str(len(os.sched_getaffinity(0))), os.environ["OMP_NUM_THREADS"]]))
"""


def test_niceness_a_processor_of_its_own_and_threads_are_what_was_asked_for(
    pool: StartPool, queue: Queue, tmp_path: Path
) -> None:
    queue.enqueue("tell", {"path": str(tmp_path / "told")})
    pool("--nice", "3", "--pin", "--threads", "2", handlers=TELL, env={"OMP_NUM_THREADS": ""})
    nice, processors, threads = eventually(lambda: lines(tmp_path / "told"))[0].split(" ")
    assert (int(nice), processors) == (os.nice(0) + 3, "1")
    assert threads in ("", "2")  # what the user has set goes first, even when it is empty


def test_threads_are_the_processors_divided_by_the_workers_and_the_user_s_own_setting_goes_first(
    pool: StartPool, queue: Queue, tmp_path: Path
) -> None:
    queue.enqueue("tell", {"path": str(tmp_path / "told")})
    pool(handlers=TELL, env={"OMP_NUM_THREADS": "7"})
    assert eventually(lambda: lines(tmp_path / "told"))[0].endswith(" 7")


def test_a_worker_is_replaced_after_so_many_jobs_and_all_run(
    pool: StartPool, queue: Queue, database: Path, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    who = """
@handler("who")
def who(path):
    append(path, str(os.getpid()))
"""
    for _ in range(10):
        queue.enqueue("who", {"path": str(pids)})
    running = pool("--drain", "--max-jobs", "2", handlers=who)
    assert running.wait() == 0
    assert len(lines(pids)) == 10
    assert len(set(lines(pids))) == 5


def test_a_worker_above_the_soft_limit_is_replaced_once_its_job_has_ended(
    pool: StartPool, queue: Queue, database: Path, tmp_path: Path
) -> None:
    leak = """
held = []
@handler("leak")
def leak(started, gate):
    held.append(bytearray(64 << 20))
    append(started, str(os.getpid()))
    while not os.path.exists(gate):
        time.sleep(0.01)
"""
    started, gate = tmp_path / "started", tmp_path / "gate"
    queue.enqueue("leak", {"started": str(started), "gate": str(gate)})
    running = pool("--soft-memory", "60M", handlers=leak)
    (pid,) = eventually(lambda: lines(started))
    eventually(lambda: "recycled" in running.err)
    assert row(database)["status"] == "running"
    gate.touch()
    eventually(lambda: row(database)["status"] == "done")
    eventually(lambda: running.workers().get(1) not in (None, int(pid)))
    assert row(database)["attempts"] == 1


def test_a_worker_is_replaced_when_it_grew_old(pool: StartPool, queue: Queue) -> None:
    running = pool("--max-age", "1s").ready()
    first = running.workers()[1]
    eventually(lambda: running.workers().get(1) not in (None, first))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_handler_may_use_multiprocessing(method: str, pool: StartPool, queue: Queue, database: Path) -> None:
    source = """
import multiprocessing

def double(number):
    return 2 * number

@handler("many", timeout=60)
def many(method):
    with multiprocessing.get_context(method).Pool(2) as workers:
        return workers.map(double, range(5))
"""
    queue.enqueue("many", {"method": method}, max_attempts=1)
    running = pool("--drain", handlers=source)
    assert running.wait(60) == 0, rows(database, "SELECT * FROM attempts")
    assert row(database)["result"] == "[0,2,4,6,8]"


def test_a_handler_may_use_asyncio_and_subprocesses(pool: StartPool, queue: Queue, database: Path) -> None:
    source = """
import asyncio

@handler("loop")
def loop():
    async def ask():
        process = await asyncio.create_subprocess_exec("echo", "hello", stdout=asyncio.subprocess.PIPE)
        out, _ = await process.communicate()
        return [process.returncode, out.decode().strip()]
    return asyncio.run(ask())
"""
    queue.enqueue("loop", max_attempts=1)
    assert pool("--drain", handlers=source).wait() == 0, rows(database, "SELECT * FROM attempts")
    assert row(database)["result"] == '[0,"hello"]'
