"""What the dashboard can be told, checked as a whole; the rule that it is never open to strangers stands here."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pool.errors import UsageError
from pool.web.mask import DEFAULT_NAMES

#: Names by which a browser on this machine calls it.
LOOPBACK = ("localhost", "127.0.0.1", "::1")
#: A shorter token could be guessed over a network.
SHORTEST_TOKEN = 12
_NAME = re.compile(r"[\w.+-]{1,64}")

#: Asked with the ASGI scope of each request: the person's name, or None to refuse. It may be a coroutine function.
Authenticate = Callable[[Mapping[str, Any]], str | Awaitable[str | None] | None]


@dataclass(frozen=True, slots=True)
class WebSettings:
    """The dashboard's settings.

    Attributes:
        database: path of the queue's file.
        tokens: what lets people in, by name; the name is what the audit shows. Empty: whoever reaches it is let in.
        authenticate: asked instead of ``tokens`` when the dashboard is mounted in an application that knows its users.
        hosts: names by which it may be called beside those of this machine (the Host header; without this check any
            web page could reach it by DNS rebinding). ``*`` allows any.
        addresses: whether plain IP addresses are allowed in the Host header, which no DNS name can imitate.
        read_only: refuse every change.
        mask: names of payload fields whose values are not shown, beside the usual ones.
        live: keep a stream open for each tab; without it pages are fetched anew every few seconds.
        secret: what sessions are signed with when several processes serve one dashboard and there are no tokens.
        ready_age: seconds; /readyz says no when the oldest due job is older.
    """

    database: str
    tokens: Mapping[str, str] = field(default_factory=dict)
    authenticate: Authenticate | None = None
    hosts: tuple[str, ...] = ()
    addresses: bool = False
    read_only: bool = False
    mask: tuple[str, ...] = ()
    live: bool = True
    secret: bytes = b""
    ready_age: float = 300.0

    def checked(self) -> WebSettings:
        """The same. Raises UsageError that names every fault."""
        faults = []
        open_to_all = not self.tokens and self.authenticate is None
        if open_to_all and (self.addresses or any(not is_loopback(host) for host in self.hosts)):
            faults.append("the dashboard can be reached from elsewhere, so it needs tokens (or authenticate)")
        for name, token in self.tokens.items():
            if not _NAME.fullmatch(name):
                faults.append(f"a token's name is letters, digits and . + - _, not {name!a}")
            if len(token) < SHORTEST_TOKEN:
                faults.append(f"the token of {name!a} has {len(token)} characters; at least {SHORTEST_TOKEN}")
        if len(set(self.tokens.values())) < len(self.tokens):
            faults.append("two people have the same token")
        if not self.ready_age > 0:
            faults.append(f"ready_age takes seconds above 0, not {self.ready_age}")
        if faults:
            raise UsageError("; ".join(faults))
        return self

    @property
    def masked_names(self) -> tuple[str, ...]:
        """All names whose values are masked."""
        return (*DEFAULT_NAMES, *self.mask)

    @property
    def cookie(self) -> str:
        """The cookie's name: cookies know no ports, so two dashboards on one machine need two names."""
        import hashlib

        return "jobpool_" + hashlib.sha256(os.path.abspath(self.database).encode()).hexdigest()[:10]


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def parse_tokens(text: str, where: str) -> dict[str, str]:
    """Tokens by name from a file's lines: ``NAME:TOKEN``, or a bare token, whose name is then ``token``.

    Raises:
        UsageError: no token in it.
    """
    found: dict[str, str] = {}
    for line in text.splitlines():
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        name, colon, token = line.partition(":")
        if not colon or not _NAME.fullmatch(name):
            name, token = "token", line
        if name in found:
            raise UsageError(f"{where} holds two tokens named {name!a}; write NAME:TOKEN with different names")
        found[name] = token.strip()
    if not found:
        raise UsageError(f"{where} holds no token; write one a line, as NAME:TOKEN")
    return found
