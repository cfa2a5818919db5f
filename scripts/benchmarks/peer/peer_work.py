"""The work that every peer does, and where: the environment says in which folder and for whom."""

from __future__ import annotations

import os
import time

NAME = os.environ.get("PEER_NAME", "")
FOLDER = os.environ.get("PEER_FOLDER", "")
DATABASE = os.path.join(FOLDER, "queue.db")
WORKERS = 2
_log = -1


def work(kind: str, number: int) -> None:
    """One O_APPEND write tells that the job ran, so that losses and duplicates are counted; ``spin`` is busy before."""
    global _log
    if kind == "spin":
        spin(number)
    now = time.monotonic_ns()
    if _log < 0:
        _log = os.open(os.path.join(FOLDER, "log"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(_log, f"{kind} {number} {now}\n".encode())


def spin(iterations: int) -> int:
    """Pure Python that keeps a processor busy."""
    value = 0
    for step in range(iterations):
        value = (value * 1103515245 + 12345 + step) & 0x7FFFFFFF
    return value
