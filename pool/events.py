"""Facts a pool emits, and the one place that puts them into words."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from pool.clock import now_text

INFO, WARNING, ERROR = "info", "warning", "error"


class Event(NamedTuple):
    """Something that happened in a pool. ``facts`` hold what a program may read."""

    name: str
    level: str
    facts: dict[str, Any]

    def text(self) -> str:
        """One line for a person; a worker's output keeps its own lines."""
        facts = dict(self.facts)
        worker = facts.pop("worker", None)
        detail = facts.pop("detail", None)
        said = f"worker {worker}: {self.name}" if worker is not None else self.name
        said += "".join(f" {key}={value}" for key, value in facts.items() if value not in (None, ""))
        return f"{said}: {detail}" if detail else said

    def json(self) -> str:
        """One JSON object on a line."""
        return json.dumps({"time": now_text(), "level": self.level, "event": self.name, **self.facts}, default=str)


Emit = Callable[[Event], None]
