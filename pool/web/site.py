"""What every handler of the dashboard has at hand: its settings, the database, sessions, and the templates."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from pool.web import forms, guard, show
from pool.web.mask import MASK, Mask
from pool.web.reading import Looks, Stores
from pool.web.session import Sessions
from pool.web.settings import WebSettings

_HERE = Path(__file__).parent
#: What we serve beside pages, all of it in memory: no path of a request ever reaches the file system.
STATIC = {
    name: ((_HERE / "static" / name).read_bytes(), kind)
    for name, kind in (
        ("pool.css", "text/css; charset=utf-8"),
        ("live.js", "text/javascript; charset=utf-8"),
        ("icon.svg", "image/svg+xml"),
    )
}
_VERSIONS = {name: hashlib.sha256(content).hexdigest()[:12] for name, (content, _) in STATIC.items()}
NOTE_SECONDS = 60


class Site:
    """One dashboard."""

    def __init__(self, settings: WebSettings) -> None:
        self.settings = settings
        self.stores = Stores(settings.database)
        self.looks = Looks(self.stores)
        self.sessions = Sessions(settings)
        self.mask = Mask(settings.masked_names)
        self._templates = _templates()

    def page(self, request: Request, template: str, code: int = 200, **facts: Any) -> Response:
        """A page, with the note a change before it left."""
        session = request.state.session
        sealed = guard.cookies(request).get(self._note_cookie)
        text = self._templates.get_template(template).render(
            url=lambda path: url(request, path),
            static=lambda name: url(request, f"/static/{name}") + f"?v={_VERSIONS[name]}",
            here=guard.path_of(request),
            name=session.name if session is not None else "",
            form_token=self.sessions.form_token(session) if session is not None else "",
            with_login=bool(self.settings.tokens),
            read_only=self.settings.read_only,
            live=self.settings.live,
            database=Path(self.settings.database).name,
            note=self.sessions.unseal(sealed) if sealed else "",
            mask=self.mask,
            **facts,
        )
        response = HTMLResponse(text, code)
        if sealed:
            guard.set_cookie(request, response.headers, self._note_cookie, "", 0)
        return response

    def redirect(self, request: Request, path: str, note: str = "") -> Response:
        """To a page after a change, which then says what was done."""
        response = RedirectResponse(url(request, path), 303)
        if note:
            sealed = self.sessions.seal(note[:1000])
            guard.set_cookie(request, response.headers, self._note_cookie, sealed, NOTE_SECONDS)
        return response

    @property
    def _note_cookie(self) -> str:
        return f"{self.settings.cookie}_note"


@functools.cache
def _templates() -> jinja2.Environment:
    """All templates, compiled: nobody's first page waits for that, and each dashboard of a process uses them."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=show.cell,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters.update(show.FILTERS)
    made.filters["masked"] = _masked
    made.globals.update(took=show.took, query=forms.query, MASK=MASK)
    for name in made.list_templates():
        made.get_template(name)
    return made


@jinja2.pass_context
def _masked(context: jinja2.runtime.Context, value: object) -> str:
    mask: Mask = context["mask"]
    return "" if value is None else mask.text(show.visible(value))


def url(request: Request, path: str) -> str:
    """The URL of a page, wherever the dashboard is mounted."""
    return guard.root_of(request) + path


def local(path: str) -> str:
    """A path within the dashboard to go to, from somebody's query; the overview when it leads elsewhere."""
    fine = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable() and "\\" not in path
    return quote(path, safe="/?&=%+,:@*~.-_") if fine else "/"
