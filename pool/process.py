"""Kernel facts about processes: who one is, whether it still lives, and what must hold after exec."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import os
import signal
import socket
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

log = logging.getLogger("pool")

PR_SET_PDEATHSIG = 1  # linux/prctl.h
PR_SET_CHILD_SUBREAPER = 36


class Process(NamedTuple):
    """What identifies a process on this kernel beyond its pid, which is reused.

    ``start_time`` is in clock ticks since boot (proc(5), field 22), which a step of the wall clock cannot move.
    ``machine`` outlives a reboot, ``boot_id`` does not; ``pid_namespace`` says who can see the pid at all.
    """

    host: str
    machine: str
    boot_id: str
    pid_namespace: str
    pid: int
    start_time: int


@functools.cache
def host() -> str:
    """The host name, with what would break ``hostname:pid:random`` taken out."""
    return socket.gethostname().replace(":", "-") or "localhost"


def mint_token() -> str:
    """The random part of an identity, one per process life."""
    return os.urandom(6).hex()


def identity(pid: int, token: str) -> str:
    """``hostname:pid:random``, the name a worker claims under."""
    return f"{host()}:{pid}:{token}"


def this_process() -> Process:
    """Who this process is."""
    pid = os.getpid()
    return Process(host(), _machine(), boot_id(), _pid_namespace(), pid, start_time(pid) or 0)


def of_row(row: Mapping[str, Any]) -> Process:
    """The process a row of the ``pools`` or ``workers`` table is about."""
    fields = (row["machine"], row["boot_id"], row["pid_namespace"], row["pid"], row["start_time"])
    return Process(row.get("host", ""), *fields)


def is_provably_dead(other: Process) -> bool:
    """True only when this kernel itself says that the process is gone.

    A process of another machine, or of a pid namespace we cannot see into, is never provably dead: the same
    host name or pid proves nothing (containers share both).
    """
    if other.boot_id != boot_id():
        # A hidden /proc/sys (ProcSubset=pid of systemd) leaves a boot without a name: that says nothing of another.
        return bool(other.boot_id and boot_id() and other.machine) and other.machine == _machine()
    if other.pid_namespace != _pid_namespace():
        return False
    seen = start_time(other.pid)
    if seen is None and _exists(other.pid):
        return False  # a hidden /proc (hidepid): it lives, and nothing says that it is not the same
    return seen != other.start_time


def start_time(pid: int) -> int | None:
    """Clock ticks from boot to the start of a process; None when there is none, or only its zombie."""
    stat = _stat(pid)
    return None if stat is None or stat[0] in ("Z", "X") else int(stat[19])


def is_stopped(pid: int) -> bool:
    """Whether the process is held by SIGSTOP or a tracer."""
    stat = _stat(pid)
    return stat is not None and stat[0] in ("T", "t")


@functools.cache
def boot_id() -> str:
    """The kernel's own name for this boot."""
    return _read("/proc/sys/kernel/random/boot_id")


def die_with_parent(parent: int) -> bool:
    """Ask the kernel to SIGKILL this process when its parent dies; False when the parent is gone already.

    PR_SET_PDEATHSIG(2const) is cleared by exec of a set-uid program and fires when the *thread* that spawned us
    ends, which is why the supervisor spawns from its main thread alone.
    """
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent


def become_subreaper() -> None:
    """Let orphans among our descendants become our children, so that we can end and reap them."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl({option}): {os.strerror(error)}")


@functools.cache
def _machine() -> str:
    return _read("/etc/machine-id") or _read("/var/lib/dbus/machine-id")


@functools.cache
def _pid_namespace() -> str:
    with contextlib.suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""


def _exists(pid: int) -> bool:
    """Whether a process that is not a zombie has this pid, by signal 0, which needs no /proc."""
    if _stat(pid) is not None:
        return False  # its entry can be read, so a start time of None means a zombie
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _read(path: str) -> str:
    with contextlib.suppress(OSError), open(path) as file:
        return file.read().strip()
    return ""


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the state on; the name before them may hold spaces and brackets."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2].decode().split()
    except (FileNotFoundError, ProcessLookupError, PermissionError):  # the last where hidepid=1 hides it
        return None


@contextlib.contextmanager
def first_for_the_oom_killer() -> Iterator[None]:
    """The last try of a job suspected of killing its workers: should the kernel run out of memory meanwhile, it takes
    this process first (proc(5), oom_score_adj), not a neighbour, the supervisor, or somebody's database."""
    former = _oom_score(None)
    _oom_score("1000")
    try:
        yield
    finally:
        _oom_score(former)


def _oom_score(value: str | None) -> str | None:
    try:
        with open("/proc/self/oom_score_adj", "r+" if value is not None else "r") as file:
            if value is None:
                return file.read().strip()
            file.write(value)
    except OSError as error:
        log.warning("cannot set oom_score_adj: %s", error)
    return None
