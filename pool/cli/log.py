"""Writes a pool's events to standard error from a thread of its own, so that a stalled reader never stops the pool."""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
from collections.abc import Callable

from pool.clock import now_text
from pool.events import Event

#: Lines that wait for a stalled reader; further ones are dropped, and counted.
_BACKLOG = 2_000
#: How often the live line is drawn anew.
LIVE_SECONDS = 0.5


class LogWriter:
    """``emit`` for a supervisor. Use as a context manager: the last lines are written at the end, within a second."""

    def __init__(self, *, as_json: bool = False, quiet: bool = False, live: Callable[[], str] | None = None) -> None:
        self._as_json = as_json
        self._live = live  # what the last line of a terminal shows
        self._quiet = quiet
        self._lines: queue.Queue[str | None] = queue.Queue(_BACKLOG)
        self._dropped = 0
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)

    def __enter__(self) -> LogWriter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(queue.Full):
            self._lines.put(None, timeout=0.5)
        self._thread.join(1.0)

    def __call__(self, event: Event) -> None:
        if self._quiet and event.level == "info":
            return
        line = event.json() if self._as_json else _for_people(event)
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._dropped += 1

    def _write(self) -> None:
        while True:
            try:
                line = self._lines.get(timeout=LIVE_SECONDS if self._live else None)
            except queue.Empty:
                line = ""
            if line is None:
                self._put("\r\x1b[K" if self._live else "")
                return
            dropped, self._dropped = self._dropped, 0
            if dropped:
                line = f"({dropped} lines were dropped: nobody read them)\n{line}"
            text = line + "\n" if line else ""
            if self._live and self._lines.empty():
                text = f"\r\x1b[K{text}{self._live()}"
            elif self._live:
                text = f"\r\x1b[K{text}"
            self._put(text)

    def _put(self, text: str) -> None:
        data = text.encode("utf-8", "backslashreplace")
        with contextlib.suppress(OSError, ValueError):  # standard error is gone; the pool's work is not
            while data:
                data = data[os.write(sys.stderr.fileno(), data) :]


def _for_people(event: Event) -> str:
    if event.name == "output":
        prefix = f"worker {event.facts['worker']} | "
        return "\n".join(prefix + line for line in str(event.facts["detail"]).splitlines())
    return f"{now_text()[:19]} {event.level:7} {event.text()}"
