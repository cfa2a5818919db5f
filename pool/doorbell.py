"""Telling the pools of a database that a job is being committed: a datagram, lost without harm.

The address is an abstract Unix socket (unix(7)) named after the file's device and inode, so nothing is left on
disk, any path to the file leads to it, and the kernel frees it with its owner. A pool hands its socket to its workers,
and the kernel wakes one of those that wait for a job. A pool that does not hear it notices the commit by itself some
milliseconds later; that is how it learns of writers in other languages, and of how many jobs there are.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time

#: Pools on one database that can be rung; a further one only polls.
PLACES = 8
_REFRESH_SECONDS = 1.0


def _address(path: str, place: int) -> bytes:
    found = os.stat(path)
    return b"\0jobpool/%d/%d/%d" % (found.st_dev, found.st_ino, place)


class Caller:
    """An enqueuer's side."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        self._listening: list[bytes] = []
        self._looked = -_REFRESH_SECONDS

    def ring(self) -> None:
        """Wake the pools. A full buffer means that they are being woken already."""
        now = time.monotonic()
        if now - self._looked >= _REFRESH_SECONDS:
            self._looked = now
            self._listening = self._all()
        for address in self._listening:
            try:
                self._socket.sendto(b"", address)
            except BlockingIOError:
                pass
            except OSError:
                self._listening = [each for each in self._listening if each != address]

    def _all(self) -> list[bytes]:
        try:
            return [_address(self._path, place) for place in range(PLACES)]
        except OSError:
            return []  # :memory:, or a file that is gone: the next statement will say so

    def close(self) -> None:
        self._socket.close()


class Listener:
    """A pool's side; ``fileno()`` is readable when somebody rang and nobody has taken that yet."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        for place in range(PLACES):
            with contextlib.suppress(OSError):
                self._socket.bind(_address(path, place))
                return

    def fileno(self) -> int:
        return self._socket.fileno()

    def hush(self) -> bool:
        """Take what has come; whether anything had."""
        rang = False
        with contextlib.suppress(BlockingIOError):
            while True:
                self._socket.recv(1)
                rang = True
        return rang

    def close(self) -> None:
        self._socket.close()
