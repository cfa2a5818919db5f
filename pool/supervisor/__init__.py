"""The process that keeps a pool alive: its loop (supervisor.py), a worker as it holds it (child.py), how long and how
often workers may misbehave (bounds.py), and its database thread (database.py)."""

from pool.supervisor.supervisor import PoolState, Supervisor

__all__ = ["PoolState", "Supervisor"]
