"""The SQLite dialect: opening a file safely, bringing its schema up to date, and moving its log into it."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import sqlite3
import time
from collections.abc import Iterator

from pool.errors import DatabaseUnusable
from pool.store.statements import load_migrations
from pool.store.turn import Write

#: RETURNING came with 3.35.0 (sqlite.org/lang_returning.html).
OLDEST_LIBRARY = (3, 35, 0)
#: A claim moves a few small rows; small pages write a third less to the WAL for it (docs/performance.md).
PAGE_SIZE = 1024
DEFAULT_BUSY_SECONDS = 30.0
WAL_KEPT_BYTES = 32 << 20

#: What sqlite3.connect calls. An instrumentation of sqlite3 replaces that function by one that returns proxies: they
#: trace single statements, and ``Connection.backup`` does not take them.
plain_connect = sqlite3.Connection


def connect(path: str, *, busy_seconds: float = DEFAULT_BUSY_SECONDS, create: bool = True) -> sqlite3.Connection:
    """A connection with the rules of docs/architecture.md set, on a database whose schema is up to date.

    Args:
        path: the database file; it and its tables are made when missing, unless ``create`` is false.
        busy_seconds: how long a statement waits for another's lock.

    Raises:
        DatabaseUnusable: an old SQLite, a file that is no database, a newer schema, no permission, no such folder.
    """
    if sqlite3.sqlite_version_info < OLDEST_LIBRARY:
        raise DatabaseUnusable(
            f"SQLite {sqlite3.sqlite_version} is too old: jobpool needs {'.'.join(map(str, OLDEST_LIBRARY))} or newer; "
            "use a Python built with one"
        )
    if not create and not os.path.exists(path):
        raise DatabaseUnusable(f"{path}: no such database; name another with --db or POOL_DB")
    try:
        # check_same_thread=False: Queue guards its connection with a lock, the supervisor gives one to a thread.
        connection = plain_connect(
            # Absolute: a name such as file:x.db could be taken for a URI.
            path if path == ":memory:" else os.path.abspath(path),
            timeout=busy_seconds,
            isolation_level=None,
            cached_statements=256,
            check_same_thread=False,
        )
        if create and path != ":memory:" and not os.access(path, os.R_OK | os.W_OK):
            raise DatabaseUnusable(_why_unusable(path, sqlite3.OperationalError("it may not be written")))
        if not create and schema_version(connection) == 0:
            _refuse_foreign_tables(connection, path)
            raise DatabaseUnusable(f"{path} has no queue; pool enqueue or pool run makes one there")
        _prepare(connection)
        _migrate(connection, path)
    except sqlite3.Error as error:
        raise DatabaseUnusable(_why_unusable(path, error)) from error
    return connection


def checkpoint(holder: sqlite3.Connection, other: sqlite3.Connection) -> tuple[int, int]:
    """Move the WAL into the database file without stopping anyone for long; (frames in the WAL, frames moved).

    The write lock is held meanwhile: a PASSIVE checkpoint that starts on a fully moved WAL while a writer begins it
    anew can corrupt the file in SQLite 3.7.0 to 3.51.2 (sqlite.org/wal.html, "The WAL-Reset Bug"). PASSIVE never
    waits for readers.
    """
    holder.execute("BEGIN IMMEDIATE")
    try:
        _, frames, moved = other.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()[0]
    finally:
        holder.execute("ROLLBACK")
    return int(frames), int(moved)


def sync_wal(path: str) -> None:
    """Wait until the disk has the write-ahead log. A checkpoint does that too, with every writer waiting: four fifths
    of its time, of which little is left after this (docs/performance.md). A disk that fails here fails it as well."""
    with contextlib.suppress(OSError):
        # Nothing is lost by closing it: SQLite keeps no lock on this file, and closing drops those of one file alone.
        fd = os.open(path + "-wal", os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fdatasync(fd)
        finally:
            os.close(fd)


def wal_bytes(path: str) -> int:
    """Size of the write-ahead log file; 0 when there is none."""
    try:
        return os.stat(path + "-wal").st_size
    except OSError:
        return 0


def is_transient(error: BaseException) -> bool:
    """Whether trying again later may help: the database is locked, the disk full or ailing."""
    return is_locked(error) or _code(error) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)


def is_locked(error: BaseException) -> bool:
    """Whether others did not let go of the database in time."""
    return _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _code(error: BaseException) -> int:
    cause = error.__cause__ if isinstance(error, DatabaseUnusable) else error
    return int(getattr(cause, "sqlite_errorcode", 0)) & 0xFF


def _prepare(connection: sqlite3.Connection) -> None:
    execute = connection.execute
    if not execute("PRAGMA page_count").fetchall()[0][0]:  # a new file; in another, auto_vacuum would be a write
        execute(f"PRAGMA page_size = {PAGE_SIZE}")
        execute("PRAGMA auto_vacuum = INCREMENTAL")
    _until_free(connection, "PRAGMA journal_mode = WAL")
    execute("PRAGMA synchronous = NORMAL")
    # Never automatic: a checkpoint is taken with the write lock held (checkpoint() says why), by the supervisor, or by
    # an application where none lives.
    execute("PRAGMA wal_autocheckpoint = 0")
    # A long reader makes the log grow; once it is gone, the file shrinks to this at its next restart.
    execute(f"PRAGMA journal_size_limit = {WAL_KEPT_BYTES}")
    execute("PRAGMA foreign_keys = OFF")
    execute("PRAGMA temp_store = MEMORY")


def _until_free(connection: sqlite3.Connection, statement: str) -> None:
    """Changing the journal mode answers BUSY at once when two race for it; the busy timeout does not apply."""
    give_up = time.monotonic() + 10
    while True:
        try:
            connection.execute(statement).fetchall()
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > give_up:
                raise
            time.sleep(0.01)


def spelled_out(text: bytes) -> str:
    """Text as stored, what is not UTF-8 in it spelled out; a ``text_factory`` for connections."""
    return text.decode("utf-8", "backslashreplace")


def schema_version(connection: sqlite3.Connection) -> int:
    """The version of our schema in this database, 0 for none. Kept in a table of our own: ``user_version``
    may belong to the application whose tables stand beside ours."""
    try:
        row = connection.execute("SELECT version FROM jobpool_schema").fetchone()
    except sqlite3.OperationalError as error:
        if "no such table" in str(error):
            return 0
        raise
    return int(row[0]) if row else 0


def _migrate(connection: sqlite3.Connection, path: str) -> None:
    migrations = load_migrations()
    while (version := schema_version(connection)) != len(migrations):
        if version > len(migrations):
            connection.close()
            raise DatabaseUnusable(
                f"{path} has schema version {version}, this jobpool knows {len(migrations)}; upgrade jobpool"
            )
        with Write(connection, None):
            if schema_version(connection) != version:
                continue  # another process was first
            if version == 0:
                _refuse_foreign_tables(connection, path)
                connection.execute("CREATE TABLE jobpool_schema (version INTEGER NOT NULL)")
                connection.execute("INSERT INTO jobpool_schema VALUES (0)")
            # Not executescript(), which commits the open transaction first.
            for statement in _split(migrations[version]):
                connection.execute(statement)
            connection.execute("UPDATE jobpool_schema SET version = ?", (version + 1,))


def _refuse_foreign_tables(connection: sqlite3.Connection, path: str) -> None:
    ours = {
        name.lower() for text in load_migrations() for name in re.findall(r"^CREATE TABLE (\w+)", text, re.MULTILINE)
    }
    for (name,) in connection.execute("SELECT name FROM sqlite_schema"):
        if name.lower() in ours:
            raise DatabaseUnusable(f"{path} has a table named {name} that is not jobpool's; use another file")


def _split(script: str) -> Iterator[str]:
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _why_unusable(path: str, error: sqlite3.Error) -> str:
    text = str(error)
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        return f"{path}: the folder {folder} does not exist; make it, or name another with --db"
    if os.path.isdir(path):
        return f"{path} is a folder, not a database; name a file with --db"
    room = os.statvfs(folder)
    if room.f_flag & os.ST_RDONLY:
        return f"{path}: {folder} is on a read-only file system; mount it writable, or name another with --db"
    for each in (path, path + "-wal", path + "-shm", folder):
        if os.path.exists(each) and not os.access(each, os.R_OK | os.W_OK):
            return f"{path}: no permission for {each}, {_owner(each)}; change its owner or run as that user"
    if "not a database" in text or "malformed" in text:
        return f"{path} is not a usable SQLite database ({text}); name another with --db"
    if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR) and (
        room.f_bavail * room.f_frsize < 1 << 20
    ):
        return f"{path}: no space is left in {folder} ({text}); make room"
    return f"{path}: {text}"


def _owner(path: str) -> str:
    found = os.stat(path)
    try:
        name = pwd.getpwuid(found.st_uid).pw_name
    except KeyError:
        name = f"uid {found.st_uid}"
    try:
        me = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        me = f"uid {os.geteuid()}"
    return f"which belongs to {name} (mode {found.st_mode & 0o7777:04o}), and this is {me}"
