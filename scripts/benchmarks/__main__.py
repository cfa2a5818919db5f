"""`scripts/bench`: runs sections, prints their tables, keeps them as JSON, renders them into a document."""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import figures, render
from benchmarks.figures import Section
from benchmarks.options import Options

SECTIONS = (
    "cpu",
    "thumbnails",
    "noop",
    "enqueue",
    "pickup",
    "idle",
    "recovery",
    "fairness",
    "wal",
    "growth",
    "peers",
)


def main() -> int:
    """Measure; exit 0 whatever the figures say, for times are no tests."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what it started ends with it
    given = _arguments()
    if given.render:
        render.render(Path(given.render), given.write or Path("docs/performance.md"))
        return 0
    options = Options(
        given.reps, given.rows, given.jobs, given.kills, given.seconds, tuple(given.peers.split(",")), given.quick
    )
    facts = figures.machine(tempfile.gettempdir())
    print(figures.machine_line(facts), flush=True)
    done: list[Section] = []
    for name in given.sections or SECTIONS:
        print(f"measuring {name} …", file=sys.stderr, flush=True)
        done.append(measure(name, options))
        print(f"\n{figures.table(done[-1])}", flush=True)
        if given.json:
            figures.save(given.json, facts, options.reps, done)
    if given.write and given.json:
        render.render(given.json, given.write)
    missed = sum(figure.met == "no" for section in done for figure in section.figures)
    print(f"\n{missed or 'no'} targets missed")
    return 0


def measure(name: str, options: Options) -> Section:
    """Run one section."""
    module = importlib.import_module(f"benchmarks.{name}")
    section = Section(name, module.TITLE)
    before, began = os.getloadavg()[0], time.monotonic()
    module.run(section, options)
    section.load, section.seconds = (before, os.getloadavg()[0]), time.monotonic() - began
    return section


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench", description="Measure jobpool on this machine; TMPDIR says where the databases are made."
    )
    add = parser.add_argument
    add("sections", nargs="*", metavar="SECTION", help=f"of {', '.join(SECTIONS)} (default: all)")
    add("--reps", type=int, default=5, metavar="N", help="repetitions; medians are shown (default: 5)")
    add("--json", type=Path, metavar="FILE", help="keep the figures there; sections measured before stay")
    add(
        "--write", type=Path, metavar="FILE", help="with --json or --render: put tables and pictures into this document"
    )
    add("--render", metavar="JSON", help="measure nothing: put a run's tables and pictures into docs/performance.md")
    add("--peers", default="executor,pebble,huey,potatoq", metavar="NAMES", help="(default: %(default)s)")
    add("--rows", type=int, default=Options().rows, metavar="N", help="growth: jobs in the large queue (default: 10^7)")
    add("--jobs", type=int, default=Options().jobs, metavar="N", help="wal: jobs worked off (default: 2 million)")
    add("--kills", type=int, default=Options().kills, metavar="N", help="recovery: workers killed (default: 100)")
    add("--seconds", type=float, default=Options().seconds, metavar="S", help="idle, fairness: how long (default: 20)")
    add("--quick", action="store_true", help="a tenth of most sizes, to see that it works")
    given = parser.parse_args()
    for name in given.sections:
        if name not in SECTIONS:
            parser.error(f"no section {name!r}; there are {', '.join(SECTIONS)}")
    if given.write and not (given.json or given.render):
        parser.error("--write needs --json FILE, which keeps what is written")
    return given


if __name__ == "__main__":
    sys.exit(main())
