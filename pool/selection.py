"""Which jobs: one description for lists, bulk changes and the dashboard, and the SQL that finds them fast."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

from pool.clock import LATEST, parse_utc, utc_text
from pool.errors import UsageError
from pool.store import SQL, Row, Store
from pool.store.sqlite import spelled_out

#: What a job can be listed under: its four states, the queued ones that are not due yet, and the archive, which is a
#: table of its own.
STATUSES = ("queued", "scheduled", "running", "done", "dead", "archive")
#: An index that leaves fewer rows than this is followed and its rows sorted; otherwise rows are taken in the
#: order of the list until there are enough, which is quick because so many match.
NARROW = 50_000
#: The longest pattern LIKE takes is 50,000 bytes (sqlite.org/limits.html); no error's line comes near.
_LONGEST_TEXT = 2_000


@dataclass(frozen=True, slots=True)
class Selection:
    """Jobs that meet every condition given.

    Attributes:
        status: one of STATUSES; None for every job outside the archive.
        type: the job type.
        key: the idempotency key, or its beginning followed by ``*``.
        error: a text within the last error, upper and lower case alike; only jobs that failed have one.
        older: seconds; last changed (in the archive: archived) longer ago than that.
        newer: seconds; last changed more recently than that.
        ids: these jobs alone.
    """

    status: str | None = None
    type: str | None = None
    key: str | None = None
    error: str | None = None
    older: float | None = None
    newer: float | None = None
    ids: tuple[int, ...] = ()

    def checked(self) -> Self:
        """The same. Raises UsageError for what can never match."""
        if self.status is not None and self.status not in STATUSES:
            raise UsageError(f"status is one of {', '.join(STATUSES)}, not {self.status!r}")
        for name in ("older", "newer"):
            seconds = getattr(self, name)
            if seconds is not None and not 0 <= seconds <= LATEST:
                raise UsageError(f"{name} takes seconds from 0, not {seconds}")
        if self.older is not None and self.newer is not None and self.older >= self.newer:
            raise UsageError("no job is older than one age and newer than a smaller one; swap --older and --newer")
        for name in ("type", "key", "error"):
            value = getattr(self, name)
            if value is not None and (not value or len(value) > _LONGEST_TEXT or not _is_utf8(value)):
                raise UsageError(f"{name} takes a text of 1 to {_LONGEST_TEXT} characters, not {value[:80]!a}")
        return self

    @property
    def facts(self) -> dict[str, Any]:
        """The conditions that are given, by name; JSON-able."""
        given = ((name, getattr(self, name)) for name in self.__dataclass_fields__)
        return {name: value for name, value in given if value not in (None, ())}


class Cursor(NamedTuple):
    """Where a page ended: the id of its last job, and what the list is sorted by where that is not the id."""

    id: int
    at: str | bytes = ""

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Read what ``str()`` wrote. Raises UsageError."""
        job_id, _, at = text.partition("@")
        if not job_id.isascii() or not job_id.isdigit() or int(job_id) >= 2**63:
            raise UsageError(f"a page begins after ID or ID@TIME, as the page before it said, not {text[:80]!r}")
        return cls(int(job_id), at)

    def __str__(self) -> str:
        if not self.at:
            return f"{self.id}"
        at = self.at.encode("utf-8", "backslashreplace") if isinstance(self.at, str) else self.at
        return f"{self.id}@{at.decode('utf-8', 'backslashreplace')}"


class Page(NamedTuple):
    """Rows with their columns as keys, and where the next page begins; None when this is the last."""

    rows: list[Row]
    next: Cursor | None


def page(store: Store, selection: Selection, now: str, limit: int, after: Cursor | None = None) -> Page:
    """One page of a list: queued and scheduled jobs by when they are due, dead and archived ones by when they became
    that, latest first; any others by id, newest first.

    Raises:
        UsageError: the selection can never match, or ``after`` is not of this list.
    """
    query = _Query(selection, now)
    order = _ORDER[selection.status]
    if after is not None and not after.at and order != "by_id":
        raise UsageError(f"this list is sorted by time, so a page begins after ID@TIME, not after {after.id} alone")
    with reading(store):
        picked = query.pick(store, query.source(store), order, limit, after)
        statement = "selected_archive" if selection.status == "archive" else "selected_jobs"
        found = {row["id"]: row for row in store.rows(statement, ids=json.dumps([each.id for each in picked]))}
    return Page([found[each.id] for each in picked], picked[-1] if len(picked) == limit else None)


@contextlib.contextmanager
def reading(store: Store) -> Iterator[None]:
    """Several reads that see one state, within a transaction that is open already, too. A stranger's text that is not
    UTF-8 comes spelled out and hides nothing else."""
    connection = store.connection
    began = not connection.in_transaction
    if began:
        connection.execute("BEGIN")
    try:
        with _text_as(store, spelled_out):
            yield
    finally:
        if began:
            connection.execute("COMMIT")


@contextlib.contextmanager
def _text_as(store: Store, factory: Callable[[bytes], str]) -> Iterator[None]:
    connection = store.connection
    before, connection.text_factory = connection.text_factory, factory
    try:
        yield
    finally:
        connection.text_factory = before


def _exact(text: bytes) -> str:
    return text.decode("utf-8", "surrogateescape")


def walk(store: Store, selection: Selection, now: str, size: int) -> Iterator[list[int]]:
    """Ids of all jobs selected, ``size`` at a time, in whatever order is cheapest; a job that comes to match
    meanwhile may be missed, and none comes twice unless its own place in that order has moved."""
    query = _Query(selection, now)
    source = query.source(store)
    after = None
    while picked := query.pick(store, source, source.order, size, after):
        yield [each.id for each in picked]
        after = picked[-1]


def still(store: Store, selection: Selection, now: str, ids: list[int]) -> list[int]:
    """Which of these jobs are selected now; asked within the transaction that changes them."""
    query = _Query(replace(selection, ids=tuple(ids)), now)
    return [each.id for each in query.pick(store, query.source(store), "by_id", len(ids), None)]


def count(store: Store, selection: Selection, now: str) -> int:
    """How many are selected; each is visited, so this takes a while where millions are."""
    query = _Query(selection, now)
    return query.count(store, query.source(store))


class _Source(NamedTuple):
    """An index to follow: the part that names it, the order it yields, and the conditions that it serves."""

    part: str
    order: str
    serves: tuple[str, ...] = ()


_JOBS = _Source("from_jobs", "by_id")
_TYPE = _Source("from_type", "by_id", ("type",))
_KEY = _Source("from_key", "by_key", ("key", "key_from", "key_to"))
_FAILED = _Source("from_failed", "by_id")
_NATURAL = {
    None: _JOBS,
    "done": _JOBS,
    "queued": _Source("from_queued", "by_due", ("status_queued",)),
    "scheduled": _Source("from_queued", "by_due", ("status_scheduled",)),
    "running": _Source("from_running", "by_id", ("status_running",)),
    "dead": _Source("from_dead", "by_change", ("status_dead",)),
    "archive": _Source("from_archive", "by_archived"),
}
_ARCHIVE_IDS = _Source("from_archive_ids", "by_id")
_ARCHIVE_TYPE = _Source("from_archive_type", "by_id", ("type",))
_ARCHIVE_KEY = _Source("from_archive_key", "by_key", ("key", "key_from", "key_to"))
_ORDER = {status: source.order for status, source in _NATURAL.items()}


class _Query:
    """A selection as parts of SQL and the values they bind."""

    def __init__(self, selection: Selection, now: str) -> None:
        self._selection = selection = selection.checked()
        self._now = now
        archived = selection.status == "archive"
        self._parts: list[str] = []
        self.bound: dict[str, object] = {"now": now}
        if selection.status is not None and not archived:
            self._parts.append(f"status_{selection.status}")
        if selection.ids:
            self._add("ids", json.dumps(selection.ids))
        if selection.type is not None:
            self._add("type", selection.type)
        if selection.key is not None:
            self._add_key(selection.key)
        if selection.error is not None:
            escaped = selection.error.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
            self._add("error", f"%{escaped}%")
        for name, seconds in (("older", selection.older), ("newer", selection.newer)):
            if seconds is not None:
                self._parts.append(f"archive_{name}" if archived else name)
                self.bound[name] = utc_text(parse_utc(now) - seconds)

    def _add(self, part: str, value: object) -> None:
        self._parts.append(part)
        self.bound[part] = value

    def _add_key(self, key: str) -> None:
        if not key.endswith("*"):
            self._add("key", key)
            return
        self._parts.append("key_from")
        self.bound["key"] = key[:-1]
        if end := _after_prefix(key[:-1]):
            self._parts.append("key_to")
            self.bound["key_end"] = end

    def source(self, store: Store) -> _Source:
        """The index to follow: the one that leaves fewest rows, or where all leave many, the list's own."""
        selection = self._selection
        archived = selection.status == "archive"
        natural = _NATURAL[selection.status]
        if selection.ids:
            return _ARCHIVE_IDS if archived else _JOBS
        if selection.key is not None and not selection.key.endswith("*"):
            return _ARCHIVE_KEY if archived else _KEY
        narrower = []
        if selection.type is not None:
            narrower.append(_ARCHIVE_TYPE if archived else _TYPE)
        if selection.key is not None:
            narrower.append(_ARCHIVE_KEY if archived else _KEY)
        if selection.error is not None and not archived:
            narrower.append(_FAILED)
        if not narrower or selection.status == "running":
            return natural
        if natural.serves:
            narrower.append(natural)
        counts = [self._count_to(store, source, NARROW) for source in narrower]
        if min(counts) < NARROW:
            return narrower[counts.index(min(counts))]
        in_order = [source for source in narrower if source.order == natural.order]
        return natural if natural.serves or archived or not in_order else in_order[0]

    def _count_to(self, store: Store, source: _Source, most: int) -> int:
        conditions = " ".join(SQL[f"part_{part}"] for part in self._parts if part in source.serves)
        sql = f"SELECT count(*) FROM (SELECT 1 {SQL[f'part_{source.part}']} {conditions} LIMIT {most})"
        return int(store.connection.execute(sql, self.bound).fetchall()[0][0])

    def pick(self, store: Store, source: _Source, order: str, limit: int, after: Cursor | None) -> list[Cursor]:
        """At most ``limit`` jobs after a place in an order."""
        parts = [f"pick_{order}", source.part, *self._parts]
        bound = {**self.bound, "limit": limit}
        if after is not None:
            parts.append(f"after_{order}")
            exact = after.at.encode("utf-8", "surrogateescape") if isinstance(after.at, str) else after.at
            bound |= {"after_id": after.id, "after_at": exact, "after_text": isinstance(after.at, str)}
            if order == "by_due" and "status_scheduled" in parts:
                # Of the two bounds the later one, for the same reason as below; what was listed may be due by now.
                earlier = isinstance(after.at, str) and exact < self._now.encode()
                parts.remove("after_by_due" if earlier else "status_scheduled")
                parts += [] if earlier else ["status_queued"]
            # Implied by the place; left in, the planner may take it for its bound and walk past all that went before.
            for implied, of in (("older", "by_change"), ("archive_older", "by_archived"), ("key_from", "by_key")):
                if order == of and implied in parts:
                    parts.remove(implied)
        sql = "\n".join(SQL[f"part_{part}"] for part in (*parts, f"order_{order}", "limit"))
        with _text_as(store, _exact):
            return [Cursor(*row) for row in store.connection.execute(sql, bound).fetchall()]

    def count(self, store: Store, source: _Source) -> int:
        """How many there are."""
        sql = "\n".join(SQL[f"part_{part}"] for part in ("count", source.part, *self._parts))
        return int(store.connection.execute(sql, self.bound).fetchall()[0][0])


def _after_prefix(prefix: str) -> str:
    """The least text that sorts after every text with this beginning (UTF-8 sorts as code points); "" for none."""
    while prefix:
        last = ord(prefix[-1])
        if last < 0x10FFFF:
            return prefix[:-1] + chr(0xE000 if last == 0xD7FF else last + 1)
        prefix = prefix[:-1]
    return ""


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
