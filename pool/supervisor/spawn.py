"""How a worker process is started: its environment, its descriptors, its session."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
from dataclasses import asdict

from pool import instrumentation
from pool.assignment import OUTPUT_FD, SHARED_FDS, Assignment
from pool.settings import PoolSettings
from pool.supervisor.strays import MARK

#: Environment variables by which numeric libraries take their number of threads.
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "RAYON_NUM_THREADS",
)


def environment(settings: PoolSettings) -> dict[str, str]:
    """What workers find in theirs: ours, the thread caps, and what instruments them where that was asked for."""
    found = dict(os.environ)
    if settings.threads >= 0:
        threads = settings.threads or max(1, len(os.sched_getaffinity(0)) // settings.workers)
        for name in THREAD_VARIABLES:
            found.setdefault(name, str(threads))
    if settings.traces or instrumentation.is_on():
        instrumentation.switch_on(found)
    return found


def spawn(assignment: Assignment, environment: dict[str, str], shared: tuple[int, ...]) -> int:
    """Exec a worker in a session of its own; from the main thread, for PR_SET_PDEATHSIG follows the thread.

    ``-P`` keeps the working folder off its path until the user's own modules are imported.
    """
    arguments = [sys.executable, "-P", "-m", "pool", "worker", json.dumps(asdict(assignment))]
    # Above the numbers they go to, so that no dup2 hits a source that is still to be copied.
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 16) for fd in shared]
    places = dict(zip(SHARED_FDS, high, strict=True))
    try:
        return os.posix_spawn(
            sys.executable,
            arguments,
            {**environment, MARK: assignment.token},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, places[OUTPUT_FD], 1),
                (os.POSIX_SPAWN_DUP2, places[OUTPUT_FD], 2),
                *((os.POSIX_SPAWN_DUP2, source, target) for target, source in places.items()),
            ],
            setsid=True,
            setsigmask=[],
            setsigdef=[each for each in signal.valid_signals() if each not in (signal.SIGKILL, signal.SIGSTOP, 32, 33)],
        )
    finally:
        for fd in high:
            os.close(fd)
