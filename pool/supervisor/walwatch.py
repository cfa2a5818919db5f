"""Hears that somebody, in whatever language, writes to the write-ahead log, so that an idle pool need not look."""

from __future__ import annotations

import contextlib
import ctypes
import os

_IN_MODIFY = 0x00000002  # linux/inotify.h
_IN_CLOEXEC, _IN_NONBLOCK = os.O_CLOEXEC, os.O_NONBLOCK


class WalWatch:
    """``fileno()`` is readable after a write to the log, -1 where inotify(7) cannot watch it.

    The write is heard before its commit can be seen, so whoever hears looks more than once.
    """

    def __init__(self, path: str) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd = libc.inotify_init1(_IN_CLOEXEC | _IN_NONBLOCK)
        if self._fd >= 0 and libc.inotify_add_watch(self._fd, os.fsencode(path + "-wal"), _IN_MODIFY) < 0:
            self.close()

    def fileno(self) -> int:
        """The descriptor, -1 for none."""
        return int(self._fd)

    def hush(self) -> bool:
        """Take what has come; whether anything had."""
        with contextlib.suppress(BlockingIOError):
            return self._fd >= 0 and bool(os.read(self._fd, 4096))
        return False

    def close(self) -> None:
        """Stop watching."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
