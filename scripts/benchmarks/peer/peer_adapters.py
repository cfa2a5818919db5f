"""Other queues, and ours, doing the same work: one small adapter each, with the peer's defaults, two worker processes,
and its own command line where it has one. Imported by those command lines too, so each app stands here by its name.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from peer_work import DATABASE, FOLDER, NAME, WORKERS, work

HERE = os.path.dirname(os.path.abspath(__file__))


class Peer:
    """A queue with its workers. ``put`` one job; ``start`` the workers, which end with their process group."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []

    def setup(self) -> None:
        """Make the queue."""

    def put(self, kind: str, number: int) -> None:
        """Enqueue a job by the peer's usual call."""
        raise NotImplementedError

    def command(self) -> list[list[str]]:
        """The commands that run the workers; by default a process each of our loop over ``take``."""
        return [[sys.executable, os.path.join(HERE, "peer_side.py"), "loop", NAME, FOLDER, "0"]] * WORKERS

    def take(self) -> bool:
        """Run one job, in a process of our own; False when there was none."""
        raise NotImplementedError

    def start(self) -> None:
        """Start the workers."""
        with open(os.path.join(FOLDER, "workers.log"), "ab") as log:
            for command in self.command():
                self.processes.append(
                    subprocess.Popen(
                        command, cwd=HERE, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                    )
                )

    def stop(self) -> None:
        """End the workers: each command is the leader of a session of its own."""
        for each in self.processes:
            each.terminate()
        for each in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                each.wait(3)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(each.pid, signal.SIGKILL)
            each.wait()


def _script(name: str) -> str:
    return os.path.join(os.path.dirname(sys.executable), name)


class Jobpool(Peer):
    """Ours; ``jobpool-grouped`` lets up to 32 jobs share a transaction."""

    def setup(self) -> None:
        from pool import Queue

        self.queue = Queue(DATABASE)

    def put(self, kind: str, number: int) -> None:
        self.queue.enqueue("work", {"kind": kind, "number": number})

    def command(self) -> list[list[str]]:
        options = ["--db", DATABASE, "--workers", str(WORKERS), "--handlers", "peer_adapters"]
        return [[sys.executable, "-m", "pool", "run", *options]]


class Executor(Peer):
    """concurrent.futures.ProcessPoolExecutor: in memory. What is put before the start waits in a list."""

    def setup(self) -> None:
        self.waiting: list[tuple[str, int]] = []
        self.submit: Callable[[str, int], object] = lambda kind, number: self.waiting.append((kind, number))

    def put(self, kind: str, number: int) -> None:
        self.submit(kind, number)

    def start(self) -> None:
        from concurrent.futures import ProcessPoolExecutor

        self.pool: Any = ProcessPoolExecutor(WORKERS)
        self._begin(lambda kind, number: self.pool.submit(work, kind, number))

    def _begin(self, submit: Callable[[str, int], object]) -> None:
        self.submit = submit
        for kind, number in self.waiting:
            submit(kind, number)

    def stop(self) -> None:
        self.pool.shutdown(wait=True, cancel_futures=True)


class Pebble(Executor):
    """pebble.ProcessPool: in memory, with timeouts."""

    def start(self) -> None:
        self.pool = import_module("pebble").ProcessPool(max_workers=WORKERS)
        self._begin(lambda kind, number: self.pool.schedule(work, args=[kind, number]))

    def stop(self) -> None:
        self.pool.stop()
        self.pool.join()


class Huey(Peer):
    """huey on SQLite."""

    def put(self, kind: str, number: int) -> None:
        huey_job(kind, number)

    def command(self) -> list[list[str]]:
        return [[_script("huey_consumer"), "peer_adapters.huey", "-w", str(WORKERS), "-k", "process", "-q"]]


class Potatoq(Peer):
    """potatoq on SQLite."""

    def setup(self) -> None:
        potatoq_app.broker.setup()

    def put(self, kind: str, number: int) -> None:
        potatoq_job.delay(kind, number)

    def command(self) -> list[list[str]]:
        return [[_script("potatoq"), "-A", "peer_adapters:potatoq_app", "worker", "-c", str(WORKERS), "-l", "ERROR"]]


class Tinyjobs(Peer):
    """tinyjobs on SQLite."""

    def put(self, kind: str, number: int) -> None:
        tinyjobs_job.enqueue(kind, number)

    def command(self) -> list[list[str]]:
        return [
            [_script("tinyjobs"), "worker", "--app", "peer_adapters:tinyjobs_app", "--log-level", "ERROR"]
        ] * WORKERS


class Litequeue(Peer):
    """litequeue: a queue without workers of its own, so the loop is ours."""

    def setup(self) -> None:
        self.queue = import_module("litequeue").LiteQueue(DATABASE)

    def put(self, kind: str, number: int) -> None:
        self.queue.put(json.dumps([kind, number]))

    def take(self) -> bool:
        message = self.queue.pop()
        if message is not None:
            work(*json.loads(message.data))
            self.queue.done(message.message_id)
        return message is not None


class PersistQueue(Peer):
    """persist-queue's SQLiteAckQueue: a queue without workers of its own, so the loop is ours."""

    def setup(self) -> None:
        make = import_module("persistqueue").SQLiteAckQueue
        self.queue = make(os.path.join(FOLDER, "queue"), multithreading=True, auto_resume=False)

    def put(self, kind: str, number: int) -> None:
        self.queue.put([kind, number])

    def take(self) -> bool:
        try:
            item = self.queue.get(block=False, raw=True)
        except import_module("persistqueue").Empty:
            return False
        work(*item["data"])
        self.queue.ack(id=item["pqid"])
        return True


class SimpleBroker(Peer):
    """simplebroker's own watcher; a message is gone before it is handled."""

    def setup(self) -> None:
        self.queue = import_module("simplebroker").Queue("jobs", db_path=DATABASE, persistent=True)

    def put(self, kind: str, number: int) -> None:
        self.queue.write(json.dumps([kind, number]))

    def take(self) -> bool:
        watcher = import_module("simplebroker").QueueWatcher
        watcher(self.queue, lambda message, stamp: work(*json.loads(message))).run_forever()
        return False


PEERS: dict[str, type[Peer]] = {
    "jobpool": Jobpool,
    "jobpool-grouped": Jobpool,
    "executor": Executor,
    "pebble": Pebble,
    "huey": Huey,
    "potatoq": Potatoq,
    "tinyjobs": Tinyjobs,
    "litequeue": Litequeue,
    "persist-queue": PersistQueue,
    "simplebroker": SimpleBroker,
}

# What the peers' own commands import this file for: the peer is in the environment then.
if NAME.startswith("jobpool"):
    from pool import handler

    handler("work", group=32 if NAME == "jobpool-grouped" else 1)(work)
elif NAME == "huey":
    huey = import_module("huey").SqliteHuey("bench", filename=DATABASE)
    huey_job = huey.task()(work)
elif NAME == "potatoq":
    potatoq_app = import_module("potatoq").Potatoq("peer_adapters", broker="sqlite:///" + DATABASE)
    potatoq_job = potatoq_app.task(work)
elif NAME == "tinyjobs":
    tinyjobs_app = import_module("tinyjobs").TinyJobs("sqlite:///" + DATABASE)
    tinyjobs_job = tinyjobs_app.task(work)
