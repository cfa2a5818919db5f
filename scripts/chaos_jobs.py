"""The jobs of the chaos script: each proves that it runs alone, and some misbehave in every known way."""

import contextlib
import ctypes
import fcntl
import os
import subprocess
import sys
import time

from pool import Context, Discard, Retry, Snooze, handler

FOLDER, NOTES = os.environ["CHAOS_FOLDER"], os.environ["CHAOS_NOTES"]
_log = os.open(f"{NOTES}/log", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)


def note(word: str, job_id: int, attempt: int) -> None:
    """One line, in one write, so that lines of many processes never mix."""
    os.write(_log, f"{word} {job_id} {attempt} {os.getpid()} {time.monotonic():.6f}\n".encode())


def note_holders(path: str) -> None:
    """Who has a job's file open: the evidence of an overlap, for the run's log."""
    for process in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError):
            if int(process) != os.getpid() and any(
                os.readlink(f"/proc/{process}/fd/{fd}") == path for fd in os.listdir(f"/proc/{process}/fd")
            ):
                with open(f"/proc/{process}/stat") as stat, open(f"/proc/{process}/cmdline") as line:
                    print(f"{path} is held by {stat.read()[:80]} {line.read()[:200]!r}", file=sys.stderr, flush=True)


@handler("chaos", timeout=0.8, max_attempts=50, max_crashes=1_000_000)
def chaos(kind: str, milliseconds: float, *, ctx: Context) -> dict[str, int]:
    """Hold a lock on a file of the job's own while running: a second live run of the job would find it taken."""
    lock = os.open(f"{NOTES}/locks/{ctx.job_id}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        note("OVERLAP", ctx.job_id, ctx.attempt)
        note_holders(f"{NOTES}/locks/{ctx.job_id}")
    note("start", ctx.job_id, ctx.attempt)
    try:
        _behave(kind, ctx)
        time.sleep(milliseconds / 1000)
        note("end", ctx.job_id, ctx.attempt)
    finally:
        os.close(lock)
    return {"attempt": ctx.attempt}


@handler("poison", timeout=5, max_attempts=50)
def poison() -> None:
    """Kills its worker each time; its crash budget has to stop it."""
    os.abort()


def _behave(kind: str, ctx: Context) -> None:
    if kind == "retry" and ctx.attempt < 3:
        raise Retry(0.1, "as asked")
    if kind == "snooze" and time.time() % 1 < 0.5:
        raise Snooze(0.05)
    if kind == "discard":
        raise Discard("never works")
    if kind == "print":
        print("x" * 3000, flush=True)
        print("to standard error", file=sys.stderr)
    if kind == "close-database":  # drops this process's POSIX locks on the file
        with open(f"{FOLDER}/jobs.db", "rb") as file:
            file.read(100)
    if kind == "stray":
        subprocess.Popen(["sh", "-c", "sleep 300 & exec setsid sleep 301"])
    if kind == "exit" and ctx.attempt == 1:
        os._exit(3)
    if kind == "segv" and ctx.attempt == 1:
        ctypes.string_at(0)
    if kind == "hang":
        while True:
            try:
                time.sleep(100)
            except BaseException:
                continue
