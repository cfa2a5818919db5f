"""How much memory a worker's process tree holds, and whether the kernel ran out of it."""

from __future__ import annotations

import contextlib
import os

from pool.supervisor.strays import children_of

_PAGE = os.sysconf("SC_PAGE_SIZE")


def tree_bytes(pid: int) -> int:
    """Resident memory of a process and its descendants (proc(5), statm); pages they share are counted for each."""
    total = 0
    with contextlib.suppress(OSError, IndexError, ValueError):
        with open(f"/proc/{pid}/statm") as file:
            total = int(file.read().split()[1]) * _PAGE
        total += sum(tree_bytes(child) for child in children_of(pid))
    return total


def oom_kills() -> int:
    """How many processes the kernel has killed for want of memory, in our cgroup where it counts them, or in all."""
    for path in (*_cgroup_events(), "/proc/vmstat"):
        with contextlib.suppress(OSError), open(path) as file:
            for line in file:
                name, _, value = line.partition(" ")
                if name == "oom_kill":
                    return int(value)
    return 0


def _cgroup_events() -> list[str]:
    with contextlib.suppress(OSError), open("/proc/self/cgroup") as file:
        for line in file:
            if line.startswith("0::"):
                return [f"/sys/fs/cgroup{line[3:].strip()}/memory.events", "/sys/fs/cgroup/memory.events"]
    return []
