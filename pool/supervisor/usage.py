"""What a worker's process tree uses, and whether the kernel ran out of memory."""

from __future__ import annotations

import contextlib
from typing import NamedTuple

import psutil

from pool.supervisor.strays import children_of


class Usage(NamedTuple):
    """Resident bytes (pages that processes share are counted for each) and seconds of CPU time."""

    memory_bytes: int = 0
    cpu_seconds: float = 0.0


def usage_of_tree(pid: int) -> Usage:
    """What a process and its descendants use now; nothing for those that are gone."""
    memory, cpu = 0, 0.0
    with contextlib.suppress(psutil.Error, OSError):
        process = psutil.Process(pid)
        with process.oneshot():
            times = process.cpu_times()
            memory, cpu = process.memory_info().rss, times.user + times.system
        for child in children_of(pid):
            below = usage_of_tree(child)
            memory, cpu = memory + below.memory_bytes, cpu + below.cpu_seconds
    return Usage(memory, round(cpu, 3))


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
