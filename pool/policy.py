"""How long ended jobs are kept, by type and outcome."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from pool.clock import LATEST
from pool.errors import UsageError

_DAY = 86_400.0
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": _DAY, "w": 7 * _DAY}
_DEFAULT: dict[str, float | None] = {"done": 7 * _DAY, "dead": None, "archive": 90 * _DAY}
OUTCOMES = tuple(_DEFAULT)
#: For a policy that says all it means: nothing goes but what a rule names.
KEEP_ALL: dict[str, float | None] = dict.fromkeys(OUTCOMES)


@dataclass(frozen=True, slots=True)
class Policy:
    """Seconds for which ended jobs are kept, by outcome (``done``, ``dead``, ``archive``); None is for ever.

    ``by_type`` goes before ``default``. Done jobs go after 7 days and archived ones after 90; dead ones stay until a
    person has seen to them.
    """

    default: dict[str, float | None] = field(default_factory=lambda: dict(_DEFAULT))
    by_type: dict[tuple[str, str], float | None] = field(default_factory=dict)

    @classmethod
    def parse(cls, rules: Iterable[str], default: dict[str, float | None] | None = None) -> Policy:
        """The defaults, changed by rules such as ``done=7d``, ``thumbnail.done=1d``, ``dead=never``.

        Raises:
            UsageError: names every rule that cannot be read.
        """
        policy, faults = cls(dict(_DEFAULT if default is None else default)), []
        for rule in rules:
            try:
                type, outcome, seconds = _parse_rule(rule)
            except UsageError as error:
                faults.append(str(error))
                continue
            if type:
                policy.by_type[type, outcome] = seconds
            else:
                policy.default[outcome] = seconds
        if faults:
            raise UsageError("; ".join(faults))
        return policy

    def keep(self, type: str, outcome: str) -> float | None:
        """Seconds for which a job of that type is kept after that outcome; None for ever."""
        return self.by_type.get((type, outcome), self.default[outcome])

    def shortest(self, *outcomes: str) -> float | None:
        """The shortest time for which any job with one of these outcomes is kept; None when all are kept for ever."""
        given = [self.default[outcome] for outcome in outcomes]
        given += [seconds for (_, outcome), seconds in self.by_type.items() if outcome in outcomes]
        return min((seconds for seconds in given if seconds is not None), default=None)


def _parse_rule(rule: str) -> tuple[str, str, float | None]:
    name, equals, text = rule.strip().rpartition("=")
    type, _, outcome = name.rpartition(".")
    if not equals or not outcome:
        raise UsageError(f"{rule!r} is no retention rule; write done=7d, thumbnail.done=1d or dead=never")
    if outcome not in OUTCOMES:
        near = difflib.get_close_matches(outcome, OUTCOMES, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UsageError(f"{rule!r}: jobs are kept by {', '.join(OUTCOMES)}, not {outcome!r}{hint}")
    if text == "never":
        return type, outcome, None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text)
    if not match:
        raise UsageError(f"{rule!r}: {text!r} is not a time to keep jobs; write 12h, 7d, 4w or never")
    return type, outcome, min(float(match[1]) * _UNITS[match[2]], LATEST)
