"""What is not shown: values of fields with telling names, in payloads, in nested text, and when a payload is edited."""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from pool import jsontext

#: Parts of names, compared without case, ``_`` and ``-``.
DEFAULT_NAMES = (
    "password", "passwd", "passphrase", "pwd", "secret", "token", "authorization", "api_key", "access_key",
    "private_key", "cookie", "credential", "session_id",
)  # fmt: skip
MASK = "••••••••"
#: A longer payload is not shown: reading it all to find its secrets would take seconds.
LONGEST = 2_000_000
#: Levels a payload is shown to; deeper ones stand as compact text.
DEEPEST = 100
_URL_CREDENTIALS = re.compile(r"(\b[a-z][a-z0-9+.-]{1,20}://[^\s/:@]{0,200}):[^\s/@]{1,500}@", re.IGNORECASE)


class Mask:
    """Masks by names. A name is telling when one of the given ones is a part of it: ``token`` masks ``csrfToken``."""

    def __init__(self, names: Iterable[str] = DEFAULT_NAMES) -> None:
        self._parts = tuple(part for part in (_plain(name) for name in names) if part)
        spelled = "|".join(r"[_-]?".join(map(re.escape, part)) for part in self._parts) or r"(?!)"
        # name = 'value', "name": "value", name=value, Name: Bearer value
        self._in_text = re.compile(
            rf"""((?:{spelled})[\w-]{{0,40}}["']?\s{{0,3}}(?:=|:)\s{{0,3}}(?:Bearer\s|Basic\s)?)"""
            r"""("(?:[^"\\\n]|\\.){0,5000}"|'(?:[^'\\\n]|\\.){0,5000}'|[^\s"',;&(){}\[\]]{1,5000})""",
            re.IGNORECASE,
        )

    def hides(self, name: object) -> bool:
        """Whether the value of a field with this name is masked."""
        plain = _plain(str(name))
        return any(part in plain for part in self._parts)

    def text(self, text: str) -> str:
        """A text that may quote secrets (an error, a traceback, output), with those masked that can be told."""
        text = _URL_CREDENTIALS.sub(rf"\1:{MASK}@", text)
        return self._in_text.sub(_hide_value, text)

    def value(self, value: Any, level: int = 0) -> Any:
        """A copy of a JSON value with what is telling masked. Raises RecursionError past DEEPEST levels."""
        if level > DEEPEST:
            raise RecursionError
        if isinstance(value, dict):
            # {"name": "Authorization", "value": "…"}, as lists of headers are often written
            named = self.hides(value.get("name", value.get("key", "")))
            return {
                key: MASK if (self.hides(key) and item is not None) or (named and key == "value")
                else self.value(item, level + 1)
                for key, item in value.items()
            }  # fmt: skip
        if isinstance(value, list):
            if len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], str) and self.hides(value[0]):
                return [value[0], MASK]
            return [self.value(item, level + 1) for item in value]
        return self.text(value) if isinstance(value, str) else value

    def payload(self, stored: object) -> str:
        """A stored payload or result as indented JSON, masked; what is no JSON as it stands, masked where it can be."""
        text = stored.decode(errors="backslashreplace") if isinstance(stored, bytes) else str(stored)
        if len(text) > LONGEST:
            return f"{len(text):,} characters, which are too many to show here; pool show prints them"
        try:
            return pretty(self.value(jsontext.load(text)))
        except (ValueError, RecursionError):
            return self.text(text)

    def unmask(self, edited: Any, original: Any) -> Any:
        """An edited value with the masks in it replaced by what they stood for.

        Raises:
            ValueError: a mask stands where the original has none.
        """
        return self._restore(edited, self.value(original), original)

    def _restore(self, edited: Any, masked: Any, original: Any) -> Any:
        if edited == masked and type(edited) is type(masked):
            return original
        if isinstance(edited, dict):
            known = isinstance(original, dict) and isinstance(masked, dict)
            return {
                key: self._restore(item, masked[key], original[key])
                if known and key in original
                else _without_mask(item, key)
                for key, item in edited.items()
            }
        if isinstance(edited, list) and isinstance(original, list):
            same = len(edited) == len(original)
            return [
                self._restore(item, masked[index], original[index]) if same else _found(item, masked, original)
                for index, item in enumerate(edited)
            ]
        return _without_mask(edited, "payload")


def pretty(value: Any, indent: str = "") -> str:
    """Indented JSON in which every character that does not print stands as its escape."""
    inner = indent + "  "
    if isinstance(value, dict) and value:
        items = (f"{inner}{_string(key)}: {pretty(item, inner)}" for key, item in value.items())
        return "{\n" + ",\n".join(items) + f"\n{indent}}}"
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(f"{inner}{pretty(item, inner)}" for item in value) + f"\n{indent}]"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{Decimal(value):f}"  # int() prints no more than 4300 digits
    return jsontext.dump(value)


def _string(text: str) -> str:
    if text.isprintable():
        return jsontext.dump(text)
    return '"' + "".join(jsontext.dump(c)[1:-1] if c.isprintable() else _escape(c) for c in text) + '"'


def _escape(character: str) -> str:
    if character in "\n\t\r":
        return {"\n": "\\n", "\t": "\\t", "\r": "\\r"}[character]
    raw = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{raw[i]:02x}{raw[i + 1]:02x}" for i in range(0, len(raw), 2))


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def _hide_value(found: re.Match[str]) -> str:
    value = found[2]
    quote = value[0] if value[0] in "\"'" else ""
    return f"{found[1]}{quote}{MASK}{quote}"


def _found(item: Any, masked: list[Any], original: list[Any]) -> Any:
    """An item of a list that lost or gained some: what it was, when its visible part tells that."""
    if not _holds_mask(item):
        return item
    meant = [was for shown, was in zip(masked, original, strict=True) if shown == item]
    if not meant or any(was != meant[0] for was in meant):
        raise ValueError(
            f"a list lost or gained items, so it cannot be told what {MASK} in it stands for; write it out"
        )
    return meant[0]


def _holds_mask(value: Any) -> bool:
    if isinstance(value, str):
        return MASK in value
    if isinstance(value, dict):
        return any(_holds_mask(item) for item in value.values())
    return isinstance(value, list) and any(_holds_mask(item) for item in value)


def _without_mask(value: Any, name: str) -> Any:
    if _holds_mask(value):
        raise ValueError(f"{name!r} holds {MASK} where nothing was masked; write its value out")
    return value
