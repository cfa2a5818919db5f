"""Tells open tabs that something changed, as server-sent events; a tab then fetches its own page again."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator

import anyio
from anyio.to_thread import run_sync
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from pool.web.reading import Looks, Stores
from pool.web.site import Site

#: How often a stream looks, after how long it says that ages have grown even so, and how many may be open.
LOOK_SECONDS, TICK_SECONDS, MOST_STREAMS = 1.0, 10.0, 200


class Watch:
    """A number that changes when anybody commits: one look at it serves all streams."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._lock = threading.Lock()
        self._looked_at = 0.0
        self._seen: object = None
        self._version = 0
        self.streams = 0
        self.closing = False

    def version(self) -> int:
        """Changes when something was committed; looks at most every LOOK_SECONDS / 2."""
        with self._lock:
            if time.monotonic() - self._looked_at >= LOOK_SECONDS / 2:
                self._looked_at = time.monotonic()
                with self._stores.take() as store:
                    # Data versions are a connection's own: with another connection the number says nothing.
                    seen = (id(store), store.data_version())
                if seen != self._seen:
                    self._seen = seen
                    self._version += 1
            return self._version


def events(site: Site, watch: Watch, request: Request) -> Response:
    """The stream of a tab: ``changed`` when there is something new, ``tick`` when only time has passed."""
    if watch.streams >= MOST_STREAMS:
        raise HTTPException(429, f"{MOST_STREAMS} tabs are open already")
    unbuffered = {"X-Accel-Buffering": "no"}  # nginx would wait for more
    return StreamingResponse(_events(watch, site.looks), media_type="text/event-stream", headers=unbuffered)


async def _events(watch: Watch, looks: Looks) -> AsyncIterator[str]:
    again_at = 0.0
    watch.streams += 1
    try:
        seen, taken, told = await run_sync(watch.version), looks.taken, time.monotonic()
        if told < looks.glance_until:
            again_at = told  # its page may say "at least so many"
        yield "retry: 3000\nevent: hello\ndata: 0\n\n"
        while not watch.closing:
            await anyio.sleep(LOOK_SECONDS)
            version, now = await run_sync(watch.version), time.monotonic()
            if version != seen:
                # The overview may still show a look from before the change: say it again when that is over.
                seen, taken, told, again_at = version, looks.taken, now, looks.good_until
                yield f"event: changed\ndata: {version}\n\n"
            elif 0 < again_at <= now or taken != looks.taken:
                taken, told, again_at = looks.taken, now, 0.0
                yield f"event: changed\ndata: {version}\n\n"
            elif now - told >= TICK_SECONDS:
                told = now
                yield f"event: tick\ndata: {version}\n\n"
    finally:
        watch.streams -= 1
