"""Puts the dashboard together: routes, the guard before them, and what errors look like."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

from anyio.to_thread import run_sync
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pool.errors import DatabaseUnusable, UsageError
from pool.web import forms, guard, health, live, pages
from pool.web.actions import CHANGES, Change, Form
from pool.web.settings import WebSettings
from pool.web.site import STATIC, Site, local

log = logging.getLogger("pool.web")

Handler = Callable[[Request], Awaitable[Response]]
Page = Callable[[Site, Request], Response]
PAGES: dict[str, Page] = {
    "/": pages.overview,
    "/jobs": pages.jobs,
    "/jobs/{id}": pages.job,
    "/jobs/{id}/edit": pages.edit,
    "/find": pages.find,
    "/scheduled": pages.scheduled,
    "/dead": pages.dead,
    "/archive": pages.archive,
    "/audit": pages.audit,
    "/bulk": pages.bulk,
    "/metrics": health.metrics,
    "/healthz": health.healthz,
    "/readyz": health.readyz,
}


def build(settings: WebSettings) -> Starlette:
    """The ASGI application; ``state.watch.closing = True`` ends its open streams."""
    site = Site(settings)
    watch = live.Watch(site.stores)
    routes = [Route(path, _page(site, page), methods=["GET"]) for path, page in PAGES.items()]
    routes += [Route(path, _change(site, change), methods=["POST"]) for path, change in CHANGES.items()]
    routes += [
        Route("/static/{name}", _static, methods=["GET"]),
        Route("/login", _page(site, _login_page), methods=["GET"]),
        Route("/login", partial(_login, site), methods=["POST"]),
        Route("/logout", partial(_logout, site), methods=["POST"]),
    ]
    if settings.live:
        routes.append(Route("/events", partial(_events, site, watch), methods=["GET"]))

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        watch.closing = True
        site.stores.close()

    app = Starlette(
        routes=routes,
        middleware=[Middleware(guard.Guard, settings=settings, sessions=site.sessions)],
        exception_handlers={
            HTTPException: partial(_failed, site),
            UsageError: partial(_failed, site),
            sqlite3.Error: partial(_failed, site),
            DatabaseUnusable: partial(_failed, site),
            Exception: partial(_failed, site),
        },
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    app.state.watch = watch
    app.state.site = site
    return app


def _page(site: Site, page: Page) -> Handler:
    async def handle(request: Request) -> Response:
        return await run_sync(page, site, request)

    return handle


def _change(site: Site, change: Change) -> Handler:
    """The only way to a change: a form, read whole, with the token of the session it was made for."""

    async def handle(request: Request) -> Response:
        form = Form(await forms.body(request))
        session = request.state.session
        if session.cookie and not site.sessions.is_form_token(session, form.text("form_token")):
            raise HTTPException(403, "this form is too old, or not ours: go back, load the page again, and repeat")
        response = await run_sync(change, site, request, form)
        site.looks.forget()
        await run_sync(site.stores.tend)
        return response

    return handle


async def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in STATIC:
        raise HTTPException(404, "there is no such page")
    content, kind = STATIC[name]
    return Response(content, headers={"Cache-Control": "public, max-age=604800", "Content-Type": kind})


async def _events(site: Site, watch: live.Watch, request: Request) -> Response:
    return live.events(site, watch, request)


def _login_page(site: Site, request: Request, wrong: str = "", code: int = 200) -> Response:
    if not site.settings.tokens:
        raise HTTPException(404, "there is no such page")
    return site.page(request, "login.html", code, next=request.query_params.get("next", "/"), wrong=wrong)


async def _login(site: Site, request: Request) -> Response:
    if not site.settings.tokens:
        raise HTTPException(404, "there is no such page")
    form = Form(await forms.body(request))
    address = guard.address_of(request)
    if not site.sessions.may_try(address):
        return _login_page(site, request, "Too many wrong tokens from your address; wait a minute", 429)
    name = site.sessions.name_of(form.text("token").strip())
    if name is None:
        site.sessions.tried(address)
        return _login_page(site, request, "That is not a token of this dashboard", 403)
    response = site.redirect(request, local(form.text("next")))
    guard.set_cookie(request, response.headers, site.settings.cookie, site.sessions.begin(name).cookie)
    log.info("%s signed in from %s", name, address)
    return response


async def _logout(site: Site, request: Request) -> Response:
    form = Form(await forms.body(request))
    session = request.state.session
    if session.cookie and not site.sessions.is_form_token(session, form.text("form_token")):
        raise HTTPException(403, "this form is too old, or not ours: go back, load the page again, and repeat")
    response = site.redirect(request, "/login")
    guard.set_cookie(request, response.headers, site.settings.cookie, "", 0)
    return response


async def _failed(site: Site, request: Request, error: Exception) -> Response:
    code, said, headers = 500, "Something went wrong here; the log of the dashboard tells what.", None
    if isinstance(error, HTTPException):
        code, said, headers = error.status_code, str(error.detail), error.headers
    elif isinstance(error, UsageError):
        code, said = 400, str(error)
    elif isinstance(error, (sqlite3.Error, DatabaseUnusable)):
        code, said = 503, f"The database cannot be read or written now: {error}"
    if code == 500:
        log.error("%s %s failed", request.method, request.scope["path"], exc_info=error)
    request.scope.setdefault("state", {}).setdefault("session", None)
    response = site.page(request, "error.html", code, said=said, missing=code == 404)
    response.headers.update(headers or {})
    return response
