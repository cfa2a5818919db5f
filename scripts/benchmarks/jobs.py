"""The handlers the benchmarks run. Those that tell something append one line to the file BENCH_LOG names."""

from __future__ import annotations

import ctypes
import os
import signal
import time

from handlers.thumbnail import make_thumbnail
from pool import handler

_log = -1
_FOREVER = 1_000_000


def tell(word: str) -> None:
    """One line in one write: the word, this process's pid, CLOCK_MONOTONIC nanoseconds (shared by all processes)."""
    global _log
    now = time.monotonic_ns()
    if _log < 0:
        _log = os.open(os.environ["BENCH_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    os.write(_log, f"{word} {os.getpid()} {now}\n".encode())


def spin(iterations: int) -> int:
    """Pure Python that keeps a processor busy."""
    value = 0
    for step in range(iterations):
        value = (value * 1103515245 + 12345 + step) & 0x7FFFFFFF
    return value


@handler("noop")
def noop() -> None:
    """Nothing at all."""


@handler("noop-grouped", group=32)
def noop_grouped() -> None:
    """Nothing at all, for a transaction shared by up to 32."""


@handler("mark")
def mark(word: str) -> None:
    """Tell when it began."""
    tell(word)


@handler("spin")
def spin_job(iterations: int) -> None:
    """Busy, then tell when it ended."""
    spin(iterations)
    tell("end")


@handler("photo")
def photo_job(source: str, dest: str) -> None:
    """A real thumbnail, then tell when it ended."""
    make_thumbnail(source, dest, 256)
    tell("end")


@handler("hold", timeout=None, max_crashes=_FOREVER)
def hold() -> None:
    """Tell when it began, and never end."""
    tell("hold")
    while True:
        time.sleep(60)


@handler("hang", timeout=3)
def hang() -> None:
    """Hang in C code that holds the GIL."""
    tell("hang")
    ctypes.PyDLL(None).sleep(60)


@handler("stop", timeout=1)
def stop() -> None:
    """Be stopped as by an operator's SIGSTOP."""
    tell("stop")
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(60)


@handler("eat")
def eat() -> None:
    """Take memory until somebody objects."""
    tell("eat")
    held = []
    while True:
        held.append(b"x" * (4 << 20))
        time.sleep(0.01)


@handler("leave", max_crashes=_FOREVER)
def leave(code: int) -> None:
    """End the process behind the pool's back."""
    tell("leave")
    os._exit(code)


@handler("fault", max_crashes=_FOREVER)
def fault(number: int) -> None:
    """Die by a signal of one's own making."""
    tell("fault")
    os.kill(os.getpid(), number)
    time.sleep(60)


@handler("fail")
def fail() -> None:
    """Raise."""
    tell("fail")
    raise RuntimeError("no luck")
