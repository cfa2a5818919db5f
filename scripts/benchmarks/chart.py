"""Two small SVG pictures, without a library: bars for rates, a line over a logarithmic axis. Light and dark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

WIDTH = 720
_STYLE = """<style>
text { font: 13px system-ui, sans-serif; fill: #1f2328 } .quiet { fill: #59636e } .title { font-weight: 600 }
.ours { fill: #0969da } .theirs { fill: #afb8c1 } .axis { stroke: #d1d9e0 }
.line { stroke: #0969da; fill: none; stroke-width: 2 }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc } .quiet { fill: #9198a1 } .ours { fill: #4493f8 } .theirs { fill: #57606a }
.axis { stroke: #3d444d }
.line { stroke: #4493f8 } }
</style>"""


def bars(title: str, rows: Sequence[tuple[str, float, bool]], unit: str) -> str:
    """Horizontal bars: label, value, whether it is ours; the largest on top."""
    ordered = sorted(rows, key=lambda row: -row[1])
    most, left, right = ordered[0][1], 170, 90
    parts = []
    for place, (label, value, ours) in enumerate(ordered):
        y = 44 + place * 28
        length = max(1.0, (WIDTH - left - right) * value / most)
        parts.append(_text(left - 10, y + 14, label, "end"))
        parts.append(
            f'<rect class="{"ours" if ours else "theirs"}" x="{left}" y="{y}" width="{length:.1f}" height="20" rx="3"/>'
        )
        parts.append(_text(left + length + 8, y + 14, f"{value:,.0f}{unit}", "start", "quiet"))
    return _document(title, 52 + len(ordered) * 28, parts)


def line(title: str, points: Sequence[tuple[float, float]], unit: str, axis: str) -> str:
    """A line through (x, y): x on a logarithmic axis, y from zero."""
    height, left, right, top, bottom = 300, 70, 40, 50, 56
    lows, highs = math.log10(min(x for x, _ in points)), math.log10(max(x for x, _ in points))
    most = max(y for _, y in points) * 1.3

    def at(x: float, y: float) -> tuple[float, float]:
        across = (math.log10(x) - lows) / ((highs - lows) or 1)
        return left + across * (WIDTH - left - right), height - bottom - y / most * (height - top - bottom)

    parts = []
    for share in (0.0, 0.5, 1.0):
        _, y = at(10**lows, most * share)
        parts.append(f'<line class="axis" x1="{left}" x2="{WIDTH - right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(left - 8, y + 4, f"{most * share:.0f} {unit}", "end", "quiet"))
    places = [at(x, y) for x, y in points]
    route = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    parts.append(f'<polyline class="line" points="{route}"/>')
    for (px, py), (x, y) in zip(places, points, strict=True):
        parts.append(f'<circle class="ours" cx="{px:.1f}" cy="{py:.1f}" r="4"/>')
        parts.append(_text(px, py - 10, f"{y:.0f}", "middle"))
        parts.append(_text(px, height - bottom + 20, f"{x:,.0f}", "middle", "quiet"))
    parts.append(_text(WIDTH / 2, height - 12, axis, "middle", "quiet"))
    return _document(title, height, parts)


def _text(x: float, y: float, text: str, anchor: str, kind: str = "") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _document(title: str, height: int, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        f'role="img" aria-label="{escape(title)}">'
    )
    return "\n".join([head, _STYLE, _text(16, 24, title, "start", "title"), *parts, "</svg>"]) + "\n"
