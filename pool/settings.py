"""What a pool can be told, validated as a whole before anything starts."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from pool import cpus, instrumentation
from pool.errors import UsageError
from pool.policy import Policy

MAX_WORKERS = 1024
MB = 1 << 20


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """A pool's settings. Times are in seconds, memory in bytes; 0 means no limit unless said otherwise.

    Attributes:
        database: path of the database file.
        workers: how many worker processes; 0 for the processors this process may use.
        modules: the user's handler modules (``--handlers``).
        folder: where those modules are looked for first; the working folder when empty.
        drain: end when nothing is left that could run.
        exclusive: refuse to run beside another pool on the same database.
        grace: what a running job gets to end after TERM.
        cancel_grace: what a running job gets to end by itself after it was cancelled.
        lease: after which the lease of a holder we cannot see counts as lost.
        max_jobs: after about so many jobs (a tenth more, by chance) a worker is replaced.
        max_age: after about so long a worker is replaced.
        soft_memory: a worker above this is replaced once its job has ended.
        hard_memory: a worker above this is ended in the middle of its job.
        keep: rules of how long ended jobs are kept, such as ``done=7d``, over the defaults of pool.policy.
        on_dead, on_degraded, on_backlog: whom to tell, a job type or an URL; see pool.alerts.
        backlog_age: how long the oldest due job may wait before that is told.
        nice: niceness added to the workers'.
        pin: give each worker a processor of its own.
        threads: what OMP_NUM_THREADS and its kin are set to in workers; 0 divides the processors among them,
            -1 leaves them alone.
        traces: have the workers instrumented as by ``opentelemetry-instrument``.
    """

    database: str
    workers: int = 0
    modules: tuple[str, ...] = ()
    folder: str = ""
    drain: bool = False
    exclusive: bool = False
    grace: float = 25.0
    cancel_grace: float = 5.0
    lease: float = 600.0
    max_jobs: int = 0
    max_age: float = 0.0
    soft_memory: int = 0
    hard_memory: int = 0
    keep: tuple[str, ...] = ()
    on_dead: str = ""
    on_degraded: str = ""
    on_backlog: str = ""
    backlog_age: float = 600.0
    nice: int = 0
    pin: bool = False
    threads: int = 0
    traces: bool = False

    def checked(self) -> PoolSettings:
        """The same with defaults filled in. Raises UsageError that lists every fault at once."""
        faults = [text for wrong, text in self._faults() if wrong]
        try:
            Policy.parse(self.keep)
        except UsageError as error:
            faults.append(f"--keep {error}")
        faults += [f"--handlers takes a module's name, not {name!r}" for name in self.modules if not _is_module(name)]
        if faults:
            raise UsageError("; ".join(faults))
        return replace(self, workers=self.workers or cpus.available(), folder=self.folder or os.getcwd())

    def _faults(self) -> list[tuple[bool, str]]:
        forever = float("inf")
        return [
            (not 0 <= self.workers <= MAX_WORKERS, f"--workers takes 1 to {MAX_WORKERS}, not {self.workers}"),
            (not 0 <= self.grace < forever, f"--grace takes seconds from 0, not {self.grace}"),
            (not 0 <= self.cancel_grace < forever, f"--cancel-grace takes seconds from 0, not {self.cancel_grace}"),
            (not 1 <= self.lease < forever, f"--lease takes seconds from 1, not {self.lease}"),
            (self.max_jobs < 0, f"--max-jobs takes a whole number from 1, not {self.max_jobs}"),
            (not 0 <= self.max_age < forever, f"--max-age takes seconds, not {self.max_age}"),
            (0 < self.soft_memory < 16 * MB, "--soft-memory below 16 MB: a worker needs that much while it is idle"),
            (0 < self.hard_memory < 32 * MB, "--hard-memory below 32 MB: a worker could not run anything"),
            (0 < self.hard_memory <= self.soft_memory, "--hard-memory has to be above --soft-memory"),
            (not -20 <= self.nice <= 19, f"--nice takes -20 to 19, not {self.nice}"),
            (not 0 < self.backlog_age < forever, f"--backlog-age takes seconds above 0, not {self.backlog_age}"),
            (
                self.traces and not instrumentation.is_installed(),
                "--traces needs OpenTelemetry: pip install 'jobpool[traces]' opentelemetry-distro "
                "opentelemetry-exporter-otlp",
            ),
            (self.threads < -1, f"--threads takes a whole number, not {self.threads}"),
        ]


def _is_module(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))
