"""``pool web`` and ``pool metrics``: the dashboard and the metrics from the command line."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from pool.cli.base import Seconds, database_option, group, say
from pool.errors import UsageError
from pool.store import Store


@group.command("web", short_help="The dashboard.")
@database_option
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; others need a token.")
@click.option("--port", type=click.IntRange(0, 65535), default=8090, show_default=True, help="0 takes a free one.")
@click.option(
    "--token-file",
    metavar="FILE",
    help="Who may come in, NAME:TOKEN a line. One may stand in POOL_WEB_TOKEN.",
)
@click.option("--read-only", is_flag=True, help="Refuse every change.")
@click.option("--mask", multiple=True, metavar="NAME", help="Also hide payload fields of that name; may be repeated.")
@click.option("--allow-host", "hosts", multiple=True, metavar="NAME", help="A name it is called by; may be repeated.")
@click.option("--behind-proxy", is_flag=True, help="Believe X-Forwarded-For and -Proto of a proxy on this machine.")
@click.option(
    "--ready-age", type=Seconds(), default=300, show_default=True, help="/readyz says no when a due job is older."
)
def web(database: str, host: str, port: int, token_file: str | None, behind_proxy: bool, **options: Any) -> None:
    """The dashboard: what waits, runs and failed; retry, edit, cancel, archive; pause and scale pools.

    \b
    pool web                                     http://127.0.0.1:8090/, for this machine alone
    pool web --host 0.0.0.0 --token-file tokens  for others too
    """
    try:
        import jinja2  # noqa: F401
        import prometheus_client  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn
    except ImportError as error:
        raise UsageError(f"pool web needs {error.name}, which is not installed: pip install 'jobpool[web]'") from None
    from pool.web.routes import build

    Store.open(database, create=False).close()  # a wrong file is said at once
    settings = _settings(database, host, token_file, **options)
    app = build(settings)
    listener = _listen(host, port)

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: Any) -> None:
            app.state.watch.closing = True  # open streams would hold up the end
            super().handle_exit(sig, frame)

    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, proxy_headers=behind_proxy,
        timeout_graceful_shutdown=3, lifespan="on", ws="none", h11_max_incomplete_event_size=32 << 10,
    )  # fmt: skip
    server = Server(config)
    for number in (signal.SIGINT, signal.SIGTERM):
        # Until the server has its own handlers; and it raises once more what ended it, which is no error here.
        signal.signal(number, server.handle_exit)
    shown = f"[{host}]" if ":" in host else host
    say(f"dashboard of {database} on http://{shown}:{listener.getsockname()[1]}/  (Ctrl-C ends it)")
    sys.stdout.flush()
    asyncio.run(server.serve(sockets=[listener]))


def _settings(database: str, host: str, token_file: str | None, **options: Any) -> Any:
    from pool.web.settings import WebSettings, is_loopback, parse_tokens

    tokens: dict[str, str] = {}
    if token_file is not None:
        try:
            tokens = parse_tokens(Path(token_file).read_text(encoding="utf-8"), token_file)
        except (OSError, UnicodeError) as error:
            raise UsageError(f"--token-file {token_file}: {error}") from None
    if token := os.environ.get("POOL_WEB_TOKEN", "").strip():
        tokens["token"] = token
    elsewhere = not is_loopback(host)
    if elsewhere and not tokens:
        raise UsageError(
            f"--host {host} lets other machines in, so people need a token: give --token-file, or set POOL_WEB_TOKEN"
        )
    return WebSettings(database, tokens=tokens, addresses=elsewhere, **options).checked()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        hint = "; choose another with --port" if isinstance(error, OSError) and "in use" in str(error) else ""
        raise UsageError(f"cannot listen on {host} port {port}: {error.strerror or error}{hint}") from None


@group.command("metrics")
@database_option
@click.option("--output", metavar="FILE", help="Write them there, whole or not at all, for a textfile collector.")
def metrics(database: str, output: str | None) -> None:
    """The metrics for Prometheus, once. ``pool web`` serves the same at /metrics.

    \b
    pool metrics --output /var/lib/node_exporter/textfile/jobpool.prom
    """
    try:
        from pool import metrics as exported
    except ImportError as error:
        raise UsageError(
            f"pool metrics needs {error.name}, which is not installed: pip install 'jobpool[metrics]'"
        ) from None
    store = Store.open(database, create=False)
    text = exported.render(exported.read(store))
    store.close()
    if output is None:
        say(text.decode().rstrip("\n"))
        return
    target = Path(output)
    with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as file:
        file.write(text)
    os.chmod(file.name, 0o644)
    os.replace(file.name, target)
