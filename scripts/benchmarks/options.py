"""What a person may ask of a run; sections take what concerns them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Options:
    """The sizes of a run.

    Attributes:
        reps: repetitions; medians of them are shown.
        rows: queued jobs in the large database of ``growth``; the others there are a tenth of it.
        jobs: jobs worked off by ``wal``.
        kills: workers killed by ``recovery``.
        seconds: how long ``idle`` and ``fairness`` look.
        peers: which other queues ``peers`` runs.
        quick: a tenth of everything, to see that it works.
    """

    reps: int = 5
    rows: int = 10_000_000
    jobs: int = 2_000_000
    kills: int = 100
    seconds: float = 20.0
    peers: tuple[str, ...] = ()
    quick: bool = False

    def size(self, number: int) -> int:
        """A number of jobs, a tenth of it for a quick run."""
        return max(1, number // 10) if self.quick else number
