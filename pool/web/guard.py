"""What stands before every page: who may call, from where, and what the browser may do with the answer."""

from __future__ import annotations

import inspect
import ipaddress
import socket
from http.cookies import CookieError, SimpleCookie
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pool.web.session import NOBODY, Session, Sessions
from pool.web.settings import LOOPBACK, WebSettings

#: Nothing but our own files, no inline script or style, no frame, no form to elsewhere, no string made a script.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    # Not no-referrer: with that, a browser sends "Origin: null" with our own forms.
    "Referrer-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}
SAFE = ("GET", "HEAD", "OPTIONS")
#: What needs no session: how to get one, what pages look like, and what probes ask.
OPEN = ("/login", "/healthz", "/readyz")


class Guard:
    """ASGI middleware; leaves the session in ``scope["state"]["session"]``."""

    def __init__(self, app: ASGIApp, settings: WebSettings, sessions: Sessions) -> None:
        self._app = app
        self._settings = settings
        self._sessions = sessions
        names = {name.lower() for name in (*LOOPBACK, *settings.hosts)}
        if settings.addresses:
            names |= {socket.gethostname().lower(), socket.getfqdn().lower()}
        self._hosts = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, or pass on."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1003})
            return
        request = Request(scope, receive)
        refused = await self._refusal(request)

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                self._keep(request, headers)
            await send(message)

        await (refused or self._app)(scope, receive, guarded)

    async def _refusal(self, request: Request) -> Response | None:
        if not self._is_ours(request.headers):
            return _plain(400, "this dashboard is not known by that name; name it with --allow-host")
        request.state.session = None
        path = path_of(request)
        if not path:
            return RedirectResponse(f"{root_of(request)}/", 303)  # mounted, and asked for without the last slash
        if request.method not in SAFE and not self._is_same_origin(request.headers):
            return _plain(403, "refused: the request comes from another site")
        if path in OPEN or path.startswith("/static/"):
            request.state.session = self._from_cookie(request)
            return None
        session = await self._identify(request)
        if isinstance(session, Response):
            return session
        request.state.session = session
        if self._settings.read_only and request.method not in SAFE and path != "/logout":
            return _plain(403, "refused: this dashboard is read-only")
        return None

    async def _identify(self, request: Request) -> Session | Response:
        """Who it is, or what to answer instead."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if self._settings.tokens and scheme.lower() == "bearer":
            address = address_of(request)
            if not self._sessions.may_try(address):
                return _plain(429, "too many wrong tokens; wait a minute")
            if (name := self._sessions.name_of(token.strip())) is not None:
                return Session(name, "")
            self._sessions.tried(address)
            return _unauthorized()
        session = self._from_cookie(request)
        if self._settings.authenticate is not None:
            answer = self._settings.authenticate(request.scope)
            name = await answer if inspect.isawaitable(answer) else answer
            if not name:
                return _plain(403, "refused: not signed in to the application that shows this dashboard")
            return session if session is not None and session.name == name else self._sessions.begin(name)
        if session is not None:
            return session
        if not self._settings.tokens:
            return self._sessions.begin(NOBODY)
        if request.method in ("GET", "HEAD") and "text/html" in request.headers.get("accept", ""):
            query = request.scope["query_string"].decode("latin-1")
            here = path_of(request) + (f"?{query}" if query else "")
            return RedirectResponse(f"{root_of(request)}/login?next={quote(here, safe='')}", 303)
        return _unauthorized()

    def _from_cookie(self, request: Request) -> Session | None:
        cookie = cookies(request).get(self._settings.cookie)
        return self._sessions.read(cookie) if cookie else None

    def _keep(self, request: Request, headers: MutableHeaders) -> None:
        """Give a browser the session that was begun for it, so that the forms it was sent are its own."""
        session = getattr(request.state, "session", None)
        if session is None or not session.cookie or self._settings.tokens:
            return
        if cookies(request).get(self._settings.cookie) != session.cookie:
            set_cookie(request, headers, self._settings.cookie, session.cookie)

    def _is_ours(self, headers: Headers) -> bool:
        if len(headers.getlist("host")) != 1:
            return False
        host = host_name(headers["host"])
        if host is None:
            return False
        return host in self._hosts or "*" in self._hosts or (self._settings.addresses and _is_address(host))

    @staticmethod
    def _is_same_origin(headers: Headers) -> bool:
        """What browsers say of where a request comes from (MDN: Sec-Fetch-Site, Origin); others say nothing."""
        if headers.get("sec-fetch-site", "same-origin") != "same-origin":
            return False
        origin = headers.get("origin")
        return origin is None or origin.partition("://")[2].lower() == headers.get("host", "").lower()


def path_of(request: Request) -> str:
    """The path within the dashboard, wherever that is mounted."""
    return str(request.scope["path"]).removeprefix(request.scope.get("root_path", ""))


def root_of(request: Request) -> str:
    """Where the dashboard is mounted, as part of a URL."""
    return quote(request.scope.get("root_path", "").rstrip("/"))


def address_of(request: Request) -> str:
    """Where a request comes from."""
    return request.client.host if request.client else "unknown"


def who(request: Request) -> str:
    """Who asks, for the record."""
    return f"{request.state.session.name}@{address_of(request)} (web)"


def cookies(request: Request) -> dict[str, str]:
    """The request's cookies; none when they cannot be read."""
    jar: SimpleCookie = SimpleCookie()
    try:
        jar.load(request.headers.get("cookie", "")[:8192])
    except CookieError:
        return {}
    return {name: morsel.value for name, morsel in jar.items()}


def set_cookie(request: Request, headers: MutableHeaders, name: str, value: str, seconds: int | None = None) -> None:
    """A cookie no script and no other site gets; without ``seconds`` it ends with the browser."""
    path = root_of(request) or "/"
    secure = "; Secure" if request.scope.get("scheme") == "https" else ""
    age = "" if seconds is None else f"; Max-Age={seconds}"
    headers.append("set-cookie", f"{name}={value}; Path={path}; HttpOnly; SameSite=Strict{secure}{age}")


def host_name(header: str) -> str | None:
    """The name in a Host header, lower case, without port and brackets; None when it is no such header."""
    host = header.strip().lower()
    if host.startswith("["):
        name, bracket, port = host[1:].partition("]")
        return name if bracket and (not port or (port[:1] == ":" and port[1:].isdigit())) else None
    name, colon, port = host.partition(":")
    return name.rstrip(".") if name and (not colon or port.isdigit()) else None


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _plain(code: int, text: str) -> Response:
    return PlainTextResponse(f"{text}\n", code)


def _unauthorized() -> Response:
    return PlainTextResponse("a token is needed\n", 401, {"WWW-Authenticate": 'Bearer realm="jobpool"'})
