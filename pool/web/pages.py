"""The pages a person reads: overview, lists, one job, the archive, the record of changes."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from pool import selection
from pool.clock import now_text, parse_utc, utc_text
from pool.errors import UsageError
from pool.selection import Cursor, Selection
from pool.store import Row, Store
from pool.web import charts, forms, show
from pool.web.guard import path_of
from pool.web.reading import Look, total
from pool.web.site import Site, url

PAGE = 50
#: A payload longer than this is shown in part and cannot be edited here.
LONGEST_EDIT = 200_000
TYPES = 200
#: Scheduled jobs are counted no further, at some 0.1 µs each.
MOST_COUNTED = 100_000


def overview(site: Site, request: Request) -> Response:
    """Is all well, and if not, where."""
    look = site.looks.get(exact=False)
    day = request.query_params.get("span") == "day"
    chart = charts.throughput(look.minutes, look.at, *((96, 15) if day else (60, 1)))
    return site.page(
        request,
        "overview.html",
        look=look,
        status=look.status,
        day=day,
        chart=chart,
        per_minute=_per_minute(look),
        waits=charts.distribution(look.recent_waits),
        wait_quantiles=charts.quantiles(look.recent_waits),
        types=_types(look),
        workers=[_worker(each) for each in look.workers],
        alarm=_alarm(look),
    )


def jobs(site: Site, request: Request) -> Response:
    """A list of jobs by filters, a page at a time."""
    return _list(site, request, forms.selection_of(request.query_params), "Jobs")


def scheduled(site: Site, request: Request) -> Response:
    """What is due later: by when that is, and why."""
    return _list(site, request, _with_status(request, "scheduled"), "Scheduled", _coming)


def dead(site: Site, request: Request) -> Response:
    """Dead letters: the jobs that wait for a person."""
    return _list(site, request, _with_status(request, "dead"), "Dead letters")


def archive(site: Site, request: Request) -> Response:
    """Jobs that were cancelled or put away."""
    return _list(site, request, _with_status(request, "archive"), "Archive")


def find(site: Site, request: Request) -> Response:
    """The search box: a number is a job's id, any other text is looked for in errors."""
    text = request.query_params.get("q", "").strip()
    number = text.removeprefix("#")
    if number.isascii() and number.isdigit() and len(number) < 19:
        return RedirectResponse(url(request, f"/jobs/{int(number)}"), 303)
    chosen = forms.selection({"error": text}, [])
    return RedirectResponse(url(request, f"/jobs?{forms.query(chosen)}"), 303)


def job(site: Site, request: Request) -> Response:
    """One job, and every attempt of it that failed."""
    job_id = forms.job_id(request.path_params["id"])
    with site.stores.take() as store:
        row = read_job(store, job_id)
        attempts = store.rows("job_attempts", id=job_id)
    worker = None
    if row["status"] == "running":
        worker = next(
            (_worker(each) for each in site.looks.get(exact=False).workers if each.get("job") == job_id), None
        )
    return site.page(
        request,
        "job.html",
        job=row,
        state_word="archived" if row["archived_at"] is not None else row["status"],
        payload=site.mask.payload(row["payload"]),
        result=None if row["result"] is None else site.mask.payload(row["result"]),
        attempts=attempts,
        worker=worker,
        editable=is_editable(row),
    )


def edit(site: Site, request: Request) -> Response:
    """A form with the payload of a job that waits or is dead."""
    job_id = forms.job_id(request.path_params["id"])
    with site.stores.take() as store:
        row = read_job(store, job_id)
    if not is_editable(row):
        raise UsageError(
            f"job {job_id} cannot be edited: it has to be queued or dead, and its payload JSON of a fair size"
        )
    return edit_form(site, request, row, site.mask.payload(row["payload"]))


def edit_form(site: Site, request: Request, row: Row, payload: str, error: str = "") -> Response:
    """The same, with what is wrong with it."""
    return site.page(request, "edit.html", 400 if error else 200, job=row, payload=payload, error=error)


def audit(site: Site, request: Request) -> Response:
    """What people changed, newest first."""
    text = request.query_params.get("before", "")
    before = forms.whole(text, "before", 1, 2**38) if text else 2**62
    with site.stores.take() as store:
        rows = store.rows("audit_list", before=before, limit=PAGE)
    for row in rows:
        row["chosen"] = _chosen(row["filter"])
    return site.page(request, "audit.html", rows=rows, next=rows[-1]["id"] if len(rows) == PAGE else None)


def bulk(site: Site, request: Request) -> Response:
    """Before many jobs are changed: which, and how many. Nothing is changed here."""
    if site.settings.read_only:
        raise HTTPException(403, "this dashboard is read-only")
    action = request.query_params.get("action", "")
    chosen = bulk_selection(action, forms.selection_of(request.query_params))
    now = now_text()
    with site.stores.take() as store:
        number = selection.count(store, chosen, now)
        found = selection.page(store, chosen, now, 10)
    return site.page(
        request, "bulk.html", action=action, chosen=chosen, number=number, rows=found.rows,
        fields=forms.fields(chosen), words=forms.words(chosen),
    )  # fmt: skip


def bulk_selection(action: str, chosen: Selection) -> Selection:
    """The selection, when that may be done to it. Raises UsageError."""
    allowed = {
        "retry": ("dead", "queued", "scheduled", "archive"),
        "archive": ("dead", "queued", "scheduled", "done"),
    }
    if action not in allowed:
        raise UsageError(f"many jobs can be sent retry or archive, not {action[:40]!a}")
    if not chosen.ids and chosen.status not in allowed[action]:
        raise UsageError(
            f"to {action} many, choose jobs by a box, or by one of the states {', '.join(allowed[action])}"
        )
    return chosen


def read_job(store: Store, job_id: int) -> Row:
    """A job's row, from the queue or the archive. Raises HTTPException 404."""
    rows = store.rows("job", id=job_id) or store.rows("archived_job", id=job_id)
    if not rows:
        raise HTTPException(404, f"there is no job {job_id}; it may have been deleted, as done jobs are after a while")
    return rows[0]


def is_editable(row: Row) -> bool:
    """Whether a job's payload can be changed here."""
    fits = isinstance(row["payload"], str) and len(row["payload"]) <= LONGEST_EDIT
    return fits and row["archived_at"] is None and row["status"] in ("queued", "dead")


def _with_status(request: Request, status: str) -> Selection:
    params = request.query_params
    return forms.selection({**params, "status": status}, params.getlist("id"))


def _list(
    site: Site,
    request: Request,
    chosen: Selection,
    title: str,
    more: Callable[[Store, float, list[Row]], dict[str, Any]] | None = None,
) -> Response:
    text = request.query_params.get("after", "")
    after = Cursor.parse(text) if text else None
    now = now_text()
    with site.stores.take() as store:
        found = selection.page(store, chosen, now, PAGE, after)
        types = [row["type"] for row in store.rows("queued_types", limit=TYPES)]
        facts = more(store, parse_utc(now), found.rows) if more is not None else {}
    for row in found.rows:
        row["later"] = row["status"] == "queued" and str(row["run_at"]) > now
    own = path_of(request)[1:] if title != "Jobs" else ""
    template = "scheduled.html" if own == "scheduled" else "jobs.html"
    return site.page(
        request, template, title=title, chosen=chosen, rows=found.rows, types=types, first=after is None,
        next=str(found.next) if found.next is not None else None, fixed=title != "Jobs", own=own,
        words=forms.words(chosen), facts=dict(forms.fields(chosen)),
        filtered=bool(set(chosen.facts) - ({"status"} if title != "Jobs" else set())), **facts,
    )  # fmt: skip


def _coming(store: Store, at: float, rows: list[Row]) -> dict[str, Any]:
    """How many become due within an hour, within a day, and ever; and in each row, why it waits."""
    instants: list[str | bytes] = [utc_text(at), utc_text(at + 3600), utc_text(at + 86_400), b"\xff"]
    counts: list[tuple[int, bool]] = []
    counted = 0
    for after, until in itertools.pairwise(instants):
        counted += store.value("web_due_between", after=after, until=until, most=MOST_COUNTED - counted)
        counts.append((counted, counted == MOST_COUNTED))
    for row in rows:
        row["why"] = _why_later(row)
    return {"counts": counts, "at": at}


def _why_later(row: Row) -> str:
    if row["last_error"] is not None and row["attempts"]:
        return "retry"
    return "delayed" if row["created_at"] == row["updated_at"] else "put off"


def _per_minute(look: Look) -> float:
    """Jobs done a minute, over the last five whole minutes."""
    chart = charts.throughput(look.minutes, look.at - 60, 5, 1)
    return chart.done / 5


def _types(look: Look) -> list[dict[str, Any]]:
    names = set(look.types_last_hour) | set(look.counters.get("done", {})) | set(look.counters.get("failed", {}))
    found: list[dict[str, Any]] = []
    for name in names:
        wait, run = (look.counters.get(kind, {}).get(name, {}) for kind in ("wait", "run"))
        done, failed = look.types_last_hour.get(name, (0, 0))
        found.append(
            {
                "type": name, "done": done, "failed": failed,
                "ever": total({"": look.counters.get("done", {}).get(name, {})}).get(0, 0),
                "wait": charts.quantiles(wait), "run": charts.quantiles(run),
            }
        )  # fmt: skip
    return sorted(found, key=lambda each: (-each["done"] - each["failed"], -each["ever"], each["type"]))[:30]


def _worker(facts: dict[str, Any]) -> dict[str, Any]:
    progress = facts.get("progress") or [0, 0]
    done, of = progress[0], progress[1]
    percent = min(100.0, 100 * done / of) if of > 0 else None
    said = f"{done:g} of {of:g}" if of > 0 else f"{done:g}" if done else ""
    return {
        **facts,
        "percent": percent,
        "meter": charts.meter(percent, "running") if percent is not None else "",
        "said": said,
    }


def _alarm(look: Look) -> list[str]:
    """What a person on call has to know first."""
    found = []
    alive = [each for each in look.status["pools"] if each["alive"]]
    if not alive and look.status["queue_depth"]:
        due = f"{look.signs.get('queue_depth', '')}{look.status['queue_depth']:,}"
        found.append(f"No pool is running and {due} jobs are due. Start one with: pool run")
    elif not alive:
        found.append("No pool is running. Start one with: pool run")
    found += [
        f"Pool {each['id']} is degraded: its workers keep dying with no job to blame"
        for each in alive
        if each["state"] == "degraded"
    ]
    age = look.status["oldest_age_s"]
    if alive and not look.pause and age is not None and age > 900 and look.status["queue_depth"]:
        found.append(f"The oldest due job has waited for {show.duration(age)}")
    if look.wal_bytes > 64 << 20:
        found.append(
            f"The write-ahead log has grown to {show.size(look.wal_bytes)}: a long reader, or a burst of writes"
        )
    return found


def _chosen(text: str) -> str:
    try:
        facts = json.loads(text)
        if not isinstance(facts, dict):
            return text
        ids = facts.pop("ids", None) or []
        said = [f"{key} {value}" for key, value in facts.items()]
        said += [", ".join(f"#{each}" for each in ids[:8]) + (f" and {len(ids) - 8} more" if len(ids) > 8 else "")]
        return ", ".join(part for part in said if part)
    except ValueError:
        return text
