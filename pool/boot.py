"""A worker process from exec to exit: what has to hold before it claims its first job, and how it ends."""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sqlite3
import sys
import time
import traceback
from types import FrameType

import setproctitle

from pool import process, registry
from pool.assignment import DUMP_FD, SHARED_FDS, SLOT_FD, Assignment
from pool.clock import now_text
from pool.errors import DatabaseUnusable, ExitCode, PoolError
from pool.slot import Slot
from pool.store import Store
from pool.store.sqlite import is_transient
from pool.worker import BUSY_SECONDS, Worker

log = logging.getLogger("pool.worker")


def main(argument: str) -> int:
    """A worker's life, from exec to exit; the order of the first steps makes every later death explainable."""
    assignment = Assignment.parse(argument)
    if not process.die_with_parent(assignment.parent):
        return ExitCode.FAILED  # the supervisor died between fork and here
    faulthandler.enable(DUMP_FD)
    faulthandler.register(signal.SIGUSR2, DUMP_FD)
    for fd in SHARED_FDS:
        os.set_inheritable(fd, False)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)  # type: ignore[union-attr]
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.INFO)
    # Handlers, not SIG_IGN: an ignored signal stays ignored in the programs a job starts.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _pass)
    os.register_at_fork(before=_hold_signals, after_in_parent=_let_signals, after_in_child=_as_any_process)
    setproctitle.setproctitle(f"pool: worker {assignment.number} boot")
    _set_limits(assignment)
    shared = Slot(SLOT_FD)
    identity = process.identity(os.getpid(), assignment.token)
    try:
        handlers = registry.load(assignment.entry_points, assignment.modules, assignment.folder)
        store = _opened(assignment, identity)
    except PoolError as error:
        if error.__cause__ is not None and not isinstance(error, DatabaseUnusable):
            traceback.print_exception(error.__cause__)
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    shared.tell_types(handlers)
    worker = Worker(assignment, shared, store, handlers, identity)

    def drain(signum: int, frame: FrameType | None) -> None:
        worker.drain()

    signal.signal(signal.SIGTERM, drain)
    worker.work()
    store.close()
    return ExitCode.OK


def _set_limits(assignment: Assignment) -> None:
    if assignment.nice:
        try:
            os.nice(assignment.nice)
        except PermissionError as error:
            log.warning("cannot set niceness %d: %s", assignment.nice, error)
    if assignment.pin:
        processors = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {processors[(assignment.number - 1) % len(processors)]})


def _opened(assignment: Assignment, identity: str) -> Store:
    """The store, with this worker on record before its first claim: what it holds can be traced to a process."""
    me = process.this_process()
    while True:
        try:
            store = Store.open(assignment.database, busy_seconds=BUSY_SECONDS, create=False, in_line=assignment.crowded)
            store.change(
                "register_worker",
                identity=identity,
                pool=assignment.pool,
                number=assignment.number,
                machine=me.machine,
                boot_id=me.boot_id,
                pid_namespace=me.pid_namespace,
                pid=me.pid,
                start_time=me.start_time,
                now=now_text(),
            )
            return store
        except (sqlite3.OperationalError, DatabaseUnusable) as error:
            if not is_transient(error):
                raise
            log.warning("cannot register: %s; trying again", error)
            time.sleep(0.2)


_OURS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


def _hold_signals() -> None:
    """Until the child has its own ways, or a signal that comes at once would meet ours there, and be lost."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _OURS)


def _let_signals() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _OURS)


def _as_any_process() -> None:
    """A process that a job forks (multiprocessing does) ends by a signal as anybody's would."""
    for number in _OURS:
        signal.signal(number, signal.SIG_DFL)
    _let_signals()


def _pass(signum: int, frame: FrameType | None) -> None:
    """Ctrl-C and hang-ups reach the terminal's whole group; the supervisor decides what they mean."""
