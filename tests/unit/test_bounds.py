"""How long a worker may stay in a state, and how often it may die: pure functions, so no process is needed."""

from __future__ import annotations

import pytest

from pool.slot import Snapshot, State
from pool.supervisor.bounds import DEGRADED_DEATHS, PROBE_SECONDS, RestartBudget, next_deadline, overdue

SECOND = 1_000_000_000


def seen(state: State, *, deadline: float = 0, stall: float = 0, moved: float = 100) -> Snapshot:
    at = {"started": 100, "deadline": deadline, "stall": stall, "moved": moved}
    times = {name: int(seconds * SECOND) for name, seconds in at.items()}
    return Snapshot(state=state, job_id=1, attempt=1, output=0, **times)


@pytest.mark.parametrize(
    ("snapshot", "now", "silent", "reason"),
    [
        (seen(State.BOOT), 129.9, 0, None),
        (seen(State.BOOT), 130.1, 0, "not ready after 30 s"),
        (seen(State.BUSY), 1e6, 1e6, None),  # no timeout: while a job runs, nothing else decides
        (seen(State.BUSY, deadline=105), 104.9, 1e6, None),
        (seen(State.BUSY, deadline=105), 105, 0, "timeout after 5 s"),
        (seen(State.BUSY, stall=3, moved=102), 104.9, 0, None),
        (seen(State.BUSY, stall=3, moved=102), 105, 0, "stalled: no progress for 3 s"),
        (seen(State.SETTLING, deadline=105), 159, 0, None),  # a job that is over cannot time out
        (seen(State.SETTLING), 160.1, 0, "stuck for 60 s while its result was written"),
        (seen(State.IDLE), 1e6, 30, None),
        (seen(State.IDLE), 1e6, 30.1, "silent for 30 s while idle"),
        (seen(State.PAUSED), 1e6, 30.1, "silent for 30 s while idle"),
    ],
)
def test_each_state_has_its_bound(snapshot: Snapshot, now: float, silent: float, reason: str | None) -> None:
    found = overdue(snapshot, now, 100, silent)
    assert (found and found.reason) == reason


def test_the_next_deadline_is_that_of_the_timeout_or_the_stall() -> None:
    assert next_deadline(seen(State.IDLE, deadline=105)) == float("inf")
    assert next_deadline(seen(State.BUSY)) == float("inf")
    assert next_deadline(seen(State.BUSY, deadline=105, stall=3)) == 103
    assert next_deadline(seen(State.BUSY, deadline=102, stall=3)) == 102


def test_a_worker_that_dies_idle_again_and_again_is_replaced_ever_later() -> None:
    budget = RestartBudget()
    assert [budget.died(1, at, 0, 0) for at in (0.0, 100.0, 200.0, 300.0)] == [0.0, 0.5, 1.0, 2.0]


def test_a_settled_job_or_a_minute_alive_resets_the_pause() -> None:
    budget = RestartBudget()
    for at in (0.0, 100.0, 200.0):
        budget.died(1, at, 0, 0)
    assert budget.died(1, 300.0, 0, 1) == 0.0
    assert budget.died(1, 400.0, 60.0, 0) == 0.0


def test_many_deaths_in_a_minute_make_it_degraded_until_they_are_old() -> None:
    budget = RestartBudget()
    pauses = [budget.died(number, 0.0, 0, 0) for number in range(DEGRADED_DEATHS + 1)]
    assert pauses == [0.0] * DEGRADED_DEATHS + [PROBE_SECONDS]
    assert budget.is_degraded(60.0) and not budget.is_degraded(60.1)
