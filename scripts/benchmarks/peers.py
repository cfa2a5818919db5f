"""Other queues on the same work, in a virtual environment of their own; peer/ has an adapter for each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from statistics import median

from benchmarks.cpu import calibrated
from benchmarks.figures import Section, alternate, progress
from benchmarks.options import Options
from benchmarks.running import SCRIPTS, place

TITLE = "the same work by other queues, 2 workers, their defaults"
JOBS, PICKUPS, SPINS = 5_000, 100, 100
OURS = ("jobpool", "jobpool-grouped")
#: What to install for each, and the least our rate is to be of its: one job at a time, and in groups of 32.
PACKAGES: dict[str, tuple[str, dict[str, float]]] = {
    "executor": ("", {"jobpool": 1.4}),
    "pebble": ("pebble", {"jobpool": 0.9, "jobpool-grouped": 2.5}),
    "huey": ("huey", {"jobpool": 4.0}),
    "potatoq": ("potatoq", {"jobpool": 5.0}),
    "tinyjobs": ("tinyjobs", {}),
    "litequeue": ("litequeue==0.9", {}),
    "persist-queue": ("persist-queue", {}),
    "simplebroker": ("simplebroker", {}),
}
#: Those that keep nothing.
IN_MEMORY = ("executor", "pebble")
#: What the tables call some; the others go by their own names.
LABELS = {"executor": "ProcessPoolExecutor", "jobpool-grouped": "jobpool, group=32"}


def run(section: Section, options: Options) -> None:
    """Throughput, pickup and CPU-bound rate of each; ratios of runs that stood side by side."""
    unknown = [name for name in options.peers if name not in PACKAGES]
    if unknown:
        raise ValueError(f"no peer {', '.join(unknown)}; there are {', '.join(PACKAGES)}")
    python = environment([PACKAGES[name][0] for name in options.peers])
    everyone = [*OURS, *options.peers]
    _throughput(section, options, python, everyone)
    _pickup(section, options, python, [name for name in everyone if name != "jobpool-grouped"])
    _cpu(section, options, python, [name for name in everyone if name != "jobpool-grouped"])


def _throughput(section: Section, options: Options, python: str, names: list[str]) -> None:
    count = options.size(JOBS)
    progress(f"{count} no-op jobs by {', '.join(names)}")
    whole: dict[str, list[dict[str, float]]] = {name: [] for name in names}

    def side(name: str) -> float:
        whole[name].append(measure("throughput", name, python, count))
        return whole[name][-1]["steady"]

    steady = alternate(options.reps, {name: lambda name=name: side(name) for name in names})  # type: ignore[misc]
    for name in names:
        section.add(f"{label(name)}: no-op jobs", steady[name], "/s")
        section.add(
            f"{label(name)}: no-op jobs, from the workers' start", [each["end_to_end"] for each in whole[name]], "/s"
        )
        if name not in IN_MEMORY:
            section.add(f"{label(name)}: enqueued one by one", [each["enqueue"] for each in whole[name]], "/s")
        if lost := sum(each["lost"] + each["twice"] for each in whole[name]):
            section.add(f"{label(name)}: jobs lost or run twice", lost, "jobs")
    for peer in options.peers:
        for ours in OURS:
            least = PACKAGES[peer][1].get(ours)
            if least is not None or ours == OURS[0]:
                target = {} if least is None else {"at_least": least}
                section.ratio(f"{label(ours)} : {label(peer)}, no-op jobs", steady[ours], steady[peer], **target)
    section.series["throughput"] = [[label(name), median(steady[name]), name in OURS] for name in names]


def _pickup(section: Section, options: Options, python: str, names: list[str]) -> None:
    count = options.size(PICKUPS)
    progress(f"{count} jobs each on idle workers")
    found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for _ in range(options.reps):
        for name in names:
            found[name].append(measure("pickup", name, python, count))
    for name in names:
        for share in ("p50", "p99"):
            section.add(f"{label(name)}: pickup when idle, {share}", [each[share] for each in found[name]], "ms")


def _cpu(section: Section, options: Options, python: str, names: list[str]) -> None:
    count, iterations = options.size(SPINS), calibrated()
    progress(f"{count} busy jobs of 20 ms each")
    rate = alternate(
        options.reps,
        {name: lambda name=name: measure("cpu", name, python, count, iterations)["rate"] for name in names},  # type: ignore[misc]
    )
    for name in names:
        section.add(f"{label(name)}: busy jobs of 20 ms", rate[name], "/s")


def measure(what: str, name: str, python: str, count: int, iterations: int = 0) -> dict[str, float]:
    """One measurement in a process of its own. Raises CalledProcessError; the peer's own words are on stderr."""
    with place() as where:
        script = os.path.join(SCRIPTS, "benchmarks", "peer", "peer_side.py")
        command = [
            sys.executable if name in OURS else python,
            script,
            what,
            name,
            where.folder,
            str(count),
            str(iterations),
        ]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True, timeout=900)
        found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return found


def label(name: str) -> str:
    """A peer's name as the tables show it."""
    return LABELS.get(name, name)


def environment(packages: list[str]) -> str:
    """The Python of the peers' virtual environment, made in the user's cache on demand."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "jobpool-bench" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    python = str(folder / "bin" / "python")
    wanted = [name for name in packages if name]
    stamp = folder / "packages"
    had = stamp.read_text(encoding="utf-8").split() if stamp.exists() else []
    if missing := [name for name in wanted if name not in had]:
        progress(f"installing {', '.join(missing)} into {folder}")
        if not os.path.exists(python):
            venv.create(folder, with_pip=True)
        pip = [python, "-m", "pip", "install", "-qq", "--disable-pip-version-check", *missing]
        subprocess.run(pip, check=True, stdout=sys.stderr)
        stamp.write_text("\n".join([*had, *missing]) + "\n", encoding="utf-8")
    elif not os.path.exists(python):
        venv.create(folder, with_pip=True)
    return python
