"""What workers count reaches the database whole: exact sums, many processes, and workers that die."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from pool import slot
from pool.slot import Slot
from pool.supervisor.tally import Tally


@dataclass
class Child:
    """As much of a supervisor's child as a tally looks at."""

    pid: int
    slot: Slot


def child(pid: int) -> Any:
    fd = Slot.create_fd()
    made = Child(pid, Slot(fd))
    os.close(fd)
    return made


def ran(worker: Any, type: str, *microseconds: int) -> None:
    words, tally = worker.slot.words, worker.slot.tally(type)
    for each in microseconds:
        words[tally + slot.RUN + each.bit_length()] += 1
        words[tally + slot.RUN_SUM] = (words[tally + slot.RUN_SUM] + each) & slot.LARGEST_SUM


def runs(found: Any, type: str) -> tuple[int, int]:
    """How many, and their sum."""
    return sum(n for (name, label, _), n in found.items() if (name, label) == ("run", type)), found["run_us", type, 0]


def test_sums_of_many_workers_are_exact_and_taken_once() -> None:
    tally, first, second = Tally(), child(1), child(2)
    ran(first, "a", 7, 1_000_003)
    ran(second, "a", 90)
    ran(second, "b", 5)
    for each in (first, second, first):
        tally.collect(each)
    found = tally.take()
    assert (runs(found, "a"), runs(found, "b")) == ((3, 1_000_100), (1, 5))
    assert not tally.take()
    ran(first, "a", 11)
    tally.collect(first)
    assert tally.take() == {("run", "a", 4): 1, ("run_us", "a", 0): 11}


def test_what_a_worker_counted_before_its_death_is_kept_and_its_successor_starts_anew() -> None:
    tally, worker = Tally(), child(1)
    ran(worker, "a", 10)
    tally.collect(worker)
    ran(worker, "a", 20)
    tally.bury(worker, "crashed", failed=False)
    other = child(1)  # the kernel gave it the same pid
    ran(other, "a", 40)
    tally.collect(other)
    found = tally.take()
    assert runs(found, "a") == (3, 70) and found["restarts", "crashed", 0] == 1


def test_a_sum_that_began_anew_in_its_word_goes_on() -> None:
    tally, worker = Tally(), child(1)
    for _ in range(3):
        words, at = worker.slot.words, worker.slot.tally("a") + slot.RUN_SUM
        words[at] = (words[at] + slot.LARGEST_SUM - 5) & slot.LARGEST_SUM
        tally.collect(worker)
    assert tally.take()["run_us", "a", 0] == 3 * (slot.LARGEST_SUM - 5)


def test_a_worker_tells_its_types_once_and_none_when_they_are_too_many() -> None:
    worker = child(1)
    assert worker.slot.types() is None
    worker.slot.tell_types(["b", "ü", 'a"\n'])
    assert worker.slot.types() == ['a"\n', "b", "ü"]
    ran(worker, "x" * 300, 5)
    other = child(2)
    other.slot.tell_types(str(number) for number in range(10_000))
    assert other.slot.types() is None
    for number in range(40):  # the last tally ends before the types begin
        ran(worker, f"type {number}", 7)
    assert worker.slot.types() == ['a"\n', "b", "ü"]
