"""jobpool: a durable job queue and a supervised pool of worker processes, from one SQLite file.

What applications use is here; docs/architecture.md tells how the rest hangs together.
"""

from pool.declare import Context, Discard, Handler, JobCancelled, Retry, Snooze, handler
from pool.errors import DatabaseUnusable, PayloadError, PoolError, UsageError
from pool.job import Enqueued, Job, Status
from pool.queue import Queue
from pool.spec import Spec

__all__ = [
    "Context",
    "DatabaseUnusable",
    "Discard",
    "Enqueued",
    "Handler",
    "Job",
    "JobCancelled",
    "PayloadError",
    "PoolError",
    "Queue",
    "Retry",
    "Snooze",
    "Spec",
    "Status",
    "UsageError",
    "handler",
]
__version__ = "0.1.0"
