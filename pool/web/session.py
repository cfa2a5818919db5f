"""Who is there: tokens compared in constant time, signed sessions, CSRF tokens, and a brake on guessing."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import threading
import time
from typing import NamedTuple
from urllib.parse import quote, unquote

from pool.web.settings import WebSettings

SESSION_SECONDS = 12 * 3600
#: Wrong tokens from one address within this many seconds before it has to wait.
TRIES, TRIES_SECONDS, ADDRESSES = 10, 60.0, 10_000
#: What people are called where no token says it.
NOBODY = "local"


class Session(NamedTuple):
    """A person at a browser, or a program with a bearer token, whose ``cookie`` is empty."""

    name: str
    cookie: str


class Sessions:
    """Makes and checks sessions. Nothing is kept: a session is its signed cookie, which ends with its token."""

    def __init__(self, settings: WebSettings) -> None:
        self._tokens = dict(settings.tokens)
        seed = settings.secret or "\0".join(f"{name}\0{token}" for name, token in sorted(self._tokens.items())).encode()
        # Each start makes new sessions where nothing is given that all processes of a dashboard share.
        self._key = hashlib.sha256(b"jobpool dashboard\0" + seed).digest() if seed else os.urandom(32)
        self._lock = threading.Lock()
        self._tries: dict[str, tuple[int, float]] = {}

    def name_of(self, token: str) -> str | None:
        """Whose token it is. Compares with every one, so that the time tells nothing."""
        given = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        found = None
        for name, each in self._tokens.items():
            if hmac.compare_digest(given, hashlib.sha256(each.encode()).digest()):
                found = name
        return found

    def begin(self, name: str) -> Session:
        """A new session."""
        nonce = base64.urlsafe_b64encode(os.urandom(18)).decode()
        body = f"{_spelled(name)}~{int(time.time()) + SESSION_SECONDS}~{nonce}"
        return Session(name, f"{body}~{self._sign('session', body)}")

    def read(self, cookie: str) -> Session | None:
        """The session of a cookie; None when it is not ours or is over."""
        body, _, signature = cookie.rpartition("~")
        spelled, _, rest = body.partition("~")
        name = unquote(spelled)
        until = rest.partition("~")[0]
        if not _equal(signature, self._sign("session", body)) or not until.isdigit():
            return None
        if int(until) < time.time() or (self._tokens and name not in self._tokens):
            return None
        return Session(name, cookie)

    def form_token(self, session: Session) -> str:
        """What each form of this session carries, which another site cannot know."""
        return self._sign("form", session.cookie)

    def is_form_token(self, session: Session, token: str) -> bool:
        """Whether a form is of this session."""
        return bool(session.cookie) and _equal(token, self.form_token(session))

    def seal(self, text: str) -> str:
        """A text to be kept by the browser."""
        body = base64.urlsafe_b64encode(text.encode()).decode()
        return f"{body}~{self._sign('note', body)}"

    def unseal(self, sealed: str) -> str:
        """What was sealed; empty when somebody else made it."""
        body, _, signature = sealed.rpartition("~")
        return base64.urlsafe_b64decode(body).decode() if _equal(signature, self._sign("note", body)) else ""

    def may_try(self, address: str) -> bool:
        """Whether an address may try a token; False after too many wrong ones."""
        with self._lock:
            tries, since = self._tries.get(address, (0, 0.0))
            return tries < TRIES or time.monotonic() - since > TRIES_SECONDS

    def tried(self, address: str) -> None:
        """A wrong token came from there."""
        now = time.monotonic()
        with self._lock:
            if len(self._tries) >= ADDRESSES:
                self._tries.clear()
            tries, since = self._tries.get(address, (0, now))
            self._tries[address] = (1, now) if now - since > TRIES_SECONDS else (tries + 1, since)

    def _sign(self, purpose: str, text: str) -> str:
        message = f"{purpose}\0{text}".encode("utf-8", "surrogateescape")
        return base64.urlsafe_b64encode(hmac.digest(self._key, message, "sha256")).decode().rstrip("=")


def _spelled(name: str) -> str:
    """A name as a cookie can hold it, without the mark that ends it there."""
    return quote(name, safe="@", errors="replace").replace("~", "%7E")


def _equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode("utf-8", "surrogateescape"), other.encode("utf-8", "surrogateescape"))
