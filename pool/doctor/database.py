"""Checks of what is in the file: soundness, schema, plans, settings."""

from __future__ import annotations

import collections
import contextlib
import sqlite3
from typing import Any

from pool.doctor.finding import Finding, InsideCheck, Opened, fail, ok, size, warn
from pool.retention import FREE_PAGES, FREE_SHARE
from pool.store import SQL
from pool.store.sqlite import PAGE_SIZE, connect, schema_version
from pool.store.statements import load_migrations

#: What a pool runs all the time, and the index by which each has to find its jobs.
_HOT = {
    "id_of_key": "sqlite_autoindex_jobs_1",
    **dict.fromkeys(("next_due", "next_due_group"), "jobs_claim"),
    **dict.fromkeys(
        ("claim", "claim_group", "complete", "complete_group", "fail", "crash", "give_back", "renew", "expire"),
        "PRIMARY KEY",
    ),
    **dict.fromkeys(("held_by", "renew_held", "cancel_requests"), "jobs_running"),
    **dict.fromkeys(("due_count", "next_run_at"), "jobs_due"),
}


def integrity(opened: Opened) -> Finding:
    """Whether the file is sound (sqlite.org/pragma.html#pragma_integrity_check)."""
    check = "integrity_check" if opened.subject.full else "quick_check"
    faults = [str(row[0]) for row in opened.connection.execute(f"PRAGMA {check}(5)").fetchall()]
    if faults == ["ok"]:
        hint = "" if opened.subject.full else " (--full compares indexes, too)"
        return ok("integrity", f"{check} found no fault{hint}")
    return fail("integrity", f"the file is damaged: {'; '.join(faults)}", "stop all pools; pool restore SOURCE --force")


def schema(opened: Opened) -> Finding:
    """Whether it has the tables, columns and indexes that this version makes."""
    version, ours = schema_version(opened.connection), len(load_migrations())
    if version == 0:
        return fail("schema", "it has no jobpool tables", "name another file with --db")
    if version > ours:
        return fail("schema", f"version {version}, and this jobpool knows {ours}", "upgrade jobpool")
    if version < ours:
        return warn("schema", f"version {version} of {ours}", "nothing: it is brought up to date when next opened")
    with contextlib.closing(connect(":memory:")) as fresh:
        wanted, there = _tables(fresh), _tables(opened.connection)
        for table, columns in wanted.items():
            if missing := [name for name in columns if name not in there.get(table, ())]:
                return fail("schema", f"{table} lacks {', '.join(missing)}", "restore a backup; somebody changed it")
        have = set(_indexes(opened.connection))
        lost = {name: sql for name, sql in _indexes(fresh).items() if name not in have}
    if lost:
        return warn("schema", f"lacks the index {', '.join(lost)}", f"run in SQLite: {'; '.join(lost.values())};")
    return ok("schema", f"version {version}, whole")


def plans(opened: Opened) -> Finding:
    """Whether what a pool runs all the time finds its jobs by an index."""
    nothing: collections.defaultdict[str, Any] = collections.defaultdict(lambda: None)
    for name, index in _HOT.items():
        steps = [row[3] for row in opened.connection.execute(f"EXPLAIN QUERY PLAN {SQL[name]}", nothing).fetchall()]
        if not any(index in step for step in steps):
            todo = "see schema above; or somebody's ANALYZE misleads SQLite: DROP TABLE sqlite_stat1"
            return warn("plans", f"the statement {name} does not use {index} ({'; '.join(steps)})", todo)
    return ok("plans", f"{len(_HOT)} statements find their jobs by an index")


def settings(opened: Opened) -> Finding:
    """How the file was made."""
    page, vacuum = opened.pragma("page_size"), opened.pragma("auto_vacuum")
    said = f"pages of {page} bytes"
    if opened.logged:
        said = f"journal {opened.pragma('journal_mode')}, synced as NORMAL, {said}"
    if page != PAGE_SIZE:
        said += f", not {PAGE_SIZE}, so a claim writes more to the log"
    said += ", and it can shrink" if vacuum == 2 else ", and it never shrinks (auto_vacuum is off)"
    return ok("settings", said)


def free_pages(opened: Opened) -> Finding:
    """How much of the file is empty."""
    free, total = int(opened.value("free_pages")), int(opened.value("all_pages"))
    page = int(opened.pragma("page_size"))
    said = f"{free / max(total, 1):.0%} of {size(total * page)} is free for new jobs"
    if free > 2 * FREE_SHARE * total and free > 4 * FREE_PAGES:
        how = "VACUUM in SQLite makes it smaller at once, with all pools stopped"
        if opened.pragma("auto_vacuum") == 2:
            how = f"nothing: an idle pool makes it smaller bit by bit; or {how}"
        return warn("free pages", said, how)
    return ok("free pages", said)


CHECKS: tuple[InsideCheck, ...] = (integrity, schema, plans, settings, free_pages)


def _tables(connection: sqlite3.Connection) -> dict[str, list[str]]:
    rows = connection.execute(
        "SELECT m.name, c.name FROM sqlite_schema AS m, pragma_table_info(m.name) AS c WHERE m.type = 'table'"
    ).fetchall()
    found: dict[str, list[str]] = {}
    for table, column in rows:
        found.setdefault(table, []).append(column)
    return found


def _indexes(connection: sqlite3.Connection) -> dict[str, str]:
    rows = connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL").fetchall()
    return {name: " ".join(sql.split()) for name, sql in rows}
