"""JSON as the database holds it: checked on the way in, so that what is stored always reads back equal."""

import json
from decimal import Decimal
from typing import Any

from pool.errors import PayloadError

#: What ``json.loads`` returns. Any, not a recursive union: handlers take their arguments from it.
Json = Any

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_string = json.encoder.encode_basestring
_PLAIN = (str, int, float, bool, type(None))


def dump(value: Json, name: str = "payload") -> str:
    """Compact JSON text of a value that reads back equal (tuples come back as lists).

    Raises:
        PayloadError: NaN, infinities, lone surrogates, keys that are not strings, cycles, and types
            JSON has no form for; the message names the place.
    """
    try:
        if type(value) not in _PLAIN:
            _check_keys(value)
        text = _encode(value)
        text.encode()
        return text
    except (TypeError, ValueError, RecursionError):
        # Rare and already slow: walk it again to name the place, or to write integers longer than the
        # 4300 digits that int() refuses to print (docs.python.org, "Integer string conversion length limitation").
        try:
            return _write(value, name, ())
        except RecursionError:
            raise PayloadError(f"{name} is nested too deeply for JSON") from None


def load(text: str) -> Json:
    """The value of a JSON text; integers of any size.

    Raises:
        ValueError: the text is not JSON (a stranger wrote it).
    """
    try:
        try:
            return _decode(text)
        except json.JSONDecodeError:
            raise
        except ValueError:
            return json.loads(text, parse_constant=_refuse_constant, parse_int=lambda digits: int(Decimal(digits)))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _refuse_constant(word: str) -> float:
    raise ValueError(f"{word} is not JSON")


# Made once: json.loads with an option makes a new one each time, which takes longer than decoding a small payload.
_decode = json.JSONDecoder(parse_constant=_refuse_constant).decode


def _check_keys(value: Any) -> None:
    """The C encoder turns 1, True and None into string keys without a word; refuse them instead."""
    if isinstance(value, dict):
        for key, item in value.items():
            if type(key) is not str:
                raise TypeError
            if type(item) not in _PLAIN:
                _check_keys(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            if type(item) not in _PLAIN:
                _check_keys(item)


def _write(value: Any, place: str, above: tuple[int, ...]) -> str:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise PayloadError(f"{place} holds a lone surrogate, which UTF-8 cannot store: {value[:40]!a}") from None
        return _string(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{Decimal(int(value)):f}"
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        raise PayloadError(f"{place} is {float(value)!r}, which JSON has no form for; use null or a string")
    if value is None or isinstance(value, (bool, float)):
        return _encode(value)
    if id(value) in above:
        raise PayloadError(f"{place} contains itself")
    above = (*above, id(value))
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise PayloadError(f"{place} has the key {key!r} of type {type(key).__name__}; JSON keys are strings")
        items = (f"{_write(k, place + ' key', above)}:{_write(v, f'{place}.{k}', above)}" for k, v in value.items())
        return "{" + ",".join(items) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(_write(v, f"{place}[{i}]", above) for i, v in enumerate(value)) + "]"
    raise PayloadError(f"{place} is a {type(value).__name__}, which JSON has no form for; convert it first")
