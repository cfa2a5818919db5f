"""Checks of what the system allows this user, and of the environment; pools started elsewhere may be allowed less."""

from __future__ import annotations

import difflib
import resource

from pool import cpus
from pool.doctor.finding import Finding, OutsideCheck, Subject, ok, size, warn

#: A supervisor keeps some six descriptors for each worker.
_FILES_WANTED = 256
_PROCESSES_WANTED = 64
_MEMORY_WANTED = 256 << 20
_UNLIMITED = 1 << 60


def limits(subject: Subject) -> Finding:
    """Limits of this process (getrlimit(2)) and its cgroup."""
    files = _limit(resource.RLIMIT_NOFILE)
    processes = min(_limit(resource.RLIMIT_NPROC), _cgroup("pids", "pids.max"))
    memory = min(_limit(resource.RLIMIT_AS), _cgroup("memory", "memory.max", "memory.limit_in_bytes"))
    said = ", ".join(
        (
            f"{cpus.available()} processors",
            f"{files if files < _UNLIMITED else 'any number of'} open files",
            f"{processes if processes < _UNLIMITED else 'any number of'} processes",
            f"{size(memory)} of memory" if memory < _UNLIMITED else "memory without limit",
        )
    )
    if files < _FILES_WANTED:
        return warn("limits", said, f"raise ulimit -n (LimitNOFILE=) to {_FILES_WANTED} or more")
    if processes < _PROCESSES_WANTED:
        return warn("limits", said, f"raise ulimit -u (TasksMax=, pids limit) to {_PROCESSES_WANTED} or more")
    if memory < _MEMORY_WANTED:
        return warn("limits", said, "allow more memory, or run few workers with --hard-memory")
    return ok("limits", said)


def environment(subject: Subject) -> Finding:
    """Variables that look like ours and mean nothing, which is how a typing error goes unnoticed."""
    ours = sorted(name for name in subject.environment if name.startswith("POOL_"))
    for name in ours:
        if name not in subject.variables:
            near = difflib.get_close_matches(name, sorted(subject.variables), 1, 0.75)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(subject.variables))}"
            return warn("environment", f"{name} means nothing to jobpool", hint)
    if "JOBPOOL_FAULTS" in subject.environment:
        return warn(
            "environment", "JOBPOOL_FAULTS is set: a pool started here fails on purpose", "unset JOBPOOL_FAULTS"
        )
    return ok("environment", ", ".join(f"{name}={subject.environment[name]}" for name in ours) or "nothing is set")


CHECKS: tuple[OutsideCheck, ...] = (limits, environment)


def _limit(which: int) -> int:
    soft, _ = resource.getrlimit(which)
    return _UNLIMITED if soft == resource.RLIM_INFINITY else soft


def _cgroup(controller: str, *names: str, root: str = "/sys/fs/cgroup", membership: str = "/proc/self/cgroup") -> int:
    """The least limit of our cgroup and those above it, in version 2 or 1 of cgroups (cgroups(7))."""
    found = [_UNLIMITED]
    for line in _read(membership).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = f"{root}/{controller}" if controllers else root
        parts = [part for part in path.split("/") if part and part != ".."]
        for depth in range(len(parts) + 1):
            for name in names:
                text = _read("/".join((base, *parts[:depth], name)))
                found.append(int(text) if text.isdigit() else _UNLIMITED)
    return min(found)


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""
