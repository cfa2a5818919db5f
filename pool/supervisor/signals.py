"""Signals as bytes on a socket: the handlers record and wake, the loop decides what they mean."""

from __future__ import annotations

import signal
import socket
from types import FrameType
from typing import Any

#: What the supervisor listens to; docs/operations.md says what each one does.
WATCHED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGHUP,
    signal.SIGTTIN,
    signal.SIGTTOU,
    signal.SIGUSR2,
    signal.SIGCHLD,
    signal.SIGWINCH,
    signal.SIGPIPE,
)


class Signals:
    """While in use, every watched signal becomes a byte to read from ``fileno()``; afterwards all is as before."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._former: dict[signal.Signals, Any] = {}
        self._former_fd = -1

    def __enter__(self) -> Signals:
        self._former_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in WATCHED:
            self._former[number] = signal.signal(number, _pass)
        return self

    def __exit__(self, *_: object) -> None:
        for number, former in self._former.items():
            signal.signal(number, former if former is not None else signal.SIG_DFL)
        signal.set_wakeup_fd(self._former_fd)
        self._reader.close()
        self._writer.close()

    def fileno(self) -> int:
        """Readable when a signal came."""
        return self._reader.fileno()

    def take(self) -> list[signal.Signals]:
        """The signals that came since the last call, in order."""
        try:
            return [signal.Signals(number) for number in self._reader.recv(4096)]
        except BlockingIOError:
            return []


def _pass(signum: int, frame: FrameType | None) -> None:
    """The wake-up descriptor has already told the loop."""
