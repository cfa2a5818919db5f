"""Telling a person: an alert is a job like any other, so it is durable, retried, and handled by whatever he likes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from pool.clock import parse_utc
from pool.spec import new_job
from pool.store import Store

#: The type of job an URL stands for; ``handlers/webhook.py`` handles it.
WEBHOOK = "webhook"
#: Jobs named in one alert; the rest is counted.
NAMED = 10


@dataclass(slots=True)
class Alerts:
    """Looks for what a person asked to be told of. Several pools may look: the same news has one key and is told once.

    Attributes:
        on_dead: told when jobs died: a job type, or an http(s) URL that gets the facts as JSON.
        on_degraded: told when workers keep dying and nothing gets done.
        on_backlog: told when the oldest due job has waited for ``backlog_age`` seconds.
        since: UTC text; what died before is no news.
    """

    on_dead: str = ""
    on_degraded: str = ""
    on_backlog: str = ""
    backlog_age: float = 600.0
    since: str = ""
    _backlogged: bool = field(default=False)

    def check(self, store: Store, now: str) -> None:
        """Enqueue an alert for what is new: jobs that died, a backlog that grew old."""
        if self.on_dead:
            self._check_dead(store, now)
        if self.on_backlog:
            self._check_backlog(store, now)

    def degraded(self, store: Store, now: str, why: str) -> None:
        """Enqueue an alert that a pool is degraded."""
        if self.on_degraded:
            _tell(store, self.on_degraded, f"degraded:{now[:16]}", {"event": "degraded", "detail": why, "at": now})

    def _check_dead(self, store: Store, now: str) -> None:
        # An alert that died makes no further alert.
        own = {WEBHOOK, self.on_dead, self.on_degraded, self.on_backlog}
        rows = [row for row in store.rows("died_since", since=self.since) if row["type"] not in own]
        if not rows:
            return
        self.since = rows[-1]["updated_at"]
        named = [{"id": row["id"], "type": row["type"], "error": row["last_error"]} for row in rows[:NAMED]]
        facts = {"event": "dead", "count": len(rows), "jobs": named, "at": now}
        _tell(store, self.on_dead, f"dead:{self.since}:{rows[-1]['id']}", facts)

    def _check_backlog(self, store: Store, now: str) -> None:
        oldest = store.value("oldest_run_at")
        try:
            age = 0.0 if oldest is None else parse_utc(now) - parse_utc(oldest)
        except ValueError:
            return  # a stranger's text that is no time
        late = age >= self.backlog_age
        if late and not self._backlogged:
            facts = {"event": "backlog", "oldest_run_at": oldest, "age_seconds": round(age), "at": now}
            _tell(store, self.on_backlog, f"backlog:{oldest}", facts)
        self._backlogged = late


def is_url(target: str) -> bool:
    """Whether a target is an URL, not a job type."""
    return re.match(r"https?://", target) is not None


def _tell(store: Store, target: str, key: str, facts: dict[str, Any]) -> None:
    facts = {**facts, "database": store.path}
    if is_url(target):
        job = new_job(WEBHOOK, {"url": target, "body": facts}, f"alert:{key}", -1)
    else:
        job = new_job(target, facts, f"alert:{key}", -1)
    store.enqueue(job)
