"""Owns replacing a file: readers see the old one or the complete new one, whatever happens to the writer."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress


def replace_file(path: str, data: bytes) -> None:
    """Make `data` the content of `path` in one step. Missing folders are created, the umask sets permissions.

    The bytes go to a hidden file beside `path`, `.NAME.part`, which is renamed when complete. Its name is
    always the same, and its writer holds a lock on it, which the kernel drops with the writer: of two at a
    time the second waits, and what a killed one left behind is taken over by the next. Nothing is synced.

    Raises:
        OSError: the folder or the file cannot be written; `path` is untouched and nothing is left beside it.
    """
    folder, name = os.path.split(path)
    if folder:
        os.makedirs(folder, exist_ok=True)
    # 60 characters are at most 240 bytes, and a name may have 255. Names that share them just take turns.
    part = os.path.join(folder, f".{name[:60]}.part")
    with _locked(part) as fd:
        try:
            os.ftruncate(fd, 0)
            with open(fd, "wb", closefd=False) as file:
                file.write(data)
            os.replace(part, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(part)
            raise


@contextmanager
def _locked(part: str) -> Iterator[int]:
    """A descriptor of `part`, locked, once it is certain that `part` is still the name of that very file."""
    while True:
        # No symbolic link is followed: the name can be foreseen by whoever else may write to the folder.
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if _is(fd, part):
                yield fd
                return
        finally:
            os.close(fd)


def _is(fd: int, path: str) -> bool:
    """False when the former holder of the lock has renamed or removed the file while we waited."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False
