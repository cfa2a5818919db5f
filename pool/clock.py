"""Times as the database holds them: UTC text that sorts as instants, beside SQLite's CURRENT_TIMESTAMP."""

import calendar
import time
from datetime import UTC, datetime, timedelta

from pool.errors import UsageError

#: Year 9999 in seconds since the epoch, less a day: later instants have no four-digit year and would not sort.
LATEST = 253402214400.0

_second: tuple[int, str] = (0, "1970-01-01 00:00:00")
_millisecond: tuple[int, str] = (0, "1970-01-01 00:00:00.000")


def utc_text(at: float) -> str:
    """Seconds since the epoch as ``YYYY-MM-DD HH:MM:SS.mmm``, clamped to years that sort as text."""
    global _second, _millisecond
    # The small addend is for instants whose float lies just below the millisecond they stand for.
    at_all = int(at * 1000 + 0.001)
    if at_all == _millisecond[0]:
        return _millisecond[1]  # jobs in bulk come by the hundred in one
    whole, thousandths = divmod(at_all, 1000)
    second = _second
    if whole != second[0]:
        if not 0 <= whole <= LATEST:
            whole, thousandths = 0 if whole < 0 else int(LATEST), 0
        second = _second = (whole, time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(whole)))
    text = f"{second[1]}.{thousandths:03d}"
    _millisecond = (at_all, text)
    return text


def now_text() -> str:
    """The present instant as the database writes it."""
    return utc_text(time.time())


def parse_utc(text: str) -> float:
    """Seconds since the epoch of a time the database holds, with or without milliseconds.

    Raises:
        ValueError: the text is not such a time (a stranger wrote it).
    """
    whole, _, fraction = text.replace("T", " ").removesuffix("Z").partition(".")
    seconds = calendar.timegm(time.strptime(whole, "%Y-%m-%d %H:%M:%S"))
    return seconds + (float("0." + fraction) if fraction else 0.0)


def instant(value: datetime | float, name: str = "run_at") -> float:
    """Seconds since the epoch of an aware datetime or a number of seconds since the epoch.

    Raises:
        UsageError: a naive datetime (it names no instant), a number past the year 9999 or NaN, or another type.
    """
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise UsageError(
                f"{name}={value.isoformat(' ')} has no time zone, so it names no instant; "
                "give it one, such as datetime.now(UTC)"
            )
        return (value - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(seconds=1)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= LATEST:
        return float(value)
    raise UsageError(f"{name} takes an aware datetime or seconds since the epoch, not {value!r}")


def duration(value: timedelta | float, name: str = "delay") -> float:
    """Seconds, not negative and not NaN, of a timedelta or a number of seconds.

    Raises:
        UsageError: anything else.
    """
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0:
        return float(min(value, LATEST))
    raise UsageError(f"{name} takes seconds (0 or more) or a timedelta, not {value!r}")
