"""Checks of the database's files and where they lie."""

from __future__ import annotations

import os
import pwd
import sqlite3

from pool import holders
from pool.doctor.finding import Finding, OutsideCheck, Subject, fail, ok, size, warn
from pool.maintenance import LOW_SPACE_BYTES, WAL_ALARM_BYTES, WAL_WARNING_BYTES
from pool.store.sqlite import OLDEST_LIBRARY

#: SQLite's log needs shared memory between all who open the file, which these cannot give across hosts.
_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "lustre", "glusterfs", "ocfs2", "gfs2")
_SHARED_WITH_HOST = ("9p", "virtiofs", "vboxsf", "vmhgfs", "prl_fs")
_FORGETFUL = ("tmpfs", "ramfs")
_SPACE_WARNING_BYTES = 256 << 20
_INODES_WARNING = 1_000


def file(subject: Subject) -> Finding:
    """Whether it exists. Never read here: closing a file drops this process's own SQLite locks on it, should it have
    the database open (sqlite.org/howtocorrupt.html, section 2.2)."""
    path = subject.path
    if not os.path.lexists(path):
        return fail("file", f"{path} does not exist", "name another with --db or POOL_DB; pool enqueue makes one")
    if not os.path.isfile(path):
        return fail("file", f"{path} is not a file", "name a file with --db or POOL_DB")
    return ok("file", f"{path}, {size(os.stat(path).st_size)}")


def file_system(subject: Subject) -> Finding:
    """Whether SQLite's locks and shared memory work on it, and whether it lasts."""
    folder = os.path.dirname(subject.path)
    point, kind = mount_of(folder)
    name = kind.removeprefix("fuse.")
    where = f"{folder} is on {kind} ({point})"
    if name in (*_NETWORK, "sshfs", "davfs"):
        return fail("file system", f"{where}, a network file system", "move the database to a local disk")
    if name in _SHARED_WITH_HOST:
        return warn("file system", f"{where}, shared with the host", "open it on one side only, or use a local disk")
    if name in _FORGETFUL:
        return warn("file system", f"{where}, which a reboot empties", "move the database to a disk")
    if name == "overlay":
        return warn("file system", f"{where}, which goes with its container", "put the database on a volume")
    if kind.startswith("fuse"):
        return warn("file system", f"{where}, whose locks may not be those of a disk", "use a local disk")
    return ok("file system", where)


def space(subject: Subject) -> Finding:
    """Whether there is room to go on."""
    folder = os.path.dirname(subject.path)
    found = os.statvfs(folder)
    free = found.f_bavail * found.f_frsize
    said = f"{size(free)} free in {folder}"
    if free < LOW_SPACE_BYTES:
        return fail("space", f"{said}: pools claim nothing below {size(LOW_SPACE_BYTES)}", "make room")
    if free < _SPACE_WARNING_BYTES:
        return warn("space", said, "make room soon; below 8 MB pools claim nothing more")
    if found.f_files and found.f_favail < _INODES_WARNING:
        return warn("space", f"{found.f_favail} inodes left for {folder}", "delete small files there")
    return ok("space", said)


def permissions(subject: Subject) -> Finding:
    """Whether this user may use each file, and whether they have one owner."""
    folder = os.path.dirname(subject.path)
    paths = [subject.path + suffix for suffix in ("", "-wal", "-shm", "-turn")]
    there = [path for path in paths if os.path.lexists(path)]
    for path in (folder, *there):
        # Reading is enough for the file that writers take turns by.
        wanted = os.R_OK if path.endswith("-turn") else os.R_OK | os.W_OK
        wanted |= os.X_OK if path == folder else 0
        if not os.access(path, wanted, effective_ids=True):
            me = _user(os.geteuid())
            return fail(
                "permissions", f"{me} may not use {path}, {_owner(path)}", "change its owner, or run as that user"
            )
    owners = {os.stat(path).st_uid for path in there if not path.endswith("-turn")}
    if len(owners) > 1:
        said = ", ".join(f"{os.path.basename(path)} {_owner(path)}" for path in there)
        return warn("permissions", said, "give all of them one owner, the one the pool runs as")
    return ok("permissions", f"{_user(os.geteuid())} may read and write; {_owner(there[0] if there else folder)}")


def log(subject: Subject) -> Finding:
    """Whether the write-ahead log has grown, and who keeps it from being moved into the file."""
    path = subject.path + "-wal"
    bytes = os.stat(path).st_size if os.path.exists(path) else 0
    readers = holders.log_readers(subject.path)
    who = ", ".join(map(str, readers))
    if bytes > WAL_WARNING_BYTES:
        make = fail if bytes > WAL_ALARM_BYTES else warn
        if readers:
            said = f"the write-ahead log has {size(bytes)}; reading from it: {who}"
            return make("log", said, "end that transaction (a SELECT left open, a shell with BEGIN)")
        return make(
            "log", f"the write-ahead log has {size(bytes)}", "a pool moves it into the file; start one: pool run"
        )
    return ok("log", f"the write-ahead log has {size(bytes)}" + (f"; reading from it: {who}" if readers else ""))


def library(subject: Subject) -> Finding:
    """Whether this SQLite has what is needed, and which faults of it are known."""
    version = sqlite3.sqlite_version
    if sqlite3.sqlite_version_info < OLDEST_LIBRARY:
        return fail("library", f"SQLite {version} is too old", "use a Python built with 3.35.0 or newer")
    if has_reset_race(sqlite3.sqlite_version_info):
        return ok(
            "library",
            f"SQLite {version}; its checkpoints can race with a writer (fixed in 3.51.3, 3.50.7, 3.44.6). A pool's "
            "cannot, as they hold the write lock; other programs on this file: PRAGMA wal_autocheckpoint = 0",
        )
    return ok("library", f"SQLite {version}")


CHECKS: tuple[OutsideCheck, ...] = (file, file_system, space, permissions, log, library)


def has_reset_race(version: tuple[int, ...]) -> bool:
    """Whether this SQLite has the WAL-reset bug (sqlite.org/wal.html): 3.7.0 to 3.51.2, but not 3.50.7 or 3.44.6
    and the later ones of those two lines."""
    mended = (version[:2] == (3, 50) and version >= (3, 50, 7)) or (version[:2] == (3, 44) and version >= (3, 44, 6))
    return (3, 7, 0) <= version < (3, 51, 3) and not mended


def mount_of(folder: str, mounts: str = "/proc/self/mountinfo") -> tuple[str, str]:
    """The mount point a folder is below, and its file system's type (proc(5), mountinfo)."""
    found = ("/", "unknown")
    with open(mounts, encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            left, _, right = line.partition(" - ")
            # Spaces in a path stand there as \040; a later mount on the same point hides the earlier one.
            point = left.split()[4].encode(errors="surrogateescape").decode("unicode_escape")
            inside = folder == point or folder.startswith(point.rstrip("/") + "/")
            if inside and len(point) >= len(found[0]):
                found = (point, right.split()[0])
    return found


def _owner(path: str) -> str:
    found = os.stat(path)
    return f"of {_user(found.st_uid)}, mode {found.st_mode & 0o7777:04o}"


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
