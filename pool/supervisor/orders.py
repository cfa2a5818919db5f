"""What people ask of a pool through the database: to scale, to reload, to pause, to cancel jobs."""

from __future__ import annotations

from typing import NamedTuple

from pool.clock import parse_utc
from pool.store import Store


class Orders(NamedTuple):
    """What people asked of this pool."""

    target: int | None
    reload: bool
    pause: str  # why claims are paused, empty when they are not
    cancels: tuple[tuple[int, str], ...]  # job, worker


class OrderBook:
    """Reads them, and remembers what was obeyed. ``next_at``: when, in seconds since the epoch, a pause ends."""

    def __init__(self, store: Store, pool_id: int) -> None:
        self.next_at = float("inf")
        self._store = store
        self._pool_id = pool_id
        self._reload_at: str | None = None
        self._passed = Orders(None, False, "", ())

    @property
    def paused(self) -> bool:
        """Whether no job is claimed."""
        return bool(self._passed.pause)

    def fresh(self, now: str, low_space: str) -> Orders | None:
        """Orders that are not obeyed yet; None when there are none. ``low_space`` is a reason to pause, too."""
        store = self._store
        own = store.rows("pool_orders", pool=self._pool_id)
        target = own[0]["wanted_target"] if own else None
        reload_at = own[0]["reload_requested_at"] if own else None
        if target is not None:
            store.change("target_taken", pool=self._pool_id, target=target)
        pause = store.rows("current_pause", now=now)
        reason = low_space or (f"paused by {pause[0]['by']}: {pause[0]['reason']}" if pause else "")
        cancels = tuple((row["id"], row["locked_by"]) for row in store.rows("cancel_requests"))
        self.next_at = instant(pause[0]["until"]) if pause and pause[0]["until"] else float("inf")
        orders = Orders(target, reload_at != self._reload_at, reason, cancels)
        self._reload_at = reload_at
        if orders == self._passed and not cancels:
            return None
        self._passed = orders._replace(target=None, reload=False)
        return orders


def instant(text: str) -> float:
    """Seconds since the epoch of a time that a stranger may have written: one that is none sorts after every time."""
    try:
        return parse_utc(text)
    except ValueError:
        return float("inf")
