"""What the tests share: a real pool in a process of its own, the command as a user types it, waiting on facts."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pool.supervisor.strays import children_of

T = TypeVar("T")

#: Seconds in which anything a test waits for must happen. No promise is measured with it.
PATIENCE = 20.0

#: The module most pools of these tests run. Handlers tell what they did through files.
TASKS = '''
import os, signal, subprocess, sys, time
from pool import Discard, Retry, Snooze, handler


def append(path, line):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(fd, (line + "\\n").encode())
    os.close(fd)


@handler("note")
def note(path, line=""):
    """Appends a line to a file."""
    append(path, line)


@handler("hold")
def hold(started, gate):
    """Says its pid, then runs until the file ``gate`` is there."""
    append(started, str(os.getpid()))
    while not os.path.exists(gate):
        time.sleep(0.01)
    return "held"


@handler("fail")
def fail(message="no luck"):
    raise RuntimeError(message)


@handler("echo")
def echo(**payload):
    return payload
'''


def eventually(fact: Callable[[], T], seconds: float = PATIENCE, what: str = "") -> T:
    """Wait until ``fact()`` is true and return it; an AssertionError or sqlite3 error inside it counts as not yet."""
    give_up = time.monotonic() + seconds
    last: object = None
    while True:
        try:
            if value := fact():
                return value
            last = value
        except (AssertionError, sqlite3.OperationalError, FileNotFoundError) as error:
            last = error
        if time.monotonic() > give_up:
            raise AssertionError(f"not within {seconds:g} s: {what or 'the fact waited for'} (last seen: {last!r})")
        time.sleep(0.01)


def lines(path: Path | str) -> list[str]:
    """The lines of a file, none when it is not there yet."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []


# the command line


@dataclass(frozen=True, slots=True)
class Result:
    """What a command said and how it exited."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """Its standard output as the one JSON document it must be."""
        return json.loads(self.out)

    def ok(self) -> Result:
        """Itself, when it worked and kept quiet about it."""
        assert (self.code, self.err) == (0, ""), self
        return self

    def refused(self, code: int, *words: str) -> Result:
        """Itself, when it was one ``error:`` line with these words, nothing else, and this exit code."""
        assert "Traceback" not in self.err, self.err
        assert re.fullmatch(r"error: [^\n]+\n", self.err), self
        assert self.code == code, self
        assert not self.out, self
        for word in words:
            assert word in self.err, f"{word!r} is not in {self.err!r}"
        return self


#: The command as another user, who may not be able to read this Python: everything is imported before.
_AS_USER = """
import importlib, os, sys
import pool.cli
from pool.cli.base import COMMANDS
for module in {*COMMANDS.values(), "pool.supervisor", "encodings.idna"}:
    importlib.import_module(module)
user = int(sys.argv[1])
os.setgroups([])
os.setgid(user)
os.setuid(user)
sys.argv = ["pool", *sys.argv[2:]]
sys.exit(pool.cli.main())
"""


def run_command(
    folder: Path, *arguments: str, stdin: str | bytes = "", env: dict[str, str] | None = None, user: int | None = None
) -> Result:
    """``python -m pool ...`` in a folder, as a user types it; ``user`` is who, and takes root."""
    start = ["-m", "pool"] if user is None else ["-c", _AS_USER, str(user)]
    data = stdin if isinstance(stdin, bytes) else stdin.encode()
    done = subprocess.run(
        [sys.executable, *start, *arguments],
        cwd=folder, input=data, capture_output=True, timeout=60, env=environment(env),
    )  # fmt: skip
    return Result(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))


def environment(more: dict[str, str] | None = None) -> dict[str, str]:
    """Ours without what would change a pool's behaviour."""
    kept = {name: value for name, value in os.environ.items() if name not in ("POOL_DB", "JOBPOOL_WORKER")}
    return {**kept, **(more or {})}


# pools


class Pool:
    """A ``pool run`` in a session of its own; its standard error is a file."""

    def __init__(
        self,
        folder: Path,
        database: Path,
        arguments: Sequence[str],
        env: dict[str, str] | None,
        pass_fds: Sequence[int],
    ) -> None:
        self.database = database
        number = len(list(folder.glob("pool-*.err")))
        self._out, self._err = folder / f"pool-{number}.out", folder / f"pool-{number}.err"
        with open(self._out, "wb") as out, open(self._err, "wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pool", "run", "--db", str(database), *arguments],
                cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True,
                env=environment(env), pass_fds=pass_fds,
            )  # fmt: skip
        self.pid = self.process.pid

    @property
    def out(self) -> str:
        """What it printed so far."""
        return "\n".join(lines(self._out))

    @property
    def err(self) -> str:
        """What it logged so far."""
        return "\n".join(lines(self._err))

    def workers(self) -> dict[int, int]:
        """Pids of the workers that are ready, by their number, as their titles tell."""
        found = {}
        for pid in self.children():
            if match := re.match(r"pool: worker (\d+) (?!boot)", title_of(pid)):
                found[int(match[1])] = pid
        return found

    def children(self) -> set[int]:
        """Pids of all the supervisor's children."""
        try:
            return children_of(self.pid)
        except FileNotFoundError:
            return set()

    def ready(self, count: int = 1) -> Pool:
        """Itself, once so many workers are ready."""

        def fact() -> bool:
            assert self.process.poll() is None, f"the pool ended: {self.err}"
            return len(self.workers()) >= count

        eventually(fact, what=f"{count} workers ready; the log: {self.err}")
        return self

    def signal(self, number: signal.Signals) -> None:
        """Send the supervisor a signal."""
        os.kill(self.pid, number)

    def wait(self, seconds: float = PATIENCE) -> int:
        """Its exit code, once it has ended by itself."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the pool did not end within {seconds:g} s; its log: {self.err}") from None

    def stop(self) -> int:
        """Its exit code after a TERM."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def end(self) -> None:
        """End it whatever it does. The test process is a subreaper, so what it leaves behind becomes our child."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def title_of(pid: int) -> str:
    """What ps shows of a process."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read().replace(b"\0", b" ").decode(errors="replace").strip()
    return ""


def state_of(pid: int) -> str:
    """The state letter of /proc/PID/stat, "" when there is no such process."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b") ")[2].decode().split()[0]
    return ""


def at_rest(pid: int) -> None:
    """Wait until a process has done nothing for a while."""

    def switches() -> str:
        return Path(f"/proc/{pid}/status").read_text().partition("voluntary_ctxt_switches")[2]

    def fact() -> bool:
        before = switches()
        time.sleep(0.3)
        return title_of(pid).endswith("idle") and switches() == before

    eventually(fact)


def orphans(known: set[int]) -> set[int]:
    """Living processes that became our children, beside those known; their zombies are reaped on the way."""
    living = set()
    for pid in children_of(os.getpid()) - known:
        try:
            if os.waitpid(pid, os.WNOHANG) == (0, 0):
                living.add(pid)
        except ChildProcessError:
            continue
    return living


def end_orphans(known: set[int], seconds: float = 5.0) -> None:
    """Assert that nothing of a pool outlives it; whatever does is killed first, by its pid."""
    try:
        eventually(lambda: not orphans(known), seconds)
    except AssertionError:
        left = {pid: title_of(pid) for pid in orphans(known)}
        for pid in left:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        raise AssertionError(f"processes outlived their pool: {left}") from None


# several processes at once


def race(count: int, script: str, *arguments: str) -> list[Result]:
    """Run a Python script in so many processes that all start at once: each calls ``go()`` to wait for the others."""
    head = 'import sys\ndef go():\n    print("ready", flush=True)\n    sys.stdin.readline()\n'
    command = [sys.executable, "-c", head + script, *arguments]
    pipes: dict[str, Any] = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
    }
    started = [subprocess.Popen(command, env=environment(), **pipes) for _ in range(count)]
    try:
        for each in started:
            assert each.stdout is not None
            assert each.stdout.readline() == "ready\n", each.communicate(timeout=60)
        for each in started:
            assert each.stdin is not None
            each.stdin.write("\n")
            each.stdin.flush()
        results = []
        for each in started:
            out, err = each.communicate(timeout=60)
            results.append(Result(each.returncode, out, err))
        return results
    finally:
        for each in started:
            if each.poll() is None:
                each.kill()
            each.communicate()


# the database


@contextlib.contextmanager
def stranger(database: Path | str) -> Iterator[sqlite3.Connection]:
    """A plain connection that knows nothing of us, in autocommit, closed at the end."""
    connection = sqlite3.connect(database, timeout=30, isolation_level=None)
    try:
        yield connection
    finally:
        connection.close()


def rows(database: Path | str, sql: str = "SELECT * FROM jobs ORDER BY id", *bound: object) -> list[dict[str, Any]]:
    """Rows as dictionaries, over a connection of their own."""
    with stranger(database) as connection:
        cursor = connection.execute(sql, bound)
        names = [each[0] for each in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def row(database: Path | str, job_id: int = 1) -> dict[str, Any]:
    """One job's row."""
    return rows(database, "SELECT * FROM jobs WHERE id = ?", job_id)[0]


def statuses(database: Path | str) -> dict[str, int]:
    """How many jobs there are in each status."""
    return {
        each["status"]: each["n"] for each in rows(database, "SELECT status, count(*) AS n FROM jobs GROUP BY status")
    }


def settled(database: Path | str, **counts: int) -> bool:
    """Whether the jobs stand exactly like that, such as ``done=3, dead=1``."""
    return statuses(database) == counts
