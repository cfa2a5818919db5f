"""Reads the database for pages: connections that follow the file, and one look at everything for all open tabs."""

from __future__ import annotations

import collections
import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pool.clock import now_text, utc_text
from pool.errors import DatabaseUnusable
from pool.status import glance, status
from pool.store import Row, Store
from pool.store.sqlite import wal_bytes

#: How long a page waits for a database that another holds.
BUSY_SECONDS = 5.0
#: A look at everything serves all tabs for so long, and for longer when it took long, so that it costs at most a
#: twentieth of a processor however large the queue is.
FRESH_SECONDS, COST_SHARE, STALEST_SECONDS = 1.0, 20.0, 10.0
_HOUR, _DAY = 3600, 86_400

Buckets = dict[int, int]


class Stores:
    """Open stores to borrow, one a thread at a time; a file that was replaced is opened anew."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._idle: collections.deque[tuple[Store, tuple[int, int]]] = collections.deque()
        self._pid = os.getpid()

    @contextlib.contextmanager
    def take(self) -> Iterator[Store]:
        """A store for the body of the ``with``. Raises DatabaseUnusable."""
        store, file = self._borrow()
        try:
            yield store
        except BaseException:
            store.close()  # it may be in the middle of something
            raise
        with self._lock:
            self._idle.append((store, file))

    def _borrow(self) -> tuple[Store, tuple[int, int]]:
        file = self._file()
        with self._lock:
            if self._pid != os.getpid():  # no SQLite handle crosses a fork, not even to be closed
                _inherited.extend(self._idle)
                self._idle.clear()
                self._pid = os.getpid()
            idle: list[tuple[Store, tuple[int, int]]] = []
            stale: list[tuple[Store, tuple[int, int]]] = []
            for each in self._idle:
                (idle if each[1] == file else stale).append(each)
            self._idle = collections.deque(idle)
            found = self._idle.pop() if self._idle else None
        for store, _ in stale:
            store.close()
        return found or (self._open(), file)

    def _open(self) -> Store:
        store = Store.open(self.path, busy_seconds=BUSY_SECONDS, create=False)
        # A stranger may have stored text that is not UTF-8; the page says so instead of failing.
        store.connection.text_factory = lambda raw: raw.decode("utf-8", "backslashreplace")
        return store

    def _file(self) -> tuple[int, int]:
        try:
            found = os.stat(self.path)
        except OSError as error:
            raise DatabaseUnusable(f"{self.path}: {error.strerror}; is it the right file?") from error
        return found.st_dev, found.st_ino

    def tend(self) -> None:
        """After a change: no pool may be there to keep the write-ahead log short."""
        with self.take() as store:
            store.tend_wal()

    def close(self) -> None:
        """Close those that nobody has borrowed."""
        with self._lock:
            for store, _ in self._idle:
                store.close()
            self._idle.clear()


_inherited: list[tuple[Store, tuple[int, int]]] = []


@dataclass(frozen=True, slots=True)
class Look:
    """Everything the overview and the metrics show, read at one time (``at``, seconds since the epoch).

    ``signs``: which counts of ``status`` are bounds, see pool.status.glance; empty where all are exact."""

    at: float
    status: dict[str, Any]
    signs: dict[str, str]
    pause: Row | None
    orders: dict[int, Row]
    minutes: dict[str, tuple[int, int]]
    types_last_hour: dict[str, tuple[int, int]]
    counters: dict[str, dict[str, Buckets]]
    recent_waits: Buckets
    recent_since: float | None
    wal_bytes: int
    database_bytes: int
    workers: list[dict[str, Any]] = field(default_factory=list)


class Looks:
    """The latest look, shared by all who ask; one at a time is taken.

    Nobody shall wait for a page. One that was good a moment ago is shown while the next is taken in a thread; where
    there is none such, a glance is, which says of a long queue that there are so many jobs at least. Open tabs are told
    of what was taken since.
    """

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._taking = threading.Lock()
        self._latest: Look | None = None
        self._renewing: threading.Thread | None = None
        #: By the monotonic clock, when the latest look is too old.
        self.good_until = float("-inf")
        #: Until when (monotonic) a tab may show a glance, and so has to be told to look again.
        self.glance_until = float("-inf")
        #: How many were taken so far.
        self.taken = 0
        self._changes = 0
        self._minutes: dict[str, tuple[int, int]] = {}
        self._whole_day_at = float(-_HOUR)
        #: (when, waits counted until then), a sample a minute, for the last hour
        self._samples: collections.deque[tuple[float, Buckets]] = collections.deque(maxlen=61)

    def get(self, *, exact: bool = True) -> Look:
        """A look that is a second old at most, or older where each takes long; if not ``exact``, one that was that a
        moment ago, or a glance."""
        latest = self._latest
        if latest is None or not self._serves(latest, exact):
            with self._taking:
                latest = self._latest  # somebody else may have taken it meanwhile
                if latest is None or not self._serves(latest, exact):
                    latest = self._renew(exact)
        if latest.signs or time.monotonic() >= self.good_until:
            self._renew_soon()
        return latest

    def forget(self) -> None:
        """Something was changed here: the next one is taken anew."""
        self._changes += 1
        self.good_until = float("-inf")

    def _serves(self, latest: Look, exact: bool) -> bool:
        late = time.monotonic() - self.good_until
        return late < 0 and not latest.signs if exact else late < STALEST_SECONDS

    def _renew(self, exact: bool) -> Look:
        """Take the next look; within ``_taking``."""
        began, used, changes = time.monotonic(), time.thread_time(), self._changes
        self._latest = latest = self._take(exact)
        self.taken += 1
        cost = time.thread_time() - used
        if changes == self._changes:
            self.good_until = began + min(max(FRESH_SECONDS, cost * COST_SHARE), STALEST_SECONDS)
        if latest.signs:
            self.glance_until = began + STALEST_SECONDS
        return latest

    def _renew_soon(self) -> None:
        if self._renewing is None or not self._renewing.is_alive():
            self._renewing = threading.Thread(target=self._renew_alone, name="look")
            self._renewing.start()

    def _renew_alone(self) -> None:
        # A database that cannot be read now is the matter of whoever asks next.
        with contextlib.suppress(sqlite3.Error, DatabaseUnusable), self._taking:
            if self._latest is None or not self._serves(self._latest, True):
                self._renew(True)

    def _take(self, exact: bool) -> Look:
        at = time.time()
        with self._stores.take() as store:
            found, signs = (status(store, at), {}) if exact else glance(store, at)
            counters = read_counters(store)
            waits = total(counters.get("wait", {}))
            since = self._sample(at, waits)
            pause = store.rows("current_pause", now=now_text())
            return Look(
                at=at,
                status=found,
                signs=signs,
                pause=pause[0] if pause else None,
                orders={
                    each["id"]: row for each in found["pools"] for row in store.rows("pool_orders", pool=each["id"])
                },
                minutes=self._day(store, at),
                types_last_hour=_types(store, at),
                counters=counters,
                recent_waits=_less(waits, since[1]) if since else waits,
                recent_since=since[0] if since else None,
                wal_bytes=wal_bytes(store.path),
                database_bytes=os.stat(store.path).st_size,
                workers=list(found["workers"]),
            )

    def _day(self, store: Store, at: float) -> dict[str, tuple[int, int]]:
        """What ended in each minute of the last day; all of it is read once a minute, the last minutes every time."""
        whole = time.monotonic() - self._whole_day_at >= 60
        if whole:
            self._minutes, self._whole_day_at = {}, time.monotonic()
        rows = store.rows("web_minutes", since=utc_text(at - (_DAY if whole else 180))[:16])
        self._minutes = {**self._minutes, **{row["minute"]: (row["done"], row["failed"]) for row in rows}}
        return self._minutes

    def _sample(self, at: float, waits: Buckets) -> tuple[float, Buckets] | None:
        """What had been counted an hour ago, or when this process began to look; None when that is only now."""
        while self._samples and at - self._samples[0][0] > _HOUR:
            self._samples.popleft()
        if not self._samples or at - self._samples[-1][0] >= 60:
            self._samples.append((at, waits))
        oldest = self._samples[0]
        return oldest if at - oldest[0] >= 60 and _less(waits, oldest[1]) else None


def read_counters(store: Store) -> dict[str, dict[str, Buckets]]:
    """What the pools have counted, ever: name, label, bucket."""
    found: dict[str, dict[str, Buckets]] = {}
    for row in store.rows("web_counters"):
        found.setdefault(row["name"], {}).setdefault(row["label"], {})[row["bucket"]] = row["value"]
    return found


def total(by_label: dict[str, Buckets]) -> Buckets:
    """The buckets of all labels together."""
    found: collections.Counter[int] = collections.Counter()
    for buckets in by_label.values():
        found.update(buckets)
    return dict(found)


def _less(now: Buckets, before: Buckets) -> Buckets:
    return {bucket: value - before.get(bucket, 0) for bucket, value in now.items() if value > before.get(bucket, 0)}


def _types(store: Store, at: float) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for row in store.rows("web_minutes_by_type", since=utc_text(at - _HOUR)[:16]):
        done, failed = found.get(row["type"], (0, 0))
        found[row["type"]] = (done + row["done"], failed + row["failed"])
    return found
