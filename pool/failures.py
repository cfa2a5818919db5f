"""What a worker's log says of attempts that failed: a line each, and of many in a second only some."""

from __future__ import annotations

import logging
import time

from pool.job import Failed, Job, retry_delay

#: How many lines in a second.
MOST = 5


class FailureLog:
    """Tells of failed attempts, and how many it left out."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._second = self._told = self._left = 0

    def tell(self, job: Job, outcome: Failed) -> None:
        """An attempt's end was written."""
        second = time.monotonic_ns() // 1_000_000_000
        if second != self._second:
            self.rest()
            self._second, self._told = second, 0
        self._told += 1
        if self._told > MOST:
            self._left += 1
            return
        error = outcome.error.partition("\n")[0]
        attempt = f"job {job.id} ({job.type}), attempt {job.attempts} of {job.max_attempts}"
        self._log.warning("%s: %s; %s", attempt, error, _then(job, outcome))

    def rest(self) -> None:
        """Nothing fails any more: tell how many were left out."""
        if self._left:
            self._log.warning("%d more attempts failed", self._left)
            self._left = 0


def _then(job: Job, outcome: Failed) -> str:
    if outcome.permanent or job.attempts >= job.max_attempts:
        return "it is dead"
    delay = retry_delay(job.attempts) if outcome.delay is None else outcome.delay
    return f"it is tried again in {delay:.4g} s"
