"""Runs a real pool under random faults and checks what must hold: nothing lost, twice at once, or stuck."""

from __future__ import annotations

import argparse
import collections
import contextlib
import ctypes
import json
import os
import random
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from pool import Queue, testing
from pool.status import status
from pool.store import Store
from pool.supervisor.strays import MARK

HERE = Path(__file__).resolve().parent
KINDS = (
    ["plain"] * 60
    + ["retry"] * 6
    + ["snooze"] * 4
    + ["discard"] * 2
    + ["print"] * 4
    + ["close-database"] * 8
    + ["stray"] * 3
    + ["exit"] * 3
    + ["segv"] * 1
    + ["hang"] * 1
)
WAL_LIMIT = 256 << 20
STUCK_SECONDS = 40.0


class Fault(NamedTuple):
    """A fault given: which, when (monotonic seconds), and the jobs that ran in what it hit."""

    name: str
    at: float
    jobs: tuple[int, ...]


class Chaos:
    """One run: a pool, a producer, a stream of faults, and the books kept on all three."""

    def __init__(self, options: argparse.Namespace, folder: Path, notes: Path) -> None:
        self.options = options
        self.folder = folder
        self.notes = notes  # elsewhere: it must survive a full disk
        self.database = str(folder / "jobs.db")
        self.random = random.Random(options.seed)
        self.clock = testing.Clock(str(self.notes / "clock"))
        self.acknowledged: list[int] = []
        self.faults: list[Fault] = []
        self.breaches: list[str] = []
        self.wal_most = 0
        self.descriptors: list[int] = []
        self.over = threading.Event()
        (self.notes / "locks").mkdir()
        self.queue = Queue(self.database)
        self.pool = self.start_pool()

    # the pool and the producer

    def start_pool(self) -> subprocess.Popen[bytes]:
        """A pool of its own session, its log appended to a file."""
        environment = {
            **os.environ,
            **testing.faults(clock=self.clock, claim=400, before_settle=400, after_settle=400),
            "CHAOS_FOLDER": str(self.folder),
            "CHAOS_NOTES": str(self.notes),
            "PYTHONPATH": str(HERE),
        }
        command = [sys.executable, "-m", "pool", "run", "--db", self.database, "--handlers", "chaos_jobs"]
        command += ["--workers", str(self.options.workers), "--grace", "1", "--max-jobs", "300", "--lease", "20"]
        with open(self.notes / "pool.log", "ab") as log:
            return subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)

    def produce(self) -> None:
        """Enqueue at a steady rate; what ``enqueue`` returned is acknowledged and must never be lost."""
        choose = random.Random(self.options.seed + 1)
        while not self.over.is_set():
            try:
                if choose.random() < 0.002:
                    self.acknowledged.append(self.queue.enqueue("poison").id)
                kind = choose.choice(KINDS)
                most = {"hang": 1, "discard": 1}.get(kind)
                payload = {"kind": kind, "milliseconds": choose.choice([0, 1, 5, 20, 60])}
                self.acknowledged.append(self.queue.enqueue("chaos", payload, max_attempts=most or 50).id)
            except sqlite3.OperationalError:
                time.sleep(0.05)  # locked or full: not acknowledged, so not owed
            time.sleep(1 / self.options.rate)

    def watch(self) -> None:
        """The most the write-ahead log and the supervisor's descriptors came to."""
        while not self.over.is_set():
            with contextlib.suppress(OSError):
                self.wal_most = max(self.wal_most, os.stat(self.database + "-wal").st_size)
            with contextlib.suppress(OSError):
                self.descriptors.append(len(os.listdir(f"/proc/{self.pool.pid}/fd")))
            time.sleep(0.25)

    # faults

    def workers(self) -> list[psutil.Process]:
        """The pool's workers that live now, in a stable order."""
        found = []
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(self.pool.pid).children():
                with contextlib.suppress(psutil.Error):
                    if "worker" in " ".join(child.cmdline()[:5]) or child.cmdline()[:1] == [""]:
                        found.append(child)
        return found

    def running_in(self, pids: set[int]) -> tuple[int, ...]:
        """Jobs begun and not ended by these processes, as their log tells."""
        begun: dict[int, int] = {}
        for word, job, _, pid, _ in self.lines():
            if pid in pids:
                if word == "start":
                    begun[pid] = job
                elif word == "end":
                    begun.pop(pid, None)
        return tuple(begun.values())

    def lines(self) -> Iterator[tuple[str, int, int, int, float]]:
        """The jobs' own log."""
        with contextlib.suppress(FileNotFoundError), open(self.notes / "log") as file:
            for line in file:
                word, job, attempt, pid, at = line.split()
                yield word, int(job), int(attempt), int(pid), float(at)

    def give(self, name: str) -> None:
        """Give one fault, and keep the book on it."""
        fault: Callable[[], tuple[int, ...]] = getattr(self, "fault_" + name.replace("-", "_"))
        at = time.monotonic()
        jobs = fault()
        self.faults.append(Fault(name, at, jobs))

    def fault_kill_worker(self) -> tuple[int, ...]:
        """SIGKILL one worker; the jobs it ran are looked up afterwards, when its log cannot change any more."""
        workers = self.workers()
        if not workers:
            return ()
        busy = [worker for worker in workers if "#" in title(worker)]
        victim = self.random.choice(busy if busy and self.random.random() < 0.8 else workers)
        with contextlib.suppress(psutil.Error):
            victim.kill()
        return (-victim.pid,)

    def fault_kill_supervisor(self) -> tuple[int, ...]:
        """SIGKILL the supervisor, see its workers go, start another."""
        workers = self.workers()
        self.pool.kill()
        self.pool.wait()
        # Generous, for a worker in the middle of its imports has not asked the kernel yet to be killed with its parent;
        # it finds out by itself at their end, and the processors are busy.
        end = time.monotonic() + 10
        while any(alive(worker) for worker in workers) and time.monotonic() < end:
            time.sleep(0.002)
        if left := [f"{worker.pid} {title(worker)!r}" for worker in workers if alive(worker)]:
            self.breaches.append(f"workers {left} outlived their supervisor by 10 s")
        self.pool = self.start_pool()
        return tuple(-worker.pid for worker in workers)

    def fault_stop(self) -> tuple[int, ...]:
        """Hold up one worker with SIGSTOP for a moment."""
        return self._stopped([self.random.choice(workers).pid] if (workers := self.workers()) else [])

    def fault_stop_all(self) -> tuple[int, ...]:
        """Hold up the whole tree."""
        return self._stopped([self.pool.pid, *(worker.pid for worker in self.workers())])

    def _stopped(self, pids: list[int]) -> tuple[int, ...]:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        time.sleep(self.random.uniform(0.05, 1.5))
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        return ()

    def fault_term(self) -> tuple[int, ...]:
        """Drain the pool and start another."""
        self.pool.terminate()
        if self.random.random() < 0.3:
            self.pool.send_signal(signal.SIGINT)
        try:
            self.pool.wait(15)
        except subprocess.TimeoutExpired:
            self.breaches.append("a pool did not end within 15 s of TERM")
            self.pool.kill()
            self.pool.wait()
        self.pool = self.start_pool()
        return ()

    def fault_reload(self) -> tuple[int, ...]:
        """HUP, once the supervisor listens: before its first line runs, a signal does what it does to any program."""
        with contextlib.suppress(OSError):
            caught = int(Path(f"/proc/{self.pool.pid}/status").read_text().split("SigCgt:")[1].split()[0], 16)
            if caught & 1 << signal.SIGHUP - 1:
                self.pool.send_signal(signal.SIGHUP)
        return ()

    def fault_lock(self) -> tuple[int, ...]:
        """Another program holds the database for a while."""
        other = sqlite3.connect(self.database, timeout=5, isolation_level=None)
        with contextlib.suppress(sqlite3.OperationalError):
            other.execute("BEGIN IMMEDIATE")
            time.sleep(self.random.uniform(0.1, 1.5))
            other.execute("ROLLBACK")
        other.close()
        return ()

    def fault_reader(self) -> tuple[int, ...]:
        """A reader that keeps its transaction open, then comes and goes."""
        other = sqlite3.connect(self.database, timeout=5, isolation_level=None)
        other.execute("BEGIN")
        other.execute("SELECT count(*) FROM jobs").fetchall()
        time.sleep(self.random.uniform(0.1, 1.0))
        other.close()
        return ()

    def fault_disk_full(self) -> tuple[int, ...]:
        """No space for a while."""
        with testing.full_disk(str(self.folder)):
            time.sleep(self.random.uniform(0.1, 1.0))
        return ()

    def fault_clock(self) -> tuple[int, ...]:
        """The wall clock of the pool steps an hour."""
        self.clock.step(self.random.choice([3600, 0, 7200, 0]))
        return ()

    # the run

    def run(self) -> None:
        """Faults for the given seconds, then quiet until all is settled."""
        threads = [threading.Thread(target=each, daemon=True) for each in (self.produce, self.watch)]
        for thread in threads:
            thread.start()
        time.sleep(1.0)
        end = time.monotonic() + self.options.seconds
        names = self.options.faults
        while time.monotonic() < end:
            self.give(self.random.choices(names, [WEIGHTS[name] for name in names])[0])
            if self.pool.poll() is not None:
                self.breaches.append(f"the pool exited by itself with {self.pool.returncode}; see pool.log")
                self.pool = self.start_pool()
            time.sleep(self.random.expovariate(1 / self.options.gap))
        self.over.set()
        for thread in threads:
            thread.join()
        self.clock.step(0)
        self.settle()

    def settle(self) -> None:
        """Wait until nothing is due or running; what is left when nothing moved for a while is stuck."""
        store = Store.open(self.database)
        end, left = time.monotonic() + STUCK_SECONDS, 0
        while True:
            # Jobs that a step of the clock pushed into the future are due now.
            store.connection.execute("UPDATE jobs SET run_at = '2000-01-01' WHERE status = 'queued' AND type = 'chaos'")
            now = status(store)
            if now["queued"] == now["running"] == 0 or time.monotonic() > end:
                break
            if now["queued"] + now["running"] != left:
                end, left = time.monotonic() + STUCK_SECONDS, now["queued"] + now["running"]
            time.sleep(0.1)
        store.close()
        self.pool.terminate()
        try:
            self.pool.wait(15)
        except subprocess.TimeoutExpired:
            self.breaches.append("the pool did not end within 15 s of the last TERM")
            self.pool.kill()
            self.pool.wait()

    # the books

    def check(self) -> dict[str, int]:
        """Every invariant; what does not hold is added to ``breaches``. Returns counts for the table."""
        breach = self.breaches.append
        store = Store.open(self.database)
        execute = store.connection.execute
        rows = {row[0]: row for row in execute("SELECT id, status, last_error, attempts, type FROM jobs")}
        lost = [job for job in self.acknowledged if job not in rows]
        stuck = [row for row in rows.values() if row[1] in ("queued", "running")]
        lines = list(self.lines())
        ended = {job for word, job, *_ in lines if word == "end"}
        starts = collections.Counter(job for word, job, *_ in lines if word == "start")
        overlaps = [line for line in lines if line[0] == "OVERLAP"]
        explained = {row[0] for row in execute("SELECT DISTINCT job_id FROM attempts")}
        dead = [row for row in rows.values() if row[1] == "dead"]
        if lost:
            breach(f"{len(lost)} acknowledged jobs are gone, such as {lost[:3]}")
        if stuck:
            breach(f"{len(stuck)} jobs are stuck, such as {stuck[:3]}")
        if overlaps:
            log = (self.notes / "pool.log").read_text(errors="replace").splitlines()
            held = [line for line in log if "is held by" in line]
            breach(f"{len(overlaps)} times a job ran twice at once, such as {overlaps[:3]}: {held[:3]}")
        if unexplained := [row for row in dead if not row[2] or row[0] not in explained]:
            breach(f"{len(unexplained)} dead jobs without a reason, such as {unexplained[:3]}")
        if unrun := [row for row in rows.values() if row[1] == "done" and row[4] == "chaos" and row[0] not in ended]:
            breach(f"{len(unrun)} jobs are done that never ran to their end, such as {unrun[:3]}")
        if (verdict := execute("PRAGMA integrity_check").fetchall()) != [("ok",)]:
            breach(f"integrity_check: {verdict[:3]}")
        left = (
            execute("SELECT count(*) FROM workers").fetchone()[0] + execute("SELECT count(*) FROM pools").fetchone()[0]
        )
        if left:
            breach(f"{left} rows of ended pools and workers are left")
        store.close()
        self.check_leftovers()
        return {
            "jobs": len(rows),
            "runs": sum(starts.values()),
            "extra": sum(starts.values()) - len(starts),
            "dead": len(dead),
        }

    def check_leftovers(self) -> None:
        """No process of the run, no zombie of ours, no stray file, no growing number of descriptors."""
        orphans = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("CHAOS_FOLDER") == str(self.folder) and MARK in process.environ():
                    orphans.append(process)
        if orphans:
            self.breaches.append(f"orphans: {orphans[:3]}")
            for process in orphans:
                process.kill()
        allowed = {"jobs.db", "jobs.db-wal", "jobs.db-shm", "jobs.db-turn"}
        if files := {path.name for path in self.folder.iterdir()} - allowed:
            self.breaches.append(f"files left behind: {sorted(files)[:3]}")
        if self.wal_most > WAL_LIMIT:
            self.breaches.append(f"the write-ahead log grew to {self.wal_most >> 20} MB")
        most = 40 + 8 * (2 * self.options.workers)
        if self.descriptors and max(self.descriptors) > most:
            self.breaches.append(f"the supervisor held {max(self.descriptors)} descriptors (expected at most {most})")

    def recoveries(self) -> dict[str, list[float]]:
        """Milliseconds from a kill to the next start of each job it interrupted."""
        lines = list(self.lines())
        by_pid: dict[int, list[tuple[str, int, float]]] = collections.defaultdict(list)
        by_job: dict[int, list[float]] = collections.defaultdict(list)
        for word, job, _, pid, at in lines:
            by_pid[pid].append((word, job, at))
            if word == "start":
                by_job[job].append(at)
        found: dict[str, list[float]] = collections.defaultdict(list)
        for fault in self.faults:
            for pid in (-each for each in fault.jobs):
                last = by_pid[pid][-1:] if pid in by_pid else []
                if last and last[0][0] == "start" and last[0][2] <= fault.at:
                    again = [at for at in by_job[last[0][1]] if at > fault.at]
                    if again:
                        found[fault.name].append((min(again) - fault.at) * 1000)
        return found


WEIGHTS = {
    "kill-worker": 60, "kill-supervisor": 4, "stop": 6, "stop-all": 1, "term": 2, "reload": 2, "lock": 3, "reader": 4,
    "disk-full": 2, "clock": 3,
}  # fmt: skip


def title(process: psutil.Process) -> str:
    """What a worker says it does; empty when it is gone."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def alive(process: psutil.Process) -> bool:
    """Whether a process lives (a zombie does not, nor does another that has its pid by now)."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


@contextlib.contextmanager
def workspace(options: argparse.Namespace) -> Iterator[Path]:
    """A folder for the run; a small tmpfs where the disk is to be filled and we may mount one."""
    folder = Path(tempfile.mkdtemp(prefix="pool-chaos-"))
    libc = ctypes.CDLL(None, use_errno=True)
    mounted = (
        "disk-full" in options.faults and libc.mount(b"tmpfs", bytes(folder), b"tmpfs", 0, b"size=400m,mode=700") == 0
    )
    if "disk-full" in options.faults and not mounted:
        options.faults.remove("disk-full")
        print("disk-full left out: mounting a small tmpfs needs root", file=sys.stderr)
    try:
        yield folder
    finally:
        if mounted:
            libc.umount2(bytes(folder), 2)
        shutil.rmtree(folder, ignore_errors=True)


def report(chaos: Chaos, counts: dict[str, int], as_json: bool) -> None:
    """The table, or the same as JSON."""
    given = collections.Counter(fault.name for fault in chaos.faults)
    recoveries = chaos.recoveries()
    rows = []
    for name, count in given.most_common():
        times = sorted(recoveries.get(name, []))
        row: dict[str, object] = {"fault": name, "given": count, "recoveries": len(times)}
        if times:
            row |= {"p50_ms": round(statistics.median(times), 1), "p99_ms": round(times[int(len(times) * 0.99)], 1)}
            row["max_ms"] = round(times[-1], 1)
        rows.append(row)
    facts = {**counts, "acknowledged": len(chaos.acknowledged), "wal_most_mb": chaos.wal_most >> 20}
    if as_json:
        print(json.dumps({"seed": chaos.options.seed, **facts, "faults": rows, "breaches": chaos.breaches}))
        return
    print(f"{'fault':16} {'given':>6} {'jobs hit':>9} {'again p50':>10} {'p99':>9} {'max':>9}")
    for row in rows:
        times = [f"{row[key]:.1f} ms" if key in row else "" for key in ("p50_ms", "p99_ms", "max_ms")]
        print(f"{row['fault']:16} {row['given']:>6} {row['recoveries']:>9} {times[0]:>10} {times[1]:>9} {times[2]:>9}")
    print(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in facts.items()))
    for each in chaos.breaches:
        print(f"BREACH: {each}")
    print(f"{'FAILED' if chaos.breaches else 'ok'}; seed {chaos.options.seed} replays it")


def summary(runs: list[dict[str, Any]]) -> str:
    """Recorded runs as a Markdown table."""
    by_fault: dict[str, list[dict[str, Any]]] = collections.defaultdict(list)
    for run in runs:
        for row in run["faults"]:
            by_fault[row["fault"]].append(row)
    lines = ["| fault | given | jobs hit | running again: median of p50 | worst |", "|---|---|---|---|---|"]
    for name in WEIGHTS:
        rows = by_fault.get(name, [])
        medians = [row["p50_ms"] for row in rows if "p50_ms" in row]
        times = ("–", "–") if not medians else (
            f"{statistics.median(medians):.0f} ms",
            f"{max(row['max_ms'] for row in rows if 'max_ms' in row):.0f} ms",
        )  # fmt: skip
        counts = (sum(row["given"] for row in rows), sum(row["recoveries"] for row in rows))
        lines.append(f"| {name} | {counts[0]} | {counts[1] or '–'} | {times[0]} | {times[1]} |")
    total = {key: sum(run[key] for run in runs) for key in ("acknowledged", "runs", "extra", "dead")}
    breaches = [breach for run in runs for breach in run["breaches"]]
    lines.append("")
    lines.append(
        f"{len(runs)} runs (seeds {min(r['seed'] for r in runs)} to {max(r['seed'] for r in runs)}): "
        f"{total['acknowledged']:,} jobs acknowledged, {total['runs']:,} runs, {total['extra']:,} of them again, "
        f"{total['dead']:,} dead as meant; write-ahead log at most {max(r['wal_most_mb'] for r in runs)} MB; "
        f"{len(breaches)} breaches{': ' + '; '.join(breaches) if breaches else ''}."
    )
    return "\n".join(lines)


def main() -> int:
    """Parse, run, check, report; 1 on any breach."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what it started ends with it
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=None, help="replays the choices of a run (default: a new one)")
    parser.add_argument("--faults", default=",".join(WEIGHTS), help="comma-separated, of: " + ", ".join(WEIGHTS))
    parser.add_argument("--rate", type=float, default=120, help="jobs enqueued per second")
    parser.add_argument("--gap", type=float, default=0.12, help="mean seconds between faults")
    parser.add_argument("--keep", metavar="DIR", help="copy the run's files there")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--summarize", metavar="FILE", help="no run: a table of runs recorded with --json, a line each")
    options = parser.parse_args()
    if options.summarize:
        print(summary([json.loads(line) for line in Path(options.summarize).read_text().splitlines()]))
        return 0
    options.faults = [name for name in options.faults.split(",") if name]
    if unknown := [name for name in options.faults if name not in WEIGHTS]:
        parser.error(f"unknown fault {unknown[0]}; choose from {', '.join(WEIGHTS)}")
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(10**9)
    with workspace(options) as folder, tempfile.TemporaryDirectory(prefix="pool-chaos-notes-") as notes:
        chaos = Chaos(options, folder, Path(notes))
        try:
            chaos.run()
        finally:
            chaos.over.set()
            if chaos.pool.poll() is None:
                chaos.pool.kill()
                chaos.pool.wait()
        counts = chaos.check()
        report(chaos, counts, options.json)
        if options.keep:
            shutil.copytree(folder, options.keep, dirs_exist_ok=True)
            shutil.copytree(notes, options.keep, dirs_exist_ok=True)
    return 1 if chaos.breaches else 0


if __name__ == "__main__":
    sys.exit(main())
