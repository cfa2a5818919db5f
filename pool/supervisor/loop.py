"""One selectors loop: descriptors with what to do when they are readable, and work posted from another thread."""

from __future__ import annotations

import collections
import os
import selectors
from collections.abc import Callable

Action = Callable[[], None]


class Loop:
    """``watch`` descriptors, ``post`` actions from any thread, ``turn`` once."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._posted: collections.deque[Action] = collections.deque()
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.watch(self._event, self._run_posted)

    def watch(self, fd: int, action: Action) -> None:
        """Call ``action`` in the loop whenever ``fd`` is readable."""
        self._selector.register(fd, selectors.EVENT_READ, action)

    def unwatch(self, fd: int) -> None:
        """Stop watching a descriptor; before it is closed."""
        self._selector.unregister(fd)

    def post(self, action: Action) -> None:
        """Call ``action`` in the loop's thread, soon. Safe from any thread."""
        self._posted.append(action)
        os.eventfd_write(self._event, 1)

    def turn(self, seconds: float) -> None:
        """Wait at most so long for something to happen, and act on all that did."""
        for key, _ in self._selector.select(seconds):
            if key.fd in self._selector.get_map():  # an action before it may have unwatched this one
                key.data()

    def close(self) -> None:
        """Close the loop's own descriptors."""
        self._selector.close()
        os.close(self._event)

    def _run_posted(self) -> None:
        os.eventfd_read(self._event)
        while self._posted:
            self._posted.popleft()()
