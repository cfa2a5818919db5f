"""What a pool with nothing to do costs: memory of a worker, processor time of the whole pool."""

from __future__ import annotations

import contextlib
import os
import time

from benchmarks.figures import Section, progress
from benchmarks.options import Options
from benchmarks.running import Pool, place

TITLE = "a pool at rest"
SETTLE_SECONDS = 3.0


def run(section: Section, options: Options) -> None:
    """Two workers, then four."""
    for workers, most in ((2, 1.0), (4, 1.5)):
        progress(f"{workers} workers for {options.seconds:g} s")
        with place() as where, Pool(where, workers) as pool:
            time.sleep(SETTLE_SECONDS)
            tree = [pool.pid, *pool.children()]
            before, began = sum(map(cpu_seconds, tree)), time.monotonic()
            time.sleep(options.seconds)
            spent, passed = sum(map(cpu_seconds, tree)) - before, time.monotonic() - began
            memory = [proportional_bytes(pid) / 1e6 for pid in tree]
        section.add(f"memory of a worker, of {workers}", memory[1:], "MB", at_most=16.0)
        section.add(f"memory of the supervisor of {workers}", memory[0], "MB")
        section.add(f"processor, supervisor and {workers} workers", 100 * spent / passed, "% of one", at_most=most)


def cpu_seconds(pid: int) -> float:
    """Processor time of all threads of a process; /proc/PID/task/TID/schedstat counts nanoseconds."""
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(FileNotFoundError), open(f"/proc/{pid}/task/{thread}/schedstat") as file:
            total += int(file.read().split()[0])
    return total / 1e9


def proportional_bytes(pid: int) -> int:
    """Memory of a process, each shared page divided by those that share it (proc(5), smaps_rollup, Pss)."""
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("Pss:"))
