"""Processes that jobs started and left behind: whose they are, and their end.

A job runs again only when they are gone: what its former run started may still write to the same files.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection
from typing import NamedTuple

from pool import process

#: In a worker's environment and so in its children's: tells whose stray a process is.
MARK = "JOBPOOL_WORKER"
#: Seconds that jobs wait for what was killed to be gone; in an uninterruptible call of the kernel that may be never.
GONE_SECONDS = 1.0


class Stray(NamedTuple):
    """A process by its pid and its start, in clock ticks since boot, so that it cannot be mistaken for a later one."""

    pid: int
    start: int


def children_of(pid: int) -> set[int]:
    """Direct children of a process (proc(5), task/TID/children; SIGCHLD reaps them, so none vanishes unseen)."""
    found: set[int] = set()
    for task in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{task}/children") as file:
            found.update(map(int, file.read().split()))
    return found


def end_strays(known: Collection[int], living: Collection[int], tokens: Collection[str]) -> list[Stray]:
    """Kill what became our child when its own parent ended, with all that it started, except where a living worker's
    job may still use it.

    Args:
        known: pids of our own children that are not strays (workers not yet reaped, helpers).
        living: pids of living workers; a stray in such a worker's session is that job's own business.
        tokens: the living workers' tokens, which their jobs' processes carry in their environment.

    Returns:
        Those that were killed. They are reaped like any other child.
    """
    ended: dict[int, Stray] = {}
    spared = set(known)
    while True:
        # What is killed forks no more, and its children are its own until it is gone, then ours: in this order, none
        # is missed. Nobody but us can reap them, so a pid is not another's.
        below = {child for pid in ended for child in _children_if_any(pid)}
        fresh = (below | children_of(os.getpid())) - spared - ended.keys()
        if not fresh:
            return list(ended.values())
        for pid in fresh:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                start = process.start_time(pid)
                left = pid in below or (os.getsid(pid) not in living and mark_of(pid) not in tokens)
                if start is not None and left:
                    os.kill(pid, signal.SIGKILL)
                    ended[pid] = Stray(pid, start)
                    continue
            spared.add(pid)  # a zombie, or a living worker's business


def _children_if_any(pid: int) -> set[int]:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return children_of(pid)
    return set()


def end_marked(tokens: Collection[str]) -> list[Stray]:
    """Kill processes that jobs of dead workers left behind when their supervisor died too, and could not.

    The pidfd is opened before the mark is read, so what is killed is what was looked at.
    """
    ended = []
    for pid in [int(name) for name in os.listdir("/proc") if name.isdigit()] if tokens else []:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            pidfd = os.pidfd_open(pid)
            try:
                if mark_of(pid) in tokens and (start := process.start_time(pid)) is not None:
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                    ended.append(Stray(pid, start))
            finally:
                os.close(pidfd)
    return ended


def await_end(strays: Collection[Stray], group: int = 0) -> None:
    """Wait until those that were killed are gone, and the group of a worker that was, at most GONE_SECONDS."""
    give_up = time.monotonic() + GONE_SECONDS
    while time.monotonic() < give_up:
        with contextlib.suppress(OSError):  # no descriptor to be had: look again
            left = any(process.start_time(each.pid) == each.start for each in strays)
            if not left and not (group and _exists(group)):
                return
        time.sleep(0.001)


def _exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):  # none, or another user's by now
        return False
    return True


def mark_of(pid: int) -> str:
    """The token of the worker whose job started a process, empty for none."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
        for entry in file.read().split(b"\0"):
            name, _, value = entry.partition(b"=")
            if name.decode(errors="replace") == MARK:
                return value.decode(errors="replace")
    return ""
