"""A real browser, Debian's Chromium, that talks to nobody but us."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator

from playwright.sync_api import Browser, sync_playwright

#: Whatever a browser does of its own accord is off.
ARGUMENTS = [
    "--headless", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-default-apps", "--disable-extensions",
    "--disable-domain-reliability", "--metrics-recording-only", "--no-pings", "--password-store=basic",
]  # fmt: skip


def chromium() -> str:
    """Where Chromium is. Raises AssertionError that says how to get it."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert found, "the browser tests need Chromium, which is not installed; on Debian: apt-get install chromium"
    return found


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """A browser for the body of the ``with``."""
    arguments = [*ARGUMENTS, *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium(), args=arguments)
        try:
            yield opened
        finally:
            opened.close()
