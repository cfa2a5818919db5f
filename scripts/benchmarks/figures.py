"""What a benchmark says: figures against their targets, medians of alternating runs, the table, the JSON document."""

from __future__ import annotations

import json
import os
import platform
import sqlite3
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pool import __version__


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value. ``at_least`` or ``at_most`` is its target; a figure with neither is there to compare.

    ``low`` and ``high`` are the least and the most of the repetitions that ``value`` is the median of.
    """

    name: str
    value: float
    unit: str
    at_least: float | None = None
    at_most: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def target(self) -> str:
        """The target in words, empty for none."""
        if self.at_least is not None:
            return f"≥ {amount(self.at_least, self.unit)}"
        return "" if self.at_most is None else f"≤ {amount(self.at_most, self.unit)}"

    @property
    def met(self) -> str:
        """``yes``, ``no``, or empty where there is no target."""
        if self.at_least is None and self.at_most is None:
            return ""
        enough = self.at_least is None or self.value >= self.at_least
        return "yes" if enough and (self.at_most is None or self.value <= self.at_most) else "no"


@dataclass(slots=True)
class Section:
    """A family of figures, with what the machine did meanwhile; ``series`` holds points for the pictures."""

    name: str
    title: str
    figures: list[Figure] = field(default_factory=list)
    series: dict[str, Any] = field(default_factory=dict)
    load: tuple[float, float] = (0.0, 0.0)
    seconds: float = 0.0

    def add(self, name: str, values: float | Iterable[float], unit: str, **target: float) -> Figure:
        """Add a figure: one value, or the median of several."""
        found = [values] if isinstance(values, (int, float)) else list(values)
        spread = {"low": min(found), "high": max(found)} if len(found) > 1 else {}
        self.figures.append(Figure(name, statistics.median(found), unit, **spread, **target))
        return self.figures[-1]

    def ratio(self, name: str, ours: list[float], theirs: list[float], **target: float) -> Figure:
        """The median of the ratios of neighbouring runs: what the machine did to one it mostly did to the other."""
        return self.add(name, [a / b for a, b in zip(ours, theirs, strict=True)], "x", **target)


def alternate(reps: int, sides: Mapping[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Run every side once a repetition, in turned order each time, so that no side always has the cold machine."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    for rep in range(reps):
        for name in list(sides)[:: -1 if rep % 2 else 1]:
            found[name].append(sides[name]())
    return found


def percentile(values: Iterable[float], share: float) -> float:
    """The value that ``share`` of them do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def amount(value: float, unit: str) -> str:
    """A value as people read it: three significant digits, thousands grouped, the unit behind."""
    if value == float("inf"):
        return "never"
    size = abs(value)
    text = f"{value:,.0f}" if size >= 100 else f"{value:.1f}" if size >= 20 else f"{value:.2f}"
    return f"{text}{unit}" if unit.startswith("/") else f"{text} {unit}"


def progress(text: str) -> None:
    """Tell whoever waits what is being measured."""
    print(f"  {text}", file=sys.stderr, flush=True)


# the table


def table(section: Section) -> str:
    """A section as aligned text."""
    rows = [("", "measured", "least to most", "target", "met"), *map(_row, section.figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = [f"{section.name}: {section.title} ({_circumstances(section)})"]
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        lines.append("  " + "   ".join(cells).rstrip())
    return "\n".join(lines)


def markdown(section: Section) -> str:
    """A section as a Markdown table."""
    lines = ["| | measured | least to most | target | met |", "|---|---:|---:|---:|---|"]
    lines += ["| " + " | ".join(_row(figure)) + " |" for figure in section.figures]
    return "\n".join([*lines, "", f"<sub>{_circumstances(section)}</sub>"])


def _row(figure: Figure) -> tuple[str, str, str, str, str]:
    spread = ""
    if figure.low is not None and figure.high is not None:
        spread = f"{amount(figure.low, '').strip()} – {amount(figure.high, '').strip()}"
    return figure.name, amount(figure.value, figure.unit), spread, figure.target, figure.met


def _circumstances(section: Section) -> str:
    return f"load average {section.load[0]:.1f} at its start, {section.load[1]:.1f} at its end; {section.seconds:.0f} s"


# the document


def machine(folder: str) -> dict[str, str]:
    """What the figures depend on: processor, kernel, the file system of the databases, versions."""
    return {
        "processor": f"{_processor()}, {len(os.sched_getaffinity(0))} usable",
        "system": f"{platform.system()} {platform.release()}, databases on {_file_system(folder)}",
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "jobpool": __version__,
        "measured": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }


def machine_line(facts: Mapping[str, str]) -> str:
    """The machine and versions on one line."""
    return (
        f"{facts['processor']}; {facts['system']}; Python {facts['python']}, SQLite {facts['sqlite']}, "
        f"jobpool {facts['jobpool']}; {facts['measured']}"
    )


def save(path: Path, facts: Mapping[str, str], reps: int, sections: Iterable[Section]) -> None:
    """Write a run; sections of an earlier one in the same file stay, unless they were measured again."""
    before = load(path).get("sections", {}) if path.exists() else {}
    fresh = {section.name: {**asdict(section), "machine": dict(facts), "reps": reps} for section in sections}
    text = json.dumps({"machine": dict(facts), "sections": {**before, **fresh}}, indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def load(path: Path) -> dict[str, Any]:
    """The document ``save`` wrote."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def section_of(stored: Mapping[str, Any]) -> Section:
    """A section as it was before it was saved."""
    figures = [Figure(**each) for each in stored["figures"]]
    load = (stored["load"][0], stored["load"][1])
    return Section(stored["name"], stored["title"], figures, stored["series"], load, stored["seconds"])


def _processor() -> str:
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def _file_system(folder: str) -> str:
    best = ("", "an unknown file system")
    with open("/proc/mounts", encoding="utf-8") as file:
        for line in file:
            _, place, kind, *_ = line.split()
            if os.path.realpath(folder).startswith(place) and len(place) >= len(best[0]):
                best = (place, kind)
    return best[1]
