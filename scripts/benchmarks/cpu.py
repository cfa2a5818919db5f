"""Handlers that need a processor: two workers against one, and against a plain executor that keeps nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from benchmarks import photos
from benchmarks.figures import Section, alternate, progress
from benchmarks.jobs import spin
from benchmarks.options import Options
from benchmarks.running import Pool, place
from handlers.thumbnail import make_thumbnail

TITLE = "CPU-bound handlers: spinning for 20 ms, and thumbnails of 12 MP JPEGs"
SPIN_SECONDS = 0.02
MEGAPIXELS = 12

#: A handler's type, its payloads, the plain function and its argument tuples.
Work = tuple[str, list[dict[str, Any]], Callable[..., object], list[tuple[Any, ...]]]


def run(section: Section, options: Options) -> None:
    """Both kinds of work on one worker, two workers, and a ProcessPoolExecutor of two."""
    with place() as where:
        photo = os.path.join(where.folder, "photo.jpg")
        photos.run_step("paint", str(MEGAPIXELS), photo)
        for name, work in (
            ("spin", _spins(options.size(200))),
            ("thumbnails", _photos(photo, where.folder, options.size(60))),
        ):
            _compare(section, options, name, work)


def _compare(section: Section, options: Options, name: str, work: Work) -> None:
    progress(f"{name}: {len(work[1])} jobs on 1 worker, 2 workers and an executor of 2")
    sides = {
        "one": lambda: pool_rate(work, 1),
        "two": lambda: pool_rate(work, 2),
        "executor": lambda: executor_rate(work),
    }
    found = alternate(options.reps, sides)
    section.add(f"{name}, 1 worker", found["one"], "/s")
    section.add(f"{name}, 2 workers", found["two"], "/s")
    section.add(f"{name}, ProcessPoolExecutor(2), nothing kept", found["executor"], "/s")
    section.ratio(f"{name}, 2 workers : 1", found["two"], found["one"], at_least=1.85)
    section.ratio(f"{name}, 2 workers : executor", found["two"], found["executor"], at_least=0.97)


def pool_rate(work: Work, workers: int) -> float:
    """Jobs a second of a pool that is ready, from the first enqueue to the last end."""
    type, payloads, _, _ = work
    with place() as where, Pool(where, workers), where.queue() as queue:
        began = time.monotonic_ns()
        queue.enqueue_many((type, payload) for payload in payloads)
        ends = where.wait_for("end", len(payloads))
        return len(payloads) / ((max(line.at for line in ends) - began) / 1e9)


def executor_rate(work: Work) -> float:
    """Jobs a second of a ProcessPoolExecutor whose processes are there and have their imports."""
    _, _, function, arguments = work
    with ProcessPoolExecutor(2) as executor:
        for warm in [executor.submit(function, *arguments[0]) for _ in range(4)]:
            warm.result()
        began = time.monotonic_ns()
        _wait(executor.submit(function, *each) for each in arguments)
        return len(arguments) / ((time.monotonic_ns() - began) / 1e9)


def _wait(futures: Iterable[Any]) -> None:
    for future in list(futures):
        future.result()


def _spins(count: int) -> Work:
    iterations = calibrated()
    return "spin", [{"iterations": iterations}] * count, spin, [(iterations,)] * count


def _photos(photo: str, folder: str, count: int) -> Work:
    payloads = [{"source": photo, "dest": os.path.join(folder, f"{number}.jpg")} for number in range(count)]
    return "photo", payloads, make_thumbnail, [(each["source"], each["dest"], 256) for each in payloads]


def calibrated(seconds: float = SPIN_SECONDS) -> int:
    """Iterations of ``spin`` that take so long here: the best of several tries."""
    tries = []
    for _ in range(10):
        began = time.perf_counter()
        spin(100_000)
        tries.append(time.perf_counter() - began)
    return int(100_000 * seconds / min(tries))
