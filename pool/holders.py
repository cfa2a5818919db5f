"""Which processes have a database open: what the kernel's file locks tell of SQLite's connections."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from collections.abc import Iterable
from typing import NamedTuple

#: Bytes that SQLite locks (sqlite.org/src/file/src/os.h and os_unix.c): every connection in WAL mode keeps a shared
#: lock on the first range of the database, and one that reads from the log another on the second range of -shm.
_SHARED = (0x40000002, 0x40000002 + 509)
_LOG_READERS = (124, 127)
#: The byte of -shm that whoever writes in WAL mode has locked (sqlite.org/walformat.html, section 2.3.1).
_WRITER = (120, 120)
#: struct flock on 64-bit Linux: type, whence, start, length, pid (fcntl(2)).
_FLOCK = "hhqqi"


class Holder(NamedTuple):
    """A process, and how it calls itself."""

    pid: int
    name: str

    def __str__(self) -> str:
        return f"process {self.pid} ({self.name})"


def holders(path: str) -> list[Holder]:
    """Other processes of this pid namespace with a connection to the database."""
    return [Holder(pid, _name(pid)) for pid in _lockers(path, _SHARED) if pid != os.getpid()]


def is_open_here(path: str) -> bool:
    """Whether this process has a connection to the database."""
    return os.getpid() in _lockers(path, _SHARED)


def log_readers(path: str) -> list[Holder]:
    """Other processes that are in a read transaction right now which keeps the write-ahead log from being moved."""
    lockers = _lockers(os.path.realpath(path) + "-shm", _LOG_READERS)
    return [Holder(pid, _name(pid)) for pid in lockers if pid != os.getpid()]


def strangers(path: str, turn: str, besides: Iterable[int]) -> list[int]:
    """Processes with a connection to the database that take no turns: they have not opened its turn file.

    Whoever cannot be looked into (another user's, in another pid namespace) is not among them.
    """
    try:
        taken = os.stat(turn)
    except OSError:
        return []
    besides = {os.getpid(), *besides}
    return [pid for pid in _lockers(path, _SHARED) if pid not in besides and _has_not_open(pid, taken)]


def _has_not_open(pid: int, file: os.stat_result) -> bool:
    try:
        return not any(os.path.samestat(each.stat(), file) for each in os.scandir(f"/proc/{pid}/fd"))
    except OSError:
        return False


def writer(path: str) -> Holder | None:
    """The process of this pid namespace, this one too, that is in a write transaction right now."""
    pids = _lockers(os.path.realpath(path) + "-shm", _WRITER)
    return Holder(pids[0], _name(pids[0])) if pids else None


def is_open_elsewhere(path: str) -> bool:
    """Whether any other process on this kernel, in a container too, has a connection to the database.

    Only where this process has none itself: closing the file here would drop the locks of its own connections
    (sqlite.org/howtocorrupt.html, section 2.2).
    """
    with open(path, "rb") as file:
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, _SHARED[0], _SHARED[1] - _SHARED[0] + 1, 0)
        found = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, asked))
    return bool(found[0] != fcntl.F_UNLCK)


def _lockers(path: str, wanted: tuple[int, int]) -> list[int]:
    try:
        seen = os.stat(path)
        with open("/proc/locks") as file:
            lines = [line.split() for line in file]
    except OSError:
        return []
    inode = f"{os.major(seen.st_dev):02x}:{os.minor(seen.st_dev):02x}:{seen.st_ino}"
    pids = set()
    for fields in lines:
        # 1: POSIX ADVISORY READ pid major:minor:inode start end; a waiter has "->" after its number (proc(5)).
        if len(fields) == 8 and fields[1] == "POSIX" and fields[5] == inode and fields[4].isdigit():
            start, end = int(fields[6]), _LAST if fields[7] == "EOF" else int(fields[7])
            if start <= wanted[1] and end >= wanted[0]:
                pids.add(int(fields[4]))
    return sorted(pids)


_LAST = 2**63


def _name(pid: int) -> str:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        words = file.read().replace(b"\0", b" ").decode(errors="replace").strip()
        if words:
            return words if len(words) <= 80 else words[:79] + "…"
    return "?"
