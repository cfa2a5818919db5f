"""What browsers send: which jobs a list or a change is about, and the bodies of forms, checked before use."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import Request

from pool.clock import LATEST
from pool.errors import UsageError
from pool.selection import STATUSES, Selection

#: Bytes of a form's body; a payload to edit is the longest thing in one.
LARGEST_BODY = 1 << 20
#: Fields of one form: as many as a page lists jobs, and then some.
MOST_FIELDS = 1_100
LARGEST_ID = 2**63 - 1
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_STATUS_WORDS = {"archive": "archived"}
_AGE = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)\s*([smhdw]?)", re.ASCII)


def job_id(text: str) -> int:
    """A job's id from a path. Raises HTTPException 404 for what can be none."""
    if not re.fullmatch(r"[1-9]\d{0,18}", text, re.ASCII) or int(text) > LARGEST_ID:
        raise HTTPException(404, "there is no job with such an id")
    return int(text)


def selection(params: Mapping[str, str], ids: list[str]) -> Selection:
    """The jobs that filters choose; empty ones say nothing.

    Raises:
        UsageError: a filter that can never match, or cannot be read.
    """
    given = {name: (params.get(name) or "").strip() for name in ("status", "type", "key", "error", "older", "newer")}
    for name, value in given.items():
        if "\0" in value:
            raise UsageError(f"{name} holds a NUL character, which no job has")
    return Selection(
        status=given["status"] or None,
        type=given["type"] or None,
        key=given["key"] or None,
        error=given["error"] or None,
        older=_age(given["older"], "older"),
        newer=_age(given["newer"], "newer"),
        ids=tuple(dict.fromkeys(_id(each) for text in ids for each in re.split(r"[\s,]+", text.strip()) if each)),
    ).checked()


def selection_of(params: QueryParams) -> Selection:
    """The same from a query."""
    return selection(params, params.getlist("id"))


def query(chosen: Selection, **more: object) -> str:
    """The query that gives the same selection, with more fields."""
    pairs: list[tuple[str, object]] = list(fields(chosen))
    pairs += [(name, value) for name, value in more.items() if value not in (None, "")]
    return urlencode(pairs)


def fields(chosen: Selection) -> list[tuple[str, str]]:
    """A selection as the fields of a form."""
    found = [
        (name, _seconds(value) if name in ("older", "newer") else str(value))
        for name, value in chosen.facts.items()
        if name != "ids"
    ]
    return found + [("id", str(each)) for each in chosen.ids]


def words(chosen: Selection) -> str:
    """A selection in words."""
    said = [_STATUS_WORDS.get(chosen.status or "", chosen.status or ("jobs" if not chosen.ids else ""))]
    said += [f"type {chosen.type}"] if chosen.type else []
    said += [f"key {chosen.key}"] if chosen.key else []
    said += [f"error with “{chosen.error}”"] if chosen.error else []
    said += [f"changed more than {chosen.older:g} s ago"] if chosen.older is not None else []
    said += [f"changed less than {chosen.newer:g} s ago"] if chosen.newer is not None else []
    if chosen.ids:
        shown = ", ".join(f"#{each}" for each in chosen.ids[:10])
        said.append(shown + (f" and {len(chosen.ids) - 10} more" if len(chosen.ids) > 10 else ""))
    return ", ".join(part for part in said if part)


async def body(request: Request) -> dict[str, list[str]]:
    """The fields of a form's body.

    Raises:
        HTTPException: another content type (415), not a form (400), or more than LARGEST_BODY (413).
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise HTTPException(415, "changes are sent as application/x-www-form-urlencoded")
    raw = bytearray()
    async for chunk in request.stream():
        raw += chunk
        if len(raw) > LARGEST_BODY:
            raise HTTPException(413, f"a form holds at most {LARGEST_BODY >> 10} kB", {"Connection": "close"})
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, max_num_fields=MOST_FIELDS, errors="strict")
    except ValueError:
        raise HTTPException(400, "the form cannot be read: too many fields, or no UTF-8") from None
    found: dict[str, list[str]] = {}
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return found


def whole(text: str, name: str, low: int, high: int) -> int:
    """A whole number in a range. Raises UsageError."""
    stripped = text.strip()
    if not re.fullmatch(r"-?\d{1,12}", stripped, re.ASCII) or not low <= int(stripped) <= high:
        raise UsageError(f"{name} takes a whole number from {low:,} to {high:,}, not {text[:40]!a}")
    return int(stripped)


def age(text: str, name: str) -> float | None:
    """Seconds of 90, 10m, 2h or 7d; None of nothing. Raises UsageError."""
    return _age(text.strip(), name)


def _age(text: str, name: str) -> float | None:
    if not text:
        return None
    match = _AGE.fullmatch(text.lower())
    if not match or float(match[1]) * _UNITS[match[2] or "s"] > LATEST / 2:
        raise UsageError(f"{name} takes an age such as 90, 10m, 2h or 7d, not {text[:40]!a}")
    return float(match[1]) * _UNITS[match[2] or "s"]


def _seconds(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".") + "s"


def _id(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 19 or int(text) > LARGEST_ID:
        raise UsageError(f"{text[:40]!a} is no job's id")
    return int(text)


__all__ = ["STATUSES", "age", "body", "fields", "job_id", "query", "selection", "selection_of", "whole", "words"]
