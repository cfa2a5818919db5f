"""What jobs leave behind is waited for once it is killed, and not for ever."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator

import pytest

from pool import process
from pool.supervisor.strays import GONE_SECONDS, Stray, await_end


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen(["sleep", "60"], start_new_session=True)
    yield started
    started.kill()
    started.wait()


def stray(sleeper: subprocess.Popen[bytes]) -> Stray:
    start = process.start_time(sleeper.pid)
    assert start is not None
    return Stray(sleeper.pid, start)


def test_a_killed_process_is_waited_for_until_it_is_gone(sleeper: subprocess.Popen[bytes]) -> None:
    left = stray(sleeper)
    sleeper.kill()
    began = time.monotonic()
    await_end([left])
    assert time.monotonic() - began < GONE_SECONDS
    assert process.start_time(left.pid) != left.start


def test_a_group_is_waited_for_until_its_last_member_is_reaped(sleeper: subprocess.Popen[bytes]) -> None:
    sleeper.kill()
    sleeper.wait()
    began = time.monotonic()
    await_end([], sleeper.pid)
    assert time.monotonic() - began < GONE_SECONDS


def test_one_that_does_not_go_holds_jobs_up_for_a_bounded_time(sleeper: subprocess.Popen[bytes]) -> None:
    began = time.monotonic()
    await_end([stray(sleeper)], sleeper.pid)
    assert time.monotonic() - began >= GONE_SECONDS


def test_a_later_process_with_the_same_pid_is_not_waited_for(sleeper: subprocess.Popen[bytes]) -> None:
    began = time.monotonic()
    await_end([stray(sleeper)._replace(start=1)])
    assert time.monotonic() - began < GONE_SECONDS
