"""The last line of a terminal while ``pool run`` works: how fast, how much is left, how many work."""

from __future__ import annotations

import os
import sqlite3
import time

from pool.clock import now_text
from pool.store import Store
from pool.supervisor import Supervisor

#: Counting stops here: a person needs no more digits, and a long count would be work.
MOST = 100_000


class LiveLine:
    """Called by the log's thread; reads the queue over a connection of its own, and the supervisor's counts."""

    def __init__(self, database: str) -> None:
        self._database = database
        self._store: Store | None = None
        self._supervisor: Supervisor | None = None
        self._before = (time.monotonic(), 0)
        self._rate = 0.0

    def watch(self, supervisor: Supervisor) -> None:
        """The pool to speak of."""
        self._supervisor = supervisor

    def __call__(self) -> str:
        if self._supervisor is None:
            return ""
        try:
            text = self._text(self._supervisor)
        except sqlite3.Error as error:
            text = f"database not ready: {error}"
        return text[: os.get_terminal_size(2).columns - 1]

    def _text(self, supervisor: Supervisor) -> str:
        if self._store is None:
            self._store = Store.open(self._database, busy_seconds=0.2)
        at, done = time.monotonic(), supervisor.counts[0]
        passed = at - self._before[0]
        if passed >= 1:
            self._rate = (done - self._before[1]) / passed
            self._before = (at, done)
        due = self._store.value("due_count", now=now_text(), most=MOST)
        running = self._store.value("count_running")
        dead = self._store.value("count_dead")
        shown = f"{due:,}{'+' if due == MOST else ''}"
        state = "" if supervisor.state == "running" else f"{supervisor.state} | "
        parts = [f"{self._rate:,.1f} jobs/s", f"{shown} due", f"{running} running", f"{dead:,} dead"]
        return state + " | ".join(parts)
