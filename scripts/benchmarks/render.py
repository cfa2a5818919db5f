"""Puts the figures of a run into a document, between markers, and draws its pictures; the words around stay."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import chart
from benchmarks.figures import load, machine_line, markdown, section_of

_SKELETON = """# Performance

`scripts/bench --json FILE --write docs/performance.md` measures everything anew and replaces the tables and pictures;
`scripts/bench noop` one section. Each ratio is the median of ratios of runs that stood side by side.

<!-- bench:machine -->
<!-- /bench:machine -->

![No-op jobs a second, jobpool and others](images/performance-throughput.svg)
![Time to complete a job and claim the next, by the jobs queued](images/performance-backlog.svg)
"""


def render(document: Path, target: Path) -> None:
    """Replace what stands between ``<!-- bench:NAME -->`` and ``<!-- /bench:NAME -->`` in ``target`` by the tables
    of the run in ``document``; a section without a place is added at the end. Pictures go to ``images/`` beside it."""
    found = load(document)
    text = target.read_text(encoding="utf-8") if target.exists() else _SKELETON
    sections: Mapping[str, Mapping[str, Any]] = found["sections"]
    text = _put(text, "machine", "", f"{machine_line(found['machine'])}. Medians of {_reps(sections)} repetitions.")
    for name, stored in sections.items():
        section = section_of(stored)
        text = _put(text, name, f"\n## {section.title[0].upper()}{section.title[1:]}\n\n", markdown(section))
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")
    _draw(sections, target.parent / "images")


def _reps(sections: Mapping[str, Mapping[str, Any]]) -> str:
    found = sorted({stored["reps"] for stored in sections.values()})
    return " or ".join(map(str, found))


def _put(text: str, name: str, heading: str, body: str) -> str:
    start, end = f"<!-- bench:{name} -->", f"<!-- /bench:{name} -->"
    block = f"{start}\n{body}\n{end}"
    if start in text:
        return re.sub(f"{re.escape(start)}.*?{re.escape(end)}", lambda _: block, text, flags=re.DOTALL)
    return f"{text.rstrip()}\n{heading or chr(10)}{block}\n"


def _draw(sections: Mapping[str, Mapping[str, Any]], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if rows := sections.get("peers", {}).get("series", {}).get("throughput"):
        picture = chart.bars("No-op jobs a second, 2 workers", [(name, rate, ours) for name, rate, ours in rows], "/s")
        (folder / "performance-throughput.svg").write_text(picture, encoding="utf-8")
    if points := sections.get("growth", {}).get("series", {}).get("claim_by_backlog"):
        picture = chart.line("Complete one job and claim the next", [(x, y) for x, y in points], "µs", "jobs queued")
        (folder / "performance-backlog.svg").write_text(picture, encoding="utf-8")
