"""What systemd is told: sd_notify(3) is a datagram to the socket that NOTIFY_SOCKET names, and nothing more."""

from __future__ import annotations

import contextlib
import os
import socket
import time


class Notifier:
    """Speaks to the service manager, or to nobody when there is none."""

    def __init__(self) -> None:
        # Taken out of the environment: a job's own processes must not speak for the service.
        address = os.environ.pop("NOTIFY_SOCKET", "")
        watchdog = os.environ.pop("WATCHDOG_USEC", "")
        mine = os.environ.pop("WATCHDOG_PID", "") in ("", str(os.getpid()))
        self._address = b"\0" + address[1:].encode() if address.startswith("@") else address.encode()
        self._every = int(watchdog) / 2e6 if watchdog.isdigit() and mine else 0.0
        self._pinged_at = 0.0
        self._status = ""

    def ready(self) -> None:
        """The first worker is ready (also the end of a reload)."""
        self._send("READY=1")

    def reloading(self) -> None:
        """A reload began (Type=notify-reload asks for the time of it)."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """The pool drains."""
        self._send("STOPPING=1")

    def status(self, text: str) -> None:
        """One line for ``systemctl status``."""
        if text != self._status:
            self._status = text
            self._send(f"STATUS={text}")

    def ping(self, now: float) -> None:
        """Called from the loop at every turn, so that a watchdog sees the loop itself, not a thread beside it."""
        if self._every and now - self._pinged_at >= self._every:
            self._pinged_at = now
            self._send("WATCHDOG=1")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out,
        ):
            out.setblocking(False)
            out.sendto(message.encode(), self._address)
