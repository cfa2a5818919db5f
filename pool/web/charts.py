"""Charts drawn by the server as inline SVG, without a style attribute or a script in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup

from pool.clock import utc_text

_BAR = Markup('<rect class="{}" x="{}" y="{:.2f}" width="{}" height="{:.2f}"><title>{}</title></rect>')
_CHART = Markup(
    '<svg viewBox="0 0 {} 100" preserveAspectRatio="none" role="img" aria-label="{}" focusable="false">{}</svg>'
)
_METER = Markup(
    '<svg class="meter" viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true" focusable="false">'
    '<rect class="track" width="100" height="6"/><rect class="{}" width="{:.2f}" height="6"/></svg>'
)
#: Upper ends of the rows of a distribution, as bits of microseconds, and how people call them.
_ROWS = (
    (10, "up to 1 ms"),
    (14, "up to 16 ms"),
    (18, "up to 0.26 s"),
    (22, "up to 4 s"),
    (26, "up to 1 min"),
    (30, "up to 18 min"),
    (99, "longer"),
)


class Ended(NamedTuple):
    """What ended in a minute (or in so many): the first minute's text, jobs done, attempts failed."""

    at: str
    done: int
    failed: int


class Throughput(NamedTuple):
    """A chart of what ended over time, and what it says in words."""

    svg: Markup
    first: str
    most: int
    done: int
    failed: int


def throughput(counted: Mapping[str, tuple[int, int]], now: float, bars: int, minutes: int) -> Throughput:
    """Bars of ``minutes`` minutes each, the last one with the present minute; ``counted`` by ``YYYY-MM-DD HH:MM``."""
    last = int(now // 60)
    found = []
    for bar in range(bars):
        start = last - (bars - bar) * minutes + 1
        each = [counted.get(utc_text(minute * 60)[:16], (0, 0)) for minute in range(start, start + minutes)]
        found.append(Ended(utc_text(start * 60)[:16], sum(x[0] for x in each), sum(x[1] for x in each)))
    most = max((each.done + each.failed for each in found), default=0)
    done, failed = sum(each.done for each in found), sum(each.failed for each in found)
    label = f"{done:,} jobs done, {failed:,} attempts failed since {found[0].at[11:]}; at most {most:,} in one bar"
    svg = _CHART.format(bars * 10, label, Markup("").join(_stack(i, each, most) for i, each in enumerate(found)))
    return Throughput(svg, found[0].at[11:], most, done, failed)


def _stack(place: int, ended: Ended, most: int) -> Markup:
    if not most:
        return Markup("")
    said = f"{ended.at[11:]}: {ended.done:,} done, {ended.failed:,} failed"
    x, bars = place * 10 + 1, []
    done = 100 * ended.done / most
    failed = max(100 * ended.failed / most, 2.0 if ended.failed else 0.0)
    if ended.done:
        bars.append(_BAR.format("done", x, 100 - done, 8, done, said))
    if ended.failed:
        bars.append(_BAR.format("failed", x, max(100 - done - failed, 0), 8, failed, said))
    return Markup("").join(bars)


class Share(NamedTuple):
    """A row of a distribution."""

    label: str
    jobs: int
    percent: float
    meter: Markup


def distribution(buckets: Mapping[int, int]) -> list[Share]:
    """Counts by bits of microseconds, gathered into rows that a person can read."""
    total = sum(buckets.values())
    rows, low = [], -1
    for bits, label in _ROWS:
        number = sum(value for bucket, value in buckets.items() if low < bucket <= bits)
        percent = 100 * number / total if total else 0.0
        shown = max(percent, 0.5) if number else 0.0
        rows.append(Share(label, number, percent, meter(shown)))
        low = bits
    return rows


def meter(percent: float, kind: str = "done") -> Markup:
    """A bar that is so full; decoration beside a figure in words."""
    return _METER.format(kind, min(max(percent, 0.0), 100.0))


def quantile(buckets: Mapping[int, int], share: float) -> float | None:
    """Seconds below which that share lies, at most: the upper end of its bucket; None when nothing was counted."""
    wanted = share * sum(buckets.values())
    seen = 0
    for bucket in sorted(buckets):
        seen += buckets[bucket]
        if buckets[bucket] and seen >= wanted:
            return float(2**bucket) / 1e6
    return None


def quantiles(buckets: Mapping[int, int], shares: Sequence[float] = (0.5, 0.95, 0.99)) -> list[float | None]:
    """Several of them."""
    return [quantile(buckets, share) for share in shares]
