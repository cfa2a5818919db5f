"""The queue's counts: exact in a status, and bounds that say so in a glance."""

from __future__ import annotations

import time

import pytest

from pool import status
from pool.clock import utc_text
from pool.store import Store

NOW = time.time()


def fill(store: Store, due: int, later: int, dead: int, done: int) -> None:
    for number, state, at in ((due, "queued", -60), (later, "queued", 3600), (dead, "dead", -60), (done, "done", -60)):
        store.connection.executemany(
            "INSERT INTO jobs (type, payload, status, run_at) VALUES ('t', '{}', ?, ?)",
            [(state, utc_text(NOW + at))] * number,
        )


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long queue is one of more than twenty entries."""
    monkeypatch.setattr(status, "GLANCE", 20)
    monkeypatch.setattr(status, "FEW_DUE", 5)


@pytest.mark.parametrize(
    ("due", "later", "dead", "done"),
    [
        (0, 0, 0, 0),
        (3, 0, 1, 2),
        (9, 4, 2, 1),
        (4, 40, 3, 7),
        (40, 4, 3, 7),
        (1, 2, 40, 3),
        (5, 15, 0, 0),
        (0, 0, 20, 1),
    ],
)
def test_a_status_is_exact_and_a_glance_bounds_what_it_does_not_count(
    due: int, later: int, dead: int, done: int, store: Store
) -> None:
    fill(store, due, later, dead, done)
    true = {"queued": due + later, "queue_depth": due, "dead": dead, "done": done}
    found = status.status(store, NOW)
    assert {name: found[name] for name in true} == true
    seen, signs = status.glance(store, NOW)
    assert seen.keys() == found.keys()
    for name, number in true.items():
        sign = signs.get(name, "=")
        assert {"=": seen[name] == number, "≥": seen[name] <= number, "≤": seen[name] >= number}[sign], (name, sign)
    assert not signs or due + later + dead >= status.GLANCE
    assert signs or due + later + dead <= status.GLANCE
