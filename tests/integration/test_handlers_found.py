"""Handlers: a user's modules beside ours, and the modules that cannot work, which end the pool at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pool import Queue
from tests.support import Pool, eventually, lines, row, settled

StartPool = Callable[..., Pool]


def refused(running: Pool, *words: str, code: int = 3, traceback: bool = False) -> None:
    began = time.monotonic()
    assert running.wait() == code, running.err
    assert time.monotonic() - began < 10
    errors = [line for line in running.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, running.err
    for word in words:
        assert word in errors[0], f"{word!r} is not in {errors[0]!r}"
    assert ("Traceback" in running.err) == traceback, running.err


def test_a_module_that_raises_at_import_ends_the_pool_with_its_traceback(
    pool: StartPool, queue: Queue, database: Path
) -> None:
    queue.enqueue("note")
    running = pool(workers=2, handlers="\nraise RuntimeError('not today')\n")
    refused(running, "--handlers tasks", "RuntimeError", "not today", traceback=True)
    assert "raise RuntimeError('not today')" in running.err
    assert row(database)["status"] == "queued" and row(database)["attempts"] == 0


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("\ndef broken(:\n", ["SyntaxError"]),
        ("\nimport no_such_module\n", ["ModuleNotFoundError", "no_such_module"]),
        ("\nsys.exit('text')\n", ["SystemExit"]),
        ("\n@handler('t', timeout=0)\ndef t(): ...\n", ["timeout=0"]),
        ("\n@handler('')\ndef t(): ...\n", ["job type"]),
        ("\n@handler('t')\nasync def t(): ...\n", ["async"]),
        ("\nraise RuntimeError('two\\nlines')\n", ["RuntimeError: two"]),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_module_with_a_fault_is_named_with_its_fault(source: str, words: list[str], pool: StartPool) -> None:
    refused(pool(handlers=source), "--handlers tasks", *words, traceback=True)


def test_a_module_that_does_not_exist_is_named_with_where_it_was_looked_for(pool: StartPool, tmp_path: Path) -> None:
    refused(pool("--handlers", "nowhere"), "--handlers nowhere", "no module nowhere in", str(tmp_path))


def test_a_module_given_as_a_file_is_told_how_it_is_named(pool: StartPool) -> None:
    refused(pool("--handlers", "tasks.py"), "no module tasks.py", "without .py: --handlers tasks")


def test_what_a_package_of_the_user_lacks_is_told_by_its_whole_name(pool: StartPool, tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__init__.py").touch()
    refused(pool("--handlers", "app.jobs"), "--handlers app.jobs", "no module app.jobs in")


def test_a_module_without_a_handler_is_named(pool: StartPool, tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text("x = 1\n")
    refused(pool("--handlers", "plain"), "--handlers plain", "declares no handler")


def test_two_handlers_of_one_type_are_both_named(pool: StartPool, tmp_path: Path) -> None:
    (tmp_path / "more.py").write_text('from pool import handler\n@handler("note")\ndef mine(): ...\n')
    refused(pool("--handlers", "more"), "two handlers of type 'note'", "tasks:note", "more:mine", "more.py:2")


def test_a_handler_for_a_type_of_ours_is_refused_by_name(pool: StartPool) -> None:
    running = pool(handlers='\n@handler("thumbnail")\ndef mine(): ...\n')
    refused(running, "two handlers of type 'thumbnail'", "handlers.thumbnail:thumbnail", "tasks:mine")


def test_a_user_s_module_called_handlers_stands_beside_our_package_of_that_name(
    pool: StartPool, queue: Queue, database: Path, tmp_path: Path, tasks: Callable[..., Path]
) -> None:
    tasks('\n@handler("whose")\ndef whose():\n    return __file__\n', name="handlers")
    queue.enqueue("whose")
    queue.enqueue("thumbnail", {})
    pool("--handlers", "handlers", handlers=None).ready()
    eventually(lambda: row(database, 1)["status"] == "done" and row(database, 2)["last_error"])
    assert str(tmp_path / "handlers.py") in row(database, 1)["result"]
    assert "no handler" not in row(database, 2)["last_error"]  # ours is there as well


def test_a_user_s_package_called_handlers_does_too(
    pool: StartPool, queue: Queue, database: Path, tmp_path: Path
) -> None:
    (tmp_path / "handlers").mkdir()
    (tmp_path / "handlers/__init__.py").touch()
    (tmp_path / "handlers/mine.py").write_text(
        'from pool import handler\nfrom handlers import helper\n@handler("t")\ndef t():\n    return helper.ANSWER\n'
    )
    (tmp_path / "handlers/helper.py").write_text("ANSWER = 42\n")
    queue.enqueue("t")
    pool("--handlers", "handlers.mine", handlers=None).ready()
    eventually(lambda: row(database)["status"] == "done")
    assert row(database)["result"] == "42"


@pytest.mark.parametrize("name", ["json.py", "click.py", "sqlite3.py", "store.py"])
def test_a_file_in_the_working_folder_named_like_a_library_breaks_neither_pool_nor_command(
    name: str, pool: StartPool, queue: Queue, database: Path, tmp_path: Path
) -> None:
    """``python -m pool`` would put the folder first; the installed ``pool`` command and the workers do not."""
    (tmp_path / name).write_text("raise RuntimeError('the wrong module')\n")
    queue.enqueue("echo", {"a": 1})
    pool(env={"PYTHONSAFEPATH": "1"}).ready()
    eventually(lambda: settled(database, done=1))


def test_a_handler_imports_the_user_s_modules_when_it_runs(
    pool: StartPool, queue: Queue, database: Path, tmp_path: Path
) -> None:
    (tmp_path / "late.py").write_text("ANSWER = 42\n")
    queue.enqueue("lazy")
    pool(handlers='\n@handler("lazy")\ndef lazy():\n    import late\n    return late.ANSWER\n').ready()
    eventually(lambda: row(database)["status"] == "done")
    assert row(database)["result"] == "42"


def test_without_modules_the_handlers_that_are_installed_are_there(
    pool: StartPool, queue: Queue, database: Path
) -> None:
    queue.enqueue("thumbnail", {"source": "/nowhere.jpg", "dest": "/nowhere/out.jpg"})
    pool(handlers=None).ready()
    eventually(lambda: row(database)["last_error"])
    assert "no handler" not in row(database)["last_error"]


def test_an_unknown_type_fails_visibly_and_the_next_job_runs(
    pool: StartPool, queue: Queue, database: Path, tmp_path: Path
) -> None:
    queue.enqueue("tumbnail")
    queue.enqueue("note", {"path": str(tmp_path / "ran")})
    pool().ready()
    eventually(lambda: row(database, 2)["status"] == "done")
    assert (
        row(database, 1)["status"] == "queued"
        and "no handler for the type 'tumbnail'" in row(database, 1)["last_error"]
    )
    assert lines(tmp_path / "ran") == [""]
