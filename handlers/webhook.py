"""Sends JSON to an URL, again and again until it was taken: the job type ``webhook``."""

from __future__ import annotations

import json
from typing import Any

from pool import Discard, Retry, handler

#: Answers that another try cannot change (RFC 9110, 15.5), except those that ask for one.
_FINAL = frozenset(range(400, 500)) - {408, 409, 423, 425, 429}
_LONGEST_WAIT = 3600.0


@handler("webhook", timeout=60, max_attempts=10)
def webhook(
    url: str, body: Any = None, *, headers: dict[str, str] | None = None, seconds: float = 20.0
) -> dict[str, Any]:
    """POST ``body`` as JSON to ``url``; the answer's status and the beginning of its text.

    Any 2xx counts as taken. 4xx is final (the job is dead, with the answer), except 408, 409, 423, 425 and 429,
    which are tried again like 5xx, a refused connection or no answer within ``seconds``; Retry-After is respected.

    Raises:
        Discard: the URL is not http(s), or the answer is final.
        Retry: the receiver said when to come again.
        OSError: anything that may pass; retried by the default delay.
    """
    if not url.startswith(("http://", "https://")):
        raise Discard(f"{url!r} is not an http or https URL")
    # Here, as it brings TLS along: 4 MB that a worker which sends nothing need not hold.
    from urllib import request as http
    from urllib.error import HTTPError

    sent = {"Content-Type": "application/json", "User-Agent": "jobpool", **(headers or {})}
    # Without HTTPRedirectHandler: a redirected POST would become a GET without its body, so a redirect is an error.
    opener = http.OpenerDirector()
    for each in (
        http.ProxyHandler,
        http.HTTPHandler,
        http.HTTPSHandler,
        http.HTTPErrorProcessor,
        http.HTTPDefaultErrorHandler,
    ):
        opener.add_handler(each())
    request = http.Request(url, json.dumps(body).encode(), sent, method="POST")
    try:
        with opener.open(request, timeout=seconds) as answer:
            return {"status": answer.status, "text": answer.read(2000).decode(errors="replace")}
    except HTTPError as error:
        with error:
            text = error.read(500).decode(errors="replace")
            said = f"{url} answered {error.code} {error.reason}: {text}"
            if error.code in _FINAL or 300 <= error.code < 400:
                raise Discard(said) from None
            wait = error.headers.get("Retry-After", "")
            if wait.isdigit():
                raise Retry(min(float(wait), _LONGEST_WAIT), said) from None
            raise OSError(said) from None
