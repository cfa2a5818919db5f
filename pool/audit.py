"""The record of what people changed: when, who, what, and how many jobs."""

from __future__ import annotations

import json
import os
import pwd
from typing import Any

from pool import process
from pool.store import Store


def who() -> str:
    """``user@host`` of this process, by its real user id, which the environment cannot change; under sudo(8) also who
    called it, as ``root (sudo by anna)@host``."""
    uid = os.getuid()
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = f"uid {uid}"
    caller = os.environ.get("SUDO_USER", "") if uid == 0 else ""
    return f"{name} (sudo by {caller})@{process.host()}" if caller else f"{name}@{process.host()}"


def record(
    store: Store, now: str, by: str, action: str, jobs: int, chosen: dict[str, Any] | None = None, detail: str = ""
) -> int:
    """Write a line of the record within the transaction that makes the change; its id, for ``add``.

    Args:
        now: UTC text.
        action: the verb the person used, such as ``retry``.
        jobs: how many jobs it changed.
        chosen: what the jobs were chosen by, JSON-able.
        detail: anything else worth knowing, such as a reason.
    """
    bound = {"at": now, "by": by, "action": action, "jobs": jobs, "filter": json.dumps(chosen or {}), "detail": detail}
    return int(store.execute("audit", **bound)[0][0])


def add(store: Store, line: int, jobs: int) -> None:
    """Count further jobs of a change that takes several transactions, within each of them."""
    store.execute("audit_add", id=line, jobs=jobs)
