"""Takes the pictures of docs/images: each page, in light and dark, on a desk and on a phone.

python -m tests.web.screenshots [FOLDER]
"""

from __future__ import annotations

import io
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser

from pool import Queue
from pool.store import Store
from tests.support import environment, eventually, rows
from tests.web import scene
from tests.web.browser import browser

SIZES = {"desk": (1240, 860), "phone": (390, 844)}


def main(target: Path) -> None:
    """Fill a database, run a pool and a dashboard on it, and look."""
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        folder, database = Path(made), Path(made) / "jobs.db"
        scene.fill(database)
        (folder / "scenes.py").write_text(scene.HANDLERS)
        with Queue(database) as queue:
            for place, (type, done, of) in enumerate((("video.transcode", 37, 80), ("report.monthly", 3, 12))):
                facts = {"source": f"/srv/data/{type}", "done": done, "of": of}
                queue.enqueue(type, facts, key=f"shown:{place}", priority=-1)
        command = [sys.executable, "-m", "pool", "run", "--db", str(database), "--workers", "2"]
        command += ["--handlers", "scenes"]
        quiet = {"stderr": subprocess.DEVNULL, "start_new_session": True}
        pool = subprocess.Popen(command, cwd=folder, env=environment(), **quiet)
        web = scene.Web(folder, database)
        try:
            eventually(lambda: len(rows(database, "SELECT id FROM jobs WHERE status = 'running'")) == 2)
            eventually(lambda: rows(database, "SELECT report FROM pools")[0]["report"].count('"progress": [') == 2)
            with browser() as opened:
                shoot(opened, web.url, database, target)
        finally:
            (folder / "gate").touch()
            pool.send_signal(signal.SIGTERM)
            web.stop()
            pool.wait(30)


def pages(database: Path) -> dict[str, str]:
    """The pages of which a picture is taken, by name."""
    store = Store.open(str(database))
    running = store.connection.execute("SELECT id FROM jobs WHERE status = 'running' ORDER BY id").fetchone()[0]
    dead = store.connection.execute("SELECT id FROM jobs WHERE status = 'dead' AND type = 'webhook'").fetchone()[0]
    store.close()
    return {
        "overview": "/", "jobs": "/jobs", "job": f"/jobs/{dead}", "running": f"/jobs/{running}",
        "edit": f"/jobs/{dead}/edit", "scheduled": "/scheduled", "dead": "/dead",
        "bulk": "/bulk?action=retry&status=dead", "archive": "/archive", "audit": "/audit",
    }  # fmt: skip


def shoot(opened: Browser, url: str, database: Path, target: Path) -> None:
    """One picture a page, scheme and size."""
    for scheme in ("light", "dark"):
        for size, (width, height) in SIZES.items():
            context = opened.new_context(
                viewport={"width": width, "height": height}, color_scheme=scheme, device_scale_factor=1
            )
            page = context.new_page()
            for name, path in pages(database).items():
                page.goto(url + path)
                page.locator("#live", has_text="Live").wait_for()
                if name == "job":
                    page.locator("summary", has_text="Archive…").click()
                save(page.screenshot(full_page=True), target / f"{name}-{size}-{scheme}.png")
            context.close()


def save(png: bytes, path: Path) -> None:
    """With 256 colours: a third of the size, and the colours of states stay what they are."""
    with Image.open(io.BytesIO(png)) as image:
        few = image.convert("RGB").quantize(256, method=Image.Quantize.MAXCOVERAGE, kmeans=3, dither=Image.Dither.NONE)
        few.save(path, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[2] / "docs" / "images")
