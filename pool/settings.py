"""What a pool can be told, validated as a whole before anything starts."""

from __future__ import annotations

import os
from dataclasses import dataclass

from pool import cpus
from pool.errors import UsageError

MAX_WORKERS = 1024


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """A pool's settings.

    Attributes:
        database: path of the database file.
        workers: how many worker processes; by default the processors this process may use.
        modules: the user's handler modules (``--handlers``).
        folder: where those modules are looked for first.
        drain: end when nothing is left that could run.
        grace: seconds a running job gets to end after TERM.
        lease: seconds after which the lease of a holder we cannot see counts as lost.
    """

    database: str
    workers: int = 0
    modules: tuple[str, ...] = ()
    folder: str = ""
    drain: bool = False
    grace: float = 25.0
    lease: float = 600.0

    def checked(self) -> PoolSettings:
        """The same with defaults filled in. Raises UsageError that lists every fault at once."""
        faults = []
        if not 0 <= self.workers <= MAX_WORKERS:
            faults.append(f"--workers takes 1 to {MAX_WORKERS}, not {self.workers}")
        if not 0 <= self.grace < float("inf"):
            faults.append(f"--grace takes seconds from 0, not {self.grace}")
        if not 1 <= self.lease < float("inf"):
            faults.append(f"--lease takes seconds from 1, not {self.lease}")
        faults += [f"--handlers takes a module's name, not {name!r}" for name in self.modules if not _is_module(name)]
        if faults:
            raise UsageError("; ".join(faults))
        return PoolSettings(
            self.database,
            self.workers or cpus.available(),
            self.modules,
            self.folder or os.getcwd(),
            self.drain,
            self.grace,
            self.lease,
        )


def _is_module(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))
