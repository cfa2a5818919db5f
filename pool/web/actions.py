"""What a person changes: each by the queue's own verbs, each with its line in the record, none without a form token."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from pool import audit, jsontext, mend
from pool.clock import now_text, utc_text
from pool.doorbell import Caller
from pool.errors import PoolError, UsageError
from pool.selection import Selection
from pool.settings import MAX_WORKERS
from pool.web import forms, pages
from pool.web.guard import who
from pool.web.site import Site, local

log = logging.getLogger("pool.web")

#: How long the answer to a change of many jobs waits for its end; it goes on in any case.
PATIENCE_SECONDS = 2.0
#: Changes of many jobs at one time.
AT_ONCE = 4
LONGEST_REASON = 500
_busy = threading.BoundedSemaphore(AT_ONCE)


class Form(dict[str, list[str]]):
    """The fields of a form."""

    def text(self, name: str) -> str:
        """A field's value, empty when it was not sent."""
        return self.get(name, [""])[0]

    def reason(self) -> str:
        """Why something is done. Raises UsageError when it is too long."""
        reason = self.text("reason").strip()
        if len(reason) > LONGEST_REASON:
            raise UsageError(f"a reason has at most {LONGEST_REASON} characters, not {len(reason)}")
        return reason


def retry(site: Site, request: Request, form: Form) -> Response:
    """Queue a job now."""
    job_id = forms.job_id(request.path_params["id"])
    order = mend.Order(Selection(ids=(job_id,)), who(request), now_text())
    with site.stores.take() as store:
        changed = mend.retry(store, order)
    back = local(form.text("next")) if form.text("next") else f"/jobs/{job_id}"
    if not changed.jobs:
        why = f"Nothing changed: job {job_id} runs, or is done, or its key is another's"
        return site.redirect(request, back, why)
    return site.redirect(request, back, f"Job {job_id} is queued again, with all its tries")


def archive(site: Site, request: Request, form: Form) -> Response:
    """Put a job away."""
    job_id = forms.job_id(request.path_params["id"])
    order = mend.Order(Selection(ids=(job_id,)), who(request), now_text(), form.reason())
    with site.stores.take() as store:
        changed = mend.archive(store, order)
    if not changed.jobs:
        return site.redirect(request, f"/jobs/{job_id}", "Nothing changed: the job runs, or is in the archive already")
    return site.redirect(request, f"/jobs/{job_id}", "Moved to the archive")


def cancel(site: Site, request: Request, form: Form) -> Response:
    """Cancel a job that waits or runs."""
    job_id = forms.job_id(request.path_params["id"])
    with site.stores.take() as store:
        answer = mend.cancel(store, [job_id], who(request), now_text())[job_id]
    said = {
        "cancelled": "Cancelled; the job is in the archive",
        "requested": "The job is told to end; its pool ends it after a grace if it does not",
        None: "Nothing to cancel: the job is done or dead, or in the archive",
    }
    return site.redirect(request, f"/jobs/{job_id}", said[answer])


def edit(site: Site, request: Request, form: Form) -> Response:
    """Another payload for a job that waits or is dead, and queue it."""
    job_id = forms.job_id(request.path_params["id"])
    with site.stores.take() as store:
        row = pages.read_job(store, job_id)
        text = form.text("payload").replace("\r\n", "\n")
        try:
            if not pages.is_editable(row):
                raise UsageError("the job is no longer queued or dead; nothing was changed")
            payload = _payload(site, str(row["payload"]), text)
            priority = forms.whole(form.text("priority"), "priority", -(2**31), 2**31 - 1)
            tries = forms.whole(form.text("max_attempts"), "max_attempts", 1, 2**31 - 1)
        except (ValueError, RecursionError) as error:
            return pages.edit_form(site, request, row, text, str(error) or "nested too deeply")
        now = now_text()
        bound = {"id": job_id, "payload": payload, "priority": priority, "max_attempts": tries, "now": now}
        with store.transaction():
            edited = store.execute("web_edit", **bound, seen=form.text("seen"))
            if edited:
                store.execute("requeue", id=job_id, now=now)
                what = [name for name in ("payload", "priority", "max_attempts") if bound[name] != row[name]]
                detail = f"changed: {', '.join(what) or 'nothing'}"
                audit.record(store, now, who(request), "edit", 1, {"ids": [job_id]}, detail)
        if not edited:
            row = pages.read_job(store, job_id)
            why = "somebody else changed the job meanwhile; look at it again, then save"
            return pages.edit_form(site, request, row, text, why)
        _ring(store.path)
    return site.redirect(request, f"/jobs/{job_id}", "Saved, and queued with all its tries")


def _payload(site: Site, stored: str, text: str) -> str:
    """The payload to store: as it was when nothing was touched."""
    if text == site.mask.payload(stored):
        return stored
    return jsontext.dump(site.mask.unmask(jsontext.load(text), _loaded(stored)))


def _loaded(stored: str) -> object:
    try:
        return jsontext.load(stored)
    except ValueError:
        return None  # a stranger's text that is no JSON; whatever is written now replaces it


def bulk(site: Site, request: Request, form: Form) -> Response:
    """Change many jobs, as the page before has counted them. A long change goes on after the answer."""
    action = form.text("action")
    given = {name: values[0] for name, values in form.items()}
    chosen = pages.bulk_selection(action, forms.selection(given, form.get("id", [])))
    order = mend.Order(chosen, who(request), now_text(), form.reason())
    verb = {"retry": mend.retry, "archive": mend.archive}[action]
    if not _busy.acquire(blocking=False):
        raise HTTPException(429, f"{AT_ONCE} changes of many jobs are at work already; try again when one has ended")
    ended = threading.Event()
    said: list[str] = []

    def work() -> None:
        try:
            with site.stores.take() as store:
                said.append(_counted(action, verb(store, order)))
        except PoolError as error:
            said.append(f"Not done: {error}")
        except Exception:
            log.exception("a change of many jobs stopped; the audit shows how far it came")
            said.append("It stopped before its end; the audit shows how far it came")
        finally:
            _busy.release()
            site.looks.forget()
            ended.set()

    threading.Thread(target=work, name="bulk change", daemon=True).start()
    ended.wait(PATIENCE_SECONDS)
    return site.redirect(request, "/audit", said[0] if said else "It is at work; the count in its line below goes up")


def _counted(action: str, changed: mend.Changed) -> str:
    left = f"; {len(changed.left):,} left as they were" if changed.left else ""
    return f"{changed.jobs:,} {'queued again' if action == 'retry' else 'moved to the archive'}{left}"


def pause(site: Site, request: Request, form: Form) -> Response:
    """No claims by any pool, for a while or until resumed."""
    seconds = forms.age(form.text("for"), "for")
    now, by, reason = now_text(), who(request), form.reason() or "no reason given"
    until = None if seconds is None else utc_text(time.time() + seconds)
    with site.stores.take() as store, store.transaction():
        store.execute("pause", by=by, reason=reason, now=now, until=until)
        audit.record(store, now, by, "pause", 0, {}, reason + (f" (until {until[:19]} UTC)" if until else ""))
    return site.redirect(request, "/", "Paused: no pool claims jobs; those that run go on")


def resume(site: Site, request: Request, form: Form) -> Response:
    """End a pause."""
    with site.stores.take() as store, store.transaction():
        ended = store.execute("resume")
        if ended:
            audit.record(store, now_text(), who(request), "resume", 0, {})
    return site.redirect(request, "/", "Resumed" if ended else "Nothing was paused")


def scale(site: Site, request: Request, form: Form) -> Response:
    """How many workers a pool keeps."""
    workers = forms.whole(form.text("workers"), "workers", 1, MAX_WORKERS)
    return _order(site, request, "scale", "order_scale", f"keep {workers} workers", target=workers)


def reload(site: Site, request: Request, form: Form) -> Response:
    """Have a pool replace its workers, with fresh code."""
    return _order(site, request, "reload", "order_reload", "reload", now=now_text())


def _order(site: Site, request: Request, action: str, statement: str, told: str, **bound: object) -> Response:
    pool = forms.job_id(request.path_params["id"])
    with site.stores.take() as store, store.transaction():
        given = store.execute(statement, pool=pool, **bound)
        if given:
            audit.record(store, now_text(), who(request), action, 0, {"pool": pool}, told)
    said = f"Pool {pool} is told to {told}" if given else f"There is no pool {pool} any more"
    return site.redirect(request, "/", said)


def _ring(path: str) -> None:
    bell = Caller(path)
    bell.ring()
    bell.close()


Change = Callable[[Site, Request, Form], Response]
#: Every change there is, by the path it is posted to.
CHANGES: dict[str, Change] = {
    "/jobs/{id}/retry": retry,
    "/jobs/{id}/archive": archive,
    "/jobs/{id}/cancel": cancel,
    "/jobs/{id}/edit": edit,
    "/bulk": bulk,
    "/pause": pause,
    "/resume": resume,
    "/pools/{id}/scale": scale,
    "/pools/{id}/reload": reload,
}
__all__ = ["CHANGES", "Change", "Form"]
