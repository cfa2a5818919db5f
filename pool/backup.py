"""Online backups: one consistent copy of a live database, verified before it takes its name."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import stat
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pool.errors import DatabaseUnusable, UsageError
from pool.store import SQL
from pool.store.sqlite import plain_connect, schema_version
from pool.store.statements import load_migrations

#: Told now and then how many bytes of how many are copied; once all are, the copy is verified.
Progress = Callable[[int, int], None]

#: Space left free beside a copy, for whatever else writes there.
SPARE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class BackedUp:
    """A backup that is on disk and was verified: where, its size, how long it took, and its jobs by status."""

    path: str
    bytes: int
    seconds: float
    jobs: dict[str, int]


def backup(database: str, dest: str, now: str, *, force: bool = False, progress: Progress | None = None) -> BackedUp:
    """Copy a database that may be in use, at one instant, with everything acknowledged before the call.

    The copy is taken in one go: SQLite starts a copy in steps anew whenever another process commits between two of
    them, so beside a busy pool it would never end. Writers are not held up meanwhile (sqlite.org/backup.html).

    Args:
        database: the file to copy.
        dest: a file, or a folder in which one is named after the database and the time.
        now: UTC text.
        force: whether a file of that name is overwritten, once the new copy is verified.

    Raises:
        UsageError: the destination exists, is the database itself, or its folder does not exist or has no space.
        DatabaseUnusable: the database cannot be read, is not jobpool's, or is damaged; no file is left behind.
    """
    began = time.monotonic()
    target = _target(database, dest, now)
    if os.path.exists(target) and os.path.exists(database) and os.path.samefile(target, database):
        raise UsageError(f"{target} is the database itself; name another file")
    if os.path.exists(target) and not force:
        raise UsageError(f"{target} exists; name another file, or add --force to overwrite it")
    with _readable(database), open_existing(database) as source, Partial(target) as partial:
        source.execute("BEGIN")  # the counts and the copy are of one instant
        jobs = count(source, database)
        total = size_of(source)
        check_space(target, total)
        with _watched(partial.path, total, progress):
            copy(source, partial.path)
        source.execute("COMMIT")
        with contextlib.closing(plain_connect(partial.path, isolation_level=None)) as made:
            verify(made, target)
            if count(made, target) != jobs:
                raise DatabaseUnusable(f"{target}: the copy has other jobs than {database}; it was not kept, try again")
        size = os.stat(partial.path).st_size
        partial.publish(like=os.stat(database), replace=force)
    return BackedUp(os.path.abspath(target), size, round(time.monotonic() - began, 3), jobs)


def size_of(connection: sqlite3.Connection) -> int:
    """Bytes of a database's pages, those in its log included."""
    pages, size = (connection.execute(f"PRAGMA {name}").fetchall()[0][0] for name in ("page_count", "page_size"))
    return int(pages) * int(size)


def copy(source: sqlite3.Connection, path: str) -> None:
    """Copy a whole database into an empty file, as one that needs no -wal beside it."""
    with contextlib.closing(plain_connect(path, isolation_level=None)) as made:
        # Nothing to roll back to, and it is synced before it gets its name.
        made.execute("PRAGMA journal_mode = OFF")
        made.execute("PRAGMA synchronous = OFF")
        source.backup(made, pages=-1)
        made.execute("PRAGMA journal_mode = DELETE")


def verify(connection: sqlite3.Connection, path: str) -> int:
    """The schema version of a database that is sound and jobpool's.

    Raises:
        DatabaseUnusable: it is damaged, not jobpool's, or of a newer jobpool.
    """
    faults = [str(row[0]) for row in connection.execute("PRAGMA integrity_check(5)").fetchall()]
    if faults != ["ok"]:
        raise DatabaseUnusable(f"{path} is damaged: {'; '.join(faults)}")
    version = schema_version(connection)
    if not 0 < version <= len(load_migrations()):
        told = "has no jobpool schema" if version == 0 else f"has schema version {version}, newer than this jobpool's"
        raise DatabaseUnusable(f"{path} {told}; name a backup made with pool backup, or upgrade jobpool")
    return version


def count(connection: sqlite3.Connection, path: str) -> dict[str, int]:
    """Jobs by status, and in the archive. Raises DatabaseUnusable for a database without our tables."""
    found = {}
    with _readable(path):
        for name in ("queued", "running", "dead", "all", "archive"):
            found[name] = int(connection.execute(SQL[f"count_{name}"]).fetchall()[0][0])
    done = found.pop("all") - found["queued"] - found["running"] - found["dead"]
    return {"queued": found["queued"], "running": found["running"], "done": done, **found}


@contextlib.contextmanager
def open_existing(path: str) -> Iterator[sqlite3.Connection]:
    """A connection to an existing database that migrates and sets nothing.

    Raises:
        DatabaseUnusable: no such file, or SQLite cannot open it.
    """
    if not os.path.isfile(path):
        raise DatabaseUnusable(f"{path}: no such database; name another with --db or POOL_DB")
    try:
        connection = plain_connect(uri(path, "mode=rw"), uri=True, isolation_level=None, timeout=30)
    except sqlite3.Error as error:
        raise DatabaseUnusable(f"{path} cannot be opened: {error}") from error
    with contextlib.closing(connection):
        yield connection


def uri(path: str, options: str) -> str:
    """A path as a URI for ``sqlite3.connect(…, uri=True)`` (sqlite.org/uri.html)."""
    return f"file:{urllib.parse.quote(os.path.abspath(path))}?{options}"


def check_space(target: str, bytes: int) -> None:
    """Raises UsageError when the target's file system has no room for so many bytes: better before an hour's copy."""
    folder = os.path.dirname(os.path.abspath(target))
    found = os.statvfs(folder)
    free = found.f_bavail * found.f_frsize
    if free < bytes + SPARE_BYTES:
        raise UsageError(
            f"{folder} has {free >> 20} MB free and the copy needs {(bytes + SPARE_BYTES) >> 20} MB; make room first"
        )


class Partial:
    """``with Partial(target) as partial:`` a file beside the target that becomes the target whole, or vanishes.

    Its name is always the same, so one that a kill left behind is used again, and a lock tells of another who is at it.
    """

    def __init__(self, target: str) -> None:
        self._target = os.path.abspath(target)
        folder, name = os.path.split(self._target)
        self._folder = folder
        self.path = os.path.join(folder, f".{name}.partial")
        self._fd = -1

    def __enter__(self) -> Partial:
        if not os.path.isdir(self._folder):
            raise UsageError(f"the folder {self._folder} does not exist; make it first")
        while True:
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(self._fd), os.stat(self.path)):
                    break
            except BlockingIOError:
                os.close(self._fd)
                raise UsageError(f"another backup or restore is writing {self._target}; wait for it") from None
            except FileNotFoundError:
                pass  # the one before us has just given it its name
            os.close(self._fd)
        os.ftruncate(self._fd, 0)
        self._remove_companions()
        return self

    def publish(self, *, like: os.stat_result, replace: bool) -> None:
        """Sync the file, give it the target's name, and sync the folder, so that it is there after a power cut.

        Its mode, and for root its owner, become those of ``like``, for those who could use that to use this.

        Raises:
            UsageError: the target has come to exist meanwhile, and ``replace`` is false.
        """
        os.fchmod(self._fd, stat.S_IMODE(like.st_mode))
        if os.geteuid() == 0:
            os.fchown(self._fd, like.st_uid, like.st_gid)
        os.fsync(self._fd)
        if replace:
            os.replace(self.path, self._target)
        else:
            link_or_rename(self.path, self._target)
        sync_folder(self._folder)

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(self._fd), os.stat(self.path)):
                os.unlink(self.path)
        self._remove_companions()
        os.close(self._fd)

    def _remove_companions(self) -> None:
        for suffix in ("-wal", "-shm", "-journal"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path + suffix)


def link_or_rename(path: str, target: str) -> None:
    """Give a file a new name that nothing else has.

    Raises:
        UsageError: something has it already.
    """
    try:
        os.link(path, target)
        os.unlink(path)
    except OSError:  # the file system knows no hard links, or the name is taken
        if os.path.lexists(target):
            raise UsageError(f"{target} exists; name another file, or add --force to overwrite it") from None
        os.rename(path, target)


def sync_folder(folder: str) -> None:
    """Make renames in a folder last (fsync(2))."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _target(database: str, dest: str, now: str) -> str:
    if not os.path.isdir(dest):
        return dest
    stem, extension = os.path.splitext(os.path.basename(database))
    return os.path.join(dest, f"{stem}-{compact(now)}{extension or '.db'}")


def compact(now: str) -> str:
    """UTC text as part of a file name: ``20261130T171500Z``."""
    return now[:19].replace("-", "").replace(":", "").replace(" ", "T") + "Z"


@contextlib.contextmanager
def _watched(path: str, total: int, progress: Progress | None) -> Iterator[None]:
    """Tell how far a copy is, by the size of its file: SQLite itself says nothing before the only step is over."""
    if progress is None:
        yield
        return
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.1):
            progress(min(os.stat(path).st_size, total), total)

    thread = threading.Thread(target=watch, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    progress(total, total)


@contextlib.contextmanager
def _readable(path: str) -> Iterator[None]:
    """Name the file in SQLite's errors."""
    try:
        yield
    except sqlite3.Error as error:
        raise DatabaseUnusable(f"{path} cannot be copied: {error}") from error
