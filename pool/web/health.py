"""What machines ask: is the dashboard up, may the queue be relied on, and the metrics."""

from __future__ import annotations

import sqlite3
import time
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from pool.clock import parse_utc
from pool.errors import DatabaseUnusable
from pool.web.reading import Look
from pool.web.site import Site

#: A pool that says nothing for so long counts as gone, also where we cannot see its process.
SILENT_SECONDS = 60.0
_AT_WORK = ("running", "reloading")


def healthz(site: Site, request: Request) -> Response:
    """The process answers and can read the database."""
    try:
        with site.stores.take() as store:
            store.value("count_running")
    except (sqlite3.Error, DatabaseUnusable):
        return JSONResponse({"status": "failed", "database": "cannot be read"}, 503)
    return JSONResponse({"status": "ok", "database": "readable"})


def readyz(site: Site, request: Request) -> Response:
    """Jobs that become due now will run soon: a pool is at work, claims are not paused, and none waits for long."""
    try:
        look = site.looks.get(exact=False)
    except (sqlite3.Error, DatabaseUnusable):
        return JSONResponse({"status": "not ready", "checks": {"database": False}}, 503)
    checks = {
        "database": True,
        "pool": any(_is_at_work(pool) for pool in look.status["pools"]),
        "not_paused": look.pause is None,
        "oldest_due": oldest_due_age(look) <= site.settings.ready_age,
    }
    facts: dict[str, Any] = {
        "status": "ready" if all(checks.values()) else "not ready",
        "checks": checks,
        "oldest_due_age_seconds": oldest_due_age(look),
        "limit_seconds": site.settings.ready_age,
    }
    return JSONResponse(facts, 200 if all(checks.values()) else 503)


def oldest_due_age(look: Look) -> float:
    """Seconds for which the oldest due job has waited; 0 when none is due."""
    age = look.status["oldest_age_s"]
    return float(age) if age is not None else 0.0


def metrics(site: Site, request: Request) -> Response:
    """The Prometheus text format."""
    from pool import metrics as exported

    look = site.looks.get()
    facts = exported.Facts(look.status, look.counters, look.pause is not None, look.wal_bytes, look.database_bytes)
    return Response(exported.render(facts), media_type=exported.CONTENT_TYPE)


def _is_at_work(pool: dict[str, Any]) -> bool:
    try:
        silent = time.time() - parse_utc(pool["seen_at"]) > SILENT_SECONDS
    except ValueError:
        silent = True
    return bool(pool["alive"]) and pool["state"] in _AT_WORK and not silent
