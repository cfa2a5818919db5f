"""A job's code may write over the page that its worker shares: the supervisor's loop bears whatever it reads there."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from pool import slot
from pool.slot import Slot, State


@pytest.fixture
def page() -> Iterator[Slot]:
    fd = Slot.create_fd()
    made = Slot(fd)
    yield made
    made.close()
    os.close(fd)


def test_what_a_worker_handles_is_read_as_it_was_told(page: Slot) -> None:
    assert page.types() is None
    page.tell_types(["b", "a", "é"])
    assert page.types() == ["a", "b", "é"]


@pytest.mark.parametrize("value", [-1, 6, 2**63 - 1, -(2**63)])
def test_a_state_that_is_none_counts_as_busy_so_that_the_job_s_limits_hold(page: Slot, value: int) -> None:
    page.words[slot.STATE] = value
    assert page.snapshot().state == State.BUSY


@pytest.mark.parametrize("value", [-1, 4, 2**63 - 1, -(2**63)])
def test_types_that_were_written_over_are_not_known(page: Slot, value: int) -> None:
    page.tell_types(["a"])
    page.words[slot._TYPES] = value
    assert page.types() is None
    page.words[slot._TYPES] = 5
    page.words[slot._TYPES + 1] = value
    assert page.types() is None
