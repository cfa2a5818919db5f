"""The dashboard for the person on call: ``app(database)`` is an ASGI application; ``pool web`` serves it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from pool.web.settings import Authenticate, WebSettings

if TYPE_CHECKING:
    from starlette.types import ASGIApp

__all__ = ["Authenticate", "WebSettings", "app", "wsgi"]


def app(database: str, **options: Any) -> ASGIApp:
    """The dashboard of a database as an ASGI application, to serve or to mount.

    Args:
        database: path of the queue's file, which must be there.
        options: fields of :class:`WebSettings`, such as ``tokens``, ``hosts``, ``read_only``, ``mask``.

    Raises:
        UsageError: options that would leave it open to strangers, or that can never work.
    """
    from pool.web.routes import build

    return build(WebSettings(database, **options).checked())


def wsgi(database: str, **options: Any) -> Any:
    """The same for WSGI servers and frameworks (Flask, Django under gunicorn). Needs the package ``a2wsgi``.

    Live updates are fetched every few seconds there: a WSGI server has no thread to spare for each open tab.
    """
    from a2wsgi import ASGIMiddleware

    served: Any = ASGIMiddleware(cast(Any, app(database, **{"live": False, **options})))

    def application(environ: dict[str, Any], start_response: Any) -> Any:
        # Not every server tells the port; without it, the address would not be told to the dashboard either.
        return served({"REMOTE_PORT": "0", **environ}, start_response)

    return application
