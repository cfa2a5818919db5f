"""How many processors this process may use: its affinity and, in a container, its cgroup's quota."""

import contextlib
import math
import os


def available() -> int:
    """Whole processors to plan for, at least 1.

    The affinity mask counts what the scheduler may use; a cgroup's CPU quota (cgroup v2 ``cpu.max``, v1
    ``cpu.cfs_quota_us``) limits time on them, and a container on a large host often has only that.
    """
    count = len(os.sched_getaffinity(0))
    quotas = [quota for quota in _quotas() if quota > 0]
    return max(1, min([count, *(math.ceil(quota) for quota in quotas)]))


def _quotas(root: str = "/sys/fs/cgroup", membership: str = "/proc/self/cgroup") -> list[float]:
    """CPU quotas, in processors, of our cgroup and all above it."""
    found = []
    for line in _read(membership).splitlines():
        _, controllers, path = line.split(":", 2)
        base = (
            root
            if not controllers
            else f"{root}/cpu,cpuacct"
            if os.path.isdir(f"{root}/cpu,cpuacct")
            else f"{root}/cpu"
        )
        if controllers and "cpu" not in controllers.split(","):
            continue
        parts = [part for part in path.split("/") if part and part != ".."]
        for depth in range(len(parts) + 1):
            found.append(_quota_in("/".join([base, *parts[:depth]])))
    return found


def _quota_in(folder: str) -> float:
    with contextlib.suppress(ValueError, ZeroDivisionError):
        if text := _read(f"{folder}/cpu.max"):
            quota, period = text.split()
            return 0.0 if quota == "max" else int(quota) / int(period)
        if text := _read(f"{folder}/cpu.cfs_quota_us"):
            return int(text) / int(_read(f"{folder}/cpu.cfs_period_us"))
    return 0.0


def _read(path: str) -> str:
    with contextlib.suppress(OSError), open(path) as file:
        return file.read().strip()
    return ""
