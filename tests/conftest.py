"""Fixtures: a database path, a store, a queue, the command line, and real pools that never outlive their test."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import hypothesis
import pytest

from pool import Queue
from pool.process import become_subreaper
from pool.store import Store
from pool.supervisor.strays import children_of
from tests.support import TASKS, Pool, Result, end_orphans, run_command

# These machines are shared: how long an example takes says nothing.
hypothesis.settings.register_profile("shared", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("shared")

# A shell that runs the tests in the background ignores Ctrl-C for them, and what they start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

StartPool = Callable[..., Pool]
Command = Callable[..., Result]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Where this test's queue lives; no file yet."""
    return tmp_path / "jobs.db"


@pytest.fixture
def store(database: Path) -> Iterator[Store]:
    """An open store on the database."""
    opened = Store.open(str(database))
    yield opened
    opened.close()


@pytest.fixture
def queue(database: Path) -> Iterator[Queue]:
    """An open queue on the database."""
    with Queue(database) as opened:
        yield opened


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """``command("status", "--json")``: the command line in the test's folder, as a user types it."""
    return partial(run_command, tmp_path)


@pytest.fixture
def tasks(tmp_path: Path) -> Callable[[str], Path]:
    """``tasks(source)``: writes the user's handler module, the common handlers followed by his own."""

    def write(source: str = "", name: str = "tasks") -> Path:
        path = tmp_path / f"{name}.py"
        path.write_text(TASKS + source)
        return path

    return write


@pytest.fixture
def pool(tmp_path: Path, database: Path, tasks: Callable[[str], Path]) -> Iterator[StartPool]:
    """``pool("--workers", "2", handlers=SOURCE)``: a real pool with the common handlers and those of the test.

    At the end each is killed, and none of its processes may be left.
    """
    become_subreaper()
    known = children_of(os.getpid())
    started: list[Pool] = []

    def start(
        *arguments: str,
        handlers: str | None = "",
        workers: int = 1,
        env: dict[str, str] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> Pool:
        options = ["--workers", str(workers)]
        if handlers is not None:
            tasks(handlers)
            options += ["--handlers", "tasks"]
        started.append(Pool(tmp_path, database, [*options, *arguments], env, pass_fds))
        return started[-1]

    yield start
    for each in started:
        each.end()
    end_orphans(known)
