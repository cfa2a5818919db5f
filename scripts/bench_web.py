"""Measures the dashboard on a large queue: each page's time, and what open tabs cost the pool's claims.

python scripts/bench_web.py [--jobs 1000000] [--db FILE] [--tabs 10]
"""

from __future__ import annotations

import argparse
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import psutil

from pool import Queue, Spec
from pool.store import Store

FILL = """WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :jobs)
INSERT INTO jobs (type, payload, status, attempts, run_at, last_error, idempotency_key, created_at, updated_at)
SELECT 'type' || (i % 12), json_object('image', '/srv/media/' || i || '.jpg', 'size', 256),
    CASE WHEN i % 20 = 0 THEN 'dead' WHEN i % 20 < 8 THEN 'queued' ELSE 'done' END, i % 5,
    strftime('%Y-%m-%d %H:%M:%f', 'now', '-' || (:jobs - i) || ' seconds', '+2 days'),
    CASE WHEN i % 20 = 0 THEN 'ValueError: no luck ' || i END, CASE WHEN i % 3 = 0 THEN 'k' || i END,
    strftime('%Y-%m-%d %H:%M:%f', 'now', '-12 days'),
    strftime('%Y-%m-%d %H:%M:%f', 'now', '-' || (:jobs - i) || ' seconds') FROM n"""
NOOP = "from pool import handler\n\n\n@handler('noop')\ndef noop():\n    pass\n"


def main() -> None:
    """Fill a database where none is given, then measure."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what it started ends with it
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--db", type=Path, help="a database to keep; filled when it is not there")
    parser.add_argument("--tabs", type=int, default=10)
    parser.add_argument("--noops", type=int, default=60_000, help="jobs of the measurement with tabs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-web-") as made:
        folder = Path(made)
        database = options.db or folder / "jobs.db"
        if not database.exists():
            fill(database, options.jobs)
        server = serving(folder, database)
        with server as url:
            pages(database, url, server)
        claims(folder, options.noops, options.tabs)


def fill(database: Path, jobs: int) -> None:
    """A queue of so many jobs: 35 % queued, 5 % dead, the others done."""
    store = Store.open(str(database))
    with store.transaction():
        store.connection.execute(FILL, {"jobs": jobs})
    store.close()


class serving:
    """``with serving(...) as url``: a dashboard in a process of its own."""

    def __init__(self, folder: Path, database: Path) -> None:
        command = [sys.executable, "-m", "pool", "web", "--db", str(database), "--port", "0"]
        self._process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)

    @property
    def cpu(self) -> float:
        """Milliseconds of processor time it has used."""
        used = psutil.Process(self._process.pid).cpu_times()
        return float(used.user + used.system) * 1000

    def __enter__(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        address = next((word for word in line.split() if word.startswith("http://")), None)
        if address is None:
            raise SystemExit("the dashboard did not start; it said why above")
        return address.rstrip("/")

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(20)
        assert self._process.stdout is not None
        self._process.stdout.close()


def get(url: str) -> float:
    """Milliseconds of one request."""
    began = time.perf_counter()
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            answer.read()
    except urllib.error.HTTPError as error:  # /readyz says no where no pool runs
        error.read()
    return (time.perf_counter() - began) * 1000


def pages(database: Path, url: str, server: serving) -> None:
    """Each page as the first of its kind and then warm; processor time stays the same on a busy machine."""
    store = Store.open(str(database))
    some = store.connection.execute("SELECT max(id) / 2 FROM jobs").fetchone()[0]
    store.close()
    get(url + "/healthz")
    print(f"{'page':44} {'first ms':>9} {'median':>8} {'worst':>8} {'CPU':>7}   of 20")
    for path in (
        "/", "/jobs", "/jobs?status=queued", "/jobs?status=done", "/scheduled", "/dead", "/jobs?type=type7",
        "/jobs?status=dead&type=type8", "/jobs?error=luck+12345", "/jobs?status=dead&error=no+such+text",
        "/jobs?key=k1234*", f"/jobs?after={some}", "/archive", f"/jobs/{some}", "/audit", "/metrics", "/readyz",
        "/bulk?action=retry&status=dead",
    ):  # fmt: skip
        time.sleep(1.1 if path in ("/", "/metrics") else 0)  # past the time for which a look at everything serves
        first, before = get(url + path), server.cpu
        others = [get(url + path) for _ in range(20)]
        cpu = (server.cpu - before) / 20
        print(f"{path:44} {first:9.1f} {statistics.median(others):8.1f} {max(others):8.1f} {cpu:7.1f}")


def claims(folder: Path, noops: int, tabs: int) -> None:
    """Jobs a second of a pool, with no tab open and with some that fetch the overview each second."""
    (folder / "noops.py").write_text(NOOP)
    for count in (0, tabs):
        database = folder / f"claims-{count}.db"
        with Queue(database) as queue:
            queue.enqueue_many(Spec("noop") for _ in range(noops))
        server = serving(folder, database)
        with server as url:
            over = threading.Event()
            threads = [threading.Thread(target=tab, args=(url, over), daemon=True) for _ in range(count)]
            for each in threads:
                each.start()
            began = time.perf_counter()
            command = [sys.executable, "-m", "pool", "run", "--db", str(database), "--workers", "2", "--drain"]
            subprocess.run([*command, "--handlers", "noops"], cwd=folder, check=True, capture_output=True)
            seconds = time.perf_counter() - began
            share = server.cpu / 10 / seconds
            over.set()
            for each in threads:
                each.join()
        rate = f"{noops / seconds:,.0f} jobs/s, start and end included"
        print(f"{noops:,} no-op jobs, 2 workers, {count:2} tabs: {rate}; the dashboard took {share:.0f} % of a CPU")


def tab(url: str, over: threading.Event) -> None:
    """What a browser's tab does: a stream that is read, and the page again a second after each change."""
    with urllib.request.urlopen(url + "/events", timeout=60) as stream:
        while not over.is_set():
            if stream.readline().startswith(b"event: changed"):
                get(url + "/")


if __name__ == "__main__":
    main()
