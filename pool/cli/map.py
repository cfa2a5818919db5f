"""``pool map``: one job a file, and with ``--run`` a pool that works them off with progress."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import click

from pool import jsontext
from pool.cli.base import database_option, group, json_option, parse_settings, say, say_json
from pool.cli.progress import summarize, work_off
from pool.clock import now_text
from pool.errors import ExitCode, UsageError
from pool.queue import Queue
from pool.settings import PoolSettings
from pool.spec import Spec
from pool.store import Store


class Item(NamedTuple):
    """A file to work on: where it is, where its result goes, and the key of exactly this version of it."""

    source: str
    dest: str
    key: str


@group.command("map", short_help="Queue one job for each file; a folder stands for all in it.")
@database_option
@json_option
@click.argument("type")
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True)
@click.option("--dest", required=True, metavar="DIR", help="Where results go, in the sources' own folders.")
@click.option(
    "--set", "pairs", multiple=True, metavar="KEY=VALUE", help="An argument for the handler, such as size=512."
)
@click.option(
    "--include", "patterns", multiple=True, metavar="GLOB", help="In folders, only names like this; may be repeated."
)
@click.option("--suffix", default="", help="Added to results whose name has another one, such as .jpg.")
@click.option("--run", "run_now", is_flag=True, help="Work them off now, with progress.")
@click.option("--workers", type=click.IntRange(1), metavar="N", help="With --run: worker processes.")
@click.option("--handlers", "modules", multiple=True, metavar="MODULE", help="With --run: modules of your handlers.")
def map_files(
    database: str,
    as_json: bool,
    type: str,
    sources: tuple[str, ...],
    dest: str,
    pairs: tuple[str, ...],
    patterns: tuple[str, ...],
    suffix: str,
    run_now: bool,
    workers: int | None,
    modules: tuple[str, ...],
) -> int:
    """Queue one job for each file; a folder stands for all files below it.

    A file's job is keyed by its path, size, time and options: run it again, and only what is new or changed is
    queued. A job gets the arguments source, dest and those of --set.

    \b
    pool map thumbnail photos --dest thumbs --suffix .jpg --set size=512 --run
    """
    options = parse_settings(pairs)
    if clash := {"source", "dest"} & set(options):
        raise UsageError(f"--set {min(clash)} is set by map itself, for each file")
    items = list(_items(type, sources, dest, patterns, suffix, options))
    if not items:
        raise UsageError(f"no files to map in {', '.join(sources)}")
    settings = PoolSettings(database, workers or 0, modules, drain=True).checked()
    with Queue(database) as queue:
        specs = (Spec(type, {**options, "source": item.source, "dest": item.dest}, item.key) for item in items)
        created = queue.enqueue_many(specs)
    again = _redo_vanished(database, items)
    if not run_now:
        _say_queued(as_json, len(items), created, again)
        return ExitCode.OK
    if not as_json:
        _say_queued(False, len(items), created, again)
    outcome = work_off(settings, quiet=as_json)
    return summarize(
        database,
        [item.key for item in items],
        dest,
        outcome,
        unit="images" if type == "thumbnail" else "jobs",
        as_json=as_json,
    )


def _say_queued(as_json: bool, files: int, created: int, again: int) -> None:
    known = files - created - again
    if as_json:
        say_json({"files": files, "queued": created + again, "known": known})
        return
    more = f", {known} known from before" if known else ""
    say(f"{files} {'file' if files == 1 else 'files'}: {created + again} queued{more}")


def _items(
    type: str, sources: tuple[str, ...], dest: str, patterns: tuple[str, ...], suffix: str, options: dict[str, Any]
) -> Iterator[Item]:
    into = os.path.abspath(dest)
    settings = jsontext.dump(options, "--set")
    seen: dict[str, str] = {}
    for source in sources:
        for path, relative in _files(source, into, patterns):
            if suffix and not _has_suffix(relative, suffix):
                relative += suffix
            target = os.path.join(into, relative)
            if os.path.exists(target) and os.path.samefile(target, path):
                raise UsageError(f"the result of {path} would replace it; name another --dest")
            other = seen.setdefault(target, path)
            if other != path:
                raise UsageError(f"{other} and {path} would both become {target}; map their folders into two")
            found = os.stat(path)
            what = json.dumps([type, path, found.st_size, found.st_mtime_ns, target, settings])
            yield Item(path, target, f"map:{type}:{hashlib.sha256(what.encode()).hexdigest()[:32]}")


def _files(source: str, into: str, patterns: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Absolute path, and path below the source, of each file in a stable order, without hidden ones and the results."""
    root = os.path.abspath(source)
    if os.path.isfile(root):
        yield _checked(root), os.path.basename(root)
        return
    if not os.path.isdir(root):
        raise UsageError(f"{source}: no such file or folder")
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and os.path.join(folder, name) != into)
        for name in sorted(names):
            wanted = not patterns or any(fnmatch.fnmatch(name.lower(), pattern.lower()) for pattern in patterns)
            path = os.path.join(folder, name)
            if wanted and not name.startswith(".") and os.path.isfile(path):
                yield _checked(path), os.path.relpath(path, root)


def _checked(path: str) -> str:
    try:
        path.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{path!a}: the file's name is not UTF-8, which a payload cannot carry; rename it") from None
    return path


def _has_suffix(name: str, suffix: str) -> bool:
    equal = {".jpeg": ".jpg", ".jpe": ".jpg", ".tif": ".tiff"}
    extension = os.path.splitext(name)[1].lower()
    return equal.get(extension, extension) == equal.get(suffix.lower(), suffix.lower())


def _redo_vanished(database: str, items: list[Item]) -> int:
    """Queue anew what was done before but whose result is gone: a person deleted it and asks for it again."""
    missing = {item.key for item in items if not os.path.exists(item.dest)}
    if not missing:
        return 0
    store = Store.open(database)
    try:
        done = [row["id"] for row in store.rows("by_keys", keys=json.dumps(sorted(missing))) if row["status"] == "done"]
        return sum(store.run_again(job_id, now_text()) for job_id in done)
    finally:
        store.close()
