"""Where jobs are kept: the verbs (store.py), the SQLite dialect (sqlite.py), and the SQL itself (sql/, migrations/)."""

from pool.job import Evidence
from pool.store.store import SQL, Row, Store, enqueue_on

__all__ = ["SQL", "Evidence", "Row", "Store", "enqueue_on"]
