"""One measurement of one peer, in the peers' own virtual environment:
`python peer_side.py MEASURE PEER FOLDER COUNT [ITERATIONS]` prints one JSON object.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import sys
import time
from collections.abc import Iterable

from peer_adapters import HERE, PEERS, Peer
from peer_work import FOLDER, NAME

PATIENCE = 180.0


def throughput(peer: Peer, count: int, iterations: int) -> dict[str, float]:
    """Jobs enqueued first, then worked off: end to end from the workers' start, and steadily (without a fifth of
    them, in which the workers start)."""
    began = time.monotonic_ns()
    for number in range(count):
        peer.put("noop", number)
    enqueued = (time.monotonic_ns() - began) / 1e9
    began = time.monotonic_ns()
    peer.start()
    told = _told("noop", count)
    time.sleep(0.2)
    told = _told("noop", count)
    at = sorted(each[1] for each in told)
    skipped = count // 5
    return {
        "enqueue": count / enqueued,
        "end_to_end": count / ((at[-1] - began) / 1e9),
        "steady": (len(at) - skipped) / ((at[-1] - at[skipped - 1]) / 1e9),
        "lost": count - len({number for number, _ in told}),
        "twice": len(told) - len({number for number, _ in told}),
    }


def pickup(peer: Peer, count: int, iterations: int) -> dict[str, float]:
    """Milliseconds from the enqueue's beginning to the job's on idle workers."""
    _warm(peer)
    chance, at = random.Random(count), []
    for number in range(count):
        time.sleep(chance.uniform(0.03, 0.06))
        at.append(time.monotonic_ns())
        peer.put("pickup", number)
    waits = sorted((moment - at[number]) / 1e6 for number, moment in _told("pickup", count))
    return {"p50": waits[len(waits) // 2], "p99": waits[int(len(waits) * 0.99)]}


def cpu(peer: Peer, count: int, iterations: int) -> dict[str, float]:
    """Busy jobs a second of workers that are there."""
    _warm(peer)
    began = time.monotonic_ns()
    for _ in range(count):
        peer.put("spin", iterations)
    return {"rate": count / ((max(at for _, at in _told("spin", count)) - began) / 1e9)}


def _warm(peer: Peer) -> None:
    peer.start()
    for number in range(4):
        peer.put("warm", number)
    _told("warm", 4)
    time.sleep(0.7)


def _told(kind: str, count: int) -> list[tuple[int, int]]:
    """Number and moment of the jobs of a kind that ran, once there are so many."""
    give_up = time.monotonic() + PATIENCE
    path = os.path.join(FOLDER, "log")
    wanted = kind.encode()
    while time.monotonic() < give_up:
        with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
            data = file.read()
            if data.count(b"\n") >= count:
                lines = [line.split() for line in data.splitlines()]
                found = [(int(number), int(at)) for name, number, at in lines if name == wanted]
                if len(found) >= count:
                    return found
        time.sleep(0.02)
    raise TimeoutError(f"{NAME}: fewer than {count} {kind} jobs ran within {PATIENCE:g} s")


def loop(peer: Peer) -> None:
    """A worker for peers that have none: look for a job, sleep 10 ms when there is none."""
    while True:
        if not peer.take():
            time.sleep(0.01)


def main(arguments: Iterable[str]) -> None:
    """See the file's first lines; the environment names the peer, for what its own commands import."""
    measure, name, folder, count, *iterations = arguments
    if os.environ.get("PEER_NAME") != name or os.environ.get("PEER_FOLDER") != folder:
        paths = os.pathsep.join(filter(None, [HERE, os.environ.get("PYTHONPATH")]))
        os.environ.update(PEER_NAME=name, PEER_FOLDER=folder, PYTHONPATH=paths, PYTHONWARNINGS="ignore")
        os.execv(sys.executable, [sys.executable, *sys.argv])
    peer = PEERS[name]()
    peer.setup()
    if measure == "loop":
        loop(peer)
    try:
        found = MEASURES[measure](peer, int(count), int(iterations[0]) if iterations else 0)
    finally:
        peer.stop()
    print(json.dumps(found))


MEASURES = {"throughput": throughput, "pickup": pickup, "cpu": cpu}

if __name__ == "__main__":
    main(sys.argv[1:])
