"""How values look: a stranger's text made harmless and visible, times, ages, sizes, counts."""

from __future__ import annotations

import time
from typing import Any

from markupsafe import Markup, escape

from pool.clock import parse_utc, utc_text
from pool.tracecontext import trace_id

#: Characters of one text on a page; the middle of a longer one is left out.
LONGEST = 100_000


def visible(value: object) -> str:
    """Plain text in which every character that does not print, or that would turn or hide others (controls,
    bidirectional marks, zero width), stands as its escape. Lines and tabs stay."""
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
    if len(text) > LONGEST:
        left = len(text) - LONGEST
        text = f"{text[: LONGEST // 2]}\n… {left:,} characters left out …\n{text[-LONGEST // 2 :]}"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)


def cell(value: object) -> Markup:
    """What every ``{{ … }}`` of a template becomes: escaped, odd characters marked as such."""
    if isinstance(value, Markup):
        return value
    if value is None:
        return Markup("")
    text = value if isinstance(value, str) else visible(value)
    if len(text) > LONGEST:
        return escape(visible(text))
    if text.isprintable():
        return escape(text)
    return Markup("").join(
        escape(piece) if odd % 2 == 0 else _ODD.format(repr(piece)[1:-1]) for odd, piece in enumerate(_odd(text))
    )


_ODD = Markup('<span class="odd" title="characters that do not print">{}</span>')


def _odd(text: str) -> list[str]:
    """Runs of ordinary and of odd characters in turn, the first ordinary."""
    runs = [""]
    for character in text:
        is_odd = not (character.isprintable() or character in "\n\t")
        if is_odd == (len(runs) % 2 == 0):
            runs[-1] += character
        else:
            runs.append(character)
    return runs


def attribute(value: object) -> Markup:
    """A text within quotes of an attribute, such that a form sends it back as it was."""
    text = str(escape("" if value is None else str(value)))
    if not text.isprintable():
        text = "".join(c if c.isprintable() or c in "\n\t" else f"&#{ord(c)};" for c in text)
    return Markup(text)


def plain(value: object) -> Markup:
    """A text within quotes of an attribute that is only read, such as a label."""
    return escape(visible("" if value is None else value).replace("\n", " "))


def first_line(value: object) -> str:
    """The first line of an error."""
    text = "" if value is None else str(value)
    return text.strip().partition("\n")[0][:300]


def count(value: Any) -> str:
    """12345 as 12,345."""
    return f"{value:,}" if isinstance(value, (int, float)) else visible(value)


def size(value: Any) -> str:
    """Bytes for people."""
    if not isinstance(value, (int, float)):
        return "–"
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1024 or unit == "GB":
            return f"{value:.0f} {unit}" if unit == "B" or value >= 10 else f"{value:.1f} {unit}"
        value /= 1024
    return ""


def duration(seconds: Any) -> str:
    """Seconds for people: 250 ms, 1.5 s, 3 min, 2 h, 4 d."""
    if not isinstance(seconds, (int, float)):
        return "–"
    if seconds <= 0:
        return "0 s"
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10 and seconds % 1:
        return f"{seconds:.1f} s"
    for limit, unit, length in ((120, "s", 1), (7200, "min", 60), (172_800, "h", 3600)):
        if seconds < limit:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds / 86_400:,.0f} d"


def when(text: Any, now: float | None = None) -> Markup:
    """A time the database holds, and how far that is from now."""
    if text in (None, ""):
        return Markup("–")
    try:
        at = parse_utc(str(text))
    except ValueError:
        return cell(text)
    away = (time.time() if now is None else now) - at
    ago = f"{duration(away // 1)} ago" if away >= 1 else f"in {duration(-away // 1)}" if away <= -1 else "now"
    exact = utc_text(at)
    return Markup('<time datetime="{}Z" title="{} UTC">{}</time>').format(exact.replace(" ", "T"), exact, ago)


def stamp(text: Any) -> Markup:
    """A time as it is, to the second, in UTC."""
    if text in (None, ""):
        return Markup("–")
    try:
        exact = utc_text(parse_utc(str(text)))
    except ValueError:
        return cell(text)
    return Markup('<time datetime="{}Z">{}</time>').format(exact.replace(" ", "T"), exact[:19])


def brief(text: Any, now: float) -> Markup:
    """The time of day, UTC, and the day when that is not today."""
    try:
        exact = utc_text(parse_utc(str(text)))
    except ValueError:
        return cell(text)
    shown = exact[11:19] if exact[:10] == utc_text(now)[:10] else exact[:19]
    return Markup('<time datetime="{}Z">{}</time> UTC').format(exact.replace(" ", "T"), shown)


def clock(at: float) -> str:
    """The time of day of an instant, UTC."""
    return utc_text(at)[11:19]


def took(started: Any, ended: Any) -> str:
    """How long it was between two times, empty when one is missing or is no time."""
    try:
        return duration(parse_utc(str(ended)) - parse_utc(str(started))) if started and ended else ""
    except ValueError:
        return ""


FILTERS = {
    "attr": attribute,
    "plain": plain,
    "first_line": first_line,
    "count": count,
    "size": size,
    "duration": duration,
    "when": when,
    "stamp": stamp,
    "brief": brief,
    "clock": clock,
    "trace_id": trace_id,
}
